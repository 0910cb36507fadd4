//! What a proxy of some configuration would take for its surroundings on a machine that others
//! describe: for those who ask what it would do, elsewhere.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};

use crate::addresses::{Choice, with_localhost};
use crate::agent::Config;
use crate::plane::Mode;

/// What is known of the machine and its cluster.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// All its addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that the cluster knows it by, one of each family.
    pub primary: Vec<IpAddr>,
    /// The networks of its pods.
    pub pod_networks: Vec<IpNet>,
    /// The networks that ClusterIPs are taken from.
    pub service_networks: Vec<IpNet>,
}

/// The loopback addresses on which the proxy itself would listen for node ports.
pub fn relayed(config: &Config, machine: &Machine) -> BTreeSet<IpAddr> {
    choice(config, machine).relayed()
}

fn choice<'a>(config: &'a Config, machine: &'a Machine) -> Choice<'a> {
    Choice {
        entries: &config.node_port_addresses,
        own: &machine.addresses,
        primary: &machine.primary,
        localhost: config.mode == Mode::Iptables && config.localhost_node_ports,
        relays: config.mode != Mode::Iptables,
    }
}

/// The surroundings of one family, and what is odd about where node ports are to be served.
pub fn surroundings(
    config: &Config,
    machine: &Machine,
    family: IpFamily,
) -> (Surroundings, Vec<String>) {
    let mut around = config.surroundings.clone();
    let mut notes = Vec::new();
    around.node_addresses = machine.addresses.clone();
    let primary = machine.primary.iter().find(|address| IpFamily::of(**address) == family);
    around.node_address = primary.copied();
    let choice = choice(config, machine);
    around.node_ports = with_localhost(around.node_ports, choice.localhost);
    if !config.node_port_addresses.is_empty() {
        (around.node_ports, notes) = choice.of(family);
    }
    if config.node_networks {
        around.detect_local = DetectLocal::Networks(machine.pod_networks.clone());
    }
    if config.follow_service_networks {
        around.service_networks = machine.service_networks.clone();
    }
    (around, notes)
}
