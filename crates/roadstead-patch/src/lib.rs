//! Merging a change into an object: JSON patch, JSON merge patch, strategic merge patch and
//! server-side apply.
//!
//! Pure functions over JSON values; which lists are merged by which key comes from the schema in
//! `roadstead-schema`. Routing a request to the right kind of patch, retrying on conflict and
//! validating the result belong to `roadstead-server`.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

use json_patch::{Patch, PatchOperation};
use roadstead_schema::json::{is_deeper, size};
use serde_json::Value;

pub mod apply;
pub mod strategic;

/// Why a patch could not be applied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself makes no sense.
    #[error("{0}")]
    Malformed(String),
    /// The patch makes sense, but not for this object.
    #[error("the server rejected our request due to an error in our request: {0}")]
    Rejected(String),
    /// The patch would make more of the object than anybody can want.
    #[error("Request entity too large: {0}")]
    TooLarge(String),
}

/// How many operations a JSON patch may have (upstream's limit).
const OPERATIONS: usize = 10_000;
/// How much all copies of a JSON patch may copy (upstream: 3 MiB). What is small to ask for has a small
/// answer.
const COPIED: usize = 512 << 10;
/// How deep an object may become: not as deep as what would no longer be read from the store.
const DEPTH: usize = 100;

/// RFC 6902: a list of operations, all of which succeed or none. What they leave is an object again, though
/// they may put anything in the place of the whole.
pub fn json(object: &mut Value, patch: Value) -> Result<(), PatchError> {
    let Patch(operations) =
        serde_json::from_value(patch).map_err(|error| PatchError::Malformed(error.to_string()))?;
    if operations.len() > OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut changed = object.clone();
    let mut copied = 0;
    for (index, operation) in operations.iter().enumerate() {
        check_growth(&changed, operation, &mut copied)?;
        json_patch::patch(&mut changed, std::slice::from_ref(operation)).map_err(|mut error| {
            error.operation = index;
            PatchError::Rejected(error.to_string())
        })?;
    }
    if !changed.is_object() {
        return Err(PatchError::Rejected("the result of a JSON patch must be an object".into()));
    }
    *object = changed;
    Ok(())
}

/// A few operations can double an object again and again: refuses them before they are carried out.
fn check_growth(
    object: &Value,
    operation: &PatchOperation,
    copied: &mut usize,
) -> Result<(), PatchError> {
    let added = match operation {
        PatchOperation::Add(add) => Some(&add.value),
        PatchOperation::Replace(replace) => Some(&replace.value),
        PatchOperation::Copy(copy) => object.pointer(copy.from.as_str()),
        PatchOperation::Move(change) => object.pointer(change.from.as_str()),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => None,
    };
    let Some(added) = added else { return Ok(()) };
    let above = operation.path().as_str().matches('/').count();
    if above > DEPTH || is_deeper(added, DEPTH - above) {
        return Err(PatchError::Malformed("exceeded max depth".into()));
    }
    if matches!(operation, PatchOperation::Copy(_)) {
        *copied += size(added);
    }
    if *copied > COPIED {
        return Err(PatchError::TooLarge(format!(
            "Unable to complete the copy, the accumulated size increase of copy is {copied}, \
             exceeding the limit {COPIED}"
        )));
    }
    Ok(())
}

/// RFC 7386: objects are merged, null removes, everything else replaces.
pub fn merge(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed("a merge patch must be a JSON object".into()));
    }
    json_patch::merge(object, patch);
    Ok(())
}

#[test]
fn a_failing_json_patch_changes_nothing() {
    use serde_json::json;
    let mut object = json!({"a": 1});
    let patch = json!([
        {"op": "replace", "path": "/a", "value": 2},
        {"op": "test", "path": "/a", "value": 3},
    ]);
    assert!(matches!(json(&mut object, patch), Err(PatchError::Rejected(_))));
    assert_eq!(object, json!({"a": 1}));
    merge(&mut object, &json!({"a": null, "b": {"c": 1}})).unwrap();
    assert_eq!(object, json!({"b": {"c": 1}}));
}

#[test]
fn a_json_patch_leaves_an_object() {
    use serde_json::json;
    for (patch, want) in [
        (json!({"op": "add", "path": "", "value": "z"}), None),
        (json!({"op": "replace", "path": "", "value": null}), None),
        (json!({"op": "remove", "path": ""}), None),
        (json!({"op": "copy", "from": "/a", "path": ""}), None),
        (json!({"op": "add", "path": "", "value": {"b": 2}}), Some(json!({"b": 2}))),
    ] {
        let mut object = json!({"a": 1});
        let is_refused = json(&mut object, json!([patch])).is_err();
        assert_eq!(is_refused, want.is_none(), "{patch}");
        assert_eq!(object, want.unwrap_or(json!({"a": 1})), "{patch}");
    }
}

#[test]
fn a_json_patch_cannot_grow_without_end() {
    use serde_json::json;
    let operation =
        |op: &str, from: &str, path: &str| json!({"op": op, "from": from, "path": path});
    let doubling = vec![operation("copy", "/a", "/a/-"); 40];
    let mut ever_deeper = vec![json!({"op": "add", "path": "/b", "value": {}})];
    ever_deeper
        .extend((0..20).map(|level| operation("copy", "/b", &"/b".repeat((1 << level) + 1))));
    let cases = [
        ("doubling", doubling, "Request entity too large: Unable to complete the copy"),
        ("deeper", ever_deeper, "exceeded max depth"),
        (
            "many",
            vec![json!({"op": "test", "path": "/c", "value": 1}); 10_001],
            "Request entity too large: The allowed maximum operations in a JSON patch is 10000, \
             got 10001",
        ),
    ];
    for (name, patch, want) in cases {
        let mut object = json!({"a": [1], "c": 1});
        let error = json(&mut object, patch.into()).unwrap_err().to_string();
        assert!(error.starts_with(want), "{name}: {error}");
        assert_eq!(object, json!({"a": [1], "c": 1}), "{name}");
    }
    let mut object = json!({"a": [1]});
    json(&mut object, json!([operation("copy", "/a", "/b"), operation("move", "/a", "/c")]))
        .unwrap();
    assert_eq!(object, json!({"b": [1], "c": [1]}));
}
