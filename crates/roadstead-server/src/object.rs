//! Objects between JSON values and the bytes in the store.
//!
//! Stored bytes begin with `apiVersion`, `kind` and `metadata` and have no resourceVersion: the
//! revision of the entry is spliced in when they are served, so no object is parsed to be read.

use bytes::{BufMut, Bytes, BytesMut};
use roadstead_store::entry::{Entry, Revision};
use serde_json::Value;

const METADATA: &[u8] = b"\"metadata\":{";

/// The bytes to store for an object, in no more room than they need: there may be many.
pub fn encode(object: &Value) -> Bytes {
    let mut out = Vec::with_capacity(2048);
    out.push(b'{');
    field(&mut out, "apiVersion", &object["apiVersion"]);
    field(&mut out, "kind", &object["kind"]);
    out.push(b',');
    out.extend_from_slice(METADATA);
    for (name, value) in object["metadata"].as_object().into_iter().flatten() {
        if name != "resourceVersion" {
            field(&mut out, name, value);
        }
    }
    out.push(b'}');
    for (name, value) in object.as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            field(&mut out, name, value);
        }
    }
    out.push(b'}');
    Bytes::copy_from_slice(&out)
}

/// Appends a field to a JSON object that has been begun.
fn field(out: &mut Vec<u8>, name: &str, value: &Value) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    serde_json::to_writer(&mut *out, name).expect("text can be written as JSON");
    out.push(b':');
    serde_json::to_writer(out, value).expect("a JSON value can be written");
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

/// The stored bytes up to `end`, parted where the revision belongs.
pub fn parts(value: &Bytes, end: usize) -> (Bytes, Bytes) {
    let at = find(value, METADATA).expect("stored objects have metadata") + METADATA.len();
    (value.slice(..at), value.slice(at..end))
}

/// The revision as a field of metadata, of which `rest` follows.
pub fn version(revision: Revision, rest: &[u8]) -> String {
    let comma = if rest.first() == Some(&b'}') { "" } else { "," };
    format!("\"resourceVersion\":\"{revision}\"{comma}")
}

/// Where the metadata of stored bytes end.
pub fn end_of_metadata(value: &[u8]) -> usize {
    let at = find(value, METADATA).expect("stored objects have metadata") + METADATA.len();
    let (mut depth, mut in_text, mut escaped) = (1, false, false);
    let end = value[at..].iter().position(|byte| {
        match byte {
            _ if escaped => {
                escaped = false;
                return false;
            }
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'{' if !in_text => depth += 1,
            b'}' if !in_text => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    at + end.expect("stored objects are JSON") + 1
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
    let (before, after) = parts(&bytes, bytes.len());
    let parted = [&before, version(Revision(7), &after).as_bytes(), &after].concat();
    assert_eq!(parted, out);
    for metadata in [json!({}), json!({"a": "}\\\"}", "b": {"c": [{}]}, "\\": "\""})] {
        let object =
            json!({"apiVersion": "v1", "kind": "A", "metadata": metadata, "data": {"x": 1}});
        let bytes = encode(&object);
        let (_, own) = parts(&bytes, end_of_metadata(&bytes));
        let text = [&b"{"[..], &own].concat();
        assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), metadata);
    }
}
