//! What the API shows about a pod: pure.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::facts::{ContainerFacts, Exit, PodFacts, Sandbox, State};
use crate::images;
use crate::lifecycle::{initialized, will_restart};

/// The condition types that the agent writes; all others are somebody else's and stay.
pub(crate) const OWN_CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Returns the status that the facts amount to.
///
/// The pod's present status gives the transition times of unchanged conditions, and the conditions
/// written by others.
pub(crate) fn plan_status(pod: &Pod, facts: &PodFacts, host: IpAddr, now: Timestamp) -> PodStatus {
    let Some(spec) = &pod.spec else { return PodStatus::default() };
    let before = pod.status.clone().unwrap_or_default();
    let phase = phase(pod, spec, facts);
    let statuses = |containers: &[Container]| {
        containers.iter().map(|container| container_status(pod, container, facts, now)).collect()
    };
    let container_statuses: Vec<_> = statuses(&spec.containers);
    let conditions = conditions(pod, spec, facts, phase, &container_statuses, now);
    let address = facts.address.map(|address| address.to_string());
    PodStatus {
        phase: Some(phase.into()),
        conditions: Some(conditions),
        host_ip: Some(host.to_string()),
        host_ips: Some(vec![HostIP { ip: host.to_string() }]),
        pod_ips: address.iter().map(|ip| vec![PodIP { ip: ip.clone() }]).next(),
        pod_ip: address,
        start_time: facts.start_time.map(Time),
        init_container_statuses: spec.init_containers.as_deref().map(statuses),
        container_statuses: Some(container_statuses),
        qos_class: before.qos_class.or_else(|| Some(qos_class(spec).into())),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

fn phase(pod: &Pod, spec: &PodSpec, facts: &PodFacts) -> &'static str {
    let before = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match before {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    let states = |containers: &[Container]| -> Vec<Progress> {
        containers.iter().map(|container| progress(pod, container, facts)).collect()
    };
    let init = states(spec.init_containers.as_deref().unwrap_or_default());
    if init.contains(&Progress::Failed) {
        return "Failed";
    }
    let main = states(&spec.containers);
    if main.contains(&Progress::NotStarted) && pod.metadata.deletion_timestamp.is_none() {
        return "Pending";
    }
    if main.contains(&Progress::Alive) {
        return "Running";
    }
    match main.iter().all(|progress| *progress == Progress::Succeeded) {
        true => "Succeeded",
        false => "Failed",
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Progress {
    NotStarted,
    /// Running, or to be restarted.
    Alive,
    Succeeded,
    Failed,
}

fn progress(pod: &Pod, container: &Container, facts: &PodFacts) -> Progress {
    let Some(known) = facts.containers.get(&container.name) else { return Progress::NotStarted };
    match &known.state {
        State::Running { .. } => Progress::Alive,
        State::Waiting { .. } if known.last.is_none() => Progress::NotStarted,
        State::Waiting { .. } => Progress::Alive,
        State::Exited(exit) if will_restart(pod, container, exit) => Progress::Alive,
        State::Exited(exit) if exit.code == 0 => Progress::Succeeded,
        State::Exited(_) => Progress::Failed,
    }
}

fn container_status(
    pod: &Pod,
    container: &Container,
    facts: &PodFacts,
    now: Timestamp,
) -> ContainerStatus {
    let unknown = ContainerFacts::default();
    let known = facts.containers.get(&container.name).unwrap_or(&unknown);
    let image = container.image.clone().unwrap_or_default();
    let is_running = matches!(known.state, State::Running { .. });
    let (state, last) = states(pod, container, facts, known, now);
    let id = match (&known.state, &known.last) {
        (State::Running { id, .. }, _) => Some(id),
        (State::Exited(exit), _) | (_, Some(exit)) => Some(&exit.id),
        _ => None,
    };
    ContainerStatus {
        name: container.name.clone(),
        image_id: images::find(&image).map(|image| image.id()).unwrap_or_default(),
        image,
        container_id: id.filter(|id| !id.is_empty()).map(|id| container_id(id)),
        ready: known.ready && is_running,
        started: Some(known.started && is_running),
        restart_count: known.restarts,
        state: Some(state),
        last_state: last.map(|exit| terminated(&exit)),
        ..ContainerStatus::default()
    }
}

fn container_id(id: &str) -> String {
    format!("roadstead://{id}")
}

/// The present state, and how the run before it ended.
fn states(
    pod: &Pod,
    container: &Container,
    facts: &PodFacts,
    known: &ContainerFacts,
    now: Timestamp,
) -> (ContainerState, Option<Exit>) {
    let spec = pod.spec.as_ref().expect("checked by plan_status");
    match &known.state {
        State::Running { since, .. } => {
            let running = ContainerStateRunning { started_at: Some(Time(*since)) };
            let state = ContainerState { running: Some(running), ..ContainerState::default() };
            (state, known.last.clone())
        }
        State::Waiting { reason, message } => {
            let is_main = spec.containers.iter().any(|main| main.name == container.name);
            let waits_for_init = is_main && known.last.is_none() && !initialized(spec, facts);
            let reason = if waits_for_init { "PodInitializing" } else { reason };
            (waiting(reason, message.clone()), known.last.clone())
        }
        State::Exited(exit)
            if known.retry_at.is_some_and(|retry_at| retry_at > now)
                && will_restart(pod, container, exit) =>
        {
            (waiting("CrashLoopBackOff", Some(back_off(pod, container, known))), Some(exit.clone()))
        }
        State::Exited(exit) => (terminated(exit), known.last.clone()),
    }
}

/// The kubelet's words for it.
pub(crate) fn back_off(pod: &Pod, container: &Container, known: &ContainerFacts) -> String {
    let meta = &pod.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    format!(
        "back-off {} restarting failed container={} pod={}_{}({})",
        minutes_and_seconds(known.delay.unwrap_or_default().as_secs()),
        container.name,
        text(&meta.name),
        text(&meta.namespace),
        text(&meta.uid),
    )
}

fn minutes_and_seconds(seconds: u64) -> String {
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.into()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn terminated(exit: &Exit) -> ContainerState {
    let terminated = ContainerStateTerminated {
        container_id: Some(container_id(&exit.id)).filter(|_| !exit.id.is_empty()),
        exit_code: exit.code,
        reason: Some(exit.reason.clone()),
        message: exit.message.clone(),
        started_at: Some(Time(exit.started_at)),
        finished_at: Some(Time(exit.finished_at)),
        signal: None,
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

fn conditions(
    pod: &Pod,
    spec: &PodSpec,
    facts: &PodFacts,
    phase: &str,
    containers: &[ContainerStatus],
    now: Timestamp,
) -> Vec<PodCondition> {
    let before: &[PodCondition] =
        pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let unfinished_init =
        spec.init_containers.iter().flatten().filter(|_| !initialized(spec, facts));
    let init = match names(unfinished_init.map(|init| init.name.as_str())) {
        None => Claim::yes(),
        Some(names) => Claim::no(
            "ContainersNotInitialized",
            format!("containers with incomplete status: {names}"),
        ),
    };
    let unready = containers.iter().filter(|container| !container.ready);
    let containers_ready = match (phase, names(unready.map(|unready| unready.name.as_str()))) {
        ("Succeeded", _) => Claim::no("PodCompleted", None),
        ("Failed", _) => Claim::no("PodFailed", None),
        (_, None) => Claim::yes(),
        (_, Some(names)) => {
            Claim::no("ContainersNotReady", format!("containers with unready status: {names}"))
        }
    };
    let ready = match closed_gate(spec, before) {
        Some(gate) if containers_ready.status => Claim::no(
            "ReadinessGatesNotReady",
            format!("corresponding condition of pod readiness gate {gate:?} is not \"True\"."),
        ),
        _ => containers_ready.clone(),
    };
    let sandbox = Claim { status: facts.sandbox == Sandbox::Ready, ..Claim::yes() };
    let own =
        OWN_CONDITIONS.into_iter().zip([sandbox, init, ready, containers_ready, Claim::yes()]);
    let foreign =
        before.iter().filter(|old| !OWN_CONDITIONS.contains(&old.type_.as_str())).cloned();
    own.map(|(type_, claim)| claim.into_condition(type_, pod, before, now)).chain(foreign).collect()
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| format!("[{}]", names.join(" ")))
}

fn closed_gate<'a>(spec: &'a PodSpec, conditions: &[PodCondition]) -> Option<&'a str> {
    let open = |gate: &str| conditions.iter().any(|c| c.type_ == gate && c.status == "True");
    let mut gates = spec.readiness_gates.iter().flatten().map(|gate| gate.condition_type.as_str());
    gates.find(|gate| !open(gate))
}

/// A condition without its history.
#[derive(Clone)]
struct Claim {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Claim {
    fn yes() -> Self {
        Claim { status: true, reason: None, message: None }
    }

    fn no(reason: &'static str, message: impl Into<Option<String>>) -> Self {
        Claim { status: false, reason: Some(reason), message: message.into() }
    }

    fn into_condition(
        self,
        type_: &str,
        pod: &Pod,
        before: &[PodCondition],
        now: Timestamp,
    ) -> PodCondition {
        let status = if self.status { "True" } else { "False" };
        let same = before.iter().find(|old| old.type_ == type_ && old.status == status);
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: self.reason.map(Into::into),
            message: self.message,
            last_transition_time: same
                .and_then(|old| old.last_transition_time.clone())
                .or(Some(Time(now))),
            observed_generation: pod.metadata.generation,
            ..PodCondition::default()
        }
    }
}

pub(crate) fn qos_class(spec: &PodSpec) -> &'static str {
    let all = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let wants = |container: &Container| {
        let resources = container.resources.clone().unwrap_or_default();
        (resources.requests.unwrap_or_default(), resources.limits.unwrap_or_default())
    };
    if all().map(wants).all(|(requests, limits)| requests.is_empty() && limits.is_empty()) {
        return "BestEffort";
    }
    let exact = |container: &Container| {
        let (requests, limits) = wants(container);
        ["cpu", "memory"].into_iter().all(|name| {
            let limit = limits.get(name);
            limit.is_some() && requests.get(name).is_none_or(|request| Some(request) == limit)
        })
    };
    if all().all(exact) { "Guaranteed" } else { "Burstable" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::{at, facts};
    use serde_json::json;

    fn pod(policy: &str, init: &[&str], status: serde_json::Value) -> Pod {
        let init: Vec<_> = init.iter().map(|name| json!({"name": name})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "u"},
            "spec": {"restartPolicy": policy, "initContainers": init,
                     "containers": [{"name": "a", "image": "roadstead/echo"}, {"name": "b"}]},
            "status": status,
        }))
        .unwrap()
    }

    /// `Running a=running b=waiting:ErrImagePull ready=False` and so on.
    fn show(status: &PodStatus) -> String {
        let state = |container: &ContainerStatus| {
            let state = container.state.clone().unwrap();
            match (state.running, state.waiting, state.terminated) {
                (Some(_), _, _) if container.ready => "ready".to_owned(),
                (Some(_), _, _) => "running".to_owned(),
                (_, Some(waiting), _) => waiting.reason.unwrap(),
                (_, _, Some(ended)) => format!("{}({})", ended.reason.unwrap(), ended.exit_code),
                _ => "nothing".to_owned(),
            }
        };
        let containers = status.container_statuses.iter().flatten();
        let containers = containers.map(|c| format!("{}={}", c.name, state(c)));
        let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").unwrap();
        let reason = ready.reason.iter().map(|reason| format!("/{reason}")).collect::<String>();
        let parts = [status.phase.clone().unwrap()].into_iter().chain(containers);
        parts.chain([format!("{}{reason}", ready.status)]).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn statuses() {
        let unready = "False/ContainersNotReady";
        let creating = "Pending a=ContainerCreating b=ContainerCreating";
        let cases = [
            ("a new pod", "Always", "", format!("{creating} {unready}")),
            ("all ready", "Always", "+ a=ready b=ready", "Running a=ready b=ready True".into()),
            (
                "one not ready",
                "Always",
                "+ a=ready b=running",
                format!("Running a=ready b=running {unready}"),
            ),
            (
                "no image",
                "Always",
                "+ a=ready b=why:ErrImagePull",
                format!("Pending a=ready b=ErrImagePull {unready}"),
            ),
            (
                "crash loop",
                "Always",
                "+ a=ready b=exit1@20",
                format!("Running a=ready b=CrashLoopBackOff {unready}"),
            ),
            (
                "about to restart",
                "Always",
                "+ a=ready b=exit1@5",
                format!("Running a=ready b=Error(1) {unready}"),
            ),
            (
                "success",
                "Never",
                "- a=exit0 b=exit0",
                "Succeeded a=Completed(0) b=Completed(0) False/PodCompleted".into(),
            ),
            (
                "failure",
                "OnFailure",
                "- a=exit0 b=exit0",
                "Succeeded a=Completed(0) b=Completed(0) False/PodCompleted".into(),
            ),
            (
                "one of two failed",
                "Never",
                "- a=exit0 b=exit3",
                "Failed a=Completed(0) b=Error(3) False/PodFailed".into(),
            ),
        ];
        for (name, policy, given, want) in cases {
            let pod = pod(policy, &[], json!({}));
            let status = plan_status(&pod, &facts(given), [10, 0, 0, 1].into(), at(10));
            assert_eq!(show(&status), want, "{name}");
        }
    }

    #[test]
    fn init_containers_hold_the_others_back() {
        let pod = pod("Always", &["i"], json!({}));
        let status = plan_status(&pod, &facts("+ i=running"), [10, 0, 0, 1].into(), at(10));
        let want = "Pending a=PodInitializing b=PodInitializing False/ContainersNotReady";
        assert_eq!(show(&status), want);
        let init = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Initialized");
        assert_eq!(init.unwrap().message.unwrap(), "containers with incomplete status: [i]");
    }

    #[test]
    fn conditions_keep_their_history_and_their_neighbours() {
        let before = json!({"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:03Z"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:01Z"},
            {"type": "example.com/gate", "status": "False"},
        ]});
        let mut pod = pod("Always", &[], before);
        let status = |pod: &Pod, given: &str| {
            plan_status(pod, &facts(given), [10, 0, 0, 1].into(), at(10)).conditions.unwrap()
        };
        let times = |conditions: &[PodCondition], type_: &str| {
            let found = conditions.iter().find(|c| c.type_ == type_).unwrap();
            (found.status.clone(), found.last_transition_time.clone().map(|t| t.0.as_second()))
        };
        let same = status(&pod, "+ a=ready b=ready");
        assert_eq!(times(&same, "Ready"), ("True".into(), Some(3)));
        assert_eq!(times(&same, "PodScheduled"), ("True".into(), Some(1)));
        assert_eq!(times(&same, "example.com/gate"), ("False".into(), None));
        let flipped = status(&pod, "+ a=ready b=running");
        assert_eq!(times(&flipped, "Ready"), ("False".into(), Some(10)));

        let gates = json!([{"conditionType": "example.com/gate"}]);
        pod.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gates).unwrap();
        let gated = status(&pod, "+ a=ready b=ready");
        assert_eq!(times(&gated, "Ready").0, "False");
        assert_eq!(times(&gated, "ContainersReady").0, "True");
    }
}
