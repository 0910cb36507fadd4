//! What a Deployment reports about itself.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{name, rollout};

/// The status that the present ReplicaSets amount to.
pub fn status(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    sets: &[ReplicaSet],
    current: Option<usize>,
    now: Timestamp,
) -> DeploymentStatus {
    let sum = |field: fn(&ReplicaSet) -> i32| sets.iter().map(field).sum::<i32>();
    let total = sum(|set| set.status.as_ref().map_or(0, |status| status.replicas));
    let ready = sum(|set| set.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0));
    let available = sum(|set| set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0));
    let updated = current.and_then(|index| sets[index].status.as_ref()).map_or(0, |s| s.replicas);
    let wanted = spec.replicas.unwrap_or(1);
    let some = |number: i32| Some(number).filter(|&number| number > 0);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some(total),
        updated_replicas: some(updated),
        ready_replicas: some(ready),
        available_replicas: some(available),
        unavailable_replicas: some(wanted - available),
        collision_count: deployment.status.as_ref().and_then(|status| status.collision_count),
        ..Default::default()
    };
    let enough = available >= wanted - rollout::bounds(spec).unavailable;
    let done = updated == wanted && total == wanted && available == wanted && current.is_some();
    let new = current.map(|index| &sets[index]);
    let conditions = [
        available_condition(enough),
        progressing_condition(deployment, spec, &status, new, done, now),
    ];
    let old = deployment.status.as_ref().and_then(|status| status.conditions.as_ref());
    let find = |kind: &Option<String>| old?.iter().find(|condition| condition.type_ == *kind);
    let stamped = conditions.map(|condition| stamp(find(&condition.type_), condition, now));
    status.conditions = Some(stamped.into());
    status
}

fn condition(kind: &str, holds: bool, reason: &str, message: String) -> DeploymentCondition {
    DeploymentCondition {
        type_: Some(kind.into()),
        status: Some(if holds { "True" } else { "False" }.into()),
        reason: Some(reason.into()),
        message: Some(message),
        ..Default::default()
    }
}

fn available_condition(enough: bool) -> DeploymentCondition {
    let (reason, text) = match enough {
        true => ("MinimumReplicasAvailable", "Deployment has minimum availability."),
        false => ("MinimumReplicasUnavailable", "Deployment does not have minimum availability."),
    };
    condition("Available", enough, reason, text.into())
}

fn progressing_condition(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    status: &DeploymentStatus,
    new: Option<&ReplicaSet>,
    done: bool,
    now: Timestamp,
) -> DeploymentCondition {
    let set = new.map_or("", |set| name(&set.metadata));
    if done {
        let text = format!("ReplicaSet {set:?} has successfully progressed.");
        return condition("Progressing", true, "NewReplicaSetAvailable", text);
    }
    let old = deployment.status.as_ref();
    let before = old.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
    let before =
        before.into_iter().find(|condition| condition.type_.as_deref() == Some("Progressing"));
    let moved = old.is_none_or(|old| {
        old.updated_replicas != status.updated_replicas
            || old.ready_replicas != status.ready_replicas
            || old.available_replicas != status.available_replicas
            || old.replicas != status.replicas
            || old.observed_generation != status.observed_generation
    });
    let deadline = i64::from(spec.progress_deadline_seconds.unwrap_or(600));
    let since = before.and_then(|condition| condition.last_update_time.as_ref());
    let late = since.is_some_and(|time| now.as_second() - time.0.as_second() > deadline);
    if !moved && late && new.is_some() {
        let text = format!("ReplicaSet {set:?} has timed out progressing.");
        return condition("Progressing", false, "ProgressDeadlineExceeded", text);
    }
    match new {
        None => {
            let text = "The new replica set is being created.".to_owned();
            condition("Progressing", true, "ReplicaSetUpdated", text)
        }
        Some(_) => {
            let text = format!("ReplicaSet {set:?} is progressing.");
            let mut condition = condition("Progressing", true, "ReplicaSetUpdated", text);
            if moved {
                condition.last_update_time = Some(Time(now));
            }
            condition
        }
    }
}

/// Keeps the times of a condition that says the same as before.
fn stamp(
    old: Option<&DeploymentCondition>,
    mut new: DeploymentCondition,
    now: Timestamp,
) -> DeploymentCondition {
    let second = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let same_status = old.filter(|old| old.status == new.status);
    let same = same_status.filter(|old| old.reason == new.reason && new.last_update_time.is_none());
    new.last_transition_time =
        same_status.map_or(Some(second.clone()), |old| old.last_transition_time.clone());
    new.last_update_time = same.map_or(Some(second), |old| old.last_update_time.clone());
    new
}
