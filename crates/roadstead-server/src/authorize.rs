//! Who may do what: the questions that requests put to the policy.

use std::sync::Arc;

use http::Method;
use roadstead_api::kind::Info;
use roadstead_api::look::Look;
use serde_json::Value;

use crate::api::{Api, User};
use crate::error::ApiError;
use crate::rbac::cover;
use crate::rbac::rule::{self, Action, Rule};
use crate::registry::Resource;
use crate::request::{self, Query, Target};

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
    // A copy of the store has every secret in it: no role allows that.
    let secret = path.starts_with("/debug/");
    if user.is_master() || !secret && api.rbac.allows(user, &action) {
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
    let verb = request::verb(method, target.name, query.flag("watch"));
    let fields = match verb {
        "list" | "watch" | "deletecollection" => query.fields()?,
        _ => Vec::new(),
    };
    // A selection by name is about one object, as a name in the path is.
    let mut names = fields.iter().filter(|field| field.label == "metadata.name" && field.equal);
    let name = match target.name {
        "" => names.next().map_or("", |field| &field.value),
        name => name,
    };
    allowed(api, user, verb, resource, target, name)
}

/// Whether the user may create the object that an update or a patch did not find.
pub fn creation(
    api: &Api,
    user: &User,
    resource: &Resource,
    target: &Target<'_>,
) -> Result<(), ApiError> {
    allowed(api, user, "create", resource, target, target.name)
}

/// Whether the user may delete an object that cannot be read: nobody can tell what waits for it.
pub fn unsafe_deletion(
    api: &Api,
    user: &User,
    resource: &Resource,
    target: &Target<'_>,
) -> Result<(), ApiError> {
    allowed(api, user, "unsafe-delete-ignore-read-errors", resource, target, target.name)
}

fn allowed(
    api: &Api,
    user: &User,
    verb: &str,
    resource: &Resource,
    target: &Target<'_>,
    name: &str,
) -> Result<(), ApiError> {
    let info = resource.info();
    let full = match target.subresource {
        "" => info.plural.to_owned(),
        subresource => format!("{}/{subresource}", info.plural),
    };
    // A namespace lies in itself.
    let namespace = if info.plural == "namespaces" { target.name } else { target.namespace };
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

/// Nobody may write a role, or a binding to one, that gives more than they have themselves; `old` is
/// what `new` replaces.
pub fn escalation(
    api: &Api,
    user: &User,
    resource: &Resource,
    namespace: &str,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), ApiError> {
    let info = resource.info();
    let unchanged = old.is_some_and(|old| is_housekeeping(old, new));
    if info.group != GROUP || user.is_master() || unchanged {
        return Ok(());
    }
    match info.plural {
        "roles" | "clusterroles" => role_escalation(api, user, info, namespace, old, new),
        _ => binding_escalation(api, user, info, namespace, new),
    }
}

const GROUP: &str = "rbac.authorization.k8s.io";

/// Whether only owners and finalizers change: the garbage collector need not have all rights.
fn is_housekeeping(old: &Value, new: &Value) -> bool {
    let content = |object: &Value| {
        let mut content = object.clone();
        if let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                metadata.remove(field);
            }
        }
        content
    };
    content(old) == content(new)
}

fn role_escalation(
    api: &Api,
    user: &User,
    info: &Info,
    namespace: &str,
    old: Option<&Value>,
    role: &Value,
) -> Result<(), ApiError> {
    let name = role.text("/metadata/name");
    let (group, resource) = (info.group, info.plural);
    let special = Action { verb: "escalate", group, resource, namespace, name, path: "" };
    if api.rbac.allows(user, &special) {
        return Ok(());
    }
    let held = api.rbac.roles_of(user, namespace);
    check_held(user, info, name, &held, &rule::read(&role["rules"]))?;
    let sums = |role: &Value| !role.list("/aggregationRule/clusterRoleSelectors").is_empty();
    // A sum can gather anything, now or later.
    if (sums(role) || old.is_some_and(sums))
        && !cover::missing(rules(&held), &rule::all()).is_empty()
    {
        let why = "must have cluster-admin privileges to use the aggregationRule";
        return Err(ApiError::forbidden_object(info, name, why));
    }
    Ok(())
}

fn binding_escalation(
    api: &Api,
    user: &User,
    info: &Info,
    namespace: &str,
    binding: &Value,
) -> Result<(), ApiError> {
    let (kind, role) = (binding.text("/roleRef/kind"), binding.text("/roleRef/name"));
    let resource = if kind == "Role" { "roles" } else { "clusterroles" };
    let special =
        Action { verb: "bind", group: info.group, resource, namespace, name: role, path: "" };
    if api.rbac.allows(user, &special) {
        return Ok(());
    }
    // Whoever binds to a role that does not exist yet would have it as soon as it does.
    let Some(rules) = api.rbac.rules_of_role(kind, namespace, role) else {
        return Err(ApiError::not_found(&Info::new(GROUP, "v1", "", resource, ""), role));
    };
    let held = api.rbac.roles_of(user, namespace);
    check_held(user, info, binding.text("/metadata/name"), &held, &rules)
}

fn rules(roles: &[Arc<[Rule]>]) -> impl Iterator<Item = &Rule> {
    roles.iter().flat_map(|role| role.iter())
}

/// The groups of a user may be anything that somebody impersonates.
const GROUPS_SHOWN: usize = 1_000;

fn check_held(
    user: &User,
    info: &Info,
    name: &str,
    held: &[Arc<[Rule]>],
    wanted: &[Rule],
) -> Result<(), ApiError> {
    let missing = cover::missing(rules(held), wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<_> = missing.named.iter().map(rule::shown).collect();
    lines.sort();
    match (missing.unsettled, missing.more) {
        (true, _) => lines.push("… and more, of rules that are too many to compare".into()),
        (false, 0) => {}
        (false, more) => lines.push(format!("… and {more} more")),
    }
    let groups = format!("{:?}", user.groups);
    let why = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        rule::cut(&groups, GROUPS_SHOWN),
        lines.join("\n")
    );
    Err(ApiError::forbidden_object(info, name, &why))
}
