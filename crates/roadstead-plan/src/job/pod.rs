//! One pod of a Job: how it is made, and how it ended.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};

use super::Work;
use crate::pods::from_template;

/// What keeps a pod until it is counted.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// The label and annotation that says which index a pod is for.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";

/// A pod, for an index if the Job has some, with how often that index has failed.
pub(super) fn pod(job: Work<'_>, index: Option<i32>, failures: i32) -> Pod {
    let mut pod = from_template(job.job, Some(&job.spec.template));
    pod.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
    let Some(index) = index else { return pod };
    let name = job.job.metadata.name.as_deref().unwrap_or("");
    pod.metadata.generate_name = Some(format!("{name}-{index}-"));
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), index.to_string());
    if job.spec.backoff_limit_per_index.is_some() {
        annotations.insert(FAILURES.to_owned(), failures.to_string());
    }
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{name}-{index}"));
    let field = ObjectFieldSelector {
        field_path: format!("metadata.annotations['{INDEX}']"),
        ..ObjectFieldSelector::default()
    };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    let variable = EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value_from: Some(source),
        ..EnvVar::default()
    };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let all = container.env.get_or_insert_default();
        if all.iter().all(|own| own.name != variable.name) {
            all.push(variable.clone());
        }
    }
    pod
}

pub(super) fn index(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok()
}

/// How often its index had failed when it was made.
pub(super) fn earlier_failures(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|annotations| annotations.get(FAILURES));
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|own| own == FINALIZER)
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("")
}

pub(super) fn has_succeeded(pod: &Pod) -> bool {
    phase(pod) == "Succeeded"
}

pub(super) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(super) fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut all = conditions.into_iter().flatten();
    all.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(super) fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| {
        let first = status.init_container_statuses.iter().flatten();
        first.chain(status.container_statuses.iter().flatten())
    })
}

/// When its last container ended.
pub(super) fn ended(pod: &Pod) -> Option<Timestamp> {
    let ends = containers(pod).filter_map(|container| {
        let terminated = container.state.as_ref()?.terminated.as_ref()?;
        terminated.finished_at.as_ref().map(|time| time.0)
    });
    let asked = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    ends.max().or(asked).or(created)
}

/// How often its containers were started again.
pub(super) fn restarts(pod: &Pod) -> i32 {
    containers(pod).map(|container| container.restart_count).fold(0, i32::saturating_add)
}

/// All but the `kept` best: those that count stay before those that have been let go, those that run
/// before those that wait, the old before the young.
pub(super) fn least_useful(mut pods: Vec<&Pod>, kept: usize) -> Vec<&Pod> {
    pods.sort_by_key(|pod| {
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (
            !is_tracked(pod),
            !is_ready(pod),
            phase(pod) != "Running",
            created,
            pod.metadata.name.clone(),
        )
    });
    pods.split_off(kept.min(pods.len()))
}
