//! Reading and filling untyped objects without ceremony.

use serde_json::Value;

/// Reads what a JSON pointer points at; what is absent or of another type reads as empty.
pub trait Pointer {
    /// The string there, or "".
    fn text(&self, pointer: &str) -> &str;
    /// The integer there, or 0.
    fn int(&self, pointer: &str) -> i64;
    /// The boolean there, or false.
    fn flag(&self, pointer: &str) -> bool;
    /// The list there, or an empty one.
    fn list(&self, pointer: &str) -> &[Value];
    /// The fields of the object there, or none.
    fn fields(&self, pointer: &str) -> impl Iterator<Item = (&str, &Value)>;
    /// Whether there is anything other than null.
    fn has(&self, pointer: &str) -> bool;
}

/// The value at a JSON pointer. Unlike [`Value::pointer`] this copies nothing on the way, which
/// shows when it is called a hundred times for each request.
fn at<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    let Some(path) = pointer.strip_prefix('/').filter(|path| !path.contains('~')) else {
        return value.pointer(pointer);
    };
    path.split('/').try_fold(value, |value, step| match value {
        Value::Object(fields) => fields.get(step),
        Value::Array(elements) => elements.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

impl Pointer for Value {
    fn text(&self, pointer: &str) -> &str {
        at(self, pointer).and_then(Value::as_str).unwrap_or("")
    }

    fn int(&self, pointer: &str) -> i64 {
        at(self, pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    fn flag(&self, pointer: &str) -> bool {
        at(self, pointer).and_then(Value::as_bool).unwrap_or(false)
    }

    fn list(&self, pointer: &str) -> &[Value] {
        at(self, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn fields(&self, pointer: &str) -> impl Iterator<Item = (&str, &Value)> {
        let map = at(self, pointer).and_then(Value::as_object);
        map.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
    }

    fn has(&self, pointer: &str) -> bool {
        at(self, pointer).is_some_and(|value| !value.is_null())
    }
}

/// Sets a field of an object unless it is there already.
pub fn default_to(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Value::Object(fields) = object
        && fields.get(field).is_none_or(Value::is_null)
    {
        fields.insert(field.to_owned(), value.into());
    }
}

/// As [`default_to`], for fields of which an empty text or a zero says nothing: in Go they are not
/// pointers, so clients in Go send them when they mean nothing.
pub fn default_blank(object: &mut Value, field: &str, value: impl Into<Value>) {
    let blank = |own: &Value| own == "" || own.as_i64() == Some(0);
    if object.get(field).is_some_and(blank) {
        object[field] = Value::Null;
    }
    default_to(object, field, value);
}

/// The object behind a field, made empty if it is absent.
pub fn child<'a>(object: &'a mut Value, field: &str) -> &'a mut Value {
    if !object[field].is_object() {
        object[field] = Value::Object(Default::default());
    }
    &mut object[field]
}

/// The elements of the list behind a field, none if it is absent.
pub fn children<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

/// About as many bytes as the value has in JSON.
pub fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(fields) => {
            2 + fields.iter().map(|(name, value)| name.len() + size(value) + 4).sum::<usize>()
        }
    }
}

/// Whether there are more than so many levels; looks no deeper.
pub fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(fields) => {
            levels == 0 || fields.values().any(|field| is_deeper(field, levels - 1))
        }
        _ => false,
    }
}

#[test]
fn a_short_cut_leads_to_the_same_place() {
    let object = serde_json::json!({"a": {"b/c": [{"d": "x"}, 7]}, "": {"": true}, "e": null});
    let pointers =
        ["", "/", "//", "/a", "/a/b~1c", "/a/b~1c/0/d", "/a/b~1c/1", "/a/x/0", "/e/f", "a"];
    for pointer in pointers {
        assert_eq!(at(&object, pointer), object.pointer(pointer), "{pointer:?}");
    }
    assert_eq!(at(&serde_json::json!({"a": [1, 2]}), "/a/1").and_then(Value::as_i64), Some(2));
}
