//! Random clusters and packets for the properties of all data planes.
//!
//! Addresses are few, so that Services collide and endpoints are shared.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use roadstead_api::key::ObjectKey;

use crate::node_network::{DetectLocal, NodeNetwork, NodePorts};
use crate::packet::{Origin, Packet};
use crate::select::TrafficPolicy;
use crate::service::{IpFamily, Locality, Protocol, ServicePort, ServicePortName, Target};
use crate::table::ForwardingTable;

pub(crate) const CLUSTER_IPS: u8 = 96;
pub(crate) const PODS: u8 = 0;
pub(crate) const OUTSIDE: u8 = 200;
pub(crate) const EXTERNAL: u8 = 201;
pub(crate) const BALANCER: u8 = 202;
pub(crate) const NODE: u8 = 203;

/// An address of one of the few networks.
pub(crate) fn address(family: IpFamily, net: u8, host: u8) -> IpAddr {
    match family {
        IpFamily::V4 => [10, net, 0, host].into(),
        IpFamily::V6 => [0xfd00, net.into(), 0, 0, 0, 0, 0, host.into()].into(),
    }
}

/// One of the few networks.
pub(crate) fn network(family: IpFamily, net: u8) -> IpNet {
    let length = if family == IpFamily::V4 { 24 } else { 64 };
    IpNet::new(address(family, net, 0), length).unwrap()
}

/// A port of a Service, before it has a family.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    protocol: Protocol,
    number: u16,
    cluster_ips: BTreeSet<u8>,
    /// Some of them belong to others: see [`external_address`].
    external: Option<u8>,
    balancer: bool,
    node_port: Option<u16>,
    /// `None` for everybody.
    ranges: Option<BTreeSet<u8>>,
    created: i64,
    internal: TrafficPolicy,
    outer: TrafficPolicy,
    sticky: bool,
    hosts: BTreeSet<u8>,
    /// Draining endpoints of this node, which only policy Local uses.
    local_only: bool,
}

/// One Service with all its ports.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    service: u8,
    ports: Vec<Port>,
}

impl Edit {
    /// A plain Service with so many endpoints.
    pub(crate) fn simple(service: u8, hosts: u8) -> Self {
        let port = Port {
            protocol: Protocol::Tcp,
            number: 80,
            cluster_ips: [service].into(),
            external: None,
            balancer: false,
            node_port: None,
            ranges: None,
            created: 0,
            internal: TrafficPolicy::Cluster,
            outer: TrafficPolicy::Cluster,
            sticky: false,
            hosts: (0..hosts).collect(),
            local_only: false,
        };
        Self { service, ports: vec![port] }
    }
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![3 => Just(TrafficPolicy::Cluster), 2 => Just(TrafficPolicy::Local)]
}

fn ports() -> impl Strategy<Value = Port> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let node_port = prop_oneof![Just(None), (30080..30082u16).prop_map(Some)];
    let external = proptest::option::of(0..5u8);
    let frontends = (btree_set(0..3u8, 1..3), external, any::<bool>(), node_port);
    let ranges = btree_set(prop_oneof![Just(OUTSIDE), Just(PODS), Just(NODE)], 0..3);
    let rules = (proptest::option::weighted(0.7, ranges), 0..2i64, policy());
    let rest = (policy(), any::<bool>(), btree_set(0..12u8, 0..5), any::<bool>());
    (protocol, 80..82u16, frontends, rules, rest).prop_map(
        |(
            protocol,
            number,
            (cluster_ips, external, balancer, node_port),
            (ranges, created, internal),
            (outer, sticky, hosts, local_only),
        )| Port {
            protocol,
            number,
            cluster_ips,
            external,
            balancer,
            node_port,
            ranges,
            created,
            internal,
            outer,
            sticky,
            hosts,
            local_only,
        },
    )
}

/// Changes of single Services.
pub(crate) fn edits() -> impl Strategy<Value = Edit> {
    (0..5u8, vec(ports(), 0..3)).prop_map(|(service, ports)| Edit { service, ports })
}

/// Families and nodes.
pub(crate) fn node_network() -> impl Strategy<Value = (IpFamily, NodeNetwork)> {
    let family = prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6)];
    (family, 0..5u8, any::<bool>(), 0..3u8).prop_map(|(family, detect, masquerade_all, ports)| {
        let detect_local = match detect {
            0 => DetectLocal::Unknown,
            1 => DetectLocal::Networks(vec![network(family, PODS)]),
            2 => DetectLocal::Networks(vec![network(family, PODS), network(family, NODE + 1)]),
            3 => DetectLocal::Bridge("pods0".into()),
            _ => DetectLocal::InterfacePrefix("pod".into()),
        };
        let node = address(family, NODE, 1);
        let second = address(family, NODE, 2);
        let loopback = match family {
            IpFamily::V4 => IpAddr::from([127, 0, 0, 1]),
            IpFamily::V6 => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        };
        let node_ports = match ports {
            0 => NodePorts::Every { loopback: false },
            1 => NodePorts::Every { loopback: true },
            _ => NodePorts::On([node].into()),
        };
        let node_network = NodeNetwork {
            detect_local,
            masquerade_all,
            node_ports,
            node_address: Some(node),
            node_addresses: [node, second, loopback].into(),
            service_networks: vec![network(family, CLUSTER_IPS)],
            ..NodeNetwork::default()
        };
        (family, node_network)
    })
}

