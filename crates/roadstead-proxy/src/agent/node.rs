//! What the agent learns of its NodeNetwork: from its own Node, from the addresses of the machine,
//! and from the networks of the cluster's Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::ResourceExt;
use roadstead_api::ip;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::node_addresses::{NodeAddresses, primary_addresses};
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork, NodePorts};
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_watch::informer::Change;
use tracing::warn;

use super::Agent;
use super::config::Config;
use super::sync::Source;
use crate::addresses::{MachineAddresses, NodePortAddresses, own_addresses, with_localhost};
use crate::localhost::Relays;
use crate::named_counters;
use crate::sysctl;

/// Whoever shuts machines down puts this taint on their Nodes first.
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// What the NodeNetwork of each family is made of.
#[derive(Debug)]
pub(super) struct NodeState {
    name: String,
    /// What both families have in common.
    network: NodeNetwork,
    /// Whether there is a Node object of our name.
    seen: bool,
    /// Whether pods are recognised by the networks that our Node names.
    detect_by_pod_networks: bool,
    /// The addresses that the cluster knows us by.
    primary: Vec<IpAddr>,
    all_nodes: NodeAddresses,
    /// Of each ServiceCIDR.
    service_networks: BTreeMap<String, Vec<IpNet>>,
    node_port_addresses: NodePortAddresses,
    /// Where rules serve node ports, if the operator says so.
    node_ports: BTreeMap<IpFamily, NodePorts>,
    /// What was last said about the addresses that node ports are served on.
    odd_addresses: BTreeSet<String>,
}

impl NodeState {
    /// What can be known before anything of the cluster is.
    pub(super) fn new(config: &Config) -> Self {
        let mut network = config.node_network.clone();
        if network.node_addresses.is_empty() {
            network.node_addresses = own_addresses().unwrap_or_default();
        }
        let node_port_addresses = config.node_port_addresses();
        network.node_ports = with_localhost(network.node_ports, node_port_addresses.localhost);
        network.drop_invalid = !sysctl::is_on("net/netfilter/nf_conntrack_tcp_be_liberal");
        network.named_counters = config.mode.kind().needs.named_counters && named_counters::make();
        Self {
            name: config.node_name.clone(),
            network,
            seen: false,
            detect_by_pod_networks: config.follow.pod_networks,
            primary: Vec::new(),
            all_nodes: NodeAddresses::default(),
            service_networks: BTreeMap::new(),
            node_port_addresses,
            node_ports: BTreeMap::new(),
            odd_addresses: BTreeSet::new(),
        }
    }

    /// The NodeNetwork as one family sees it.
    pub(super) fn network_of(&self, family: IpFamily) -> NodeNetwork {
        let mut network = self.network.clone();
        let primary = self.primary.iter().find(|address| IpFamily::of(**address) == family);
        network.node_address = primary.copied().or(network.node_address);
        if let Some(node_ports) = self.node_ports.get(&family) {
            network.node_ports = node_ports.clone();
        }
        network
    }

    /// Whether rules count packets by name.
    pub(super) fn counts_by_name(&self) -> bool {
        self.network.named_counters
    }

    fn observe(&mut self, node: &Node) {
        self.seen = true;
        if self.detect_by_pod_networks {
            let cidrs = node.spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten());
            let networks = cidrs.filter_map(|text| ip::parse_network(text)).collect();
            self.network.detect_local = DetectLocal::Networks(networks);
        }
        self.primary = primary_addresses(node);
    }

    /// Takes in which addresses the machine has now. Returns the loopback addresses that are not
    /// for rules to serve, if the operator says where node ports are served.
    fn observe_addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        match own_addresses() {
            Ok(own) => self.network.node_addresses = own,
            Err(error) => warn!(%error, "cannot list our own addresses"),
        }
        (!self.node_port_addresses.entries.is_empty()).then(|| self.choose_node_ports())
    }

    /// Looks up the addresses that node ports are served on; what is odd about them is said once.
    fn choose_node_ports(&mut self) -> BTreeSet<IpAddr> {
        let machine =
            MachineAddresses { own: &self.network.node_addresses, primary: &self.primary };
        let relayed = self.node_port_addresses.relayed(machine);
        let mut odd = BTreeSet::new();
        for family in [IpFamily::V4, IpFamily::V6] {
            let (node_ports, notes) = self.node_port_addresses.of(family, machine);
            odd.extend(notes);
            self.node_ports.insert(family, node_ports);
        }
        let nowhere = |node_ports: &NodePorts| *node_ports == NodePorts::On(BTreeSet::new());
        if relayed.is_empty() && self.node_ports.values().all(nowhere) {
            odd.insert("no address of this machine is meant: node ports are not served".into());
        }
        if odd != self.odd_addresses {
            odd.iter().for_each(|note| warn!(note, "nodePortAddresses"));
            self.odd_addresses = odd;
        }
        relayed
    }

    fn observe_service_network(&mut self, change: &Change<ServiceCIDR>) {
        match change {
            Change::Set(network) => {
                let cidrs = network.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
                let networks = cidrs.filter_map(|text| ip::parse_network(text)).collect();
                self.service_networks.insert(network.name_any(), networks);
            }
            Change::Gone(key, _) => drop(self.service_networks.remove(&key.name)),
            Change::Synced => {}
        }
        self.network.service_networks = self.service_networks.values().flatten().copied().collect();
    }
}

