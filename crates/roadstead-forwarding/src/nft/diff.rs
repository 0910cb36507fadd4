//! From one state of the kernel to the next, at a cost that follows the change.
//!
//! A target keeps its slot for as long as it lives. When one goes, the last slot moves into the
//! hole, so the slots stay dense and everything else stays where it is. The layout remembers the
//! slots; compared with a fresh [`compile`](super::compile::compile) they may be in another order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::chains::{behind, definition, fences, fixed_chains};
use super::compile::{Needs, fixed_elements, pick_element};
use super::model::{Chain, Class, Key, Program, Transaction, Value};
use super::names::{AffinitySet, ChainName};
use crate::node_network::NodeNetwork;
use crate::select::TrafficPolicy;
use crate::service::{Frontend, FrontendKind, IpFamily, ServicePort, ServicePortName, Target};
use crate::table::ForwardingTable;

/// What the kernel holds, in compact form.
#[derive(Debug)]
pub struct Layout {
    family: IpFamily,
    node_network: NodeNetwork,
    /// The classes whose chains exist. They are never deleted one by one: an unused one is
    /// harmless, and old kernels release references too late to delete a chain safely.
    classes: BTreeSet<Class>,
    ports: BTreeMap<Arc<ServicePortName>, Installed>,
    /// How many service ports need each shared element.
    shared: BTreeMap<Key, usize>,
    /// How many service ports not everybody may call.
    fenced: usize,
    /// Chains and sets that nothing refers to since the last transaction; the next one deletes
    /// them, for the same reason.
    retired_chains: BTreeSet<ChainName>,
    retired_sets: BTreeSet<AffinitySet>,
}

/// A service port as it is in the kernel: the order of targets is the order of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Installed {
    frontends: Vec<(Frontend, FrontendKind)>,
    /// The table's own, unless slots are in another order.
    port: Option<Arc<ServicePort>>,
}

impl Layout {
    /// A kernel that has the fixed chains for `table`, but no Services yet.
    pub fn new(table: &ForwardingTable) -> Self {
        Self {
            family: table.family(),
            node_network: table.node_network().clone(),
            classes: BTreeSet::new(),
            ports: BTreeMap::new(),
            shared: BTreeMap::new(),
            fenced: 0,
            retired_chains: BTreeSet::new(),
            retired_sets: BTreeSet::new(),
        }
    }

    /// Everything in `table`, where each target takes the slot that it has in `kernel`, and the
    /// chains of `classes` exist already.
    pub fn resume(
        table: &ForwardingTable,
        kernel: &BTreeMap<Key, Value>,
        classes: impl IntoIterator<Item = Class>,
    ) -> Self {
        let mut layout = Self::new(table);
        layout.classes.extend(classes);
        for (name, _) in table.iter() {
            let found = Installed::found(table, name, kernel);
            let now = found.next(table.shared(name), table.frontends_of(name));
            // What was found is only a preference: nothing of it counts as installed.
            let nothing = Installed::default();
            layout.install(name.clone(), nothing, now, &mut Transaction::default());
        }
        layout
    }

    /// Brings the changed service ports up to date; returns what the kernel must do for it.
    pub fn update(
        &mut self,
        table: &ForwardingTable,
        changed: impl IntoIterator<Item = Arc<ServicePortName>>,
    ) -> Transaction {
        let mut transaction = Transaction::default();
        let ripe = std::mem::take(&mut self.retired_chains);
        let ripe_sets = std::mem::take(&mut self.retired_sets);
        let had_fences = self.fenced > 0;
        let mut released = Vec::new();
        for name in changed {
            let before = self.ports.remove(&name).unwrap_or_default();
            let now = before.next(table.shared(&name), table.frontends_of(&name));
            released.extend(self.install(name, before, now, &mut transaction));
        }
        // Released last, so that an element which changes hands never leaves.
        transaction.delete.extend(released.into_iter().filter(|key| self.release(key)));
        revive(&mut transaction, &ripe, &ripe_sets);
        match (had_fences, self.fenced > 0) {
            (false, true) => transaction.add_chains.extend(fences()),
            (true, false) => transaction.delete_chains.extend(fences().map(|(name, _)| name)),
            _ => {}
        }
        transaction
    }

