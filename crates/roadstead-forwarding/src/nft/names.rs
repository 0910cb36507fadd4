//! The names of sets, maps and chains, and what the sets are made of.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::model::{ADDRESS_KEY, Field, NODE_PORT_KEY};
use crate::service::ServicePortName;

/// The kernel takes names of up to 255 bytes; longer ones end in a number instead.
const NAME_LIMIT: usize = 250;

/// The names of our chains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// One of the fixed chains.
    Fixed(&'static str),
    /// `pick-N`: forwards to one of N slots.
    Pick(Slots, u32),
    /// `external-N`: masquerades, then picks.
    External(Slots, u32),
    /// `shortcut-N`: picks for pods and the node; everybody else goes to a local target.
    Shortcut(Slots, u32),
    /// A chain of a Service with session affinity.
    Service(ServiceChain, Arc<ServicePortName>),
    /// Forwards to one target and remembers who is there.
    Endpoint(AffinitySet),
}

/// The chains of a Service with session affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceChain {
    /// To the target that the sender had before, or else to any.
    Cluster,
    /// The same among local targets.
    Local,
    /// Where external frontends lead to.
    External,
}

/// The maps of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slots {
    /// Targets of frontends with an address.
    Address,
    /// Their local targets.
    LocalAddress,
    /// Targets of node ports.
    NodePort,
    /// Their local targets.
    LocalNodePort,
}

impl Slots {
    /// The map.
    pub fn set(self) -> SetName {
        match self {
            Slots::Address => SetName::Endpoints,
            Slots::LocalAddress => SetName::LocalEndpoints,
            Slots::NodePort => SetName::NodePortEndpoints,
            Slots::LocalNodePort => SetName::LocalNodePortEndpoints,
        }
    }

    /// What its keys are made of, besides the slot.
    pub fn fields(self) -> &'static [Field] {
        match self {
            Slots::Address | Slots::LocalAddress => ADDRESS_KEY,
            Slots::NodePort | Slots::LocalNodePort => NODE_PORT_KEY,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Slots::Address => "",
            Slots::LocalAddress => "local-",
            Slots::NodePort => "nodeport-",
            Slots::LocalNodePort => "local-nodeport-",
        }
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainName::Fixed(name) => f.write_str(name),
            ChainName::Pick(slots, count) => write!(f, "{}pick-{count}", slots.prefix()),
            ChainName::External(slots, count) => write!(f, "{}external-{count}", slots.prefix()),
            ChainName::Shortcut(slots, count) => write!(f, "{}shortcut-{count}", slots.prefix()),
            ChainName::Service(chain, service) => {
                let prefix = match chain {
                    ServiceChain::Cluster => "service",
                    ServiceChain::Local => "local",
                    ServiceChain::External => "external",
                };
                f.write_str(&bounded(format!("{prefix}-{}", path(service))))
            }
            ChainName::Endpoint(set) => f.write_str(&set.named("endpoint")),
        }
    }
}

/// The set that remembers who uses one target of a Service with session affinity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AffinitySet {
    /// Whose target.
    pub service: Arc<ServicePortName>,
    /// The target.
    pub target: SocketAddr,
    /// How long it remembers. A set cannot change that, so it is part of the name.
    pub timeout: Duration,
}

impl AffinitySet {
    fn named(&self, prefix: &str) -> String {
        // A colon may not be part of a name.
        let (address, port) = (self.target.ip().to_string().replace(':', "."), self.target.port());
        let seconds = self.timeout.as_secs();
        bounded(format!("{prefix}-{}__{address}/{port}/{seconds}s", path(&self.service)))
    }
}

impl fmt::Display for AffinitySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named("affinity"))
    }
}

fn path(service: &ServicePortName) -> String {
    let ServicePortName { namespace, name, port, protocol } = service;
    format!("{namespace}/{name}/{protocol}/{port}")
}

/// Watches may deliver names that no server would accept: each still gets a name of its own.
pub fn bounded(name: String) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-/._".contains(c);
    if name.len() <= NAME_LIMIT && name.chars().all(plain) {
        return name;
    }
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let number = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let start: String = name.chars().filter(|c| plain(*c)).take(NAME_LIMIT - 20).collect();
    format!("{start}-{number:016x}")
}

/// Our sets and maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// All ClusterIPs.
    ClusterIps,
    /// The addresses that serve node ports, unless all do.
    NodePortIps,
    /// Whatever has an address that a frontend has, besides those of the Service networks. What is
    /// for none of them is none of our business.
    FrontendIps,
    /// The node ports that anybody has, where every address of the node serves them: only what is
    /// for one of those ports is worth the question whether its destination is the node.
    NodePortsInUse,
    /// Endpoints of this node calling themselves.
    HairpinConnections,
    /// Frontend to its class. A verdict for each would make the kernel check all of them whenever
    /// one is added, to see that no chains lead in a circle.
    ServiceIps,
    /// The same for local targets.
    LocalServiceIps,
    /// The same for node ports.
    ServiceNodePorts,
    /// The same for node ports and local targets.
    LocalServiceNodePorts,
    /// Frontends with session affinity to the chains of their Services.
    AffinityServices,
    /// The same for node ports.
    AffinityNodePorts,
    /// Class to chain.
    Picks,
    /// The same for local targets. A chain may not be reached from a map that it reads itself.
    LocalPicks,
    /// Frontends without any endpoint.
    NoEndpointServices,
    /// Node ports without any endpoint.
    NoEndpointNodePorts,
    /// Frontends without an endpoint that policy lets us use from here.
    NoLocalEndpointServices,
    /// The same for node ports.
    NoLocalEndpointNodePorts,
    /// Frontends that not everybody may call.
    FirewallIps,
    /// Who may.
    FirewallAllowed,
    /// Frontend and slot to target.
    Endpoints,
    /// Frontend and slot to local target.
    LocalEndpoints,
    /// Node port and slot to target.
    NodePortEndpoints,
    /// Node port and slot to local target.
    LocalNodePortEndpoints,
}

