//! What to do next for a pod: pure.
//!
//! [`plan`] compares what the API wants with the facts and names the next steps. The worker takes
//! them, changes the facts, and asks again.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::facts::{ContainerFacts, Exit, PodFacts, Sandbox, State};

/// One thing for the worker to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    CreateSandbox,
    Start(String),
    Stop {
        container: String,
        grace: Duration,
    },
    RemoveSandbox,
    /// Everything is gone: the API object may go as well.
    Finish,
}

/// The next steps, and when to ask again although nothing has happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) wake_at: Option<Timestamp>,
}

impl Plan {
    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}

/// Whether the API still has the pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Presence {
    Present,
    /// The object was removed, perhaps by force: stop what runs, write nothing.
    Gone,
}

/// When a container that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    fn of(spec: &PodSpec) -> Self {
        match spec.restart_policy.as_deref() {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        }
    }

    fn restarts(self, exit: &Exit) -> bool {
        match self {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit.code != 0,
            RestartPolicy::Never => false,
        }
    }
}

/// Returns the next steps for the pod.
pub(crate) fn plan(pod: &Pod, presence: Presence, facts: &PodFacts, now: Timestamp) -> Plan {
    let Some(spec) = &pod.spec else { return Plan::default() };
    if presence == Presence::Gone || pod.metadata.deletion_timestamp.is_some() {
        return take_down(facts, grace_period(pod), true);
    }
    if finished(pod, facts) {
        return take_down(facts, grace_period(pod), false);
    }
    let mut plan = Plan::default();
    match &facts.sandbox {
        Sandbox::Ready => start_containers(pod, spec, facts, now, &mut plan),
        Sandbox::Failed { retry_at, .. } if *retry_at > now => plan.wake(*retry_at),
        _ => plan.steps.push(Step::CreateSandbox),
    }
    plan
}

/// How long the pod's containers get between SIGTERM and SIGKILL.
pub(crate) fn grace_period(pod: &Pod) -> Duration {
    let asked = pod.metadata.deletion_grace_period_seconds;
    let usual = || pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    Duration::from_secs(asked.or_else(usual).unwrap_or(30).max(0).unsigned_abs())
}

/// Whether this container, having ended so, will be started again.
pub(crate) fn will_restart(pod: &Pod, container: &Container, exit: &Exit) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let is_init = spec.init_containers.iter().flatten().any(|init| init.name == container.name);
    let policy = match RestartPolicy::of(spec) {
        _ if is_sidecar(container) => RestartPolicy::Always,
        RestartPolicy::Always if is_init => RestartPolicy::OnFailure,
        policy => policy,
    };
    pod.metadata.deletion_timestamp.is_none() && policy.restarts(exit)
}

/// Whether all init containers have done their work.
pub(crate) fn initialized(spec: &PodSpec, facts: &PodFacts) -> bool {
    spec.init_containers.iter().flatten().all(|init| init_done(init, facts))
}

/// Whether the pod's phase is or will be Succeeded or Failed.
pub(crate) fn finished(pod: &Pod, facts: &PodFacts) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return true;
    }
    let ended_for_good = |container: &Container| match state(facts, &container.name) {
        Some(State::Exited(exit)) => !will_restart(pod, container, exit),
        _ => false,
    };
    let init_failed = spec
        .init_containers
        .iter()
        .flatten()
        .any(|init| ended_for_good(init) && !init_done(init, facts));
    init_failed || spec.containers.iter().all(ended_for_good)
}

fn state<'a>(facts: &'a PodFacts, name: &str) -> Option<&'a State> {
    facts.containers.get(name).map(|container| &container.state)
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn init_done(init: &Container, facts: &PodFacts) -> bool {
    match facts.containers.get(&init.name) {
        Some(ContainerFacts { state: State::Exited(exit), .. }) => exit.code == 0,
        Some(ContainerFacts { state: State::Running { .. }, started, .. }) => {
            is_sidecar(init) && *started
        }
        _ => false,
    }
}

fn start_containers(pod: &Pod, spec: &PodSpec, facts: &PodFacts, now: Timestamp, plan: &mut Plan) {
    let unfinished = spec.init_containers.iter().flatten().find(|init| !init_done(init, facts));
    let sidecars = spec.init_containers.iter().flatten().filter(|init| is_sidecar(init));
    let due = match unfinished {
        Some(init) => vec![init],
        None => sidecars.chain(&spec.containers).collect(),
    };
    for container in due {
        let Some(known) = facts.containers.get(&container.name) else {
            plan.steps.push(Step::Start(container.name.clone()));
            continue;
        };
        match (&known.state, known.retry_at) {
            (State::Running { .. }, _) => {}
            (State::Exited(exit), _) if !will_restart(pod, container, exit) => {}
            (_, Some(retry_at)) if retry_at > now => plan.wake(retry_at),
            _ => plan.steps.push(Step::Start(container.name.clone())),
        }
    }
}