    /// Whether there is something that only waits to be deleted. A successor would not know what
    /// it is, and write everything anew.
    pub fn has_retired(&self) -> bool {
        !self.retired_chains.is_empty() || !self.retired_sets.is_empty()
    }

    /// Deletes what nothing refers to since the last transaction.
    pub fn bury(&mut self) -> Transaction {
        let mut transaction = Transaction::default();
        let chains = std::mem::take(&mut self.retired_chains);
        let sets = std::mem::take(&mut self.retired_sets);
        revive(&mut transaction, &chains, &sets);
        transaction
    }

    /// Everything the kernel holds.
    pub fn program(&self) -> Program {
        let mut chains = fixed_chains(&self.node_network, self.family);
        let mut elements: BTreeMap<_, _> = fixed_elements(&self.node_network).collect();
        let mut affinity = self.retired_sets.clone();
        chains.extend(self.retired_chains.iter().map(|name| (name.clone(), Chain::default())));
        for class in &self.classes {
            let wanted = behind(*class);
            chains.extend(wanted.map(|name| (name.clone(), definition(&name, &self.node_network))));
            elements.extend([pick_element(*class)]);
        }
        elements.extend(self.shared.keys().map(|key| (*key, Value::Member)));
        for (name, installed) in &self.ports {
            let needs = installed.needs(name, &self.node_network);
            elements.extend(needs.own);
            chains.extend(needs.chains);
            affinity.extend(needs.sets);
        }
        if self.fenced > 0 {
            chains.extend(fences());
        }
        Program { family: self.family, chains, elements, affinity }
    }

    /// Notes what must be done to get from one state of a service port to the next; returns the
    /// shared elements that it needs no more.
    fn install(
        &mut self,
        name: Arc<ServicePortName>,
        before: Installed,
        now: Installed,
        transaction: &mut Transaction,
    ) -> BTreeSet<Key> {
        let old = before.needs(&name, &self.node_network);
        let new = now.needs(&name, &self.node_network);
        for class in &new.classes {
            self.add_class(*class, transaction);
        }
        compare(&old.own, &new.own, transaction);
        for key in &new.shared {
            let count = self.shared.entry(*key).or_default();
            *count += 1;
            if *count == 1 {
                transaction.add.push((*key, Value::Member));
            }
        }
        transaction.add_sets.extend(new.sets.difference(&old.sets).cloned());
        for (name, chain) in &new.chains {
            match old.chains.get(name) {
                None => transaction.add_chains.push((name.clone(), chain.clone())),
                Some(was) if was != chain => {
                    transaction.rewrite.push((name.clone(), chain.rules.clone()));
                }
                Some(_) => {}
            }
        }
        for name in old.chains.keys().filter(|name| !new.chains.contains_key(name)) {
            transaction.rewrite.push((name.clone(), Vec::new()));
            self.retired_chains.insert(name.clone());
        }
        self.retired_sets.extend(old.sets.difference(&new.sets).cloned());
        self.fenced = self.fenced + usize::from(new.is_fenced) - usize::from(old.is_fenced);
        if now.port.is_some() {
            self.ports.insert(name, now);
        }
        old.shared
    }

