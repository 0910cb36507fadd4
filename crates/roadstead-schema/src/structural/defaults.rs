//! Filling in what an object leaves out.

use serde_json::Value;

use super::Structural;
use crate::json::size;

/// So many bytes may be filled in: a list of a million times nothing is small to ask for, and would be
/// a million times its default.
const MOST: usize = 512 << 10;

/// Sets absent fields to their defaults, as long as that is not too much. A null that is no value
/// counts as absent.
pub fn apply(schema: &Structural, value: &mut Value) {
    fill(schema, value, &mut MOST.clone());
}

fn fill(schema: &Structural, value: &mut Value, room: &mut usize) {
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
                    let Some(rest) = room.checked_sub(name.len() + size(default)) else { continue };
                    *room = rest;
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields.iter_mut() {
                if let Some(property) = schema.property(name) {
                    fill(property, value, room);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| fill(schema, item, room));
            }
        }
        _ => {}
    }
}

/// Whether an object has all its defaults: it has not if they were too much.
pub fn is_complete(schema: &Structural, value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            let mut with_default =
                schema.properties.iter().filter(|(_, own)| own.default.is_some());
            with_default.all(|(name, _)| fields.contains_key(name))
                && fields.iter().all(|(name, value)| {
                    schema.property(name).is_none_or(|property| is_complete(property, value))
                })
        }
        Value::Array(items) => {
            let of_items = schema.items.as_deref();
            of_items.is_none_or(|schema| items.iter().all(|item| is_complete(schema, item)))
        }
        _ => true,
    }
}
