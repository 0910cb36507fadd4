//! From the table to the program: what each service port needs.
//!
//! The chains are in `chains`, those of Services with session affinity in `affinity`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::chains::{definition, fences, fixed_chains};
use super::model::{Chain, Class, Key, Program, Value, Way};
use super::names::{AffinitySet, ChainName, ServiceChain, Slots};
use super::{affinity, chains};
use crate::node_network::{NodeNetwork, NodePorts};
use crate::select::TrafficPolicy;
use crate::service::{
    Frontend, FrontendKind, Host, Locality, ServicePort, ServicePortName, Target,
};
use crate::table::ForwardingTable;

/// So many targets at most can one frontend have; further ones get no connections.
pub(crate) const SLOT_LIMIT: usize = 0xffff;

/// Compiles the whole table; targets take their slots in order.
pub fn compile(table: &ForwardingTable) -> Program {
    let node_network = table.node_network();
    let mut chains = fixed_chains(node_network, table.family());
    let mut has_fences = false;
    let mut elements: BTreeMap<_, _> = fixed_elements(node_network).collect();
    let mut affinity = BTreeSet::new();
    for (name, port) in table.iter() {
        let frontends = table.frontends_of(name);
        let needs = Needs::of(name, &frontends, port, node_network);
        for class in &needs.classes {
            elements.extend([pick_element(*class)]);
            let wanted = chains::behind(*class);
            chains.extend(wanted.map(|name| (name.clone(), definition(&name, node_network))));
        }
        elements.extend(needs.shared.into_iter().map(|key| (key, Value::Member)));
        elements.extend(needs.own);
        chains.extend(needs.chains);
        affinity.extend(needs.sets);
        has_fences |= needs.is_fenced;
    }
    if has_fences {
        chains.extend(fences());
    }
    Program { family: table.family(), chains, elements, affinity }
}

/// The elements that do not depend on Services.
pub(super) fn fixed_elements(around: &NodeNetwork) -> impl Iterator<Item = (Key, Value)> + '_ {
    let addresses = match &around.node_ports {
        NodePorts::On(addresses) => Some(addresses),
        NodePorts::Every { .. } => None,
    };
    let keys = |address: &IpAddr| [Key::NodePortIp(*address), Key::FrontendIp(*address)];
    addresses.into_iter().flatten().flat_map(keys).map(|key| (key, Value::Member))
}

/// The element that leads from a class to its chain.
pub(super) fn pick_element(class: Class) -> (Key, Value) {
    (Key::Pick(class), Value::Goto(chains::entry(class)))
}

/// Everything that the kernel must have for one service port.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// How its frontends are carried, each with chains that many service ports share.
    pub(super) classes: BTreeSet<Class>,
    /// Elements that other service ports may have, too.
    pub(super) shared: BTreeSet<Key>,
    /// Elements of its own, in the order of their keys.
    pub(super) own: Vec<(Key, Value)>,
    /// Chains of its own; only with session affinity.
    pub(super) chains: BTreeMap<ChainName, Chain>,
    /// Sets of its own; only with session affinity.
    pub(super) sets: BTreeSet<AffinitySet>,
    /// Whether not everybody may call it.
    pub(super) is_fenced: bool,
}

impl Needs {
    /// What a service port needs that has these frontends. The order of its targets is that of
    /// the slots.
    pub(super) fn of(
        name: &Arc<ServicePortName>,
        frontends: &[(Frontend, FrontendKind)],
        port: &ServicePort,
        node_network: &NodeNetwork,
    ) -> Self {
        let mut needs = Self::default();
        for (frontend, kind) in frontends {
            needs.frontend(name, *frontend, *kind, port);
            if *kind == FrontendKind::LoadBalancer {
                needs.fence(name, *frontend, port, node_network);
            }
            let Host::Address(address) = frontend.host else {
                if let NodePorts::Every { .. } = node_network.node_ports {
                    needs.shared.insert(Key::NodePort(frontend.protocol, frontend.port));
                }
                continue;
            };
            if *kind == FrontendKind::ClusterIp {
                needs.shared.insert(Key::ClusterIp(address));
            }
            if !node_network.expects_frontends(address) {
                needs.shared.insert(Key::FrontendIp(address));
            }
        }
        if !frontends.is_empty() {
            let here =
                port.cluster.iter().chain(&port.local).filter(|t| t.locality == Locality::Here);
            needs.shared.extend(here.map(|t| Key::Hairpin(t.address, name.protocol, t.port)));
            if port.affinity.is_some() && port.has_endpoints() {
                let sticky = affinity::chains(name, frontends, port, node_network);
                needs.sets = affinity::sets(&sticky);
                needs.chains = sticky;
            }
        }
        needs.own.sort_unstable_by_key(|(key, _)| *key);
        needs
    }

