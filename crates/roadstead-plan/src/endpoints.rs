//! The Endpoints of a Service: all its addresses in one object, for those who still read it.
//!
//! Subsets are put into a canonical form, so that the same pods always give the same object, and
//! cut off at a thousand addresses. Writing the same cut-off object again is avoided.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::endpointslice::desired::{self, PortSet};
use crate::endpointslice::{HEADLESS, annotate};
use crate::pod_view::PodView;

/// The label that says who writes an Endpoints object.
pub const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
/// What we are called in that label.
pub const CONTROLLER: &str = "endpoint-controller";
/// The annotation of an object that could not hold all addresses.
pub(crate) const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Objects with this annotation are locks of somebody's election, not addresses.
pub(crate) const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// So many addresses fit into one object.
pub(crate) const CAPACITY: usize = 1000;

/// What to do about the Endpoints of a Service.
#[derive(Debug, PartialEq)]
pub enum EndpointsPlan {
    /// Nothing.
    Keep,
    /// Make the object.
    Create(Endpoints),
    /// Replace it.
    Replace(Endpoints),
}

/// Plans the Endpoints of a Service that has a selector, given the pods that it matches.
pub fn plan(
    service: &Service,
    pods: &[&PodView],
    existing: Option<&Endpoints>,
    trigger: Option<Timestamp>,
) -> EndpointsPlan {
    let (subsets, truncated) = match desired::common_ports(service) {
        Some(ports) => one_subset(service, pods, &ports),
        None => truncate(subsets(service, pods), CAPACITY),
    };
    let labels = labels(service);
    if let Some(existing) = existing
        && existing.metadata.labels.as_ref() == Some(&labels)
        && is_truncated(existing) == truncated
        && same(existing.subsets.as_deref().unwrap_or_default(), &subsets)
    {
        return EndpointsPlan::Keep;
    }
    let metadata = match existing {
        Some(existing) => existing.metadata.clone(),
        None => ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..Default::default()
        },
    };
    let mut wanted = Endpoints {
        metadata: ObjectMeta { labels: Some(labels), ..metadata },
        subsets: Some(subsets).filter(|subsets| !subsets.is_empty()),
    };
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    match truncated {
        true => drop(annotations.insert(OVER_CAPACITY.into(), "truncated".into())),
        false => drop(annotations.remove(OVER_CAPACITY)),
    }
    annotate(&mut wanted.metadata, trigger);
    match existing {
        Some(_) => EndpointsPlan::Replace(wanted),
        None => EndpointsPlan::Create(wanted),
    }
}

/// Whether an object is somebody's lock.
pub fn is_lock(endpoints: &Endpoints) -> bool {
    let annotations = endpoints.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(LEADER))
}

fn is_truncated(endpoints: &Endpoints) -> bool {
    let annotations = endpoints.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.get(OVER_CAPACITY).is_some_and(|v| v == "truncated"))
}

/// Whether two lists of subsets mean the same, in whatever order others write them.
fn same(stored: &[EndpointSubset], wanted: &[EndpointSubset]) -> bool {
    stored == wanted || (!is_canonical(stored) && repack(stored.to_vec()) == wanted)
}

