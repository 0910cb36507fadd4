//! The index of names, kept up to date one object at a time.
//!
//! All slices of a Service are merged whenever one of them changes, and take effect together: an
//! address that moves from one slice to another never disappears in between.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_api::key::ObjectKey;

use crate::name::Name;
use crate::view::{PortView, ServiceKind, ServiceView, SliceView};

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// How long clients may remember answers, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of ClusterIPs, which hardly ever change.
    pub cluster_ip: u32,
    /// Of endpoints, which come and go.
    pub endpoint: u32,
    /// Of names that do not exist.
    pub negative: u32,
    /// Of names that do not exist yet, below a Service that does.
    pub negative_below_service: u32,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { cluster_ip: 30, endpoint: 5, negative: 5, negative_below_service: 1 }
    }
}

/// Everything that can be asked about the cluster.
#[derive(Debug)]
pub struct Zone {
    pub(crate) origin: Name,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) serial: u32,
    pub(crate) synced: bool,
    /// Where this server can be reached, for the zone's own NS record.
    pub(crate) server: Addresses,
    pub(crate) namespaces: BTreeMap<String, Namespace>,
    /// Services by ClusterIP.
    pub(crate) cluster_ips: BTreeMap<IpAddr, BTreeSet<ObjectKey>>,
    /// Services by endpoint.
    pub(crate) endpoint_ips: BTreeMap<IpAddr, BTreeSet<ObjectKey>>,
    /// The Service that each slice was last seen with.
    owners: HashMap<ObjectKey, ObjectKey>,
}

/// A namespace, which exists because it was seen or because a Service is in it.
#[derive(Debug, Default)]
pub(crate) struct Namespace {
    seen: bool,
    pub(crate) services: BTreeMap<String, Entry>,
}

/// What we know about one Service.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// `None` while we know only slices of it.
    pub(crate) service: Option<ServiceView>,
    slices: BTreeMap<String, SliceView>,
    /// What its own name stands for.
    pub(crate) addresses: Addresses,
    /// Its ready endpoints, by the label in front of its name.
    pub(crate) hosts: BTreeMap<String, Host>,
}

/// A ready endpoint, or several that share a host name.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) addresses: Addresses,
    pub(crate) ports: Vec<PortView>,
}

/// Addresses by family, in order, each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) v4: Vec<Ipv4Addr>,
    pub(crate) v6: Vec<Ipv6Addr>,
}

impl Addresses {
    fn insert(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => insert_sorted(&mut self.v4, address),
            IpAddr::V6(address) => insert_sorted(&mut self.v6, address),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.iter().copied().map(IpAddr::V4);
        v4.chain(self.v6.iter().copied().map(IpAddr::V6))
    }
}

impl FromIterator<IpAddr> for Addresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut all = Self::default();
        addresses.into_iter().for_each(|address| all.insert(address));
        all
    }
}

fn insert_sorted<T: Ord>(list: &mut Vec<T>, item: T) {
    if let Err(at) = list.binary_search(&item) {
        list.insert(at, item);
    }
}

impl Zone {
    /// An empty zone. The serial number should be higher than that of any predecessor, for which
    /// the time in seconds will do; `server` is where clients find this server.
    pub fn new(origin: &Name, lifetimes: Lifetimes, serial: u32, server: &[IpAddr]) -> Self {
        Self {
            origin: origin.to_lowercase(),
            lifetimes,
            serial,
            synced: false,
            server: server.iter().copied().collect(),
            namespaces: BTreeMap::new(),
            cluster_ips: BTreeMap::new(),
            endpoint_ips: BTreeMap::new(),
            owners: HashMap::new(),
        }
    }

    /// From now on, what is not here does not exist. Before, nobody can say.
    pub fn set_synced(&mut self) {
        self.synced = true;
    }

    /// Grows with every change.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Takes in that a namespace exists.
    pub fn observe_namespace(&mut self, name: &str) {
        self.namespaces.entry(name.to_owned()).or_default().seen = true;
        self.bump();
    }

    /// Takes in that a namespace is gone.
    pub fn remove_namespace(&mut self, name: &str) {
        if let Some(namespace) = self.namespaces.get_mut(name) {
            namespace.seen = false;
            self.drop_if_empty(name);
            self.bump();
        }
    }

