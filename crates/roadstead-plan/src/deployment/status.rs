//! What a Deployment reports about itself.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{name, rollout};
use crate::replicaset::FAILURE;

const PROGRESSING: &str = "Progressing";
const DONE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// One look at a Deployment.
pub(super) struct Look<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) sets: &'a [ReplicaSet],
    pub(super) current: Option<usize>,
    pub(super) now: Timestamp,
}

impl Look<'_> {
    /// The status that the present ReplicaSets amount to, and when it will say something else if
    /// nothing happens until then.
    pub(super) fn status(&self) -> (DeploymentStatus, Option<Duration>) {
        let Self { deployment, sets, current, .. } = self;
        let spec = &deployment.spec;
        let sum = |field: fn(&ReplicaSet) -> i32| rollout::total(sets.iter().map(field));
        let total = sum(|set| set.status.as_ref().map_or(0, |status| status.replicas));
        let ready = sum(|set| set.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0));
        let available =
            sum(|set| set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0));
        let leaving =
            sum(|set| set.status.as_ref().and_then(|s| s.terminating_replicas).unwrap_or(0));
        let updated =
            current.and_then(|index| sets[index].status.as_ref()).map_or(0, |s| s.replicas);
        let wanted = spec.replicas.unwrap_or(1);
        let some = |number: i32| Some(number).filter(|&number| number > 0);
        let mut status = DeploymentStatus {
            observed_generation: deployment.metadata.generation,
            replicas: some(total),
            updated_replicas: some(updated),
            ready_replicas: some(ready),
            available_replicas: some(available),
            unavailable_replicas: some(wanted - available),
            terminating_replicas: some(leaving),
            collision_count: deployment.status.as_ref().and_then(|s| s.collision_count),
            ..Default::default()
        };
        let enough = available >= wanted - rollout::bounds(spec).unavailable;
        let mut conditions = vec![self.stamped(available_condition(enough))];
        let progress = self.progress(&status);
        let deadline = progress.as_ref().and_then(|progress| {
            let said_before = self.before(PROGRESSING).is_some_and(|own| self.is_resumed(own));
            let is_news = self.is_resumed(progress) && !said_before;
            if is_news { Some(Duration::ZERO) } else { self.left(progress) }
        });
        conditions.extend(progress);
        conditions.extend(self.failure().map(|failure| self.stamped(failure)));
        status.conditions = Some(conditions);
        (status, deadline)
    }

    /// Says that the set of a new version is made.
    pub(super) fn created(&self, set: &str, status: &mut DeploymentStatus) {
        if self.patience().is_none() {
            return;
        }
        let text = format!("Created new replica set {set:?}");
        let new = self.moved(condition(PROGRESSING, "True", "NewReplicaSetCreated", text));
        let all = status.conditions.get_or_insert_default();
        let at = all.iter().position(|own| own.type_.as_deref() == Some(PROGRESSING));
        match at {
            Some(at) => all[at] = new,
            None => all.insert(all.len().min(1), new),
        }
    }

    /// How the rollout goes: what was said before, until there is something new to say.
    fn progress(&self, status: &DeploymentStatus) -> Option<DeploymentCondition> {
        let before = self.before(PROGRESSING);
        let Some(patience) = self.patience() else { return before.cloned() };
        let said = before.and_then(|own| own.reason.as_deref());
        let paused = self.deployment.spec.paused == Some(true);
        let pause = |reason, text: &str| {
            Some(self.moved(condition(PROGRESSING, "Unknown", reason, text.to_owned())))
        };
        match said {
            _ if self.deployment.metadata.deletion_timestamp.is_some() => return before.cloned(),
            Some(PAUSED) if !paused => return pause("DeploymentResumed", "Deployment is resumed"),
            Some(PAUSED | TIMED_OUT) if paused => return before.cloned(),
            _ if paused => return pause(PAUSED, "Deployment is paused"),
            _ => {}
        }
        let set = self.current.map(|index| name(&self.sets[index].metadata));
        let number = |number: Option<i32>| number.unwrap_or(0);
        let (updated, total) = (number(status.updated_replicas), number(status.replicas));
        if said == Some(DONE) && total == updated {
            return before.cloned();
        }
        let wanted = self.deployment.spec.replicas.unwrap_or(1);
        let Some(set) = set else { return before.cloned() };
        if updated == wanted && total == wanted && number(status.available_replicas) == wanted {
            let text = format!("ReplicaSet {set:?} has successfully progressed.");
            return Some(self.moved(condition(PROGRESSING, "True", DONE, text)));
        }
        if self.has_moved(status) {
            let text = format!("ReplicaSet {set:?} is progressing.");
            return Some(self.moved(condition(PROGRESSING, "True", "ReplicaSetUpdated", text)));
        }
        let Some(before) = before else {
            let text = format!("Found new replica set {set:?}");
            return Some(self.moved(condition(PROGRESSING, "True", "FoundNewReplicaSet", text)));
        };
        let left = self.left(before).unwrap_or(patience);
        if said != Some(DONE) && said != Some(TIMED_OUT) && left.is_zero() {
            let text = format!("ReplicaSet {set:?} has timed out progressing.");
            return Some(self.moved(condition(PROGRESSING, "False", TIMED_OUT, text)));
        }
        Some(before.clone())
    }

    /// Whether the new version gained on the old ones since the last time.
    fn has_moved(&self, status: &DeploymentStatus) -> bool {
        let none = DeploymentStatus::default();
        let old = self.deployment.status.as_ref().unwrap_or(&none);
        let number = |number: Option<i32>| number.unwrap_or(0);
        let rest =
            |status: &DeploymentStatus| number(status.replicas) - number(status.updated_replicas);
        number(status.updated_replicas) > number(old.updated_replicas)
            || rest(status) < rest(old)
            || number(status.ready_replicas) > number(old.ready_replicas)
            || number(status.available_replicas) > number(old.available_replicas)
    }

    /// How long nothing may happen; nothing, if it does not matter.
    fn patience(&self) -> Option<Duration> {
        let seconds = self.deployment.spec.progress_deadline_seconds.unwrap_or(600);
        let seconds = Some(seconds).filter(|seconds| *seconds != i32::MAX)?;
        u64::try_from(seconds).ok().map(Duration::from_secs)
    }

    /// How much of that is left, while somebody waits for something.
    fn left(&self, progress: &DeploymentCondition) -> Option<Duration> {
        let waits = progress.status.as_deref() == Some("True") || self.is_resumed(progress);
        if !waits || progress.reason.as_deref() == Some(DONE) {
            return None;
        }
        let since = progress.last_update_time.as_ref()?.0;
        let waited = Duration::try_from(self.now.duration_since(since)).unwrap_or_default();
        Some(self.patience()?.saturating_sub(waited))
    }

    fn is_resumed(&self, progress: &DeploymentCondition) -> bool {
        progress.reason.as_deref() == Some("DeploymentResumed")
    }

    /// Why pods cannot be made, as the sets say it, the newest first.
    fn failure(&self) -> Option<DeploymentCondition> {
        let newest = self.current.map(|index| &self.sets[index]);
        let all = newest.into_iter().chain(self.sets);
        let mut told = all.filter_map(|set| set.status.as_ref()?.conditions.as_ref()).flatten();
        let own = told.find(|own| own.type_.as_deref() == Some(FAILURE))?;
        Some(DeploymentCondition {
            type_: own.type_.clone(),
            status: own.status.clone(),
            reason: own.reason.clone(),
            message: own.message.clone(),
            ..Default::default()
        })
    }

    fn before(&self, kind: &str) -> Option<&DeploymentCondition> {
        let status = self.deployment.status.as_ref()?;
        status.conditions.as_ref()?.iter().find(|own| own.type_.as_deref() == Some(kind))
    }

    /// A condition that says something now, even if it said so before.
    fn moved(&self, mut new: DeploymentCondition) -> DeploymentCondition {
        let second = Time(Timestamp::from_second(self.now.as_second()).unwrap_or(self.now));
        let old = self.before(new.type_.as_deref().unwrap_or(""));
        let same = old.filter(|old| old.status == new.status);
        new.last_transition_time =
            same.map_or(Some(second.clone()), |old| old.last_transition_time.clone());
        new.last_update_time = Some(second);
        new
    }

    /// A condition whose times stay while it says the same.
    fn stamped(&self, new: DeploymentCondition) -> DeploymentCondition {
        let old = self.before(new.type_.as_deref().unwrap_or(""));
        let same = old.filter(|old| old.status == new.status && old.reason == new.reason);
        let since = same.map(|old| old.last_update_time.clone());
        let mut new = self.moved(new);
        if let Some(since) = since {
            new.last_update_time = since;
        }
        new
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: String) -> DeploymentCondition {
    DeploymentCondition {
        type_: Some(kind.into()),
        status: Some(status.into()),
        reason: Some(reason.into()),
        message: Some(message),
        ..Default::default()
    }
}

fn available_condition(enough: bool) -> DeploymentCondition {
    let (status, reason, text) = match enough {
        true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
        false => (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        ),
    };
    condition("Available", status, reason, text.into())
}
