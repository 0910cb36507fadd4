//! What is said about a single container: pure.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::View;
use crate::facts::{ContainerFacts, Exit, PostStart, State};
use crate::lifecycle::{is_sidecar, shown_until, will_restart};

/// The most that the termination messages of a pod's containers have together.
const MOST_MESSAGES: usize = 12 << 10;

impl View<'_> {
    pub(super) fn container_status(&self, container: &Container) -> ContainerStatus {
        let unknown = ContainerFacts::default();
        let known = self.facts.containers.get(&container.name).unwrap_or(&unknown);
        let image = match known.image_name.as_str() {
            "" => container.image.clone().unwrap_or_default(),
            name => name.to_owned(),
        };
        let is_running = matches!(known.state, State::Running { .. });
        let (state, last) = self.states(container, known);
        let id = match (&known.state, &known.last) {
            (State::Running { id, .. }, _) => Some(id),
            (State::Exited(exit), _) | (_, Some(exit)) => Some(&exit.id),
            _ => None,
        };
        // One that ends before the others begin is never up, but it can be done.
        let mut init = self.spec.init_containers.iter().flatten();
        let runs_once = init.any(|init| init.name == container.name && !is_sidecar(init));
        let is_done = matches!(&known.state, State::Exited(exit) if exit.code == 0);
        let allocated = container.resources.clone().unwrap_or_default();
        let applied = known.resources.clone().filter(|_| is_running);
        ContainerStatus {
            name: container.name.clone(),
            image_id: known.image_id.clone(),
            image,
            container_id: id.filter(|id| !id.is_empty()).map(|id| container_id(id)),
            ready: if runs_once { is_done } else { known.ready && is_running },
            started: Some(known.started && is_running && !runs_once),
            restart_count: known.restarts,
            stop_signal: container.lifecycle.as_ref().and_then(|hooks| hooks.stop_signal.clone()),
            state: Some(state),
            last_state: last.map(|exit| self.terminated(&exit)),
            resources: Some(applied.unwrap_or_else(|| allocated.clone())),
            allocated_resources: allocated.requests,
            ..ContainerStatus::default()
        }
    }

    /// The present state, and how the run before it ended.
    fn states(
        &self,
        container: &Container,
        known: &ContainerFacts,
    ) -> (ContainerState, Option<Exit>) {
        let Self { pod, now, .. } = *self;
        match (&known.state, &known.post_start) {
            (State::Running { .. }, PostStart::Running) => {
                (waiting(self.creating(), None), known.last.clone())
            }
            (State::Running { .. }, PostStart::Failed(why)) => {
                (waiting("PostStartHookError", Some(why.clone())), known.last.clone())
            }
            (State::Running { since, .. }, PostStart::Done) => {
                let running = ContainerStateRunning { started_at: Some(Time(*since)) };
                let state = ContainerState { running: Some(running), ..ContainerState::default() };
                (state, known.last.clone())
            }
            (State::Waiting { reason: "ContainerCreating", message }, _) => {
                (waiting(self.creating(), message.clone()), known.last.clone())
            }
            (State::Waiting { reason, message }, _) => {
                (waiting(reason, message.clone()), known.last.clone())
            }
            (State::Exited(exit), _)
                if known.retry_at.is_some_and(|retry_at| retry_at > now)
                    && will_restart(pod, container, exit) =>
            {
                let state = match shown_until(&known.state) {
                    Some(until) if until > now => {
                        waiting("RunContainerError", exit.message.clone())
                    }
                    _ => waiting("CrashLoopBackOff", Some(back_off(pod, container, known))),
                };
                (state, Some(exit.clone()))
            }
            (State::Exited(exit), _) => (self.terminated(exit), known.last.clone()),
        }
    }

    /// Why a container waits that is about to be made.
    fn creating(&self) -> &'static str {
        match self.spec.init_containers.as_deref() {
            Some([_, ..]) => "PodInitializing",
            _ => "ContainerCreating",
        }
    }

    fn terminated(&self, exit: &Exit) -> ContainerState {
        let all = self.facts.containers.len().max(self.spec.containers.len()).max(1);
        let message = exit
            .message
            .as_ref()
            .map(|text| text[..text.floor_char_boundary(MOST_MESSAGES / all)].to_owned());
        let terminated = ContainerStateTerminated {
            container_id: Some(container_id(&exit.id)).filter(|_| !exit.id.is_empty()),
            exit_code: exit.code,
            reason: Some(exit.reason.clone()),
            message,
            started_at: Some(Time(exit.started_at)),
            finished_at: Some(Time(exit.finished_at)),
            signal: None,
        };
        ContainerState { terminated: Some(terminated), ..ContainerState::default() }
    }
}

fn container_id(id: &str) -> String {
    format!("roadstead://{id}")
}

/// The kubelet's words for it.
fn back_off(pod: &Pod, container: &Container, known: &ContainerFacts) -> String {
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

/// A duration as Go writes it, such as `1m30s`.
pub fn minutes_and_seconds(seconds: u64) -> String {
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.into()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}
