//! What the agent learns of its surroundings: from its own Node, from the addresses of the machine,
//! and from the networks of the cluster's Services.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::ResourceExt;
use roadstead_api::ip;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::surroundings::{DetectLocal, NodePorts, Surroundings};
use roadstead_watch::informer::Change;
use tracing::warn;

use super::Agent;
use crate::accounting;
use crate::addresses::{Choice, own_addresses};
use crate::localhost::Relays;
use crate::nodes::primary_addresses;
use crate::plane::{Mode, Plane};

/// Whoever shuts machines down puts this taint on their Nodes first.
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

impl Agent {
    /// Takes in a change of our Node.
    pub fn observe_node(&mut self, change: &Change<Node>) {
        let node = match change {
            Change::Set(node) => node,
            Change::Gone(_) => return self.health.note_node(true),
            Change::Synced => return self.note_node_known(),
        };
        self.node_seen = true;
        let zone = node.labels().get("topology.kubernetes.io/zone").cloned();
        self.tracker.observe_node(NodeView { name: self.node_name.clone(), zone });
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        let leaves = node.metadata.deletion_timestamp.is_some()
            || taints.into_iter().any(|taint| taint.key == LEAVING_TAINT);
        self.health.note_node(leaves);
        if self.node_networks {
            let cidrs = spec.and_then(|spec| spec.pod_cidrs.as_ref()).into_iter().flatten();
            let networks = cidrs.filter_map(|text| ip::parse_network(text)).collect();
            self.surroundings.detect_local = DetectLocal::Networks(networks);
        }
        self.primary = primary_addresses(node);
        self.look_around();
    }

    /// All that the cluster says about us is known. Without a Node there is still the machine, and
    /// what the operator wants of it.
    fn note_node_known(&mut self) {
        self.node_synced = true;
        if !self.node_seen {
            warn!(node = self.node_name, "there is no such Node (--hostname-override?)");
            self.look_around();
        }
    }

    /// Takes in a change of any Node: the addresses that Services cannot have.
    pub fn observe_any_node(&mut self, change: &Change<Node>) {
        if self.nodes.observe(change) {
            self.surroundings.taken = self.nodes.all();
            self.surround();
        }
    }

    /// Takes in which addresses the machine has now.
    fn look_around(&mut self) {
        match own_addresses() {
            Ok(own) => self.surroundings.node_addresses = own,
            Err(error) => warn!(%error, "cannot list our own addresses"),
        }
        if !self.node_port_addresses.is_empty() {
            self.choose_node_ports();
        }
        self.surround();
    }

    /// Looks up the addresses that node ports are served on; what is odd about them is said once.
    fn choose_node_ports(&mut self) {
        let choice = Choice {
            entries: &self.node_port_addresses,
            own: &self.surroundings.node_addresses,
            primary: &self.primary,
            localhost: self.localhost,
            relays: self.mode != Mode::Iptables,
        };
        let relayed = choice.relayed();
        let mut odd = BTreeSet::new();
        for family in [IpFamily::V4, IpFamily::V6] {
            let (node_ports, notes) = choice.of(family);
            odd.extend(notes);
            self.node_ports.insert(family, node_ports);
        }
        let nowhere = |place: &NodePorts| *place == NodePorts::On(BTreeSet::new());
        if relayed.is_empty() && self.node_ports.values().all(nowhere) {
            odd.insert("no address of this machine is meant: node ports are not served".into());
        }
        if odd != self.odd_addresses {
            odd.iter().for_each(|note| warn!(note, "nodePortAddresses"));
            self.odd_addresses = odd;
        }
        self.place_relays(relayed);
    }

    /// Takes in the loopback addresses that are not for rules to serve.
    fn place_relays(&self, places: BTreeSet<IpAddr>) {
        let tables: Vec<_> = self.families.iter().map(|half| &half.table).collect();
        self.relays.send_if_modified(|relays| {
            if relays.places == places {
                return false;
            }
            let names = tables.iter().flat_map(|table| table.iter().map(|(name, _)| name));
            let all = names.map(|name| ObjectKey::new(&*name.namespace, &*name.name)).collect();
            let mut now = Relays { places, ..Relays::default() };
            if !now.places.is_empty() {
                now.observe(&tables, &all);
            }
            *relays = Arc::new(now);
            true
        });
    }

    /// Brings the node ports of the changed Services up to date, where somebody listens for them.
    pub(super) fn relay(&self, changed: &BTreeSet<ObjectKey>) {
        if self.relays.borrow().places.is_empty() {
            return;
        }
        let tables: Vec<_> = self.families.iter().map(|half| &half.table).collect();
        self.relays.send_if_modified(|relays| {
            let before = relays.clone();
            Arc::make_mut(relays).observe(&tables, changed);
            *relays != before
        });
    }

    /// The surroundings as one family sees them.
    pub(super) fn around(&self, family: IpFamily) -> Surroundings {
        let mut around = self.surroundings.clone();
        let primary = self.primary.iter().find(|address| IpFamily::of(**address) == family);
        around.node_address = primary.copied().or(around.node_address);
        if let Some(node_ports) = self.node_ports.get(&family) {
            around.node_ports = node_ports.clone();
        }
        around
    }

    /// Health checks are answered where node ports are served.
    pub(super) fn place_checks(&self) {
        let mut places = BTreeSet::new();
        for half in &self.families {
            match (&half.table.surroundings().node_ports, half.table.family()) {
                (NodePorts::On(chosen), _) => places.extend(chosen),
                (NodePorts::Every { .. }, IpFamily::V4) => {
                    places.insert(IpAddr::from(Ipv4Addr::UNSPECIFIED));
                }
                (NodePorts::Every { .. }, IpFamily::V6) => {
                    places.insert(IpAddr::from(Ipv6Addr::UNSPECIFIED));
                }
            }
        }
        self.health_checks.send_if_modified(|checks| {
            let differs = checks.places != places;
            if differs {
                Arc::make_mut(checks).places = places;
            }
            differs
        });
    }

    /// Takes in a change of the networks that ClusterIPs are taken from.
    pub fn observe_service_network(&mut self, change: &Change<ServiceCIDR>) {
        match change {
            Change::Set(network) => {
                let cidrs = network.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
                let networks = cidrs.filter_map(|text| ip::parse_network(text)).collect();
                self.service_networks.insert(network.name_any(), networks);
            }
            Change::Gone(network) => drop(self.service_networks.remove(&network.name_any())),
            Change::Synced => return self.networks_synced = true,
        }
        self.surroundings.service_networks =
            self.service_networks.values().flatten().copied().collect();
        self.surround();
    }

    /// Goes on with rules that count nothing.
    pub(super) fn stop_counting(&mut self) {
        warn!("without named counters (xt_nfacct) from now on");
        self.surroundings.named_counters = false;
        self.surround();
        accounting::remove();
    }

    fn surround(&mut self) {
        let around: Vec<_> =
            self.families.iter().map(|half| self.around(half.table.family())).collect();
        for (half, around) in self.families.iter_mut().zip(around) {
            if half.table.surround(&around) {
                // What was written before has to be looked at as a whole.
                match Plane::open(self.mode, half.table.family(), &self.ipvs) {
                    Ok(plane) => half.plane = plane,
                    Err(error) => warn!(%error, "cannot open the way to the kernel again"),
                }
            }
        }
        self.place_checks();
    }
}
