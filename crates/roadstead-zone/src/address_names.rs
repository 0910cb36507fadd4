//! Which Services an address leads to, for the names of addresses.

use std::net::IpAddr;

use crate::entry::{EntryKind, ServiceEntry};
use crate::index::Index;
use crate::prefixes::{Prefix, Prefixes};
use crate::seed::Seed;

/// Hashes of Services by the hashes of addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressNames {
    cluster_ips: Index<u64>,
    endpoint_ips: Index<u64>,
    /// How the addresses in both of these begin.
    prefixes: Prefixes,
}

impl AddressNames {
    pub(crate) fn of_cluster_ip(&self, address: u64) -> impl Iterator<Item = &u64> {
        self.cluster_ips.get(address)
    }

    pub(crate) fn of_endpoint(&self, address: u64) -> impl Iterator<Item = &u64> {
        self.endpoint_ips.get(address)
    }

    /// Whether an address that begins so may have a name.
    pub(crate) fn has_prefix(&self, seed: &Seed, prefix: Prefix) -> bool {
        self.prefixes.contains(seed, prefix)
    }

    fn is_known(&self, address: u64) -> bool {
        self.of_cluster_ip(address).next().is_some() || self.of_endpoint(address).next().is_some()
    }

    /// Brings the addresses that have names from the old state of a Service to the new one.
    pub(crate) fn relink(&mut self, seed: &Seed, service: u64, [old, new]: [&ServiceEntry; 2]) {
        let own = AddressChange { old: cluster_ips(old), new: cluster_ips(new) };
        let others = AddressChange { old: endpoint_ips(old), new: endpoint_ips(new) };
        let mut changed: Vec<IpAddr> = own.addresses().chain(others.addresses()).collect();
        changed.sort_unstable();
        changed.dedup();
        let known: Vec<bool> = changed.iter().map(|one| self.is_known(seed.hash(one))).collect();
        own.apply(&mut self.cluster_ips, seed, service);
        others.apply(&mut self.endpoint_ips, seed, service);
        for (address, was) in changed.into_iter().zip(known) {
            match (was, self.is_known(seed.hash(&address))) {
                (false, true) => self.prefixes.add(seed, address),
                (true, false) => self.prefixes.remove(seed, address),
                _ => {}
            }
        }
    }
}

/// The addresses of a Service before and after a change; both are sorted.
struct AddressChange {
    old: Vec<IpAddr>,
    new: Vec<IpAddr>,
}

impl AddressChange {
    fn gone(&self) -> impl Iterator<Item = &IpAddr> {
        self.old.iter().filter(|address| self.new.binary_search(address).is_err())
    }

    fn come(&self) -> impl Iterator<Item = &IpAddr> {
        self.new.iter().filter(|address| self.old.binary_search(address).is_err())
    }

    /// Those that are in one of both only.
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.gone().chain(self.come()).copied()
    }

    fn apply(&self, index: &mut Index<u64>, seed: &Seed, service: u64) {
        for address in self.gone() {
            index.remove(seed.hash(address), |known| *known == service);
        }
        for address in self.come() {
            index.insert(seed.hash(address), service, |known| *known == service);
        }
    }
}

fn cluster_ips(entry: &ServiceEntry) -> Vec<IpAddr> {
    if entry.kind == EntryKind::ClusterIp { entry.own.iter().collect() } else { Vec::new() }
}

fn endpoint_ips(entry: &ServiceEntry) -> Vec<IpAddr> {
    let mut all: Vec<_> = match entry.kind {
        EntryKind::ClusterIp | EntryKind::Headless => {
            entry.endpoints.iter().map(|endpoint| endpoint.address).collect()
        }
        EntryKind::External(_) | EntryKind::Unknown => Vec::new(),
    };
    all.sort_unstable();
    all.dedup();
    all
}
