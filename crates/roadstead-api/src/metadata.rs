//! The rules for `metadata` that hold for every kind.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::kind::{Info, NameRule};
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
    validate_controllers(object.list("/metadata/ownerReferences"), causes);
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

/// Checks what a change of the metadata may do.
pub fn validate_update(object: &Value, old: &Value, causes: &mut Causes) {
    if !old.has("/metadata/deletionTimestamp") {
        return;
    }
    let before = old.list("/metadata/finalizers");
    let new = object.list("/metadata/finalizers").iter().filter(|own| !before.contains(own));
    let mut new: Vec<_> = new.map(ToString::to_string).collect();
    new.sort();
    if !new.is_empty() {
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers \
             []string{{{}}}",
            new.join(", ")
        );
        causes.forbidden("metadata.finalizers", &detail);
    }
}

/// At most one owner is in charge.
fn validate_controllers(owners: &[Value], causes: &mut Causes) {
    let in_charge = owners.iter().filter(|owner| owner.flag("/controller"));
    let names: Vec<_> =
        in_charge.map(|owner| format!("{}/{}", owner.text("/kind"), owner.text("/name"))).collect();
    for other in names.iter().skip(1) {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for \
             {} and {other}",
            names[0]
        );
        causes.invalid("metadata.ownerReferences", &json!(owners), detail);
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
    let own = [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ];
    keep(old, new, &own);
}

/// Leaves fields of the metadata as they were.
pub fn keep(old: &Value, new: &mut Value, fields: &[&str]) {
    for &field in fields {
        match old["metadata"].get(field) {
            Some(value) => new["metadata"][field] = value.clone(),
            None => {
                new["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
            }
        }
    }
}

#[test]
fn owners_and_finalizers() {
    let object = |finalizers: &[&str], controllers: &[bool], leaving: bool| {
        let owners = controllers.iter().enumerate().map(|(index, controller)| {
            json!({"apiVersion": "v1", "kind": "K", "name": index.to_string(), "uid": "u",
                "controller": controller})
        });
        let mut object = json!({"metadata": {"name": "a", "namespace": "b",
            "finalizers": finalizers, "ownerReferences": owners.collect::<Vec<_>>()}});
        if leaving {
            object["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        }
        object
    };
    let two = "references for K/0 and K/2";
    let new = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is \
        being deleted, found new finalizers []string{\"b\"}";
    let cases = [
        (object(&[], &[true, false], false), object(&[], &[], false), ""),
        (object(&[], &[true, false, true], false), object(&[], &[], false), two),
        (object(&["b"], &[], false), object(&["a"], &[], false), ""),
        (object(&["a", "b"], &[], true), object(&["a"], &[], true), new),
        (object(&[], &[], true), object(&["a"], &[], true), ""),
    ];
    for (object, old, want) in cases {
        let mut causes = Causes::default();
        validate(&Info::new("", "v1", "Kind", "kinds", "kind"), &object, &mut causes);
        validate_update(&object, &old, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{object}: {found}");
    }
}
