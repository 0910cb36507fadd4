//! What the policies say about an attempt to talk to somebody: the reference.

use std::net::IpAddr;

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::service::Protocol;

use crate::cluster::PolicyCluster;
use crate::pod::PolicyPod;
use crate::policy::{Direction, Peer, PolicyPort, PolicyRule, Ports};

/// Somebody tries to talk to somebody: addresses as they are where packets are forwarded, so that of a
/// Service there is only the pod behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Who begins.
    pub client: IpAddr,
    /// Who answers.
    pub server: IpAddr,
    /// `None` for what has no ports, such as a ping.
    pub protocol: Option<Protocol>,
    /// Of the server.
    pub port: u16,
}

/// What becomes of an attempt on a node, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What is said of the client; `None` if it is no pod of the node.
    pub egress: Option<Judgement>,
    /// What is said of the server.
    pub ingress: Option<Judgement>,
}

/// What the policies of one pod say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nobody can keep a pod from itself.
    Itself(ObjectKey),
    /// No policy selects the pod.
    Free(ObjectKey),
    /// This policy of the pod allows it.
    Allowed(ObjectKey, ObjectKey),
    /// None of these policies of the pod does.
    Denied(ObjectKey, Vec<ObjectKey>),
}

impl Verdict {
    /// Whether packets pass.
    #[cfg(test)]
    pub(crate) fn is_allowed(&self) -> bool {
        let denied = |own: &Option<Judgement>| matches!(own, Some(Judgement::Denied(..)));
        !denied(&self.egress) && !denied(&self.ingress)
    }
}

/// Whose pods are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Those of one node, as that node does.
    Node(&'a str),
    /// All: what comes of it when every node does its part.
    Everywhere,
}

/// Judges an attempt.
pub fn decide(cluster: &PolicyCluster, scope: Scope<'_>, attempt: &Attempt) -> Verdict {
    let judge = |direction| {
        let own = match direction {
            Direction::Ingress => attempt.server,
            Direction::Egress => attempt.client,
        };
        let key = match scope {
            Scope::Node(name) => cluster.owner_on(name, own),
            Scope::Everywhere => cluster.owner(own),
        };
        key.map(|key| judge(cluster, key, direction, attempt))
    };
    Verdict { egress: judge(Direction::Egress), ingress: judge(Direction::Ingress) }
}

fn judge(
    cluster: &PolicyCluster,
    pod: &ObjectKey,
    direction: Direction,
    attempt: &Attempt,
) -> Judgement {
    let policies: Vec<_> = cluster.policies_on(pod, direction).collect();
    if attempt.client == attempt.server {
        return Judgement::Itself(pod.clone());
    }
    if policies.is_empty() {
        return Judgement::Free(pod.clone());
    }
    let allows =
        |rules: &[PolicyRule]| rules.iter().any(|rule| allows(cluster, rule, direction, attempt));
    let mut allowing =
        policies.iter().filter(|(_, policy)| policy.rules(direction).is_some_and(allows));
    match allowing.next() {
        Some((key, _)) => Judgement::Allowed(pod.clone(), (***key).clone()),
        None => {
            let keys = policies.iter().map(|(key, _)| (***key).clone());
            Judgement::Denied(pod.clone(), keys.collect())
        }
    }
}

fn allows(
    cluster: &PolicyCluster,
    rule: &PolicyRule,
    direction: Direction,
    attempt: &Attempt,
) -> bool {
    let other = match direction {
        Direction::Ingress => attempt.client,
        Direction::Egress => attempt.server,
    };
    let pod = cluster.owner(other).and_then(|key| Some((key, cluster.pod(key)?)));
    let is_peer = |peer: &Peer| match peer {
        Peer::Pods(group) => pod.is_some_and(|(key, pod)| cluster.is_in(group, key, pod)),
        Peer::Block(network, except) => {
            network.contains(&other) && !except.iter().any(|network| network.contains(&other))
        }
    };
    let server = cluster.owner(attempt.server).and_then(|key| cluster.pod(key));
    let is_port = |port: &PolicyPort| {
        attempt.protocol == Some(port.protocol) && names(port, server, attempt.port)
    };
    rule.peers.as_ref().is_none_or(|peers| peers.iter().any(is_peer))
        && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(is_port))
}

/// Whether a number is among the ports; a name stands for what the server calls so.
fn names(port: &PolicyPort, server: Option<&PolicyPod>, number: u16) -> bool {
    match &port.ports {
        Ports::Any => true,
        Ports::Range(first, last) => (*first..=*last).contains(&number),
        Ports::Named(wanted) => server.is_some_and(|pod| {
            let mut named = pod.named_ports.iter();
            named.any(|(name, protocol, own)| {
                name == wanted && *protocol == port.protocol && *own == number
            })
        }),
    }
}
