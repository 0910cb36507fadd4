//! Reading objects in Kubernetes' protobuf, which typed Go clients send since 1.32.
//!
//! One table of messages (data/protobuf-fields.json) drives a decoder that makes the JSON form of
//! an object; from there on it is treated like any other. What JSON calls a field differently is in
//! data/protobuf-exceptions.json. Go writes fields without a value as zero, so zeros that mean "left
//! out" are dropped here, as Go's JSON encoder would; data/protobuf-zeros.json has the fields, by
//! number, that are absent if they are left out, or that JSON has even then.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};

mod special;
mod wire;

pub use special::base64;
use wire::{Reader, Wire};

const FIELDS: &str = include_str!("../data/protobuf-fields.json");
const EXCEPTIONS: &str = include_str!("../data/protobuf-exceptions.json");
const ZEROS: &str = include_str!("../data/protobuf-zeros.json");
const MAGIC: &[u8] = b"k8s\0";
/// Deeper nesting than any object has.
const MAX_DEPTH: usize = 64;

/// Reads an enveloped object: `k8s\0`, then its kind and its message. Fields that we do not know are
/// dropped, as an older server would.
pub fn decode(bytes: &[u8]) -> Result<Value, String> {
    read(bytes, Tables::get())
}

/// Reads an object that others have stored, of which nothing may be lost: a field that we do not know is
/// an error.
pub fn decode_stored(bytes: &[u8]) -> Result<Value, String> {
    read(bytes, Tables { strict: true, ..Tables::get() })
}

fn read(bytes: &[u8], tables: Tables) -> Result<Value, String> {
    let Some(envelope) = bytes.strip_prefix(MAGIC) else {
        return Err("provided data does not appear to be a protobuf message, expected prefix \
             [107 56 115 0]"
            .into());
    };
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), Vec::new());
    for field in Reader::new(envelope) {
        match field? {
            (1, Wire::Bytes(meta)) => {
                for field in Reader::new(meta) {
                    match field? {
                        (1, wire) => version = wire.text()?,
                        (2, wire) => kind = wire.text()?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes.to_vec(),
            _ => {}
        }
    }
    let message = message_name(&version, &kind);
    let mut object = tables.message(&message, &raw, 0)?;
    if !object.is_object() {
        return Err(format!("no kind {kind:?} is registered for version {version:?}"));
    }
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    Ok(object)
}

/// The message of a kind: packages are named after the first word of the group.
fn message_name(api_version: &str, kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    match (group, kind) {
        (_, "DeleteOptions" | "Status" | "ListOptions" | "WatchEvent") => {
            format!("k8s.io.apimachinery.pkg.apis.meta.v1.{kind}")
        }
        ("apiextensions.k8s.io", _) => {
            format!("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.{version}.{kind}")
        }
        ("apiregistration.k8s.io", _) => {
            format!("k8s.io.kube_aggregator.pkg.apis.apiregistration.{version}.{kind}")
        }
        _ => {
            let package = group.split('.').next().unwrap_or(group);
            format!("k8s.io.api.{package}.{version}.{kind}")
        }
    }
}

/// A field of a message.
struct Field {
    name: String,
    /// A scalar's name, or the full name of a message.
    ty: FieldType,
    repeated: bool,
    /// Its fields belong to the parent.
    inline: bool,
    /// Whether zero is a value.
    zeros: bool,
}

enum FieldType {
    Scalar(Scalar),
    Message(String),
    Map(Box<FieldType>),
}

#[derive(Clone, Copy)]
enum Scalar {
    Text,
    Int,
    Bool,
    Double,
    Bytes,
}

/// The fields of all messages, by their numbers.
type Messages = BTreeMap<String, BTreeMap<u32, Field>>;

#[derive(Clone, Copy)]
struct Tables {
    messages: &'static Messages,
    /// Whether fields that we do not know are errors.
    strict: bool,
}

#[derive(Deserialize)]
struct Exception {
    message: String,
    number: u32,
    json: Option<String>,
    #[serde(default)]
    inline: bool,
}

/// A field, and the message that it is of.
#[derive(Clone, Copy)]
struct Place<'a> {
    message: &'a str,
    field: &'a Field,
}

impl Tables {
    fn get() -> Self {
        static MESSAGES: OnceLock<Messages> = OnceLock::new();
        let read = || Self::read().expect("the built-in tables are readable");
        Self { messages: MESSAGES.get_or_init(read), strict: false }
    }

    fn read() -> Result<Messages, serde_json::Error> {
        type Row = (u32, String, String, String);
        let rows: BTreeMap<String, Vec<Row>> = serde_json::from_str(FIELDS)?;
        let zeros: BTreeMap<String, Vec<u32>> = serde_json::from_str(ZEROS)?;
        let mut tables = BTreeMap::new();
        for (message, rows) in rows {
            let package = message.rsplit_once('.').map_or("", |(package, _)| package);
            let valued = zeros.get(&message);
            let fields = rows.into_iter().map(|(number, name, ty, label)| {
                let ty = FieldType::read(&ty, package);
                let zeros = valued.is_some_and(|numbers| numbers.contains(&number));
                let repeated = label == "repeated";
                (number, Field { name, ty, repeated, inline: false, zeros })
            });
            let fields = fields.collect();
            tables.insert(message, fields);
        }
        let exceptions: Vec<Exception> = serde_json::from_str(EXCEPTIONS)?;
        for exception in exceptions {
            let field = tables
                .get_mut(&exception.message)
                .and_then(|fields: &mut BTreeMap<u32, Field>| fields.get_mut(&exception.number));
            if let Some(field) = field {
                field.inline = exception.inline;
                if let Some(name) = exception.json {
                    field.name = name;
                }
            }
        }
        Ok(tables)
    }

    fn message(&self, name: &str, bytes: &[u8], depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err("the message is nested too deeply".into());
        }
        if let Some(value) = special::decode(self, name, bytes, depth) {
            return value;
        }
        let Some(fields) = self.messages.get(name) else {
            return Err(format!("no kind is registered for the message {name}"));
        };
        let mut object = Map::new();
        for entry in Reader::new(bytes) {
            let (number, wire) = entry?;
            match fields.get(&number) {
                Some(field) => {
                    self.field(Place { message: name, field }, wire, &mut object, depth)?;
                }
                None if self.strict => {
                    return Err(format!("field {number} of {name} is not known to this version"));
                }
                None => {}
            }
        }
        Ok(Value::Object(object))
    }

    fn field(
        &self,
        Place { message, field }: Place<'_>,
        wire: Wire<'_>,
        object: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), String> {
        let what = || format!("{message}.{}", field.name);
        match &field.ty {
            FieldType::Map(element) => {
                let (key, value) = self.entry(element, wire.bytes().ok_or_else(what)?, depth)?;
                let map = object.entry(&field.name).or_insert_with(|| json!({}));
                map[key] = value;
            }
            ty => {
                let value = self.value(ty, wire, depth)?;
                match (field.inline, field.repeated, value) {
                    (true, _, Value::Object(inner)) => object.extend(inner),
                    (_, true, value) => {
                        let list = object.entry(&field.name).or_insert_with(|| json!([]));
                        list.as_array_mut().ok_or_else(what)?.push(value);
                    }
                    (_, _, Value::Null) => {}
                    (_, _, value) if !field.zeros && is_nothing(&value) => {}
                    (_, _, value) => drop(object.insert(field.name.clone(), value)),
                }
            }
        }
        Ok(())
    }

    fn entry(&self, ty: &FieldType, bytes: &[u8], depth: usize) -> Result<(String, Value), String> {
        let (mut key, mut value) = (String::new(), None);
        for entry in Reader::new(bytes) {
            match entry? {
                (1, wire) => key = wire.text()?,
                (2, wire) => value = Some(self.value(ty, wire, depth)?),
                _ => {}
            }
        }
        Ok((key, value.unwrap_or_else(|| json!(""))))
    }

    fn value(&self, ty: &FieldType, wire: Wire<'_>, depth: usize) -> Result<Value, String> {
        match ty {
            FieldType::Scalar(scalar) => scalar_value(*scalar, wire),
            FieldType::Message(name) => {
                let bytes = wire.bytes().ok_or_else(|| format!("{name} is not a message"))?;
                self.message(name, bytes, depth + 1)
            }
            FieldType::Map(_) => Err("a map cannot be inside a map".into()),
        }
    }
}

