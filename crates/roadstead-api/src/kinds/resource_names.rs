//! What can be limited, by name.

use roadstead_schema::invalid::Causes;
use serde_json::Value;

use crate::quantity::exact::Quantity;

/// What a quota may limit besides what has a name with a slash in it.
const QUOTA: [&str; 11] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.storage",
    "resourceclaims",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// What pods ask for, without a prefix.
const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

pub(super) fn is_quota(name: &str) -> bool {
    name.contains('/') || QUOTA.contains(&name) || is_of_pods(name)
}

/// Whether it is about pods, which are the only ones with scopes.
pub(super) fn is_of_pods(name: &str) -> bool {
    let bare = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits."));
    let bare = bare.unwrap_or(name);
    matches!(name, "pods" | "count/pods")
        || COMPUTE.contains(&bare)
        || bare.starts_with("hugepages-")
        || name.starts_with("requests.") && bare.contains('/')
}

/// Whether only whole numbers of it make sense.
fn is_counted(name: &str) -> bool {
    name.starts_with("count/")
        || QUOTA.contains(&name) && name != "requests.storage"
        || name.starts_with("requests.") && name.contains('/')
}

pub(super) fn validate_amount(name: &str, amount: &Value, field: &str, causes: &mut Causes) {
    let text = match amount {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let Some(amount) = Quantity::parse(&text) else { return };
    let shown = amount.to_string().into();
    if amount.is_negative() {
        causes.invalid(field, &shown, "must be greater than or equal to 0");
    }
    if is_counted(name) && !amount.is_whole() {
        causes.invalid(field, &shown, "must be an integer");
    }
}
