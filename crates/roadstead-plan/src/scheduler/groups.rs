//! Groups of pods, by namespace and labels: what affinity and spread constraints speak of, and how many
//! of a group each node has.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodAffinityTerm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use roadstead_api::selector::{Labels, Selector};

use super::placed::PlacedPod;

/// The labels of namespaces.
pub(super) type Namespaces = BTreeMap<String, Labels>;
/// Numbers by the slots of nodes; nothing is no entry.
pub(super) type Counts = BTreeMap<usize, u32>;

/// So many groups are counted all the time; others are counted when they are asked for.
const MOST_FOLLOWED: usize = 512;

/// Pods of some namespaces with some labels.
#[derive(Clone, Debug)]
pub(super) struct PodGroup {
    namespaces: BTreeSet<String>,
    by_labels: Option<Selector>,
    /// Nothing matches no pod at all.
    pods: Option<Selector>,
    /// Pods that are going are none of it.
    only_staying: bool,
}

impl PodGroup {
    /// What a term of a pod's affinity speaks of.
    pub(super) fn of_term(term: &PodAffinityTerm, namespace: &str, labels: &Labels) -> Self {
        let named = term.namespaces.iter().flatten().cloned().collect::<BTreeSet<_>>();
        let own = named.is_empty() && term.namespace_selector.is_none();
        let selector = term.label_selector.as_ref().map(|selector| {
            let like = requirements(term.match_label_keys.as_deref(), "In", labels);
            let unlike = requirements(term.mismatch_label_keys.as_deref(), "NotIn", labels);
            narrowed(selector, like.chain(unlike))
        });
        Self {
            namespaces: if own { BTreeSet::from([namespace.to_owned()]) } else { named },
            by_labels: term.namespace_selector.as_ref().map(Selector::from_object),
            pods: selector,
            only_staying: false,
        }
    }

    /// What is spread: pods of the same namespace that stay.
    pub(super) fn spread(
        namespace: &str,
        selector: Option<&LabelSelector>,
        keys: Option<&[String]>,
        labels: &Labels,
    ) -> Self {
        let selector = selector.map(|own| narrowed(own, requirements(keys, "In", labels)));
        Self {
            namespaces: BTreeSet::from([namespace.to_owned()]),
            by_labels: None,
            pods: selector,
            only_staying: true,
        }
    }

    /// The same words for the same pods.
    pub(super) fn id(&self) -> String {
        let Self { namespaces, by_labels, pods, only_staying } = self;
        let text = |selector: &Option<Selector>| selector.as_ref().map(ToString::to_string);
        format!("{namespaces:?} {:?} {:?} {only_staying}", text(by_labels), text(pods))
    }

    /// Whether a pod of that namespace with these labels is one of it.
    pub(super) fn has(&self, namespace: &str, labels: &Labels, around: &Namespaces) -> bool {
        let Some(pods) = &self.pods else { return false };
        let is_near = self.namespaces.contains(namespace)
            || self
                .by_labels
                .as_ref()
                .is_some_and(|selector| selector.matches_labels(around.get(namespace)));
        is_near && pods.matches_labels(Some(labels))
    }

    pub(super) fn has_pod(&self, pod: &PlacedPod, around: &Namespaces) -> bool {
        !(self.only_staying && pod.is_terminating)
            && self.has(pod.namespace(), pod.labels(), around)
    }

    /// The one namespace that its pods are in, if there is only one.
    fn only_namespace(&self) -> Option<&str> {
        let one = self.namespaces.first().filter(|_| self.namespaces.len() == 1);
        one.filter(|_| self.by_labels.is_none()).map(String::as_str)
    }
}

/// Conditions that a pod sets by its own labels.
fn requirements<'a>(
    keys: Option<&'a [String]>,
    operator: &'static str,
    labels: &'a Labels,
) -> impl Iterator<Item = LabelSelectorRequirement> {
    keys.into_iter().flatten().filter_map(move |key| {
        Some(LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.to_owned(),
            values: Some(vec![labels.get(key)?.clone()]),
        })
    })
}

fn narrowed(
    selector: &LabelSelector,
    more: impl Iterator<Item = LabelSelectorRequirement>,
) -> Selector {
    let mut all = selector.clone();
    all.match_expressions.get_or_insert_default().extend(more);
    Selector::from_object(&all)
}

/// Pods that are in each of these groups.
pub(super) type Common = Vec<PodGroup>;

pub(super) fn is_common(groups: &Common, pod: &PlacedPod, around: &Namespaces) -> bool {
    groups.iter().all(|group| group.has_pod(pod, around))
}

/// How many pods of the groups that matter each node has, kept up to date.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    all: BTreeMap<String, Tally>,
    /// Goes up with each question.
    moment: u64,
}

#[derive(Debug)]
struct Tally {
    groups: Common,
    counts: Counts,
    asked: u64,
}

impl Tallies {
    /// The nodes that have pods of all these groups, counted by `pods` if nobody has asked before.
    pub(super) fn of<'p>(
        &mut self,
        groups: &Common,
        around: &Namespaces,
        pods: impl FnOnce(Option<&str>) -> Vec<(usize, &'p PlacedPod)>,
    ) -> &Counts {
        self.moment += 1;
        let id = groups.iter().map(PodGroup::id).collect::<Vec<_>>().join("&");
        if !self.all.contains_key(&id) {
            self.forget_oldest();
            let mut counts = Counts::new();
            for (slot, pod) in pods(groups.iter().find_map(PodGroup::only_namespace)) {
                if is_common(groups, pod, around) {
                    *counts.entry(slot).or_default() += 1;
                }
            }
            let tally = Tally { groups: groups.clone(), counts, asked: 0 };
            self.all.insert(id.clone(), tally);
        }
        let tally = self.all.get_mut(&id).expect("it has just been made");
        tally.asked = self.moment;
        &tally.counts
    }

    fn forget_oldest(&mut self) {
        if self.all.len() < MOST_FOLLOWED {
            return;
        }
        let mut moments: Vec<_> = self.all.values().map(|tally| tally.asked).collect();
        moments.sort_unstable();
        let middle = moments[moments.len() / 2];
        self.all.retain(|_, tally| tally.asked > middle);
    }

    /// Takes in that a pod is on a node now, or is not any more.
    pub(super) fn note(
        &mut self,
        slot: usize,
        pod: &PlacedPod,
        is_there: bool,
        around: &Namespaces,
    ) {
        let concerned = |tally: &&mut Tally| is_common(&tally.groups, pod, around);
        for tally in self.all.values_mut().filter(concerned) {
            change(&mut tally.counts, slot, is_there);
        }
    }

    /// The labels of a namespace have changed: what depends on them is counted anew.
    pub(super) fn forget_labelled(&mut self) {
        self.all.retain(|_, tally| tally.groups.iter().all(|group| group.by_labels.is_none()));
    }
}

/// One more, or one less.
pub(super) fn change(counts: &mut Counts, slot: usize, is_more: bool) {
    let count = counts.entry(slot).or_default();
    *count = if is_more { *count + 1 } else { count.saturating_sub(1) };
    if *count == 0 {
        counts.remove(&slot);
    }
}
