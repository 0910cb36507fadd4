//! What is known about a pod from before: from the runtime after a restart of the agent, and from
//! the status that was written last. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};

use std::collections::BTreeMap;

use crate::addresses::Addresses;
use crate::backoff;
use crate::facts::{ContainerFacts, Exit, PodFacts, Sandbox, StartedContainer, State, after};
use crate::lifecycle::will_restart;
use crate::pod_name::PodName;
use crate::probe::Kind;
use crate::status::OWN_CONDITIONS;

/// A pod found at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredPod {
    /// Which pod.
    pub pod: PodName,
    /// Its addresses, if its sandbox is still usable.
    pub addresses: Option<Addresses>,
    /// Its containers by name.
    pub containers: BTreeMap<String, RecoveredContainer>,
}

/// A container found at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredContainer {
    /// How often it ran before.
    pub restarts: i32,
    /// What became of it.
    pub state: RecoveredState,
}

/// What became of a container while no agent looked.
#[derive(Clone, Debug, PartialEq)]
pub enum RecoveredState {
    /// It still runs.
    Running(StartedContainer),
    /// It has ended.
    Exited(Exit),
}

/// Returns the facts to begin with.
pub fn facts(pod: &Pod, recovered: Option<RecoveredPod>, now: Timestamp) -> PodFacts {
    let mut facts = PodFacts::from_status(pod, now);
    if let Some(recovered) = recovered {
        take_over(pod, &mut facts, recovered);
    }
    for (name, known) in &mut facts.containers {
        resume_back_off(pod, name, known);
    }
    facts
}

/// Takes the next run up where the last agent left it: the count says how long it has to wait.
fn resume_back_off(pod: &Pod, name: &str, known: &mut ContainerFacts) {
    known.delay = backoff::before_run(known.restarts);
    let State::Exited(exit) = &known.state else { return };
    let Some(container) = find(pod, name) else { return };
    // One that got lost has not failed.
    if exit.reason == "ContainerStatusUnknown" || !will_restart(pod, container, exit) {
        return;
    }
    let ran_for = exit.finished_at.duration_since(exit.started_at);
    let delay = backoff::after_exit(known.delay, ran_for.unsigned_abs());
    known.delay = Some(delay);
    known.retry_at = Some(after(exit.finished_at, delay));
}

/// Takes in that the pod's sandbox is gone: what is to run again begins anew, init containers first.
/// Returns whether anything had run in it.
pub fn lose_sandbox(pod: &Pod, facts: &mut PodFacts) -> bool {
    let spec = pod.spec.as_ref();
    let once = spec.and_then(|spec| spec.restart_policy.as_deref()) == Some("Never");
    let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let init: Vec<_> = init.map(|init| init.name.as_str()).collect();
    let mut had_run = false;
    for (name, known) in &mut facts.containers {
        let State::Exited(exit) = &known.state else { continue };
        had_run = true;
        let again = find(pod, name).is_some_and(|container| will_restart(pod, container, exit));
        if again || (init.contains(&name.as_str()) && !once) {
            known.last = Some(exit.clone());
            known.restarts += 1;
            known.state = State::default();
            known.retry_at = None;
        }
    }
    had_run
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|container| container.name == name)
}

fn take_over(pod: &Pod, facts: &mut PodFacts, recovered: RecoveredPod) {
    if let Some(addresses) = recovered.addresses {
        facts.addresses = Some(addresses);
        facts.sandbox = Sandbox::Ready;
    }
    for (name, found) in recovered.containers {
        let state = match found.state {
            RecoveredState::Running(started) => {
                State::Running { id: started.id, since: started.since, stopping: None }
            }
            RecoveredState::Exited(exit) => State::Exited(exit),
        };
        let (started, ready) = verdicts(pod, &name, &state);
        let known = ContainerFacts {
            state,
            restarts: found.restarts,
            started,
            ready,
            ..facts.containers.remove(&name).unwrap_or_default()
        };
        facts.containers.insert(name, known);
    }
}

/// What the probes said about this very run: a restart of the agent is not a reason to call a
/// container unready. Where there is nothing to ask, a container that runs has started, and is ready.
fn verdicts(pod: &Pod, name: &str, state: &State) -> (bool, bool) {
    let State::Running { id, .. } = state else { return (false, false) };
    let container = find(pod, name);
    let asks = |kind: Kind| container.is_none_or(|container| kind.of(container).is_some());
    let statuses = pod.status.as_ref();
    let mut statuses = statuses.into_iter().flat_map(|status| {
        status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
    });
    let same = statuses.find(|status| {
        status.name == name && status.container_id.as_ref().is_some_and(|known| known.ends_with(id))
    });
    let (was_started, was_ready) =
        same.map_or((false, false), |status| (status.started.unwrap_or(false), status.ready));
    let started = was_started || !asks(Kind::Startup);
    (started, was_ready || (started && !asks(Kind::Readiness)))
}

