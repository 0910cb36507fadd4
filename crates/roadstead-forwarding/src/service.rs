//! The nouns of forwarding: service ports, frontends that clients dial, targets behind them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::select::TrafficPolicy;

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

    /// The kernel's number: `AF_INET` or `AF_INET6`.
    pub fn number(self) -> u8 {
        match self {
            IpFamily::V4 => 2,
            IpFamily::V6 => 10,
        }
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

/// What clients dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The address, or those of the node.
    pub host: Host,
    /// The protocol.
    pub protocol: Protocol,
    /// The Service port, or the node port.
    pub port: u16,
}

/// `10.96.0.1:80/tcp`, or `node port 30080/tcp`.
impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Address(address) => {
                write!(f, "{}/{}", SocketAddr::new(address, self.port), self.protocol)
            }
            Host::Node => write!(f, "node port {}/{}", self.port, self.protocol),
        }
    }
}

/// The address part of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A virtual address.
    Address(IpAddr),
    /// Every address of this node that serves node ports.
    Node,
}

/// The kinds of frontends, the strongest claim first: what the API server gives out beats what the
/// cluster's load balancer gives out, and both beat what the author of a Service asks for. Where a
/// Service lists an address twice, the first kind counts, too, and so source ranges are obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// The only one for traffic inside the cluster: it follows `internalTrafficPolicy`.
    ClusterIp,
    /// From `status.loadBalancer.ingress`; the only one that obeys `loadBalancerSourceRanges`.
    LoadBalancer,
    /// From `spec.externalIPs`.
    ExternalIp,
    /// A port on the addresses of the node.
    NodePort,
}

/// Where an endpoint runs, seen from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Locality {
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
    pub locality: Locality,
}

impl Target {
    /// Address and port together.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// What becomes of a new connection under a traffic policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling<'a> {
    /// It goes to any of these, each equally likely. Never empty; no target appears twice.
    Forward(&'a [Target]),
    /// It is refused at once: there is no endpoint anywhere.
    Reject,
    /// It is dropped silently: endpoints exist, but none that policy lets us use from here. A
    /// refusal would make load balancers that are about to notice give up too early.
    Drop,
}

/// How one port of one Service is carried, in one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// The port that clients dial, but for node ports.
    pub port: u16,
    /// The ClusterIPs.
    pub cluster_ips: Vec<IpAddr>,
    /// From `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// From `status.loadBalancer.ingress`, without those of mode `Proxy`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// The node port, if there is one.
    pub node_port: Option<u16>,
    /// Where load balancers ask for the health of this node, if they do.
    pub health_check_port: Option<u16>,
    /// Where connections to the ClusterIPs may go.
    pub internal_policy: TrafficPolicy,
    /// Where connections to all other frontends may go.
    pub external_policy: TrafficPolicy,
    /// Who may call the load balancer's addresses, in the order given; `None` for everybody.
    pub source_ranges: Option<Vec<IpNet>>,
    /// When the Service was made, in seconds: of two equal claims the older one counts.
    pub created: i64,
    /// How long a client stays with its target after its last connection, if at all.
    pub affinity: Option<Duration>,
    /// The targets under policy Cluster, in the order of their texts. Empty only if there is no
    /// usable endpoint anywhere.
    pub cluster: Vec<Target>,
    /// The targets under policy Local; empty if no policy asks for them.
    pub local: Vec<Target>,
}

impl ServicePort {
    /// All frontends with their kinds, the strongest first; an address that is listed twice comes
    /// twice.
    pub fn frontends(
        &self,
        protocol: Protocol,
    ) -> impl Iterator<Item = (Frontend, FrontendKind)> + '_ {
        let kinds = [
            (&self.cluster_ips, FrontendKind::ClusterIp),
            (&self.load_balancer_ips, FrontendKind::LoadBalancer),
            (&self.external_ips, FrontendKind::ExternalIp),
        ];
        let addresses = kinds.into_iter().flat_map(move |(addresses, kind)| {
            addresses.iter().map(move |address| {
                (Frontend { host: Host::Address(*address), protocol, port: self.port }, kind)
            })
        });
        let node = self.node_port.into_iter().map(move |port| {
            (Frontend { host: Host::Node, protocol, port }, FrontendKind::NodePort)
        });
        addresses.chain(node)
    }

    /// Whether it claims the same frontends as another, and as strongly.
    pub(crate) fn claims_like(&self, other: &ServicePort) -> bool {
        self.port == other.port
            && self.cluster_ips == other.cluster_ips
            && self.external_ips == other.external_ips
            && self.load_balancer_ips == other.load_balancer_ips
            && self.node_port == other.node_port
            && self.created == other.created
    }

    /// Whether the addresses of the load balancer are open to a sender.
    pub(crate) fn admits(&self, sender: IpAddr) -> bool {
        let ranges = self.source_ranges.as_ref();
        ranges.is_none_or(|ranges| ranges.iter().any(|range| range.contains(&sender)))
    }

    /// Whether there is any way to it from outside the cluster.
    pub fn is_external(&self) -> bool {
        self.node_port.is_some()
            || !self.load_balancer_ips.is_empty()
            || !self.external_ips.is_empty()
    }

    /// Whether some frontend forwards under policy Cluster. The external ones always do, at least
    /// for pods and the node itself.
    pub(crate) fn uses_cluster(&self) -> bool {
        self.internal_policy == TrafficPolicy::Cluster || self.is_external()
    }

    /// Whether some frontend forwards under policy Local.
    pub fn uses_local(&self) -> bool {
        self.internal_policy == TrafficPolicy::Local
            || (self.external_policy == TrafficPolicy::Local && self.is_external())
    }

    /// Whether there is a usable endpoint on any node.
    pub fn has_endpoints(&self) -> bool {
        !self.cluster.is_empty()
    }

    /// The policy of a kind of frontends.
    pub fn policy(&self, kind: FrontendKind) -> TrafficPolicy {
        match kind {
            FrontendKind::ClusterIp => self.internal_policy,
            _ => self.external_policy,
        }
    }

    /// The targets under a policy.
    pub fn targets(&self, policy: TrafficPolicy) -> &[Target] {
        match policy {
            TrafficPolicy::Cluster => &self.cluster,
            TrafficPolicy::Local => &self.local,
        }
    }

    /// What becomes of a new connection under a policy.
    pub(crate) fn handling(&self, policy: TrafficPolicy) -> Handling<'_> {
        let targets = self.targets(policy);
        match (targets.is_empty(), self.has_endpoints()) {
            (false, _) => Handling::Forward(targets),
            (true, true) => Handling::Drop,
            (true, false) => Handling::Reject,
        }
    }
}
