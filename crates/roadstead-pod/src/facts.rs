//! What the agent knows about a pod's processes, as plain values.
//!
//! The worker changes these as things happen; `lifecycle` and `status` only read them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus, ResourceRequirements,
};
use serde::{Deserialize, Serialize};

use crate::addresses::Addresses;
use crate::departure::Departure;
use crate::image::ImageFacts;
use crate::resize::ResizeFacts;

/// One pod, as far as this node has brought it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodFacts {
    /// When the agent accepted the pod.
    pub start_time: Option<Timestamp>,
    /// How far its network has come.
    pub sandbox: Sandbox,
    /// Remembered after the sandbox is gone, because the status keeps showing it.
    pub addresses: Option<Addresses>,
    /// By name, those of which anything is known.
    pub containers: BTreeMap<String, ContainerFacts>,
    /// The pod has failed as a whole.
    pub failure: Option<PodFailure>,
    /// How far it has taken its leave.
    pub departure: Departure,
    /// How far it gets more of the machine, or less.
    pub resize: ResizeFacts,
}

/// The pod's network namespace and directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Sandbox {
    /// Not made yet.
    #[default]
    None,
    /// It could not be made.
    Failed {
        /// When to try again.
        retry_at: Timestamp,
        /// How long that is after the failure.
        delay: Duration,
    },
    /// Containers can start.
    Ready,
    /// Given back.
    Removed,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerFacts {
    /// What it is doing.
    pub state: State,
    /// How its previous run ended.
    pub last: Option<Exit>,
    /// How often it ran before.
    pub restarts: i32,
    /// What became of the postStart hook of this run.
    pub post_start: PostStart,
    /// The startup probe has passed, or there is none and the container runs.
    pub started: bool,
    /// The readiness probe passes, or there is none and the container has started.
    pub ready: bool,
    /// The delay before the current or next run; `None` before the first.
    pub delay: Option<Duration>,
    /// Not to be started before this.
    pub retry_at: Option<Timestamp>,
    /// The image of the next run, if it is on the machine.
    pub image: Option<ImageFacts>,
    /// Somebody brings the image.
    pub pulling: bool,
    /// The image of the latest run.
    pub image_id: String,
    /// What the spec called it then.
    pub image_name: String,
    /// It ends because its spec has changed: whatever its policy says, it is started again.
    pub is_replaced: bool,
    /// What its process may use of the machine; `None` is what it has been allocated.
    pub resources: Option<ResourceRequirements>,
}

/// What a container is doing.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Not started yet, or its start failed for the reason given.
    Waiting {
        /// As in the API, such as `ErrImagePull`.
        reason: &'static str,
        /// What exactly is wrong.
        message: Option<String>,
    },
    /// Its process runs.
    Running {
        /// Identifies this run.
        id: String,
        /// When it began.
        since: Timestamp,
        /// How far its end has come, if it is to end.
        stopping: Option<Stopping>,
    },
    /// Its process ended, or could not be made.
    Exited(Exit),
}

/// A container that is to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stopping {
    /// How far it has come.
    pub stage: StopStage,
    /// When the next stage begins at the latest.
    pub until: Timestamp,
}

/// The stages of a container's end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StopStage {
    /// Its preStop hook runs.
    PreStop,
    /// Others must have ended first.
    Waiting,
    /// It was asked to end.
    Signalled,
    /// It was forced to.
    Killed,
}

/// What became of a postStart hook.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PostStart {
    /// It has done its work, or there is none.
    #[default]
    Done,
    /// It runs: until it is done, the container does not count as started, and the next one waits.
    Running,
    /// It failed, so the container is ended.
    Failed(String),
}

/// Why a pod has failed whatever its containers do.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFailure {
    /// As in the status, such as `DeadlineExceeded`.
    pub reason: &'static str,
    /// What exactly happened.
    pub message: String,
}

