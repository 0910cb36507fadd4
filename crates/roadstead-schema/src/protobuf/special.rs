//! Messages whose JSON form is not an object.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Tables;
use super::wire::{Reader, Wire};

/// The JSON of a message that is not simply an object; `None` for all others.
pub(super) fn decode(
    tables: &Tables,
    message: &str,
    bytes: &[u8],
    depth: usize,
) -> Option<Result<Value, String>> {
    let name = message.rsplit('.').next().unwrap_or(message);
    Some(match name {
        "IntOrString" => int_or_string(bytes),
        "Quantity" => texts(bytes, 1).map(|mut all| json!(all.pop().unwrap_or_default())),
        "Time" | "MicroTime" => time(bytes, name == "MicroTime"),
        "RawExtension" | "FieldsV1" | "JSON" => raw(bytes),
        "ExtraValue" | "AttestationValue" | "Verbs" => texts(bytes, 1).map(|all| json!(all)),
        "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray" | "JSONSchemaPropsOrBool" => {
            schema_or(tables, message, bytes, depth)
        }
        _ => return None,
    })
}

/// `type` 0 is a number, 1 a text.
fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    for field in Reader::new(bytes) {
        match field? {
            (1, Wire::Varint(kind)) => is_text = kind == 1,
            (2, Wire::Varint(value)) => number = value as i64,
            (3, wire) => text = wire.text()?,
            _ => {}
        }
    }
    Ok(if is_text { json!(text) } else { json!(number) })
}

/// Nothing at all is no time.
fn time(bytes: &[u8], micro: bool) -> Result<Value, String> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in Reader::new(bytes) {
        match field? {
            (1, Wire::Varint(value)) => seconds = value as i64,
            (2, Wire::Varint(value)) => nanos = value as i32,
            _ => {}
        }
    }
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let moment = Timestamp::new(seconds, nanos).map_err(|error| error.to_string())?;
    let whole = Timestamp::from_second(moment.as_second()).map_err(|error| error.to_string())?;
    Ok(if micro { json!(format!("{moment:.6}")) } else { json!(whole.to_string()) })
}

/// JSON inside of protobuf.
fn raw(bytes: &[u8]) -> Result<Value, String> {
    for field in Reader::new(bytes) {
        if let (1, Wire::Bytes(raw)) = field? {
            return serde_json::from_slice(raw).map_err(|error| error.to_string());
        }
    }
    Ok(Value::Null)
}

/// Unions of a schema with something simpler.
fn schema_or(tables: &Tables, message: &str, bytes: &[u8], depth: usize) -> Result<Value, String> {
    let props = message.replace("JSONSchemaPropsOrArray", "JSONSchemaProps");
    let props = props.replace("JSONSchemaPropsOrStringArray", "JSONSchemaProps");
    let props = props.replace("JSONSchemaPropsOrBool", "JSONSchemaProps");
    let mut list = Vec::new();
    for field in Reader::new(bytes) {
        match (field?, message.rsplit('.').next()) {
            ((1, Wire::Varint(allows)), _) => list = vec![json!(allows != 0)],
            (
                (1, Wire::Bytes(schema)),
                Some("JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray"),
            )
            | ((2, Wire::Bytes(schema)), Some("JSONSchemaPropsOrBool")) => {
                return tables.message(&props, schema, depth + 1);
            }
            ((2, Wire::Bytes(schema)), Some("JSONSchemaPropsOrArray")) => {
                list.push(tables.message(&props, schema, depth + 1)?);
            }
            ((2, wire), _) => list.push(json!(wire.text()?)),
            _ => {}
        }
    }
    if message.ends_with("OrBool") {
        return Ok(list.pop().unwrap_or(Value::Null));
    }
    Ok(json!(list))
}

fn texts(bytes: &[u8], number: u32) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for field in Reader::new(bytes) {
        let (found, wire) = field?;
        if found == number {
            all.push(wire.text()?);
        }
    }
    Ok(all)
}

/// Bytes as JSON has them.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(*chunk.get(index).unwrap_or(&0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * index) & 63) as usize];
            out.push(if index <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    out
}
