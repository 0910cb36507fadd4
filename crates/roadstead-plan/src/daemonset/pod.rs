//! One pod of a DaemonSet: aimed at its node, and hard to drive away.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};

use crate::pods::from_template;
use crate::revisions::POD_REVISION;

/// What the pods of a DaemonSet bear although nobody says so, with its effect.
const BORNE: [(&str, &str); 6] = [
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
];

/// What a pod would be like, without its node.
pub(super) fn spec(set: &DaemonSet) -> PodSpec {
    let mut spec = set.spec.template.spec.clone().unwrap_or_default();
    let network = ("network-unavailable", "NoSchedule");
    let network = Some(network).filter(|_| spec.host_network == Some(true));
    let tolerations = spec.tolerations.get_or_insert_default();
    for (condition, effect) in BORNE.into_iter().chain(network) {
        let toleration = Toleration {
            key: Some(format!("node.kubernetes.io/{condition}")),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    spec
}

/// The pod for a node.
pub(super) fn pod(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let mut pod = from_template(set, Some(&set.spec.template));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_REVISION.to_owned(), hash.to_owned());
    let generation = set.metadata.generation.unwrap_or(1);
    labels.insert("pod-template-generation".to_owned(), generation.to_string());
    let mut spec = spec(set);
    aim(&mut spec, node);
    pod.spec = Some(spec);
    pod
}

/// Lets the scheduler choose this node and no other: in every term, as they are alternatives.
fn aim(spec: &mut PodSpec, node: &str) {
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields = Some(vec![by_name.clone()]);
    }
}
