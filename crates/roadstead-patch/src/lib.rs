//! Merging a change into an object: JSON patch, JSON merge patch, strategic merge patch and
//! server-side apply.
//!
//! Pure functions over JSON values; which lists are merged by which key comes from the schema in
//! `roadstead-api`. Routing a request to the right kind of patch, retrying on conflict and
//! validating the result belong to `roadstead-server`.

use json_patch::Patch;
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
}

/// RFC 6902: a list of operations, all of which succeed or none.
pub fn json(object: &mut Value, patch: Value) -> Result<(), PatchError> {
    let patch: Patch =
        serde_json::from_value(patch).map_err(|error| PatchError::Malformed(error.to_string()))?;
    let mut changed = object.clone();
    json_patch::patch(&mut changed, &patch)
        .map_err(|error| PatchError::Rejected(error.to_string()))?;
    *object = changed;
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
