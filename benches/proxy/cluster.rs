//! The clusters that are measured.

use std::net::Ipv4Addr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork, NodePorts};
use roadstead_forwarding::service::IpFamily;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::agent::{self, Agent};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_watch::informer::Change;
use serde_json::{Value, json};

/// The networks of the pods.
pub(crate) const PODS: &str = "10.244.0.0/14";

/// The network of the Services.
const SERVICES: &str = "10.96.0.0/12";

pub(crate) fn agent(more_pods: &[&str]) -> Agent {
    Agent::new(config(ProxyMode::Nftables, more_pods), Outputs::default())
        .expect("we may write rules here")
}

pub(crate) fn config(mode: ProxyMode, more_pods: &[&str]) -> Config {
    let networks = pods_and(more_pods);
    // As a node has it that knows its cluster: the network of Services, and its own address.
    let node_network = NodeNetwork {
        detect_local: DetectLocal::Networks(networks),
        service_networks: vec![network(SERVICES)],
        node_ports: NodePorts::On([[192, 168, 7, 1].into()].into()),
        ..NodeNetwork::default()
    };
    Config {
        node_name: "node-1".into(),
        node_network,
        families: vec![IpFamily::V4],
        mode,
        ..Config::default()
    }
}

/// As `roadstead up` has it: node ports are served on every address, on those of loopback too, and pods
/// appear as the node outside of the cluster.
pub(crate) fn config_of_up(more_pods: &[&str]) -> Config {
    let config = config(ProxyMode::Nftables, more_pods);
    let node_network = NodeNetwork {
        node_ports: NodePorts::Every { loopback: true },
        masquerade_egress: true,
        ..config.node_network
    };
    let node_port_addresses = vec!["all".into(), "localhost".into()];
    Config { node_network, node_port_addresses, ..config }
}

fn pods_and(more: &[&str]) -> Vec<IpNet> {
    [PODS].iter().chain(more).map(|text| network(text)).collect()
}

fn network(text: &str) -> IpNet {
    text.parse().expect("a network")
}

pub(crate) fn cleanup() {
    agent::cleanup().expect("the kernel lets go");
}

/// The first addresses belong to the API server and to DNS.
pub(crate) fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0020 + n)
}

pub(crate) fn service_object(n: u32) -> Value {
    let address = address(n).to_string();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": format!("service-{n:05}")},
        "spec": {"clusterIP": address, "clusterIPs": [address],
            "ports": [{"name": "http", "port": 80, "protocol": "UDP"}]},
    })
}

pub(crate) fn slice_object(n: u32, targets: impl Iterator<Item = u32>) -> Value {
    let endpoint = |target: u32| {
        let address = Ipv4Addr::from(0x0af4_0002 + target).to_string();
        json!({"addresses": [address], "nodeName": "node-2", "conditions": {"ready": true}})
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "default", "name": format!("service-{n:05}-x"),
            "labels": {"kubernetes.io/service-name": format!("service-{n:05}")}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "UDP"}],
        "endpoints": targets.map(endpoint).collect::<Vec<_>>(),
    })
}

pub(crate) fn service(n: u32) -> Change<Service> {
    Change::Set(serde_json::from_value(service_object(n)).expect("a Service"))
}

pub(crate) fn slice(n: u32, targets: impl Iterator<Item = u32>) -> Change<EndpointSlice> {
    Change::Set(serde_json::from_value(slice_object(n, targets)).expect("a slice"))
}
