//! Deployment: pods that are alike, and how to replace them by others.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, age_cell, labels_cell, name_cell};
use crate::kinds::pod_spec;
use crate::look::{Look, child, default_to};
use crate::metadata;
use crate::selector::Selector;

pub struct Deployment;

static INFO: Info = Info {
    short_names: &["deploy"],
    categories: &["all"],
    status: true,
    scale: true,
    generation: true,
    // They are copied to ReplicaSets.
    counted: &["annotations"],
    status_keeps: &["labels"],
    ..Info::new("apps", "v1", "Deployment", "deployments", "deployment")
};

impl Kind for Deployment {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        let spec = child(object, "spec");
        default_to(spec, "replicas", 1);
        default_to(spec, "revisionHistoryLimit", 10);
        default_to(spec, "progressDeadlineSeconds", 600);
        let strategy = child(spec, "strategy");
        default_to(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = child(strategy, "rollingUpdate");
            default_to(rolling, "maxSurge", "25%");
            default_to(rolling, "maxUnavailable", "25%");
        }
        pod_spec::default(child(child(spec, "template"), "spec"));
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        validate_workload(object, old, causes);
        let strategy = &object["spec"]["strategy"]["type"];
        if !["RollingUpdate", "Recreate"].contains(&strategy.as_str().unwrap_or("")) {
            let supported = ["Recreate", "RollingUpdate"];
            causes.unsupported("spec.strategy.type", strategy, &supported);
        }
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                Column::text("Name"),
                Column::text("Ready"),
                Column::text("Up-to-date"),
                Column::text("Available"),
                Column::text("Age"),
                Column::wide("Containers"),
                Column::wide("Images"),
                Column::wide("Selector"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [containers, images] = pod_spec::containers_and_images(object);
        let (ready, wanted) = (object.int("/status/readyReplicas"), object.int("/spec/replicas"));
        vec![
            name_cell(object),
            json!(format!("{ready}/{wanted}")),
            json!(object.int("/status/updatedReplicas")),
            json!(object.int("/status/availableReplicas")),
            age_cell(object, now),
            containers,
            images,
            selector_cell(object),
        ]
    }
}

/// The rules that Deployments and ReplicaSets share.
pub fn validate_workload(object: &Value, old: Option<&Value>, causes: &mut Causes) {
    let replicas = object.int("/spec/replicas");
    if replicas < 0 {
        let detail = "must be greater than or equal to 0";
        causes.invalid("spec.replicas", &json!(replicas), detail);
    }
    let selector = &object["spec"]["selector"];
    if !selector.is_object() {
        causes.required("spec.selector", "");
    } else if selector.fields("/matchLabels").count() + selector.list("/matchExpressions").len()
        == 0
    {
        causes.invalid("spec.selector", selector, "empty selector is invalid for deployment");
    }
    metadata::labels(selector.get("matchLabels"), "spec.selector.matchLabels", causes);
    if old.is_some_and(|old| old["spec"]["selector"] != *selector) {
        causes.invalid("spec.selector", selector, "field is immutable");
    }
    let labels = &object["spec"]["template"]["metadata"]["labels"];
    metadata::labels(Some(labels), "spec.template.metadata.labels", causes);
    let typed = LabelSelector::deserialize(selector).unwrap_or_default();
    if selector.is_object() && !Selector::from_object(&typed).matches(|key| labels[key].as_str()) {
        let detail = "`selector` does not match template `labels`";
        causes.invalid("spec.template.metadata.labels", labels, detail);
    }
    pod_spec::validate(&object["spec"]["template"]["spec"], "spec.template.spec", causes);
    if object.text("/spec/template/spec/restartPolicy") != "Always" {
        let policy = &object["spec"]["template"]["spec"]["restartPolicy"];
        causes.unsupported("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
}

pub fn selector_cell(object: &Value) -> Value {
    labels_cell(object, "/spec/selector/matchLabels")
}