    fn add_class(&mut self, class: Class, transaction: &mut Transaction) {
        if self.classes.contains(&class) {
            return;
        }
        for chain in behind(class) {
            // Another class may have brought the same `pick-N` along.
            if !self.classes.iter().any(|known| behind(*known).any(|name| name == chain)) {
                let rules = definition(&chain, &self.node_network);
                transaction.add_chains.push((chain, rules));
            }
        }
        self.classes.insert(class);
        transaction.add.push(pick_element(class));
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

/// What was to be deleted now but is needed again stays: a chain gets its new rules, a set keeps
/// what it remembers.
fn revive(
    transaction: &mut Transaction,
    ripe: &BTreeSet<ChainName>,
    ripe_sets: &BTreeSet<AffinitySet>,
) {
    let Transaction { add_chains, rewrite, add_sets, .. } = transaction;
    let again: Vec<_> = add_chains.extract_if(.., |(name, _)| ripe.contains(name)).collect();
    let revived: BTreeSet<_> = again.iter().map(|(name, _)| name.clone()).collect();
    rewrite.extend(again.into_iter().map(|(name, chain)| (name, chain.rules)));
    transaction.delete_chains.extend(ripe.difference(&revived).cloned());
    let kept: BTreeSet<_> = add_sets.extract_if(.., |set| ripe_sets.contains(set)).collect();
    transaction.delete_sets.extend(ripe_sets.difference(&kept).cloned());
}

impl Installed {
    fn next(
        &self,
        port: Option<&Arc<ServicePort>>,
        mut frontends: Vec<(Frontend, FrontendKind)>,
    ) -> Self {
        let Some(port) = port.filter(|_| !frontends.is_empty()) else { return Self::default() };
        frontends.shrink_to_fit();
        let mut port = port.clone();
        // Only slots need to stay in place; where there are none, the order is the table's.
        if let Some(before) = self.port.as_ref().filter(|_| port.affinity.is_none()) {
            let cluster = assign_slots(&before.cluster, &port.cluster);
            let local = assign_slots(&before.local, &port.local);
            if cluster != port.cluster || local != port.local {
                let port = Arc::make_mut(&mut port);
                (port.cluster, port.local) = (cluster, local);
            }
        }
        Self { frontends, port: Some(port) }
    }

    /// The slots that a kernel has for a service port, as far as they are still wanted.
    fn found(
        table: &ForwardingTable,
        name: &ServicePortName,
        kernel: &BTreeMap<Key, Value>,
    ) -> Self {
        let Some(mut port) = table.get(name).cloned() else { return Self::default() };
        let frontends = table.frontends_of(name);
        let frontend = |internal: bool| {
            let wanted = |kind: FrontendKind| (kind == FrontendKind::ClusterIp) == internal;
            Some(frontends.iter().find(|(_, kind)| wanted(*kind))?.0)
        };
        let (cluster, local) = match port.internal_policy {
            TrafficPolicy::Cluster => {
                let cluster = frontend(true).or(frontend(false));
                (cluster, frontend(false).map(|f| Key::LocalEndpoint(f, 0)))
            }
            TrafficPolicy::Local => {
                // The ClusterIP may be another Service's.
                let own = frontend(true).map(|f| Key::Endpoint(f, 0));
                let local = own.or(frontend(false).map(|f| Key::LocalEndpoint(f, 0)));
                (frontend(false), local)
            }
        };
        let order = |first: Option<Key>, wanted: &[Target]| -> Vec<Target> {
            let keys = (0..).map_while(|slot| Some(first?.at_slot(slot)));
            let target = |value: &Value| match value {
                Value::Target(socket) => wanted.iter().find(|t| t.socket() == *socket).copied(),
                _ => None,
            };
            keys.map_while(|key| kernel.get(&key)).filter_map(target).collect()
        };
        port.cluster = order(cluster.map(|f| Key::Endpoint(f, 0)), &port.cluster);
        port.local = order(local, &port.local);
        Self { frontends, port: Some(Arc::new(port)) }
    }

    fn needs(&self, name: &Arc<ServicePortName>, node_network: &NodeNetwork) -> Needs {
        let port = self.port.as_deref();
        let needs = |port| Needs::of(name, &self.frontends, port, node_network);
        port.map(needs).unwrap_or_default()
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
    let wanted_set: BTreeSet<_> = wanted.iter().collect();
    let known: BTreeSet<_> = before.iter().collect();
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
    use crate::service::Locality;

    /// Each letter is a target.
    fn targets(text: &str) -> Vec<Target> {
        let target =
            |c: u8| Target { address: [10, 0, 0, c].into(), port: 80, locality: Locality::Here };
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
