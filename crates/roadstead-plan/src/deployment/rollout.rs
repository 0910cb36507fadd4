//! How many replicas each version has on the way from the old template to the new one.

use k8s_openapi::api::apps::v1::{DeploymentSpec, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{DESIRED, MAX, annotate, replicas, scaling};
use crate::pods::scaled;

/// How far a rollout may stray from the wanted number of pods.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The number of pods that the Deployment asks for.
    pub wanted: i32,
    /// How many more there may be.
    pub surge: i32,
    /// How many fewer may be available.
    pub unavailable: i32,
}

impl Bounds {
    /// How many there may be. Numbers that users write may be as large as numbers get.
    pub(super) fn most(self) -> i32 {
        self.wanted.saturating_add(self.surge)
    }
}

/// All together.
pub(super) fn total(numbers: impl Iterator<Item = i32>) -> i32 {
    numbers.fold(0, i32::saturating_add)
}

/// What the strategy of a Deployment allows.
pub(super) fn bounds(spec: &DeploymentSpec) -> Bounds {
    let wanted = spec.replicas.unwrap_or(1);
    if is_recreate(spec) {
        return Bounds { wanted, surge: 0, unavailable: wanted };
    }
    let rolling = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = share(rolling.and_then(|rolling| rolling.max_surge.as_ref()), wanted, true);
    let mut unavailable =
        share(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), wanted, false);
    if surge == 0 && unavailable == 0 {
        // Nothing could ever move.
        unavailable = 1;
    }
    Bounds { wanted, surge, unavailable: unavailable.min(wanted) }
}

fn is_recreate(spec: &DeploymentSpec) -> bool {
    spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

/// A number, or a percentage of the wanted replicas; a quarter if nothing is said.
fn share(value: Option<&IntOrString>, wanted: i32, round_up: bool) -> i32 {
    let quarter = IntOrString::String("25%".to_owned());
    scaled(value.unwrap_or(&quarter), wanted, round_up)
}

/// Gives a version that does not exist yet its first replicas.
pub(crate) fn size_new(spec: &DeploymentSpec, old: &[ReplicaSet], new: &mut ReplicaSet) {
    let bounds = bounds(spec);
    let running = total(old.iter().map(replicas));
    let size = if is_recreate(spec) {
        let left = total(old.iter().flat_map(|set| [present(set), leaving(set)]));
        if running.saturating_add(left) == 0 { bounds.wanted } else { 0 }
    } else {
        bounds.most().saturating_sub(running).clamp(0, bounds.wanted)
    };
    set_replicas(new, size, bounds);
}

/// Gives versions another size while none of them is that of the template, which has to wait.
pub(super) fn resize_paused(spec: &DeploymentSpec, sets: &mut [ReplicaSet]) {
    let bounds = bounds(spec);
    if scaling::is_due(sets, bounds) {
        scaling::scale(sets, None, bounds);
    }
}

/// Moves replicas towards the version at `current`.
pub(super) fn resize(spec: &DeploymentSpec, sets: &mut [ReplicaSet], current: usize, paused: bool) {
    let bounds = bounds(spec);
    let running = sets.iter().filter(|set| replicas(set) > 0).count();
    // Who starts all anew has never two versions for long.
    if scaling::is_due(sets, bounds) && (running < 2 || !is_recreate(spec)) {
        return scaling::scale(sets, Some(current), bounds);
    }
    let old = total(others(sets, current).map(replicas));
    let size = replicas(&sets[current]);
    let waited_for = |set| if is_recreate(spec) { leaving(set) } else { 0 };
    let left = total(others(sets, current).flat_map(|set| [present(set), waited_for(set)]));
    let new_size = if size > bounds.wanted || old.saturating_add(left) == 0 {
        bounds.wanted
    } else if paused {
        size
    } else if is_recreate(spec) {
        if old == 0 && left == 0 { bounds.wanted } else { size }
    } else {
        let room = bounds.most().saturating_sub(total([old, size].into_iter())).max(0);
        size.saturating_add(room).min(bounds.wanted)
    };
    let grown = new_size > size;
    set_replicas(&mut sets[current], new_size, bounds);
    if paused || old == 0 || (grown && !is_recreate(spec)) {
        return;
    }
    shrink_old(sets, current, bounds, is_recreate(spec));
}

/// Takes replicas away from old versions as far as enough pods stay available.
fn shrink_old(sets: &mut [ReplicaSet], current: usize, bounds: Bounds, all: bool) {
    let present = total(sets.iter().map(replicas));
    let new_unavailable = replicas(&sets[current]).saturating_sub(available(&sets[current])).max(0);
    let least = bounds.wanted - bounds.unavailable;
    let spared = present.saturating_sub(least).saturating_sub(new_unavailable);
    let mut allowed = if all { i32::MAX } else { spared.max(0) };
    // Pods that do not work are missed by nobody.
    for (_, set) in sets.iter_mut().enumerate().filter(|(index, _)| *index != current) {
        let broken = replicas(set).saturating_sub(available(set)).max(0).min(allowed);
        if broken > 0 {
            set_replicas(set, replicas(set) - broken, bounds);
            allowed -= broken;
        }
    }
    let working = total(sets.iter().map(available));
    let mut spare = if all { i32::MAX } else { working.saturating_sub(least).max(0).min(allowed) };
    for (_, set) in sets.iter_mut().enumerate().filter(|(index, _)| *index != current) {
        let taken = replicas(set).min(spare);
        if taken > 0 {
            set_replicas(set, replicas(set) - taken, bounds);
            spare -= taken;
        }
    }
}

fn others(sets: &[ReplicaSet], current: usize) -> impl Iterator<Item = &ReplicaSet> {
    sets.iter().enumerate().filter(move |(index, _)| *index != current).map(|(_, set)| set)
}

pub(super) fn set_replicas(set: &mut ReplicaSet, size: i32, bounds: Bounds) {
    set.spec.replicas = Some(size);
    annotate(set, DESIRED, &bounds.wanted.to_string());
    annotate(set, MAX, &bounds.most().to_string());
}

pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

fn present(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

/// Pods that were asked to go and still run.
fn leaving(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.terminating_replicas).unwrap_or(0)
}
