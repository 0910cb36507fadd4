//! Follows Services and EndpointSlices, one object at a time.
//!
//! Kubernetes objects become small views here, once; a view that did not change wakes nobody. The
//! work per observed object depends on that object and its Service, never on how many there are.
//! Which endpoints of a Service may be used is `select`'s business.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::{self as discovery, EndpointSlice};
use roadstead_api::ip;
use roadstead_api::key::ObjectKey;

use crate::announce::Announced;
use crate::select::{Endpoint, EndpointState, Hints, NodeView, TrafficPolicy, select};
use crate::service::{IpFamily, Locality, Protocol, ServicePort, ServicePortName, Target};

/// A Service with this label belongs to another proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// A slice with this label belongs to a headless Service.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Names the Service that a slice belongs to.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// All Services and endpoints seen so far, and which Services changed since last asked.
#[derive(Debug, Default)]
pub struct Tracker {
    node: NodeView,
    services: BTreeMap<ObjectKey, Box<ServiceView>>,
    /// By Service.
    slices: BTreeMap<ObjectKey, Slices>,
    /// The name of the Service that each slice, by its packed key, was last seen with.
    owners: BTreeMap<Box<str>, Box<str>>,
    nodes: NodeNames,
    dirty: BTreeSet<ObjectKey>,
}

impl Tracker {
    /// Starts with no objects, for the proxy of `node`.
    pub fn new(node: NodeView) -> Self {
        Self { node, ..Self::default() }
    }

