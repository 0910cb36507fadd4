//! Workloads besides Deployments and pods: everything that has a pod template and whose controller
//! lives elsewhere.

use serde_json::{Value, json};

use crate::kind::{Column, Info};
use crate::kinds::cells;
use crate::kinds::stored::{AGE, Cell, NAME, Stored, namespaced, shown};
use crate::look::{Look, child, children, default_blank, default_to};

const TEMPLATE: &str = "/spec/template";
const JOB_TEMPLATE: &str = "/spec/jobTemplate/spec/template";
const CONTAINERS: Column = Column::wide("Containers");
const IMAGES: Column = Column::wide("Images");
const SELECTOR: Column = Column::wide("Selector");
const CONTAINERS_CELL: Cell = Cell::Made(|object| cells::containers(object, TEMPLATE, "name"));
const IMAGES_CELL: Cell = Cell::Made(|object| cells::containers(object, TEMPLATE, "image"));

const fn workload(
    info: Info,
    columns: &'static [Column],
    cells: &'static [Cell],
    default: fn(&mut Value),
) -> Stored {
    Stored { template: TEMPLATE, default, ..shown(info, columns, cells) }
}

/// All of them.
pub static ALL: [Stored; 5] = [
    Stored {
        selectable: &[("status.replicas", "/status/replicas")],
        ..workload(
            namespaced(
                "",
                "ReplicationController",
                "replicationcontrollers",
                "replicationcontroller",
            )
            .short(&["rc"])
            .with_status()
            .with_scale()
            .in_all(),
            &[
                NAME,
                Column::int("Desired"),
                Column::int("Current"),
                Column::int("Ready"),
                AGE,
                CONTAINERS,
                IMAGES,
                SELECTOR,
            ],
            &[
                Cell::Name,
                Cell::Int("/spec/replicas"),
                Cell::Int("/status/replicas"),
                Cell::Int("/status/readyReplicas"),
                Cell::Age,
                CONTAINERS_CELL,
                IMAGES_CELL,
                Cell::Labels("/spec/selector"),
            ],
            default_replication_controller,
        )
    },
    workload(
        namespaced("apps", "StatefulSet", "statefulsets", "statefulset")
            .short(&["sts"])
            .with_status()
            .with_scale()
            .in_all(),
        &[NAME, Column::text("Ready"), AGE, CONTAINERS, IMAGES],
        &[
            Cell::Name,
            Cell::Ratio("/status/readyReplicas", "/spec/replicas"),
            Cell::Age,
            CONTAINERS_CELL,
            IMAGES_CELL,
        ],
        default_stateful_set,
    ),
    workload(
        namespaced("apps", "DaemonSet", "daemonsets", "daemonset")
            .short(&["ds"])
            .with_status()
            .in_all(),
        &[
            NAME,
            Column::int("Desired"),
            Column::int("Current"),
            Column::int("Ready"),
            Column::int("Up-to-date"),
            Column::int("Available"),
            Column::text("Node Selector"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        &[
            Cell::Name,
            Cell::Int("/status/desiredNumberScheduled"),
            Cell::Int("/status/currentNumberScheduled"),
            Cell::Int("/status/numberReady"),
            Cell::Int("/status/updatedNumberScheduled"),
            Cell::Int("/status/numberAvailable"),
            Cell::Labels("/spec/template/spec/nodeSelector"),
            Cell::Age,
            CONTAINERS_CELL,
            IMAGES_CELL,
            Cell::Labels("/spec/selector/matchLabels"),
        ],
        default_daemon_set,
    ),
    Stored {
        create: select_own_pods,
        selectable: &[("status.successful", "/status/succeeded")],
        ..workload(
            namespaced("batch", "Job", "jobs", "job").with_status().in_all(),
            &[
                NAME,
                Column::text("Status"),
                Column::text("Completions"),
                Column::text("Duration"),
                AGE,
                CONTAINERS,
                IMAGES,
                SELECTOR,
            ],
            &[
                Cell::Name,
                Cell::Made(cells::job_status),
                Cell::Made(cells::completions),
                Cell::Timed(cells::duration),
                Cell::Age,
                CONTAINERS_CELL,
                IMAGES_CELL,
                Cell::Labels("/spec/selector/matchLabels"),
            ],
            default_job,
        )
    },
    Stored {
        template: JOB_TEMPLATE,
        ..workload(
            namespaced("batch", "CronJob", "cronjobs", "cronjob")
                .short(&["cj"])
                .with_status()
                .in_all(),
            &[
                NAME,
                Column::text("Schedule"),
                Column::text("Timezone"),
                Column::text("Suspend"),
                Column::int("Active"),
                Column::text("Last Schedule"),
                AGE,
                CONTAINERS,
                IMAGES,
                SELECTOR,
            ],
            &[
                Cell::Name,
                Cell::Text("/spec/schedule"),
                Cell::Text("/spec/timeZone"),
                Cell::Made(|job| if job.flag("/spec/suspend") { "True" } else { "False" }.into()),
                Cell::Count("/status/active"),
                Cell::Timed(cells::last_schedule),
                Cell::Age,
                Cell::Made(|job| cells::containers(job, JOB_TEMPLATE, "name")),
                Cell::Made(|job| cells::containers(job, JOB_TEMPLATE, "image")),
                Cell::Labels("/spec/jobTemplate/spec/selector/matchLabels"),
            ],
            default_cron_job,
        )
    },
];

fn default_replication_controller(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    let spec = child(object, "spec");
    default_to(spec, "replicas", 1);
    if labels.is_object() {
        default_to(spec, "selector", labels.clone());
        // It is labelled as its pods are, unless its author says otherwise.
        default_to(child(object, "metadata"), "labels", labels);
    }
}

fn default_stateful_set(object: &mut Value) {
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

fn default_daemon_set(object: &mut Value) {
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

fn default_job(job: &mut Value) {
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

fn default_cron_job(object: &mut Value) {
    let spec = child(object, "spec");
    default_to(spec, "concurrencyPolicy", "Allow");
    default_to(spec, "suspend", false);
    default_to(spec, "successfulJobsHistoryLimit", 3);
    default_to(spec, "failedJobsHistoryLimit", 1);
}

#[test]
fn what_is_left_out_is_filled_in() {
    use crate::kind::Kind;
    let of = |name: &str, mut object: Value| {
        let kind = ALL.iter().find(|kind| kind.info().kind == name).unwrap();
        kind.default(&mut object);
        object["spec"].take()
    };
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}});
    let spec = of("ReplicationController", json!({"spec": {"template": template}}));
    assert_eq!((&spec["replicas"], &spec["selector"]), (&json!(1), &json!({"a": "b"})));
    assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
    let spec = of("StatefulSet", json!({"spec": {}}));
    assert_eq!(
        spec["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    );
    let spec = of("Job", json!({"spec": {"parallelism": 3}}));
    assert_eq!((&spec["completions"], &spec["parallelism"]), (&Value::Null, &json!(3)));
    assert_eq!(of("Job", json!({}))["completions"], 1);
    let mut job = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {}}});
    select_own_pods(&mut job);
    assert_eq!(job["spec"]["template"]["metadata"]["labels"]["job-name"], "j");
}
