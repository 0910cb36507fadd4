//! The chains of Services with session affinity.
//!
//! They are upstream's: a set for each target that remembers who uses it, a chain for each that
//! notes the sender and forwards, and a chain that sends a known sender back to where it was. One
//! map for all would do in the kernel, but no version of nft can list the rule that fills it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::chains::shortcuts;
use super::model::{Chain, Rule, Statement};
use super::names::{AffinitySet, ChainName, ServiceChain};
use crate::node_network::NodeNetwork;
use crate::select::TrafficPolicy;
use crate::service::{Frontend, FrontendKind, ServicePort, ServicePortName, Target};

/// All chains of a service port whose clients stay with their targets.
pub(super) fn chains(
    name: &Arc<ServicePortName>,
    frontends: &[(Frontend, FrontendKind)],
    port: &ServicePort,
    node_network: &NodeNetwork,
) -> BTreeMap<ChainName, Chain> {
    let has = |internal: bool| {
        frontends.iter().any(|(_, kind)| (*kind == FrontendKind::ClusterIp) == internal)
    };
    let (is_internal, is_external) = (has(true), has(false));
    let uses = |policy| {
        (is_internal && port.internal_policy == policy)
            || (is_external && port.external_policy == policy)
    };
    let sticky = Sticky { name, port, timeout: port.affinity.unwrap_or_default() };
    let mut chains = BTreeMap::new();
    let mut add = |name: ChainName, rules| chains.insert(name, Chain { base: None, rules });
    let mut targets: BTreeSet<Target> = BTreeSet::new();
    if uses(TrafficPolicy::Cluster) || is_external {
        add(sticky.chain(ServiceChain::Cluster), sticky.choose(&port.cluster));
        targets.extend(&port.cluster);
    }
    if uses(TrafficPolicy::Local) && !port.local.is_empty() {
        add(sticky.chain(ServiceChain::Local), sticky.choose(&port.local));
        targets.extend(&port.local);
    }
    if is_external {
        add(sticky.chain(ServiceChain::External), sticky.external(node_network));
    }
    for target in targets {
        add(ChainName::Endpoint(sticky.set(&target)), sticky.endpoint(&target));
    }
    chains
}

/// The sets that those chains use.
pub(super) fn sets(chains: &BTreeMap<ChainName, Chain>) -> BTreeSet<AffinitySet> {
    let set = |name: &ChainName| match name {
        ChainName::Endpoint(set) => Some(set.clone()),
        _ => None,
    };
    chains.keys().filter_map(set).collect()
}

/// A service port with session affinity.
struct Sticky<'a> {
    name: &'a Arc<ServicePortName>,
    port: &'a ServicePort,
    timeout: Duration,
}

impl Sticky<'_> {
    fn chain(&self, chain: ServiceChain) -> ChainName {
        ChainName::Service(chain, self.name.clone())
    }

    fn set(&self, target: &Target) -> AffinitySet {
        let service = self.name.clone();
        AffinitySet { service, target: target.socket(), timeout: self.timeout }
    }

    /// Back to the target that the sender had; a new sender to any, each equally likely.
    fn choose(&self, targets: &[Target]) -> Vec<Rule> {
        let goto = |target: &Target| Statement::Goto(ChainName::Endpoint(self.set(target)));
        let again = targets.iter().map(|t| vec![Statement::Remembered(self.set(t)), goto(t)]);
        let left = (1..=u32::try_from(targets.len()).unwrap_or(u32::MAX)).rev();
        let draw = targets.iter().zip(left).map(|(target, left)| match left {
            1 => vec![goto(target)],
            _ => vec![Statement::OnceIn(left), goto(target)],
        });
        again.chain(draw).collect()
    }

    fn external(&self, node_network: &NodeNetwork) -> Vec<Rule> {
        let cluster = self.chain(ServiceChain::Cluster);
        match self.port.external_policy {
            TrafficPolicy::Cluster => vec![
                vec![Statement::SetMark(node_network.masquerade_mark)],
                vec![Statement::Goto(cluster)],
            ],
            TrafficPolicy::Local => {
                let mut rules = shortcuts(node_network, &cluster);
                if !self.port.local.is_empty() {
                    rules.push(vec![Statement::Goto(self.chain(ServiceChain::Local))]);
                }
                rules
            }
        }
    }

    fn endpoint(&self, target: &Target) -> Vec<Rule> {
        let protocol = Statement::ProtocolIs(self.name.protocol);
        vec![
            // A rule of its own: a full set is no reason not to forward.
            vec![Statement::Remember(self.set(target))],
            vec![protocol, Statement::DestinationTo(target.socket())],
        ]
    }
}
