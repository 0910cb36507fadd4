//! Filling in what an object leaves out.

use serde_json::Value;

use super::Structural;

/// Sets absent fields to their defaults. A null that is no value counts as absent.
pub fn apply(schema: &Structural, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                let property = schema.property(name);
                !value.is_null() || property.is_none_or(|property| property.nullable)
            });
            for (name, property) in &schema.properties {
                if let Some(default) = &property.default
                    && !fields.contains_key(name)
                {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields.iter_mut() {
                if let Some(property) = schema.property(name) {
                    apply(property, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| apply(schema, item));
            }
        }
        _ => {}
    }
}
