//! Keeping `managedFields` right for writes other than server-side apply.

use serde_json::Value;

use super::compare::compare;
use super::managers::{Manager, Managers, Operation, is_reset};
use super::strip;
use super::typing::Typing;

/// Gives the manager what the write changes from `old` to `new`, and sets
/// `new.metadata.managedFields`.
///
/// Others lose what they owned of it. Everyone loses what the write removes. A `new` that brings
/// `managedFields` of its own has them honoured, unless it is written by way of a subresource; an
/// object whose owners are not known, because somebody had them forgotten, stays so until it is
/// applied. Call it after defaults and before allocation: what the server picks has no owner.
pub fn track(typing: Typing<'_>, old: Option<&Value>, new: &mut Value, manager: &Manager<'_>) {
    let given = take(new);
    let before = old.and_then(|old| old.get("metadata")?.get("managedFields"));
    let mut managers = match given {
        Some(given) if Some(&given) == before => Managers::decode(given),
        Some(given) if manager.subresource.is_empty() && is_reset(&given) => None,
        Some(given) if manager.subresource.is_empty() => {
            Managers::read(given).or_else(|| Managers::decode(before?.clone()))
        }
        _ => before.cloned().and_then(Managers::decode),
    };
    if old.is_none() {
        managers.get_or_insert_default();
    }
    let Some(mut managers) = managers else { return };
    let mut changes = compare(typing, old, new);
    strip(&mut changes.added);
    strip(&mut changes.modified);
    strip(&mut changes.removed);
    if !changes.is_same() {
        let gained = changes.set();
        managers.lose(&changes.removed);
        managers.lose(&gained);
        if !gained.is_empty() {
            managers.gain(manager, Operation::Update, &gained);
            managers.cap();
        }
    }
    put(new, managers.encode());
}

/// Takes `managedFields` out of an object.
pub(super) fn take(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// Puts `managedFields` into an object; an empty list is left out.
pub(super) fn put(object: &mut Value, managed_fields: Value) {
    if managed_fields.as_array().is_some_and(Vec::is_empty) {
        return;
    }
    if let Value::Object(metadata) = roadstead_schema::json::child(object, "metadata") {
        metadata.insert("managedFields".to_owned(), managed_fields);
    }
}
