//! The nouns of IPVS: virtual servers, schedulers, ipsets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::iptables;
use crate::service::{IpFamily, Protocol};

/// A virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    /// The address that clients dial.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port that clients dial.
    pub port: u16,
}

/// How a virtual server chooses, and among which destinations.
pub type Virtual = (Settings, BTreeSet<SocketAddr>);

/// How a virtual server chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Among all destinations.
    pub scheduler: Scheduler,
    /// So many seconds a client stays with its destination, if at all.
    pub persistence: Option<u32>,
}

/// The ways to choose a destination. All have weight 1, so the weighted ones are as their plain
/// brothers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the kernel's documentation")]
pub enum Scheduler {
    #[default]
    RoundRobin,
    WeightedRoundRobin,
    LeastConnection,
    WeightedLeastConnection,
    LocalityLeastConnection,
    LocalityLeastConnectionReplicated,
    ShortestDelay,
    NeverQueue,
    DestinationHash,
    SourceHash,
    Maglev,
}

impl Scheduler {
    const NAMES: [(Scheduler, &'static str); 11] = [
        (Scheduler::RoundRobin, "rr"),
        (Scheduler::WeightedRoundRobin, "wrr"),
        (Scheduler::LeastConnection, "lc"),
        (Scheduler::WeightedLeastConnection, "wlc"),
        (Scheduler::LocalityLeastConnection, "lblc"),
        (Scheduler::LocalityLeastConnectionReplicated, "lblcr"),
        (Scheduler::ShortestDelay, "sed"),
        (Scheduler::NeverQueue, "nq"),
        (Scheduler::DestinationHash, "dh"),
        (Scheduler::SourceHash, "sh"),
        (Scheduler::Maglev, "mh"),
    ];

    /// The kernel's name of it.
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(scheduler, _)| *scheduler == self);
        found.map(|(_, name)| *name).expect("all are listed")
    }

    /// The scheduler of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(scheduler, _)| *scheduler)
    }
}

/// How long idle connections are kept; zero leaves the kernel's own value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Of TCP.
    pub tcp: Duration,
    /// Of TCP after one side has finished.
    pub tcp_fin: Duration,
    /// Of UDP.
    pub udp: Duration,
}

/// What the elements of an ipset consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// An address, a protocol and a port.
    AddressPort,
    /// The same and another address.
    AddressPortAddress,
    /// The same and a network.
    AddressPortNetwork,
    /// A port.
    Port,
    /// An address.
    Address,
}

impl SetKind {
    /// The kernel's name of it.
    pub fn text(self) -> &'static str {
        match self {
            SetKind::AddressPort => "hash:ip,port",
            SetKind::AddressPortAddress => "hash:ip,port,ip",
            SetKind::AddressPortNetwork => "hash:ip,port,net",
            SetKind::Port => "bitmap:port",
            SetKind::Address => "hash:ip",
        }
    }
}

/// An element of an ipset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is called as its kind")]
pub enum Entry {
    AddressPort(IpAddr, Protocol, u16),
    AddressPortAddress(IpAddr, Protocol, u16, IpAddr),
    AddressPortNetwork(IpAddr, Protocol, u16, IpNet),
    Port(u16),
    Address(IpAddr),
}

/// The ipsets of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is called as its text")]
pub enum SetName {
    LoopBack,
    ClusterIp,
    ExternalIp,
    ExternalIpLocal,
    LoadBalancer,
    LoadBalancerLocal,
    LoadBalancerFirewall,
    LoadBalancerSourceIp,
    LoadBalancerSourceNetwork,
    NodePortTcp,
    NodePortLocalTcp,
    NodePortUdp,
    NodePortLocalUdp,
    NodePortSctp,
    NodePortLocalSctp,
    HealthCheckNodePort,
    VirtualAddresses,
}

impl SetName {
    /// All of them.
    pub const ALL: [SetName; 17] = [
        SetName::LoopBack,
        SetName::ClusterIp,
        SetName::ExternalIp,
        SetName::ExternalIpLocal,
        SetName::LoadBalancer,
        SetName::LoadBalancerLocal,
        SetName::LoadBalancerFirewall,
        SetName::LoadBalancerSourceIp,
        SetName::LoadBalancerSourceNetwork,
        SetName::NodePortTcp,
        SetName::NodePortLocalTcp,
        SetName::NodePortUdp,
        SetName::NodePortLocalUdp,
        SetName::NodePortSctp,
        SetName::NodePortLocalSctp,
        SetName::HealthCheckNodePort,
        SetName::VirtualAddresses,
    ];

