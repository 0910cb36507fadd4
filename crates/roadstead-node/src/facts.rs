//! What the agent knows about a pod's processes, as plain values.
//!
//! The worker changes these as things happen; `lifecycle` and `status` only read them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde::{Deserialize, Serialize};

/// One pod, as far as this node has brought it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodFacts {
    /// When the agent accepted the pod.
    pub(crate) start_time: Option<Timestamp>,
    pub(crate) sandbox: Sandbox,
    /// Remembered after the sandbox is gone, because the status keeps showing it.
    pub(crate) address: Option<IpAddr>,
    pub(crate) containers: BTreeMap<String, ContainerFacts>,
}

/// The pod's network namespace and directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Sandbox {
    #[default]
    None,
    Failed {
        retry_at: Timestamp,
        delay: Duration,
    },
    Ready,
    Removed,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ContainerFacts {
    pub(crate) state: State,
    /// How its previous run ended.
    pub(crate) last: Option<Exit>,
    pub(crate) restarts: i32,
    /// The startup probe has passed, or there is none and the container runs.
    pub(crate) started: bool,
    /// The readiness probe passes, or there is none and the container has started.
    pub(crate) ready: bool,
    /// The delay before the current or next run; `None` before the first.
    pub(crate) delay: Option<Duration>,
    /// Not to be started before this.
    pub(crate) retry_at: Option<Timestamp>,
}

/// What a container is doing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// Not started yet, or its start failed for the reason given.
    Waiting { reason: &'static str, message: Option<String> },
    /// Its process runs. `stopping` once it was told to end.
    Running { id: String, since: Timestamp, stopping: bool },
    /// Its process ended, or could not be made.
    Exited(Exit),
}

impl Default for State {
    fn default() -> Self {
        State::Waiting { reason: "ContainerCreating", message: None }
    }
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Which run of the container it was.
    pub id: String,
    /// The exit code, 128 plus the signal if one ended it.
    pub code: i32,
    /// `Completed`, `Error`, `StartError` and so on.
    pub reason: String,
    /// More about it, when there is more to say.
    pub message: Option<String>,
    /// When the run began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
}

impl PodFacts {
    /// What follows from the API object alone, for a pod that the runtime does not know (any more).
    ///
    /// Containers that ran according to the last status count as lost.
    pub(crate) fn from_status(pod: &Pod, now: Timestamp) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.init_container_statuses.iter().flatten();
        let containers = containers.chain(status.container_statuses.iter().flatten());
        Self {
            start_time: status.start_time.as_ref().map(|time| time.0),
            sandbox: Sandbox::None,
            address: status.pod_ip.as_ref().and_then(|ip| ip.parse().ok()),
            containers: containers.map(|old| (old.name.clone(), lost(old, now))).collect(),
        }
    }

    /// Whether any container's process runs.
    pub(crate) fn any_running(&self) -> bool {
        self.containers.values().any(|container| matches!(container.state, State::Running { .. }))
    }
}

fn lost(old: &ContainerStatus, now: Timestamp) -> ContainerFacts {
    let id = old.container_id.as_deref().unwrap_or_default();
    let id = id.rsplit('/').next().unwrap_or_default().to_owned();
    let mut facts = ContainerFacts { restarts: old.restart_count, ..ContainerFacts::default() };
    let Some(state) = &old.state else { return facts };
    if let Some(ended) = &state.terminated {
        facts.state = State::Exited(Exit {
            id,
            code: ended.exit_code,
            reason: ended.reason.clone().unwrap_or_default(),
            message: ended.message.clone(),
            started_at: ended.started_at.as_ref().map_or(now, |time| time.0),
            finished_at: ended.finished_at.as_ref().map_or(now, |time| time.0),
        });
    } else if let Some(running) = &state.running {
        facts.state = State::Exited(Exit {
            id,
            code: 137,
            reason: "ContainerStatusUnknown".into(),
            message: Some("the container was not there any more when the agent started".into()),
            started_at: running.started_at.as_ref().map_or(now, |time| time.0),
            finished_at: now,
        });
    }
    facts
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// That many seconds after the epoch.
    pub(crate) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Reads `+` (sandbox), `-` (removed), `a=running`, `a=ready`, `a=stopping`, `a=exit1`,
    /// `a=exit1@20` (to be restarted at 20 s) and `a=why:ErrImagePull`.
    pub(crate) fn facts(text: &str) -> PodFacts {
        let mut facts = PodFacts::default();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                None => {
                    facts.address = Some(IpAddr::from([10, 244, 0, 2]));
                    facts.sandbox = if word == "+" { Sandbox::Ready } else { Sandbox::Removed };
                }
                Some((name, state)) => {
                    facts.containers.insert(name.into(), container(state));
                }
            }
        }
        facts
    }

    fn container(text: &str) -> ContainerFacts {
        let (text, retry_at) = match text.split_once('@') {
            Some((text, second)) => (text, Some(at(second.parse().unwrap()))),
            None => (text, None),
        };
        let running = |stopping| State::Running { id: "id".into(), since: at(1), stopping };
        let state = match text {
            "running" | "ready" => running(false),
            "stopping" => running(true),
            _ => match (text.strip_prefix("exit"), text.strip_prefix("why:")) {
                (Some(code), _) => State::Exited(Exit {
                    id: "id".into(),
                    code: code.parse().unwrap(),
                    reason: if code == "0" { "Completed" } else { "Error" }.into(),
                    message: None,
                    started_at: at(1),
                    finished_at: at(2),
                }),
                (_, Some("ErrImagePull")) => {
                    State::Waiting { reason: "ErrImagePull", message: Some("no".into()) }
                }
                _ => panic!("cannot read {text}"),
            },
        };
        ContainerFacts {
            started: matches!(state, State::Running { .. }),
            ready: text == "ready",
            state,
            retry_at,
            ..ContainerFacts::default()
        }
    }
}
