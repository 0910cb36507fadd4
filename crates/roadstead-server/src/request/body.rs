//! The bodies of requests: JSON, YAML and protobuf into values.

use bytes::Bytes;
use roadstead_schema::json::{Pointer, default_to};
use roadstead_schema::protobuf;
use roadstead_schema::structural::prune;
use roadstead_schema::{decode, types::Schema};
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use crate::error::ApiError;
use crate::registry::{KindRef, Resource};
use crate::request::handler::Handler;

mod document;

pub(crate) use document::Document;

/// Larger bodies are refused (upstream's limit).
pub(crate) const LIMIT: usize = 3 * 1024 * 1024;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// What the client sent, by its media type. No media type means JSON.
pub(crate) fn read(media_type: &str, body: &Bytes) -> Result<Value, ApiError> {
    document(media_type, body).map(|document| document.value)
}

/// What the client sent, and what it sent twice.
pub(crate) fn document(media_type: &str, body: &Bytes) -> Result<Document, ApiError> {
    match media_type.split(';').next().unwrap_or("").trim() {
        "" | "application/json" => json(body),
        "application/yaml" => yaml(body),
        PROTOBUF => {
            let value = protobuf::decode(body).map_err(ApiError::bad_request)?;
            Ok(Document { value, duplicates: Vec::new() })
        }
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
}

/// One of the objects that are sent and never stored, by the name of its type: whoever reads it
/// can rely on the types of its fields.
pub(crate) fn typed(type_name: &str, media_type: &str, body: &Bytes) -> Result<Value, ApiError> {
    let mut value = read(media_type, body)?;
    let id = Schema::kubernetes().named(type_name).expect("what clients send is in the schema");
    decode::decode(Schema::kubernetes(), id, &mut value).map_err(ApiError::bad_request)?;
    Ok(value)
}

/// JSON, with the words of upstream when it is none.
pub(crate) fn json(body: &Bytes) -> Result<Document, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
    })
}

/// YAML, which JSON is a part of.
pub(crate) fn yaml(body: &Bytes) -> Result<Document, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|_| ApiError::bad_request("the body is not valid UTF-8"))?;
    // We notice what is given twice ourselves.
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ApiError::bad_request(format!("yaml: {error}")))
}

/// Checks that `object` is of the kind that the path names, and of the right types, and drops
/// what the kind does not have. Returns the warnings that go with the answer; `duplicates` are the
/// fields that the client gave twice.
pub(crate) fn decode_as(
    handler: &Handler<'_>,
    object: &mut Value,
    duplicates: &[String],
) -> Result<Vec<String>, ApiError> {
    let Handler { resource, query, .. } = handler;
    let info = resource.info();
    let version = info.api_version();
    if !object.is_object() {
        let message = "couldn't get version/kind; json parse error: json: cannot unmarshal \
            into Go value of type struct { APIVersion string; Kind string }";
        return Err(ApiError::bad_request(message));
    }
    // The path says what it is; the body need not repeat it (the Python client does not).
    default_to(object, "kind", info.kind);
    default_to(object, "apiVersion", version.clone());
    if object.text("/apiVersion") != version {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({version})",
            object.text("/apiVersion")
        )));
    }
    if object.text("/kind") != info.kind {
        return Err(ApiError::bad_request(format!(
            "the kind in the data ({}) does not match the expected kind ({})",
            object.text("/kind"),
            info.kind
        )));
    }
    let unknown = known_fields(resource, object).map_err(|error| {
        ApiError::bad_request(format!(
            "{0} in version {1:?} cannot be handled as a {0}: {error}",
            info.kind, info.version
        ))
    })?;
    let unknown = unknown.iter().map(|field| format!("unknown field {field:?}"));
    let twice = duplicates.iter().map(|field| format!("duplicate field {field:?}"));
    let wrong: Vec<_> = unknown.chain(twice).collect();
    match query.get("fieldValidation") {
        "Ignore" => Ok(Vec::new()),
        "Strict" if !wrong.is_empty() => {
            let all = wrong.join(", ");
            let message = format!(
                "{0} in version {1:?} cannot be handled as a {0}: strict decoding error: {all}",
                info.kind, info.version
            );
            Err(ApiError::bad_request(message))
        }
        _ => Ok(wrong),
    }
}

/// Drops the fields that the kind does not have, and returns their paths.
fn known_fields(resource: &Resource, object: &mut Value) -> Result<Vec<String>, String> {
    match &resource.kind {
        KindRef::BuiltIn(_) => {
            let id = resource.type_id.expect("built-in kinds have a type");
            decode::decode(Schema::kubernetes(), id, object)
        }
        KindRef::Custom(custom) => {
            // What all objects have is the same for custom ones.
            let metadata = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
            let id = Schema::kubernetes().named(metadata).expect("all objects have metadata");
            let own = object.get_mut("metadata").filter(|metadata| !metadata.is_null());
            let unknown =
                own.map(|own| decode::decode(Schema::kubernetes(), id, own)).transpose()?;
            let unknown = unknown.into_iter().flatten().map(|field| format!("metadata.{field}"));
            Ok(unknown.chain(prune::prune(&custom.structural, object)).collect())
        }
    }
}
