//! The nodes, each at a place of its own in a list, so that numbers about them are lists, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use roadstead_api::key::ObjectKey;

use super::domains::{Domains, Topologies};
use super::node::NodeState;
use super::placed::PlacedPod;
use super::ports::NodePortUse;
use super::room::Amount;

/// A node, or a place for one of which only the pods are known.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub name: String,
    pub state: Option<NodeState>,
    pub pods: BTreeMap<ObjectKey, Arc<PlacedPod>>,
    pub used: Amount,
    pub ports: Vec<NodePortUse>,
}

impl Slot {
    /// What is taken once these pods have gone.
    pub(super) fn used_without(&self, gone: &[&PlacedPod]) -> Amount {
        let mut used = self.used.clone();
        if !used.is_saturated() {
            gone.iter().for_each(|pod| used.subtract(&pod.amount));
            return used;
        }
        let stays =
            |pod: &&Arc<PlacedPod>| !gone.iter().any(|gone| std::ptr::eq(*gone, pod.as_ref()));
        let mut used = Amount::default();
        self.pods.values().filter(stays).for_each(|pod| used.add(&pod.amount));
        used
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct NodeTable {
    pub slots: Vec<Slot>,
    /// How many nodes there are.
    pub count: usize,
    by_name: BTreeMap<String, usize>,
    free: Vec<usize>,
    topologies: Topologies,
    /// On how many nodes an image is.
    images: BTreeMap<String, usize>,
}

impl NodeTable {
    /// Takes in what a node is now; says whether that is news.
    pub(super) fn observe(&mut self, name: &str, now: Option<NodeState>) -> bool {
        let slot = self.slot(name);
        let before = self.slots[slot].state.take();
        let is_different = before != now;
        let labels = |state: &Option<NodeState>| state.as_ref().map(|state| state.labels.clone());
        if is_different && labels(&before) != labels(&now) {
            self.topologies.forget();
        }
        for (state, is_there) in [(&before, false), (&now, true)] {
            let Some(state) = state else { continue };
            self.count = if is_there { self.count + 1 } else { self.count - 1 };
            state.images.keys().for_each(|image| self.note_image(image, is_there));
        }
        self.slots[slot].state = now;
        self.tidy(slot);
        is_different
    }

    fn note_image(&mut self, image: &str, is_there: bool) {
        let count = self.images.entry(image.to_owned()).or_default();
        *count = if is_there { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.images.remove(image);
        }
    }

    /// The slots of the nodes that there are.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &Slot, &NodeState)> {
        let all = self.slots.iter().enumerate();
        all.filter_map(|(index, slot)| Some((index, slot, slot.state.as_ref()?)))
    }

    pub(super) fn find(&self, node: &str) -> Option<usize> {
        let slot = *self.by_name.get(node)?;
        self.slots[slot].state.as_ref().map(|_| slot)
    }

    /// How many nodes have an image.
    pub(super) fn nodes_with(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or(0)
    }

    /// The nodes by the values of a label.
    pub(super) fn domains(&mut self, topology: &str) -> Arc<Domains> {
        let Self { topologies, slots, .. } = self;
        topologies.of(topology, || {
            slots.iter().map(|slot| slot.state.as_ref()?.labels.get(topology)).collect()
        })
    }

    /// The place of a node, or for it.
    pub(super) fn slot(&mut self, name: &str) -> usize {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let index = self.free.pop().unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(Slot::default());
        }
        self.slots[index].name = name.to_owned();
        self.by_name.insert(name.to_owned(), index);
        index
    }

    /// Gives a place back of which nothing is known any more.
    pub(super) fn tidy(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.state.is_none() && slot.pods.is_empty() {
            self.by_name.remove(&slot.name);
            *slot = Slot::default();
            self.free.push(index);
        }
    }
}
