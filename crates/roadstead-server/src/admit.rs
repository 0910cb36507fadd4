//! What new objects get from other objects: pods an account that must exist and a priority by their
//! class, Ingresses a class.

use roadstead_api::kinds::pod;
use roadstead_api::look::{Look, child, default_to};
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ApiError;
use crate::object;
use crate::plugins::Plugin;
use crate::registry::{Registry, Resource};

const INGRESSES: &str = "ingresses.networking.k8s.io";

/// Completes a new object.
pub fn complete(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    let registry = api.registry();
    match resource.bucket.as_str() {
        "pods" => complete_pod(api, &registry, resource, namespace, object),
        INGRESSES if api.has(Plugin::DefaultIngressClass) => classify(api, &registry, object),
        _ => Ok(()),
    }
}

/// Completes a new state of an object.
pub fn complete_update(api: &Api, resource: &Resource, object: &mut Value) {
    if resource.bucket == "pods" && api.has(Plugin::DefaultTolerationSeconds) {
        pod::tolerate_lost_nodes(child(object, "spec"));
    }
}

fn complete_pod(
    api: &Api,
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    if api.has(Plugin::ServiceAccount) {
        check_account(api, registry, resource, namespace, object)?;
        pod::give_account(child(object, "spec"));
    }
    if api.has(Plugin::Priority) {
        let class = class(api, registry, resource, object)?;
        prioritise(resource, class.as_ref(), object)?;
    }
    complete_update(api, resource, object);
    Ok(())
}

/// Gives an Ingress that says nothing of a class the default one: of several the newest.
fn classify(api: &Api, registry: &Registry, ingress: &mut Value) -> Result<(), ApiError> {
    let annotated =
        |object: &Value, name: &str| object["metadata"]["annotations"].get(name).cloned();
    let named = ingress.has("/spec/ingressClassName")
        || annotated(ingress, "kubernetes.io/ingress.class").is_some();
    let classes = registry.find("networking.k8s.io", "v1", "ingressclasses");
    let Some(classes) = classes.filter(|_| !named) else { return Ok(()) };
    let found = api.store.list(&classes.bucket, "", None)?.entries;
    let defaults = found.iter().map(|entry| object::value(entry)).filter(|class| {
        let marked = annotated(class, "ingressclass.kubernetes.io/is-default-class");
        marked.is_some_and(|own| own == "true")
    });
    let newest = defaults.max_by(|one, other| {
        let age = |class: &Value| class.text("/metadata/creationTimestamp").to_owned();
        let name = |class: &Value| class.text("/metadata/name").to_owned();
        age(one).cmp(&age(other)).then_with(|| name(other).cmp(&name(one)))
    });
    if let Some(class) = newest {
        child(ingress, "spec")["ingressClassName"] = class["metadata"]["name"].clone();
    }
    Ok(())
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
    default_to(spec, "preemptionPolicy", "PreemptLowerPriority");
    Ok(())
}