    /// Takes in the newest state of a Service.
    pub fn observe_service(&mut self, service: &Service) {
        let key = key_of(service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
        match ServiceView::read(service) {
            Some(view) if self.services.get(&key).is_some_and(|known| **known == view) => {}
            Some(view) => {
                self.services.insert(key.clone(), Box::new(view));
                self.dirty.insert(key);
            }
            None => self.remove_service(&key),
        }
    }

    /// Takes in that a Service is gone.
    pub fn remove_service(&mut self, key: &ObjectKey) {
        if self.services.remove(key).is_some() {
            self.dirty.insert(key.clone());
        }
    }

    /// Takes in the newest state of an EndpointSlice.
    pub fn observe_slice(&mut self, slice: &EndpointSlice) {
        let key = key_of(slice.metadata.namespace.as_deref(), slice.metadata.name.as_deref());
        let Some(service) = service_of(slice) else { return self.remove_slice(&key) };
        let full_name = key.packed();
        if self.owners.get(&full_name).is_some_and(|owner| **owner != *service) {
            self.remove_slice(&key);
        }
        let service = ObjectKey::new(&*key.namespace, service);
        let view = SliceView::read(slice, &mut self.nodes);
        if self.slices.entry(service.clone()).or_default().set(&key.name, view) {
            self.owners.insert(full_name, service.name.as_str().into());
            self.dirty.insert(service);
        }
    }

    /// Takes in that an EndpointSlice is gone.
    pub fn remove_slice(&mut self, key: &ObjectKey) {
        let Some(owner) = self.owners.remove(&key.packed()) else { return };
        let service = ObjectKey::new(&*key.namespace, owner);
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(&key.name);
            if slices.0.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.dirty.insert(service);
    }

    /// The Services that may look different since the last call.
    pub fn take_dirty(&mut self) -> BTreeSet<ObjectKey> {
        mem::take(&mut self.dirty)
    }

    /// Takes in what this node looks like now; everything may be different then.
    pub fn observe_node(&mut self, node: NodeView) {
        if self.node != node {
            self.node = node;
            self.dirty.extend(self.services.keys().cloned());
        }
    }

    /// How each port of a Service is to be carried; empty if it is not ours to carry.
    pub fn service_ports(
        &self,
        key: &ObjectKey,
        family: IpFamily,
    ) -> Vec<(ServicePortName, ServicePort)> {
        let Some(service) = self.services.get(key) else { return Vec::new() };
        let ours = |addresses: &[IpAddr]| -> Vec<IpAddr> {
            exact(addresses.iter().filter(|a| IpFamily::of(**a) == family).copied())
        };
        let cluster_ips = ours(&service.cluster_ips);
        if cluster_ips.is_empty() {
            return Vec::new();
        }
        let carried = |port: &ServicePortView| {
            let name = ServicePortName {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                port: port.view.name.clone(),
                protocol: port.view.protocol,
            };
            let mut carried = ServicePort {
                port: port.view.number,
                cluster_ips: cluster_ips.clone(),
                external_ips: ours(&service.external_ips),
                load_balancer_ips: ours(&service.load_balancer_ips),
                node_port: port.node_port,
                health_check_port: service.health_check_port,
                internal_policy: service.internal,
                external_policy: service.external,
                source_ranges: service.sources.of(family),
                created: service.created,
                affinity: service.affinity,
                ..ServicePort::default()
            };
            let endpoints = self.endpoints(key, &port.view, family);
            let selection = select(&self.node, &endpoints);
            carried.cluster = self.targets(&selection.cluster);
            if carried.uses_local() {
                carried.local = self.targets(&selection.local);
            }
            (name, carried)
        };
        service.ports.iter().map(carried).collect()
    }

    /// The entries of a Service's source ranges that say nothing, as they are written.
    pub fn unread_ranges(&self, key: &ObjectKey) -> &[String] {
        self.services.get(key).map(|service| &*service.sources.unread).unwrap_or_default()
    }

    /// The health check that a Service asks every node to answer, if any.
    pub fn health_check(&self, key: &ObjectKey) -> Option<HealthCheck> {
        let service = self.services.get(key)?;
        let port = service.health_check_port?;
        let slices = self.slices.get(key).into_iter().flat_map(Slices::iter);
        let endpoints = slices.flat_map(|slice| &slice.endpoints).map(|(_, endpoint)| endpoint);
        let counts = |e: &&Endpoint| {
            e.state == EndpointState::Ready && e.locality(&self.node) == Locality::Here
        };
        let addresses: BTreeSet<_> = endpoints.filter(counts).map(|e| e.address).collect();
        Some(HealthCheck { port, local_endpoints: addresses.len() })
    }

    /// The load balancer addresses of a Service, if it has any.
    pub fn announced(&self, key: &ObjectKey) -> Option<Announced> {
        let service = self.services.get(key)?;
        if service.load_balancer_ips.is_empty() {
            return None;
        }
        let with_endpoints = || {
            let slices = self.slices.get(key).into_iter().flat_map(Slices::iter);
            let endpoints = slices.flat_map(|slice| &slice.endpoints).map(|(_, e)| e);
            let ready = endpoints.filter(|endpoint| endpoint.state == EndpointState::Ready);
            ready.filter_map(|endpoint| Some(endpoint.node.as_ref()?.to_string())).collect()
        };
        let nodes = (service.external == TrafficPolicy::Local).then(with_endpoints);
        Some(Announced { addresses: service.load_balancer_ips.clone(), nodes })
    }

    /// In the order of upstream: by text, so 10.0.0.10 comes before 10.0.0.9.
    fn targets(&self, endpoints: &[&Endpoint]) -> Vec<Target> {
        let target = |e: &&Endpoint| Target {
            address: e.address,
            port: e.port,
            locality: e.locality(&self.node),
        };
        let mut targets: Vec<_> = endpoints.iter().map(target).collect();
        targets.sort_by_cached_key(|target| target.socket().to_string());
        targets
    }

    /// All endpoints of a port, each once. While an endpoint moves between slices it may be in
    /// two; and when an address is reused, its new owner counts and not the terminating one.
    fn endpoints(&self, key: &ObjectKey, port: &PortView, family: IpFamily) -> Vec<Endpoint> {
        let mut found: BTreeMap<SocketAddr, (bool, Endpoint)> = BTreeMap::new();
        let slices = self.slices.get(key).into_iter().flat_map(Slices::iter);
        for slice in slices.filter(|slice| slice.family == Some(family)) {
            let same = |p: &&PortView| p.name == port.name && p.protocol == port.protocol;
            for number in slice.ports.iter().filter(same).map(|p| p.number) {
                for (terminating, endpoint) in &slice.endpoints {
                    let candidate = (*terminating, Endpoint { port: number, ..endpoint.clone() });
                    let rank = |(terminating, e): &(bool, Endpoint)| (*terminating, e.state);
                    let entry = found.entry(SocketAddr::new(endpoint.address, number));
                    entry
                        .and_modify(|known| {
                            if rank(&candidate) < rank(known) {
                                *known = candidate.clone();
                            }
                        })
                        .or_insert(candidate);
                }
            }
        }
        found.into_values().map(|(_, endpoint)| endpoint).collect()
    }
}

/// The slices of one Service, by name; nearly always one.
#[derive(Debug, Default)]
struct Slices(Vec<(Box<str>, SliceView)>);

impl Slices {
    fn iter(&self) -> impl Iterator<Item = &SliceView> {
        self.0.iter().map(|(_, view)| view)
    }

    fn place(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(name))
    }

