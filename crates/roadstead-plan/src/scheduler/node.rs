//! A node as the scheduler sees it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use roadstead_api::node_affinity::NodeTraits;
use roadstead_api::selector::Labels;

use super::room::Room;
use crate::node_lifecycle::{NOT_READY, UNREACHABLE};

/// What pods look at before they go to a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeState {
    pub name: String,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub is_unschedulable: bool,
    pub room: Room,
    /// The images it has, with their sizes.
    pub images: BTreeMap<String, u64>,
}

impl NodeState {
    pub(super) fn of(node: &Node) -> Self {
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        let images = status.and_then(|status| status.images.as_ref()).into_iter().flatten();
        let images = images.flat_map(|image| {
            let size = u64::try_from(image.size_bytes.unwrap_or(0)).unwrap_or(0);
            image.names.iter().flatten().map(move |name| (full_name(name), size))
        });
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: taints(node),
            is_unschedulable: spec.and_then(|spec| spec.unschedulable) == Some(true),
            room: Room::of(node),
            images: images.collect(),
        }
    }

    pub(super) fn traits(&self) -> NodeTraits<'_> {
        NodeTraits { name: &self.name, labels: Some(&self.labels) }
    }
}

/// The taints of a node, with the one that it gets in a moment if it is not ready.
fn taints(node: &Node) -> Vec<Taint> {
    let mut all = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    let key = match ready.map(|condition| condition.status.as_str()) {
        Some("True") => return all,
        Some("Unknown") => UNREACHABLE,
        _ => NOT_READY,
    };
    if !all.iter().any(|taint| taint.key == key && taint.effect == "NoSchedule") {
        let (key, effect) = (key.to_owned(), "NoSchedule".to_owned());
        all.push(Taint { key, effect, value: None, time_added: None });
    }
    all
}

/// An image's name with its tag.
pub(super) fn full_name(image: &str) -> String {
    let tag = image.rfind(':').unwrap_or(0) > image.rfind('/').unwrap_or(0);
    if tag || image.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}