/// Whether load balancers should leave the node alone.
fn is_leaving(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    node.metadata.deletion_timestamp.is_some() || taints.any(|taint| taint.key == LEAVING_TAINT)
}

impl Agent {
    /// Takes in a change of our Node.
    pub fn observe_node(&mut self, change: &Change<Node>) {
        let node = match change {
            Change::Set(node) => node,
            Change::Gone(..) => return self.outputs.health.note_node(true),
            Change::Synced => return self.note_node_synced(),
        };
        let zone = node.labels().get("topology.kubernetes.io/zone").cloned();
        self.tracker.observe_node(NodeView { name: self.node.name.clone(), zone });
        self.outputs.health.note_node(is_leaving(node));
        self.node.observe(node);
        self.observe_addresses();
    }

    /// All that the cluster says about us is known. Without a Node there is still the machine, and
    /// what the operator wants of it.
    fn note_node_synced(&mut self) {
        self.sync.note_synced(Source::Node);
        if !self.node.seen {
            warn!(node = self.node.name, "there is no such Node (--hostname-override?)");
            self.observe_addresses();
        }
    }

    /// Takes in a change of any Node: the addresses that Services cannot have.
    pub(crate) fn observe_any_node(&mut self, change: &Change<Node>) {
        let changed = match change {
            Change::Set(node) => self.node.all_nodes.observe(node),
            Change::Gone(key, _) => self.node.all_nodes.remove(&key.name),
            Change::Synced => return self.sync.note_synced(Source::AllNodes),
        };
        if changed {
            self.node.network.taken = self.node.all_nodes.all();
            self.apply_node_network();
        }
    }

    /// Takes in a change of the networks that ClusterIPs are taken from.
    pub(super) fn observe_service_network(&mut self, change: &Change<ServiceCIDR>) {
        if matches!(change, Change::Synced) {
            return self.sync.note_synced(Source::ServiceCidrs);
        }
        self.node.observe_service_network(change);
        self.apply_node_network();
    }

    /// Goes on with rules that count nothing.
    pub(super) fn stop_counting(&mut self) {
        warn!("without named counters from now on");
        self.node.network.named_counters = false;
        self.apply_node_network();
        named_counters::remove();
    }

    fn observe_addresses(&mut self) {
        if let Some(relayed) = self.node.observe_addresses() {
            self.place_relays(relayed);
        }
        self.apply_node_network();
    }

    fn apply_node_network(&mut self) {
        for family in &mut self.families {
            if family.table.set_node_network(&self.node.network_of(family.ip_family())) {
                // What was written before has to be looked at as a whole.
                family.reopen(&self.context);
            }
        }
        self.place_checks();
    }

    /// Takes in the loopback addresses that are not for rules to serve.
    fn place_relays(&self, addresses: BTreeSet<IpAddr>) {
        let tables: Vec<_> = self.families.iter().map(|family| &family.table).collect();
        self.outputs.relays.send_if_modified(|relays| {
            if relays.addresses == addresses {
                return false;
            }
            let names = tables.iter().flat_map(|table| table.iter().map(|(name, _)| name));
            let all = names.map(|name| ObjectKey::new(&*name.namespace, &*name.name)).collect();
            let mut now = Relays { addresses, ..Relays::default() };
            if !now.addresses.is_empty() {
                now.observe(&tables, &all);
            }
            *relays = Arc::new(now);
            true
        });
    }

    /// Brings the node ports of the changed Services up to date, where somebody listens for them.
    pub(super) fn relay(&self, changed: &BTreeSet<ObjectKey>) {
        if self.outputs.relays.borrow().addresses.is_empty() {
            return;
        }
        let tables: Vec<_> = self.families.iter().map(|family| &family.table).collect();
        self.outputs.relays.send_if_modified(|relays| {
            let before = relays.clone();
            Arc::make_mut(relays).observe(&tables, changed);
            *relays != before
        });
    }

    /// Health checks are answered where node ports are served.
    pub(super) fn place_checks(&self) {
        let mut addresses = BTreeSet::new();
        for family in &self.families {
            match (&family.table.node_network().node_ports, family.ip_family()) {
                (NodePorts::On(chosen), _) => addresses.extend(chosen),
                (NodePorts::Every { .. }, IpFamily::V4) => {
                    addresses.insert(IpAddr::from(Ipv4Addr::UNSPECIFIED));
                }
                (NodePorts::Every { .. }, IpFamily::V6) => {
                    addresses.insert(IpAddr::from(Ipv6Addr::UNSPECIFIED));
                }
            }
        }
        self.outputs.health_checks.send_if_modified(|checks| {
            let differs = checks.addresses != addresses;
            if differs {
                Arc::make_mut(checks).addresses = addresses;
            }
            differs
        });
    }
}
