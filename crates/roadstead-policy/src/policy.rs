//! A NetworkPolicy, read into what it means.
//!
//! What cannot be read matches nothing: a policy that is not understood lets nobody in by mistake.

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roadstead_api::ip;
use roadstead_api::selector::Selector;
use roadstead_forwarding::service::Protocol;

/// Seen from the pods that a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Others come to them.
    Ingress,
    /// They go to others.
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Egress, Direction::Ingress];

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }
}

/// Who is under a policy, and what it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which pods of its namespace.
    pub subjects: Selector,
    /// What may come to them; `None` if the policy has nothing to say about that.
    pub ingress: Option<Vec<PolicyRule>>,
    /// Where they may go.
    pub egress: Option<Vec<PolicyRule>>,
}

/// Allows these ports with these peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// `None`: everybody.
    pub peers: Option<Vec<Peer>>,
    /// `None`: everything, whatever the protocol.
    pub ports: Option<Vec<PolicyPort>>,
}

/// Somebody on the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Pods.
    Pods(PodGroup),
    /// Addresses: those of the first network that are in none of the others.
    Block(IpNet, Vec<IpNet>),
}

/// Pods by their namespaces and labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGroup {
    /// Where they are.
    pub namespaces: NamespaceScope,
    /// What their labels are.
    pub pods: Selector,
}

/// Some namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceScope {
    /// That one.
    Named(String),
    /// Those with such labels.
    Matching(Selector),
}

/// Some ports of a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPort {
    /// The protocol.
    pub protocol: Protocol,
    /// Which of its ports.
    pub ports: Ports,
}

/// Ports of whoever is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// All.
    Any,
    /// From one to another, both included.
    Range(u16, u16),
    /// The one that the pod has a name for.
    Named(String),
}

impl Policy {
    /// Reads a NetworkPolicy.
    pub fn read(policy: &NetworkPolicy) -> Self {
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let spec = policy.spec.clone().unwrap_or_default();
        let types = spec.policy_types.unwrap_or_default();
        // As the API server completes it.
        let says = |name: &str| types.iter().any(|own| own == name);
        let ingress = says("Ingress") || types.is_empty();
        let egress = says("Egress") || types.is_empty() && spec.egress.is_some();
        let subjects = spec.pod_selector.as_ref().map(Selector::from_object).unwrap_or_default();
        let incoming = spec.ingress.unwrap_or_default().into_iter();
        let incoming = incoming.map(|rule| (rule.from, rule.ports));
        let outgoing = spec.egress.unwrap_or_default().into_iter();
        let outgoing = outgoing.map(|rule| (rule.to, rule.ports));
        let rule = |(peers, ports)| PolicyRule::read(namespace, peers, ports);
        Self {
            subjects,
            ingress: ingress.then(|| incoming.map(rule).collect()),
            egress: egress.then(|| outgoing.map(rule).collect()),
        }
    }

    /// What it says of a direction.
    pub fn rules(&self, direction: Direction) -> Option<&[PolicyRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

impl PolicyRule {
    fn read(
        namespace: &str,
        peers: Option<Vec<NetworkPolicyPeer>>,
        ports: Option<Vec<NetworkPolicyPort>>,
    ) -> Self {
        let peers = peers.filter(|peers| !peers.is_empty());
        let ports = ports.filter(|ports| !ports.is_empty());
        let peer = |peer: &NetworkPolicyPeer| Peer::read(namespace, peer);
        Self {
            peers: peers.map(|peers| peers.iter().filter_map(peer).collect()),
            ports: ports.map(|ports| ports.iter().filter_map(PolicyPort::read).collect()),
        }
    }
}

impl Peer {
    fn read(namespace: &str, peer: &NetworkPolicyPeer) -> Option<Self> {
        if let Some(block) = &peer.ip_block {
            return Self::block(block);
        }
        let pods = peer.pod_selector.as_ref().map(Selector::from_object);
        let namespaces = peer.namespace_selector.as_ref().map(Selector::from_object);
        if pods.is_none() && namespaces.is_none() {
            return None;
        }
        let own = || NamespaceScope::Named(namespace.to_owned());
        let namespaces = namespaces.map_or_else(own, NamespaceScope::Matching);
        Some(Peer::Pods(PodGroup { namespaces, pods: pods.unwrap_or_default() }))
    }

    /// An exception that cannot be read makes the whole block unreadable: without it, it would allow
    /// too much.
    fn block(block: &IPBlock) -> Option<Self> {
        let except = block.except.iter().flatten().map(|text| ip::parse_network(text));
        Some(Peer::Block(ip::parse_network(&block.cidr)?, except.collect::<Option<_>>()?))
    }
}

impl PolicyPort {
    fn read(port: &NetworkPolicyPort) -> Option<Self> {
        let protocol = Protocol::parse(port.protocol.as_deref())?;
        let number = |number: i32| u16::try_from(number).ok();
        let ports = match (&port.port, port.end_port) {
            (None, _) => Ports::Any,
            (Some(IntOrString::Int(first)), None) => Ports::Range(number(*first)?, number(*first)?),
            (Some(IntOrString::Int(first)), Some(last)) => {
                Ports::Range(number(*first)?, number(last)?)
            }
            (Some(IntOrString::String(name)), _) => Ports::Named(name.clone()),
        };
        Some(Self { protocol, ports })
    }
}
