//! Which node a pod runs on.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm, Taint, Toleration};
use roadstead_api::selector::Selector;

use crate::backend::Backend;

/// Pods that have a node already, with its name.
pub type Placed<'a> = Vec<(&'a Backend, &'a str)>;

/// Picks the node with the fewest pods among those that can run this one, or says why none can.
/// Who is where is only asked if the pod wants to be away from others.
pub fn place<'a, 'b>(
    pod: &Pod,
    nodes: &[&'a Node],
    pods_on: &BTreeMap<String, usize>,
    placed: impl FnOnce() -> Placed<'b>,
) -> Result<&'a str, String> {
    let terms = apart(pod);
    let avoided = match terms.is_empty() {
        true => BTreeSet::new(),
        false => avoided(pod, terms, nodes, &placed()),
    };
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<(usize, &str)> = None;
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or("");
        let is_avoided = || terms.iter().any(|term| is_in(node, &term.topology_key, &avoided));
        let crowded = || "node(s) didn't match pod anti-affinity rules".to_owned();
        match obstacle(pod, node).or_else(|| is_avoided().then(crowded)) {
            Some(reason) => *reasons.entry(reason).or_default() += 1,
            None => {
                let choice = (pods_on.get(name).copied().unwrap_or(0), name);
                best = Some(best.map_or(choice, |best| best.min(choice)));
            }
        }
    }
    if let Some((_, name)) = best {
        return Ok(name);
    }
    if nodes.is_empty() {
        return Err("no nodes available to schedule pods".into());
    }
    let reasons: Vec<_> = reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
    Err(format!("0/{} nodes are available: {}.", nodes.len(), reasons.join(", ")))
}

/// What the pod insists on being away from.
fn apart(pod: &Pod) -> &[PodAffinityTerm] {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let terms =
        apart.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref());
    terms.unwrap_or_default()
}

/// The places, by the label that names them, where a pod is that this one wants to be away from.
fn avoided(
    pod: &Pod,
    terms: &[PodAffinityTerm],
    nodes: &[&Node],
    placed: &Placed<'_>,
) -> BTreeSet<(String, String)> {
    let mut avoided = BTreeSet::new();
    for term in terms {
        let Some(selector) = term.label_selector.as_ref().map(Selector::from_object) else {
            continue;
        };
        let own = pod.metadata.namespace.iter().cloned().collect::<Vec<_>>();
        let namespaces = term.namespaces.as_ref().filter(|n| !n.is_empty()).unwrap_or(&own);
        for (other, node) in placed {
            let is_near = other.metadata.namespace.as_ref().is_some_and(|n| namespaces.contains(n));
            if !is_near || !selector.matches_labels(other.metadata.labels.as_ref()) {
                continue;
            }
            let node = nodes.iter().find(|known| known.metadata.name.as_deref() == Some(node));
            let labels = node.and_then(|node| node.metadata.labels.as_ref());
            if let Some(place) = labels.and_then(|labels| labels.get(&term.topology_key)) {
                avoided.insert((term.topology_key.clone(), place.clone()));
            }
        }
    }
    avoided
}

fn is_in(node: &Node, key: &str, places: &BTreeSet<(String, String)>) -> bool {
    let place = node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    place.is_some_and(|place| places.contains(&(key.to_owned(), place.clone())))
}