    fn frontend(
        &mut self,
        name: &Arc<ServicePortName>,
        frontend: Frontend,
        kind: FrontendKind,
        port: &ServicePort,
    ) {
        let named = || Value::Named(name.clone());
        if !port.has_endpoints() {
            return self.own.push((Key::NoEndpoint(frontend), named()));
        }
        let policy = port.policy(kind);
        if policy == TrafficPolicy::Local && port.local.is_empty() {
            self.own.push((Key::NoLocalEndpoint(frontend), named()));
            if kind == FrontendKind::ClusterIp {
                return;
            }
        }
        if port.affinity.is_some() {
            let chain = match (kind, policy) {
                (FrontendKind::ClusterIp, TrafficPolicy::Cluster) => ServiceChain::Cluster,
                (FrontendKind::ClusterIp, TrafficPolicy::Local) => ServiceChain::Local,
                _ => ServiceChain::External,
            };
            let goto = Value::Goto(ChainName::Service(chain, name.clone()));
            return self.own.push((Key::Affinity(frontend), goto));
        }
        let node = frontend.host == Host::Node;
        let (way, targets) = match (kind, policy) {
            (FrontendKind::ClusterIp, _) => (Way::Plain, port.targets(policy)),
            (_, TrafficPolicy::Cluster) if node => (Way::NodePortExternal, &port.cluster[..]),
            (_, TrafficPolicy::Cluster) => (Way::External, &port.cluster[..]),
            (_, TrafficPolicy::Local) if node => (Way::NodePortShortcut, &port.cluster[..]),
            (_, TrafficPolicy::Local) => (Way::Shortcut, &port.cluster[..]),
        };
        self.slots(name, (Key::Service(frontend), way), targets, |n| Key::Endpoint(frontend, n));
        if kind != FrontendKind::ClusterIp && policy == TrafficPolicy::Local {
            let way = if node { Way::NodePortLocal } else { Way::Local };
            let key = (Key::LocalService(frontend), way);
            self.slots(name, key, &port.local, |n| Key::LocalEndpoint(frontend, n));
        }
    }

    fn slots(
        &mut self,
        name: &Arc<ServicePortName>,
        (key, way): (Key, Way),
        targets: &[Target],
        slot: impl Fn(u32) -> Key,
    ) {
        let targets = &targets[..targets.len().min(SLOT_LIMIT)];
        let Some(count) = u32::try_from(targets.len()).ok().filter(|count| *count > 0) else {
            return;
        };
        let class = Class { way, count };
        self.classes.insert(class);
        self.own.push((key, Value::Class(class, name.clone())));
        let slots = (0..).zip(targets).map(|(n, t)| (slot(n), Value::Target(t.socket())));
        self.own.extend(slots);
    }

    /// Only those in the source ranges may call. Where the node itself may, so may the packets
    /// that it sends to the very address.
    fn fence(
        &mut self,
        name: &Arc<ServicePortName>,
        frontend: Frontend,
        port: &ServicePort,
        node_network: &NodeNetwork,
    ) {
        let Host::Address(address) = frontend.host else { return };
        let Some(ranges) = &port.source_ranges else { return };
        let mut ranges: Vec<IpNet> = ranges.clone();
        if node_network.node_address.is_some_and(|node| port.admits(node)) && !port.admits(address)
        {
            ranges.push(address.into());
        }
        self.is_fenced = true;
        self.own.push((Key::Firewalled(frontend), Value::Named(name.clone())));
        // Ranges must not overlap; the wider ones do for the narrower ones.
        let allowed = IpNet::aggregate(&ranges);
        self.own
            .extend(allowed.into_iter().map(|net| (Key::Allowed(frontend, net), Value::Member)));
    }
}

/// The map of slots that a way leads to.
pub(super) fn slots_of(way: Way) -> Slots {
    match way {
        Way::Plain | Way::External | Way::Shortcut => Slots::Address,
        Way::Local => Slots::LocalAddress,
        Way::NodePortExternal | Way::NodePortShortcut => Slots::NodePort,
        Way::NodePortLocal => Slots::LocalNodePort,
    }
}

#[cfg(test)]
mod tests;
