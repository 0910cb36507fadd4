//! How containers end, one or all: pure.
//!
//! A container that is to end runs its preStop hook, waits for its turn, is asked by a signal, and is
//! killed when its time is over. All of it happens within the grace period, but for two seconds that
//! everybody gets after the signal.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{PodPlan, PodStep, Presence, is_sidecar};
use crate::facts::{PodFacts, Sandbox, State, StopStage, Stopping};

/// However little is left of the grace period, there is so much between the signal and the kill.
pub const AFTER_SIGNAL: SignedDuration = SignedDuration::from_secs(2);

/// How long the pod's containers get to end.
pub fn grace_period(pod: &Pod, presence: Presence) -> Duration {
    let asked = pod.metadata.deletion_grace_period_seconds;
    let usual = || pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    match presence {
        Presence::Gone => Duration::ZERO,
        Presence::Present => {
            Duration::from_secs(asked.or_else(usual).unwrap_or(30).max(0).unsigned_abs())
        }
    }
}

/// Takes in that somebody has lost patience: nobody who is ending has more time than until `latest`.
pub fn hurry(facts: &mut PodFacts, latest: Timestamp) {
    for container in facts.containers.values_mut() {
        if let State::Running { stopping: Some(stopping), .. } = &mut container.state {
            stopping.until = stopping.until.min(latest);
        }
    }
}

/// Whether the whole pod ends, or only containers of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Extent {
    Pod,
    Containers,
}

/// Ends all that runs, then the sandbox.
pub(super) fn take_down(
    spec: &PodSpec,
    facts: &PodFacts,
    grace: Duration,
    now: Timestamp,
) -> PodPlan {
    let mut plan = PodPlan::default();
    for (name, container) in &facts.containers {
        if let State::Running { stopping: None, .. } = container.state {
            plan.steps.push(PodStep::Stop { container: name.clone(), grace });
        }
    }
    advance(spec, facts, Extent::Pod, now, &mut plan);
    let has_sandbox = !matches!(facts.sandbox, Sandbox::None | Sandbox::Removed);
    if !facts.any_running() && has_sandbox {
        plan.steps.push(PodStep::RemoveSandbox);
    }
    plan
}

/// Carries on with the containers that are ending.
pub(super) fn advance(
    spec: &PodSpec,
    facts: &PodFacts,
    extent: Extent,
    now: Timestamp,
    plan: &mut PodPlan,
) {
    for (name, container) in &facts.containers {
        let State::Running { stopping: Some(Stopping { stage, until }), .. } = container.state
        else {
            continue;
        };
        let is_over = until <= now;
        match stage {
            StopStage::Waiting
                if extent == Extent::Containers || is_its_turn(spec, facts, name) =>
            {
                plan.steps.push(PodStep::Signal(name.clone()));
            }
            StopStage::PreStop | StopStage::Waiting if is_over => {
                plan.steps.push(PodStep::Signal(name.clone()));
            }
            StopStage::Signalled if is_over => plan.steps.push(PodStep::Kill(name.clone())),
            StopStage::Killed => {}
            _ => plan.wake(until),
        }
    }
}

/// Sidecars serve the others, so they end after them: in the reverse order of their start.
fn is_its_turn(spec: &PodSpec, facts: &PodFacts, name: &str) -> bool {
    let mut init = spec.init_containers.iter().flatten();
    let Some(_) = init.find(|container| container.name == name).filter(|init| is_sidecar(init))
    else {
        return true;
    };
    // What is left of the iterator was started later.
    let mut before_it = init.chain(&spec.containers);
    !before_it.any(|container| facts.runs(&container.name))
}
