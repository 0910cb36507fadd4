//! DaemonSet: a pod on every node.

use roadstead_schema::json::{child, default_to};
use serde_json::Value;

use crate::kinds::plain::{PlainKind, namespaced};
use crate::kinds::workload::{CONTAINERS, IMAGES, SELECTOR, workload};
use crate::table::{AGE, Cell, Column, NAME};

pub(super) static KIND: PlainKind = workload(
    namespaced("apps", "DaemonSet", "daemonsets", "daemonset")
        .short(&["ds"])
        .with_status()
        .in_all(),
    &[
        NAME,
        (Column::int("Desired"), Cell::Int("/status/desiredNumberScheduled")),
        (Column::int("Current"), Cell::Int("/status/currentNumberScheduled")),
        (Column::int("Ready"), Cell::Int("/status/numberReady")),
        (Column::int("Up-to-date"), Cell::Int("/status/updatedNumberScheduled")),
        (Column::int("Available"), Cell::Int("/status/numberAvailable")),
        (Column::text("Node Selector"), Cell::Labels("/spec/template/spec/nodeSelector")),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    default,
);

fn default(object: &mut Value) {
    let spec = child(object, "spec");
    default_to(spec, "revisionHistoryLimit", 10);
    let strategy = child(spec, "updateStrategy");
    default_to(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = child(strategy, "rollingUpdate");
        default_to(rolling, "maxUnavailable", 1);
        default_to(rolling, "maxSurge", 0);
    }
}
