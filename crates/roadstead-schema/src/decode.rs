//! Making an object of what a client sent: types checked, unknown fields and nulls dropped.

use serde_json::{Map, Value};

use crate::types::{Definition, Schema, Type, TypeId};

mod leaf;

/// Checks `value` against a type, drops nulls, and drops and returns the fields that the type does
/// not have. The error is in the words of Go's JSON decoder, which people search for.
pub fn decode(schema: &Schema, id: TypeId, value: &mut Value) -> Result<Vec<String>, String> {
    let mut decoder = Decoder { schema, path: Vec::new(), unknown: Vec::new() };
    decoder.value(&Type::Object(id), value, None)?;
    Ok(decoder.unknown)
}

/// How many unknown fields are told (upstream tells as many).
const MOST: usize = 100;
/// And how much of each name.
const LONGEST: usize = 256;

struct Decoder<'a> {
    schema: &'a Schema,
    /// Field names and list positions from the root.
    path: Vec<Step>,
    unknown: Vec<String>,
}

enum Step {
    Field(String),
    Index(usize),
}

impl Decoder<'_> {
    fn value(
        &mut self,
        ty: &Type,
        value: &mut Value,
        within: Option<&Definition>,
    ) -> Result<(), String> {
        let schema = self.schema;
        match (schema.resolve(ty), &mut *value) {
            (Type::Any, _)
            | (Type::String, Value::String(_))
            | (Type::Boolean, Value::Bool(_))
            | (Type::Number, Value::Number(_)) => Ok(()),
            (Type::Bytes, Value::String(text)) => leaf::bytes(text),
            (Type::Time, Value::String(text)) => {
                let read = if self.is(ty, "MicroTime") { leaf::micro_time } else { leaf::time };
                *text = read(text)?;
                Ok(())
            }
            (Type::IntOrString, Value::String(text)) => match self.is(ty, "Quantity") {
                true => leaf::quantity(text),
                false => Ok(()),
            },
            (Type::Int32, Value::Number(n)) if n.as_i64().is_some_and(fits_32) => Ok(()),
            (Type::Int64, Value::Number(n)) if n.as_i64().is_some() => Ok(()),
            // Quantities may be written as numbers, but are read as text: `cpu: 0.5`.
            (Type::IntOrString, Value::Number(n)) if self.is(ty, "Quantity") => {
                *value = Value::String(n.to_string());
                Ok(())
            }
            (Type::IntOrString, Value::Number(n)) if n.as_i64().is_some_and(fits_32) => Ok(()),
            (Type::Object(id), Value::Object(fields)) => self.object(schema.get(*id), fields),
            (Type::Map(element), Value::Object(fields)) => self.map(element, fields, within),
            (Type::List(element), Value::Array(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push(Step::Index(index));
                    self.value(element, item, within)?;
                    self.path.pop();
                }
                Ok(())
            }
            (wanted, found) => Err(self.mismatch(wanted, found, within)),
        }
    }

    /// Whether a type is the one of this name, of several that look alike in JSON.
    fn is(&self, ty: &Type, name: &str) -> bool {
        matches!(ty, Type::Object(id) if short(&self.schema.get(*id).name) == name)
    }

    fn object(
        &mut self,
        definition: &Definition,
        fields: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let mut drop = Vec::new();
        for (name, value) in fields.iter_mut() {
            self.path.push(Step::Field(name.clone()));
            match definition.fields.get(name) {
                _ if value.is_null() => drop.push(name.clone()),
                Some(field) => self.value(&field.ty, value, Some(definition))?,
                None => {
                    if self.unknown.len() < MOST {
                        self.unknown.push(self.shown(true));
                    }
                    drop.push(name.clone());
                }
            }
            self.path.pop();
        }
        drop.iter().for_each(|name| {
            fields.remove(name);
        });
        Ok(())
    }

    fn map(
        &mut self,
        element: &Type,
        fields: &mut Map<String, Value>,
        within: Option<&Definition>,
    ) -> Result<(), String> {
        for (name, value) in fields.iter_mut() {
            self.path.push(Step::Field(name.clone()));
            if value.is_null() && *element == Type::String {
                // Go reads a null string in a map as the empty string.
                *value = Value::String(String::new());
            }
            self.value(element, value, within)?;
            self.path.pop();
        }
        Ok(())
    }

    fn shown(&self, with_indexes: bool) -> String {
        let mut text = String::new();
        for step in &self.path {
            match step {
                Step::Field(name) => {
                    if !text.is_empty() {
                        text.push('.');
                    }
                    text.push_str(&name[..name.floor_char_boundary(LONGEST)]);
                }
                Step::Index(index) if with_indexes => text.push_str(&format!("[{index}]")),
                Step::Index(_) => {}
            }
        }
        text
    }

    fn mismatch(&self, wanted: &Type, found: &Value, within: Option<&Definition>) -> String {
        let found = match found {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(n) if matches!(wanted, Type::Int32 | Type::Int64) => {
                format!("number {n}")
            }
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let wanted = self.go_type(wanted);
        match within {
            Some(definition) => format!(
                "json: cannot unmarshal {found} into Go struct field {}.{} of type {wanted}",
                short(&definition.name),
                self.shown(false)
            ),
            None => format!("json: cannot unmarshal {found} into Go value of type {wanted}"),
        }
    }

    fn go_type(&self, ty: &Type) -> String {
        match ty {
            Type::String | Type::Bytes => "string".into(),
            Type::Time => "v1.Time".into(),
            Type::Boolean => "bool".into(),
            Type::Int32 => "int32".into(),
            Type::Int64 => "int64".into(),
            Type::Number => "float64".into(),
            Type::IntOrString => "int32".into(),
            Type::Any => "interface {}".into(),
            Type::Object(id) => {
                let name = &self.schema.get(*id).name;
                let mut parts = name.rsplit('.');
                let (kind, version) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
                format!("{version}.{kind}")
            }
            Type::List(element) => format!("[]{}", self.go_type(element)),
            Type::Map(element) => format!("map[string]{}", self.go_type(element)),
        }
    }
}

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn fits_32(number: i64) -> bool {
    i32::try_from(number).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(spec: Value) -> Result<(Value, Vec<String>), String> {
        let schema = Schema::kubernetes();
        let mut value = json!({"apiVersion": "v1", "kind": "Service", "spec": spec});
        let unknown = decode(schema, schema.of_kind("", "v1", "Service").unwrap(), &mut value)?;
        Ok((value["spec"].take(), unknown))
    }

    #[test]
    fn unknown_fields_and_nulls_are_dropped() {
        let spec = json!({"selectors": {}, "type": null, "ports": [{"port": 80, "tagetPort": 1}]});
        let (spec, unknown) = service(spec).unwrap();
        assert_eq!(spec, json!({"ports": [{"port": 80}]}));
        assert_eq!(unknown, ["spec.ports[0].tagetPort", "spec.selectors"]);
    }

    #[test]
    fn texts_that_are_more_than_text() {
        let schema = Schema::kubernetes();
        let read = |kind: &str, mut value: Value| {
            let id = schema.of_kind("", "v1", kind).unwrap();
            decode(schema, id, &mut value).map(|_| value)
        };
        let limits = |amount: Value| json!({"spec": {"hard": {"cpu": amount}}});
        let cases = [
            ("ResourceQuota", limits(json!(1)), Ok(limits(json!("1")))),
            ("ResourceQuota", limits(json!(0.5)), Ok(limits(json!("0.5")))),
            (
                "ResourceQuota",
                limits(json!("much")),
                Err("quantities must match the regular expression".to_owned()),
            ),
            (
                "Secret",
                json!({"data": {"a": "YQ"}}),
                Err("illegal base64 data at input byte 2".to_owned()),
            ),
            (
                "Event",
                json!({"lastTimestamp": "2024-01-01T02:00:00+02:00"}),
                Ok(json!({"lastTimestamp": "2024-01-01T00:00:00Z"})),
            ),
            ("Event", json!({"eventTime": "now"}), Err("parsing time \"now\"".to_owned())),
        ];
        for (kind, value, want) in cases {
            match (read(kind, value.clone()), want) {
                (Ok(found), Ok(want)) => assert_eq!(found, want),
                (Err(found), Err(want)) => assert!(found.starts_with(&want), "{found}"),
                other => panic!("{value}: {other:?}"),
            }
        }
    }

    #[test]
    fn mismatches_are_reported_as_go_does() {
        let field = "json: cannot unmarshal";
        let cases = [
            (
                json!({"ports": [{"port": "80"}]}),
                "string into Go struct field ServicePort.spec.ports.port of type int32",
            ),
            (
                json!({"ports": {"port": 80}}),
                "object into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort",
            ),
            (
                json!({"selector": {"app": 1}}),
                "number into Go struct field ServiceSpec.spec.selector.app of type string",
            ),
            (json!([]), "array into Go struct field Service.spec of type v1.ServiceSpec"),
        ];
        for (spec, want) in cases {
            assert_eq!(service(spec).unwrap_err(), format!("{field} {want}"));
        }
    }
}
