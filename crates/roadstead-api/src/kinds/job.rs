//! Job: pods that end.

use roadstead_schema::json::{Pointer, child, children, default_blank, default_to};
use serde_json::{Value, json};

use crate::kinds::cells;
use crate::kinds::plain::{PlainKind, namespaced};
use crate::kinds::workload::{CONTAINERS, IMAGES, SELECTOR, check_ends, workload};
use crate::table::{AGE, Cell, Column, NAME};

pub(super) static KIND: PlainKind = PlainKind {
    create: select_own_pods,
    check: |job, old, causes| {
        if old.is_none() {
            check_ends(&job["spec"]["template"]["spec"], "spec.template.spec", causes);
        }
    },
    selectable: &[("status.successful", "/status/succeeded")],
    ..workload(
        namespaced("batch", "Job", "jobs", "job").with_status().in_all(),
        &[
            NAME,
            (Column::text("Status"), Cell::Made(cells::job_status)),
            (Column::text("Completions"), Cell::Made(cells::completions)),
            (Column::text("Duration"), Cell::Timed(cells::duration)),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        default,
    )
};

fn default(job: &mut Value) {
    let labels = job.pointer("/spec/template/metadata/labels").cloned();
    if let Some(labels) = labels.filter(|_| job.fields("/metadata/labels").next().is_none()) {
        child(job, "metadata")["labels"] = labels;
    }
    let spec = child(job, "spec");
    // A Job that says nothing is one pod; one that says only how many at once is a work queue.
    if !spec.has("/completions") && !spec.has("/parallelism") {
        spec["completions"] = 1.into();
    }
    default_to(spec, "parallelism", 1);
    let limit = if spec.has("/backoffLimitPerIndex") { i32::MAX } else { 6 };
    default_to(spec, "backoffLimit", limit);
    default_to(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    default_to(spec, "manualSelector", false);
    let replaced = if spec.has("/podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    default_to(spec, "podReplacementPolicy", replaced);
    if let Some(policy) = spec.get_mut("podFailurePolicy") {
        for rule in children(policy, "rules") {
            for condition in children(rule, "onPodConditions") {
                default_blank(condition, "status", "True");
            }
        }
    }
}

/// A Job selects the pods that carry its uid, and gives them that label.
fn select_own_pods(job: &mut Value) {
    if job.flag("/spec/manualSelector") {
        return;
    }
    let (uid, name) = (job["metadata"]["uid"].clone(), job["metadata"]["name"].clone());
    let spec = child(job, "spec");
    spec["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    for (label, value) in [("controller-uid", uid), ("job-name", name)] {
        labels[format!("batch.kubernetes.io/{label}")] = value.clone();
        labels[label] = value;
    }
}