/// Why a node cannot run a pod.
fn obstacle(pod: &Pod, node: &Node) -> Option<String> {
    let spec = node.spec.as_ref();
    if spec.and_then(|spec| spec.unschedulable) == Some(true) {
        return Some("node(s) were unschedulable".into());
    }
    if !is_ready(node) {
        return Some("node(s) were not ready".into());
    }
    let wanted = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    let labels = node.metadata.labels.as_ref();
    let has = |(key, value): (&String, &String)| labels.and_then(|l| l.get(key)) == Some(value);
    if !wanted.into_iter().flatten().all(has) {
        return Some("node(s) didn't match Pod's node affinity/selector".into());
    }
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
    let tolerations = tolerations.unwrap_or_default();
    let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let binding = taints.iter().filter(|t| ["NoSchedule", "NoExecute"].contains(&&*t.effect));
    let mut untolerated = binding.filter(|taint| !tolerations.iter().any(|t| tolerates(t, taint)));
    untolerated.next().map(|taint| {
        let value = taint.value.as_deref().unwrap_or("");
        format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)
    })
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten().filter(|c| c.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or("");
    let exists = toleration.operator.as_deref() == Some("Exists");
    let effect = toleration.effect.as_deref().unwrap_or("");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || (key.is_empty() && exists))
        && (exists
            || toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `a:ready`, `b:cordoned`, `c:tainted`, `d:down`, with the label disk=ssd on `a`.
    fn nodes(text: &str) -> Vec<Node> {
        let read = |word: &str| {
            let (name, state) = word.split_once(':').unwrap();
            let labels = if name == "a" { json!({"disk": "ssd"}) } else { json!({}) };
            let taints = match state {
                "tainted" => json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]),
                _ => json!([]),
            };
            serde_json::from_value(json!({
                "metadata": {"name": name, "labels": labels},
                "spec": {"unschedulable": state == "cordoned", "taints": taints},
                "status": {"conditions": [
                    {"type": "Ready", "status": if state == "down" { "Unknown" } else { "True" }}]},
            }))
            .unwrap()
        };
        text.split_whitespace().map(read).collect()
    }

    #[test]
    fn pods_go_where_they_can() {
        let tolerant = json!({"tolerations": [{"key": "k", "operator": "Exists"}]});
        let cases = [
            ("the emptiest node", json!({}), "a:ready b:ready", "b"),
            ("by label", json!({"nodeSelector": {"disk": "ssd"}}), "a:ready b:ready", "a"),
            ("a tolerated taint", tolerant, "c:tainted", "c"),
            ("no node", json!({}), "", "no nodes available to schedule pods"),
            (
                "no fitting node",
                json!({}),
                "b:cordoned c:tainted d:down e:down",
                "0/4 nodes are available: 1 node(s) had untolerated taint {k: v}, 2 node(s) were not \
                 ready, 1 node(s) were unschedulable.",
            ),
        ];
        let pods_on = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        for (name, mut spec, given, want) in cases {
            spec["containers"] = json!([]);
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let nodes = nodes(given);
            let nodes: Vec<_> = nodes.iter().collect();
            let placed = place(&pod, &nodes, &pods_on, Vec::new);
            assert_eq!(placed.map_or_else(|why| why, str::to_owned), want, "{name}");
        }
    }

    #[test]
    fn pods_that_want_to_be_apart() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "labels": {"app": "x"}},
            "spec": {"containers": [], "affinity": {"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "host"}]}}}}))
        .unwrap();
        let node = |name: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"host": name}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
            .unwrap()
        };
        let nodes = [node("a"), node("b")];
        let nodes: Vec<_> = nodes.iter().collect();
        let other = |namespace: &str, app: &str| -> Backend {
            serde_json::from_value(json!({
                "metadata": {"namespace": namespace, "labels": {"app": app}}}))
            .unwrap()
        };
        let (same, stranger, elsewhere) = (other("ns", "x"), other("ns", "y"), other("n2", "x"));
        let none = "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.";
        let cases = [
            ("alone", vec![], "a"),
            ("one there", vec![(&same, "a")], "b"),
            ("no room", vec![(&same, "a"), (&same, "b")], none),
            ("another app", vec![(&stranger, "a")], "a"),
            ("another namespace", vec![(&elsewhere, "a")], "a"),
        ];
        for (name, placed, want) in cases {
            let got = place(&pod, &nodes, &BTreeMap::new(), || placed);
            assert_eq!(got.map_or_else(|why| why, str::to_owned), want, "{name}");
        }
    }
}
