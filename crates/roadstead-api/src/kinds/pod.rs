//! Pod: processes that share an address.

mod resize;

use jiff::Timestamp;
use roadstead_schema::age::age_of;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_blank, default_to};
use serde_json::{Value, json};

use crate::kind::{Info, Kind};
use crate::kinds::pod_spec;
use crate::quantity;
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

/// The subresource by which containers get more, or less, of the machine.
pub const RESIZE: &str = "resize";

pub(super) struct Pod;

static INFO: Info = Info {
    short_names: &["po"],
    categories: &["all"],
    status: true,
    generation: true,
    // Old node agents lose half of each, and then the garbage collector takes the pod.
    status_keeps: &["ownerReferences"],
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
        pod_spec::default_pod(spec);
        if let Some(status) = object.get_mut("status") {
            agree_on_addresses(status);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({"phase": "Pending", "qosClass": service_class(object)});
    }

    fn prepare_update(&self, old: &Value, new: &mut Value) {
        let spec = child(new, "spec");
        for field in ["priority", "preemptionPolicy"] {
            if let Some(value) = old["spec"].get(field) {
                default_to(spec, field, value.clone());
            }
        }
    }

    fn prepare_status(&self, old: &Value, new: &mut Value) {
        // It was decided when the pod was made.
        if let Some(class) = old.pointer("/status/qosClass") {
            default_blank(child(new, "status"), "qosClass", class.clone());
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        pod_spec::validate(&object["spec"], "spec", causes);
        let Some(old) = old else {
            if !object.list("/spec/ephemeralContainers").is_empty() {
                let why = "cannot be set on create";
                causes.forbidden("spec.ephemeralContainers", why);
            }
            return;
        };
        validate_changes(old, object, causes);
        // What was stored before we knew all defaults is not changed by them.
        let mut known = old.clone();
        self.default(&mut known);
        if frozen(&known) != frozen(object) {
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

    fn merge_subresource(&self, _: &str, given: &Value, new: &mut Value) {
        resize::merge(given, new);
    }

    fn validate_subresource(&self, name: &str, object: &Value, old: &Value, causes: &mut Causes) {
        match name {
            RESIZE => {
                pod_spec::validate(&object["spec"], "spec", causes);
                resize::validate(old, object, causes);
            }
            _ => validate_ephemeral_containers(old, object, causes),
        }
    }

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                NAME,
                (Column::text("Ready"), Cell::Made(ready)),
                (Column::text("Status"), Cell::Made(status)),
                (Column::text("Restarts"), Cell::Timed(restarts)),
                AGE,
                (Column::wide("IP"), Cell::Text("/status/podIP")),
                (Column::wide("Node"), Cell::Text("/spec/nodeName")),
                (Column::wide("Nominated Node"), Cell::Text("/status/nominatedNodeName")),
                (Column::wide("Readiness Gates"), Cell::Made(|_| "<none>".into())),
            ]
        }
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

/// `1/2`: how many containers are ready, and how many there are.
fn ready(pod: &Value) -> String {
    let ready = lasting_statuses(pod);
    let ready = ready.filter(|s| s.flag("/ready") && s.has("/state/running")).count();
    let sidecars = pod.list("/spec/initContainers").iter().filter(|own| is_sidecar(own)).count();
    format!("{ready}/{}", pod.list("/spec/containers").len() + sidecars)
}

/// One address and many say the same; where they do not, old node agents meant the one.
fn agree_on_addresses(status: &mut Value) {
    let one = status.text("/podIP").to_owned();
    let first = status.text("/podIPs/0/ip").to_owned();
    if one.is_empty() && !first.is_empty() {
        status["podIP"] = first.into();
    } else if one != first {
        status["podIPs"] = json!([{"ip": one}]);
    }
}

/// What a new list of ephemeral containers may do: add to the old one. Nothing else changes.
fn validate_ephemeral_containers(old: &Value, new: &Value, causes: &mut Causes) {
    pod_spec::validate(&new["spec"], "spec", causes);
    let field = "spec.ephemeralContainers";
    if old["metadata"]["annotations"].get("kubernetes.io/config.mirror").is_some() {
        causes.0.clear();
        causes.forbidden("", "static pods do not support ephemeral containers");
        return;
    }
    let list = |pod: &'_ Value| pod.list("/spec/ephemeralContainers").to_vec();
    for before in list(old) {
        let name = before.text("/name");
        let after = list(new).into_iter().find(|own| own.text("/name") == name);
        let why = match after {
            None => "removed",
            Some(after) if after != before => "changed",
            Some(_) => continue,
        };
        let detail = format!("existing ephemeral containers {name:?} may not be {why}\n");
        causes.forbidden(field, &detail);
    }
}

/// Pods that name no account have the one that every namespace has.
pub fn give_account(spec: &mut Value) {
    if spec.text("/serviceAccount").is_empty() {
        default_blank(spec, "serviceAccountName", "default");
    }
}

/// Pods have five minutes of patience with a node that does not answer, unless they say otherwise.
pub fn tolerate_lost_nodes(spec: &mut Value) {
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

/// How well a pod says what it needs: who is sacrificed first when a node has too little.
pub fn service_class(pod: &Value) -> &'static str {
    let all = pod.list("/spec/containers").iter().chain(pod.list("/spec/initContainers"));
    let all: Vec<_> = all.collect();
    let amount = |container: &Value, place: &str| {
        quantity::read(container.text(&format!("/resources/{place}"))).filter(|found| *found != 0.0)
    };
    let kinds = ["cpu", "memory"];
    let asks = |container: &&Value| {
        kinds.iter().any(|kind| {
            let place = |list: &str| amount(container, &format!("{list}/{kind}"));
            place("requests").or_else(|| place("limits")).is_some()
        })
    };
    let certain = |container: &&Value| {
        kinds.iter().all(|kind| {
            let limit = amount(container, &format!("limits/{kind}"));
            // Who asks for nothing asks for as much as is allowed.
            let request = amount(container, &format!("requests/{kind}")).or(limit);
            limit.is_some() && request == limit
        })
    };
    match (all.iter().any(asks), all.iter().all(certain)) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Checks the few fields that may change, but not as one likes.
fn validate_changes(old: &Value, new: &Value, causes: &mut Causes) {
    let deadline = |pod: &Value| pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64);
    match (deadline(old), deadline(new)) {
        (Some(_), None) => causes.invalid(
            "spec.activeDeadlineSeconds",
            &Value::Null,
            "must not update from a positive integer to nil value",
        ),
        (Some(old), Some(new)) if new > old => causes.invalid(
            "spec.activeDeadlineSeconds",
            &json!(new),
            "must be less than or equal to previous value",
        ),
        _ => {}
    }
    let lasting = |toleration: &Value| {
        let mut lasting = toleration.clone();
        lasting.as_object_mut().map(|fields| fields.remove("tolerationSeconds"));
        lasting
    };
    let kept: Vec<_> = new.list("/spec/tolerations").iter().map(lasting).collect();
    if !old.list("/spec/tolerations").iter().map(lasting).all(|own| kept.contains(&own)) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        causes.forbidden("spec.tolerations", detail);
    }
    let known = old.list("/spec/schedulingGates");
    for gate in new.list("/spec/schedulingGates").iter().filter(|gate| !known.contains(gate)) {
        let name = gate.text("/name");
        let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
        causes.forbidden("spec.schedulingGates", &detail);
    }
}

/// What of a pod's spec can never change: all but images, tolerations, gates and the deadline. A grace
/// period that makes no sense may be made to.
fn frozen(pod: &Value) -> Value {
    let mut spec = pod["spec"].clone();
    let grace = spec.int("/terminationGracePeriodSeconds");
    if let Value::Object(fields) = &mut spec {
        for free in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
            fields.remove(free);
        }
        if grace < 0 {
            fields.insert("terminationGracePeriodSeconds".into(), 1.into());
        }
        for list in ["containers", "initContainers"] {
            let containers = fields.get_mut(list).and_then(Value::as_array_mut);
            containers.into_iter().flatten().for_each(|container| container["image"] = Value::Null);
        }
    }
    spec
}

