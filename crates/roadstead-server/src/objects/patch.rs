//! Patching: from the media type of a patch to the change it makes.

use bytes::Bytes;
use jiff::Timestamp;
use roadstead_patch::apply::managers::Manager;
use roadstead_patch::apply::{self, ApplyError, Part, Request};
use roadstead_patch::{PatchError, strategic};
use roadstead_schema::json::{Pointer, child, default_to};
use roadstead_schema::types::Schema;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::objects::write::{Writable, seconds, typing};
use crate::registry::Resource;
use crate::request::body::{self, Document};
use crate::request::handler::Handler;

const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
    application/strategic-merge-patch+json, application/apply-patch+yaml";

/// Strategic merge needs types that custom kinds do not have.
const CUSTOM_ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
    application/apply-patch+yaml";

/// The object as a client that applies `config` wants it, and who owns what of it.
pub(crate) fn apply(
    handler: &Handler<'_>,
    writable: Writable,
    live: Option<&Value>,
    mut config: Value,
) -> Result<Value, ApiError> {
    let Handler { resource, path, query, .. } = handler;
    let manager = query.get("fieldManager");
    if manager.is_empty() {
        return Err(ApiError::unprocessable(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required \
             for apply patch",
        ));
    }
    if !config.is_object() {
        return Err(ApiError::bad_request("error decoding YAML: the body is not an object"));
    }
    let metadata = child(&mut config, "metadata");
    default_to(metadata, "name", &*path.name);
    if resource.info().namespaced {
        default_to(metadata, "namespace", &*path.namespace);
    }
    let insists = !config.text("/metadata/resourceVersion").is_empty();
    let time = seconds(Timestamp::now());
    let api_version = resource.info().api_version();
    let request = Request {
        manager: Manager {
            name: manager,
            api_version: &api_version,
            subresource: &path.subresource,
            time: &time,
        },
        force: query.flag("force"),
        part: match (resource.info().status, writable) {
            (false, _) => Part::All,
            (true, Writable::Status) => Part::Status(resource.info().status_keeps),
            (true, _) => Part::Main,
        },
    };
    let mut object = apply::apply(typing(resource), live, config, &request)
        .map_err(|error| refusal(resource, &path.name, &error))?;
    if !insists {
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
    }
    Ok(object)
}

fn refusal(resource: &Resource, name: &str, error: &ApplyError) -> ApiError {
    let text = error.to_string();
    match error {
        ApplyError::Malformed(_) => ApiError::bad_request(text),
        ApplyError::Untyped { .. } => ApiError::untyped(text),
        ApplyError::Conflict(conflicts) => {
            let causes = conflicts.iter().map(|conflict| {
                json!({"reason": "FieldManagerConflict", "message": conflict.message,
                    "field": conflict.field})
            });
            ApiError::owned_by_others(resource.info(), name, text, causes.collect())
        }
    }
}

/// A patch that can be applied to any state of an object.
#[derive(Debug)]
pub(crate) enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7386.
    Merge(Value),
    /// Kubernetes' own.
    Strategic(Value),
}

impl Patch {
    /// Reads a patch by its media type.
    ///
    /// Returns with it the fields that it names twice.
    pub(crate) fn read(media_type: &str, bytes: &Bytes) -> Result<(Self, Vec<String>), ApiError> {
        let make = match media_type.split(';').next().unwrap_or("").trim() {
            "application/json-patch+json" => Self::Json,
            "application/merge-patch+json" => Self::Merge,
            "application/strategic-merge-patch+json" => Self::Strategic,
            _ => return Err(ApiError::unsupported_media_type(ACCEPTED)),
        };
        let Document { value, duplicates } = body::json(bytes)?;
        Ok((make(value), duplicates))
    }

    /// The object with the change.
    pub(crate) fn apply(&self, resource: &Resource, old: &Value) -> Result<Value, ApiError> {
        let mut new = old.clone();
        let result = match self {
            Self::Json(patch) => roadstead_patch::json(&mut new, patch.clone()),
            Self::Merge(patch) => roadstead_patch::merge(&mut new, patch),
            Self::Strategic(patch) => {
                let Some(id) = resource.type_id else {
                    return Err(ApiError::unsupported_media_type(CUSTOM_ACCEPTED));
                };
                strategic::merge(Schema::kubernetes(), id, &mut new, patch.clone())
            }
        };
        result.map_err(|error| match error {
            PatchError::Malformed(text) => ApiError::bad_request(text),
            rejected @ PatchError::Rejected(_) => ApiError::unprocessable(rejected.to_string()),
            large @ PatchError::TooLarge(_) => ApiError::entity_too_large(large.to_string()),
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