fn take_down(facts: &PodFacts, grace: Duration, finish: bool) -> Plan {
    let running = facts.containers.iter().filter_map(|(name, container)| match container.state {
        State::Running { stopping, .. } => Some((name, stopping)),
        _ => None,
    });
    let to_stop = running.filter(|(_, stopping)| !stopping);
    let mut steps: Vec<_> =
        to_stop.map(|(name, _)| Step::Stop { container: name.clone(), grace }).collect();
    if !facts.any_running() {
        if !matches!(facts.sandbox, Sandbox::None | Sandbox::Removed) {
            steps.push(Step::RemoveSandbox);
        }
        if finish {
            steps.push(Step::Finish);
        }
    }
    Plan { steps, wake_at: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::{at, facts};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    fn pod(policy: &str, init: &[&str], main: &[&str], deleted: bool) -> Pod {
        let containers =
            |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 5,
                     "initContainers": containers(init), "containers": containers(main)},
        }))
        .unwrap();
        if deleted {
            pod.metadata.deletion_timestamp = Some(Time(at(0)));
        }
        pod
    }

    fn show(plan: &Plan) -> String {
        let step = |step: &Step| match step {
            Step::CreateSandbox => "sandbox".into(),
            Step::Start(name) => format!("start:{name}"),
            Step::Stop { container, grace } => format!("stop:{container}/{}", grace.as_secs()),
            Step::RemoveSandbox => "remove".into(),
            Step::Finish => "finish".into(),
        };
        let wake = plan.wake_at.map(|wake| format!("wake@{}", wake.as_second()));
        plan.steps.iter().map(step).chain(wake).collect::<Vec<String>>().join(" ")
    }

    #[test]
    fn next_steps() {
        // Facts: `+` is a sandbox; `a=running`, `a=exit1`, `a=exit1@20` (restart at 20), `a=stopping`.
        let cases = [
            ("a new pod", "Always", "a b", "", "sandbox"),
            ("all at once", "Always", "a b", "+", "start:a start:b"),
            ("nothing to do", "Always", "a b", "+ a=running b=running", ""),
            ("restart at once", "Always", "a b", "+ a=exit0@5 b=running", "start:a"),
            ("restart later", "Always", "a", "+ a=exit1@20", "wake@20"),
            ("success ends it", "OnFailure", "a", "+ a=exit0", "remove"),
            ("failure does not", "OnFailure", "a", "+ a=exit1@9", "start:a"),
            ("one has ended", "Never", "a b", "+ a=exit1 b=running", ""),
            ("all have ended", "Never", "a b", "+ a=exit1 b=exit0", "remove"),
            ("ended and removed", "Never", "a", "- a=exit1", ""),
            ("init first", "Always", "i! a", "+", "start:i"),
            ("init runs", "Always", "i! a", "+ i=running", ""),
            ("init is done", "Always", "i! a", "+ i=exit0", "start:a"),
            ("init is tried again", "Always", "i! a", "+ i=exit1@3", "start:i"),
            ("init failed for good", "Never", "i! a", "+ i=exit1", "remove"),
            ("deleted", "Always", "a b X", "+ a=running b=exit1@20", "stop:a/5"),
            ("deleted, waiting", "Always", "a X", "+ a=stopping", ""),
            ("deleted, ended", "Always", "a X", "+ a=exit0", "remove finish"),
            ("deleted before it began", "Always", "a X", "", "finish"),
        ];
        for (name, policy, spec, given, want) in cases {
            let words: Vec<_> = spec.split(' ').collect();
            let init: Vec<_> = words.iter().filter_map(|word| word.strip_suffix('!')).collect();
            let main: Vec<_> =
                words.iter().copied().filter(|word| !word.ends_with('!') && *word != "X").collect();
            let pod = pod(policy, &init, &main, words.contains(&"X"));
            let plan = plan(&pod, Presence::Present, &facts(given), at(10));
            assert_eq!(show(&plan), want, "{name}");
        }
    }

    #[test]
    fn a_pod_that_finished_in_an_earlier_life_stays_finished() {
        let mut pod = pod("Never", &[], &["a"], false);
        pod.status.get_or_insert_default().phase = Some("Succeeded".into());
        assert_eq!(show(&plan(&pod, Presence::Present, &facts(""), at(10))), "");
    }
}