/// Makes an edit; returns the service ports that are different now.
pub(crate) fn apply(table: &mut ForwardingTable, edit: &Edit) -> BTreeSet<Arc<ServicePortName>> {
    let family = table.family();
    let port = |port: &Port| {
        let name = ServicePortName {
            namespace: "ns".into(),
            name: format!("s{}", edit.service),
            port: port.number.to_string(),
            protocol: port.protocol,
        };
        (name, service_port(family, edit.service, port))
    };
    let key = ObjectKey::new("ns", format!("s{}", edit.service));
    table.replace(&key, edit.ports.iter().map(port).collect())
}

/// An external address: two of their own, one of a load balancer, one of a Service, one of the node.
fn external_address(family: IpFamily, kind: u8) -> IpAddr {
    match kind {
        0 | 1 => address(family, EXTERNAL, kind),
        2 => address(family, BALANCER, 0),
        3 => address(family, CLUSTER_IPS, 1),
        _ => address(family, NODE, 1),
    }
}

fn service_port(family: IpFamily, service: u8, port: &Port) -> ServicePort {
    let ranges = |nets: &BTreeSet<u8>| nets.iter().map(|net| network(family, *net)).collect();
    let target = |host: &u8| Target {
        address: address(family, PODS, *host),
        port: 8080 + u16::from(host % 2),
        locality: if host.is_multiple_of(3) { Locality::Here } else { Locality::Elsewhere },
    };
    let mut carried = ServicePort {
        port: port.number,
        cluster_ips: port.cluster_ips.iter().map(|ip| address(family, CLUSTER_IPS, *ip)).collect(),
        external_ips: port.external.iter().map(|kind| external_address(family, *kind)).collect(),
        load_balancer_ips: vec![address(family, BALANCER, service % 2); usize::from(port.balancer)],
        node_port: port.node_port,
        internal_policy: port.internal,
        external_policy: port.outer,
        source_ranges: port.ranges.as_ref().map(ranges),
        created: port.created,
        affinity: port.sticky.then_some(Duration::from_secs(60)),
        cluster: port.hosts.iter().map(target).collect(),
        ..ServicePort::default()
    };
    if carried.uses_local() && carried.has_endpoints() {
        let here = carried.cluster.iter().filter(|target| target.locality == Locality::Here);
        carried.local = here.copied().collect();
        if carried.local.is_empty() && port.local_only {
            carried.local = vec![target(&15)];
        }
    }
    carried
}

/// Every packet that could make a difference.
pub(crate) fn packets(family: IpFamily) -> Vec<Packet> {
    // An endpoint of another node does not call itself through this one.
    let pods = [0, 3, 15, 99].map(|host| (PODS, host, Origin::Network("pods0".into())));
    let outside = (OUTSIDE, 1, Origin::Network("eth0".into()));
    let node = (NODE, 1, Origin::Node);
    let looped = (BALANCER, 0, Origin::Node);
    let destinations = [
        (CLUSTER_IPS, 0, 80),
        (CLUSTER_IPS, 1, 81),
        (CLUSTER_IPS, 2, 80),
        (CLUSTER_IPS, 2, 8081),
        (CLUSTER_IPS, 9, 80),
        (EXTERNAL, 0, 80),
        (EXTERNAL, 1, 81),
        (BALANCER, 0, 80),
        (BALANCER, 1, 81),
        (NODE, 1, 80),
        (NODE, 1, 30080),
        (NODE, 2, 30081),
        (PODS, 3, 8081),
    ];
    let mut packets = Vec::new();
    if family == IpFamily::V4 {
        // Programs on the node that call each other, and node ports, by the loopback address.
        let local = IpAddr::from([127, 0, 0, 1]);
        packets.extend([80, 30080, 30081].map(|port| Packet {
            source: local,
            destination: local,
            protocol: Protocol::Tcp,
            port,
            origin: Origin::Node,
        }));
    }
    for (net, host, origin) in pods.into_iter().chain([outside, node, looped]) {
        for (to, number, port) in destinations {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                packets.push(Packet {
                    source: address(family, net, host),
                    destination: address(family, to, number),
                    protocol,
                    port,
                    origin: origin.clone(),
                });
            }
        }
    }
    packets
}