    /// Takes in the newest state of a slice; returns whether it is another.
    fn set(&mut self, name: &str, view: SliceView) -> bool {
        match self.place(name) {
            Ok(at) if self.0[at].1 == view => return false,
            Ok(at) => self.0[at].1 = view,
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (name.into(), view));
            }
        }
        true
    }

    fn remove(&mut self, name: &str) {
        if let Ok(at) = self.place(name) {
            self.0.remove(at);
        }
    }
}

/// A load balancer asks on this port whether the node has endpoints of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// From `spec.healthCheckNodePort`.
    pub port: u16,
    /// How many distinct addresses of this node are ready. Those that terminate do not count, so
    /// that the load balancer leaves in time.
    pub local_endpoints: usize,
}

/// What we need of a Service.
#[derive(Debug, PartialEq, Eq)]
struct ServiceView {
    cluster_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    load_balancer_ips: Vec<IpAddr>,
    ports: Vec<ServicePortView>,
    internal: TrafficPolicy,
    external: TrafficPolicy,
    sources: Sources,
    affinity: Option<Duration>,
    health_check_port: Option<u16>,
    /// In seconds; one that does not say is younger than all that do.
    created: i64,
}

/// A port of a Service.
#[derive(Debug, PartialEq, Eq)]
struct ServicePortView {
    view: PortView,
    node_port: Option<u16>,
}

/// A named port of a Service or of a slice.
#[derive(Debug, PartialEq, Eq)]
struct PortView {
    name: String,
    protocol: Protocol,
    number: u16,
}

impl PortView {
    fn read(name: Option<&str>, protocol: Option<&str>, number: Option<i32>) -> Option<Self> {
        let number = port_number(number?)?;
        let name = name.unwrap_or_default().to_owned();
        Some(Self { name, protocol: Protocol::parse(protocol)?, number })
    }
}

impl ServiceView {
    /// `None` if the Service is not for us: ExternalName, headless, or of another proxy.
    fn read(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let labels = service.metadata.labels.as_ref();
        if spec.type_.as_deref() == Some("ExternalName")
            || labels.is_some_and(|labels| labels.contains_key(PROXY_NAME_LABEL))
        {
            return None;
        }
        // Old servers fill in only the single field. "None" and "" are no addresses.
        let many = spec.cluster_ips.as_deref().unwrap_or_default();
        let single = spec.cluster_ip.iter().filter(|_| many.is_empty());
        let cluster_ips = addresses(many.iter().chain(single));
        if cluster_ips.is_empty() {
            return None;
        }
        let ingress = service.status.iter().flat_map(|status| &status.load_balancer);
        let ingress = ingress.flat_map(|balancer| balancer.ingress.iter().flatten());
        // Whoever says "Proxy" wants the traffic to pass through the load balancer itself.
        let vips = ingress.filter(|i| i.ip_mode.as_deref() != Some("Proxy"));
        let ports = spec.ports.iter().flatten().filter_map(|p| {
            let view = PortView::read(p.name.as_deref(), p.protocol.as_deref(), Some(p.port))?;
            Some(ServicePortView { view, node_port: p.node_port.and_then(port_number) })
        });
        let created = service.metadata.creation_timestamp.as_ref();
        let external = policy(spec.external_traffic_policy.as_deref());
        let health_check_port = spec.health_check_node_port.and_then(port_number);
        Some(Self {
            cluster_ips,
            external_ips: addresses(spec.external_ips.iter().flatten()),
            load_balancer_ips: addresses(vips.filter_map(|i| i.ip.as_ref())),
            ports: exact(ports),
            internal: policy(spec.internal_traffic_policy.as_deref()),
            external,
            sources: Sources::read(spec.load_balancer_source_ranges.iter().flatten()),
            affinity: affinity(spec),
            health_check_port: health_check_port.filter(|_| external == TrafficPolicy::Local),
            created: created.map_or(i64::MAX, |time| time.0.as_second()),
        })
    }
}

/// Those texts that are addresses, in order, each once.
fn addresses<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = exact(texts.filter_map(|text| ip::parse(text)));
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Collects without room for more: what we keep never grows, and there is much of it.
fn exact<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.shrink_to_fit();
    items
}

/// The names of nodes, each kept once however many endpoints run there.
#[derive(Debug, Default)]
struct NodeNames {
    known: BTreeSet<Arc<str>>,
    /// So many were in use when last counted.
    used: usize,
}

impl NodeNames {
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        if self.known.len() > 2 * self.used + 100 {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.used = self.known.len();
        }
        let name: Arc<str> = name.into();
        self.known.insert(name.clone());
        name
    }
}

