//! Strategic merge patch: a merge that knows which lists are sets of named things.
//!
//! A patch is shaped like the object. Lists with a merge key are merged element by element;
//! `$patch`, `$retainKeys`, `$setElementOrder/…` and `$deleteFromPrimitiveList/…` say what a plain
//! merge cannot. (Upstream: apimachinery/pkg/util/strategicpatch.)

use roadstead_schema::types::{Field, Schema, Type, TypeId};
use serde_json::{Map, Value};

use crate::PatchError;

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// Merges `patch` into `object`, which is of type `id`.
pub fn merge(
    schema: &Schema,
    id: TypeId,
    object: &mut Value,
    patch: Value,
) -> Result<(), PatchError> {
    let Value::Object(patch) = patch else {
        return Err(malformed("a strategic merge patch must be a JSON object"));
    };
    let Value::Object(fields) = object else {
        return Err(malformed("only objects can be patched"));
    };
    let merger = Merger { schema };
    match merger.object(Some(&Type::Object(id)), fields, patch)? {
        Outcome::Keep => Ok(()),
        Outcome::Delete => Err(malformed("an object cannot delete itself by `$patch: delete`")),
    }
}

fn malformed(text: impl Into<String>) -> PatchError {
    PatchError::Malformed(text.into())
}

enum Outcome {
    Keep,
    Delete,
}

struct Merger<'a> {
    schema: &'a Schema,
}

