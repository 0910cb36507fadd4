//! Which objects a list or a watch is about.

use std::borrow::Cow;
use std::collections::BTreeMap;

use roadstead_api::selector::{FieldCondition, Selector};
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::registry::Resource;
use crate::request::query::Query;

/// Conditions on namespace, name, labels and fields.
#[derive(Debug)]
pub(crate) struct Filter {
    prefix: String,
    labels: Selector,
    /// All of them hold: a selector does not widen what the path says.
    names: Vec<FieldCondition>,
    /// Conditions on the content, with the pointer to the field.
    fields: Vec<(&'static str, FieldCondition)>,
}

impl Filter {
    /// Reads the selectors of a request; `name` narrows it to one object.
    pub(crate) fn new(
        resource: &Resource,
        namespace: &str,
        name: &str,
        query: &Query,
    ) -> Result<Self, ApiError> {
        let mut prefix = resource.prefix(namespace);
        let mut names = Vec::new();
        let mut fields = Vec::new();
        if !name.is_empty() {
            let (label, value) = ("metadata.name".into(), name.into());
            names.push(FieldCondition { label, value, equal: true });
        }
        for condition in query.fields()? {
            let known =
                resource.kind.selectable().iter().find(|(label, _)| *label == condition.label);
            match (condition.label.as_str(), known) {
                ("metadata.name", _) => names.push(condition),
                ("metadata.namespace", _) if condition.equal && prefix.is_empty() => {
                    prefix = resource.prefix(&condition.value);
                }
                ("metadata.namespace", _) => fields.push(("/metadata/namespace", condition)),
                (_, Some((_, pointer))) => fields.push((pointer, condition)),
                (label, None) => {
                    let message = format!("field label not supported: {label}");
                    return Err(ApiError::bad_request(message));
                }
            }
        }
        Ok(Self { prefix, labels: query.labels()?, names, fields })
    }

    /// How the paths of all matching objects begin.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether more than the path decides.
    pub(crate) fn looks_inside(&self) -> bool {
        !self.labels.is_empty() || !self.names.is_empty() || !self.fields.is_empty()
    }

    /// Whether objects have to be read.
    pub(crate) fn reads(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    /// Whether an object matches.
    pub(crate) fn matches(&self, path: &str, bytes: &[u8]) -> bool {
        path.starts_with(&self.prefix)
            && self.name_matches(path)
            && self.labels_match(bytes)
            && self.fields_match(bytes)
    }

    fn name_matches(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.names.iter().all(|condition| (condition.value == name) == condition.equal)
    }

    fn labels_match(&self, bytes: &[u8]) -> bool {
        if self.labels.is_empty() {
            return true;
        }
        let labelled: Labelled<'_> = serde_json::from_slice(bytes).unwrap_or_default();
        self.labels.matches(|key| labelled.metadata.labels.get(key).map(AsRef::as_ref))
    }

    fn fields_match(&self, bytes: &[u8]) -> bool {
        if self.fields.is_empty() {
            return true;
        }
        if self.fields.iter().any(|(pointer, condition)| is_nowhere(bytes, pointer, condition)) {
            return false;
        }
        let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
        self.fields.iter().all(|(pointer, condition)| {
            let found = text_at(&object, pointer);
            (found == condition.value) == condition.equal
        })
    }
}

/// Whether what is demanded stands nowhere in an object, so that it need not be read: each node watches its
/// own pods, and each change of a pod is shown to the watches of all nodes.
fn is_nowhere(bytes: &[u8], pointers: &str, condition: &FieldCondition) -> bool {
    let value = &condition.value;
    // As it is written in JSON, and only there.
    let is_plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let may_be_absent = pointers.split('|').any(|pointer| absent(pointer) == value);
    condition.equal
        && is_plain
        && !may_be_absent
        && str::from_utf8(bytes).is_ok_and(|text| !text.contains(value.as_str()))
}

/// The value of a field as a selector sees it; of several that are joined by a bar the first that
/// says something.
fn text_at(object: &Value, pointers: &str) -> String {
    let of = |pointer: &str| match object.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => absent(pointer).to_owned(),
        Some(other) => other.to_string(),
    };
    pointers.split('|').map(of).find(|text| !text.is_empty()).unwrap_or_default()
}

/// What a field that is not there counts as: numbers and flags are never empty.
fn absent(pointer: &str) -> &'static str {
    match pointer {
        "/status/replicas" | "/status/succeeded" => "0",
        "/spec/unschedulable" | "/spec/hostNetwork" => "false",
        _ => "",
    }
}

/// As much of an object as label selectors need.
#[derive(Default, Deserialize)]
struct Labelled<'a> {
    #[serde(borrow, default)]
    metadata: LabelledMetadata<'a>,
}

#[derive(Default, Deserialize)]
struct LabelledMetadata<'a> {
    #[serde(borrow, default)]
    labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

#[test]
fn what_is_nowhere_need_not_be_read() {
    let pod = br#"{"spec":{"nodeName":"node-12","hostNetwork":true},"status":{"phase":"Running"}}"#;
    for (pointer, value, equal, want) in [
        ("/spec/nodeName", "node-12", true, false),
        // It may be somewhere else: then it is read.
        ("/spec/nodeName", "node-1", true, false),
        ("/spec/nodeName", "node-3", true, true),
        ("/spec/nodeName", "node-3", false, false),
        ("/spec/nodeName", "", true, false),
        ("/spec/nodeName", "a b", true, false),
        ("/spec/hostNetwork", "false", true, false),
        ("/spec/hostNetwork", "true", true, false),
        ("/status/phase|/spec/none", "Pending", true, true),
    ] {
        let (label, value) = (String::new(), value.to_owned());
        let condition = FieldCondition { label, value, equal };
        assert_eq!(is_nowhere(pod, pointer, &condition), want, "{pointer} {:?}", condition.value);
    }
}
