//! From what the kernel holds to what it should hold, by what changed.
//!
//! Every service port brings its part. Parts overlap: two ports of a Service share its address, two
//! Services an endpoint. So what the kernel holds is counted, and goes with the last who needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;

use super::compile::{Part, compile_port};
use super::model::{Entry, Program, Scheduler, Server, SetName, Virtual};
use super::rules;
use crate::iptables;
use crate::iptables::compile::Context;
use crate::node_network::NodeNetwork;
use crate::service::{IpFamily, ServicePortName};
use crate::table::ForwardingTable;

/// What to change in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// New elements of ipsets.
    pub add: BTreeSet<(SetName, Entry)>,
    /// Elements that go.
    pub delete: BTreeSet<(SetName, Entry)>,
    /// Virtual servers that differ: as they were, and as they shall be.
    pub servers: BTreeMap<Server, (Option<Virtual>, Option<Virtual>)>,
    /// New addresses of the link.
    pub add_addresses: BTreeSet<IpAddr>,
    /// Addresses that go.
    pub delete_addresses: BTreeSet<IpAddr>,
    /// The rules as they were and as they shall be, if they differ.
    pub rules: Option<(iptables::model::Program, iptables::model::Program)>,
}

impl Delta {
    /// From one program to another.
    pub fn between(before: &Program, after: &Program) -> Self {
        let mut delta = Self::default();
        for (set, entries) in &after.sets {
            let had = &before.sets[set];
            delta.add.extend(entries.difference(had).map(|entry| (*set, *entry)));
            delta.delete.extend(had.difference(entries).map(|entry| (*set, *entry)));
        }
        for server in before.servers.keys().chain(after.servers.keys()) {
            delta.note(*server, before.servers.get(server), after.servers.get(server));
        }
        delta.add_addresses = after.addresses.difference(&before.addresses).copied().collect();
        delta.delete_addresses = before.addresses.difference(&after.addresses).copied().collect();
        if before.rules != after.rules {
            delta.rules = Some((before.rules.clone(), after.rules.clone()));
        }
        delta
    }

    /// How many operations this takes, but for those on rules.
    pub fn operations(&self) -> usize {
        self.add.len()
            + self.delete.len()
            + self.servers.len()
            + self.add_addresses.len()
            + self.delete_addresses.len()
    }

    fn note(&mut self, server: Server, before: Option<&Virtual>, after: Option<&Virtual>) {
        if before != after {
            self.servers.insert(server, (before.cloned(), after.cloned()));
        }
    }
}

/// What the kernel holds of ours.
#[derive(Debug)]
pub struct Layout {
    family: IpFamily,
    scheduler: Scheduler,
    node_network: NodeNetwork,
    parts: BTreeMap<Arc<ServicePortName>, Part>,
    addresses: Counts<IpAddr>,
    entries: Counts<(SetName, Entry)>,
    closed: Counts<Server>,
    /// Who asks for each server, and whether as a node port. Two that ask for the same one are rare,
    /// and the first one has it.
    servers: BTreeMap<Server, BTreeSet<(bool, Arc<ServicePortName>)>>,
    rules: iptables::model::Program,
}

impl Layout {
    /// Everything that a table needs.
    pub fn new(table: &ForwardingTable, scheduler: Scheduler) -> Self {
        let mut layout = Self {
            family: table.family(),
            scheduler,
            node_network: table.node_network().clone(),
            parts: BTreeMap::new(),
            addresses: Counts::default(),
            entries: Counts::default(),
            closed: Counts::default(),
            servers: BTreeMap::new(),
            rules: rules::compile(table.family(), &Context::of(table), []),
        };
        for (name, _) in table.iter() {
            layout.put(name.clone(), compile_port(table, scheduler, name));
        }
        layout.rules = layout.compile_rules(table);
        layout
    }

    /// Brings the changed service ports up to date; returns what the kernel must do for it.
    pub fn update(
        &mut self,
        table: &ForwardingTable,
        changed: impl IntoIterator<Item = Arc<ServicePortName>>,
    ) -> Delta {
        if self.node_network != *table.node_network() {
            let before = self.program();
            *self = Self::new(table, self.scheduler);
            return Delta::between(&before, &self.program());
        }
        // All that any of them had, or will have, as it is now.
        let changed: BTreeSet<_> = changed.into_iter().collect();
        let mut touched = Touched::default();
        changed.iter().filter_map(|name| self.parts.get(name)).for_each(|part| touched.note(part));
        let new: Vec<_> = changed
            .into_iter()
            .map(|name| (compile_port(table, self.scheduler, &name), name))
            .collect();
        new.iter().for_each(|(part, _)| touched.note(part));
        let before = touched.look(self);
        for (part, name) in new {
            self.take(&name);
            if table.get(&name).is_some() {
                self.put(name, part);
            }
        }
        let mut delta = before.changes(touched.look(self));
        if !touched.closed.is_empty() {
            let rules = self.compile_rules(table);
            if rules != self.rules {
                let old = std::mem::replace(&mut self.rules, rules.clone());
                delta.rules = Some((old, rules));
            }
        }
        delta
    }

