//! ReplicaSet: a number of pods that are alike.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{child, default_to};
use serde_json::{Value, json};

use crate::kind::{Info, Kind};
use crate::kinds::workload::{CONTAINERS, IMAGES, SELECTOR};
use crate::kinds::{pod_spec, workload};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

pub(super) struct ReplicaSet;

static INFO: Info = Info {
    short_names: &["rs"],
    categories: &["all"],
    status: true,
    scale: true,
    generation: true,
    ..Info::new("apps", "v1", "ReplicaSet", "replicasets", "replicaset")
};

impl Kind for ReplicaSet {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        let spec = child(object, "spec");
        default_to(spec, "replicas", 1);
        pod_spec::default(child(child(spec, "template"), "spec"));
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({"replicas": 0});
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        workload::validate(object, old, causes);
    }

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                NAME,
                (Column::int("Desired"), Cell::Int("/spec/replicas")),
                (Column::int("Current"), Cell::Int("/status/replicas")),
                (Column::int("Ready"), Cell::Int("/status/readyReplicas")),
                AGE,
                CONTAINERS,
                IMAGES,
                SELECTOR,
            ]
        }
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("status.replicas", "/status/replicas")]
    }
}
