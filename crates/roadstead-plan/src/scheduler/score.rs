//! Which of the nodes that can take a pod is the best: each rule gives from 0 to 100 points, with a
//! weight, as upstream's default plugins do.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PreferredSchedulingTerm;
use roadstead_api::node_affinity::meets_any;

use super::affinity::Sympathy;
use super::needs::Needs;
use super::node::{NodeState, full_name};
use super::occupancy::Occupancy;
use super::spread::Evenness;
use super::table::Slot;
use super::taints::disliked;

const MOST: i64 = 100;
/// Weights of taints, node affinity, spreading and pod affinity; the others have 1.
const TAINTS: i64 = 3;
const DOUBLE: i64 = 2;
/// An image that is smaller is no reason, one that is larger is as good a reason (per container).
const SMALL_IMAGE: u64 = 23 << 20;
const LARGE_IMAGE: u64 = 1000 << 20;

/// The points of each of these nodes.
pub(super) fn scores(needs: &Needs<'_>, feasible: &[usize], cluster: &mut Occupancy) -> Vec<i64> {
    let (sympathy, evenness) = (Sympathy::of(needs, cluster), Evenness::of(needs, cluster));
    let mut sums = vec![0; feasible.len()];
    let mut add = |weight: i64, points: Vec<i64>| {
        sums.iter_mut().zip(points).for_each(|(sum, own)| *sum += weight * own);
    };
    let nodes = || {
        let slots = feasible.iter().map(|slot| &cluster.table.slots[*slot]);
        slots.filter_map(|slot| Some((slot, slot.state.as_ref()?)))
    };
    let each = |points: &dyn Fn(&Slot, &NodeState) -> i64| -> Vec<i64> {
        nodes().map(|(slot, node)| points(slot, node)).collect()
    };
    add(TAINTS, fewer_is_better(&each(&|_, node| disliked(needs.tolerations, node))));
    let preferred = preferred(needs);
    if !preferred.is_empty() {
        add(DOUBLE, more_is_better(&each(&|_, node| liking(preferred, node))));
    }
    if !evenness.is_empty() {
        add(DOUBLE, emptier_is_better(&evenness.crowding(feasible)));
    }
    if !sympathy.is_empty() {
        let worth = feasible.iter().map(|slot| sympathy.at(*slot)).collect::<Vec<_>>();
        add(DOUBLE, stretched(&worth));
    }
    add(1, each(&|slot, node| least_allocated(needs, slot, node)));
    if needs.amount.asked != Default::default() {
        add(1, each(&|slot, node| balanced(needs, slot, node)));
    }
    let images = images(needs, cluster);
    if !images.is_empty() {
        let containers =
            needs.spec.containers.len() + needs.spec.init_containers.iter().flatten().count();
        add(1, each(&|_, node| image_points(&images, containers, node)));
    }
    sums
}

fn preferred<'a>(needs: &Needs<'a>) -> &'a [PreferredSchedulingTerm] {
    let affinity = needs.spec.affinity.as_ref().and_then(|own| own.node_affinity.as_ref());
    let terms =
        affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref());
    terms.unwrap_or_default()
}

/// The weights of the preferred terms that a node meets.
fn liking(preferred: &[PreferredSchedulingTerm], node: &NodeState) -> i64 {
    let met = preferred
        .iter()
        .filter(|own| meets_any(std::slice::from_ref(&own.preference), node.traits()));
    met.map(|own| i64::from(own.weight)).sum()
}

fn more_is_better(found: &[i64]) -> Vec<i64> {
    let most = found.iter().copied().max().unwrap_or(0);
    found.iter().map(|own| if most == 0 { 0 } else { MOST * own / most }).collect()
}

fn fewer_is_better(found: &[i64]) -> Vec<i64> {
    more_is_better(found).into_iter().map(|own| MOST - own).collect()
}

fn emptier_is_better(found: &[Option<i64>]) -> Vec<i64> {
    let known = || found.iter().flatten().copied();
    let (least, most) = (known().min().unwrap_or(0), known().max().unwrap_or(0));
    let points = |own: i64| if most == 0 { MOST } else { MOST * (most + least - own) / most };
    found.iter().map(|own| own.map_or(0, points)).collect()
}

