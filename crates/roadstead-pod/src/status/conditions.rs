//! A pod's conditions: pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::View;
use crate::facts::Sandbox;
use crate::lifecycle::{can_restart_all, init_done, initialized, is_restarting_all, is_sidecar};

/// The condition types that the agent writes; all others are somebody else's and stay.
pub(crate) const OWN_CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Those of them that not every pod has.
const OCCASIONAL: [&str; 3] = [PENDING, IN_PROGRESS, ALL_RESTARTING];

/// The pod wants more, or less, of the machine than it has been allocated.
const PENDING: &str = "PodResizePending";
/// Containers do not have yet what they have been allocated.
const IN_PROGRESS: &str = "PodResizeInProgress";
/// A container has ended in a way that lets all of them begin anew.
const ALL_RESTARTING: &str = "AllContainersRestarting";

/// Says that a pod ends for the sake of others.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

impl View<'_> {
    pub(super) fn conditions<'a>(
        &self,
        phase: &str,
        containers: impl Iterator<Item = &'a ContainerStatus>,
    ) -> Vec<PodCondition> {
        let Self { pod, now, .. } = *self;
        let before: &[PodCondition] =
            pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let containers_ready = self.containers_ready(phase, containers);
        let claims = [
            self.sandbox_ready(),
            self.initialized(phase, before),
            self.ready(&containers_ready, before),
            containers_ready,
            Claim::yes(),
        ];
        let own = OWN_CONDITIONS.into_iter().zip(claims);
        let evicted = self.facts.failure.as_ref().filter(|failure| failure.reason == "Evicted");
        let is_said = before.iter().any(|old| old.type_ == DISRUPTION_TARGET);
        // Said once, and kept like those of others.
        let disrupted = evicted.filter(|_| !is_said).map(|failure| {
            let message = Some(failure.message.clone());
            let claim = Claim { reason: Some("TerminationByKubelet"), message, ..Claim::yes() };
            claim.into_condition(DISRUPTION_TARGET, pod, before, now)
        });
        let is_own = |old: &&PodCondition| {
            let type_ = old.type_.as_str();
            OWN_CONDITIONS.contains(&type_) || OCCASIONAL.contains(&type_)
        };
        let foreign = before.iter().filter(|old| !is_own(old)).cloned();
        own.map(|(type_, claim)| claim.into_condition(type_, pod, before, now))
            .chain(self.occasional(before))
            .chain(foreign)
            .chain(disrupted)
            .collect()
    }

    /// Conditions that only some pods have, and those not always.
    fn occasional(&self, before: &[PodCondition]) -> Vec<PodCondition> {
        let Self { pod, spec, facts, now } = *self;
        let of_generation = |claim: Claim, type_: &str, generation: Option<i64>| PodCondition {
            observed_generation: generation,
            ..claim.into_condition(type_, pod, before, now)
        };
        let pending = facts.resize.pending.as_ref().map(|pending| {
            let message = Some(pending.message.clone());
            let claim = Claim { reason: Some(pending.reason), message, ..Claim::yes() };
            of_generation(claim, PENDING, pending.generation)
        });
        let progress = facts.resize.progress.as_ref().map(|progress| {
            let reason = progress.error.as_ref().map(|_| "Error");
            let claim = Claim { reason, message: progress.error.clone(), ..Claim::yes() };
            of_generation(claim, IN_PROGRESS, progress.generation)
        });
        let restarting = can_restart_all(spec).then(|| {
            let claim = match is_restarting_all(pod, facts) {
                false => Claim { status: false, ..Claim::yes() },
                true => Claim {
                    reason: Some("RestartAllContainersStarted"),
                    message: Some("container exited with restart policy rule".into()),
                    ..Claim::yes()
                },
            };
            claim.into_condition(ALL_RESTARTING, pod, before, now)
        });
        [restarting, pending, progress].into_iter().flatten().collect()
    }

    fn sandbox_ready(&self) -> Claim {
        let why = match self.facts.sandbox {
            Sandbox::Ready => return Claim::yes(),
            Sandbox::None => "The pod has no sandbox yet",
            Sandbox::Failed { .. } => "The pod's sandbox could not be made yet",
            Sandbox::Removed => "The pod's sandbox has been removed",
        };
        Claim::no("PodSandboxNotReady", Some(why.to_owned()))
    }

    fn initialized(&self, phase: &str, before: &[PodCondition]) -> Claim {
        let Self { spec, facts, .. } = *self;
        if phase == "Succeeded" {
            return Claim { reason: Some("PodCompleted"), ..Claim::yes() };
        }
        let unfinished = spec.init_containers.iter().flatten();
        let unfinished = unfinished.filter(|init| !init_done(init, facts));
        // Once it was, it stays so when all its containers begin anew.
        let was = before.iter().any(|old| old.type_ == "Initialized" && old.status == "True");
        match names(unfinished.map(|init| init.name.as_str())) {
            Some(_) if was && can_restart_all(spec) => Claim::yes(),
            Some(names) if !initialized(spec, facts) => Claim::no(
                "ContainersNotInitialized",
                format!("containers with incomplete status: {names}"),
            ),
            _ => Claim::yes(),
        }
    }

    fn containers_ready<'a>(
        &self,
        phase: &str,
        containers: impl Iterator<Item = &'a ContainerStatus>,
    ) -> Claim {
        let counts = |status: &&ContainerStatus| {
            let init = self.spec.init_containers.iter().flatten();
            let is_done_once = |init: &Container| init.name == status.name && !is_sidecar(init);
            !init.into_iter().any(is_done_once)
        };
        let unready = containers.filter(counts).filter(|status| !status.ready);
        match (phase, names(unready.map(|unready| unready.name.as_str()))) {
            ("Succeeded", _) => Claim::no("PodCompleted", None),
            ("Failed", _) => Claim::no("PodFailed", None),
            (_, None) => Claim::yes(),
            (_, Some(names)) => {
                Claim::no("ContainersNotReady", format!("containers with unready status: {names}"))
            }
        }
    }

    /// Others may have a say in it.
    fn ready(&self, containers_ready: &Claim, conditions: &[PodCondition]) -> Claim {
        let gates = self.spec.readiness_gates.iter().flatten();
        let closed = gates.filter_map(|gate| {
            let gate = &gate.condition_type;
            match conditions.iter().find(|condition| condition.type_ == *gate) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {gate:?} does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        });
        let closed: Vec<_> = closed.collect();
        match containers_ready.status && !closed.is_empty() {
            true => Claim::no("ReadinessGatesNotReady", closed.join(", ")),
            false => containers_ready.clone(),
        }
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| format!("[{}]", names.join(" ")))
}

/// A condition without its history.
#[derive(Clone)]
struct Claim {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Claim {
    fn yes() -> Self {
        Claim { status: true, reason: None, message: None }
    }

    fn no(reason: &'static str, message: impl Into<Option<String>>) -> Self {
        Claim { status: false, reason: Some(reason), message: message.into() }
    }

    fn into_condition(
        self,
        type_: &str,
        pod: &Pod,
        before: &[PodCondition],
        now: Timestamp,
    ) -> PodCondition {
        let status = if self.status { "True" } else { "False" };
        let same = before.iter().find(|old| old.type_ == type_ && old.status == status);
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: self.reason.map(Into::into),
            message: self.message,
            last_transition_time: same
                .and_then(|old| old.last_transition_time.clone())
                .or(Some(Time(now))),
            observed_generation: pod.metadata.generation,
            ..PodCondition::default()
        }
    }
}
