//! Patching: from the media type of a patch to the change it makes.

use bytes::Bytes;
use roadstead_patch::{PatchError, strategic};
use serde_json::Value;

use crate::api::Api;
use crate::body;
use crate::error::ApiError;
use crate::registry::Resource;

const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
    application/strategic-merge-patch+json";

/// Strategic merge needs types that custom kinds do not have.
const CUSTOM_ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json";

/// A patch that can be applied to any state of an object.
#[derive(Debug)]
pub enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7386.
    Merge(Value),
    /// Kubernetes' own.
    Strategic(Value),
}

impl Patch {
    /// Reads a patch by its media type.
    pub fn read(media_type: &str, bytes: &Bytes) -> Result<Self, ApiError> {
        let make = match media_type.split(';').next().unwrap_or("").trim() {
            "application/json-patch+json" => Self::Json,
            "application/merge-patch+json" => Self::Merge,
            "application/strategic-merge-patch+json" => Self::Strategic,
            _ => return Err(ApiError::unsupported_media_type(ACCEPTED)),
        };
        body::json(bytes).map(make)
    }

    /// The object with the change.
    pub fn apply(&self, api: &Api, resource: &Resource, old: &Value) -> Result<Value, ApiError> {
        let mut new = old.clone();
        let result = match self {
            Self::Json(patch) => roadstead_patch::json(&mut new, patch.clone()),
            Self::Merge(patch) => roadstead_patch::merge(&mut new, patch),
            Self::Strategic(patch) => {
                let Some(id) = resource.type_id else {
                    return Err(ApiError::unsupported_media_type(CUSTOM_ACCEPTED));
                };
                strategic::merge(api.schema, id, &mut new, patch.clone())
            }
        };
        result.map_err(|error| match error {
            PatchError::Malformed(text) => ApiError::bad_request(text),
            rejected @ PatchError::Rejected(_) => ApiError::unprocessable(rejected.to_string()),
        })?;
        self.insist(&mut new);
        Ok(new)
    }

    /// Only a patch that names a revision insists on it: the one in the object is the present one.
    fn insist(&self, new: &mut Value) {
        let names_version = match self {
            Self::Json(patch) => {
                let mut operations = patch.as_array().into_iter().flatten();
                operations.any(|operation| {
                    operation["path"] == "/metadata/resourceVersion" && operation["op"] != "test"
                })
            }
            Self::Merge(patch) | Self::Strategic(patch) => {
                patch["metadata"]["resourceVersion"].is_string()
            }
        };
        if !names_version {
            new["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
        }
    }
}
