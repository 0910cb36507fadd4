//! OpenAPI documents, made from the schema: v3 for each group and version, and one of v2 for kubectl
//! before 1.27. When they are made, and how often, is the business of `made`.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use roadstead_schema::descriptions::Descriptions;
use roadstead_schema::types::{Schema, Type, TypeId};
use serde_json::{Map, Value, json};

use crate::registry::{KindRef, Registry, Resource};

mod custom;
mod gnostic;
mod types;

use types::Style;

/// The media type of v2 in protobuf. Clients ask with an `@`, which their own parsers refuse.
pub(super) const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// `/openapi/v3`: where the documents are.
pub(super) fn index(registry: &Registry) -> Value {
    let paths = registry.groups().into_iter().map(|(group, version)| {
        let path = path_of(group, version);
        let hash = hash(registry, group, version);
        let url = format!("/openapi/v3/{path}?hash={hash:016X}");
        (path, json!({"serverRelativeURL": url}))
    });
    json!({"paths": paths.collect::<BTreeMap<_, _>>()})
}

/// `/openapi/v2` in protobuf.
pub(super) fn encode_v2(registry: &Registry) -> Bytes {
    gnostic::encode(&make_v2(registry))
}

/// Clients cache by this hash: documents change with the program, and with definitions.
fn hash(registry: &Registry, group: &str, version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    for resource in registry.iter() {
        let info = resource.info();
        if let KindRef::Custom(custom) = &resource.kind
            && (info.group, info.version) == (group, version)
        {
            (info.kind, info.plural, custom.schema.to_string()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn path_of(group: &str, version: &str) -> String {
    match group {
        "" => format!("api/{version}"),
        group => format!("apis/{group}/{version}"),
    }
}

/// `/openapi/v3/PATH`: the document of one group and version.
pub(super) fn make(registry: &Registry, group: &str, version: &str) -> Value {
    let schema = Schema::kubernetes();
    let mut paths = Map::new();
    let resources = registry.iter();
    let resources = resources.filter(|r| r.info().group == group && r.info().version == version);
    let resources: Vec<_> = resources.collect();
    resources.iter().for_each(|resource| operations(resource, &mut paths));
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.37.0"},
        "paths": paths,
        "components": {"schemas": definitions(schema, &resources, Style::V3)},
    })
}

/// Enough of v2 that old clients can check manifests and see that every kind can be patched
/// without effect: all types, and of the operations that one.
pub(super) fn make_v2(registry: &Registry) -> Value {
    let resources: Vec<_> = registry.iter().collect();
    let paths: Map<_, _> = resources.iter().map(|resource| patch_v2(resource)).collect();
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.37.0"},
        "paths": paths,
        "definitions": definitions(Schema::kubernetes(), &resources, Style::V2),
    })
}

/// All types that the kinds need.
fn definitions(schema: &Schema, resources: &[&Arc<Resource>], style: Style) -> Map<String, Value> {
    let descriptions = Descriptions::read();
    let mut needed = BTreeSet::new();
    let built_in = resources.iter().filter_map(|resource| resource.type_id);
    built_in.for_each(|id| collect(schema, id, &mut needed));
    let customs: Vec<_> = resources
        .iter()
        .filter_map(|resource| match &resource.kind {
            KindRef::Custom(kind) => Some((schema_name(resource), &**kind)),
            KindRef::BuiltIn(_) => None,
        })
        .collect();
    if !customs.is_empty() {
        let id = schema.named(custom::METADATA).expect("all objects have metadata");
        collect(schema, id, &mut needed);
    }
    let named = needed.into_iter().map(|name| {
        let id = schema.named(&name).expect("collected from the schema");
        let value = types::definition(schema, &descriptions, schema.get(id), style);
        (name, value)
    });
    let customs = customs
        .into_iter()
        .map(|(name, kind)| (name, custom::definition(kind, &descriptions, style)));
    named.chain(customs).collect()
}

/// `com.example.v1.Thing` for a custom kind of the group example.com.
fn schema_name(resource: &Resource) -> String {
    match resource.type_id {
        Some(id) => Schema::kubernetes().get(id).name.clone(),
        None => {
            let info = resource.info();
            let group: Vec<_> = info.group.rsplit('.').collect();
            format!("{}.{}.{}", group.join("."), info.version, info.kind)
        }
    }
}

fn collect(schema: &Schema, id: TypeId, needed: &mut BTreeSet<String>) {
    let definition = schema.get(id);
    if !needed.insert(definition.name.clone()) {
        return;
    }
    for field in definition.fields.values() {
        let mut ty = &field.ty;
        while let Type::List(inner) | Type::Map(inner) = ty {
            ty = inner;
        }
        if let Type::Object(id) = ty {
            collect(schema, *id, needed);
        }
    }
}

/// The path of a kind's objects, with the operation that changes one.
fn patch_v2(resource: &Resource) -> (String, Value) {
    let info = resource.info();
    let place = if info.namespaced { "namespaces/{namespace}/" } else { "" };
    let path = format!("/{}/{place}{}/{{name}}", path_of(info.group, info.version), info.plural);
    let gvk = json!({"group": info.group, "version": info.version, "kind": info.kind});
    let dry_run = json!({"in": "query", "name": "dryRun", "type": "string", "uniqueItems": true});
    let patch = json!({"parameters": [dry_run], "x-kubernetes-group-version-kind": gvk,
        "x-kubernetes-action": "patch", "responses": {"200": {"description": "OK"}}});
    (path, json!({"patch": patch}))
}

/// Enough of the paths that kubectl finds what it can do with a kind.
fn operations(resource: &Resource, paths: &mut Map<String, Value>) {
    let info = resource.info();
    let gvk = json!({"group": info.group, "version": info.version, "kind": info.kind});
    let parameters: Vec<_> = ["dryRun", "fieldManager", "fieldValidation"]
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
        .into();
    let reference = json!({"$ref": format!("#/components/schemas/{}", schema_name(resource))});
    let content = json!({"application/json": {"schema": reference}});
    let responses = json!({"200": {"description": "OK", "content": content}});
    let body = json!({"content": {"*/*": {"schema": reference}}, "required": true});
    let any = json!({"schema": {"type": "object"}});
    let mut patch_body = json!({"required": true, "content": {
        "application/json-patch+json": any,
        "application/merge-patch+json": any,
        "application/apply-patch+yaml": any,
    }});
    if resource.type_id.is_some() {
        patch_body["content"]["application/strategic-merge-patch+json"] = any;
    }
    let operation = |action: &str, body: Option<&Value>| {
        let mut operation = json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
            "parameters": parameters,
            "responses": responses,
        });
        if let Some(body) = body {
            operation["requestBody"] = body.clone();
        }
        operation
    };
    let space = if info.namespaced { "/namespaces/{namespace}" } else { "" };
    let root = format!("/{}{space}/{}", path_of(info.group, info.version), info.plural);
    paths.insert(
        root.clone(),
        json!({"get": operation("list", None), "post": operation("post", Some(&body)),
            "delete": operation("deletecollection", None)}),
    );
    paths.insert(
        format!("{root}/{{name}}"),
        json!({"get": operation("get", None), "put": operation("put", Some(&body)),
            "patch": operation("patch", Some(&patch_body)), "delete": operation("delete", None)}),
    );
}
