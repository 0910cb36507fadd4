//! What is known about a pod from before: from the runtime after a restart of the agent, and from
//! the status that was written last. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::facts::{ContainerFacts, PodFacts, Sandbox, State};
use crate::runtime::{RecoveredPod, RecoveredState};
use crate::status::OWN_CONDITIONS;

/// Returns the facts to begin with.
pub(crate) fn facts(pod: &Pod, recovered: Option<RecoveredPod>, now: Timestamp) -> PodFacts {
    let mut facts = PodFacts::from_status(pod, now);
    let Some(recovered) = recovered else { return facts };
    if let Some(address) = recovered.address {
        facts.address = Some(address);
        facts.sandbox = Sandbox::Ready;
    }
    for (name, found) in recovered.containers {
        let state = match found.state {
            RecoveredState::Running(started) => {
                State::Running { id: started.id, since: started.since, stopping: false }
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
    facts
}

/// What the probes said about this very run: a restart of the agent is not a reason to call a
/// container unready.
fn verdicts(pod: &Pod, name: &str, state: &State) -> (bool, bool) {
    let State::Running { id, .. } = state else { return (false, false) };
    let statuses = pod.status.as_ref();
    let mut statuses = statuses.into_iter().flat_map(|status| {
        status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
    });
    let same = statuses.find(|status| {
        status.name == name && status.container_id.as_ref().is_some_and(|known| known.ends_with(id))
    });
    same.map_or((false, false), |status| (status.started.unwrap_or(false), status.ready))
}

/// Returns the pod with the status that we wrote last, which the watch may not have shown us yet.
pub(crate) fn with_last_status(pod: &Pod, written: Option<&PodStatus>) -> Pod {
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
    use crate::runtime::{PodName, RecoveredContainer, StartedContainer};
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "u"},
            "spec": {"containers": [{"name": "a"}]},
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
            address: Some([10, 244, 0, 2].into()),
            containers: [("a".to_owned(), RecoveredContainer { restarts: 2, state })].into(),
        }
    }

    #[test]
    fn a_running_container_keeps_its_readiness() {
        let cases = [("one", true), ("two", false)];
        for (id, ready) in cases {
            let facts = facts(&pod(), Some(found(id)), at(9));
            assert_eq!(facts.containers["a"].ready, ready, "{id}");
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
