//! Dropping what a schema does not know.

use serde_json::Value;

use super::{Additional, Structural};

/// Drops the unknown fields of an object and returns their paths, such as `spec.items[0].colour`.
/// Its `apiVersion`, `kind` and `metadata` are known without being in the schema.
pub fn prune(schema: &Structural, object: &mut Value) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new() };
    pruner.value(schema, object, true);
    pruner.unknown
}

/// As [`prune`], for a part of an object.
pub(super) fn prune_part(schema: &Structural, value: &mut Value) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new() };
    pruner.value(schema, value, false);
    pruner.unknown
}

/// How many unknown fields are told (upstream tells as many).
const MOST: usize = 100;
/// And how much of each path.
const LONGEST: usize = 1024;

struct Pruner {
    path: String,
    unknown: Vec<String>,
}

impl Pruner {
    fn value(&mut self, schema: &Structural, value: &mut Value, is_resource: bool) {
        match value {
            Value::Object(fields) => fields.retain(|name, value| {
                let implicit = is_resource && ["apiVersion", "kind", "metadata"].contains(&&**name);
                implicit || self.field(schema, name, value)
            }),
            Value::Array(items) => {
                let Some(schema) = &schema.items else { return };
                let length = self.path.len();
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{index}]"));
                    self.value(schema, item, schema.embedded);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    /// Whether the field is to stay.
    fn field(&mut self, schema: &Structural, name: &str, value: &mut Value) -> bool {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        let known = match schema.property(name) {
            Some(property) => {
                self.value(property, value, property.embedded);
                true
            }
            None => schema.preserves_unknown || matches!(schema.additional, Additional::Any),
        };
        if !known && self.unknown.len() < MOST {
            let end = self.path.floor_char_boundary(LONGEST);
            self.unknown.push(self.path[..end].to_owned());
        }
        self.path.truncate(length);
        known
    }
}
