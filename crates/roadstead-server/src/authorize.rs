//! Who may do what. For now members of `system:masters` may do everything, and everybody else may
//! ask for health and version.

use http::Method;

use crate::api::User;
use crate::error::ApiError;
use crate::registry::Resource;
use crate::request::Target;

/// Whether the user may ask for this path at all.
pub fn path(user: &User, path: &str) -> Result<(), ApiError> {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or("");
    let open = matches!(first, "healthz" | "livez" | "readyz" | "version");
    let known = !user.name.is_empty() && user.name != "system:anonymous";
    if open || known { Ok(()) } else { Err(ApiError::unauthorized()) }
}

/// Whether the user may do this to these objects.
pub fn verb(
    user: &User,
    method: &Method,
    resource: &Resource,
    target: &Target<'_>,
) -> Result<(), ApiError> {
    if user.is_master() {
        return Ok(());
    }
    let info = resource.info();
    let verb = match (method.as_str(), target.name) {
        ("GET", "") => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        _ => "delete",
    };
    let place = match target.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let name = if target.name.is_empty() { String::new() } else { format!(" {:?}", target.name) };
    Err(ApiError::forbidden(format!(
        "{}{name} is forbidden: User {:?} cannot {verb} resource {:?} in API group {:?} {place}",
        info.resource(),
        user.name,
        info.plural,
        info.group
    )))
}
