//! The rules for `metadata` that hold for every kind.

use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Info, NameRule};
use crate::look::Look;
use crate::names;

/// Checks name, namespace, labels, annotations and owners.
pub fn validate(info: &Info, object: &Value, causes: &mut Causes) {
    let name = object.text("/metadata/name");
    if name.is_empty() {
        causes.required("metadata.name", "name or generateName is required");
    } else {
        let wrong = match info.name_rule {
            NameRule::Label => names::label(name),
            NameRule::Subdomain => names::subdomain(name),
            NameRule::Path => names::path_segment(name),
            NameRule::Address => names::address(name),
        };
        wrong.iter().for_each(|text| causes.invalid("metadata.name", &json!(name), text));
    }
    match (info.namespaced, object.text("/metadata/namespace")) {
        (true, "") => causes.required("metadata.namespace", ""),
        (false, namespace) if !namespace.is_empty() => {
            causes.forbidden("metadata.namespace", "not allowed on this type");
        }
        (_, namespace) => {
            let wrong = if namespace.is_empty() { vec![] } else { names::label(namespace) };
            wrong.iter().for_each(|t| causes.invalid("metadata.namespace", &json!(namespace), t));
        }
    }
    labels(object.pointer("/metadata/labels"), "metadata.labels", causes);
    for (key, _) in object.fields("/metadata/annotations") {
        // Annotation keys are compared without regard to case.
        for text in names::key(&key.to_lowercase()) {
            causes.invalid("metadata.annotations", &json!(key), text);
        }
    }
    let size: usize = object
        .fields("/metadata/annotations")
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > 256 * 1024 {
        causes.too_long("metadata.annotations", 256 * 1024);
    }
    for (index, owner) in object.list("/metadata/ownerReferences").iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or("").is_empty() {
                causes.invalid(
                    format!("metadata.ownerReferences[{index}].{field}"),
                    &json!(""),
                    format_args!(
                        "{} must not be empty",
                        if field == "apiVersion" { "version" } else { field }
                    ),
                );
            }
        }
    }
}

/// Checks a map of labels, or a selector made of such pairs.
pub fn labels(labels: Option<&Value>, field: &str, causes: &mut Causes) {
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        for text in names::key(key) {
            causes.invalid(field, &json!(key), text);
        }
        for text in names::label_value(value.as_str().unwrap_or("")) {
            causes.invalid(field, value, text);
        }
    }
}

/// Fields that the server owns: a client cannot change them by updating the object.
pub fn keep_system_fields(old: &Value, new: &mut Value) {
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ] {
        match old["metadata"].get(field) {
            Some(value) => new["metadata"][field] = value.clone(),
            None => {
                new["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
            }
        }
    }
}