impl FieldType {
    fn read(text: &str, package: &str) -> Self {
        if let Some(element) = text.strip_prefix("map<string,").and_then(|t| t.strip_suffix('>')) {
            return Self::Map(Box::new(Self::read(element, package)));
        }
        match text {
            "string" => Self::Scalar(Scalar::Text),
            "int32" | "int64" => Self::Scalar(Scalar::Int),
            "bool" => Self::Scalar(Scalar::Bool),
            "double" => Self::Scalar(Scalar::Double),
            "bytes" => Self::Scalar(Scalar::Bytes),
            name => Self::Message(match name.strip_prefix('.') {
                Some(full) => full.to_owned(),
                None => format!("{package}.{name}"),
            }),
        }
    }
}

fn scalar_value(scalar: Scalar, wire: Wire<'_>) -> Result<Value, String> {
    match (scalar, wire) {
        (Scalar::Text, wire) => wire.text().map(Value::String),
        (Scalar::Int, Wire::Varint(number)) => Ok(json!(number as i64)),
        (Scalar::Bool, Wire::Varint(number)) => Ok(json!(number != 0)),
        (Scalar::Double, Wire::Fixed64(bits)) => Ok(json!(f64::from_bits(bits))),
        (Scalar::Bytes, Wire::Bytes(bytes)) => Ok(special::base64(bytes).into()),
        _ => Err("proto: wrong wireType".into()),
    }
}

/// Whether a value is Go's way of writing nothing.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Object(fields) => fields.is_empty(),
        Value::Null | Value::Array(_) => false,
    }
}

#[cfg(test)]
mod tests;
