//! Objects between JSON values and the bytes in the store.
//!
//! Stored bytes begin with `apiVersion`, `kind` and `metadata` and have no resourceVersion: the
//! revision of the entry is spliced in when they are served, so no object is parsed to be read.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use roadstead_store::entry::{Entry, Revision};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

const METADATA: &[u8] = b"\"metadata\":{";

/// The bytes to store for an object, in no more room than they need: there may be many.
pub(crate) fn encode(object: &Value) -> Bytes {
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
pub(crate) fn head(api_version: &str) -> String {
    format!("{{\"apiVersion\":\"{api_version}\",")
}

/// Why bytes are no object, if they are none.
pub(crate) fn check(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    serde_json::from_str::<Outline<'_>>(text).map_err(|error| error.to_string())?;
    match find(bytes, METADATA) {
        Some(_) => Ok(()),
        None => Err("its metadata is not where it should be".into()),
    }
}

/// What every object has.
#[derive(Deserialize)]
#[allow(dead_code, reason = "it is only looked for")]
struct Outline<'a> {
    #[serde(borrow, rename = "apiVersion")]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    metadata: BTreeMap<Cow<'a, str>, IgnoredAny>,
}

/// Appends the object with its revision.
pub(crate) fn splice(out: &mut BytesMut, value: &[u8], revision: Revision) {
    // Whoever asks for objects that cannot be read is told so before.
    let Some(at) = find(value, METADATA).map(|at| at + METADATA.len()) else {
        out.put_slice(
            format!("{{\"metadata\":{{\"resourceVersion\":\"{revision}\"}}}}").as_bytes(),
        );
        return;
    };
    out.put_slice(&value[..at]);
    out.put_slice(format!("\"resourceVersion\":\"{revision}\"").as_bytes());
    if value.get(at) != Some(&b'}') {
        out.put_u8(b',');
    }
    out.put_slice(&value[at..]);
}

/// The stored bytes up to `end`, parted where the revision belongs.
pub(crate) fn parts(value: &Bytes, end: usize) -> (Bytes, Bytes) {
    let at = start_of_metadata(value).min(end);
    (value.slice(..at), value.slice(at..end))
}

/// The revision as a field of metadata, of which `rest` follows.
pub(crate) fn version(revision: Revision, rest: &[u8]) -> String {
    let comma = if rest.first() == Some(&b'}') { "" } else { "," };
    format!("\"resourceVersion\":\"{revision}\"{comma}")
}

/// Where the metadata of stored bytes begin; at the end of what is no object.
fn start_of_metadata(value: &[u8]) -> usize {
    find(value, METADATA).map_or(value.len(), |at| at + METADATA.len())
}

/// Where the metadata of stored bytes end.
pub(crate) fn end_of_metadata(value: &[u8]) -> usize {
    let at = start_of_metadata(value);
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
    end.map_or(value.len(), |end| at + end + 1)
}

/// The object as a value, with its revision.
pub(crate) fn value(entry: &Entry) -> Value {
    value_at(&entry.value, entry.revision)
}

/// The object as a value, as of a certain revision.
pub(crate) fn value_at(bytes: &[u8], revision: Revision) -> Value {
    let mut object = parse(bytes);
    object["metadata"]["resourceVersion"] = revision.to_string().into();
    object
}

/// Stored bytes as a value. One that cannot be read is an object without anything: it grants
/// nothing, owns nothing, and whoever asks for it by name is told what is wrong with it.
pub(crate) fn parse(bytes: &[u8]) -> Value {
    let object: Result<Value, _> = serde_json::from_slice(bytes);
    object
        .ok()
        .filter(|object| object["metadata"].is_object())
        .unwrap_or_else(|| json!({"metadata": {}}))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[test]
fn what_is_stored_comes_back_with_its_revision() {
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

#[test]
fn what_is_no_object() {
    let cases = [
        (r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#, ""),
        (r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}"#, ""),
        ("", "EOF while parsing"),
        (r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}"#, "EOF while parsing"),
        (r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},}"#, "trailing comma"),
        (r#"{"apiVersion":"v1","kind":"ConfigMap"}"#, "missing field `metadata`"),
        (r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":7}"#, "invalid type"),
        (r#"["metadata"]"#, "invalid"),
    ];
    for (text, want) in cases {
        let why = check(text.as_bytes()).err().unwrap_or_default();
        assert!(why.contains(want) && why.is_empty() == want.is_empty(), "{text}: {why}");
        // Nobody panics over it.
        value_at(text.as_bytes(), Revision(7));
        splice(&mut BytesMut::new(), text.as_bytes(), Revision(7));
        parts(&Bytes::from(text), end_of_metadata(text.as_bytes()));
    }
    assert!(check(b"{\"apiVersion\":\"v1\",\"kind\":\"\xff\",\"metadata\":{}}").is_err());
}
