//! A Deployment that is given another number of replicas while several versions of it run: each gets
//! its share, so that a rollout that is stuck is not made worse, nor better, by scaling.

use k8s_openapi::api::apps::v1::ReplicaSet;

use super::rollout::{Bounds, available, set_replicas};
use super::{DESIRED, MAX, replicas, revision};

/// Whether some version that runs was given its size for another number of replicas.
pub(super) fn is_due(sets: &[ReplicaSet], bounds: Bounds) -> bool {
    let outdated = |set: &ReplicaSet| noted(set, DESIRED).is_some_and(|own| own != bounds.wanted);
    sets.iter().any(|set| replicas(set) > 0 && outdated(set))
}

/// Gives the versions their shares of the new number.
pub(super) fn scale(sets: &mut [ReplicaSet], current: Option<usize>, bounds: Bounds) {
    let mut active: Vec<_> = (0..sets.len()).filter(|index| replicas(&sets[*index]) > 0).collect();
    if let [only] = active[..] {
        return set_replicas(&mut sets[only], bounds.wanted, bounds);
    }
    if let Some(current) = current.filter(|current| is_saturated(&sets[*current], bounds)) {
        let others = active.iter().filter(|index| **index != current);
        return others.for_each(|index| set_replicas(&mut sets[*index], 0, bounds));
    }
    // Numbers that users write may be as large as numbers get.
    let total: i64 = active.iter().map(|index| i64::from(replicas(&sets[*index]))).sum();
    let allowed = if bounds.wanted > 0 { i64::from(bounds.most()) } else { 0 };
    let change = allowed - total;
    // Of two that are as large the newer one grows first, and the older one shrinks first.
    let age = |index: &usize| i128::from(revision(&sets[*index])) * i128::from(change.signum());
    active.sort_by_key(|index| (-replicas(&sets[*index]), -age(index)));
    let mut left = change;
    let mut sizes = Vec::new();
    for index in &active {
        let own = i64::from(replicas(&sets[*index]));
        let share = share(&sets[*index], allowed);
        let share = if change > 0 { share.clamp(0, left) } else { share.clamp(left, 0) };
        left -= share;
        sizes.push(own + share);
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + left).max(0);
    }
    for (index, size) in active.into_iter().zip(sizes) {
        let size = i32::try_from(size).unwrap_or(i32::MAX);
        set_replicas(&mut sets[index], size, bounds);
    }
}

/// By how much a version changes when all together may be so many.
fn share(set: &ReplicaSet, allowed: i64) -> i64 {
    let own = i64::from(replicas(set));
    let before = noted(set, MAX).map(i64::from).filter(|before| *before > 0);
    let before = before.unwrap_or(allowed).max(1);
    // Rounded to the nearest, and no product is larger than that of two numbers of 32 bits.
    (own * allowed + before / 2) / before - own
}

fn is_saturated(set: &ReplicaSet, bounds: Bounds) -> bool {
    replicas(set) == bounds.wanted
        && noted(set, DESIRED) == Some(bounds.wanted)
        && available(set) == bounds.wanted
}

fn noted(set: &ReplicaSet, annotation: &str) -> Option<i32> {
    set.metadata.annotations.as_ref()?.get(annotation)?.parse().ok()
}