fn is_sidecar(container: &Value) -> bool {
    container.text("/restartPolicy") == "Always"
}

/// The statuses of the containers that are meant to go on: all but ordinary init containers.
fn lasting_statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let all = pod.list("/spec/initContainers");
    let is_lasting =
        |status: &&Value| all.iter().any(|own| own["name"] == status["name"] && is_sidecar(own));
    let sidecars = pod.list("/status/initContainerStatuses").iter().filter(is_lasting);
    sidecars.chain(pod.list("/status/containerStatuses"))
}

fn has_condition(pod: &Value, condition: &str, field: &str, value: &str) -> bool {
    let mut all = pod.list("/status/conditions").iter();
    all.any(|known| known["type"] == condition && known[field] == value)
}

/// How far a pod is whose first containers have not all done their work.
fn initializing(pod: &Value) -> Option<String> {
    if has_condition(pod, "Initialized", "status", "True") {
        return None;
    }
    let all = pod.list("/spec/initContainers");
    let lasting = |name: &str| all.iter().any(|own| own.text("/name") == name && is_sidecar(own));
    let statuses = pod.list("/status/initContainerStatuses").iter().enumerate();
    let done = |status: &Value| {
        let state = &status["state"];
        (state.has("/terminated") && state.int("/terminated/exitCode") == 0)
            || (lasting(status.text("/name")) && status.flag("/started"))
    };
    let (index, status) = statuses.into_iter().find(|(_, status)| !done(status))?;
    let state = &status["state"];
    let (ended, waits) = (state.text("/terminated/reason"), state.text("/waiting/reason"));
    Some(match (state.has("/terminated"), state.int("/terminated/signal")) {
        (true, _) if !ended.is_empty() => format!("Init:{ended}"),
        (true, 0) => format!("Init:ExitCode:{}", state.int("/terminated/exitCode")),
        (true, signal) => format!("Init:Signal:{signal}"),
        (false, _) if !waits.is_empty() && waits != "PodInitializing" => format!("Init:{waits}"),
        (false, _) => format!("Init:{index}/{}", all.len()),
    })
}

