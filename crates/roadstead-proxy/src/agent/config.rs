//! What the operator wants of the proxy, and what it tells others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roadstead_component::component::Component;
use roadstead_forwarding::announce::Announcements;
use roadstead_forwarding::node_network::NodeNetwork;
use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::nftables::others::OwnCommits;
use serde::Serialize;
use tokio::sync::{mpsc, watch};

use super::service_events::ServiceEvent;
use crate::addresses::NodePortAddresses;
use crate::data_plane::{Loopback, ProxyMode};
use crate::health::{Health, HealthChecks};
use crate::ipvs::IpvsOptions;
use crate::localhost::Relays;
use crate::metrics::Metrics;

/// What the operator wants of the proxy, and where it runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of this node, as endpoints carry it.
    pub node_name: String,
    /// The node and the networks around it. Whoever calls a ClusterIP from outside the networks
    /// of the pods is masqueraded, because the answer might not find its way back through us.
    pub node_network: NodeNetwork,
    /// How the kernel is told. What another mode left behind is removed.
    pub mode: ProxyMode,
    /// What the operator wants of mode `ipvs`.
    pub ipvs: IpvsOptions,
    /// Whether mode `iptables` takes the place of `ipvs` on a kernel without IPVS; otherwise that
    /// is an error.
    pub ipvs_fallback: bool,
    /// The shortest time between two writes (`minSyncPeriod`), if that is longer than needed.
    pub shortest_pause: Duration,
    /// The address families to serve. One that the kernel does not have is left out.
    pub families: Vec<IpFamily>,
    /// Where node ports are served, if `node_network` does not say: networks and keywords.
    pub node_port_addresses: Vec<String>,
    /// Whether rules serve node ports on 127.0.0.1, too, if the mode can (`localhostNodePorts`).
    pub localhost_node_ports: bool,
    /// What else of the cluster is followed.
    pub follow: Follow,
    /// What this process commits to nftables, others of its parts included.
    pub own_commits: OwnCommits,
}

/// What the proxy follows besides Services and EndpointSlices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Follow {
    /// Our Node object: its zone, its addresses, whether it is about to leave.
    pub node: bool,
    /// The pod networks that our Node object names: pods are recognised by them.
    pub pod_networks: bool,
    /// ServiceCIDRs: the networks that ClusterIPs are taken from.
    pub service_networks: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            node_network: NodeNetwork::default(),
            mode: ProxyMode::default(),
            ipvs: IpvsOptions::default(),
            ipvs_fallback: true,
            shortest_pause: Duration::ZERO,
            families: vec![IpFamily::V4, IpFamily::V6],
            node_port_addresses: Vec::new(),
            localhost_node_ports: true,
            follow: Follow::default(),
            own_commits: OwnCommits::default(),
        }
    }
}

impl Config {
    /// Where node ports are served, in the mode that is used.
    pub(crate) fn node_port_addresses(&self) -> NodePortAddresses {
        let loopback = self.mode.kind().needs.loopback;
        NodePortAddresses {
            entries: self.node_port_addresses.clone(),
            localhost: loopback == Loopback::Rules && self.localhost_node_ports,
            relays: loopback == Loopback::Relays,
        }
    }
}

/// What the agent tells others; subscribe before it runs.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// What is in the kernel.
    pub programmed: watch::Sender<Programmed>,
    /// The health checks that Services ask for.
    pub health_checks: watch::Sender<HealthChecks>,
    /// The load balancer addresses that somebody must answer for.
    pub announcements: watch::Sender<Arc<Announcements>>,
    /// The node ports that others than rules serve on loopback addresses.
    pub relays: watch::Sender<Arc<Relays>>,
    /// What the owners of Services should know.
    pub service_events: Option<mpsc::Sender<ServiceEvent>>,
    /// Until when the Lease is good that says that we are alive.
    pub lease_good_until: watch::Sender<Option<Instant>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whether we keep up.
    pub health: Arc<Health>,
    /// What the pages show besides.
    pub component: Component,
}

/// What is in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Programmed {
    /// How many service ports are carried, in all families.
    pub service_ports: usize,
    /// How many targets they have.
    pub targets: usize,
    /// The newest resource version among the objects taken in; 0 before the first commit.
    pub revision: u64,
    /// The same, of each kind.
    pub revisions: Revisions,
    /// How many commits there have been.
    pub commits: u64,
}

/// The newest resource version of each kind: each has a watch of its own, and one may be ahead of
/// the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Revisions {
    /// Among the Services.
    pub services: u64,
    /// Among the EndpointSlices.
    pub slices: u64,
}

impl Revisions {
    /// The older of each kind.
    pub(crate) fn min(self, other: Self) -> Self {
        let (services, slices) = (self.services.min(other.services), self.slices.min(other.slices));
        Self { services, slices }
    }

    /// The newer of the two kinds.
    pub(crate) fn newest(self) -> u64 {
        self.services.max(self.slices)
    }
}
