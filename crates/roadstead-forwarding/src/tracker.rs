//! Follows Services and EndpointSlices, one object at a time.
//!
//! Kubernetes objects become small views here, once; a view that did not change wakes nobody. The
//! work per observed object depends on that object and its Service, never on how many there are.
//! Which endpoints of a Service may be used is `select`'s business.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{self as discovery, EndpointSlice};
use roadstead_api::key::ObjectKey;

use crate::select::{Endpoint, NodeView, State, TrafficPolicy, select};
use crate::service::{
    Frontend, Handling, IpFamily, Protocol, ServicePort, ServicePortName, Target,
};

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
    services: BTreeMap<ObjectKey, ServiceView>,
    /// By Service, then by name of the slice.
    slices: BTreeMap<ObjectKey, BTreeMap<String, SliceView>>,
    /// The Service that each slice was last seen with.
    owners: HashMap<ObjectKey, ObjectKey>,
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
            Some(view) if self.services.get(&key) == Some(&view) => {}
            Some(view) => {
                self.services.insert(key.clone(), view);
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
        let service = ObjectKey::new(&*key.namespace, service);
        if self.owners.get(&key).is_some_and(|owner| *owner != service) {
            self.remove_slice(&key);
        }
        let view = SliceView::read(slice);
        let slices = self.slices.entry(service.clone()).or_default();
        if slices.get(&key.name) != Some(&view) {
            slices.insert(key.name.clone(), view);
            self.owners.insert(key, service.clone());
            self.dirty.insert(service);
        }
    }

    /// Takes in that an EndpointSlice is gone.
    pub fn remove_slice(&mut self, key: &ObjectKey) {
        let Some(service) = self.owners.remove(key) else { return };
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(&key.name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.dirty.insert(service);
    }

    /// The Services that may look different since the last call.
    pub fn take_dirty(&mut self) -> BTreeSet<ObjectKey> {
        mem::take(&mut self.dirty)
    }

    /// How each port of a Service is to be carried; empty if it is not ours to carry.
    pub fn service_ports(
        &self,
        key: &ObjectKey,
        family: IpFamily,
    ) -> Vec<(ServicePortName, ServicePort)> {
        let Some(service) = self.services.get(key) else { return Vec::new() };
        let addresses: Vec<_> =
            service.addresses.iter().filter(|a| IpFamily::of(**a) == family).copied().collect();
        if addresses.is_empty() {
            return Vec::new();
        }
        let carried = |port: &PortView| {
            let name = ServicePortName {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                port: port.name.clone(),
                protocol: port.protocol,
            };
            let frontend =
                |address| Frontend { address, protocol: port.protocol, port: port.number };
            let mut frontends: Vec<_> = addresses.iter().copied().map(frontend).collect();
            frontends.sort_unstable();
            frontends.dedup();
            (name, ServicePort { frontends, internal: self.handling(key, service, port, family) })
        };
        service.ports.iter().map(carried).collect()
    }

    fn handling(
        &self,
        key: &ObjectKey,
        service: &ServiceView,
        port: &PortView,
        family: IpFamily,
    ) -> Handling {
        let endpoints = self.endpoints(key, port, family);
        let selection = select(&self.node, &endpoints);
        let target =
            |e: &&Endpoint| Target { address: e.address, port: e.port, place: e.place(&self.node) };
        let mut targets: Vec<_> = selection.under(service.internal).iter().map(target).collect();
        // The order of upstream: by text, so 10.0.0.10 comes before 10.0.0.9.
        targets.sort_by_cached_key(|target| target.socket().to_string());
        match (targets.is_empty(), selection.cluster.is_empty()) {
            (false, _) => Handling::Forward(targets),
            (true, false) => Handling::Drop,
            (true, true) => Handling::Reject,
        }
    }

    /// All endpoints of a port, each once. While an endpoint moves between slices it may be in
    /// two; and when an address is reused, its new owner counts and not the terminating one.
    fn endpoints(&self, key: &ObjectKey, port: &PortView, family: IpFamily) -> Vec<Endpoint> {
        let mut found: BTreeMap<SocketAddr, (bool, Endpoint)> = BTreeMap::new();
        let slices = self.slices.get(key).into_iter().flat_map(BTreeMap::values);
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

/// What we need of a Service.
#[derive(Debug, PartialEq, Eq)]
struct ServiceView {
    addresses: Vec<IpAddr>,
    ports: Vec<PortView>,
    internal: TrafficPolicy,
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
        let number = u16::try_from(number?).ok().filter(|number| *number != 0)?;
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
        let addresses: Vec<_> =
            many.iter().chain(single).filter_map(|text| text.parse().ok()).collect();
        let ports = spec.ports.iter().flatten();
        let ports = ports
            .filter_map(|p| PortView::read(p.name.as_deref(), p.protocol.as_deref(), Some(p.port)));
        let local = spec.internal_traffic_policy.as_deref() == Some("Local");
        let internal = if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
        (!addresses.is_empty()).then(|| Self { addresses, ports: ports.collect(), internal })
    }
}

/// What we need of an EndpointSlice.
#[derive(Debug, PartialEq, Eq)]
struct SliceView {
    /// `None` for names instead of addresses, which no proxy can use.
    family: Option<IpFamily>,
    ports: Vec<PortView>,
    /// Whether each is terminating, and the rest of it; the port is filled in later.
    endpoints: Vec<(bool, Endpoint)>,
}

impl SliceView {
    fn read(slice: &EndpointSlice) -> Self {
        let family = match slice.address_type.as_str() {
            "IPv4" => Some(IpFamily::V4),
            "IPv6" => Some(IpFamily::V6),
            _ => None,
        };
        let ports = slice.ports.iter().flatten();
        let ports =
            ports.filter_map(|p| PortView::read(p.name.as_deref(), p.protocol.as_deref(), p.port));
        let endpoints = slice.endpoints.iter().flatten().filter_map(|e| read_endpoint(e, family?));
        Self { family, ports: ports.collect(), endpoints: endpoints.collect() }
    }
}

/// Only the first address counts: all addresses of an endpoint are the same pod.
fn read_endpoint(endpoint: &discovery::Endpoint, family: IpFamily) -> Option<(bool, Endpoint)> {
    let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    if IpFamily::of(address) != family {
        return None;
    }
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let state =
        State::from_conditions(conditions.ready, conditions.serving, conditions.terminating);
    let hints = endpoint.hints.clone().unwrap_or_default();
    let zones = hints.for_zones.unwrap_or_default().into_iter().map(|hint| hint.name);
    let nodes = hints.for_nodes.unwrap_or_default().into_iter().map(|hint| hint.name);
    let endpoint = Endpoint {
        address,
        port: 0,
        state,
        node: endpoint.node_name.as_deref().map(Arc::from),
        zones: zones.collect(),
        nodes: nodes.collect(),
    };
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