/// The one word for how a pod is: a container's trouble says more than the phase.
fn status(pod: &Value) -> String {
    if pod.has("/metadata/deletionTimestamp") {
        return "Terminating".into();
    }
    let reason = pod.text("/status/reason");
    let mut word = if reason.is_empty() { pod.text("/status/phase") } else { reason }.to_owned();
    if has_condition(pod, "PodScheduled", "reason", "SchedulingGated") {
        word = "SchedulingGated".into();
    }
    if let Some(step) = initializing(pod) {
        return step;
    }
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
        let ready = has_condition(pod, "Ready", "status", "True");
        word = if ready { "Running" } else { "NotReady" }.into();
    }
    word
}

/// `0`, or `3 (2m ago)`.
fn restarts(pod: &Value, now: Timestamp) -> String {
    let containers: Vec<_> = match initializing(pod) {
        Some(_) => pod.list("/status/initContainerStatuses").iter().collect(),
        None => lasting_statuses(pod).collect(),
    };
    let count = containers.iter().map(|c| c.int("/restartCount")).fold(0, i64::saturating_add);
    let last = containers.iter().map(|c| c.text("/lastState/terminated/finishedAt")).max();
    match last {
        Some(last) if count > 0 && !last.is_empty() => {
            format!("{count} ({} ago)", age_of(last, now))
        }
        _ => count.to_string(),
    }
}

#[test]
fn one_address_and_many() {
    let cases = [
        ("", "10.0.0.1 fd::1", "10.0.0.1", "10.0.0.1 fd::1"),
        ("10.0.0.1", "", "10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1 fd::1", "10.0.0.1", "10.0.0.1 fd::1"),
        ("10.0.0.2", "10.0.0.1 fd::1", "10.0.0.2", "10.0.0.2"),
        ("", "", "", ""),
    ];
    for (one, many, want_one, want_many) in cases {
        let many: Vec<_> = many.split_whitespace().map(|ip| json!({"ip": ip})).collect();
        let mut status = json!({"podIP": one, "podIPs": many});
        agree_on_addresses(&mut status);
        let found = status.list("/podIPs").iter().map(|own| own.text("/ip"));
        let found = found.collect::<Vec<_>>().join(" ");
        assert_eq!((status.text("/podIP"), found.as_str()), (want_one, want_many), "{one}");
    }
}

#[test]
fn service_classes() {
    // Requests and limits of each container: `cpu=1,memory=1Gi/cpu=1000m,memory=1Gi`.
    let amounts = |text: &str| -> Value {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        Value::Object(pairs.map(|(name, amount)| (name.to_owned(), json!(amount))).collect())
    };
    let cases = [
        ("/", "BestEffort"),
        ("cpu=0/", "BestEffort"),
        ("cpu=1/", "Burstable"),
        ("/cpu=1", "Burstable"),
        ("/cpu=1,memory=1Gi", "Guaranteed"),
        ("cpu=1,memory=1Gi/cpu=1000m,memory=1024Mi", "Guaranteed"),
        ("cpu=1,memory=1Gi/cpu=2,memory=1Gi", "Burstable"),
        ("/cpu=1,memory=1Gi /", "Burstable"),
    ];
    for (text, want) in cases {
        let containers = text.split(' ').map(|container| {
            let (requests, limits) = container.split_once('/').unwrap();
            json!({"resources": {"requests": amounts(requests), "limits": amounts(limits)}})
        });
        let pod = json!({"spec": {"containers": containers.collect::<Vec<_>>()}});
        assert_eq!(service_class(&pod), want, "{text}");
    }
}

