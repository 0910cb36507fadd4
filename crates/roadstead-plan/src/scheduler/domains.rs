//! Nodes that have the same value of a label: the places of a topology.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::groups::Counts;

const NOWHERE: u32 = u32::MAX;

/// Which domain each slot is in.
#[derive(Debug, Default)]
pub(super) struct Domains {
    of: Vec<u32>,
    pub(super) len: usize,
}

impl Domains {
    pub(super) fn of(&self, slot: usize) -> Option<usize> {
        self.of.get(slot).filter(|domain| **domain != NOWHERE).map(|domain| *domain as usize)
    }

    /// Numbers by nodes as numbers by domains.
    pub(super) fn sum(&self, counts: &Counts) -> Vec<u32> {
        let mut sums = vec![0; self.len];
        for (slot, count) in counts {
            if let Some(domain) = self.of(*slot) {
                sums[domain] += count;
            }
        }
        sums
    }
}

/// So many labels are remembered.
const MOST: usize = 64;

/// The domains of the labels that somebody has asked for, until a node changes.
#[derive(Debug, Default)]
pub(super) struct Topologies(BTreeMap<String, Arc<Domains>>);

impl Topologies {
    pub(super) fn of<'a>(
        &mut self,
        label: &str,
        values: impl FnOnce() -> Vec<Option<&'a String>>,
    ) -> Arc<Domains> {
        if let Some(known) = self.0.get(label) {
            return known.clone();
        }
        if self.0.len() >= MOST {
            self.forget();
        }
        let mut numbers = BTreeMap::new();
        let of = values().into_iter().map(|value| {
            let Some(value) = value else { return NOWHERE };
            let next = numbers.len() as u32;
            *numbers.entry(value).or_insert(next)
        });
        let domains = Arc::new(Domains { of: of.collect(), len: numbers.len() });
        self.0.insert(label.to_owned(), domains.clone());
        domains
    }

    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
