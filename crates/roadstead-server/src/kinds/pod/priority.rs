//! The priority of a pod: that of its class.

use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::{Value, json};

use super::refusal;
use crate::error::ApiError;
use crate::kinds::admission::AdmissionPlugin;
use crate::objects::write::Context;
use crate::reading::object;

pub(in crate::kinds) struct Priority;

impl AdmissionPlugin for Priority {
    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        if old.is_some() {
            return Ok(());
        }
        let class = class(context, new)?;
        prioritise(context, class.as_ref(), new)
    }
}

/// The class that a pod names, or the one for all who name none.
fn class(context: &Context<'_>, pod: &Value) -> Result<Option<Value>, ApiError> {
    let (store, registry) = (&context.api.storage.store, context.api.registry());
    let classes = registry.find("scheduling.k8s.io", "v1", "priorityclasses");
    let classes = classes.ok_or_else(ApiError::no_such_path)?;
    let name = pod.text("/spec/priorityClassName");
    if !name.is_empty() {
        let found = store.get(&classes.key("", name));
        let missing =
            || refusal(context, pod, &format!("no PriorityClass with name {name} was found"));
        return found.map(|entry| Some(object::value(&entry))).ok_or_else(missing);
    }
    // Few clusters have one, and only those need a closer look.
    let word = b"\"globalDefault\":true";
    let all = store.list(&classes.bucket, "", None)?.entries;
    let marked =
        all.iter().filter(|entry| entry.value.windows(word.len()).any(|part| part == word));
    Ok(marked.map(|entry| object::value(entry)).min_by_key(|class| class.int("/value")))
}

/// Gives a pod the priority of its class; nobody chooses a number.
fn prioritise(
    context: &Context<'_>,
    class: Option<&Value>,
    pod: &mut Value,
) -> Result<(), ApiError> {
    let value = class.map_or(0, |class| class.int("/value"));
    let given = pod.pointer("/spec/priority").and_then(Value::as_i64);
    if let Some(given) = given.filter(|given| *given != value) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority \
             admission controller computed {value} from the given PriorityClass name"
        );
        return Err(refusal(context, pod, &why));
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
