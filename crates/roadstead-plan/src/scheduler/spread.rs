//! Pods evenly over places: topology spread constraints, and those that Services and controllers have
//! without being asked.

use std::sync::Arc;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use super::domains::Domains;
use super::groups::{Common, Counts, PodGroup};
use super::needs::Needs;
use super::node::NodeState;
use super::occupancy::{Occupancy, Siblings};
use super::placed::PlacedPod;
use super::reasons::Obstacle;
use super::taints::untolerated;

/// What pods that say nothing are spread by, with the skew that is nothing yet.
const USUAL: [(&str, i64); 2] = [("kubernetes.io/hostname", 5), ("topology.kubernetes.io/zone", 3)];

/// A constraint that must hold.
#[derive(Debug)]
struct Rule {
    group: Common,
    max_skew: i64,
    /// Whether the pod is one of those that are counted.
    own: i64,
    domains: Arc<Domains>,
    counts: Vec<u32>,
    /// The two domains that have the fewest.
    fewest: [(i64, Option<usize>); 2],
    /// There should be more domains: those that are missing have no pods.
    is_short: bool,
}

/// All that must hold.
#[derive(Debug)]
pub(super) struct Spread(Vec<Rule>);

const MUST: &str = "DoNotSchedule";

fn constraints<'a>(needs: &Needs<'a>, is_hard: bool) -> Vec<&'a TopologySpreadConstraint> {
    let all = needs.spec.topology_spread_constraints.iter().flatten();
    all.filter(|own| (own.when_unsatisfiable == MUST) == is_hard).collect()
}

fn group(needs: &Needs<'_>, own: &TopologySpreadConstraint) -> PodGroup {
    let keys = own.match_label_keys.as_deref();
    PodGroup::spread(needs.namespace(), own.label_selector.as_ref(), keys, needs.labels)
}

/// Whether the pods of a node count.
fn is_counted(needs: &Needs<'_>, own: &TopologySpreadConstraint, node: &NodeState) -> bool {
    let honours_affinity = own.node_affinity_policy.as_deref() != Some("Ignore");
    let honours_taints = own.node_taints_policy.as_deref() == Some("Honor");
    (!honours_affinity || needs.wants(node))
        && (!honours_taints || untolerated(needs.tolerations, node).is_none())
}

impl Spread {
    pub(super) fn of(needs: &Needs<'_>, cluster: &mut Occupancy) -> Self {
        let all = constraints(needs, true);
        let topologies: Vec<_> =
            all.iter().map(|own| cluster.table.domains(&own.topology_key)).collect();
        let rule = |(own, domains): (&&TopologySpreadConstraint, &Arc<Domains>)| {
            let group = vec![group(needs, own)];
            let counts = cluster.count(&group).clone();
            let is_own = group[0].has(needs.namespace(), needs.labels, &cluster.namespaces);
            let is_there = |slot: usize, node: &NodeState| {
                topologies.iter().all(|domains| domains.of(slot).is_some())
                    && is_counted(needs, own, node)
            };
            let mut sums: Vec<Option<u32>> = vec![None; domains.len];
            for (slot, _, _) in cluster.table.all().filter(|(slot, _, node)| is_there(*slot, node))
            {
                if let Some(domain) = domains.of(slot) {
                    let count = counts.get(&slot).copied().unwrap_or(0);
                    sums[domain] = Some(sums[domain].unwrap_or(0) + count);
                }
            }
            let known = sums.iter().flatten().count();
            let least = own.min_domains.and_then(|least| usize::try_from(least).ok());
            Rule {
                group,
                max_skew: i64::from(own.max_skew),
                own: i64::from(is_own),
                domains: domains.clone(),
                fewest: fewest(&sums),
                counts: sums.into_iter().map(Option::unwrap_or_default).collect(),
                is_short: least.is_some_and(|least| known < least),
            }
        };
        Self(all.iter().zip(&topologies).map(rule).collect())
    }

    /// What keeps the pod from a node that these pods have left.
    pub(super) fn obstacle(
        &self,
        slot: usize,
        gone: &[&PlacedPod],
        cluster: &Occupancy,
    ) -> Option<Obstacle<'static>> {
        for rule in &self.0 {
            let Some(domain) = rule.domains.of(slot) else { return Some(Obstacle::SpreadLabel) };
            let has = |pod: &&&PlacedPod| rule.group[0].has_pod(pod, &cluster.namespaces);
            let gone = gone.iter().filter(has).count() as i64;
            let here = (i64::from(rule.counts[domain]) - gone).max(0);
            if here + rule.own - rule.fewest_with(domain, here) > rule.max_skew {
                return Some(Obstacle::Spread);
            }
        }
        None
    }
}

