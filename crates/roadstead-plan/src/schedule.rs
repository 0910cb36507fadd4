//! Which node a pod runs on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};

/// Picks the node with the fewest pods among those that can run this one, or says why none can.
pub fn place<'a>(
    pod: &Pod,
    nodes: &[&'a Node],
    pods_on: &BTreeMap<String, usize>,
) -> Result<&'a str, String> {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<(usize, &str)> = None;
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or("");
        match obstacle(pod, node) {
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
            let placed = place(&pod, &nodes.iter().collect::<Vec<_>>(), &pods_on);
            assert_eq!(placed.map_or_else(|why| why, str::to_owned), want, "{name}");
        }
    }
}