/// Returns the pod with the status that we wrote last, which the watch may not have shown us yet.
pub fn with_last_status(pod: &Pod, written: Option<&PodStatus>) -> Pod {
    let mut pod = pod.clone();
    let Some(written) = written else { return pod };
    let status = pod.status.get_or_insert_default();
    status.phase.clone_from(&written.phase);
    status.qos_class.clone_from(&written.qos_class);
    let mut conditions = written.conditions.clone().unwrap_or_default();
    for newer in status.conditions.iter().flatten() {
        match conditions.iter_mut().find(|known| known.type_ == newer.type_) {
            // Those of others are theirs to change; ours we know best.
            Some(known) if !OWN_CONDITIONS.contains(&newer.type_.as_str()) => {
                *known = newer.clone()
            }
            Some(_) => {}
            None => conditions.push(newer.clone()),
        }
    }
    status.conditions = Some(conditions);
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::at;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "u"},
            "spec": {"containers": [{"name": "a", "readinessProbe": {}}]},
            "status": {"podIP": "10.244.0.2", "containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": true, "started": true,
                "restartCount": 2, "containerID": "roadstead://one",
                "state": {"running": {"startedAt": "1970-01-01T00:00:01Z"}},
            }]},
        }))
        .unwrap()
    }

    fn found(id: &str) -> RecoveredPod {
        let state = RecoveredState::Running(StartedContainer { id: id.into(), since: at(1) });
        RecoveredPod {
            pod: PodName { namespace: "d".into(), name: "web".into(), uid: "u".into() },
            addresses: Some([10, 244, 0, 2].into()),
            containers: [("a".to_owned(), RecoveredContainer { restarts: 2, state })].into(),
        }
    }

    #[test]
    fn a_running_container_keeps_its_readiness() {
        let cases = [("one", true), ("two", false)];
        for (id, ready) in cases {
            let facts = facts(&pod(), Some(found(id)), at(9));
            assert_eq!(facts.containers["a"].ready, ready, "{id}");
            assert!(facts.containers["a"].started, "{id}");
            assert_eq!(facts.containers["a"].restarts, 2);
            assert_eq!(facts.sandbox, Sandbox::Ready);
        }
    }

    #[test]
    fn a_container_that_nobody_knows_is_lost() {
        let facts = facts(&pod(), None, at(9));
        let State::Exited(exit) = &facts.containers["a"].state else { panic!("{facts:?}") };
        assert_eq!((exit.code, exit.reason.as_str()), (137, "ContainerStatusUnknown"));
        assert_eq!(facts.sandbox, Sandbox::None);
    }

    #[test]
    fn the_back_off_goes_on() {
        for (count, begun, want) in [(0, 98, 100), (2, 98, 120), (3, 98, 140), (3, -700, 100)] {
            let mut pod = pod();
            pod.spec.as_mut().unwrap().restart_policy = Some("Always".into());
            let status = json!([{
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": count,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "startedAt": Time(at(begun)),
                                             "finishedAt": Time(at(100))}},
            }]);
            let status = serde_json::from_value(status).unwrap();
            pod.status.as_mut().unwrap().container_statuses = status;
            let facts = facts(&pod, None, at(105));
            assert_eq!(facts.containers["a"].retry_at, Some(at(want)), "{count} {begun}");
        }
    }

    #[test]
    fn a_lost_sandbox() {
        let cases = [
            ("Always", "i! a", "i=exit0 a=exit137", "i=0+1 a=137+1"),
            ("OnFailure", "a b", "a=exit0 b=exit137", "a=exited b=137+1"),
            ("Never", "i! a", "i=exit0", "i=exited"),
            ("Always", "a", "a=why:ErrImagePull", "a=new"),
        ];
        for (policy, spec, given, want) in cases {
            let mut facts = crate::facts::tests::facts(given);
            let lost = lose_sandbox(&crate::lifecycle::tests::pod(policy, spec), &mut facts);
            assert_eq!(lost, want != "a=new", "{given}");
            let mut found: Vec<_> = facts
                .containers
                .iter()
                .map(|(name, known)| match (&known.state, &known.last) {
                    (State::Waiting { .. }, Some(exit)) => {
                        format!("{name}={}+{}", exit.code, known.restarts)
                    }
                    (State::Waiting { .. }, None) => format!("{name}=new"),
                    _ => format!("{name}=exited"),
                })
                .collect();
            found.sort_by_key(|text| std::cmp::Reverse(text.starts_with('i')));
            assert_eq!(found.join(" "), want, "{given}");
        }
    }

    #[test]
    fn our_last_status_wins_over_an_older_event() {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status});
        let mut pod = pod();
        let conditions = json!([condition("Ready", "False"), condition("x.io/y", "True")]);
        pod.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
        let written =
            json!({"conditions": [condition("Ready", "True"), condition("x.io/y", "False")]});
        let written: PodStatus = serde_json::from_value(written).unwrap();
        let merged = with_last_status(&pod, Some(&written)).status.unwrap().conditions.unwrap();
        let words: Vec<_> = merged.iter().map(|c| format!("{}={}", c.type_, c.status)).collect();
        assert_eq!(words, ["Ready=True", "x.io/y=True"]);
    }
}