impl<'a> Merger<'a> {
    fn field(&self, ty: Option<&Type>, name: &str) -> Option<&'a Field> {
        match self.schema.resolve(ty?) {
            Type::Object(id) => self.schema.get(*id).fields.get(name),
            _ => None,
        }
    }

    /// The type of a field, also for the entries of a map.
    fn field_type<'b>(&self, ty: Option<&'b Type>, name: &str) -> Option<&'b Type>
    where
        'a: 'b,
    {
        match (ty?, self.field(ty, name)) {
            (Type::Map(element), _) => Some(element),
            (_, field) => field.map(|field| &field.ty),
        }
    }

    fn object(
        &self,
        ty: Option<&Type>,
        object: &mut Map<String, Value>,
        mut patch: Map<String, Value>,
    ) -> Result<Outcome, PatchError> {
        match patch.remove(DIRECTIVE).as_ref().map(|directive| directive.as_str().unwrap_or("")) {
            None | Some("merge") => {}
            Some("delete") => return Ok(Outcome::Delete),
            Some("replace") => {
                *object = Map::new();
            }
            Some(other) => return Err(malformed(format!("Unknown patch type: {other}"))),
        }
        if let Some(retained) = patch.remove(RETAIN) {
            let retained = retained.as_array().cloned().unwrap_or_default();
            object.retain(|name, _| retained.iter().any(|kept| kept == name));
        }
        let (directives, fields): (Map<_, _>, Map<_, _>) =
            patch.into_iter().partition(|(name, _)| name.starts_with('$'));
        for (name, value) in fields {
            let order = directives.get(&format!("{ORDER}{name}"));
            self.set(ty, object, (name, value), order)?;
        }
        for (directive, value) in directives {
            self.direct(ty, object, &directive, value)?;
        }
        Ok(Outcome::Keep)
    }

    fn set(
        &self,
        ty: Option<&Type>,
        object: &mut Map<String, Value>,
        (name, value): (String, Value),
        order: Option<&Value>,
    ) -> Result<(), PatchError> {
        let field = self.field(ty, &name);
        let field_type = self.field_type(ty, &name);
        match value {
            Value::Null => {
                object.remove(&name);
            }
            Value::Object(patch) => {
                let slot = object.entry(name.clone()).or_insert_with(|| Value::Object(Map::new()));
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                let Value::Object(inner) = slot else { unreachable!("made an object above") };
                if let Outcome::Delete = self.object(field_type, inner, patch)? {
                    object.remove(&name);
                }
            }
            Value::Array(patch) if field.is_some_and(|field| field.merges) => {
                let field = field.expect("checked by the guard");
                let current = match object.remove(&name) {
                    Some(Value::Array(items)) => items,
                    _ => Vec::new(),
                };
                let merged = self.list(field, current, patch, order)?;
                object.insert(name, Value::Array(merged));
            }
            other => {
                object.insert(name, other);
            }
        }
        Ok(())
    }

    /// Directives about lists that the patch does not otherwise mention.
    fn direct(
        &self,
        ty: Option<&Type>,
        object: &mut Map<String, Value>,
        directive: &str,
        value: Value,
    ) -> Result<(), PatchError> {
        let Value::Array(values) = value else {
            return Err(malformed(format!("{directive} must be a list")));
        };
        if let Some(name) = directive.strip_prefix(DELETE_FROM) {
            if let Some(Value::Array(items)) = object.get_mut(name) {
                items.retain(|item| !values.contains(item));
            }
        } else if let Some(name) = directive.strip_prefix(ORDER) {
            let key = self.field(ty, name).and_then(|field| field.merge_key.clone());
            if let Some(Value::Array(items)) = object.get_mut(name) {
                let before = items.clone();
                let items = std::mem::take(items);
                let items = in_order(items, &before, &values, key.as_deref());
                object.insert(name.to_owned(), Value::Array(items));
            }
        } else {
            return Err(malformed(format!("unknown directive {directive}")));
        }
        Ok(())
    }

    fn list(
        &self,
        field: &Field,
        current: Vec<Value>,
        patch: Vec<Value>,
        order: Option<&Value>,
    ) -> Result<Vec<Value>, PatchError> {
        let before = current.clone();
        let mut merged = current;
        let mentioned = patch.clone();
        match &field.merge_key {
            Some(key) => self.keyed(field, key, &mut merged, patch)?,
            None => {
                for value in patch {
                    if !merged.contains(&value) {
                        merged.push(value);
                    }
                }
            }
        }
        let order = order.and_then(Value::as_array).cloned().unwrap_or(mentioned);
        Ok(in_order(merged, &before, &order, field.merge_key.as_deref()))
    }

    fn keyed(
        &self,
        field: &Field,
        key: &str,
        merged: &mut Vec<Value>,
        patch: Vec<Value>,
    ) -> Result<(), PatchError> {
        let element_type = match &field.ty {
            Type::List(element) => Some(element.as_ref()),
            _ => None,
        };
        let replace =
            patch.iter().any(|item| item[DIRECTIVE] == "replace" && item.get(key).is_none());
        if replace {
            merged.clear();
        }
        for item in patch {
            let Value::Object(item) = item else {
                return Err(malformed(format!("{item} is not an element with a {key}")));
            };
            let Some(name) = item.get(key).cloned() else {
                if item.contains_key(DIRECTIVE) {
                    continue;
                }
                let shown = Value::Object(item);
                return Err(malformed(format!(
                    "map: {shown} does not contain declared merge key: {key}"
                )));
            };
            let position = merged.iter().position(|existing| existing[key] == name);
            let mut element = match position {
                Some(position) => merged[position].take(),
                None => Value::Object(Map::new()),
            };
            if !element.is_object() {
                element = Value::Object(Map::new());
            }
            let Value::Object(fields) = &mut element else { unreachable!("made an object above") };
            match (self.object(element_type, fields, item)?, position) {
                (Outcome::Keep, Some(position)) => merged[position] = element,
                (Outcome::Keep, None) => merged.push(element),
                (Outcome::Delete, Some(position)) => {
                    merged.remove(position);
                }
                (Outcome::Delete, None) => {}
            }
        }
        Ok(())
    }
}

/// Puts the elements named by `order` into that order, and the others where they were before,
/// relative to those; an element that was not there before comes as early as it can.
fn in_order(items: Vec<Value>, before: &[Value], order: &[Value], key: Option<&str>) -> Vec<Value> {
    let same = |a: &Value, b: &Value| match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    };
    let place = |list: &[Value], item: &Value| list.iter().position(|other| same(other, item));
    let (mut named, others): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    let mut result = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(first), Some(second)) = (named.peek(), others.peek()) {
        let named_first = match place(before, first) {
            None => true,
            was => was < place(before, second),
        };
        result.extend(if named_first { named.next() } else { others.next() });
    }
    result.into_iter().chain(named).chain(others).collect()
}

#[cfg(test)]
mod tests;
