//! Acting as somebody else (`kubectl --as`), for those who may.
//!
//! Headers that ask for it are never ignored: whoever sends them relies on having fewer rights than
//! they have themselves.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName};

use crate::error::ApiError;
use crate::identity::authorize::Authorizer;
use crate::identity::rbac::Rbac;
use crate::identity::rbac::rule::Attributes;
use crate::identity::user::User;
use crate::request::query::unescape;

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
/// What follows is the name of a further property.
const EXTRA: &str = "impersonate-extra-";

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// Whom a request wants to act as, if it does and may. The headers go, so that nobody whom the
/// request is passed on to sees them.
pub(crate) fn impersonated_user(
    rbac: &Rbac,
    user: &User,
    headers: &mut HeaderMap,
) -> Result<Option<User>, ApiError> {
    let Some(mut wanted) = wanted(headers)? else { return Ok(None) };
    strip(headers);
    let account = account(&wanted.name);
    let (namespace, kind, name) = match account {
        Some((namespace, name)) => (namespace, "serviceaccounts", name),
        None => ("", "users", wanted.name.as_str()),
    };
    let authorizer = Authorizer::new(rbac, user);
    let check = |group: &str, resource: &str, namespace: &str, name: &str| {
        let verb = "impersonate";
        authorizer.check(&Attributes {
            verb,
            group,
            resource,
            namespace,
            name,
            ..Attributes::default()
        })
    };
    check("", kind, namespace, name)?;
    wanted.groups.iter().try_for_each(|group| check("", "groups", "", group))?;
    if !wanted.uid.is_empty() {
        check(AUTHENTICATION, "uids", "", &wanted.uid)?;
    }
    for (property, values) in &wanted.extra {
        let resource = format!("userextras/{property}");
        values.iter().try_for_each(|value| check(AUTHENTICATION, &resource, "", value))?;
    }
    if let (Some((namespace, _)), true) = (account, wanted.groups.is_empty()) {
        let all = format!("system:serviceaccounts:{namespace}");
        wanted.groups = vec!["system:serviceaccounts".into(), all];
    }
    let known = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
    if !wanted.groups.iter().any(known) {
        let group = if wanted.is_anonymous() { UNAUTHENTICATED } else { AUTHENTICATED };
        wanted.groups.push(group.into());
    }
    Ok(Some(wanted))
}

/// What the headers ask for.
fn wanted(headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let all = |name: &HeaderName| {
        let values = headers.get_all(name).iter();
        values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = |name: &HeaderName| all(name).into_iter().next().unwrap_or_default();
    let mut extra = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in headers {
        if let (Some(property), Ok(value)) = (name.as_str().strip_prefix(EXTRA), value.to_str()) {
            let property = unescape(&property.replace('+', "%2b"));
            extra.entry(property).or_default().push(value.to_owned());
        }
    }
    let wanted = User { uid: first(&UID), extra, ..User::new(first(&USER), all(&GROUP)) };
    match (&*wanted.name, wanted == User::default()) {
        ("", true) => Ok(None),
        ("", false) => Err(ApiError::bad_request(format!(
            "requested groups {:?}, uid {:?} and extra {:?} without impersonating a user name",
            wanted.groups, wanted.uid, wanted.extra
        ))),
        _ => Ok(Some(wanted)),
    }
}

fn strip(headers: &mut HeaderMap) {
    let names: Vec<_> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate-")
}

/// The namespace and name of a service account, if the user is one.
fn account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}
