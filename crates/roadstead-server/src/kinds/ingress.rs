//! Ingresses: one that says nothing of a class gets the default one.

use roadstead_schema::json::{Pointer, child};
use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::admission::AdmissionPlugin;
use crate::objects::write::Context;
use crate::reading::object;

pub(super) struct DefaultIngressClass;

impl AdmissionPlugin for DefaultIngressClass {
    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match old.is_none() {
            true => classify(context, new),
            false => Ok(()),
        }
    }
}

/// Gives an Ingress the default class: of several the newest.
fn classify(context: &Context<'_>, ingress: &mut Value) -> Result<(), ApiError> {
    let annotated =
        |object: &Value, name: &str| object["metadata"]["annotations"].get(name).cloned();
    let named = ingress.has("/spec/ingressClassName")
        || annotated(ingress, "kubernetes.io/ingress.class").is_some();
    let registry = context.api.registry();
    let classes = registry.find("networking.k8s.io", "v1", "ingressclasses");
    let Some(classes) = classes.filter(|_| !named) else { return Ok(()) };
    let found = context.api.storage.store.list(&classes.bucket, "", None)?.entries;
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
