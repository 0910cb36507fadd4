//! LimitRanges: what pods and claims of their namespace get, and what they may not ask for.

use roadstead_api::kinds::pod;
use roadstead_plan::limit_range::{check_claim, check_pod, complete, together};
use roadstead_schema::json::Pointer;
use roadstead_store::transaction::Transaction;
use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::admission::AdmissionPlugin;
use crate::objects::write::Context;
use crate::reading::object;

/// Completes new pods, and refuses pods and claims that ask for more than is allowed.
pub(super) struct LimitRanger;

impl AdmissionPlugin for LimitRanger {
    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match (context.resource.info().plural, old, context.subresource) {
            ("pods", None, _) => admit_pod(context, new),
            ("persistentvolumeclaims", _, "") => check(context, new, check_claim),
            _ => Ok(()),
        }
    }

    /// Pods that are resized are looked at as they will be.
    fn complete(
        &self,
        context: &Context<'_>,
        _old: Option<&Value>,
        new: &Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        if context.resource.info().plural == "pods" && context.subresource == pod::RESIZE {
            check(context, new, check_pod)?;
        }
        Ok(transaction)
    }
}

/// Completes a new pod, and refuses one that asks for more than is allowed.
fn admit_pod(context: &Context<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let ranges = all(context)?;
    if ranges.is_empty() {
        return Ok(());
    }
    // Who says only how much it may take at most asks for as much, before anybody else has a say.
    context.resource.kind.default(pod);
    ranges.iter().for_each(|range| complete(pod, range));
    check(context, pod, check_pod)
}

fn check(
    context: &Context<'_>,
    object: &Value,
    check: fn(&Value, &Value) -> Vec<String>,
) -> Result<(), ApiError> {
    for range in all(context)? {
        let wrong = check(object, &range);
        if !wrong.is_empty() {
            let names = [object.text("/metadata/name"), object.text("/metadata/generateName")];
            let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown");
            let why = together(&wrong);
            return Err(ApiError::forbidden_object(context.resource.info(), name, &why));
        }
    }
    Ok(())
}

/// The ranges of the namespace.
fn all(context: &Context<'_>) -> Result<Vec<Value>, ApiError> {
    let Context { api, namespace, .. } = context;
    let registry = api.registry();
    let ranges = registry.core("limitranges");
    let found = api.storage.store.list(&ranges.bucket, &ranges.prefix(namespace), None)?;
    Ok(found.entries.iter().map(|entry| object::value(entry)).collect())
}
