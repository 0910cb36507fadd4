//! Manifests as people keep them: one object or many, YAML or JSON, alone or in lists.

use anyhow::Context;
use serde_json::{Deserializer, Value, de::IoRead};

/// All objects of a text, with those in lists; each has a namespace and, if the list says it, a
/// kind. Documents are separated as YAML does it, and JSON values may simply follow each other.
pub(crate) fn objects(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for document in documents(text)? {
        let kind = document["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
        let kind = kind.filter(|kind| !kind.is_empty()).map(str::to_owned);
        match document {
            Value::Object(mut list) if list.get("items").is_some_and(Value::is_array) => {
                let Some(Value::Array(items)) = list.remove("items") else { continue };
                found.extend(items.into_iter().map(|item| of_kind(item, kind.as_deref())));
            }
            object => found.push(object),
        }
    }
    for object in found.iter_mut().filter(|object| object.is_object()) {
        if object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
    }
    Ok(found)
}

/// Items of a list that is of one kind do not repeat it.
fn of_kind(mut item: Value, kind: Option<&str>) -> Value {
    if let (Some(object), Some(kind)) = (item.as_object_mut(), kind) {
        object.entry("kind").or_insert_with(|| kind.into());
    }
    item
}

/// JSON is tried first: it is read ten times faster, and YAML has one value per document.
fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    if text.trim_start().starts_with(['{', '[']) {
        let values = Deserializer::new(IoRead::new(text.as_bytes())).into_iter();
        if let Ok(values) = values.collect() {
            return Ok(values);
        }
    }
    // Files are as large as their owner wants; what must be guarded against is a request.
    let options = serde_saphyr::options! { budget: None };
    let read = |document| serde_saphyr::from_str_with_options(document, options.clone());
    text.split("\n---").map(read).collect::<Result<_, _>>().context("neither YAML nor JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists() {
        let cases = [
            ("one", "kind: Service\nmetadata: {name: a}", "Service/default"),
            (
                "two",
                "---\nkind: Service\n---\nkind: Node\nmetadata: {namespace: x}\n",
                "Service/default Node/x",
            ),
            ("a list", r#"{"kind": "List", "items": [{"kind": "Service"}]}"#, "Service/default"),
            (
                "lists of one kind, one after the other",
                "{\"kind\": \"ServiceList\", \"items\": [{}, {}]}\n{\"kind\": \"NodeList\", \"items\": [{}]}",
                "Service/default Service/default Node/default",
            ),
            ("JSON, one after the other", r#"{"kind": "A"} {"kind": "B"}"#, "A/default B/default"),
            ("YAML that begins as JSON", "{kind: A}\n---\nkind: B", "A/default B/default"),
            ("an empty list", r#"{"kind": "List", "items": []}"#, ""),
        ];
        for (name, text, want) in cases {
            let got = objects(text).unwrap();
            let word = |object: &Value| {
                let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
                format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["namespace"]))
            };
            assert_eq!(got.iter().map(word).collect::<Vec<_>>().join(" "), want, "{name}");
        }
        assert!(objects("{ no").is_err());
    }

    #[test]
    fn a_large_cluster_in_one_file() {
        let items = vec!["a"; 251_000].join(",");
        let yaml = format!("kind: List\nitems: [{items}]");
        assert_eq!(objects(&yaml).unwrap().len(), 251_000, "no limit that is meant for requests");
    }
}