fn policy(text: Option<&str>) -> TrafficPolicy {
    if text == Some("Local") { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

/// What a Service says about who may call the addresses of its load balancer.
#[derive(Debug, PartialEq, Eq)]
struct Sources {
    /// In the order given, and as often.
    ranges: Vec<IpNet>,
    /// What is no network.
    unread: Box<[String]>,
}

impl Sources {
    /// Entries may be surrounded by blanks.
    fn read<'a>(texts: impl Iterator<Item = &'a String>) -> Self {
        let (mut ranges, mut unread) = (Vec::new(), Vec::new());
        for text in texts {
            match ip::parse_network(text.trim()) {
                Some(range) => ranges.push(range.trunc()),
                None => unread.push(text.clone()),
            }
        }
        ranges.shrink_to_fit();
        Self { ranges, unread: unread.into() }
    }

    /// The ranges of a family; one that contains everything is as good as none. Somebody who wrote
    /// what nobody can read meant to shut others out: then it is for nobody.
    fn of(&self, family: IpFamily) -> Option<Vec<IpNet>> {
        let of_family = |net: &&IpNet| IpFamily::of(net.network()) == family;
        let ours: Vec<_> = self.ranges.iter().filter(of_family).copied().collect();
        let open = match ours.is_empty() {
            true => self.unread.is_empty(),
            false => ours.iter().any(|net| net.prefix_len() == 0),
        };
        (!open).then_some(ours)
    }
}

/// How long clients stay with their target.
fn affinity(spec: &ServiceSpec) -> Option<Duration> {
    const DEFAULT: u64 = 10_800;
    const LONGEST: u64 = 86_400;
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
    let seconds = config.and_then(|c| c.timeout_seconds).and_then(|s| u64::try_from(s).ok());
    let seconds = seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT);
    Some(Duration::from_secs(seconds.min(LONGEST)))
}

fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|number| *number != 0)
}

/// What we need of an EndpointSlice.
#[derive(Debug, PartialEq, Eq)]
struct SliceView {
    /// `None` for names instead of addresses, which no proxy can use.
    family: Option<IpFamily>,
    ports: Box<[PortView]>,
    /// Whether each is terminating, and the rest of it; the port is filled in later.
    endpoints: Box<[(bool, Endpoint)]>,
}

impl SliceView {
    fn read(slice: &EndpointSlice, nodes: &mut NodeNames) -> Self {
        let family = match slice.address_type.as_str() {
            "IPv4" => Some(IpFamily::V4),
            "IPv6" => Some(IpFamily::V6),
            _ => None,
        };
        // Where a Service port has no name, the slice says so with an empty one; upstream skips ports
        // that say nothing.
        let ports = slice.ports.iter().flatten().filter(|port| port.name.is_some());
        let ports =
            ports.filter_map(|p| PortView::read(p.name.as_deref(), p.protocol.as_deref(), p.port));
        let endpoints = slice.endpoints.iter().flatten();
        let endpoints = endpoints.filter_map(|e| read_endpoint(e, family?, nodes));
        Self { family, ports: ports.collect(), endpoints: endpoints.collect() }
    }
}

/// Only the first address counts: all addresses of an endpoint are the same pod.
fn read_endpoint(
    endpoint: &discovery::Endpoint,
    family: IpFamily,
    nodes: &mut NodeNames,
) -> Option<(bool, Endpoint)> {
    let address = ip::parse(endpoint.addresses.first()?)?;
    if IpFamily::of(address) != family {
        return None;
    }
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let state = EndpointState::from_conditions(
        conditions.ready,
        conditions.serving,
        conditions.terminating,
    );
    let hints = endpoint.hints.as_ref().map(|hints| {
        let zones = hints.for_zones.iter().flatten().map(|hint| hint.name.clone());
        let nodes = hints.for_nodes.iter().flatten().map(|hint| hint.name.clone());
        Arc::new(Hints { zones: exact(zones), nodes: exact(nodes) })
    });
    let node = endpoint.node_name.as_deref().map(|name| nodes.shared(name));
    let endpoint = Endpoint { address, port: 0, state, node, hints };
    Some((conditions.terminating.unwrap_or(false), endpoint))
}

/// The Service a slice belongs to, if it is one for us.
fn service_of(slice: &EndpointSlice) -> Option<&str> {
    let labels = slice.metadata.labels.as_ref()?;
    let headless = labels.contains_key(HEADLESS_LABEL);
    labels.get(SERVICE_NAME_LABEL).filter(|name| !headless && !name.is_empty()).map(String::as_str)
}

fn key_of(namespace: Option<&str>, name: Option<&str>) -> ObjectKey {
    ObjectKey::new(namespace.unwrap_or_default(), name.unwrap_or_default())
}

#[cfg(test)]
mod tests;
