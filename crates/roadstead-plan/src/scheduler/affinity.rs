//! Pods near and apart: what a pod insists on, what pods that are there insist on, and what all of
//! them would rather have.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::domains::Domains;
use super::groups::{Common, Counts, is_common};
use super::needs::Needs;
use super::occupancy::Occupancy;
use super::placed::PlacedPod;
use super::reasons::Obstacle;
use super::terms::{Term, Wish};

/// How many pods of some groups each place has.
#[derive(Debug)]
struct Counted {
    groups: Common,
    domains: Arc<Domains>,
    counts: Vec<u32>,
}

impl Counted {
    fn new(groups: Common, topology: &str, counts: &Counts, cluster: &mut Occupancy) -> Self {
        let domains = cluster.table.domains(topology);
        let counts = domains.sum(counts);
        Self { groups, domains, counts }
    }

    /// How many there are where a node is, once these pods of the node have gone; nothing, if it is nowhere.
    fn at(&self, slot: usize, gone: &[&PlacedPod], cluster: &Occupancy) -> Option<usize> {
        let domain = self.domains.of(slot)?;
        let has = |pod: &&&PlacedPod| is_common(&self.groups, pod, &cluster.namespaces);
        Some((self.counts[domain] as usize).saturating_sub(gone.iter().filter(has).count()))
    }
}

/// What must be true of the pods around.
#[derive(Debug)]
pub(super) struct Company {
    /// Pods that meet all terms at once, by the places of each term.
    near: Vec<Counted>,
    /// Whether the pod would be company for itself.
    is_own: bool,
    apart: Vec<Counted>,
    /// Terms of pods that are there, against this one.
    unwelcome: Vec<(Arc<Term>, Arc<Domains>, Vec<u32>)>,
}

impl Company {
    pub(super) fn of(needs: &Needs<'_>, cluster: &mut Occupancy) -> Self {
        let of = |wish: Wish| needs.terms.iter().filter(move |term| term.wish == wish);
        let together: Common = of(Wish::Near).map(|term| term.group.clone()).collect();
        let is_own =
            together.iter().all(|g| g.has(needs.namespace(), needs.labels, &cluster.namespaces));
        let mut near = Vec::new();
        if !together.is_empty() {
            let counts = cluster.count(&together).clone();
            for term in of(Wish::Near) {
                near.push(Counted::new(together.clone(), &term.topology, &counts, cluster));
            }
        }
        let mut apart = Vec::new();
        for term in of(Wish::Apart) {
            let groups = vec![term.group.clone()];
            let counts = cluster.count(&groups).clone();
            apart.push(Counted::new(groups, &term.topology, &counts, cluster));
        }
        let against = cluster.terms.about(needs.namespace(), needs.labels, &cluster.namespaces);
        let against = against.filter(|(term, _)| term.wish == Wish::Apart);
        let against: Vec<_> = against.map(|(term, at)| (term.clone(), at.clone())).collect();
        let unwelcome = against.into_iter().map(|(term, at)| {
            let domains = cluster.table.domains(&term.topology);
            let counts = domains.sum(&at);
            (term, domains, counts)
        });
        Self { is_own, near, apart, unwelcome: unwelcome.collect() }
    }

    /// What keeps the pod from a node that these pods have left.
    pub(super) fn obstacle(
        &self,
        slot: usize,
        gone: &[&PlacedPod],
        cluster: &Occupancy,
    ) -> Option<Obstacle<'static>> {
        if !self.is_near(slot, gone, cluster) {
            return Some(Obstacle::Affinity);
        }
        if self.apart.iter().any(|apart| apart.at(slot, gone, cluster).is_some_and(|n| n > 0)) {
            return Some(Obstacle::AntiAffinity);
        }
        let is_unwelcome = |(term, domains, counts): &(Arc<Term>, Arc<Domains>, Vec<u32>)| {
            let Some(domain) = domains.of(slot) else { return false };
            let has = |pod: &&&PlacedPod| pod.terms.iter().filter(|own| *own == term).count();
            let gone: usize = gone.iter().map(|pod| has(&pod)).sum();
            counts[domain] as usize > gone
        };
        self.unwelcome.iter().any(is_unwelcome).then_some(Obstacle::OthersAntiAffinity)
    }

    fn is_near(&self, slot: usize, gone: &[&PlacedPod], cluster: &Occupancy) -> bool {
        let there: Option<Vec<usize>> =
            self.near.iter().map(|near| near.at(slot, gone, cluster)).collect();
        // A node without the label is nowhere.
        let Some(there) = there else { return false };
        if there.iter().all(|count| *count > 0) {
            return true;
        }
        // The first of a group that wants to be together may begin anywhere.
        let all: u32 = self.near.iter().flat_map(|near| &near.counts).sum();
        let gone: usize = self
            .near
            .iter()
            .filter(|near| near.domains.of(slot).is_some())
            .map(|near| {
                let has = |pod: &&&PlacedPod| is_common(&near.groups, pod, &cluster.namespaces);
                gone.iter().filter(has).count()
            })
            .sum();
        self.is_own && all as usize <= gone
    }
}

/// What a place is worth because of the pods around.
#[derive(Debug, Default)]
pub(super) struct Sympathy(BTreeMap<String, (Arc<Domains>, Vec<i64>)>);

impl Sympathy {
    pub(super) fn of(needs: &Needs<'_>, cluster: &mut Occupancy) -> Self {
        let mut all = Self::default();
        for term in &needs.terms {
            if let Wish::Rather(weight) = term.wish {
                let counts = cluster.count(&vec![term.group.clone()]).clone();
                all.add(&term.topology, weight, &counts, cluster);
            }
        }
        let about = cluster.terms.about(needs.namespace(), needs.labels, &cluster.namespaces);
        let about = about.filter(|(term, _)| term.worth() != 0);
        let about: Vec<_> = about.map(|(term, at)| (term.clone(), at.clone())).collect();
        for (term, at) in about {
            all.add(&term.topology, term.worth(), &at, cluster);
        }
        all
    }

    fn add(&mut self, topology: &str, weight: i64, counts: &Counts, cluster: &mut Occupancy) {
        let domains = cluster.table.domains(topology);
        let new = || (domains.clone(), vec![0; domains.len]);
        let (_, worth) = self.0.entry(topology.to_owned()).or_insert_with(new);
        for (own, count) in worth.iter_mut().zip(domains.sum(counts)) {
            *own += weight * i64::from(count);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn at(&self, slot: usize) -> i64 {
        let worth = self.0.values().filter_map(|(domains, worth)| Some(worth[domains.of(slot)?]));
        worth.sum()
    }
}
