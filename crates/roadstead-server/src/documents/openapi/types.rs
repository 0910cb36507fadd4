//! Types of the schema in the words of OpenAPI.

use roadstead_schema::descriptions::Descriptions;
use roadstead_schema::types::{Definition, Field, ListKind, Schema, Type};
use serde_json::{Map, Value, json};

/// The two versions differ in how they refer to other types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `#/definitions/NAME`.
    V2,
    /// `#/components/schemas/NAME`, wrapped so that it can have neighbours.
    V3,
}

/// A named type.
pub(super) fn definition(
    schema: &Schema,
    descriptions: &Descriptions,
    definition: &Definition,
    style: Style,
) -> Value {
    let is_object = definition.gvk.is_some();
    let mut value = match &definition.ty {
        Type::Object(_) => {
            let properties: Map<_, _> = definition
                .fields
                .iter()
                .map(|(name, field)| {
                    let mut value = property(schema, field, style);
                    if let Some(text) = descriptions.of_field(&definition.name, name, is_object) {
                        value["description"] = text.into();
                    }
                    (name.clone(), value)
                })
                .collect();
            let required = definition.fields.iter().filter(|(_, field)| field.required);
            let required: Vec<_> = required.map(|(name, _)| name).collect();
            let mut value = json!({"type": "object", "properties": properties});
            if !required.is_empty() {
                value["required"] = json!(required);
            }
            value
        }
        simple => type_value(schema, simple, style),
    };
    if let Some(text) = descriptions.of_type(&definition.name) {
        value["description"] = text.into();
    }
    if definition.atomic {
        value["x-kubernetes-map-type"] = "atomic".into();
    }
    if let Some((group, version, kind)) = &definition.gvk {
        value["x-kubernetes-group-version-kind"] =
            json!([{"group": group, "version": version, "kind": kind}]);
    }
    value
}

fn property(schema: &Schema, field: &Field, style: Style) -> Value {
    let mut value = type_value(schema, &field.ty, style);
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

fn type_value(schema: &Schema, ty: &Type, style: Style) -> Value {
    match ty {
        Type::String => json!({"type": "string"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::Time => json!({"type": "string", "format": "date-time"}),
        Type::Boolean => json!({"type": "boolean"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::Number => json!({"type": "number", "format": "double"}),
        Type::IntOrString if style == Style::V2 => {
            json!({"type": "string", "format": "int-or-string"})
        }
        Type::IntOrString => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        Type::Any => json!({"type": "object"}),
        Type::Object(id) => {
            let name = &schema.get(*id).name;
            match style {
                Style::V2 => json!({"$ref": format!("#/definitions/{name}")}),
                Style::V3 => json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}]}),
            }
        }
        Type::List(element) => {
            json!({"type": "array", "items": type_value(schema, element, style)})
        }
        Type::Map(element) => {
            json!({"type": "object", "additionalProperties": type_value(schema, element, style)})
        }
    }
}
