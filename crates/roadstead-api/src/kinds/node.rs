//! Node: a machine that runs pods.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::{Column, Info, Kind, age_cell, name_cell, or_none};
use crate::look::{Look, child, default_to};

pub struct Node;

static INFO: Info = Info {
    short_names: &["no"],
    namespaced: false,
    status: true,
    // A node says of itself what it is.
    status_on_create: true,
    ..Info::new("", "v1", "Node", "nodes", "node")
};

impl Kind for Node {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        if let Some(capacity) = object.pointer("/status/capacity").cloned() {
            default_to(child(object, "status"), "allocatable", capacity);
        }
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                Column::text("Name"),
                Column::text("Status"),
                Column::text("Roles"),
                Column::text("Age"),
                Column::text("Version"),
                Column::wide("Internal-IP"),
                Column::wide("External-IP"),
                Column::wide("OS-Image"),
                Column::wide("Kernel-Version"),
                Column::wide("Container-Runtime"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let facts = |name| object["status"]["nodeInfo"][name].clone();
        vec![
            name_cell(object),
            json!(status(object)),
            or_none(roles(object)),
            age_cell(object, now),
            facts("kubeletVersion"),
            or_none(address(object, "InternalIP")),
            or_none(address(object, "ExternalIP")),
            facts("osImage"),
            facts("kernelVersion"),
            facts("containerRuntimeVersion"),
        ]
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("spec.unschedulable", "/spec/unschedulable")]
    }
}

fn status(node: &Value) -> String {
    let ready = node.list("/status/conditions").iter().find(|c| c["type"] == "Ready");
    let mut text = match ready.map(|condition| condition.text("/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.flag("/spec/unschedulable") {
        text.push_str(",SchedulingDisabled");
    }
    text
}

fn roles(node: &Value) -> String {
    let labels = node.fields("/metadata/labels");
    let roles = labels.filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"));
    roles.collect::<Vec<_>>().join(",")
}

fn address(node: &Value, wanted: &str) -> String {
    let addresses = node.list("/status/addresses").iter();
    addresses
        .filter(|a| a["type"] == wanted)
        .map(|a| a.text("/address"))
        .next()
        .unwrap_or("")
        .into()
}