fn fewest(sums: &[Option<u32>]) -> [(i64, Option<usize>); 2] {
    let mut lowest = [(i64::MAX, None); 2];
    let known = sums.iter().enumerate().filter_map(|(domain, sum)| Some((domain, (*sum)?)));
    for (domain, sum) in known {
        let sum = (i64::from(sum), Some(domain));
        if sum.0 < lowest[0].0 {
            lowest = [sum, lowest[0]];
        } else if sum.0 < lowest[1].0 {
            lowest[1] = sum;
        }
    }
    lowest
}

impl Rule {
    /// The fewest pods that any domain has, if this one has so many.
    fn fewest_with(&self, domain: usize, here: i64) -> i64 {
        if self.is_short {
            return 0;
        }
        let others = self.fewest.iter().find(|(_, own)| *own != Some(domain));
        others.map_or(here, |(count, _)| here.min(*count))
    }
}

/// A constraint that should hold.
#[derive(Debug)]
struct Hope {
    domains: Arc<Domains>,
    counts: Vec<u32>,
    slack: f64,
}

/// All that should hold.
#[derive(Debug)]
pub(super) struct Evenness {
    hopes: Vec<Hope>,
    /// A node that is nowhere in one of the topologies is worth nothing.
    everywhere: bool,
}

impl Evenness {
    pub(super) fn of(needs: &Needs<'_>, cluster: &mut Occupancy) -> Self {
        let own = constraints(needs, false);
        let says_something = needs.spec.topology_spread_constraints.iter().flatten().next();
        if says_something.is_none() {
            return Self::usual(needs, cluster);
        }
        let topologies: Vec<_> =
            own.iter().map(|own| cluster.table.domains(&own.topology_key)).collect();
        let hope = |(own, domains): (&&TopologySpreadConstraint, &Arc<Domains>)| {
            let mut counts = cluster.count(&vec![group(needs, own)]).clone();
            counts.retain(|slot, _| {
                let node = cluster.table.slots[*slot].state.as_ref();
                node.is_some_and(|node| is_counted(needs, own, node))
                    && topologies.iter().all(|domains| domains.of(*slot).is_some())
            });
            Hope::new(domains.clone(), &counts, i64::from(own.max_skew))
        };
        let hopes = own.iter().zip(&topologies).map(hope).collect();
        Self { hopes, everywhere: true }
    }

    /// For pods of a controller or a Service.
    fn usual(needs: &Needs<'_>, cluster: &mut Occupancy) -> Self {
        let counts = match needs.siblings(cluster) {
            None => None,
            Some(Siblings::OfOwner(uid)) => cluster.of_owner(&uid).cloned(),
            Some(Siblings::OfServices(group)) => Some(cluster.count(&vec![group]).clone()),
        };
        let counts = counts.filter(|counts| !counts.is_empty());
        let hopes = counts.iter().flat_map(|counts| {
            USUAL.map(|(label, skew)| Hope::new(cluster.table.domains(label), counts, skew))
        });
        Self { hopes: hopes.collect(), everywhere: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hopes.is_empty()
    }

    /// How crowded a node is, among these; nothing for one that does not count.
    pub(super) fn crowding(&self, feasible: &[usize]) -> Vec<Option<i64>> {
        let is_known = |slot: usize| {
            !self.everywhere || self.hopes.iter().all(|hope| hope.domains.of(slot).is_some())
        };
        let weights: Vec<f64> = self.hopes.iter().map(|hope| hope.weight(feasible)).collect();
        let at = |slot: usize| {
            let parts = self.hopes.iter().zip(&weights).filter_map(|(hope, weight)| {
                let count = hope.counts[hope.domains.of(slot)?];
                Some(f64::from(count) * weight + hope.slack)
            });
            parts.sum::<f64>().round() as i64
        };
        feasible.iter().map(|slot| is_known(*slot).then(|| at(*slot))).collect()
    }
}

impl Hope {
    fn new(domains: Arc<Domains>, counts: &Counts, max_skew: i64) -> Self {
        let counts = domains.sum(counts);
        Self { domains, counts, slack: (max_skew - 1) as f64 }
    }

    /// A topology of few places would else count for less.
    fn weight(&self, feasible: &[usize]) -> f64 {
        let mut seen = vec![false; self.domains.len];
        for domain in feasible.iter().filter_map(|slot| self.domains.of(*slot)) {
            seen[domain] = true;
        }
        let places = seen.into_iter().filter(|seen| *seen).count();
        (places as f64 + 2.0).ln()
    }
}
