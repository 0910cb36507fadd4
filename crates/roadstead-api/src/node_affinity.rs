//! Whether a pod wants to be on a node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// What pods choose nodes by.
#[derive(Clone, Copy, Debug)]
pub struct NodeTraits<'a> {
    /// The node's name.
    pub name: &'a str,
    /// Its labels.
    pub labels: Option<&'a BTreeMap<String, String>>,
}

/// Whether the pod's node selector and what its node affinity requires are met.
pub fn wants_node(spec: &PodSpec, node: NodeTraits<'_>) -> bool {
    let label = |key: &str| node.labels.and_then(|labels| labels.get(key)).map(String::as_str);
    let selected = spec.node_selector.iter().flatten();
    let is_selected = selected.into_iter().all(|(key, value)| label(key) == Some(value));
    is_selected && required(spec).is_none_or(|terms| meets_any(terms, node))
}

/// Whether a node meets one of these terms.
pub fn meets_any(terms: &[NodeSelectorTerm], node: NodeTraits<'_>) -> bool {
    terms.iter().any(|term| meets(term, node))
}

/// Whether the pod is particular about its node at all.
pub fn is_particular(spec: &PodSpec) -> bool {
    spec.node_selector.as_ref().is_some_and(|labels| !labels.is_empty()) || required(spec).is_some()
}

/// What the pod requires: one of these.
fn required(spec: &PodSpec) -> Option<&[NodeSelectorTerm]> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let selector = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    Some(&selector.node_selector_terms)
}

fn meets(term: &NodeSelectorTerm, node: NodeTraits<'_>) -> bool {
    let label = |key: &str| node.labels.and_then(|labels| labels.get(key)).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(node.name);
    let mut labels = term.match_expressions.iter().flatten();
    let mut fields = term.match_fields.iter().flatten();
    let is_empty = labels.clone().next().is_none() && fields.clone().next().is_none();
    // A term that asks for nothing is met by no node.
    !is_empty
        && labels.all(|wanted| holds(wanted, label(&wanted.key)))
        && fields.all(|wanted| holds(wanted, field(&wanted.key)))
}

fn holds(wanted: &NodeSelectorRequirement, found: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let listed = found.is_some_and(|found| values.iter().any(|value| value == found));
    let compare = |is_it: fn(&i64, &i64) -> bool| {
        let found = found.and_then(|text| text.parse::<i64>().ok());
        let bound = values.first().and_then(|text| text.parse::<i64>().ok());
        found.zip(bound).is_some_and(|(found, bound)| is_it(&found, &bound))
    };
    match wanted.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_wants_which_node() {
        let labels = [("disk", "ssd"), ("size", "8")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let node = NodeTraits { name: "n1", labels: Some(&labels) };
        let term = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let name = |operator: &str| {
            let wanted = json!({"key": "metadata.name", "operator": operator, "values": ["n1"]});
            json!({"matchFields": [wanted]})
        };
        for (terms, want) in [
            (vec![term("disk", "In", &["hdd", "ssd"])], true),
            (vec![term("disk", "NotIn", &["ssd"])], false),
            (vec![term("none", "NotIn", &["ssd"])], true),
            (vec![term("disk", "Exists", &[])], true),
            (vec![term("disk", "DoesNotExist", &[])], false),
            (vec![term("size", "Gt", &["7"])], true),
            (vec![term("size", "Lt", &["8"])], false),
            (vec![term("disk", "Gt", &["7"])], false),
            (vec![term("disk", "In", &["hdd"]), term("size", "Exists", &[])], true),
            (vec![name("In")], true),
            (vec![name("NotIn")], false),
            (vec![json!({})], false),
            (vec![], false),
        ] {
            let spec = json!({"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            assert!(is_particular(&spec));
            assert_eq!(wants_node(&spec, node), want, "{terms:?}");
        }
        for (selector, want) in [(json!({"disk": "ssd"}), true), (json!({"disk": "hdd"}), false)] {
            let spec = json!({"containers": [], "nodeSelector": selector});
            assert_eq!(wants_node(&serde_json::from_value(spec).unwrap(), node), want);
        }
    }
}