impl SetName {
    /// All of them, in the order of creation.
    pub const ALL: [SetName; 23] = [
        SetName::ClusterIps,
        SetName::NodePortIps,
        SetName::FrontendIps,
        SetName::NodePortsInUse,
        SetName::HairpinConnections,
        SetName::ServiceIps,
        SetName::LocalServiceIps,
        SetName::ServiceNodePorts,
        SetName::LocalServiceNodePorts,
        SetName::AffinityServices,
        SetName::AffinityNodePorts,
        SetName::Picks,
        SetName::LocalPicks,
        SetName::NoEndpointServices,
        SetName::NoEndpointNodePorts,
        SetName::NoLocalEndpointServices,
        SetName::NoLocalEndpointNodePorts,
        SetName::FirewallIps,
        SetName::FirewallAllowed,
        SetName::Endpoints,
        SetName::LocalEndpoints,
        SetName::NodePortEndpoints,
        SetName::LocalNodePortEndpoints,
    ];

    /// The name in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            SetName::ClusterIps => "cluster-ips",
            SetName::NodePortIps => "nodeport-ips",
            SetName::FrontendIps => "frontend-ips",
            SetName::NodePortsInUse => "nodeports-in-use",
            SetName::HairpinConnections => "hairpin-connections",
            SetName::ServiceIps => "service-ips",
            SetName::LocalServiceIps => "local-service-ips",
            SetName::ServiceNodePorts => "service-nodeports",
            SetName::LocalServiceNodePorts => "local-service-nodeports",
            SetName::AffinityServices => "affinity-services",
            SetName::AffinityNodePorts => "affinity-nodeports",
            SetName::Picks => "picks",
            SetName::LocalPicks => "local-picks",
            SetName::NoEndpointServices => "no-endpoint-services",
            SetName::NoEndpointNodePorts => "no-endpoint-nodeports",
            SetName::NoLocalEndpointServices => "no-local-endpoint-services",
            SetName::NoLocalEndpointNodePorts => "no-local-endpoint-nodeports",
            SetName::FirewallIps => "firewall-ips",
            SetName::FirewallAllowed => "firewall-allowed",
            SetName::Endpoints => "endpoints",
            SetName::LocalEndpoints => "local-endpoints",
            SetName::NodePortEndpoints => "nodeport-endpoints",
            SetName::LocalNodePortEndpoints => "local-nodeport-endpoints",
        }
    }

    /// The types that its keys are made of.
    pub fn key_types(self) -> &'static [Type] {
        use Type::{Address, Class, Mark, Port, Protocol};
        match self {
            SetName::ClusterIps | SetName::NodePortIps | SetName::FrontendIps => &[Address],
            SetName::HairpinConnections => &[Address, Address, Protocol, Port],
            SetName::ServiceIps
            | SetName::LocalServiceIps
            | SetName::AffinityServices
            | SetName::NoEndpointServices
            | SetName::NoLocalEndpointServices
            | SetName::FirewallIps => &[Address, Protocol, Port],
            SetName::NodePortsInUse
            | SetName::ServiceNodePorts
            | SetName::LocalServiceNodePorts
            | SetName::AffinityNodePorts
            | SetName::NoEndpointNodePorts
            | SetName::NoLocalEndpointNodePorts => &[Protocol, Port],
            SetName::FirewallAllowed => &[Address, Protocol, Port, Address],
            SetName::Picks | SetName::LocalPicks => &[Class],
            SetName::Endpoints | SetName::LocalEndpoints => &[Address, Protocol, Port, Mark],
            SetName::NodePortEndpoints | SetName::LocalNodePortEndpoints => &[Protocol, Port, Mark],
        }
    }

    /// What its keys map to.
    pub fn data(self) -> Data {
        match self {
            SetName::ServiceIps
            | SetName::LocalServiceIps
            | SetName::ServiceNodePorts
            | SetName::LocalServiceNodePorts => Data::Class,
            SetName::Picks
            | SetName::LocalPicks
            | SetName::AffinityServices
            | SetName::AffinityNodePorts => Data::Verdict,
            SetName::Endpoints
            | SetName::LocalEndpoints
            | SetName::NodePortEndpoints
            | SetName::LocalNodePortEndpoints => Data::Target,
            _ => Data::Nothing,
        }
    }

    /// Whether its elements are ranges.
    pub fn has_ranges(self) -> bool {
        self == SetName::FirewallAllowed
    }
}

/// The types of key fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `ipv4_addr` or `ipv6_addr`.
    Address,
    /// `inet_proto`.
    Protocol,
    /// `inet_service`.
    Port,
    /// `mark`; we use it for slots, as the only plain 32-bit number that a set can be declared of.
    Mark,
    /// `classid`, the type of priorities.
    Class,
}

/// What a set or map holds under each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// It is a set.
    Nothing,
    /// It is a map to a class.
    Class,
    /// It is a verdict map.
    Verdict,
    /// It is a map to `ipv4_addr . inet_service`.
    Target,
}
