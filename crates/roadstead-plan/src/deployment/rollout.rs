//! How many replicas each version has on the way from the old template to the new one.

use k8s_openapi::api::apps::v1::{DeploymentSpec, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{DESIRED, MAX, annotate, replicas};

/// How far a rollout may stray from the wanted number of pods.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The number of pods that the Deployment asks for.
    pub wanted: i32,
    /// How many more there may be.
    pub surge: i32,
    /// How many fewer may be available.
    pub unavailable: i32,
}

/// What the strategy of a Deployment allows.
pub fn bounds(spec: &DeploymentSpec) -> Bounds {
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
    let percent = match value {
        Some(IntOrString::Int(number)) => return (*number).max(0),
        Some(IntOrString::String(text)) => text.trim_end_matches('%').parse().unwrap_or(25),
        None => 25,
    };
    let hundredths = i64::from(wanted) * i64::from(percent);
    let share = if round_up {
        hundredths.div_euclid(100) + i64::from(hundredths % 100 != 0)
    } else {
        hundredths / 100
    };
    i32::try_from(share).unwrap_or(i32::MAX)
}

/// Gives a version that does not exist yet its first replicas.
pub fn size_new(spec: &DeploymentSpec, old: &[ReplicaSet], new: &mut ReplicaSet) {
    let bounds = bounds(spec);
    let running: i32 = old.iter().map(replicas).sum();
    let size = if is_recreate(spec) {
        let left: i32 = old.iter().map(present).sum();
        if running + left == 0 { bounds.wanted } else { 0 }
    } else {
        (bounds.wanted + bounds.surge - running).clamp(0, bounds.wanted)
    };
    set_replicas(new, size, bounds);
}

/// Moves replicas towards the version at `current`.
pub fn resize(spec: &DeploymentSpec, sets: &mut [ReplicaSet], current: usize, paused: bool) {
    let bounds = bounds(spec);
    let total: i32 = sets.iter().map(replicas).sum();
    let old: i32 = total - replicas(&sets[current]);
    let size = replicas(&sets[current]);
    let left: i32 = others(sets, current).map(present).sum();
    let new_size = if size > bounds.wanted || old + left == 0 {
        bounds.wanted
    } else if paused {
        size
    } else if is_recreate(spec) {
        if old == 0 && left == 0 { bounds.wanted } else { size }
    } else {
        let room = (bounds.wanted + bounds.surge - total).max(0);
        (size + room).min(bounds.wanted)
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
    let total: i32 = sets.iter().map(replicas).sum();
    let new_unavailable = (replicas(&sets[current]) - available(&sets[current])).max(0);
    let least = bounds.wanted - bounds.unavailable;
    let mut allowed = if all { i32::MAX } else { (total - least - new_unavailable).max(0) };
    // Pods that do not work are missed by nobody.
    for (_, set) in sets.iter_mut().enumerate().filter(|(index, _)| *index != current) {
        let broken = (replicas(set) - available(set)).max(0).min(allowed);
        if broken > 0 {
            set_replicas(set, replicas(set) - broken, bounds);
            allowed -= broken;
        }
    }
    let working: i32 = sets.iter().map(available).sum();
    let mut spare = if all { i32::MAX } else { (working - least).max(0).min(allowed) };
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

fn set_replicas(set: &mut ReplicaSet, size: i32, bounds: Bounds) {
    set.spec.replicas = Some(size);
    annotate(set, DESIRED, &bounds.wanted.to_string());
    annotate(set, MAX, &(bounds.wanted + bounds.surge).to_string());
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

fn present(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}
