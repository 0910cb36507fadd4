//! What the table must know about the node and the cluster besides Services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::packet::{Origin, Packet};
use crate::service::IpFamily;

/// Marks a packet for masquerading unless configured otherwise, as kube-proxy does.
pub(crate) const MASQUERADE_MARK: u32 = 0x4000;

/// The node and the networks around it, and what the operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNetwork {
    /// How a pod of this cluster is recognised by its packets.
    pub detect_local: DetectLocal,
    /// Whether everybody who calls a ClusterIP is masqueraded.
    pub masquerade_all: bool,
    /// The bit that marks a packet for masquerading.
    pub masquerade_mark: u32,
    /// Where node ports are served.
    pub node_ports: NodePorts,
    /// The address of the node, as the cluster knows it.
    pub node_address: Option<IpAddr>,
    /// All addresses of the node, loopback included.
    pub node_addresses: BTreeSet<IpAddr>,
    /// The addresses that Node objects name, where it matters: no Service may take such an address
    /// away from the machine that has it.
    pub taken: BTreeSet<IpAddr>,
    /// The networks that ClusterIPs are taken from, if known. One that no Service has is dropped.
    pub service_networks: Vec<IpNet>,
    /// Whether pods appear as the node to everybody outside the networks of `detect_local`.
    pub masquerade_egress: bool,
    /// Whether the kernel counts packets under the names that iptables rules give them (nfacct).
    pub named_counters: bool,
    /// Whether iptables drops packets that fit no connection; the operator may have told the kernel
    /// to be liberal with those of TCP.
    pub drop_invalid: bool,
}

impl Default for NodeNetwork {
    fn default() -> Self {
        Self {
            detect_local: DetectLocal::Unknown,
            masquerade_all: false,
            masquerade_mark: MASQUERADE_MARK,
            node_ports: NodePorts::default(),
            node_address: None,
            node_addresses: BTreeSet::new(),
            taken: BTreeSet::new(),
            service_networks: Vec::new(),
            masquerade_egress: false,
            named_counters: false,
            drop_invalid: true,
        }
    }
}

impl NodeNetwork {
    /// Those of one address family.
    pub fn of_family(&self, family: IpFamily) -> Self {
        let same = |address: &IpAddr| IpFamily::of(*address) == family;
        let networks = |all: &[IpNet]| -> Vec<IpNet> {
            all.iter().filter(|net| same(&net.network())).map(IpNet::trunc).collect()
        };
        let detect_local = match &self.detect_local {
            DetectLocal::Networks(all) if networks(all).is_empty() => DetectLocal::Unknown,
            DetectLocal::Networks(all) => DetectLocal::Networks(networks(all)),
            other => other.clone(),
        };
        let node_ports = match &self.node_ports {
            NodePorts::On(addresses) => {
                NodePorts::On(addresses.iter().filter(|a| same(a)).copied().collect())
            }
            // The kernel lets 127.0.0.0/8 leave the machine if asked to, but never ::1.
            NodePorts::Every { loopback } => {
                NodePorts::Every { loopback: *loopback && family == IpFamily::V4 }
            }
        };
        Self {
            detect_local,
            node_ports,
            node_address: self.node_address.filter(same),
            node_addresses: self.node_addresses.iter().filter(|a| same(a)).copied().collect(),
            taken: self.taken.iter().filter(|a| same(a)).copied().collect(),
            service_networks: networks(&self.service_networks),
            ..self.clone()
        }
    }

    /// Whether node ports are served on 127.0.0.1, which needs leave and a guard.
    pub fn serves_loopback(&self) -> bool {
        match &self.node_ports {
            NodePorts::Every { loopback } => *loopback,
            NodePorts::On(addresses) => {
                addresses.iter().any(|address| address.is_ipv4() && address.is_loopback())
            }
        }
    }

    /// Whether an address is known to be for frontends, whichever Services there are.
    pub(crate) fn expects_frontends(&self, address: IpAddr) -> bool {
        let on_node = match &self.node_ports {
            NodePorts::On(addresses) => addresses.contains(&address),
            NodePorts::Every { .. } => false,
        };
        on_node || self.service_networks.iter().any(|net| net.contains(&address))
    }

    /// Whether node ports are served on an address.
    pub(crate) fn serves_node_ports(&self, address: IpAddr) -> bool {
        match &self.node_ports {
            NodePorts::Every { loopback } => {
                self.node_addresses.contains(&address) && (*loopback || !address.is_loopback())
            }
            NodePorts::On(addresses) => addresses.contains(&address),
        }
    }
}

/// How a pod is recognised by its packets (`detectLocalMode`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DetectLocal {
    /// Not at all: nobody counts as a pod, and nobody as a stranger.
    #[default]
    Unknown,
    /// By its address: the pods of the cluster (`ClusterCIDR`) or of this node (`NodeCIDR`).
    Networks(Vec<IpNet>),
    /// Its packets come in by the bridge of this name.
    Bridge(String),
    /// Its packets come in by an interface whose name starts like this.
    InterfacePrefix(String),
}

impl DetectLocal {
    /// Whether there is a way to tell.
    pub fn is_known(&self) -> bool {
        *self != DetectLocal::Unknown
    }

    /// Whether the packet comes from a pod.
    pub(crate) fn is_pod(&self, packet: &Packet) -> bool {
        let interface = match &packet.origin {
            Origin::Network(interface) => Some(&**interface),
            Origin::Node => None,
        };
        match self {
            DetectLocal::Unknown => false,
            DetectLocal::Networks(networks) => {
                networks.iter().any(|network| network.contains(&packet.source))
            }
            DetectLocal::Bridge(name) => interface == Some(name),
            DetectLocal::InterfacePrefix(prefix) => {
                interface.is_some_and(|name| name.starts_with(prefix.as_str()))
            }
        }
    }
}

/// Which addresses of the node serve node ports (`nodePortAddresses`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// All that it has.
    Every {
        /// Whether that includes the loopback addresses.
        loopback: bool,
    },
    /// Only these: the keywords and networks of the configuration, looked up on this node.
    On(BTreeSet<IpAddr>),
}

impl Default for NodePorts {
    fn default() -> Self {
        NodePorts::Every { loopback: false }
    }
}
