//! OpenAPI v3 documents, made from the schema when somebody asks for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use roadstead_api::schema::{Definition, Field, ListKind, Schema, Type, TypeId};
use serde_json::{Value, json};

use crate::registry::{Registry, Resource};

/// The documents that have been asked for.
#[derive(Default)]
pub struct Documents(Mutex<HashMap<String, Bytes>>);

impl Documents {
    /// `/openapi/v3`: where the documents are.
    pub fn index(&self, registry: &Registry) -> Value {
        let paths = registry.groups().into_iter().map(|(group, version)| {
            let path = path_of(group, version);
            // Clients cache by this hash, and the documents only change with the program.
            let hash = env!("CARGO_PKG_VERSION");
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, json!({"serverRelativeURL": url}))
        });
        json!({"paths": paths.collect::<BTreeMap<_, _>>()})
    }

    /// `/openapi/v3/PATH`: the document of one group and version.
    pub fn document(&self, registry: &Registry, path: &str) -> Option<Bytes> {
        let (group, version) = registry
            .groups()
            .into_iter()
            .find(|(group, version)| path_of(group, version) == path)?;
        let mut documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || make(registry, group, version).to_string().into();
        Some(documents.entry(path.to_owned()).or_insert_with(make).clone())
    }
}

fn path_of(group: &str, version: &str) -> String {
    match group {
        "" => format!("api/{version}"),
        group => format!("apis/{group}/{version}"),
    }
}

fn make(registry: &Registry, group: &str, version: &str) -> Value {
    let schema = Schema::kubernetes();
    let mut needed = BTreeSet::new();
    let mut paths = serde_json::Map::new();
    let resources = registry.iter();
    for resource in resources.filter(|r| r.info().group == group && r.info().version == version) {
        collect(schema, resource.type_id, &mut needed);
        operations(schema, resource, &mut paths);
    }
    let components = needed.iter().map(|name| {
        let id = schema.named(name).expect("collected from the schema");
        (name.clone(), definition(schema, schema.get(id)))
    });
    let components: serde_json::Map<_, _> = components.collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.37.0"},
        "paths": paths,
        "components": {"schemas": components},
    })
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

/// Enough of the paths that kubectl finds what it can do with a kind.
fn operations(schema: &Schema, resource: &Resource, paths: &mut serde_json::Map<String, Value>) {
    let info = resource.info();
    let gvk = json!({"group": info.group, "version": info.version, "kind": info.kind});
    let parameters: Vec<_> = ["dryRun", "fieldManager", "fieldValidation"]
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
        .into();
    let reference =
        json!({"$ref": format!("#/components/schemas/{}", schema.get(resource.type_id).name)});
    let content = json!({"application/json": {"schema": reference}});
    let responses = json!({"200": {"description": "OK", "content": content}});
    let body = json!({"content": {"*/*": {"schema": reference}}, "required": true});
    let any = json!({"schema": {"type": "object"}});
    let patch_body = json!({"required": true, "content": {
        "application/json-patch+json": any,
        "application/merge-patch+json": any,
        "application/strategic-merge-patch+json": any,
    }});
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

fn definition(schema: &Schema, definition: &Definition) -> Value {
    let mut value = match &definition.ty {
        Type::Object(_) => {
            let properties: serde_json::Map<_, _> = definition
                .fields
                .iter()
                .map(|(name, field)| (name.clone(), property(schema, field)))
                .collect();
            let required = definition.fields.iter().filter(|(_, field)| field.required);
            let required: Vec<_> = required.map(|(name, _)| name).collect();
            let mut value = json!({"type": "object", "properties": properties});
            if !required.is_empty() {
                value["required"] = json!(required);
            }
            value
        }
        simple => type_value(schema, simple),
    };
    if let Some((group, version, kind)) = &definition.gvk {
        value["x-kubernetes-group-version-kind"] =
            json!([{"group": group, "version": version, "kind": kind}]);
    }
    value
}

fn property(schema: &Schema, field: &Field) -> Value {
    let mut value = type_value(schema, &field.ty);
    if let Some(default) = &field.default {
        value["default"] = default.clone();
    }
    if let Some(list) = field.list {
        value["x-kubernetes-list-type"] = match list {
            ListKind::Atomic => "atomic",
            ListKind::Set => "set",
            ListKind::Map => "map",
        }
        .into();
    }
    if !field.keys.is_empty() {
        value["x-kubernetes-list-map-keys"] = json!(field.keys);
    }
    if let Some(key) = &field.merge_key {
        value["x-kubernetes-patch-merge-key"] = key.clone().into();
    }
    if field.merges || field.retain_keys {
        value["x-kubernetes-patch-strategy"] = match (field.merges, field.retain_keys) {
            (true, true) => "merge,retainKeys",
            (true, false) => "merge",
            _ => "retainKeys",
        }
        .into();
    }
    if field.atomic {
        value["x-kubernetes-map-type"] = "atomic".into();
    }
    value
}

fn type_value(schema: &Schema, ty: &Type) -> Value {
    match ty {
        Type::String => json!({"type": "string"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::Time => json!({"type": "string", "format": "date-time"}),
        Type::Boolean => json!({"type": "boolean"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::Number => json!({"type": "number", "format": "double"}),
        Type::IntOrString => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        Type::Any => json!({"type": "object"}),
        Type::Object(id) => {
            let name = &schema.get(*id).name;
            json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}]})
        }
        Type::List(element) => json!({"type": "array", "items": type_value(schema, element)}),
        Type::Map(element) => {
            json!({"type": "object", "additionalProperties": type_value(schema, element)})
        }
    }
}
