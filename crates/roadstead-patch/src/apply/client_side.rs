//! Moving from client-side to server-side apply.
//!
//! Client-side apply leaves the last applied configuration in an annotation, and its fields are
//! owned by an Update. `kubectl apply --server-side` may take these over without force, and keeps
//! the annotation up to date, so that one can go back. (Upstream: lastappliedmanager.go and
//! lastappliedupdater.go; only for the manager `kubectl`.)

use roadstead_schema::json::Pointer;
use serde_json::Value;

use super::compare::compare;
use super::fieldset::FieldSet;
use super::managers::Manager;
use super::typed::set_of;
use super::typing::Typing;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
const POINTER: &str = "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration";
/// All annotations together may not be longer than this.
const LONGEST: usize = 256 * 1024;

fn is_kubectl(manager: &Manager<'_>) -> bool {
    manager.name == "kubectl" && manager.subresource.is_empty()
}

/// What the manager may change without asking: what client-side apply set and nobody changed since.
pub(super) fn inherited(
    typing: Typing<'_>,
    live: Option<&Value>,
    manager: &Manager<'_>,
) -> FieldSet {
    let last = live.filter(|_| is_kubectl(manager)).map(|live| live.text(POINTER));
    let Some(Ok(last)) = last.map(serde_json::from_str::<Value>) else {
        return FieldSet::default();
    };
    let changed = compare(typing, live, &last);
    set_of(typing, &last).difference(&changed.set())
}

/// Writes the configuration into the annotation, if the object has it.
pub(super) fn remember(object: &mut Value, mut config: Value, manager: &Manager<'_>) {
    if !is_kubectl(manager) || !object.has(POINTER) {
        return;
    }
    let annotations = |object: &mut Value| {
        object.pointer_mut("/metadata/annotations").map(Value::take).unwrap_or_default()
    };
    if let Value::Object(mut kept) = annotations(&mut config) {
        kept.remove(ANNOTATION);
        config["metadata"]["annotations"] = Value::Object(kept);
    }
    let text = format!("{config}\n");
    if text.len() <= LONGEST {
        object["metadata"]["annotations"][ANNOTATION] = text.into();
    }
}
