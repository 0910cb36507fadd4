//! The hooks of a pod's containers: run in the background, and taken back when they are not wanted.

use std::collections::HashMap;
use std::time::Duration;

use roadstead_pod::facts::{PostStart, State};
use roadstead_pod::hook::{ContainerHook, HookKind};
use roadstead_pod::lifecycle::grace_period;
use tokio::sync::mpsc;
use tokio::time;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::Worker;
use super::probes::Begin;
use crate::prober::Target;
use crate::prober::http::{self, Asker};

/// The hooks under way, at most one of a container.
pub(super) struct Hooks {
    running: HashMap<String, AbortOnDropHandle<()>>,
    reports: mpsc::Receiver<HookReport>,
    report: mpsc::Sender<HookReport>,
}

/// What came of a hook.
pub(super) struct HookReport {
    container: String,
    /// The run that it belongs to.
    id: String,
    kind: HookKind,
    result: Result<(), String>,
}

impl Default for Hooks {
    fn default() -> Self {
        let (report, reports) = mpsc::channel(16);
        Self { running: HashMap::new(), reports, report }
    }
}

impl Hooks {
    /// Waits for the next one that is over.
    pub(super) async fn next(&mut self) -> Option<HookReport> {
        self.reports.recv().await
    }

    /// Ends the container's hook, if one runs.
    pub(super) fn end(&mut self, container: &str) {
        self.running.remove(container);
    }
}

impl Worker {
    /// Runs the container's hook of this kind; returns whether it has one.
    pub(super) fn begin_hook(&mut self, name: &str, kind: HookKind) -> bool {
        let hook = self.find(name).and_then(|container| kind.of(&container));
        let run = self.facts.containers.get(name).and_then(|known| match &known.state {
            State::Running { id, .. } => Some(id.clone()),
            _ => None,
        });
        let (Some(hook), Some(id), Some(target)) = (hook, run, self.target(name)) else {
            return false;
        };
        let (container, report) = (name.to_owned(), self.hooks.report.clone());
        let task = tokio::spawn(async move {
            let result = match hook {
                Ok(hook) => run_hook(&target, hook).await,
                Err(wrong) => Err(wrong),
            };
            let _ = report.send(HookReport { container, id, kind, result }).await;
        });
        self.hooks.running.insert(name.to_owned(), AbortOnDropHandle::new(task));
        true
    }

    pub(super) fn hook_ended(&mut self, report: HookReport) {
        let HookReport { container, id, kind, result } = report;
        let state = self.facts.containers.get(&container).map(|known| &known.state);
        let is_current = matches!(state, Some(State::Running { id: now, .. }) if *now == id);
        if !is_current || self.hooks.running.remove(&container).is_none() {
            return;
        }
        if let Err(why) = &result {
            let (reason, message) = kind.failure();
            warn!(pod = %self.title(), container, why, message);
            self.event(&container, reason, message);
        }
        match (kind, result) {
            (HookKind::PreStop, _) => self.hook_let_go(&container),
            (HookKind::PostStart, Ok(())) => self.is_up(&container),
            (HookKind::PostStart, Err(why)) => {
                let known = self.facts.containers.entry(container.clone()).or_default();
                known.post_start = PostStart::Failed(why);
                let grace = grace_period(&self.pod, self.presence);
                self.stop(&container, grace, "FailedPostStartHook");
            }
        }
    }

    /// The container has started, and its hook has nothing against it.
    pub(super) fn is_up(&mut self, name: &str) {
        let Some(container) = self.find(name) else { return };
        let Some(known) = self.facts.containers.get_mut(name) else { return };
        known.post_start = PostStart::Done;
        known.started = container.startup_probe.is_none();
        known.ready = known.started && container.readiness_probe.is_none();
        self.start_probes(name, Begin::AtOnce);
    }
}

async fn run_hook(target: &Target, hook: ContainerHook) -> Result<(), String> {
    match hook {
        ContainerHook::Sleep(time) => {
            time::sleep(time).await;
            Ok(())
        }
        ContainerHook::Http(request) => {
            // However long it takes: who does not want to wait drops us.
            let asked = http::get(Asker::Hook, &request, target.address, Duration::MAX).await;
            asked.map(drop).map_err(|failure| failure.message)
        }
        ContainerHook::Exec(command) => match target.run_command(command.clone()).await {
            Ok((0, _)) => Ok(()),
            Ok((code, output)) => {
                Err(format!("command {:?} exited with {code}: {output}", command.join(" ")))
            }
            Err(error) => Err(error.message),
        },
    }
}
