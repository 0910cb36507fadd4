//! What a proxy of some configuration would take for its NodeNetwork on a machine that others
//! describe: for those who ask what it would do, elsewhere.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_forwarding::service::IpFamily;

use crate::addresses::{MachineAddresses, with_localhost};
use crate::agent::config::Config;

/// What is known of the machine and its cluster.
#[derive(Clone, Debug, Default)]
pub struct DescribedNode {
    /// All its addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that the cluster knows it by, one of each family.
    pub primary: Vec<IpAddr>,
    /// The networks of its pods.
    pub pod_networks: Vec<IpNet>,
    /// The networks that ClusterIPs are taken from.
    pub service_networks: Vec<IpNet>,
}

impl DescribedNode {
    fn addresses(&self) -> MachineAddresses<'_> {
        MachineAddresses { own: &self.addresses, primary: &self.primary }
    }
}

/// The loopback addresses on which the proxy itself would listen for node ports.
pub fn relayed(config: &Config, machine: &DescribedNode) -> BTreeSet<IpAddr> {
    config.node_port_addresses().relayed(machine.addresses())
}

/// The NodeNetwork of one family, and what is odd about where node ports are to be served.
pub fn node_network(
    config: &Config,
    machine: &DescribedNode,
    family: IpFamily,
) -> (NodeNetwork, Vec<String>) {
    let mut network = config.node_network.clone();
    let mut notes = Vec::new();
    network.node_addresses = machine.addresses.clone();
    let primary = machine.primary.iter().find(|address| IpFamily::of(**address) == family);
    network.node_address = primary.copied();
    let node_ports = config.node_port_addresses();
    network.node_ports = with_localhost(network.node_ports, node_ports.localhost);
    if !node_ports.entries.is_empty() {
        (network.node_ports, notes) = node_ports.of(family, machine.addresses());
    }
    if config.follow.pod_networks {
        network.detect_local = DetectLocal::Networks(machine.pod_networks.clone());
    }
    if config.follow.service_networks {
        network.service_networks = machine.service_networks.clone();
    }
    (network, notes)
}
