//! StatefulSet: pods with names and volumes of their own.

use roadstead_schema::json::{Pointer, child, children, default_to};
use serde_json::Value;

use crate::kinds::plain::{PlainKind, namespaced};
use crate::kinds::workload::{CONTAINERS, IMAGES, workload};
use crate::table::{AGE, Cell, Column, NAME};

pub(super) static KIND: PlainKind = workload(
    namespaced("apps", "StatefulSet", "statefulsets", "statefulset")
        .short(&["sts"])
        .with_status()
        .with_scale()
        .in_all(),
    &[
        NAME,
        (Column::text("Ready"), Cell::Ratio("/status/readyReplicas", "/spec/replicas")),
        AGE,
        CONTAINERS,
        IMAGES,
    ],
    default,
);

fn default(object: &mut Value) {
    let spec = child(object, "spec");
    default_to(spec, "replicas", 1);
    default_to(spec, "revisionHistoryLimit", 10);
    default_to(spec, "podManagementPolicy", "OrderedReady");
    let strategy = child(spec, "updateStrategy");
    if strategy.text("/type").is_empty() {
        strategy["type"] = "RollingUpdate".into();
        child(strategy, "rollingUpdate");
    }
    if strategy["type"] == "RollingUpdate" && strategy.has("/rollingUpdate") {
        default_to(child(strategy, "rollingUpdate"), "partition", 0);
        default_to(child(strategy, "rollingUpdate"), "maxUnavailable", 1);
    }
    for claim in children(spec, "volumeClaimTemplates") {
        default_to(claim, "apiVersion", "v1");
        default_to(claim, "kind", "PersistentVolumeClaim");
        default_to(child(claim, "spec"), "volumeMode", "Filesystem");
        default_to(child(claim, "status"), "phase", "Pending");
    }
    let retention = child(spec, "persistentVolumeClaimRetentionPolicy");
    default_to(retention, "whenDeleted", "Retain");
    default_to(retention, "whenScaled", "Retain");
}