impl Default for State {
    fn default() -> Self {
        State::Waiting { reason: "ContainerCreating", message: None }
    }
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct StartedContainer {
    /// Identifies this run.
    pub id: String,
    /// When it began.
    pub since: Timestamp,
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

/// That much later; what users write may be later than time goes.
pub fn after(at: Timestamp, duration: Duration) -> Timestamp {
    let later = SignedDuration::try_from(duration).ok().and_then(|by| at.checked_add(by).ok());
    later.unwrap_or(Timestamp::MAX)
}

impl PodFacts {
    /// What follows from the API object alone, for a pod that the runtime does not know (any more).
    ///
    /// Containers that ran according to the last status count as lost.
    pub(crate) fn from_status(pod: &Pod, now: Timestamp) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.init_container_statuses.iter().flatten();
        let containers = containers.chain(status.container_statuses.iter().flatten());
        let containers = containers.chain(status.ephemeral_container_statuses.iter().flatten());
        Self {
            start_time: status.start_time.as_ref().map(|time| time.0),
            sandbox: Sandbox::None,
            addresses: addresses(&status),
            containers: containers.map(|old| (old.name.clone(), lost(old, now))).collect(),
            failure: None,
            departure: Departure::NotBegun,
            resize: ResizeFacts::default(),
        }
    }

    /// Whether the process of the container of this name runs.
    pub(crate) fn runs(&self, name: &str) -> bool {
        let known = self.containers.get(name);
        known.is_some_and(|container| matches!(container.state, State::Running { .. }))
    }

    /// Whether any container's process runs.
    pub(crate) fn any_running(&self) -> bool {
        self.containers.values().any(|container| matches!(container.state, State::Running { .. }))
    }
}

/// A status of a node with one family, or of an early one, may have `podIP` alone.
fn addresses(status: &PodStatus) -> Option<Addresses> {
    let all = status.pod_ips.iter().flatten().map(|own| own.ip.as_str());
    Addresses::of(all.chain(status.pod_ip.as_deref()).filter_map(|ip| ip.parse().ok()))
}

fn lost(old: &ContainerStatus, now: Timestamp) -> ContainerFacts {
    let id = old.container_id.as_deref().unwrap_or_default();
    let id = id.rsplit('/').next().unwrap_or_default().to_owned();
    let last = old.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let mut facts = ContainerFacts {
        restarts: old.restart_count,
        image_id: old.image_id.clone(),
        image_name: old.image.clone(),
        last: last.map(|ended| exit(String::new(), ended, now)),
        ..ContainerFacts::default()
    };
    let Some(state) = &old.state else { return facts };
    if let Some(ended) = &state.terminated {
        facts.state = State::Exited(exit(id, ended, now));
    } else if let Some(running) = &state.running {
        facts.state = State::Exited(Exit {
            id,
            code: 137,
            reason: "ContainerStatusUnknown".into(),
            message: Some("The container could not be located when the pod was terminated".into()),
            started_at: running.started_at.as_ref().map_or(now, |time| time.0),
            finished_at: now,
        });
    } else if let Some(last) = facts.last.take_if(|_| is_back_off(state)) {
        facts.state = State::Exited(last);
    }
    facts
}

/// It waits for its next run, so the last one is how it is now.
fn is_back_off(state: &ContainerState) -> bool {
    let reason = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
    matches!(reason, Some("CrashLoopBackOff" | "RunContainerError" | "PostStartHookError"))
}

fn exit(id: String, ended: &ContainerStateTerminated, now: Timestamp) -> Exit {
    let own = ended.container_id.as_deref().and_then(|id| id.rsplit('/').next());
    Exit {
        id: own.map_or(id, str::to_owned),
        code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.clone(),
        started_at: ended.started_at.as_ref().map_or(now, |time| time.0),
        finished_at: ended.finished_at.as_ref().map_or(now, |time| time.0),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn time_has_an_end() {
        assert_eq!(after(at(1), Duration::from_secs(2)), at(3));
        assert_eq!(after(at(1), Duration::from_secs(i64::MAX.unsigned_abs())), Timestamp::MAX);
        assert_eq!(after(Timestamp::MAX, Duration::from_secs(1)), Timestamp::MAX);
    }

    /// That many seconds after the epoch.
    pub(crate) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Reads `+` (sandbox), `-` (removed), `a=running`, `a=ready`, `a=hook` (its postStart hook runs),
    /// `a=hook-failed`, `a=prestop@20`, `a=turn@20`, `a=signalled@20`, `a=killed` (the stages of its end),
    /// `a=exit1`, `a=exit1@20` (to be restarted at 20 s), `a=pulling`, `a=pulled`,
    /// `a=why:ErrImagePull` and `a=why:ErrImagePull@20`, which failed ten seconds before.
    pub(crate) fn facts(text: &str) -> PodFacts {
        let mut facts = PodFacts::default();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                None => {
                    facts.addresses = Some([10, 244, 0, 2].into());
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
        let running = |stage: Option<StopStage>| {
            let until = retry_at.unwrap_or(at(100));
            let stopping = stage.map(|stage| Stopping { stage, until });
            State::Running { id: "id".into(), since: at(1), stopping }
        };
        let state = match text {
            "running" | "ready" | "hook" => running(None),
            "prestop" => running(Some(StopStage::PreStop)),
            "turn" | "hook-failed" => running(Some(StopStage::Waiting)),
            "signalled" => running(Some(StopStage::Signalled)),
            "killed" => running(Some(StopStage::Killed)),
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
                _ if matches!(text, "pulling" | "pulled") => State::default(),
                _ => panic!("cannot read {text}"),
            },
        };
        ContainerFacts {
            started: matches!(state, State::Running { .. }) && !text.starts_with("hook"),
            ready: text == "ready",
            post_start: match text {
                "hook" => PostStart::Running,
                "hook-failed" => PostStart::Failed("no".into()),
                _ => PostStart::Done,
            },
            state,
            retry_at,
            delay: Some(Duration::from_secs(10)),
            pulling: text == "pulling",
            image: (text == "pulled").then(|| ImageFacts::built_in("roadstead/echo").unwrap()),
            ..ContainerFacts::default()
        }
    }
}