fn stretched(found: &[i64]) -> Vec<i64> {
    let (least, most) = (found.iter().min(), found.iter().max());
    let (Some(least), Some(most)) = (least, most) else { return Vec::new() };
    let range = most - least;
    found.iter().map(|own| if range == 0 { 0 } else { MOST * (own - least) / range }).collect()
}

/// Processors and memory, with what is taken once the pod is there.
fn parts(asked: [u64; 2], there: [u64; 2], node: &NodeState) -> impl Iterator<Item = (u64, u64)> {
    let has = [node.room.cpu, node.room.memory];
    let all = has.into_iter().zip(asked.into_iter().zip(there));
    let taken = |(has, (asked, there)): (Option<u64>, (u64, u64))| {
        let has = has.filter(|has| *has > 0)?;
        Some((has, asked.saturating_add(there)))
    };
    all.filter_map(taken)
}

/// What stays free.
fn least_allocated(needs: &Needs<'_>, slot: &Slot, node: &NodeState) -> i64 {
    let (own, there) = (needs.amount.estimated, slot.used.estimated);
    let free: Vec<i64> = parts([own.cpu, own.memory], [there.cpu, there.memory], node)
        .map(|(has, taken)| {
            let free = u128::from(has.saturating_sub(taken));
            (free * MOST as u128 / u128::from(has)) as i64
        })
        .collect();
    free.iter().sum::<i64>() / (free.len().max(1) as i64)
}

/// Whether as much of the memory is taken as of the processors.
fn balanced(needs: &Needs<'_>, slot: &Slot, node: &NodeState) -> i64 {
    let (own, there) = (needs.amount.asked, slot.used.asked);
    let taken: Vec<f64> = parts([own.cpu, own.memory], [there.cpu, there.memory], node)
        .map(|(has, taken)| (taken as f64 / has as f64).min(1.0))
        .collect();
    let deviation = match taken[..] {
        [cpu, memory] => (cpu - memory).abs() / 2.0,
        _ => 0.0,
    };
    ((1.0 - deviation) * MOST as f64) as i64
}

/// The images that some nodes have, each with the part of the nodes that have it.
fn images(needs: &Needs<'_>, cluster: &Occupancy) -> BTreeMap<String, f64> {
    let all = needs.spec.init_containers.iter().flatten().chain(&needs.spec.containers);
    let names = all.filter_map(|container| container.image.as_deref()).map(full_name);
    let shares = names.filter_map(|name| {
        let nodes = cluster.table.nodes_with(&name);
        (nodes > 0).then(|| (name, nodes as f64 / cluster.nodes().max(1) as f64))
    });
    shares.collect()
}

/// What need not be pulled. What is on few nodes counts for less, lest all pods go there.
fn image_points(images: &BTreeMap<String, f64>, containers: usize, node: &NodeState) -> i64 {
    let there = images.iter().filter_map(|(name, share)| {
        let size = node.images.get(name)?;
        Some((*size as f64 * share) as u64)
    });
    let most = LARGE_IMAGE * containers as u64;
    let sum = there.sum::<u64>().clamp(SMALL_IMAGE, most.max(SMALL_IMAGE));
    (MOST as u64 * (sum - SMALL_IMAGE) / (most - SMALL_IMAGE).max(1)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points() {
        assert_eq!(more_is_better(&[0, 5, 10]), [0, 50, 100]);
        assert_eq!(more_is_better(&[0, 0]), [0, 0]);
        assert_eq!(fewer_is_better(&[0, 1]), [100, 0]);
        assert_eq!(fewer_is_better(&[0, 0]), [100, 100]);
        assert_eq!(emptier_is_better(&[Some(2), Some(4), None]), [100, 50, 0]);
        assert_eq!(emptier_is_better(&[Some(0), Some(0)]), [100, 100]);
        assert_eq!(stretched(&[-10, 0, 10]), [0, 50, 100]);
        assert_eq!(stretched(&[7, 7]), [0, 0]);
    }
}
