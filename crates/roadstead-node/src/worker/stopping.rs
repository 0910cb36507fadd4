//! How a pod's containers are ended, in the stages that `lifecycle` plans.

use std::time::Duration;

use jiff::Timestamp;
use roadstead_pod::facts::{State, StopStage, Stopping};
use roadstead_pod::hook::HookKind;
use roadstead_pod::lifecycle::{AFTER_SIGNAL, Presence, grace_period, hurry};
use roadstead_pod::probe::Kind;

use super::{Worker, later};
use crate::runtime::Stop;

impl Worker {
    /// Begins to end a container that runs, for that reason.
    pub(super) fn stop(&mut self, name: &str, grace: Duration, message: &str) {
        if self.stopping(name).is_none_or(|stopping| stopping.is_some()) {
            return;
        }
        if self.presence == Presence::Present {
            self.context.events.normal(&self.pod, Some(name), "Killing", message);
        }
        // It stays ready until it has ended, but it is not asked any more whether it lives.
        self.probes.end(|container, kind| container == name && kind != Kind::Readiness);
        self.hooks.end(name);
        let has_hook = !grace.is_zero() && self.begin_hook(name, HookKind::PreStop);
        let stage = if has_hook { StopStage::PreStop } else { StopStage::Waiting };
        if let Some(stopping) = self.stopping(name) {
            *stopping = Some(Stopping { stage, until: later(grace) });
        }
    }

    /// Begins to end a container that is to be started again as its spec is now.
    pub(super) fn replace(&mut self, name: &str, grace: Duration, message: &str) {
        if let Some(known) = self.facts.containers.get_mut(name) {
            known.is_replaced = true;
        }
        self.stop(name, grace, message);
    }

    /// Its preStop hook is over.
    pub(super) fn hook_let_go(&mut self, name: &str) {
        if let Some(Some(stopping)) = self.stopping(name) {
            stopping.stage = StopStage::Waiting;
        }
    }

    /// Asks it to end.
    pub(super) fn signal(&mut self, name: &str) {
        self.hooks.end(name);
        if let Some(Some(stopping)) = self.stopping(name) {
            stopping.stage = StopStage::Signalled;
            stopping.until = stopping.until.max(Timestamp::now() + AFTER_SIGNAL);
        }
        self.context.runtime.containers.stop(&self.name, name, Stop::Gracefully);
    }

    /// Forces it to end.
    pub(super) fn kill(&mut self, name: &str) {
        if let Some(Some(stopping)) = self.stopping(name) {
            stopping.stage = StopStage::Killed;
        }
        self.context.runtime.containers.stop(&self.name, name, Stop::Now);
    }

    /// Takes in that the pod's object is being deleted, perhaps with less patience than before.
    pub(super) fn hurry(&mut self) {
        if self.presence == Presence::Gone || self.pod.metadata.deletion_timestamp.is_some() {
            let latest = later(grace_period(&self.pod, self.presence));
            hurry(&mut self.facts, latest.max(Timestamp::now() + AFTER_SIGNAL));
        }
    }

    /// How far the end of a container that runs has come.
    fn stopping(&mut self, name: &str) -> Option<&mut Option<Stopping>> {
        match &mut self.facts.containers.get_mut(name)?.state {
            State::Running { stopping, .. } => Some(stopping),
            _ => None,
        }
    }
}