#[test]
fn what_may_change() {
    let pod = |change: Value| {
        let mut pod = json!({"spec": {"containers": [{"name": "c", "image": "a"}],
            "activeDeadlineSeconds": 10, "tolerations": [{"key": "a", "tolerationSeconds": 1}],
            "terminationGracePeriodSeconds": 30}});
        for (field, value) in change.fields("") {
            pod["spec"][field] = value.clone();
        }
        Pod.default(&mut pod);
        pod
    };
    let others = "pod updates may not change fields other than";
    let cases = [
        (json!({}), json!({"containers": [{"name": "c", "image": "b"}]}), ""),
        (json!({}), json!({"nodeName": "n"}), others),
        (json!({}), json!({"terminationGracePeriodSeconds": 1}), others),
        (
            json!({"terminationGracePeriodSeconds": -1}),
            json!({"terminationGracePeriodSeconds": 1}),
            "",
        ),
        (json!({}), json!({"activeDeadlineSeconds": 5}), ""),
        (
            json!({}),
            json!({"activeDeadlineSeconds": 11}),
            "spec.activeDeadlineSeconds: Invalid value: 11: must be less than or equal to previous",
        ),
        (
            json!({}),
            json!({"activeDeadlineSeconds": null}),
            "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive",
        ),
        (
            json!({"schedulingGates": [{"name": "a"}, {"name": "b"}]}),
            json!({"schedulingGates": [{"name": "b"}]}),
            "",
        ),
        (
            json!({}),
            json!({"schedulingGates": [{"name": "a"}]}),
            "spec.schedulingGates: Forbidden: only deletion is allowed, but found new scheduling gate 'a'",
        ),
        (json!({}), json!({"tolerations": [{"key": "b"}, {"key": "a"}]}), ""),
        (
            json!({}),
            json!({"tolerations": [{"key": "b"}]}),
            "spec.tolerations: Forbidden: existing toleration can not be modified",
        ),
    ];
    for (old, new, want) in cases {
        let mut causes = Causes::default();
        Pod.validate(&pod(new.clone()), Some(&pod(old)), &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{new}: {found}");
    }
}

#[test]
fn sidecars_are_containers_too() {
    let state = |name: &str, ready: bool, state: Value, restarts: i64| {
        json!({"name": name, "ready": ready, "started": ready, "restartCount": restarts,
               "state": state})
    };
    let ended =
        |code: i64, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
    let running = json!({"running": {}});
    let done = state("i", true, ended(0, "Completed"), 2);
    for (initialized, sidecar, main, want) in [
        (
            "True",
            state("s", true, running.clone(), 1),
            state("a", true, running.clone(), 1),
            "2/2 Running 2",
        ),
        (
            "True",
            state("s", false, ended(143, "Error"), 1),
            state("a", false, ended(0, "Completed"), 0),
            "0/2 Completed 1",
        ),
        (
            "False",
            state("s", false, json!({}), 1),
            state("a", false, json!({}), 0),
            "0/2 Init:1/2 3",
        ),
    ] {
        let pod = json!({
            "spec": {"containers": [{"name": "a"}],
                     "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]},
            "status": {"phase": "Running", "initContainerStatuses": [done, sidecar],
                "containerStatuses": [main],
                "conditions": [{"type": "Initialized", "status": initialized}]}});
        let found =
            format!("{} {} {}", ready(&pod), status(&pod), restarts(&pod, Timestamp::UNIX_EPOCH));
        assert_eq!(found, want);
    }
    let gated = json!({"status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}});
    assert_eq!(status(&gated), "SchedulingGated");
}

#[test]
fn steps_of_the_beginning() {
    let done = json!({"terminated": {"exitCode": 0}});
    let cases = [
        (vec![], None),
        (vec![json!({})], Some("Init:0/2")),
        (vec![done.clone(), json!({"waiting": {"reason": "PodInitializing"}})], Some("Init:1/2")),
        (vec![json!({"waiting": {"reason": "ErrImagePull"}})], Some("Init:ErrImagePull")),
        (vec![json!({"terminated": {"exitCode": 3}})], Some("Init:ExitCode:3")),
        (vec![json!({"terminated": {"exitCode": 1, "reason": "Error"}})], Some("Init:Error")),
        (vec![json!({"terminated": {"exitCode": 137, "signal": 9}})], Some("Init:Signal:9")),
        (vec![done.clone(), done], None),
    ];
    for (states, want) in cases {
        let statuses: Vec<_> = states.iter().map(|state| json!({"state": state})).collect();
        let pod = json!({"spec": {"initContainers": [{"name": "a"}, {"name": "b"}]},
            "status": {"phase": "Pending", "initContainerStatuses": statuses}});
        assert_eq!(initializing(&pod).as_deref(), want, "{states:?}");
    }
}
