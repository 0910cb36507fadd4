//! Whom a pod wants near or far: the terms of its affinity, and an index of those of all pods that
//! are on nodes, for they hold against pods that come later, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodAffinityTerm, PodSpec, WeightedPodAffinityTerm};
use roadstead_api::selector::Labels;

use super::groups::{Counts, Namespaces, PodGroup, change};

/// What a required affinity of a pod that is there is worth to one that comes (`hardPodAffinityWeight`).
const OF_REQUIRED: i64 = 1;

/// How much a pod wants what a term says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// It must be near some pod of the group.
    Near,
    /// It must not be near any.
    Apart,
    /// It would rather be near them; if negative, apart.
    Rather(i64),
}

/// One term.
#[derive(Debug)]
pub(super) struct Term {
    id: String,
    pub(super) wish: Wish,
    pub(super) group: PodGroup,
    pub(super) topology: String,
}

impl Term {
    fn new(wish: Wish, term: &PodAffinityTerm, namespace: &str, labels: &Labels) -> Arc<Self> {
        let group = PodGroup::of_term(term, namespace, labels);
        let topology = term.topology_key.clone();
        let id = format!("{wish:?} {topology:?} {}", group.id());
        Arc::new(Self { id, wish, group, topology })
    }

    /// What it is worth to pods of its group to be where its own pod is.
    pub(super) fn worth(&self) -> i64 {
        match self.wish {
            Wish::Near => OF_REQUIRED,
            Wish::Apart => 0,
            Wish::Rather(weight) => weight,
        }
    }
}

/// All terms of a pod.
pub(super) fn terms(spec: &PodSpec, namespace: &str, labels: &Labels) -> Vec<Arc<Term>> {
    let Some(affinity) = &spec.affinity else { return Vec::new() };
    let (near, apart) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
    let must = |wish| move |term: &PodAffinityTerm| Term::new(wish, term, namespace, labels);
    let rather = |sign: i64| {
        move |own: &WeightedPodAffinityTerm| {
            let wish = Wish::Rather(sign * i64::from(own.weight));
            Term::new(wish, &own.pod_affinity_term, namespace, labels)
        }
    };
    let mut all = Vec::new();
    if let Some(near) = near {
        let required = near.required_during_scheduling_ignored_during_execution.iter();
        all.extend(required.flatten().map(must(Wish::Near)));
        let preferred = near.preferred_during_scheduling_ignored_during_execution.iter();
        all.extend(preferred.flatten().map(rather(1)));
    }
    if let Some(apart) = apart {
        let required = apart.required_during_scheduling_ignored_during_execution.iter();
        all.extend(required.flatten().map(must(Wish::Apart)));
        let preferred = apart.preferred_during_scheduling_ignored_during_execution.iter();
        all.extend(preferred.flatten().map(rather(-1)));
    }
    all
}

/// The terms of pods that are on nodes, and on which nodes those pods are.
#[derive(Debug, Default)]
pub(super) struct TermIndex(BTreeMap<String, (Arc<Term>, Counts)>);

impl TermIndex {
    pub(super) fn note(&mut self, slot: usize, terms: &[Arc<Term>], is_there: bool) {
        for term in terms {
            let entry = self.0.entry(term.id.clone());
            let (_, counts) = entry.or_insert_with(|| (term.clone(), Counts::new()));
            change(counts, slot, is_there);
            if counts.is_empty() {
                self.0.remove(&term.id);
            }
        }
    }

    /// Those that speak of a pod, and where the pods are that have them.
    pub(super) fn about<'a>(
        &'a self,
        namespace: &'a str,
        labels: &'a Labels,
        around: &'a Namespaces,
    ) -> impl Iterator<Item = (&'a Arc<Term>, &'a Counts)> {
        let all = self.0.values().map(|(term, counts)| (term, counts));
        all.filter(move |(term, _)| term.group.has(namespace, labels, around))
    }
}

impl PartialEq for Term {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}
