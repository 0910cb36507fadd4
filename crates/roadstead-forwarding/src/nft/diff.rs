//! From one state of the kernel to the next, at a cost that follows the change.
//!
//! A target keeps its slot for as long as it lives. When one goes, the last slot moves into the
//! hole, so the slots stay dense and everything else stays where it is. The layout remembers the
//! slots; compared with a fresh [`compile`](super::compile::compile) they may be in another order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::compile::{
    fixed_chains, own_elements, pick_chain, pick_element, shared_keys, slot_count, vips_of,
};
use super::model::{Chain, ChainName, Key, Program, Transaction, Value, Vip};
use crate::service::{Handling, IpFamily, ServicePort, ServicePortName, Target};
use crate::table::ForwardingTable;

/// What the kernel holds, in compact form.
#[derive(Debug)]
pub struct Layout {
    family: IpFamily,
    fixed: BTreeMap<ChainName, Chain>,
    picks: BTreeSet<u32>,
    ports: BTreeMap<Arc<ServicePortName>, Installed>,
    /// How many service ports need each shared element.
    shared: HashMap<Key, usize>,
}

/// A service port as it is in the kernel: the order of targets is the order of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Installed {
    frontends: Vec<Vip>,
    port: Option<ServicePort>,
}

impl Layout {
    /// A kernel that has the fixed chains for `table`, but no Services yet.
    pub fn new(table: &ForwardingTable) -> Self {
        Self {
            family: table.family(),
            fixed: fixed_chains(table.surroundings()),
            picks: BTreeSet::new(),
            ports: BTreeMap::new(),
            shared: HashMap::new(),
        }
    }

    /// Brings the changed service ports up to date; returns what the kernel must do for it.
    pub fn update(
        &mut self,
        table: &ForwardingTable,
        changed: impl IntoIterator<Item = Arc<ServicePortName>>,
    ) -> Transaction {
        let mut transaction = Transaction::default();
        let mut released = Vec::new();
        for name in changed {
            let before = self.ports.remove(&name).unwrap_or_default();
            let now = before.next(table.get(&name), vips_of(table, &name));
            if let Some(Handling::Forward(slots)) = now.handling()
                && self.picks.insert(slot_count(slots))
            {
                transaction.add_picks.push(slot_count(slots));
                transaction.add.push(pick_element(slot_count(slots)));
            }
            compare(&before.own(&name), &now.own(&name), &mut transaction);
            for key in now.shared(&name) {
                let count = self.shared.entry(key).or_default();
                *count += 1;
                if *count == 1 {
                    transaction.add.push((key, Value::Member));
                }
            }
            released.extend(before.shared(&name));
            if now.port.is_some() {
                self.ports.insert(name, now);
            }
        }
        // Released last, so that an element which changes hands never leaves.
        transaction.delete.extend(released.into_iter().filter(|key| self.release(key)));
        transaction
    }

    /// Everything the kernel holds.
    pub fn program(&self) -> Program {
        let picks = self.picks.iter().map(|count| (ChainName::Pick(*count), pick_chain(*count)));
        let pick_elements = self.picks.iter().map(|count| pick_element(*count));
        let shared = self.shared.keys().map(|key| (*key, Value::Member));
        let own = self.ports.iter().flat_map(|(name, installed)| installed.own(name));
        Program {
            family: self.family,
            chains: self.fixed.clone().into_iter().chain(picks).collect(),
            elements: pick_elements.chain(shared).chain(own).collect(),
        }
    }

    fn release(&mut self, key: &Key) -> bool {
        let count = self.shared.get_mut(key).expect("what was installed was counted");
        *count -= 1;
        let unused = *count == 0;
        if unused {
            self.shared.remove(key);
        }
        unused
    }
}

impl Installed {
    fn next(&self, port: Option<&ServicePort>, frontends: Vec<Vip>) -> Self {
        let Some(port) = port.filter(|_| !frontends.is_empty()) else { return Self::default() };
        let mut port = port.clone();
        if let Some(before) = &self.port {
            port.cluster = assign_slots(&before.cluster, &port.cluster);
            port.local = assign_slots(&before.local, &port.local);
        }
        Self { frontends, port: Some(port) }
    }

    fn handling(&self) -> Option<Handling<'_>> {
        self.port.as_ref().map(|port| port.handling(port.internal_policy))
    }

    fn own(&self, name: &Arc<ServicePortName>) -> Vec<(Key, Value)> {
        self.handling().map(|h| own_elements(name, &self.frontends, h)).unwrap_or_default()
    }

    fn shared(&self, name: &ServicePortName) -> Vec<Key> {
        let keys = |handling| shared_keys(name, &self.frontends, handling).collect();
        self.handling().map(keys).unwrap_or_default()
    }
}

/// Notes every difference between two lists that are in the order of their keys.
fn compare(before: &[(Key, Value)], now: &[(Key, Value)], transaction: &mut Transaction) {
    let (mut before, mut now) = (before.iter().peekable(), now.iter().peekable());
    loop {
        match (before.peek(), now.peek()) {
            (None, None) => return,
            (Some(old), Some(new)) if old == new => {
                before.next();
                now.next();
            }
            (Some((old, _)), new) if new.is_none_or(|(new, _)| old <= new) => {
                transaction.delete.push(*old);
                before.next();
            }
            (_, Some(new)) => {
                transaction.add.push((*new).clone());
                now.next();
            }
            (Some(_), None) => unreachable!("the guard above takes it"),
        }
    }
}

/// Gives every wanted target a slot, moving as few as possible.
fn assign_slots(before: &[Target], wanted: &[Target]) -> Vec<Target> {
    let wanted_set: HashSet<_> = wanted.iter().collect();
    let known: HashSet<_> = before.iter().collect();
    let mut incoming = wanted.iter().filter(|target| !known.contains(target)).copied();
    let keep_or_fill = |target: &Target| {
        if wanted_set.contains(target) { Some(*target) } else { incoming.next() }
    };
    let mut slots: Vec<Option<Target>> = before.iter().map(keep_or_fill).collect();
    slots.extend(incoming.map(Some));
    let mut at = 0;
    while at < slots.len() {
        if slots[at].is_none() {
            slots.swap_remove(at);
        } else {
            at += 1;
        }
    }
    slots.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Place;

    /// Each letter is a target.
    fn targets(text: &str) -> Vec<Target> {
        let target = |c: u8| Target { address: [10, 0, 0, c].into(), port: 80, place: Place::Here };
        text.bytes().map(target).collect()
    }

    #[test]
    fn slots() {
        let cases = [
            ("", "abc", "abc"),
            ("abc", "abc", "abc"),
            ("abc", "cba", "abc"),
            ("abcd", "acd", "adc"),
            ("abcd", "abc", "abc"),
            ("abcd", "a", "a"),
            ("abcd", "d", "d"),
            ("abcd", "aefd", "aefd"),
            ("ab", "abcd", "abcd"),
            ("abc", "xyz", "xyz"),
            ("abcde", "axe", "axe"),
            ("abc", "", ""),
        ];
        for (before, wanted, want) in cases {
            let got = assign_slots(&targets(before), &targets(wanted));
            assert_eq!(got, targets(want), "{before} to {wanted}");
        }
    }
}
