//! Node: a machine that runs pods.

use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::Value;

use crate::kind::{Info, Kind};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

pub(super) struct Node;

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

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                NAME,
                (Column::text("Status"), Cell::Made(status)),
                (Column::text("Roles"), Cell::MadeOrNone(roles)),
                AGE,
                (Column::text("Version"), Cell::Value("/status/nodeInfo/kubeletVersion")),
                (Column::wide("Internal-IP"), Cell::MadeOrNone(|node| address(node, "InternalIP"))),
                (Column::wide("External-IP"), Cell::MadeOrNone(|node| address(node, "ExternalIP"))),
                (Column::wide("OS-Image"), Cell::Value("/status/nodeInfo/osImage")),
                (Column::wide("Kernel-Version"), Cell::Value("/status/nodeInfo/kernelVersion")),
                (
                    Column::wide("Container-Runtime"),
                    Cell::Value("/status/nodeInfo/containerRuntimeVersion"),
                ),
            ]
        }
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
