//! Objects between JSON values and the bytes in the store.
//!
//! Stored bytes begin with `apiVersion`, `kind` and `metadata` and have no resourceVersion: the
//! revision of the entry is spliced in when they are served, so no object is parsed to be read.

use bytes::{BufMut, Bytes, BytesMut};
use roadstead_store::entry::{Entry, Revision};
use serde_json::Value;

const METADATA: &[u8] = b"\"metadata\":{";

/// The bytes to store for an object.
pub fn encode(object: &Value) -> Bytes {
    let mut metadata = object["metadata"].clone();
    metadata.as_object_mut().map(|fields| fields.remove("resourceVersion"));
    let mut out = BytesMut::with_capacity(512).writer();
    let mut put = |name: &str, value: &Value, separator: &str| {
        let text = format!("{separator}\"{name}\":");
        std::io::Write::write_all(&mut out, text.as_bytes()).expect("memory takes all bytes");
        serde_json::to_writer(&mut out, value).expect("a JSON value can be written");
    };
    put("apiVersion", &object["apiVersion"], "{");
    put("kind", &object["kind"], ",");
    put("metadata", &metadata, ",");
    for (name, value) in object.as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            // Fields of known types: their names need no escaping.
            put(name, value, ",");
        }
    }
    let mut bytes = out.into_inner();
    bytes.put_u8(b'}');
    bytes.freeze()
}

/// How the bytes of objects of an `apiVersion` begin.
pub fn head(api_version: &str) -> String {
    format!("{{\"apiVersion\":\"{api_version}\",")
}

/// Appends the object with its revision.
pub fn splice(out: &mut BytesMut, value: &[u8], revision: Revision) {
    let at = find(value, METADATA).expect("stored objects have metadata") + METADATA.len();
    out.put_slice(&value[..at]);
    out.put_slice(format!("\"resourceVersion\":\"{revision}\"").as_bytes());
    if value[at] != b'}' {
        out.put_u8(b',');
    }
    out.put_slice(&value[at..]);
}

/// The object as a value, with its revision.
pub fn value(entry: &Entry) -> Value {
    value_at(&entry.value, entry.revision)
}

/// The object as a value, as of a certain revision.
pub fn value_at(bytes: &[u8], revision: Revision) -> Value {
    let mut object: Value = serde_json::from_slice(bytes).expect("stored objects are JSON");
    object["metadata"]["resourceVersion"] = revision.to_string().into();
    object
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[test]
fn what_is_stored_comes_back_with_its_revision() {
    use serde_json::json;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"\"metadata\":{": "x"},
        "metadata": {"name": "a", "resourceVersion": "3"}});
    let bytes = encode(&object);
    assert!(bytes.starts_with(br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}"#));
    assert!(bytes.starts_with(head("v1").as_bytes()) && !bytes.starts_with(head("v2").as_bytes()));
    let mut out = BytesMut::new();
    splice(&mut out, &bytes, Revision(7));
    let mut want = object.clone();
    want["metadata"]["resourceVersion"] = "7".into();
    assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), want);
}