    /// Takes in the newest state of a Service.
    pub fn observe_service(&mut self, service: &Service) {
        let key = key_of(service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
        let view = ServiceView::read(service);
        self.change(&key, |entry| entry.service = view);
    }

    /// Takes in that a Service is gone.
    pub fn remove_service(&mut self, key: &ObjectKey) {
        self.change(key, |entry| entry.service = None);
    }

    /// Takes in the newest state of an EndpointSlice.
    pub fn observe_slice(&mut self, slice: &EndpointSlice) {
        let key = key_of(slice.metadata.namespace.as_deref(), slice.metadata.name.as_deref());
        let labels = slice.metadata.labels.as_ref();
        let Some(service) = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL)) else {
            return self.remove_slice(&key);
        };
        let service = ObjectKey::new(&*key.namespace, service);
        if self.owners.get(&key).is_some_and(|owner| *owner != service) {
            self.remove_slice(&key);
        }
        self.change(&service, |entry| {
            entry.slices.insert(key.name.clone(), SliceView::read(slice));
        });
        self.owners.insert(key, service);
    }

    /// Takes in that an EndpointSlice is gone.
    pub fn remove_slice(&mut self, key: &ObjectKey) {
        if let Some(service) = self.owners.remove(key) {
            self.change(&service, |entry| drop(entry.slices.remove(&key.name)));
        }
    }

    /// Changes one Service and everything that follows from it.
    fn change(&mut self, key: &ObjectKey, edit: impl FnOnce(&mut Entry)) {
        let namespace = self.namespaces.entry(key.namespace.clone()).or_default();
        let mut entry = namespace.services.remove(&key.name).unwrap_or_default();
        unlink(&mut self.cluster_ips, key, entry.cluster_ips());
        unlink(&mut self.endpoint_ips, key, entry.endpoint_ips());
        edit(&mut entry);
        entry.rebuild();
        link(&mut self.cluster_ips, key, entry.cluster_ips());
        link(&mut self.endpoint_ips, key, entry.endpoint_ips());
        if entry.service.is_some() || !entry.slices.is_empty() {
            namespace.services.insert(key.name.clone(), entry);
        }
        self.drop_if_empty(&key.namespace);
        self.bump();
    }

    fn drop_if_empty(&mut self, name: &str) {
        if self.namespaces.get(name).is_some_and(|n| !n.seen && n.services.is_empty()) {
            self.namespaces.remove(name);
        }
    }

    fn bump(&mut self) {
        self.serial = self.serial.wrapping_add(1);
    }
}

impl Namespace {
    /// Slices without a Service do not make a namespace.
    pub(crate) fn exists(&self) -> bool {
        self.seen || self.services.values().any(|entry| entry.service.is_some())
    }
}

impl Entry {
    fn rebuild(&mut self) {
        self.hosts.clear();
        let mut ready = Addresses::default();
        for slice in self.slices.values() {
            for endpoint in &slice.endpoints {
                let host = self.hosts.entry(endpoint.host.clone()).or_default();
                for address in &endpoint.addresses {
                    host.addresses.insert(*address);
                    ready.insert(*address);
                }
                for port in &slice.ports {
                    insert_sorted(&mut host.ports, port.clone());
                }
            }
        }
        self.addresses = match self.service.as_ref().map(|service| &service.kind) {
            Some(ServiceKind::ClusterIps(addresses)) => addresses.iter().copied().collect(),
            Some(ServiceKind::Headless) => ready,
            Some(ServiceKind::External(_)) | None => Addresses::default(),
        };
    }

    fn cluster_ips(&self) -> Vec<IpAddr> {
        match self.service.as_ref().map(|service| &service.kind) {
            Some(ServiceKind::ClusterIps(_)) => self.addresses.iter().collect(),
            _ => Vec::new(),
        }
    }

    fn endpoint_ips(&self) -> Vec<IpAddr> {
        match self.service.as_ref().map(|service| &service.kind) {
            Some(ServiceKind::ClusterIps(_) | ServiceKind::Headless) => {
                self.hosts.values().flat_map(|host| host.addresses.iter()).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn link(
    index: &mut BTreeMap<IpAddr, BTreeSet<ObjectKey>>,
    key: &ObjectKey,
    addresses: Vec<IpAddr>,
) {
    for address in addresses {
        index.entry(address).or_default().insert(key.clone());
    }
}

fn unlink(
    index: &mut BTreeMap<IpAddr, BTreeSet<ObjectKey>>,
    key: &ObjectKey,
    addresses: Vec<IpAddr>,
) {
    for address in addresses {
        if let Some(keys) = index.get_mut(&address) {
            keys.remove(key);
            if keys.is_empty() {
                index.remove(&address);
            }
        }
    }
}

fn key_of(namespace: Option<&str>, name: Option<&str>) -> ObjectKey {
    ObjectKey::new(namespace.unwrap_or_default(), name.unwrap_or_default())
}
