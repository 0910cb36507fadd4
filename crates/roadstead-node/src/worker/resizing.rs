//! A pod that gets more of the machine, or less, while it runs: what `resize` decides is carried out.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use roadstead_pod::facts::{ContainerFacts, State};
use roadstead_pod::lifecycle::Presence;
use roadstead_pod::resize::{
    self, RETRY, ResizeProgress, is_in_progress, is_wanted, live_changes, message,
    refuse_less_memory,
};
use roadstead_pod::resources::resources;
use roadstead_pod::usage::Usage;
use tracing::{info, warn};

use super::{Worker, later};

impl Worker {
    /// Asks for what the pod wants now, if that is not what it has been allocated.
    pub(super) fn allocate(&mut self) {
        let over = self.pod.metadata.deletion_timestamp.is_some() || self.facts.failure.is_some();
        if over || self.presence == Presence::Gone {
            return;
        }
        if !is_wanted(&self.wanted_pod, &self.pod) {
            self.facts.resize.pending = None;
            return;
        }
        // Whoever goes from here on wakes us.
        self.freed.mark_unchanged();
        match self.context.allocations.resize(&self.wanted_pod) {
            Ok(()) => {
                info!(pod = %self.title(), "gets other resources");
                self.pod = self.wanted_pod.clone();
                let generation = self.pod.metadata.generation;
                self.facts.resize.pending = None;
                self.facts.resize.progress =
                    Some(ResizeProgress { generation, ..ResizeProgress::default() });
                let text = message("Pod resize started", &self.pod, generation, None);
                self.context.events.normal(&self.pod, None, "ResizeStarted", text);
            }
            Err(no) => {
                let before = self.facts.resize.pending.as_ref();
                let is_known = before
                    .is_some_and(|old| (old.reason, old.generation) == (no.reason, no.generation));
                if !is_known {
                    let prefix = format!("Pod resize {}", no.reason);
                    let (wanted, why) = (&self.wanted_pod, Some(no.message.as_str()));
                    let text = message(&prefix, wanted, no.generation, why);
                    let reason = match no.reason {
                        "Infeasible" => "ResizeInfeasible",
                        _ => "ResizeDeferred",
                    };
                    self.context.events.warning(&self.pod, None, reason, text);
                }
                self.facts.resize.pending = Some(no);
            }
        }
    }

    /// Holds the containers that run to what they have been allocated.
    pub(super) async fn apply_resize(&mut self) {
        let Some(spec) = self.pod.spec.clone() else { return };
        let changes: Vec<Container> =
            live_changes(&spec, &self.facts).into_iter().cloned().collect();
        if let Err(why) = self.hold(&changes).await {
            let generation = self.pod.metadata.generation;
            let progress = self.facts.resize.progress.get_or_insert_default();
            let generation = *progress.generation.get_or_insert(generation.unwrap_or_default());
            progress.retry_at = Some(later(RETRY));
            if progress.error.as_ref() != Some(&why) {
                warn!(pod = %self.name.name, why, "cannot resize, will retry");
                let text = message("Pod resize error", &self.pod, Some(generation), Some(&why));
                self.context.events.warning(&self.pod, None, "ResizeError", text);
            }
            if let Some(progress) = &mut self.facts.resize.progress {
                progress.error = Some(why);
            }
        }
    }

    async fn hold(&mut self, changes: &[Container]) -> Result<(), String> {
        let Some(spec) = self.pod.spec.clone() else { return Ok(()) };
        let used = self.context.runtime.containers.usage().await;
        let used = used.into_iter().find(|pod| pod.uid == self.name.uid);
        let of_pod = used.as_ref().map_or(Usage::default(), |pod| pod.usage);
        let own = used.into_iter().flat_map(|pod| pod.containers);
        let own: Vec<_> = own.map(|(name, (_, usage))| (name, usage)).collect();
        refuse_less_memory(&spec, &self.facts, (&of_pod, own.as_slice()))?;
        let (memory, pids) = (self.context.allocatable.memory, self.context.config.pod_pids);
        for container in changes {
            let limits = resources(&spec, container, memory, pids);
            let runtime = &self.context.runtime.containers;
            runtime.resize(&self.name, &container.name, limits).await?;
            if let Some(known) = self.facts.containers.get_mut(&container.name) {
                known.resources = Some(container.resources.clone().unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Says that all have what they were allocated, when it is so.
    pub(super) fn finish_resize(&mut self) {
        let Some(progress) = &self.facts.resize.progress else { return };
        let spec = self.pod.spec.as_ref();
        if spec.is_some_and(|spec| is_in_progress(spec, &self.facts)) {
            return;
        }
        let text = message("Pod resize completed", &self.pod, progress.generation, None);
        self.context.events.normal(&self.pod, None, "ResizeCompleted", text);
        self.facts.resize.progress = None;
    }

    /// Takes in the newest state of the pod in the API, but for what it has not been allocated yet.
    pub(super) fn take_in(&mut self, wanted: Arc<Pod>) {
        self.pod = match is_wanted(&wanted, &self.pod) {
            true => Arc::new(resize::as_allocated(&wanted, &self.pod)),
            false => wanted.clone(),
        };
        self.wanted_pod = wanted;
    }

    /// Remembers what containers have that were running before we came: what has been allocated to them.
    pub(super) fn resume_resources(&mut self) {
        let Some(spec) = &self.pod.spec else { return };
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            let known = self.facts.containers.get_mut(&container.name);
            let runs = |known: &&mut ContainerFacts| matches!(known.state, State::Running { .. });
            if let Some(known) = known.filter(runs) {
                known.resources = Some(container.resources.clone().unwrap_or_default());
            }
        }
    }
}
