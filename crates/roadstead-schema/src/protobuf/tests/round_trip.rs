//! Every field of every kind, written as Go writes it and read again.
//!
//! Objects are filled by the schema, which has the names that JSON uses; so a name that the table
//! of messages gets wrong has no place to be written to.

use jiff::Timestamp;
use roadstead_api::kinds;

use super::*;
use crate::types::{Definition, Schema, Type};

/// What is sent to subresources, besides the kinds that are kept.
const OTHERS: [(&str, &str, &str); 6] = [
    ("", "v1", "Binding"),
    ("", "v1", "DeleteOptions"),
    ("autoscaling", "v1", "Scale"),
    ("authentication.k8s.io", "v1", "TokenRequest"),
    ("policy", "v1", "Eviction"),
    ("", "v1", "Status"),
];

#[test]
fn nothing_of_any_kind_is_lost() {
    let schema = Schema::kubernetes();
    let all = kinds::all().into_iter().map(|kind| {
        let info = kind.info();
        (info.group, info.version, info.kind)
    });
    let mut fields = 0;
    let mut wrong = Vec::new();
    for (group, version, kind) in all.chain(OTHERS) {
        let api_version =
            if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let name = match kind {
            "DeleteOptions" | "Status" => {
                schema.named(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"))
            }
            _ => schema.of_kind(group, version, kind),
        };
        let definition = schema.get(name.unwrap_or_else(|| panic!("{kind} is not in the schema")));
        let mut object = full(schema, definition, &mut Vec::new());
        object["apiVersion"] = api_version.as_str().into();
        object["kind"] = kind.into();
        fields += leaves(&object);
        let mut body = object.as_object().unwrap().clone();
        body.retain(|name, _| name != "apiVersion" && name != "kind");
        let message = message_name(&api_version, kind);
        let raw = Writer { wrong: &mut wrong }.message(&message, &Value::Object(body));
        let found = decode(&envelope(&api_version, kind, &raw)).unwrap();
        differences(&object, &found, kind, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(fields > 5000, "only {fields} fields");
}

/// An object with a value in every field; of a type within itself only what ends there.
fn full(schema: &Schema, definition: &Definition, within: &mut Vec<String>) -> Value {
    within.push(definition.name.clone());
    let mut object = Map::new();
    // Only the envelope has a kind.
    let is_kind = definition.gvk.is_some() || definition.name.ends_with(".DeleteOptions");
    for (name, field) in &definition.fields {
        if is_kind && ["apiVersion", "kind"].contains(&name.as_str()) {
            continue;
        }
        if let Some(value) = filled(schema, &field.ty, within) {
            object.insert(name.clone(), value);
        }
    }
    within.pop();
    Value::Object(object)
}

fn filled(schema: &Schema, ty: &Type, within: &mut Vec<String>) -> Option<Value> {
    Some(match ty {
        Type::String => json!("text"),
        Type::Bytes => json!("eA=="),
        Type::Time => json!("2026-01-02T03:04:05Z"),
        Type::Boolean => json!(true),
        Type::Int32 | Type::Int64 => json!(7),
        Type::Number => json!(1.5),
        Type::IntOrString => json!("50%"),
        Type::Any => json!({"any": [1, "thing"]}),
        Type::List(element) => json!([filled(schema, element, within)?]),
        Type::Map(element) => json!({"key": filled(schema, element, within)?}),
        Type::Object(id) => {
            let definition = schema.get(*id);
            match definition.name.rsplit('.').next().unwrap_or("") {
                "MicroTime" => json!("2026-01-02T03:04:05.000006Z"),
                "Quantity" => json!("1Gi"),
                "IntOrString" => json!(8080),
                "JSON" | "RawExtension" | "FieldsV1" => json!({"any": [1, "thing"]}),
                // At the first level, one form of each of these unions.
                "JSONSchemaPropsOrBool" => json!(false),
                "JSONSchemaPropsOrStringArray" => json!(["text"]),
                "JSONSchemaPropsOrArray" => json!([{"type": "text", "x-kubernetes-map-type": "a"}]),
                _ if within.contains(&definition.name) => return None,
                _ => match schema.resolve(ty) {
                    Type::Object(_) => full(schema, definition, within),
                    Type::Any => json!({}),
                    simple => return filled(schema, simple, within),
                },
            }
        }
    })
}

fn leaves(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.values().map(leaves).sum(),
        Value::Array(items) => items.iter().map(leaves).sum(),
        _ => 1,
    }
}

fn differences(want: &Value, found: &Value, place: &str, wrong: &mut Vec<String>) {
    match (want, found) {
        (Value::Object(want), Value::Object(found)) => {
            for (name, value) in want {
                let place = format!("{place}.{name}");
                match found.get(name) {
                    Some(found) => differences(value, found, &place, wrong),
                    None => wrong.push(format!("{place} is lost")),
                }
            }
            let more = found.keys().filter(|name| !want.contains_key(*name));
            wrong.extend(more.map(|name| format!("{place}.{name} comes from nowhere")));
        }
        _ if want == found => {}
        _ => wrong.push(format!("{place} was {want} and is {found}")),
    }
}

struct Writer<'a> {
    wrong: &'a mut Vec<String>,
}

impl Writer<'_> {
    fn message(&mut self, name: &str, value: &Value) -> Vec<u8> {
        if let Some(special) = self.special(name, value) {
            return special;
        }
        let mut out = Vec::new();
        for (field, value) in value.as_object().into_iter().flatten() {
            match self.place(name, field, value) {
                Some(fields) => out.extend(fields),
                None => self.wrong.push(format!("{name} has no field for {field}")),
            }
        }
        out
    }

    /// The field where it belongs: in the message, or in one that is part of it.
    fn place(&mut self, name: &str, json_name: &str, value: &Value) -> Option<Vec<u8>> {
        let fields = Tables::get().messages.get(name)?;
        let own = fields.iter().find(|(_, field)| !field.inline && field.name == json_name);
        if let Some((&number, field)) = own {
            let values = match (&field.ty, value) {
                (FieldType::Map(element), Value::Object(entries)) => entries
                    .iter()
                    .map(|(key, value)| {
                        bytes(&message(&[(1, text(key)), (2, self.content(element, value))]))
                    })
                    .collect(),
                (ty, Value::Array(items)) if field.repeated => {
                    items.iter().map(|item| self.content(ty, item)).collect()
                }
                (ty, value) => vec![self.content(ty, value)],
            };
            let values: Vec<_> = values.into_iter().map(|content| (number, content)).collect();
            return Some(message(&values));
        }
        let inlined = fields.iter().filter(|(_, field)| field.inline);
        for (&number, field) in inlined {
            let FieldType::Message(inner) = &field.ty else { continue };
            if let Some(content) = self.place(inner, json_name, value) {
                return Some(message(&[(number, bytes(&content))]));
            }
        }
        None
    }

    fn content(&mut self, ty: &FieldType, value: &Value) -> Vec<u8> {
        match ty {
            FieldType::Message(name) => bytes(&self.message(name, value)),
            FieldType::Scalar(Scalar::Text) => text(value.as_str().unwrap_or("?")),
            FieldType::Scalar(Scalar::Bytes) => text("x"),
            FieldType::Scalar(Scalar::Double) => fixed(value.as_f64().unwrap_or(0.0)),
            FieldType::Scalar(Scalar::Bool) => number(u64::from(value == true)),
            FieldType::Scalar(Scalar::Int) => number(value.as_u64().unwrap_or(0)),
            FieldType::Map(_) => unreachable!("no map is in a map"),
        }
    }

    fn special(&mut self, name: &str, value: &Value) -> Option<Vec<u8>> {
        let moment = |micro: i32| {
            let moment: Timestamp = value.as_str().unwrap().parse().unwrap();
            let nanos = moment.subsec_nanosecond() * micro;
            message(&[(1, number(moment.as_second() as u64)), (2, number(nanos as u64))])
        };
        let short = name.rsplit('.').next().unwrap_or(name);
        Some(match short {
            "Time" => moment(0),
            "MicroTime" => moment(1),
            "Quantity" => message(&[(1, text(value.as_str().unwrap()))]),
            "IntOrString" => match value.as_str() {
                Some(words) => message(&[(1, number(1)), (2, number(0)), (3, text(words))]),
                None => message(&[(1, number(0)), (2, number(value.as_u64().unwrap()))]),
            },
            "JSON" | "RawExtension" | "FieldsV1" => message(&[(1, text(&value.to_string()))]),
            "ExtraValue" | "AttestationValue" => {
                let texts = value.as_array().unwrap().iter();
                let texts: Vec<_> = texts.map(|own| (1, text(own.as_str().unwrap()))).collect();
                message(&texts)
            }
            "JSONSchemaPropsOrBool" => message(&[(1, number(u64::from(value == true)))]),
            "JSONSchemaPropsOrStringArray" | "JSONSchemaPropsOrArray" => {
                let props = name.replace(short, "JSONSchemaProps");
                let items = value.as_array().unwrap().iter();
                let items: Vec<_> = items
                    .map(|item| match item.as_str() {
                        Some(words) => (2, text(words)),
                        None => (2, bytes(&self.message(&props, item))),
                    })
                    .collect();
                message(&items)
            }
            _ => return None,
        })
    }
}
