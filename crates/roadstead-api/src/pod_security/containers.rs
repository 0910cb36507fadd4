//! The containers of a pod, and how they are named in sentences.

use std::collections::BTreeSet;

use roadstead_schema::json::Pointer;
use serde_json::Value;

/// All containers of a pod.
pub(super) fn all(pod: &Value) -> impl Iterator<Item = &Value> {
    ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"]
        .into_iter()
        .flat_map(|list| pod.list(list))
}

/// The names of the containers of which something is true.
pub(super) fn names(pod: &Value, is: impl Fn(&Value) -> bool) -> Vec<&str> {
    all(pod).filter(|own| is(own)).map(|own| own.text("/name")).collect()
}

/// `container "a"`, or `containers "a", "b"`.
pub(super) fn named(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names.iter().copied()))
}

pub(super) fn plural(one: &'static str, many: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { many }
}

/// `"a", "b"`.
pub(super) fn quoted<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

/// Who sets something that is not allowed: the pod, some of its containers, or both; with the values.
pub(super) struct Setters<'a> {
    pub(super) who: Vec<String>,
    pub(super) values: BTreeSet<&'a str>,
}

impl<'a> Setters<'a> {
    /// Looks at a field of the security contexts of a pod and its containers; `bad` gives the value that is
    /// not allowed.
    pub(super) fn find(pod: &'a Value, bad: impl Fn(&'a Value) -> Option<&'a str>) -> Self {
        let (mut who, mut values) = (Vec::new(), BTreeSet::new());
        if let Some(value) = bad(&pod["spec"]["securityContext"]) {
            who.push("pod".to_owned());
            values.insert(value);
        }
        let mut containers = Vec::new();
        for container in all(pod) {
            if let Some(value) = bad(&container["securityContext"]) {
                containers.push(container.text("/name"));
                values.insert(value);
            }
        }
        if !containers.is_empty() {
            who.push(named(&containers));
        }
        Self { who, values }
    }

    /// `pod and container "a"`.
    pub(super) fn said(&self) -> String {
        self.who.join(" and ")
    }
}
