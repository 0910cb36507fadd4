//! OpenAPI v2 in protobuf, as the gnostic project defines it: the only form that kubectl before
//! 1.27 reads. Only types are written, and the operations that patch.

use bytes::Bytes;
use serde_json::Value;

/// Encodes a document.
pub(super) fn encode(document: &Value) -> Bytes {
    let mut out = Message::default();
    out.text(1, &document["swagger"]);
    let mut info = Message::default();
    info.text(1, &document["info"]["title"]);
    info.text(2, &document["info"]["version"]);
    out.message(2, info);
    out.message(8, paths(&document["paths"]));
    out.message(9, named_schemas(&document["definitions"]));
    out.0.into()
}

/// `Paths`: of each, the operation that patches.
fn paths(paths: &Value) -> Message {
    let mut out = Message::default();
    for (path, item) in paths.as_object().into_iter().flatten() {
        let mut value = Message::default();
        value.message(8, operation(&item["patch"]));
        let mut named = Message::default();
        named.string(1, path);
        named.message(2, value);
        out.message(2, named);
    }
    out
}

fn operation(value: &Value) -> Message {
    let mut out = Message::default();
    for parameter in value["parameters"].as_array().into_iter().flatten() {
        let mut query = Message::default();
        query.text(2, &parameter["in"]);
        query.text(4, &parameter["name"]);
        query.text(6, &parameter["type"]);
        // A parameters item is a parameter, which is none of the body, but of the query.
        out.message(8, query.within(3).within(2).within(1));
    }
    extensions(value, 13, &mut out);
    out
}

/// `Definitions` and `Properties`: schemas by name.
fn named_schemas(schemas: &Value) -> Message {
    let mut out = Message::default();
    for (name, value) in schemas.as_object().into_iter().flatten() {
        let mut named = Message::default();
        named.string(1, name);
        named.message(2, schema(value));
        out.message(1, named);
    }
    out
}

fn schema(value: &Value) -> Message {
    let mut out = Message::default();
    out.text(1, &value["$ref"]);
    out.text(2, &value["format"]);
    out.text(4, &value["description"]);
    for name in value["required"].as_array().into_iter().flatten() {
        out.text(19, name);
    }
    if value["additionalProperties"].is_object() {
        let mut item = Message::default();
        item.message(1, schema(&value["additionalProperties"]));
        out.message(21, item);
    }
    if value["type"].is_string() {
        let mut item = Message::default();
        item.text(1, &value["type"]);
        out.message(22, item);
    }
    if value["items"].is_object() {
        let mut item = Message::default();
        item.message(1, schema(&value["items"]));
        out.message(23, item);
    }
    if value["properties"].is_object() {
        out.message(25, named_schemas(&value["properties"]));
    }
    extensions(value, 31, &mut out);
    out
}

fn extensions(value: &Value, number: u32, out: &mut Message) {
    let fields = value.as_object().into_iter().flatten();
    for (name, extension) in fields.filter(|(name, _)| name.starts_with("x-")) {
        let mut any = Message::default();
        // Clients read it as YAML, of which JSON is a part.
        any.string(2, &extension.to_string());
        let mut named = Message::default();
        named.string(1, name);
        named.message(2, any);
        out.message(number, named);
    }
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// A string field, left out if the value is none.
    fn text(&mut self, number: u32, value: &Value) {
        if let Some(text) = value.as_str() {
            self.string(number, text);
        }
    }

    fn string(&mut self, number: u32, text: &str) {
        self.bytes(number, text.as_bytes());
    }

    fn message(&mut self, number: u32, message: Message) {
        self.bytes(number, &message.0);
    }

    /// A message of which this one is the only field.
    fn within(self, number: u32) -> Message {
        let mut out = Message::default();
        out.message(number, self);
        out
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.varint(u64::from(number << 3 | 2));
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[test]
fn a_schema_in_protobuf() {
    use serde_json::json;
    let bytes = schema(&json!({"type": "string", "x-a": [1]})).0;
    let want = b"\xb2\x01\x08\x0a\x06string\xfa\x01\x0c\x0a\x03x-a\x12\x05\x12\x03[1]";
    assert_eq!(bytes, want);
}
