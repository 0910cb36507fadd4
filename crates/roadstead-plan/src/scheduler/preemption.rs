//! Who goes to make room for a pod that matters more: on the node where that does the least harm.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use roadstead_api::key::ObjectKey;

use super::fit::{Answers, Rules};
use super::occupancy::Occupancy;
use super::placed::PlacedPod;
use super::reasons::Diagnosis;

/// At least so many nodes are compared, and a tenth of them.
const COMPARED: usize = 100;

/// What would have to go from a node.
#[derive(Debug)]
pub(super) struct Sacrifice<'a> {
    pub(super) slot: usize,
    /// The most important first.
    pub(super) victims: Vec<(&'a ObjectKey, &'a Arc<PlacedPod>)>,
    violations: usize,
}

/// Says who has to go, or why that is no help.
pub(super) fn sacrifice<'a>(
    rules: &Rules<'_>,
    answers: &Answers,
    cluster: &'a Occupancy,
) -> Result<Sacrifice<'a>, String> {
    let needs = &rules.needs;
    if needs.spec.preemption_policy.as_deref() == Some("Never") {
        return Err("not eligible due to preemptionPolicy=Never.".into());
    }
    if is_awaited(rules, answers, cluster) {
        return Err("not eligible due to terminating pod on the nominated node.".into());
    }
    let helpable = &answers.helpable;
    let enough = COMPARED.max(cluster.nodes() / 10);
    let first = offset(needs.uid(), helpable.len());
    let mut diagnosis = Diagnosis::of(cluster.nodes());
    let mut found = Vec::new();
    let order = helpable[first..].iter().chain(&helpable[..first]);
    for slot in order {
        match on_node(rules, *slot, cluster, &mut diagnosis) {
            Some(sacrifice) => found.push(sacrifice),
            None => continue,
        }
        if found.len() >= enough {
            break;
        }
    }
    let best = found.into_iter().min_by_key(|sacrifice| sacrifice.harm(cluster));
    best.ok_or_else(|| {
        let hopeless = cluster.nodes() - helpable.len();
        diagnosis.say("Preemption is not helpful for scheduling", hopeless);
        diagnosis.to_string()
    })
}

/// Whether pods are on their way out already where this one is to go.
fn is_awaited(rules: &Rules<'_>, answers: &Answers, cluster: &Occupancy) -> bool {
    let needs = &rules.needs;
    let Some(slot) = cluster.table.find(needs.nominated()) else { return false };
    let mut pods = cluster.table.slots[slot].pods.values();
    answers.helpable.contains(&slot)
        && pods.any(|pod| pod.is_terminating && pod.priority < needs.priority)
}

/// Not all pods begin with the same nodes; the same pod always does.
fn offset(uid: &str, nodes: usize) -> usize {
    let sum = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (sum % nodes.max(1) as u64) as usize
}

/// Who has to go from a node: all that matter less, but for those that can stay after all, beginning
/// with those whose budgets allow nothing, and among them with the most important.
fn on_node<'a>(
    rules: &Rules<'_>,
    slot: usize,
    cluster: &'a Occupancy,
    diagnosis: &mut Diagnosis,
) -> Option<Sacrifice<'a>> {
    let pods = cluster.table.slots[slot].pods.iter();
    let mut lower: Vec<_> = pods.filter(|(_, pod)| pod.priority < rules.needs.priority).collect();
    if lower.is_empty() {
        diagnosis.say("No preemption victims found for incoming pod", 1);
        return None;
    }
    lower.sort_by_key(|(key, pod)| {
        (Reverse(pod.priority), pod.started.is_none(), pod.started, *key)
    });
    let ordered: Vec<&PlacedPod> = lower.iter().map(|(_, pod)| pod.as_ref()).collect();
    let mut gone = ordered.clone();
    let obstacles = rules.obstacles(slot, &gone, cluster);
    if !obstacles.is_empty() {
        obstacles.iter().for_each(|obstacle| diagnosis.note(obstacle, 1));
        return None;
    }
    let violating = cluster.violating(&ordered);
    let mut order: Vec<usize> = (0..lower.len()).collect();
    order.sort_by_key(|index| (!violating[*index], *index));
    let (mut victims, mut violations) = (Vec::new(), 0);
    for index in order {
        let (key, pod) = lower[index];
        gone.retain(|other| !std::ptr::eq(*other, pod.as_ref()));
        if !rules.obstacles(slot, &gone, cluster).is_empty() {
            gone.push(pod.as_ref());
            victims.push((key, pod));
            violations += usize::from(violating[index]);
        }
    }
    victims.sort_by_key(|(key, pod)| (Reverse(pod.priority), *key));
    Some(Sacrifice { slot, victims, violations })
}

impl Sacrifice<'_> {
    /// What is compared, the worst first: budgets, the most important of those who go, their sum, their
    /// number, and how long those have run that matter most.
    fn harm(
        &self,
        cluster: &Occupancy,
    ) -> (usize, i64, i64, usize, Reverse<Option<Timestamp>>, String) {
        let priorities = || self.victims.iter().map(|(_, pod)| i64::from(pod.priority));
        let highest = priorities().max().unwrap_or(i64::MIN);
        let sum = priorities().map(|own| own + i64::from(i32::MAX) + 1).sum();
        let best = self.victims.iter().filter(|(_, pod)| i64::from(pod.priority) == highest);
        let earliest = best.filter_map(|(_, pod)| pod.started).min();
        let name = cluster.table.slots[self.slot].name.clone();
        (self.violations, highest, sum, self.victims.len(), Reverse(earliest), name)
    }
}
