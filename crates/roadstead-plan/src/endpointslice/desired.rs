//! Which endpoints a Service should have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Input;
use crate::pod;

const ZONE: &str = "topology.kubernetes.io/zone";

/// One port as clients of a slice see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub port: i32,
    pub app_protocol: Option<String>,
}

/// The ports that all endpoints of a slice have, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortSet(Vec<Port>);

impl PortSet {
    /// The ports of a slice.
    pub fn of(slice: &EndpointSlice) -> Self {
        let mut ports: Vec<_> = slice.ports.iter().flatten().map(super::port_key).collect();
        ports.sort();
        Self(ports)
    }

    /// As a slice has them.
    pub fn to_ports(&self) -> Vec<EndpointPort> {
        let ports = self.0.iter().map(|port| EndpointPort {
            name: Some(port.name.clone()),
            protocol: Some(port.protocol.clone()),
            port: Some(port.port),
            app_protocol: port.app_protocol.clone(),
        });
        ports.collect()
    }
}

/// Whether clients get the addresses of pods instead of one for all.
pub fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"))
}

/// The address families that get slices.
pub fn families(service: &Service) -> Vec<String> {
    let Some(spec) = &service.spec else { return vec!["IPv4".into()] };
    match &spec.ip_families {
        Some(families) if !families.is_empty() => families.clone(),
        _ if spec.cluster_ip.as_deref().is_some_and(|ip| ip.contains(':')) => vec!["IPv6".into()],
        _ if is_headless(service) => vec!["IPv4".into(), "IPv6".into()],
        _ => vec!["IPv4".into()],
    }
}

/// The endpoints of one family, by the ports they have.
pub fn endpoints(
    input: &Input<'_>,
    family: &str,
    missing_nodes: &mut BTreeSet<String>,
) -> BTreeMap<PortSet, Vec<Endpoint>> {
    let mut all: BTreeMap<PortSet, Vec<Endpoint>> = BTreeMap::new();
    let publish_all = input.service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses);
    let publish_all = publish_all == Some(true);
    for pod in input.pods.iter().filter(|pod| !pod::is_finished(pod)) {
        let addresses = addresses(pod, family);
        if addresses.is_empty() {
            continue;
        }
        let node = (input.node)(pod::node(pod));
        if node.is_none() && !pod::node(pod).is_empty() && !publish_all {
            missing_nodes.insert(pod::node(pod).to_owned());
            continue;
        }
        let labels = node.and_then(|node| node.metadata.labels.as_ref());
        let zone = labels.and_then(|labels| labels.get(ZONE)).cloned();
        let endpoint = endpoint(input.service, pod, addresses, zone, publish_all);
        all.entry(ports(input.service, pod)).or_default().push(endpoint);
    }
    all
}

fn endpoint(
    service: &Service,
    pod: &Pod,
    addresses: Vec<String>,
    zone: Option<String>,
    publish_all: bool,
) -> Endpoint {
    let (serving, terminating) = (pod::is_ready(pod), pod::is_terminating(pod));
    let hostname = pod.spec.as_ref().and_then(|spec| {
        let mine = spec.subdomain == service.metadata.name;
        spec.hostname.clone().filter(|hostname| mine && !hostname.is_empty())
    });
    Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(publish_all || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname,
        node_name: Some(pod::node(pod).to_owned()).filter(|name| !name.is_empty()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..Default::default()
        }),
        zone,
        ..Default::default()
    }
}

/// The pod's addresses of a family, in canonical form.
fn addresses(pod: &Pod, family: &str) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let all = all.chain(status.pod_ip.as_deref()).filter_map(|text| text.parse::<IpAddr>().ok());
    let wanted = all.filter(|address| address.is_ipv6() == (family == "IPv6"));
    wanted.map(|address| address.to_string()).collect::<BTreeSet<_>>().into_iter().take(1).collect()
}

/// The Service's ports as this pod has them: a port that it does not name is left out.
fn ports(service: &Service, pod: &Pod) -> PortSet {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let mut all: Vec<_> = ports
        .into_iter()
        .flatten()
        .filter_map(|port| {
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                protocol: protocol(port).to_owned(),
                port: target_port(port, pod)?,
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    all.sort();
    PortSet(all)
}

fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let is_sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    let mut named = ports.filter(|candidate| {
        candidate.name.as_ref() == Some(name)
            && candidate.protocol.as_deref().unwrap_or("TCP") == protocol(port)
    });
    named.next().map(|port| port.container_port)
}
