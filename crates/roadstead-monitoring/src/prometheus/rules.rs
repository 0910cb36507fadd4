//! PrometheusRules as one file of rules.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Metadata, name_of};

/// What Prometheus knows of a group, besides its name and its rules.
const OF_GROUPS: [&str; 4] = ["interval", "limit", "query_offset", "labels"];
/// What it knows of a rule.
const OF_RULES: [&str; 7] =
    ["alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"];

#[derive(Deserialize)]
struct PrometheusRule {
    #[serde(default)]
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    groups: Vec<Map<String, Value>>,
}

/// The file. Groups of several objects may have one name, which a file must not have twice: each begins
/// with where it comes from.
pub(super) fn file(objects: &[Value], notes: &mut Vec<String>) -> Value {
    let mut read = Vec::new();
    for object in objects {
        match PrometheusRule::deserialize(object) {
            Ok(rule) => read.push(rule),
            Err(error) => notes.push(format!("{}: {error}", name_of("PrometheusRule", object))),
        }
    }
    read.sort_by(|one, other| one.metadata.cmp(&other.metadata));
    let mut groups = Vec::new();
    for PrometheusRule { metadata: Metadata { namespace, name }, spec } in &read {
        let owner = format!("{namespace}/{name}");
        groups.extend(spec.groups.iter().map(|own| group(&owner, own, notes)));
    }
    json!({"groups": groups})
}

fn group(owner: &str, own: &Map<String, Value>, notes: &mut Vec<String>) -> Value {
    let name = own.get("name").and_then(Value::as_str).unwrap_or_default();
    let mut group = json!({"name": format!("{owner}/{name}")});
    let mut left_out: Vec<_> = own.keys().collect();
    left_out.retain(|field| *field != "name" && *field != "rules");
    for field in OF_GROUPS {
        if let Some(value) = own.get(field) {
            group[field] = value.clone();
            left_out.retain(|left| *left != field);
        }
    }
    notes.extend(left_out.into_iter().map(|field| {
        format!("PrometheusRule {owner}: {field} of group {name} is nothing to Prometheus")
    }));
    let rules = own.get("rules").and_then(Value::as_array).into_iter().flatten();
    group["rules"] = rules.map(rule).collect();
    group
}

fn rule(own: &Value) -> Value {
    let mut rule = json!({});
    for field in OF_RULES {
        match own.get(field) {
            // An expression may be a number.
            Some(Value::Number(number)) => rule[field] = number.to_string().into(),
            Some(value) => rule[field] = value.clone(),
            None => {}
        }
    }
    rule
}
