//! Custom kinds in the words of OpenAPI: what their authors wrote, with what all objects have. In v2
//! without what kubectl cannot cope with there.

use roadstead_api::kind::Kind;
use roadstead_schema::descriptions::Descriptions;
use roadstead_schema::json::{Pointer, child};
use serde_json::{Map, Value, json};

use super::types::Style;
use crate::kinds::custom_resource::Custom;

/// The type of what all objects have.
pub(super) const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const PRESERVES: &str = "/x-kubernetes-preserve-unknown-fields";

/// The schema of a custom kind.
pub(super) fn definition(custom: &Custom, descriptions: &Descriptions, style: Style) -> Value {
    let info = custom.info();
    let open = style == Style::V2 && custom.schema.flag(PRESERVES);
    let mut schema = match &custom.schema {
        // Whoever names fields forbids others, so none is named.
        Value::Object(_) if !open => custom.schema.clone(),
        _ => json!({"type": "object"}),
    };
    if custom.schema.is_object() && !open {
        if style == Style::V2 {
            simplify(&mut schema);
        }
        let common = common(descriptions, style);
        embed(&mut schema, &common);
        if let Some(all) = child(&mut schema, "properties").as_object_mut() {
            all.extend(common);
        }
    }
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": info.group, "version": info.version, "kind": info.kind}]);
    schema
}

/// The fields that all objects have.
fn common(descriptions: &Descriptions, style: Style) -> Map<String, Value> {
    let described = |name: &str, mut value: Value| {
        if let Some(text) = descriptions.of_field("", name, true) {
            value["description"] = text.into();
        }
        (name.to_owned(), value)
    };
    let reference = match style {
        Style::V2 => json!({"$ref": format!("#/definitions/{METADATA}")}),
        Style::V3 => json!({"allOf": [{"$ref": format!("#/components/schemas/{METADATA}")}]}),
    };
    let text = json!({"type": "string"});
    [
        described("apiVersion", text.clone()),
        described("kind", text),
        described("metadata", reference),
    ]
    .into_iter()
    .collect()
}

/// The schemas that are parts of a schema.
fn parts(schema: &mut Value) -> Vec<&mut Value> {
    let Value::Object(fields) = schema else { return Vec::new() };
    let mut parts = Vec::new();
    for (name, value) in fields {
        match name.as_str() {
            "properties" => {
                parts.extend(value.as_object_mut().into_iter().flat_map(Map::values_mut))
            }
            "items" | "additionalProperties" if value.is_object() => parts.push(value),
            _ => {}
        }
    }
    parts
}

/// Objects within objects have what all objects have.
fn embed(schema: &mut Value, common: &Map<String, Value>) {
    parts(schema).into_iter().for_each(|part| {
        embed(part, common);
        if part.flag("/x-kubernetes-embedded-resource") {
            if let Some(all) = child(part, "properties").as_object_mut() {
                all.extend(common.clone());
            }
            let mut required = part.list("/required").to_vec();
            for name in ["kind", "apiVersion"] {
                if !required.iter().any(|own| own == name) {
                    required.push(name.into());
                }
            }
            part["required"] = required.into();
        }
    });
}

/// Leaves out what kubectl misreads in v2: alternatives, null, and the fields of what may have any.
fn simplify(schema: &mut Value) {
    let (nullable, open) = (schema.flag("/nullable"), schema.flag(PRESERVES));
    let optional: Vec<_> = schema
        .fields("/properties")
        .filter(|(_, property)| property.flag("/nullable"))
        .map(|(name, _)| name.to_owned())
        .collect();
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !optional.iter().any(|own| name == own));
    }
    let Value::Object(fields) = schema else { return };
    for name in ["allOf", "oneOf", "anyOf", "not", "nullable"] {
        fields.remove(name);
    }
    if nullable || open {
        fields.remove("items");
        fields.remove("properties");
    }
    let bare = fields.get("type").is_some_and(|ty| ty == "array") && !fields.contains_key("items");
    let loose = open && fields.get("type").is_some_and(|ty| ty == "object");
    if nullable || bare || loose {
        fields.remove("type");
    }
    parts(schema).into_iter().for_each(simplify);
}

#[test]
fn what_kubectl_can_read() {
    let cases = [
        (json!({"type": "object", "nullable": true, "properties": {"a": {}}}), json!({})),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"a": {"type": "string"}}}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        ),
        (
            json!({"type": "object", "required": ["a", "b"], "properties": {
                "a": {"type": "string", "nullable": true},
                "b": {"type": "array", "items": {"anyOf": [{"type": "string"}]}}}}),
            json!({"type": "object", "required": ["b"], "properties": {"a": {},
                "b": {"type": "array", "items": {}}}}),
        ),
    ];
    for (mut schema, want) in cases {
        simplify(&mut schema);
        assert_eq!(schema, want);
    }
}
