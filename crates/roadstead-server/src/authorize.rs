//! Who may do what: the questions that requests put to the policy.

use http::Method;
use serde_json::Value;

use crate::api::{Api, User};
use crate::error::ApiError;
use crate::rbac::rule::{self, Action};
use crate::registry::Resource;
use crate::request::{Query, Target};

/// Whether the user may ask for a path that is not about objects.
pub fn path(api: &Api, user: &User, method: &Method, path: &str) -> Result<(), ApiError> {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or("");
    if matches!(first, "healthz" | "livez" | "readyz" | "version") {
        return Ok(());
    }
    if user.is_anonymous() {
        return Err(ApiError::unauthorized());
    }
    let verb = method.as_str().to_lowercase();
    let action = Action { verb: &verb, path, ..Action::default() };
    if api.rbac.allows(user, &action) {
        return Ok(());
    }
    Err(ApiError::forbidden(format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name)))
}

/// Whether the user may do this to these objects.
pub fn verb(
    api: &Api,
    user: &User,
    method: &Method,
    resource: &Resource,
    target: &Target<'_>,
    query: &Query,
) -> Result<(), ApiError> {
    if user.is_anonymous() {
        return Err(ApiError::unauthorized());
    }
    let verb = match (method.as_str(), target.name) {
        ("GET", _) if query.flag("watch") => "watch",
        ("GET", "") => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", "") => "deletecollection",
        _ => "delete",
    };
    let info = resource.info();
    let full = match target.subresource {
        "" => info.plural.to_owned(),
        subresource => format!("{}/{subresource}", info.plural),
    };
    // A namespace lies in itself.
    let namespace = if info.plural == "namespaces" { target.name } else { target.namespace };
    let name = target.name;
    let action = Action { verb, group: info.group, resource: &full, namespace, name, path: "" };
    if api.rbac.allows(user, &action) { Ok(()) } else { Err(refusal(user, &action)) }
}

/// The words for an action that is not allowed.
pub fn refusal(user: &User, action: &Action<'_>) -> ApiError {
    let place = match action.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let plural = action.resource.split('/').next().unwrap_or("");
    let resource = match action.group {
        "" => plural.to_owned(),
        group => format!("{plural}.{group}"),
    };
    let name = if action.name.is_empty() { String::new() } else { format!(" {:?}", action.name) };
    let mut error = ApiError::forbidden(format!(
        "{resource}{name} is forbidden: User {:?} cannot {} resource {:?} in API group {:?} {place}",
        user.name, action.verb, action.resource, action.group
    ));
    let details = [("name", action.name), ("group", action.group), ("kind", plural)];
    let details = details.into_iter().filter(|(_, value)| !value.is_empty());
    error.details = Some(details.collect());
    error
}

/// Nobody may write a role, or a binding to one, that gives more than they have themselves.
pub fn escalation(
    api: &Api,
    user: &User,
    resource: &Resource,
    namespace: &str,
    object: &Value,
) -> Result<(), ApiError> {
    let info = resource.info();
    if info.group != "rbac.authorization.k8s.io" || user.is_master() {
        return Ok(());
    }
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("");
    let name = text("/metadata/name");
    let is_role = matches!(info.plural, "roles" | "clusterroles");
    let (verb, about, rules) = if is_role {
        ("escalate", name, rule::read(&object["rules"]))
    } else {
        let (kind, role) = (text("/roleRef/kind"), text("/roleRef/name"));
        ("bind", role, api.rbac.rules_of_role(kind, namespace, role).unwrap_or_default())
    };
    let plural = match (is_role, text("/roleRef/kind")) {
        (true, _) => info.plural,
        (false, "Role") => "roles",
        (false, _) => "clusterroles",
    };
    let special =
        Action { verb, group: info.group, resource: plural, namespace, name: about, path: "" };
    if api.rbac.allows(user, &special) {
        return Ok(());
    }
    let missing = rule::missing(&api.rbac.rules_of(user, namespace), &rules);
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<_> = missing.iter().map(rule::shown).collect();
    Err(ApiError::forbidden(format!(
        "{} {name:?} is forbidden: user {:?} (groups={:?}) is attempting to grant RBAC permissions \
         not currently held:\n{}",
        info.resource(),
        user.name,
        user.groups,
        missing.join("\n")
    )))
}
