//! Pod: processes that share an address.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::age::age_of;
use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, age_cell, name_cell, or_none};
use crate::kinds::pod_spec;
use crate::look::{Look, child, default_to};

pub struct Pod;

static INFO: Info = Info {
    short_names: &["po"],
    categories: &["all"],
    status: true,
    generation: true,
    delete_returns_object: true,
    ..Info::new("", "v1", "Pod", "pods", "pod")
};

impl Kind for Pod {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        let spec = child(object, "spec");
        pod_spec::default(spec);
        default_to(spec, "enableServiceLinks", true);
    }

    fn prepare_create(&self, object: &mut Value) {
        admit(child(object, "spec"));
        object["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        pod_spec::validate(&object["spec"], "spec", causes);
        if old.is_some_and(|old| frozen(old) != frozen(object)) {
            causes.forbidden(
                "spec",
                "pod updates may not change fields other than \
                 `spec.containers[*].image`,`spec.initContainers[*].image`,\
                 `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                 tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it \
                 was previously negative)",
            );
        }
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                Column::text("Name"),
                Column::text("Ready"),
                Column::text("Status"),
                Column::text("Restarts"),
                Column::text("Age"),
                Column::wide("IP"),
                Column::wide("Node"),
                Column::wide("Nominated Node"),
                Column::wide("Readiness Gates"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let containers = object.list("/spec/containers").len();
        let ready = object.list("/status/containerStatuses").iter();
        let ready = ready.filter(|s| s.flag("/ready") && s.has("/state/running")).count();
        vec![
            name_cell(object),
            json!(format!("{ready}/{containers}")),
            json!(status(object)),
            json!(restarts(object, now)),
            age_cell(object, now),
            or_none(object.text("/status/podIP")),
            or_none(object.text("/spec/nodeName")),
            or_none(object.text("/status/nominatedNodeName")),
            json!("<none>"),
        ]
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("spec.nodeName", "/spec/nodeName"),
            ("spec.restartPolicy", "/spec/restartPolicy"),
            ("spec.schedulerName", "/spec/schedulerName"),
            ("spec.serviceAccountName", "/spec/serviceAccountName"),
            ("spec.hostNetwork", "/spec/hostNetwork"),
            ("status.phase", "/status/phase"),
            ("status.podIP", "/status/podIP"),
            ("status.nominatedNodeName", "/status/nominatedNodeName"),
        ]
    }
}

/// What upstream's admission adds to every new pod: an account, a priority, and five minutes of
/// patience with a node that does not answer.
fn admit(spec: &mut Value) {
    default_to(spec, "serviceAccountName", "default");
    let account = spec["serviceAccountName"].clone();
    default_to(spec, "serviceAccount", account);
    default_to(spec, "priority", 0);
    default_to(spec, "preemptionPolicy", "PreemptLowerPriority");
    let mut tolerations = spec.list("/tolerations").to_vec();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = tolerations.iter().any(|toleration| {
            let own = toleration.text("/key");
            let effect = toleration.text("/effect");
            (own == key || own.is_empty()) && (effect.is_empty() || effect == "NoExecute")
        });
        if !covered {
            tolerations.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 300}));
        }
    }
    spec["tolerations"] = tolerations.into();
}

/// What of a pod's spec can never change: all but images, tolerations, deadline and node.
fn frozen(pod: &Value) -> Value {
    let mut spec = pod["spec"].clone();
    if let Value::Object(fields) = &mut spec {
        for free in
            ["activeDeadlineSeconds", "tolerations", "nodeName", "terminationGracePeriodSeconds"]
        {
            fields.remove(free);
        }
        for list in ["containers", "initContainers"] {
            let containers = fields.get_mut(list).and_then(Value::as_array_mut);
            containers.into_iter().flatten().for_each(|container| container["image"] = Value::Null);
        }
    }
    spec
}

/// The one word for how a pod is: a container's trouble says more than the phase.
fn status(pod: &Value) -> String {
    if pod.has("/metadata/deletionTimestamp") {
        return "Terminating".into();
    }
    let reason = pod.text("/status/reason");
    let mut word = if reason.is_empty() { pod.text("/status/phase") } else { reason }.to_owned();
    let mut running = false;
    for container in pod.list("/status/containerStatuses").iter().rev() {
        let state = &container["state"];
        if !state.text("/waiting/reason").is_empty() {
            word = state.text("/waiting/reason").into();
        } else if !state.text("/terminated/reason").is_empty() {
            word = state.text("/terminated/reason").into();
        } else if state.has("/terminated") {
            word = match state.int("/terminated/signal") {
                0 => format!("ExitCode:{}", state.int("/terminated/exitCode")),
                signal => format!("Signal:{signal}"),
            };
        } else if container.flag("/ready") && state.has("/running") {
            running = true;
        }
    }
    if word == "Completed" && running {
        let ready = pod.list("/status/conditions").iter();
        let ready = ready.filter(|c| c["type"] == "Ready").any(|c| c["status"] == "True");
        word = if ready { "Running" } else { "NotReady" }.into();
    }
    word
}

/// `0`, or `3 (2m ago)`.
fn restarts(pod: &Value, now: Timestamp) -> String {
    let containers = pod.list("/status/containerStatuses");
    let count: i64 = containers.iter().map(|c| c.int("/restartCount")).sum();
    let last = containers.iter().map(|c| c.text("/lastState/terminated/finishedAt")).max();
    match last {
        Some(last) if count > 0 && !last.is_empty() => {
            format!("{count} ({} ago)", age_of(last, now))
        }
        _ => count.to_string(),
    }
}
