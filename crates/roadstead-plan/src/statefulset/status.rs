//! What a StatefulSet reports about itself.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};

use super::{is_rolling, revision};
use crate::pod_view::PodView;
use crate::pods::{count, some};
use crate::revisions::{self, Revisions};

/// The status that the present pods amount to.
pub(super) fn status(
    set: &StatefulSet,
    pods: &[&PodView],
    revisions: &Revisions,
    now: Timestamp,
) -> StatefulSetStatus {
    let old = set.status.clone().unwrap_or_default();
    let newest = revisions::name(&revisions.newest).to_owned();
    let known = |name: &String| revisions.all.iter().any(|own| revisions::name(own) == name);
    let current = old.current_revision.filter(known).unwrap_or_else(|| newest.clone());
    let number = |test: &dyn Fn(&PodView) -> bool| pods.iter().filter(|pod| test(pod)).count();
    let patience = set.spec.min_ready_seconds.unwrap_or(0);
    let stays = |pod: &PodView| !pod.is_terminating();
    let ready = number(&|pod| pod.ready && !pod.is_finished());
    let updated = number(&|pod| stays(pod) && revision(pod) == newest);
    // While pods are missing, those below the partition must come back as they were.
    let is_whole = count(pods.len()) >= set.spec.replicas.unwrap_or(1);
    let is_done = is_rolling(set) && is_whole && updated == pods.len() && ready == pods.len();
    let current = if is_done { newest.clone() } else { current };
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(pods.len()),
        ready_replicas: some(ready),
        available_replicas: Some(count(number(&|pod| {
            !pod.is_finished() && pod.is_available(patience, now)
        }))),
        current_replicas: some(number(&|pod| stays(pod) && revision(pod) == current)),
        updated_replicas: some(updated),
        current_revision: Some(current),
        update_revision: Some(newest),
        collision_count: Some(revisions.collisions),
        conditions: old.conditions,
    }
}
