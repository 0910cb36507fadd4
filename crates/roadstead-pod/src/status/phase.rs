//! A pod's phase: pure.

use k8s_openapi::api::core::v1::Container;

use super::View;
use crate::facts::{PostStart, State};
use crate::lifecycle::{init_done, is_sidecar, will_restart};

impl View<'_> {
    pub(super) fn phase(&self) -> &'static str {
        let before = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        match before {
            Some("Succeeded") => return "Succeeded",
            Some("Failed") => return "Failed",
            _ => {}
        }
        match self.phase_by_facts() {
            // Such a phase is a promise that nothing runs any more.
            "Succeeded" | "Failed" if self.facts.any_running() => match self.any_began() {
                true => "Running",
                false => "Pending",
            },
            phase => phase,
        }
    }

    fn phase_by_facts(&self) -> &'static str {
        let is_deleted = self.pod.metadata.deletion_timestamp.is_some();
        if self.facts.failure.is_some() {
            return "Failed";
        }
        let mut init = self.spec.init_containers.iter().flatten();
        let mut once = init.clone().filter(|init| !is_sidecar(init));
        if once.any(|init| self.progress(init) == Progress::Failed) {
            return "Failed";
        }
        let is_initializing = init.any(|init| !init_done(init, self.facts)) && !self.any_began();
        let main: Vec<_> = self.spec.containers.iter().map(|main| self.progress(main)).collect();
        if (is_initializing || main.contains(&Progress::NotStarted)) && !is_deleted {
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

    /// Whether any container that is not an init container has ever run.
    fn any_began(&self) -> bool {
        let is_new = |main: &Container| self.progress(main) == Progress::NotStarted;
        !self.spec.containers.iter().all(is_new)
    }

    fn progress(&self, container: &Container) -> Progress {
        let Some(known) = self.facts.containers.get(&container.name) else {
            return Progress::NotStarted;
        };
        let is_deleted = self.pod.metadata.deletion_timestamp.is_some();
        let is_up = known.post_start == PostStart::Done;
        match (&known.state, &known.last) {
            (State::Running { .. }, None) if !is_up => Progress::NotStarted,
            (State::Running { .. }, _) => Progress::Alive,
            (State::Waiting { .. }, None) => Progress::NotStarted,
            (State::Waiting { .. }, Some(_)) if !is_deleted => Progress::Alive,
            (State::Exited(exit), _) if will_restart(self.pod, container, exit) => Progress::Alive,
            (State::Exited(exit), _) | (State::Waiting { .. }, Some(exit)) => match exit.code {
                0 => Progress::Succeeded,
                _ => Progress::Failed,
            },
        }
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
