//! What a new pod gets from other objects: an account that must exist, and a priority by its class.

use roadstead_api::look::{Look, child, default_to};
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ApiError;
use crate::object;
use crate::registry::{Registry, Resource};

/// Completes a new object, if it is a pod.
pub fn complete(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    if resource.bucket != "pods" {
        return Ok(());
    }
    let registry = api.registry();
    check_account(api, &registry, resource, namespace, object)?;
    let class = class(api, &registry, resource, object)?;
    prioritise(resource, class.as_ref(), object)
}

fn refusal(resource: &Resource, pod: &Value, why: &str) -> ApiError {
    ApiError::forbidden_object(resource.info(), pod.text("/metadata/name"), why)
}

/// An account that somebody names must exist. The default one is on its way if it does not.
fn check_account(
    api: &Api,
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    pod: &Value,
) -> Result<(), ApiError> {
    let name = match pod.text("/spec/serviceAccountName") {
        "" => pod.text("/spec/serviceAccount"),
        name => name,
    };
    let found = || api.store.get(&registry.core("serviceaccounts").key(namespace, name)).is_some();
    if matches!(name, "" | "default") || found() {
        return Ok(());
    }
    let why = format!(
        "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
    );
    Err(refusal(resource, pod, &why))
}

/// The class that a pod names, or the one for all who name none.
fn class(
    api: &Api,
    registry: &Registry,
    resource: &Resource,
    pod: &Value,
) -> Result<Option<Value>, ApiError> {
    let classes = registry.find("scheduling.k8s.io", "v1", "priorityclasses");
    let classes = classes.ok_or_else(ApiError::no_such_path)?;
    let name = pod.text("/spec/priorityClassName");
    if !name.is_empty() {
        let found = api.store.get(&classes.key("", name));
        let missing =
            || refusal(resource, pod, &format!("no PriorityClass with name {name} was found"));
        return found.map(|entry| Some(object::value(&entry))).ok_or_else(missing);
    }
    // Few clusters have one, and only those need a closer look.
    let word = b"\"globalDefault\":true";
    let all = api.store.list(&classes.bucket, "", None)?.entries;
    let marked =
        all.iter().filter(|entry| entry.value.windows(word.len()).any(|part| part == word));
    Ok(marked.map(|entry| object::value(entry)).min_by_key(|class| class.int("/value")))
}

/// Gives a pod the priority of its class; nobody chooses a number.
fn prioritise(resource: &Resource, class: Option<&Value>, pod: &mut Value) -> Result<(), ApiError> {
    let value = class.map_or(0, |class| class.int("/value"));
    let given = pod.pointer("/spec/priority").and_then(Value::as_i64);
    if let Some(given) = given.filter(|given| *given != value) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority \
             admission controller computed {value} from the given PriorityClass name"
        );
        return Err(refusal(resource, pod, &why));
    }
    let spec = child(pod, "spec");
    spec["priority"] = json!(value);
    if let Some(class) = class {
        default_to(spec, "priorityClassName", class.text("/metadata/name"));
        default_to(spec, "preemptionPolicy", class["preemptionPolicy"].clone());
    }
    Ok(())
}
