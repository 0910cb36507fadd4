//! Which node a pod runs on, and who goes to make room for it.
//!
//! [`Occupancy`] follows nodes and pods and keeps numbers of them; [`decide`] asks each node for what
//! must hold (`fit`, with `taints`, `room`, `spread` and `affinity`), compares those that can take the
//! pod (`score`), and else looks for pods that matter less (`preemption`). The words are upstream's
//! (`reasons`).

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Pod;
use roadstead_api::key::ObjectKey;

mod affinity;
mod budgets;
mod domains;
mod fit;
mod groups;
mod held;
mod needs;
mod node;
mod occupancy;
mod placed;
mod ports;
mod preemption;
mod reasons;
mod room;
mod score;
mod spread;
mod table;
mod taints;
mod terms;
pub mod volumes;

pub use occupancy::Occupancy;
pub use placed::PlacedPod;
pub use reasons::{Occasion, Wakeups};
pub(crate) use taints::tolerates;

use fit::{Answers, Rules};
use needs::Needs;
use reasons::Diagnosis;
use volumes::VolumeNeeds;

/// What is to be done about a pod that waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It goes there.
    Bind(String),
    /// There will be room for it once others have left.
    Preempt(Preemption),
    /// There is no place for it.
    Wait(NoPlace),
}

/// Why there is no place now.
#[derive(Clone, Debug, PartialEq)]
pub struct NoPlace {
    /// In upstream's words.
    pub why: String,
    /// After what it is worth trying again.
    pub wakeups: Wakeups,
    /// Whether it has been promised a node that is no help any more.
    pub is_promise_void: bool,
}

/// Who leaves which node.
#[derive(Clone, Debug, PartialEq)]
pub struct Preemption {
    /// Where the pod will go.
    pub node: String,
    /// Who has to leave; those that are leaving already are not among them.
    pub victims: Vec<ObjectKey>,
    /// Less important pods that had been promised room there.
    pub disappointed: Vec<ObjectKey>,
    /// Why there is no place now.
    pub refusal: NoPlace,
}

/// Says where a pod goes. The same question gets the same answer.
pub fn decide(pod: &Pod, cluster: &mut Occupancy, volumes: &VolumeNeeds<'_>) -> Decision {
    let Some(spec) = &pod.spec else { return nowhere("") };
    if cluster.nodes() == 0 {
        return nowhere("no nodes available to schedule pods");
    }
    let rules = Rules::new(Needs::of(pod, spec), volumes, cluster);
    let answers = rules.ask(cluster);
    match best(&rules, &answers.feasible, volumes, cluster) {
        Some(node) => Decision::Bind(node),
        None => make_room(&rules, &answers, cluster),
    }
}

/// What to say of a pod whose volumes keep it from every node.
pub fn hopeless(cluster: &Occupancy, why: &str) -> Decision {
    let count = cluster.nodes();
    let mut preemption = Diagnosis::of(count);
    preemption.say("Preemption is not helpful for scheduling", count);
    let why = format!("0/{count} nodes are available: {why}. preemption: {preemption}");
    nowhere(&why)
}

fn nowhere(why: &str) -> Decision {
    let wakeups = Wakeups::of(Occasion::NodeChanged).or(Wakeups::of(Occasion::VolumeChanged));
    Decision::Wait(NoPlace { why: why.to_owned(), wakeups, is_promise_void: false })
}

/// The node that others have left for the pod, the one that its claims were promised, or else the best.
fn best(
    rules: &Rules<'_>,
    feasible: &[usize],
    volumes: &VolumeNeeds<'_>,
    cluster: &mut Occupancy,
) -> Option<String> {
    for promised in [Some(rules.needs.nominated()), volumes.selected].into_iter().flatten() {
        let slot = cluster.table.find(promised);
        if slot.is_some_and(|slot| feasible.contains(&slot)) {
            return Some(promised.to_owned());
        }
    }
    let points = match feasible {
        [_] => vec![0],
        _ => score::scores(&rules.needs, feasible, cluster),
    };
    let candidates = feasible.iter().zip(points).map(|(slot, points)| {
        let slot = &cluster.table.slots[*slot];
        (Reverse(points), slot.pods.len(), slot.name.as_str())
    });
    candidates.min().map(|(_, _, name)| name.to_owned())
}

/// No node takes the pod as they are.
fn make_room(rules: &Rules<'_>, answers: &Answers, cluster: &Occupancy) -> Decision {
    let why = answers.diagnosis.to_string();
    let (needs, wakeups) = (&rules.needs, answers.diagnosis.wakeups);
    match preemption::sacrifice(rules, answers, cluster) {
        Ok(sacrifice) => {
            let node = cluster.table.slots[sacrifice.slot].name.clone();
            let staying = sacrifice.victims.iter().filter(|(_, pod)| !pod.is_terminating);
            Decision::Preempt(Preemption {
                victims: staying.map(|(key, _)| (*key).clone()).collect(),
                disappointed: cluster.nominated_below(&node, needs.priority),
                node,
                refusal: NoPlace {
                    why,
                    wakeups: wakeups.or(Wakeups::of(Occasion::PodGone)),
                    is_promise_void: false,
                },
            })
        }
        Err(no_help) => Decision::Wait(NoPlace {
            is_promise_void: !needs.nominated().is_empty()
                && !cluster
                    .table
                    .find(needs.nominated())
                    .is_some_and(|s| answers.helpable.contains(&s)),
            why: format!("{why} preemption: {no_help}"),
            wakeups,
        }),
    }
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