/// Whether repacking would change nothing, if that is easy to see.
fn is_canonical(subsets: &[EndpointSubset]) -> bool {
    fn key(address: &EndpointAddress) -> (&str, Option<&str>) {
        (&address.ip, address.target_ref.as_ref().and_then(|target| target.uid.as_deref()))
    }
    let in_order = |list: &Option<Vec<EndpointAddress>>| {
        list.iter().all(|list| list.is_sorted_by(|a, b| key(a) < key(b)))
    };
    let [only] = subsets else { return false };
    let ports = only.ports.as_deref().unwrap_or_default();
    ports.is_sorted_by_key(port_key)
        && in_order(&only.addresses)
        && in_order(&only.not_ready_addresses)
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if desired::is_headless(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(MANAGED_BY.into(), CONTROLLER.into());
    labels
}

/// The one subset of pods that have the same ports, in canonical form, and whether it is cut off.
///
/// This is almost every Service, perhaps of thousands of pods: only what is kept is written out.
fn one_subset(
    service: &Service,
    pods: &[&PodView],
    ports: &PortSet,
) -> (Vec<EndpointSubset>, bool) {
    let (mut ready, mut waiting) = (Vec::new(), Vec::new());
    for (pod, ip, is_ready) in listed(service, pods) {
        let list = if is_ready { &mut ready } else { &mut waiting };
        list.push((ip.to_string(), pod));
    }
    if (ports.is_empty() && !desired::is_headless(service)) || ready.len() + waiting.len() == 0 {
        return (Vec::new(), false);
    }
    let truncated = ready.len() + waiting.len() > CAPACITY;
    let list = |mut all: Vec<(String, &PodView)>, room: usize| {
        all.sort_by(|(ip, pod), (other_ip, other)| {
            ip.cmp(other_ip).then_with(|| pod.metadata.uid.cmp(&other.metadata.uid))
        });
        let kept = all.into_iter().take(room).map(|(ip, pod)| listing(service, pod, ip));
        Some(kept.collect::<Vec<_>>()).filter(|kept| !kept.is_empty())
    };
    let room = CAPACITY.saturating_sub(ready.len());
    let (addresses, not_ready_addresses) = (list(ready, CAPACITY), list(waiting, room));
    let ports = to_ports(ports);
    (vec![EndpointSubset { addresses, not_ready_addresses, ports }], truncated)
}

/// The addresses of the pods by their ports, in canonical form.
fn subsets(service: &Service, pods: &[&PodView]) -> Vec<EndpointSubset> {
    let mut by_ports: BTreeMap<PortSet, EndpointSubset> = BTreeMap::new();
    for (pod, ip, is_ready) in listed(service, pods) {
        let ports = desired::ports(service, pod);
        if ports.is_empty() && !desired::is_headless(service) {
            continue;
        }
        let subset = by_ports.entry(ports).or_default();
        let list = match is_ready {
            true => &mut subset.addresses,
            false => &mut subset.not_ready_addresses,
        };
        list.get_or_insert_default().push(listing(service, pod, ip.to_string()));
    }
    let subsets = by_ports
        .into_iter()
        .map(|(ports, subset)| EndpointSubset { ports: to_ports(&ports), ..subset });
    repack(subsets.collect())
}

/// The pods that are listed at all, at which address, and whether as ready.
fn listed<'a>(
    service: &Service,
    pods: &[&'a PodView],
) -> impl Iterator<Item = (&'a PodView, IpAddr, bool)> {
    let publish_all = desired::publishes_all(service);
    let family = family(service);
    let alive = pods.iter().filter(|pod| !pod.is_finished());
    alive.filter(move |pod| publish_all || !pod.is_terminating()).filter_map(move |pod| {
        let is_v6 = family.or_else(|| pod.addresses.first().map(IpAddr::is_ipv6))?;
        let ip = pod.addresses.iter().find(|address| address.is_ipv6() == is_v6)?;
        Some((*pod, *ip, publish_all || pod.ready))
    })
}

fn listing(service: &Service, pod: &PodView, ip: String) -> EndpointAddress {
    EndpointAddress {
        hostname: desired::hostname(service, pod).map(str::to_owned),
        ip,
        node_name: Some(pod.node.clone()).filter(|name| !name.is_empty()),
        target_ref: Some(desired::target_ref(pod)),
    }
}

fn to_ports(ports: &PortSet) -> Option<Vec<EndpointPort>> {
    let ports = ports.ports().iter().map(|port| EndpointPort {
        app_protocol: port.app_protocol.clone(),
        name: Some(port.name.clone()).filter(|name| !name.is_empty()),
        port: port.port,
        protocol: Some(port.protocol.clone()),
    });
    Some(ports.collect::<Vec<_>>()).filter(|ports| !ports.is_empty())
}

/// Whether the first family of a Service is IPv6; of some, their pods decide.
fn family(service: &Service) -> Option<bool> {
    let spec = service.spec.as_ref()?;
    let first = spec.ip_families.as_ref().and_then(|families| families.first());
    let cluster = spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok());
    match first {
        Some(family) => Some(family == "IPv6"),
        None => cluster.map(|address| address.is_ipv6()),
    }
}

type PortKey = (Option<String>, i32, Option<String>, Option<String>);
type AddressKey = (String, Option<String>);

