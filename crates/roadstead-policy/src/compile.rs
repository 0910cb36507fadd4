//! One policy as chains.

use std::collections::BTreeMap;
use std::sync::Arc;

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::service::Protocol;

use crate::policy::{Direction, NamespaceScope, Peer, PodGroup, PolicyPort, PolicyRule, Ports};
use crate::program::{ChainRule, PolicyChain, Step};

/// What a policy is in the kernel, for one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CompiledPolicy {
    pub(crate) chains: BTreeMap<PolicyChain, Vec<ChainRule>>,
    /// The sets it reads, each as often as it does.
    pub(crate) groups: Vec<GroupName>,
    pub(crate) named: Vec<PortName>,
}

/// A group of pods by what it says: who says the same means the same set.
pub(crate) type GroupName = (String, String);
/// A name of ports.
pub(crate) type PortName = (Protocol, String);

/// The name of a group. No namespace is called like a selector with this sign.
pub(crate) fn group_name(group: &PodGroup) -> GroupName {
    let namespaces = match &group.namespaces {
        NamespaceScope::Named(name) => name.clone(),
        NamespaceScope::Matching(selector) => format!("?{selector}"),
    };
    (namespaces, group.pods.to_string())
}

/// Gives sets their numbers.
pub(crate) trait Numbers {
    fn group(&mut self, group: &PodGroup) -> u32;
    fn named(&mut self, name: PortName) -> u32;
}

/// Compiles what a policy says of a direction.
pub(crate) fn compile(
    key: &Arc<ObjectKey>,
    direction: Direction,
    rules: &[PolicyRule],
    numbers: &mut impl Numbers,
) -> CompiledPolicy {
    let chains = BTreeMap::new();
    let compiled = CompiledPolicy { chains, ..CompiledPolicy::default() };
    let mut work = Work { key, direction, numbers, compiled };
    let own = rules.iter().enumerate().flat_map(|(index, rule)| work.rule(index, rule)).collect();
    work.compiled.chains.insert(PolicyChain::Policy(direction, key.clone()), own);
    work.compiled
}

struct Work<'a, N> {
    key: &'a Arc<ObjectKey>,
    direction: Direction,
    numbers: &'a mut N,
    compiled: CompiledPolicy,
}

impl<N: Numbers> Work<'_, N> {
    /// One of the two lists is short, or the other has a chain of its own: there are never as many
    /// rules as there are pairs.
    fn rule(&mut self, index: usize, rule: &PolicyRule) -> Vec<ChainRule> {
        let ports: Vec<ChainRule> = match &rule.ports {
            None => vec![Vec::new()],
            Some(ports) => ports.iter().map(|port| self.port(port)).collect(),
        };
        let peers: Vec<ChainRule> = match &rule.peers {
            None => vec![vec![Step::Accept]],
            Some(peers) => {
                peers.iter().enumerate().map(|(at, peer)| self.peer((index, at), peer)).collect()
            }
        };
        if ports.len() <= 1 || peers.len() <= 1 {
            let join = |port: &ChainRule, peer: &ChainRule| [&port[..], &peer[..]].concat();
            let pairs =
                ports.iter().flat_map(|port| peers.iter().map(move |peer| join(port, peer)));
            return pairs.collect();
        }
        let chain = PolicyChain::Rule(self.direction, self.key.clone(), index);
        self.compiled.chains.insert(chain.clone(), peers);
        let jump = |port: ChainRule| [port, vec![Step::Jump(chain.clone())]].concat();
        ports.into_iter().map(jump).collect()
    }

    fn port(&mut self, port: &PolicyPort) -> ChainRule {
        let protocol = Step::Protocol(port.protocol);
        match &port.ports {
            Ports::Any => vec![protocol],
            Ports::Range(first, last) => vec![protocol, Step::Ports(*first, *last)],
            Ports::Named(name) => {
                let name = (port.protocol, name.clone());
                self.compiled.named.push(name.clone());
                vec![protocol, Step::NamedPort(self.numbers.named(name))]
            }
        }
    }

    fn peer(&mut self, (rule, at): (usize, usize), peer: &Peer) -> ChainRule {
        let direction = self.direction;
        match peer {
            Peer::Pods(group) => {
                self.compiled.groups.push(group_name(group));
                vec![Step::PeerInGroup(direction, self.numbers.group(group)), Step::Accept]
            }
            Peer::Block(network, except) if except.is_empty() => {
                vec![Step::PeerInNetwork(direction, network.trunc()), Step::Accept]
            }
            Peer::Block(network, except) => {
                let chain = PolicyChain::Block(direction, self.key.clone(), rule, at);
                let not_these = except.iter().map(|network| {
                    vec![Step::PeerInNetwork(direction, network.trunc()), Step::Return]
                });
                let rules = not_these.chain([vec![Step::Accept]]).collect();
                self.compiled.chains.insert(chain.clone(), rules);
                vec![Step::PeerInNetwork(direction, network.trunc()), Step::Jump(chain)]
            }
        }
    }
}
