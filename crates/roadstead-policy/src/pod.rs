//! A pod as policies see it.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use roadstead_api::ip;
use roadstead_api::selector::Labels;
use roadstead_forwarding::service::Protocol;

/// What policies need to know of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPod {
    /// By which it is selected.
    pub labels: Labels,
    /// Where it runs.
    pub node: String,
    /// Its own addresses. Those who share the network of their node have none: to others they are the
    /// node. Nor have those whose work is done.
    pub addresses: Vec<IpAddr>,
    /// The ports of its containers that have names.
    pub named_ports: Vec<(String, Protocol, u16)>,
    /// In seconds. Of two who have an address, the younger one is there.
    pub created: i64,
    /// By which its node knows it again; see [`mark`].
    pub mark: u32,
}

/// A number made of what a node calls its pod: the uid, and that of a static pod behind its mirror. By it a
/// node knows its own pod again from an earlier one with the same address.
pub fn mark(uid: &str) -> u32 {
    uid.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl PolicyPod {
    /// Reads a Pod.
    pub fn read(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let created = pod.metadata.creation_timestamp.as_ref();
        let containers = spec.map_or(&[][..], |spec| &spec.containers);
        let annotations = pod.metadata.annotations.as_ref();
        let shown = annotations.and_then(|all| all.get("kubernetes.io/config.mirror"));
        let restarted = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        let sidecars =
            restarted.iter().filter(|own| own.restart_policy.as_deref() == Some("Always"));
        Self {
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            addresses: addresses(pod),
            named_ports: containers.iter().chain(sidecars).flat_map(named_ports).collect(),
            created: created.map_or(0, |time| time.0.as_second()),
            mark: mark(shown.or(pod.metadata.uid.as_ref()).map_or("", String::as_str)),
        }
    }
}

/// The addresses that a node may give to its pods, as far as it says.
pub fn pod_blocks(node: &Node) -> Vec<IpNet> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let listed = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    let mut found: Vec<_> = listed.filter_map(|text| ip::parse_network(text)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    let Some(status) = pod.status.as_ref().filter(|_| !on_host) else { return Vec::new() };
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    let listed = status.pod_ips.iter().flatten().map(|own| own.ip.as_str());
    let mut found: Vec<_> = listed.chain(status.pod_ip.as_deref()).filter_map(ip::parse).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn named_ports(container: &Container) -> impl Iterator<Item = (String, Protocol, u16)> {
    container.ports.iter().flatten().filter_map(|port| {
        let protocol = Protocol::parse(port.protocol.as_deref())?;
        Some((port.name.clone()?, protocol, u16::try_from(port.container_port).ok()?))
    })
}