    /// All of it.
    pub fn program(&self) -> Program {
        let mut sets: BTreeMap<_, BTreeSet<_>> =
            SetName::ALL.map(|set| (set, BTreeSet::new())).into();
        for (set, entry) in self.entries.keys() {
            sets.entry(*set).or_default().insert(*entry);
        }
        let servers = self.servers.keys();
        let servers = servers.filter_map(|server| Some((*server, self.server(server)?.clone())));
        Program {
            family: self.family,
            addresses: self.addresses.keys().copied().collect(),
            servers: servers.collect(),
            sets,
            rules: self.rules.clone(),
        }
    }

    /// All virtual servers.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.keys()
    }

    /// All addresses of the link.
    pub fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.addresses.keys()
    }

    /// The rules around the virtual servers.
    pub fn rules(&self) -> &iptables::model::Program {
        &self.rules
    }

    /// The next few virtual servers with their destinations.
    pub fn servers_after(
        &self,
        last: Option<Server>,
        count: usize,
    ) -> Vec<(Server, BTreeSet<SocketAddr>)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.servers.range((from, Bound::Unbounded)).take(count);
        let of = |server: &Server| Some((*server, self.server(server)?.1.clone()));
        next.filter_map(|(server, _)| of(server)).collect()
    }

    /// The elements of an ipset.
    pub fn entries_of(&self, set: SetName) -> BTreeSet<Entry> {
        let entries = self.entries.keys().filter(|(of, _)| *of == set);
        entries.map(|(_, entry)| *entry).collect()
    }

    fn server(&self, server: &Server) -> Option<&Virtual> {
        let (_, first) = self.servers.get(server)?.first()?;
        self.parts.get(first)?.servers.get(server)
    }

    fn compile_rules(&self, table: &ForwardingTable) -> iptables::model::Program {
        rules::compile(self.family, &Context::of(table), self.closed.keys().copied())
    }

    fn put(&mut self, name: Arc<ServicePortName>, part: Part) {
        part.addresses.iter().for_each(|address| self.addresses.add(*address));
        part.entries.iter().for_each(|entry| self.entries.add(*entry));
        part.closed.iter().for_each(|server| self.closed.add(*server));
        for server in part.servers.keys() {
            let asked = (part.node_ports.contains(server), name.clone());
            self.servers.entry(*server).or_default().insert(asked);
        }
        self.parts.insert(name, part);
    }

    fn take(&mut self, name: &Arc<ServicePortName>) {
        let Some(part) = self.parts.remove(name) else { return };
        part.addresses.iter().for_each(|address| self.addresses.remove(address));
        part.entries.iter().for_each(|entry| self.entries.remove(entry));
        part.closed.iter().for_each(|server| self.closed.remove(server));
        for server in part.servers.keys() {
            if let Some(names) = self.servers.get_mut(server) {
                names.remove(&(part.node_ports.contains(server), name.clone()));
                if names.is_empty() {
                    self.servers.remove(server);
                }
            }
        }
    }
}

/// The keys that a change may be about.
#[derive(Default)]
struct Touched {
    addresses: BTreeSet<IpAddr>,
    entries: BTreeSet<(SetName, Entry)>,
    servers: BTreeSet<Server>,
    closed: BTreeSet<Server>,
}

impl Touched {
    fn note(&mut self, part: &Part) {
        self.addresses.extend(&part.addresses);
        self.entries.extend(&part.entries);
        self.servers.extend(part.servers.keys());
        self.closed.extend(&part.closed);
    }

    fn look(&self, layout: &Layout) -> Looked {
        let servers = self.servers.iter();
        Looked {
            addresses: layout.addresses.of(&self.addresses),
            entries: layout.entries.of(&self.entries),
            servers: servers.map(|server| (*server, layout.server(server).cloned())).collect(),
        }
    }
}

/// What there is of them.
struct Looked {
    addresses: BTreeSet<IpAddr>,
    entries: BTreeSet<(SetName, Entry)>,
    servers: BTreeMap<Server, Option<Virtual>>,
}

impl Looked {
    fn changes(self, after: Looked) -> Delta {
        let mut delta = Delta {
            add: after.entries.difference(&self.entries).copied().collect(),
            delete: self.entries.difference(&after.entries).copied().collect(),
            add_addresses: after.addresses.difference(&self.addresses).copied().collect(),
            delete_addresses: self.addresses.difference(&after.addresses).copied().collect(),
            ..Delta::default()
        };
        for (server, was) in self.servers {
            delta.note(server, was.as_ref(), after.servers[&server].as_ref());
        }
        delta
    }
}

/// How many need each thing.
#[derive(Debug)]
struct Counts<T>(BTreeMap<T, usize>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Copy> Counts<T> {
    fn add(&mut self, thing: T) {
        *self.0.entry(thing).or_default() += 1;
    }

    fn remove(&mut self, thing: &T) {
        if let Some(count) = self.0.get_mut(thing) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(thing);
            }
        }
    }

    fn of(&self, things: &BTreeSet<T>) -> BTreeSet<T> {
        things.iter().filter(|thing| self.0.contains_key(thing)).copied().collect()
    }

    fn keys(&self) -> impl Iterator<Item = &T> {
        self.0.keys()
    }
}
