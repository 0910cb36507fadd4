//! The nouns of forwarding: service ports, frontends that clients dial, targets behind them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The two kinds of IP address; each has a table and a kernel program of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
    }
}

/// The transport protocols that a Service port may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// The default.
    Tcp,
    /// Datagrams; DNS above all.
    Udp,
    /// Signalling; rare.
    Sctp,
}

impl Protocol {
    /// Reads the value of a `protocol` field; absent means TCP.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text.unwrap_or("TCP") {
            "TCP" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            "SCTP" => Some(Protocol::Sctp),
            _ => None,
        }
    }

    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

/// What identifies one port of one Service: TCP and UDP may share a port name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The name of the port, empty if it has none.
    pub port: String,
    /// The protocol of the port.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        if !self.port.is_empty() {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "/{}", self.protocol)
    }
}

/// An address that clients dial. For now that is always a ClusterIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The virtual address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The Service port.
    pub port: u16,
}

/// Where an endpoint runs, seen from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// On this very node.
    Here,
    /// On another node, or nobody knows.
    Elsewhere,
}

/// Where a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The address of the endpoint.
    pub address: IpAddr,
    /// The port it listens on.
    pub port: u16,
    /// A target on this node may call itself through the frontend.
    pub place: Place,
}

impl Target {
    /// Address and port together.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// What becomes of a new connection to a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handling {
    /// It goes to any of these, each equally likely. Never empty; no target appears twice.
    Forward(Vec<Target>),
    /// It is refused at once: there is no endpoint anywhere.
    Reject,
    /// It is dropped silently: endpoints exist, but none that policy lets us use from here. A
    /// refusal would make load balancers that are about to notice give up too early.
    Drop,
}

impl Handling {
    /// The targets, if it forwards at all.
    pub fn targets(&self) -> &[Target] {
        match self {
            Handling::Forward(targets) => targets,
            Handling::Reject | Handling::Drop => &[],
        }
    }
}

/// How one port of one Service is carried, in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// In order, each once.
    pub frontends: Vec<Frontend>,
    /// What becomes of connections to the frontends.
    pub internal: Handling,
}
