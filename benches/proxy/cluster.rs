//! The clusters that are measured.

use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_proxy::agent::{self, Agent, Config};
use roadstead_proxy::plane::Mode;
use roadstead_watch::informer::Change;
use serde_json::{Value, json};

/// The networks of the pods.
pub const PODS: &str = "10.244.0.0/14";

pub fn agent(more_pods: &[&str]) -> Agent {
    Agent::new(config(Mode::Nftables, more_pods)).expect("we may write rules here")
}

pub fn config(mode: Mode, more_pods: &[&str]) -> Config {
    let network = |text: &&str| -> IpNet { text.parse().expect("a network") };
    let networks = [PODS].iter().chain(more_pods).map(network).collect();
    let surroundings =
        Surroundings { detect_local: DetectLocal::Networks(networks), ..Surroundings::default() };
    Config {
        node_name: "node-1".into(),
        surroundings,
        families: vec![IpFamily::V4],
        mode,
        ..Config::default()
    }
}

pub fn cleanup() {
    agent::cleanup().expect("the kernel lets go");
}

/// The first addresses belong to the API server and to DNS.
pub fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0020 + n)
}

pub fn service_object(n: u32) -> Value {
    let address = address(n).to_string();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": format!("service-{n:05}")},
        "spec": {"clusterIP": address, "clusterIPs": [address],
            "ports": [{"name": "http", "port": 80, "protocol": "UDP"}]},
    })
}

pub fn slice_object(n: u32, targets: impl Iterator<Item = u32>) -> Value {
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

pub fn service(n: u32) -> Change<Service> {
    Change::Set(Arc::new(serde_json::from_value(service_object(n)).expect("a Service")))
}

pub fn slice(n: u32, targets: impl Iterator<Item = u32>) -> Change<EndpointSlice> {
    Change::Set(Arc::new(serde_json::from_value(slice_object(n, targets)).expect("a slice")))
}
