//! What the scheduler knows: nodes, the pods on them, and numbers that follow every change, so that
//! the next pod costs a look at each node and not at each pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Labels;

use super::budgets::Budget;
use super::groups::{Common, Counts, Namespaces, PodGroup, Tallies, change};
use super::node::NodeState;
use super::placed::PlacedPod;
use super::reasons::Occasion;
use super::table::NodeTable;
use super::terms::TermIndex;

/// Nodes, and the pods that are on them.
#[derive(Debug, Default)]
pub struct Occupancy {
    pub(super) table: NodeTable,
    pods: BTreeMap<ObjectKey, (usize, Arc<PlacedPod>)>,
    /// Pods that wait for others to leave a node.
    nominated: BTreeMap<ObjectKey, Arc<PlacedPod>>,
    tallies: Tallies,
    pub(super) terms: TermIndex,
    /// Pods by the uid of their controller.
    owners: BTreeMap<String, Counts>,
    pub(super) namespaces: Namespaces,
    /// What Services select, by namespace.
    services: BTreeMap<ObjectKey, Labels>,
    pub(super) budgets: BTreeMap<ObjectKey, Budget>,
}

impl Occupancy {
    /// Takes in a node, or that it is gone; says whether pods that wait should be looked at.
    pub fn observe_node(&mut self, name: &str, node: Option<&Node>) -> bool {
        self.table.observe(name, node.map(NodeState::of))
    }

    /// Takes in where a pod is now; says what this may mean for pods that wait.
    pub fn observe_pod(&mut self, key: &ObjectKey, pod: Option<Arc<PlacedPod>>) -> Vec<Occasion> {
        let waits = |pod: &&Arc<PlacedPod>| pod.node.is_empty() && !pod.nominated.is_empty();
        match pod.as_ref().filter(waits).filter(|pod| !pod.is_finished && !pod.is_terminating) {
            Some(pod) => drop(self.nominated.insert(key.clone(), pod.clone())),
            None => drop(self.nominated.remove(key)),
        }
        let now = pod.filter(|pod| pod.is_on_node());
        let before = self.take_off(key);
        let mut occasions = Vec::new();
        if let Some(before) = &before {
            let same = now.as_ref().is_some_and(|now| {
                now.node == before.node
                    && now.labels() == before.labels()
                    && now.is_terminating == before.is_terminating
            });
            if !same {
                occasions.push(Occasion::PodGone);
            }
        }
        if let Some(now) = now {
            if before.is_none_or(|before| before.labels() != now.labels()) {
                occasions.push(Occasion::PodPlaced);
            }
            self.put_on(key, now);
        }
        occasions
    }

    /// The pod that is known to be on a node under that name.
    pub fn pod(&self, key: &ObjectKey) -> Option<&Arc<PlacedPod>> {
        self.pods.get(key).map(|(_, pod)| pod)
    }

    /// Takes in the labels of a namespace; says whether they are different.
    pub fn observe_namespace(&mut self, name: &str, labels: Option<&Labels>) -> bool {
        let before = match labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels.clone()),
            None => self.namespaces.remove(name),
        };
        let is_different = before.as_ref() != labels;
        if is_different {
            self.tallies.forget_labelled();
        }
        is_different
    }

    /// Takes in what a Service selects.
    pub fn observe_service(&mut self, key: &ObjectKey, selector: Option<&Labels>) {
        match selector.filter(|selector| !selector.is_empty()) {
            Some(selector) => drop(self.services.insert(key.clone(), selector.clone())),
            None => drop(self.services.remove(key)),
        }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.table.count
    }

    /// How many pods of these groups the nodes have.
    pub(super) fn count(&mut self, groups: &Common) -> &Counts {
        let Self { tallies, namespaces, pods, .. } = self;
        tallies.of(groups, namespaces, |namespace| {
            let first = ObjectKey::new(namespace.unwrap_or(""), "");
            let all = pods.range(first..);
            let near = all.take_while(|(key, _)| namespace.is_none_or(|own| key.namespace == own));
            near.map(|(_, (slot, pod))| (*slot, pod.as_ref())).collect()
        })
    }

    /// How many pods of one controller the nodes have.
    pub(super) fn of_owner(&self, uid: &str) -> Option<&Counts> {
        self.owners.get(uid)
    }

    /// The selectors of the Services that a pod is in.
    pub(super) fn services_of(&self, namespace: &str, labels: &Labels) -> Option<Labels> {
        let first = ObjectKey::new(namespace, "");
        let near = self.services.range(first..).take_while(|(key, _)| key.namespace == namespace);
        let own = near
            .filter(|(_, wanted)| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)));
        let all: Labels = own.flat_map(|(_, wanted)| wanted.clone()).collect();
        (!all.is_empty()).then_some(all)
    }

    /// Room that is kept: pods that wait for others to leave a node, unless they are less important.
    pub(super) fn reserved(
        &self,
        apart_from: &ObjectKey,
        priority: i32,
    ) -> impl Iterator<Item = (usize, &Arc<PlacedPod>)> {
        let all = self.nominated.iter();
        let others = all.filter(move |(key, pod)| *key != apart_from && pod.priority >= priority);
        others.filter_map(|(_, pod)| Some((self.table.find(&pod.nominated)?, pod)))
    }

    /// Less important pods that wait for room on a node.
    pub(super) fn nominated_below(&self, node: &str, priority: i32) -> Vec<ObjectKey> {
        let all = self.nominated.iter();
        let lower = all.filter(|(_, pod)| pod.nominated == node && pod.priority < priority);
        lower.map(|(key, _)| key.clone()).collect()
    }

    fn put_on(&mut self, key: &ObjectKey, pod: Arc<PlacedPod>) {
        let index = self.table.slot(&pod.node);
        self.account(index, &pod, true);
        let slot = &mut self.table.slots[index];
        slot.used.add(&pod.amount);
        slot.ports.extend(pod.ports.iter().cloned());
        slot.pods.insert(key.clone(), pod.clone());
        self.pods.insert(key.clone(), (index, pod));
    }

    fn take_off(&mut self, key: &ObjectKey) -> Option<Arc<PlacedPod>> {
        let (index, pod) = self.pods.remove(key)?;
        self.account(index, &pod, false);
        let slot = &mut self.table.slots[index];
        slot.used = slot.used_without(&[pod.as_ref()]);
        slot.pods.remove(key);
        for port in &pod.ports {
            if let Some(position) = slot.ports.iter().position(|own| own == port) {
                slot.ports.swap_remove(position);
            }
        }
        self.table.tidy(index);
        Some(pod)
    }

    fn account(&mut self, slot: usize, pod: &PlacedPod, is_there: bool) {
        self.tallies.note(slot, pod, is_there, &self.namespaces);
        self.terms.note(slot, &pod.terms, is_there);
        if let Some(owner) = pod.owner.as_ref().filter(|_| !pod.is_terminating) {
            let counts = self.owners.entry(owner.clone()).or_default();
            change(counts, slot, is_there);
            if counts.is_empty() {
                self.owners.remove(owner);
            }
        }
    }
}

/// Pods that a Service or a controller has, if the pod itself says nothing of how to be spread.
#[derive(Debug)]
pub(super) enum Siblings {
    OfOwner(String),
    OfServices(PodGroup),
}