    /// What its elements consist of.
    pub fn kind(self) -> SetKind {
        match self {
            SetName::LoopBack | SetName::LoadBalancerSourceIp => SetKind::AddressPortAddress,
            SetName::LoadBalancerSourceNetwork => SetKind::AddressPortNetwork,
            SetName::NodePortTcp
            | SetName::NodePortLocalTcp
            | SetName::NodePortUdp
            | SetName::NodePortLocalUdp
            | SetName::HealthCheckNodePort => SetKind::Port,
            SetName::VirtualAddresses => SetKind::Address,
            _ => SetKind::AddressPort,
        }
    }

    /// Its name in the kernel, which takes at most 31 characters.
    pub fn text(self, family: IpFamily) -> String {
        let name = match self {
            SetName::LoopBack => "LOOP-BACK",
            SetName::ClusterIp => "CLUSTER-IP",
            SetName::ExternalIp => "EXTERNAL-IP",
            SetName::ExternalIpLocal => "EXTERNAL-IP-LOCAL",
            SetName::LoadBalancer => "LOAD-BALANCER",
            SetName::LoadBalancerLocal => "LOAD-BALANCER-LOCAL",
            SetName::LoadBalancerFirewall => "LOAD-BALANCER-FW",
            SetName::LoadBalancerSourceIp => "LOAD-BALANCER-SOURCE-IP",
            SetName::LoadBalancerSourceNetwork => "LOAD-BALANCER-SOURCE-CIDR",
            SetName::NodePortTcp => "NODE-PORT-TCP",
            SetName::NodePortLocalTcp => "NODE-PORT-LOCAL-TCP",
            SetName::NodePortUdp => "NODE-PORT-UDP",
            SetName::NodePortLocalUdp => "NODE-PORT-LOCAL-UDP",
            SetName::NodePortSctp => "NODE-PORT-SCTP-HASH",
            SetName::NodePortLocalSctp => "NODE-PORT-LOCAL-SCTP-HASH",
            SetName::HealthCheckNodePort => "HEALTH-CHECK-NODE-PORT",
            SetName::VirtualAddresses => "IPVS-IPS",
        };
        let prefix = if family == IpFamily::V4 { "KUBE-" } else { "KUBE-6-" };
        let mut text = format!("{prefix}{name}");
        text.truncate(31);
        text
    }
}

/// Everything that the kernel is to hold of ours, in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The address family.
    pub family: IpFamily,
    /// The addresses on the link `kube-ipvs0`.
    pub addresses: BTreeSet<IpAddr>,
    /// The virtual servers with their destinations, all of weight 1.
    pub servers: BTreeMap<Server, Virtual>,
    /// The ipsets, all of them, even those without elements.
    pub sets: BTreeMap<SetName, BTreeSet<Entry>>,
    /// The iptables rules around it.
    pub rules: iptables::model::Program,
}

/// The program as its tools list it: `ipvsadm -Sn`, `ipset save`, `iptables-save`.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (server, (settings, destinations)) in &self.servers {
            let letter = match server.protocol {
                Protocol::Tcp => "-t",
                Protocol::Udp => "-u",
                Protocol::Sctp => "--sctp-service",
            };
            let socket = SocketAddr::new(server.address, server.port);
            write!(f, "-A {letter} {socket} -s {}", settings.scheduler.name())?;
            match settings.persistence {
                Some(seconds) => writeln!(f, " -p {seconds}")?,
                None => writeln!(f)?,
            }
            for target in destinations {
                writeln!(f, "-a {letter} {socket} -r {target} -m -w 1")?;
            }
        }
        for address in &self.addresses {
            writeln!(f, "ip address add {} dev kube-ipvs0", IpNet::from(*address))?;
        }
        for (set, entries) in &self.sets {
            let name = set.text(self.family);
            writeln!(f, "create {name} {}", set.kind().text())?;
            entries.iter().try_for_each(|entry| writeln!(f, "add {name} {entry}"))?;
        }
        write!(f, "{}", self.rules)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::AddressPort(address, protocol, port) => write!(f, "{address},{protocol}:{port}"),
            Entry::AddressPortAddress(address, protocol, port, other) => {
                write!(f, "{address},{protocol}:{port},{other}")
            }
            Entry::AddressPortNetwork(address, protocol, port, network) => {
                write!(f, "{address},{protocol}:{port},{network}")
            }
            Entry::Port(port) => write!(f, "{port}"),
            Entry::Address(address) => write!(f, "{address}"),
        }
    }
}
