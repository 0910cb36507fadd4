//! ReplicaSet: a number of pods that are alike.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, age_cell, name_cell};
use crate::kinds::{deployment, pod_spec};
use crate::look::{Look, child, default_to};

pub struct ReplicaSet;

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
        deployment::validate_workload(object, old, causes);
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                Column::text("Name"),
                Column::int("Desired"),
                Column::int("Current"),
                Column::int("Ready"),
                Column::text("Age"),
                Column::wide("Containers"),
                Column::wide("Images"),
                Column::wide("Selector"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [containers, images] = pod_spec::containers_and_images(object);
        vec![
            name_cell(object),
            json!(object.int("/spec/replicas")),
            json!(object.int("/status/replicas")),
            json!(object.int("/status/readyReplicas")),
            age_cell(object, now),
            containers,
            images,
            deployment::selector_cell(object),
        ]
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("status.replicas", "/status/replicas")]
    }
}