/// Puts subsets into the one form in which each port is listed once with all its addresses, and
/// ports with the same addresses are together. An address that is both ready and not ready is not.
pub(crate) fn repack(subsets: Vec<EndpointSubset>) -> Vec<EndpointSubset> {
    if let [only] = subsets.as_slice()
        && only.not_ready_addresses.is_none()
    {
        return subsets.into_iter().map(tidy).collect();
    }
    // No port at all is a port of its own, so that its addresses are kept.
    let mut ports: BTreeMap<Option<PortKey>, BTreeMap<AddressKey, bool>> = BTreeMap::new();
    let mut addresses: BTreeMap<AddressKey, EndpointAddress> = BTreeMap::new();
    for subset in subsets {
        let keys = subset
            .ports
            .into_iter()
            .flatten()
            .map(|port| Some((port.name, port.port, port.protocol, port.app_protocol)));
        let mut keys: Vec<_> = keys.collect();
        if keys.is_empty() {
            keys.push(None);
        }
        let ready = subset.addresses.into_iter().flatten().map(|address| (address, true));
        let waiting = subset.not_ready_addresses.into_iter().flatten();
        for (address, is_ready) in ready.chain(waiting.map(|address| (address, false))) {
            let key = address_key(&address);
            for port in &keys {
                let entry = ports.entry(port.clone()).or_default();
                let known = entry.entry(key.clone()).or_insert(is_ready);
                *known &= is_ready;
            }
            addresses.insert(key, address);
        }
    }
    let mut groups: BTreeMap<Vec<(AddressKey, bool)>, Vec<Option<PortKey>>> = BTreeMap::new();
    for (port, set) in ports {
        groups.entry(set.into_iter().collect()).or_default().push(port);
    }
    let mut packed: Vec<_> = groups
        .into_iter()
        .map(|(set, ports)| {
            let pick = |wanted: bool| {
                let picked = set.iter().filter(|(_, ready)| *ready == wanted);
                let picked: Vec<_> = picked.map(|(key, _)| addresses[key].clone()).collect();
                Some(picked).filter(|picked| !picked.is_empty())
            };
            let ports = ports.into_iter().flatten();
            let ports = ports.map(|(name, port, protocol, app_protocol)| EndpointPort {
                app_protocol,
                name,
                port,
                protocol,
            });
            let ports = Some(ports.collect::<Vec<_>>()).filter(|ports| !ports.is_empty());
            EndpointSubset { addresses: pick(true), not_ready_addresses: pick(false), ports }
        })
        .collect();
    packed.sort_by_cached_key(order);
    packed
}

fn address_key(address: &EndpointAddress) -> AddressKey {
    let uid = address.target_ref.as_ref().and_then(|target| target.uid.clone());
    (address.ip.clone(), uid)
}

/// A single subset of ready addresses needs no more than sorting.
fn tidy(mut subset: EndpointSubset) -> EndpointSubset {
    if let Some(addresses) = &mut subset.addresses {
        addresses.sort_by_cached_key(address_key);
        addresses.dedup_by_key(|address| address_key(address));
    }
    if let Some(ports) = &mut subset.ports {
        ports.sort_by_cached_key(port_key);
        ports.dedup_by_key(|port| port_key(port));
    }
    subset
}

fn port_key(port: &EndpointPort) -> PortKey {
    (port.name.clone(), port.port, port.protocol.clone(), port.app_protocol.clone())
}

fn order(subset: &EndpointSubset) -> (Option<PortKey>, Option<String>) {
    let port = subset.ports.iter().flatten().next().map(port_key);
    let waiting = subset.not_ready_addresses.iter().flatten();
    let mut all = subset.addresses.iter().flatten().chain(waiting);
    (port, all.next().map(|address| address.ip.clone()))
}

/// Cuts subsets off at `capacity` addresses, ready ones first; says whether that was necessary.
fn truncate(mut subsets: Vec<EndpointSubset>, capacity: usize) -> (Vec<EndpointSubset>, bool) {
    let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let ready: usize = subsets.iter().map(|subset| count(&subset.addresses)).sum();
    let waiting: usize = subsets.iter().map(|subset| count(&subset.not_ready_addresses)).sum();
    if ready + waiting <= capacity {
        return (subsets, false);
    }
    if ready > capacity {
        share(subsets.iter_mut().map(|s| &mut s.addresses), ready, capacity);
        share(subsets.iter_mut().map(|s| &mut s.not_ready_addresses), waiting, 0);
    } else {
        let room = capacity - ready;
        share(subsets.iter_mut().map(|s| &mut s.not_ready_addresses), waiting, room);
    }
    subsets.retain(|subset| subset.addresses.is_some() || subset.not_ready_addresses.is_some());
    (subsets, true)
}

/// Leaves `room` addresses in all lists together, to each in proportion to its length.
fn share<'a>(
    lists: impl Iterator<Item = &'a mut Option<Vec<EndpointAddress>>>,
    total: usize,
    room: usize,
) {
    let mut left = room;
    for list in lists {
        let length = list.as_ref().map_or(0, Vec::len);
        let part = (length * room).div_ceil(total.max(1)).min(left);
        left -= part;
        if let Some(addresses) = list {
            addresses.truncate(part);
        }
        *list = list.take().filter(|addresses| !addresses.is_empty());
    }
}

#[cfg(test)]
mod tests;
