//! Packets, and what may become of them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::service::{FrontendKind, Protocol, ServicePortName};

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sends it.
    pub source: IpAddr,
    /// Whom it is for.
    pub destination: IpAddr,
    /// Its transport protocol.
    pub protocol: Protocol,
    /// Its destination port.
    pub port: u16,
    /// Where this node got it from.
    pub origin: Origin,
}

/// Where a packet comes from, seen from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process in the node's own network namespace.
    Node,
    /// A pod or another machine, by the network interface of this name.
    Network(Arc<str>),
}

/// What may become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It goes to a target.
    Forward {
        /// The address and port of the target.
        target: SocketAddr,
        /// Whether the target sees this node's address instead of the client's.
        masquerade: bool,
    },
    /// It is refused.
    Reject,
    /// It disappears.
    Drop,
    /// It is none of our business.
    Pass,
}

/// What may become of a packet, who decided it, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The service port whose frontend it is for, and the kind of that frontend.
    pub owner: Option<(Arc<ServicePortName>, FrontendKind)>,
    /// Why.
    pub reason: Reason,
    /// All that may become of it; each forwarding is equally likely.
    pub outcomes: BTreeSet<Outcome>,
}

/// Why a packet fares as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is not for a Service.
    NoService,
    /// No port of that ClusterIP has this number.
    UnusedPort,
    /// The address is one for Services, but none has it.
    UnusedAddress,
    /// There is no usable endpoint on any node.
    NoEndpoints,
    /// Policy wants an endpoint of this node, and there is none.
    NoLocalEndpoints,
    /// `loadBalancerSourceRanges` does not name the sender.
    SourceNotAllowed,
    /// Any usable endpoint will do.
    AnyEndpoint,
    /// Policy wants an endpoint of this node.
    LocalEndpoint,
    /// Policy wants an endpoint of this node only of traffic from outside, and this is not.
    ShortCircuit,
    /// Session affinity: the same target as before.
    SameTarget,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NoService => "not for a Service",
            Reason::UnusedPort => "no Service port of this ClusterIP has this number",
            Reason::UnusedAddress => "an address for Services that none has",
            Reason::NoEndpoints => "no usable endpoint on any node",
            Reason::NoLocalEndpoints => "policy Local, and no usable endpoint on this node",
            Reason::SourceNotAllowed => "the sender is not in loadBalancerSourceRanges",
            Reason::AnyEndpoint => "any usable endpoint",
            Reason::LocalEndpoint => "policy Local: an endpoint on this node",
            Reason::ShortCircuit => "policy Local, but the sender is in the cluster: any endpoint",
            Reason::SameTarget => "session affinity: the same target as before",
        })
    }
}
