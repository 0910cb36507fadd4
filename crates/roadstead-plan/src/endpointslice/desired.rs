//! Which endpoints a Service should have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Input;
use crate::pod_view::PodView;

const ZONE: &str = "topology.kubernetes.io/zone";

/// One port as clients of a slice see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub name: String,
    pub protocol: String,
    pub port: i32,
    pub app_protocol: Option<String>,
}

/// The ports that all endpoints of a slice have, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortSet(Vec<Port>);

impl PortSet {
    /// The ports of a slice.
    pub(crate) fn of(slice: &EndpointSlice) -> Self {
        let ports = slice.ports.iter().flatten().map(|port| Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            port: port.port.unwrap_or(0),
            app_protocol: port.app_protocol.clone(),
        });
        Self::sorted(ports.collect())
    }

    /// These ports, in order.
    pub(crate) fn sorted(mut ports: Vec<Port>) -> Self {
        ports.sort();
        Self(ports)
    }

    /// The ports themselves.
    pub(crate) fn ports(&self) -> &[Port] {
        &self.0
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a slice has them.
    pub(crate) fn to_ports(&self) -> Vec<EndpointPort> {
        let ports = self.0.iter().map(|port| EndpointPort {
            name: Some(port.name.clone()),
            protocol: Some(port.protocol.clone()),
            port: Some(port.port),
            app_protocol: port.app_protocol.clone(),
        });
        ports.collect()
    }
}

/// An endpoint that should be there. It borrows everything, because most are there already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub pod: &'a PodView,
    pub address: IpAddr,
    hostname: Option<&'a str>,
    zone: Option<&'a str>,
    publish_all: bool,
}

impl Candidate<'_> {
    /// Whether an endpoint is this one, if perhaps with other attributes.
    pub(crate) fn is(&self, endpoint: &Endpoint) -> bool {
        let target = endpoint.target_ref.as_ref();
        let address = match endpoint.addresses.as_slice() {
            [one] => one.parse::<IpAddr>().ok(),
            _ => None,
        };
        address == Some(self.address)
            && endpoint.hostname.as_deref() == self.hostname
            && target.and_then(|t| t.name.as_deref()) == self.pod.metadata.name.as_deref()
            && target.and_then(|t| t.namespace.as_deref()) == self.pod.metadata.namespace.as_deref()
    }

    /// Whether an endpoint that is this one says about it what is true. Hints do not count.
    pub(crate) fn is_described_by(&self, endpoint: &Endpoint) -> bool {
        let target = endpoint.target_ref.as_ref();
        let node = Some(self.pod.node.as_str()).filter(|name| !name.is_empty());
        endpoint.conditions.as_ref() == Some(&self.conditions())
            && endpoint.zone.as_deref() == self.zone
            && endpoint.node_name.as_deref() == node
            && target.and_then(|t| t.uid.as_deref()) == self.pod.metadata.uid.as_deref()
            && target.and_then(|t| t.kind.as_deref()) == Some("Pod")
    }

    fn conditions(&self) -> EndpointConditions {
        let (serving, terminating) = (self.pod.ready, self.pod.is_terminating());
        EndpointConditions {
            ready: Some(self.publish_all || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }
    }

    /// As a slice has it.
    pub(crate) fn to_endpoint(self) -> Endpoint {
        Endpoint {
            addresses: vec![self.address.to_string()],
            conditions: Some(self.conditions()),
            hostname: self.hostname.map(str::to_owned),
            node_name: Some(self.pod.node.clone()).filter(|name| !name.is_empty()),
            target_ref: Some(target_ref(self.pod)),
            zone: self.zone.map(str::to_owned),
            ..Default::default()
        }
    }
}

/// How endpoints name their pod.
pub(crate) fn target_ref(pod: &PodView) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..Default::default()
    }
}

/// The name under which a Service makes a pod known, if it does.
pub(crate) fn hostname<'a>(service: &Service, pod: &'a PodView) -> Option<&'a str> {
    let is_under_it = service.metadata.name.as_deref() == Some(&pod.subdomain)
        && service.metadata.namespace == pod.metadata.namespace;
    Some(pod.hostname.as_str()).filter(|hostname| is_under_it && !hostname.is_empty())
}

/// Whether clients get the addresses of pods instead of one for all.
pub(crate) fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"))
}

/// Whether pods that are not ready count as if they were.
pub(crate) fn publishes_all(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

/// The address families that get slices.
pub(crate) fn families(service: &Service) -> Vec<String> {
    let Some(spec) = &service.spec else { return vec!["IPv4".into()] };
    match &spec.ip_families {
        Some(families) if !families.is_empty() => families.clone(),
        _ if spec.cluster_ip.as_deref().is_some_and(|ip| ip.contains(':')) => vec!["IPv6".into()],
        _ if is_headless(service) => vec!["IPv4".into(), "IPv6".into()],
        _ => vec!["IPv4".into()],
    }
}

/// The endpoints of one family, by the ports they have.
pub(crate) fn endpoints<'a>(
    input: &Input<'a>,
    family: &str,
    missing_nodes: &mut BTreeSet<String>,
) -> BTreeMap<PortSet, Vec<Candidate<'a>>> {
    let mut all: BTreeMap<PortSet, Vec<Candidate<'a>>> = BTreeMap::new();
    let publish_all = publishes_all(input.service);
    let common = common_ports(input.service);
    let mut alike = Vec::new();
    // Many pods are on few nodes.
    let mut nodes: BTreeMap<&str, Option<&'a Node>> = BTreeMap::new();
    for &pod in input.pods.iter().filter(|pod| !pod.is_finished()) {
        let wanted = |address: &&IpAddr| address.is_ipv6() == (family == "IPv6");
        let Some(&address) = pod.addresses.iter().find(wanted) else { continue };
        let node = *nodes.entry(&pod.node).or_insert_with(|| (input.node)(&pod.node));
        if node.is_none() && !pod.node.is_empty() && !publish_all {
            missing_nodes.insert(pod.node.clone());
            continue;
        }
        let labels = node.and_then(|node| node.metadata.labels.as_ref());
        let zone = labels.and_then(|labels| labels.get(ZONE)).map(String::as_str);
        let hostname = hostname(input.service, pod);
        let candidate = Candidate { pod, address, hostname, zone, publish_all };
        match &common {
            Some(_) => alike.push(candidate),
            None => all.entry(ports(input.service, pod)).or_default().push(candidate),
        }
    }
    if let Some(common) = common.filter(|_| !alike.is_empty()) {
        all.insert(common, alike);
    }
    all
}

/// The ports of every pod, if they do not depend on the pod.
pub(crate) fn common_ports(service: &Service) -> Option<PortSet> {
    let by_name = |port: &ServicePort| matches!(port.target_port, Some(IntOrString::String(_)));
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let depends = ports.into_iter().flatten().any(by_name);
    (!depends).then(|| self::ports(service, &PodView::default()))
}

/// The Service's ports as this pod has them: a port that it does not name is left out.
pub(crate) fn ports(service: &Service, pod: &PodView) -> PortSet {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let resolved = ports.into_iter().flatten().filter_map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        Some(Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: protocol.to_owned(),
            port: target_port(port, protocol, pod)?,
            app_protocol: port.app_protocol.clone(),
        })
    });
    PortSet::sorted(resolved.collect())
}

fn target_port(port: &ServicePort, protocol: &str, pod: &PodView) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let mut named = pod.ports.iter();
            let found = named.find(|port| port.name == *name && port.protocol == protocol);
            found.map(|port| port.number)
        }
    }
}
