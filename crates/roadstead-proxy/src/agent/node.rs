//! What the agent learns of its surroundings: from its own Node, from the addresses of the machine,
//! and from the networks of the cluster's Services.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::ResourceExt;
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::surroundings::DetectLocal;
use roadstead_watch::informer::Change;
use tracing::warn;

use super::Agent;
use crate::accounting;
use crate::addresses::{node_ports, own_addresses, with_localhost};
use crate::plane::Plane;

/// Whoever shuts machines down puts this taint on their Nodes first.
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

impl Agent {
    /// Takes in a change of our Node.
    pub fn observe_node(&mut self, change: &Change<Node>) {
        let node = match change {
            Change::Set(node) => node,
            Change::Gone(_) => return self.health.note_node(true),
            Change::Synced => return self.node_synced = true,
        };
        let zone = node.labels().get("topology.kubernetes.io/zone").cloned();
        self.tracker.observe_node(NodeView { name: self.node_name.clone(), zone });
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        let leaves = node.metadata.deletion_timestamp.is_some()
            || taints.into_iter().any(|taint| taint.key == LEAVING_TAINT);
        self.health.note_node(leaves);
        let listed = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let internal = listed.filter(|address| address.type_ == "InternalIP");
        let primary: Vec<IpAddr> = internal.filter_map(|a| a.address.parse().ok()).collect();
        if self.node_networks {
            let cidrs = spec.and_then(|spec| spec.pod_cidrs.as_ref()).into_iter().flatten();
            let networks = cidrs.filter_map(|text| text.parse().ok()).collect();
            self.surroundings.detect_local = DetectLocal::Networks(networks);
        }
        self.surroundings.node_address = primary.first().copied();
        self.look_around(&primary);
    }

    /// Takes in which addresses the machine has now.
    fn look_around(&mut self, primary: &[IpAddr]) {
        match own_addresses() {
            Ok(own) => self.surroundings.node_addresses = own,
            Err(error) => warn!(%error, "cannot list our own addresses"),
        }
        if !self.node_port_addresses.is_empty() {
            let own = &self.surroundings.node_addresses;
            let (node_ports, odd) = node_ports(&self.node_port_addresses, own, primary);
            for entry in odd {
                warn!(entry, "neither a network nor a keyword of nodePortAddresses");
            }
            self.surroundings.node_ports = with_localhost(node_ports, self.localhost);
        }
        self.surround();
    }

    /// Takes in a change of the networks that ClusterIPs are taken from.
    pub fn observe_service_network(&mut self, change: &Change<ServiceCIDR>) {
        match change {
            Change::Set(network) => {
                let cidrs = network.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
                let networks = cidrs.filter_map(|text| text.parse().ok()).collect();
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
        for half in &mut self.families {
            if half.table.surround(&self.surroundings) {
                // What was written before has to be looked at as a whole.
                match Plane::open(self.mode, half.table.family(), self.ipvs) {
                    Ok(plane) => half.plane = plane,
                    Err(error) => warn!(%error, "cannot open the way to the kernel again"),
                }
            }
        }
    }
}
