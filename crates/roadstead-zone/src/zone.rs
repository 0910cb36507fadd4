//! The index of names: an immutable `Zone` to answer from, and its `Keeper`, which takes objects
//! in one at a time and hands out the next zone.
//!
//! Zones share all that did not change, so the next one costs as much as the change. All slices
//! of a Service are merged whenever one of them changes, and take effect together: an address that
//! moves from one slice to another never disappears in between.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_api::key::ObjectKey;

use crate::address_names::AddressNames;
use crate::entry::{AddressRecords, EntryKind, ServiceEntry};
use crate::index::Index;
use crate::name::Name;
use crate::prefixes::Prefix;
use crate::seed::Seed;
use crate::settings::{Lifetimes, Namespaces, ZoneSettings};
use crate::view::{ServiceView, SliceView};

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Everything that can be asked about the cluster at one moment.
#[derive(Clone, Debug)]
pub struct Zone {
    pub(crate) settings: Arc<ZoneSettings>,
    /// `svc` in the zone: what all names of Services end in.
    suffix: Arc<[u8]>,
    /// Where this server can be reached, if that was said.
    server: Arc<AddressRecords>,
    pub(crate) serial: u32,
    pub(crate) synced: bool,
    seed: Seed,
    services: Index<Arc<ServiceEntry>, 16>,
    namespaces: Index<Arc<NamespaceEntry>>,
    /// Hashes of Services by their addresses, and by their name alone.
    by_address: AddressNames,
    by_name: Index<u64>,
    pods: Index<(IpAddr, Arc<[u8]>)>,
}

/// A namespace, which exists because it was seen or because a Service is in it.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceEntry {
    /// In wire form.
    pub label: Box<[u8]>,
    seen: bool,
    listed: bool,
    services: u32,
}

impl Zone {
    fn new(settings: ZoneSettings, serial: u32, seed: Seed) -> Self {
        let server = server(&settings);
        Self {
            suffix: suffix(&settings.origin),
            settings: Arc::new(settings),
            server: Arc::new(server),
            serial,
            synced: false,
            seed,
            services: Index::default(),
            namespaces: Index::default(),
            by_address: AddressNames::default(),
            by_name: Index::default(),
            pods: Index::default(),
        }
    }

    /// Grows with every change.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Whether everything has been listed.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// What the names of Services end in, in wire form: those for outsiders, or all others.
    pub fn suffix(&self, outside: bool) -> &[u8] {
        match self.settings.outside.as_ref().filter(|_| outside) {
            Some(outside) => outside.origin.wire(),
            None => &self.suffix,
        }
    }

    /// What the operator chose.
    pub fn settings(&self) -> &ZoneSettings {
        &self.settings
    }

    /// Finds a Service by the wire form of its name and namespace.
    pub(crate) fn entry(&self, key: &[u8]) -> Option<&Arc<ServiceEntry>> {
        self.services.get(self.hash(key)).find(|entry| *entry.key == *key)
    }

    /// Finds a namespace that exists, by its label in wire form.
    pub(crate) fn namespace(&self, label: &[u8]) -> Option<&NamespaceEntry> {
        let mut found = self.namespaces.get(self.hash(label));
        found
            .find(|namespace| *namespace.label == *label)
            .map(Arc::as_ref)
            .filter(|n| self.counts(n))
    }

    fn counts(&self, namespace: &NamespaceEntry) -> bool {
        let some = namespace.services > 0 && self.settings.namespaces != Namespaces::Seen;
        namespace.listed && (namespace.seen || some)
    }

    /// The Services that have an address as their ClusterIP.
    pub(crate) fn with_cluster_ip(&self, address: IpAddr) -> impl Iterator<Item = &ServiceEntry> {
        self.resolve(self.by_address.of_cluster_ip(self.hash(&address)))
            .filter(move |entry| entry.own.iter().any(|own| own == address))
    }

    /// The Services that have an endpoint with an address.
    pub(crate) fn with_endpoint(&self, address: IpAddr) -> impl Iterator<Item = &ServiceEntry> {
        self.resolve(self.by_address.of_endpoint(self.hash(&address)))
    }

    /// Whether an address that begins so may have a name.
    pub(crate) fn has_prefix(&self, prefix: Prefix) -> bool {
        self.by_address.has_prefix(&self.seed, prefix)
    }

    /// The Service through which clients reach this server: the one that was said, the one that has us
    /// as an endpoint, or the one that is usual.
    pub(crate) fn own_service(&self) -> Option<&ServiceEntry> {
        const USUAL: &[u8] = b"\x08kube-dns\x0bkube-system";
        let ZoneSettings { servers, local, .. } = &*self.settings;
        if !servers.is_empty() {
            return servers.iter().flat_map(|address| self.with_cluster_ip(*address)).next();
        }
        let with_us = local.iter().flat_map(|address| self.with_endpoint(*address));
        let usual = self.entry(USUAL).map(Arc::as_ref);
        // On the network of a node our address is also that of others.
        let is_dns = |entry: &&ServiceEntry| entry.ports.iter().any(|port| port.number == 53);
        with_us.filter(is_dns).chain(usual).find(|entry| entry.kind == EntryKind::ClusterIp)
    }

    /// Where clients reach this server.
    pub(crate) fn own_addresses(&self) -> &AddressRecords {
        match self.own_service().filter(|_| self.settings.servers.is_empty()) {
            Some(entry) => &entry.own,
            None => &self.server,
        }
    }

    /// The same, for the records about it.
    pub fn servers(&self) -> impl Iterator<Item = IpAddr> {
        self.own_addresses().iter()
    }

    /// Whether an endpoint of any Service has that address.
    pub fn has_endpoint(&self, address: IpAddr) -> bool {
        self.with_endpoint(address).next().is_some()
    }

    /// The Services of that name, in wire form, whatever their namespace.
    pub(crate) fn named<'a>(&'a self, label: &'a [u8]) -> impl Iterator<Item = &'a ServiceEntry> {
        self.resolve(self.by_name.get(self.hash(label)))
            .filter(move |entry| entry.key.starts_with(label))
    }

    fn resolve<'a>(
        &'a self,
        hashes: impl Iterator<Item = &'a u64>,
    ) -> impl Iterator<Item = &'a ServiceEntry> {
        let entries = hashes.flat_map(|hash| self.services.get(*hash)).map(Arc::as_ref);
        entries.filter(|entry| entry.exists() && self.namespace(namespace_of(&entry.key)).is_some())
    }

    /// All Services that can be asked for, in no order.
    pub(crate) fn existing(&self) -> impl Iterator<Item = &ServiceEntry> {
        let all = self.services.iter().map(Arc::as_ref).filter(|entry| entry.exists());
        all.filter(|entry| self.namespace(namespace_of(&entry.key)).is_some())
    }

    /// Whether a pod in that namespace, in wire form, has that address.
    pub(crate) fn has_pod(&self, address: IpAddr, namespace: &[u8]) -> bool {
        let mut found = self.pods.get(self.hash(&address));
        found.any(|(known, place)| *known == address && **place == *namespace)
    }

    fn hash<T: std::hash::Hash + ?Sized>(&self, value: &T) -> u64 {
        self.seed.hash(value)
    }
}

/// Where this server is to be found if no Service leads to it: where that was said, or else on this
/// machine.
fn server(settings: &ZoneSettings) -> AddressRecords {
    let ZoneSettings { servers, local, lifetimes, .. } = settings;
    let local = local.iter().filter(|address| servers.is_empty() && !address.is_loopback());
    AddressRecords::new(servers.iter().chain(local).copied(), lifetimes.cluster_ip)
}

/// The second label of a key.
pub(crate) fn namespace_of(key: &[u8]) -> &[u8] {
    let first = key.first().map_or(0, |length| usize::from(*length) + 1);
    key.get(first..).unwrap_or_default()
}

/// The first label of a key.
pub(crate) fn name_of(key: &[u8]) -> &[u8] {
    let first = key.first().map_or(0, |length| usize::from(*length) + 1);
    key.get(..first).unwrap_or_default()
}

/// A label without its length, for people.
pub(crate) fn text(label: &[u8]) -> &str {
    str::from_utf8(label).unwrap_or("?")
}

/// Takes objects in, and hands out zones.
#[derive(Debug)]
pub struct Keeper {
    zone: Zone,
    /// Hashes of the Services that slices were last seen with, by a hash of the slice's key.
    owners: Index<u64>,
    /// Whether the zone has changed since it got its number.
    owes: bool,
}

/// Whether a zone has the number that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbered {
    /// It has.
    Now,
    /// It gets another as soon as the second is over.
    Later,
}

impl Keeper {
    /// An empty zone. The serial number should be higher than that of any predecessor, for which
    /// the time in seconds will do: none was ever ahead of it.
    pub fn new(settings: ZoneSettings, serial: u32, seed: Seed) -> Self {
        Self { zone: Zone::new(settings, serial, seed), owners: Index::default(), owes: false }
    }

    /// What would be answered from now.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The zone as it is now, for ever.
    pub fn snapshot(&self) -> Arc<Zone> {
        Arc::new(self.zone.clone())
    }

    /// From now on, what is not here does not exist. Before, nobody can say.
    pub fn set_synced(&mut self) {
        self.zone.synced = true;
        self.bump();
    }

    /// Gives the zone its number, if it is not as it was when it had the number `last`: the time in
    /// seconds, and never more, so that it does not fall when a server starts again. Returns whether
    /// the zone has that number already though it has changed: then it must get another in the next
    /// second. What is listed at the start is no change.
    pub fn number(&mut self, last: u32, now: u32) -> Numbered {
        // As RFC 1982 compares them.
        let is_later = (1..1 << 31).contains(&now.wrapping_sub(last));
        let changed = self.zone.synced && (self.owes || self.zone.serial != last);
        self.owes = changed && !is_later;
        self.zone.serial = if changed && is_later { now } else { last };
        if self.owes { Numbered::Later } else { Numbered::Now }
    }

    /// Takes in other settings. The names of endpoints follow only when their slices are seen
    /// again.
    pub fn configure(&mut self, settings: ZoneSettings) {
        let zone = &mut self.zone;
        let entries: Vec<_> = zone.services.iter().cloned().collect();
        for entry in entries {
            let hash = zone.hash(&*entry.key);
            let new = Arc::new(entry.with_lifetimes(&settings.lifetimes));
            zone.services.insert(hash, new, |known| known.key == entry.key);
        }
        let namespaces: Vec<_> = zone.namespaces.iter().cloned().collect();
        zone.server = Arc::new(server(&settings));
        zone.suffix = suffix(&settings.origin);
        zone.settings = Arc::new(settings);
        for namespace in namespaces {
            self.edit_namespace(&namespace.label, |_| {});
        }
        self.bump();
    }

    /// Takes in that a namespace exists.
    pub fn observe_namespace(&mut self, name: &str) {
        if let Some(label) = wire_label(name) {
            self.edit_namespace(&label, |namespace| namespace.seen = true);
            self.bump();
        }
    }

    /// Takes in that a namespace is gone.
    pub fn remove_namespace(&mut self, name: &str) {
        if let Some(label) = wire_label(name) {
            self.edit_namespace(&label, |namespace| namespace.seen = false);
            self.bump();
        }
    }

    /// Takes in the newest state of a Service.
    pub fn observe_service(&mut self, service: &Service) {
        let key = key_of(service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
        let view = ServiceView::read(service, &self.zone.settings);
        let outside = self.zone.settings.outside.as_ref().map_or(0, |outside| outside.lifetime);
        self.change(&key.namespace, &key.name, |entry, lifetimes| {
            entry.with_service(view, lifetimes, outside)
        });
    }

    /// Takes in that a Service is gone.
    pub fn remove_service(&mut self, key: &ObjectKey) {
        self.change(&key.namespace, &key.name, |entry, lifetimes| {
            entry.with_service(None, lifetimes, 0)
        });
    }

    /// Takes in the newest state of an EndpointSlice.
    pub fn observe_slice(&mut self, slice: &EndpointSlice) {
        let key = key_of(slice.metadata.namespace.as_deref(), slice.metadata.name.as_deref());
        let labels = slice.metadata.labels.as_ref();
        let Some(service) = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL)) else {
            return self.remove_slice(&key);
        };
        if self.owner(&key).is_some_and(|entry| !is(name_of(&entry.key), service)) {
            self.remove_slice(&key);
        }
        let view = SliceView::read(slice, &self.zone.settings);
        let Some(owner) = self.change(&key.namespace, service, |entry, lifetimes| {
            entry.with_slice(&key.name, Some(view), lifetimes)
        }) else {
            return;
        };
        self.owners.insert(self.zone.hash(&key), owner, |known| *known == owner);
    }

    /// Takes in that an EndpointSlice is gone.
    pub fn remove_slice(&mut self, key: &ObjectKey) {
        let Some(entry) = self.owner(key) else { return };
        let service = text(&name_of(&entry.key)[1..]).to_owned();
        let owner = self.change(&key.namespace, &service, |entry, lifetimes| {
            entry.with_slice(&key.name, None, lifetimes)
        });
        self.owners.remove(self.zone.hash(key), |known| Some(*known) == owner);
    }

    /// The Service that a slice was last seen with.
    fn owner(&self, key: &ObjectKey) -> Option<&ServiceEntry> {
        let owners = self.owners.get(self.zone.hash(key));
        let mut entries = owners.flat_map(|hash| self.zone.services.get(*hash));
        let here = |entry: &ServiceEntry| is(namespace_of(&entry.key), &key.namespace);
        entries.find(|entry| here(entry) && entry.has_slice(&key.name)).map(Arc::as_ref)
    }

    /// Takes in that a pod has that address; only useful for [`PodNames::Verified`].
    pub fn observe_pod(&mut self, namespace: &str, address: IpAddr) {
        let Some(label) = wire_label(namespace) else { return };
        let hash = self.zone.hash(&address);
        let pod = (address, Arc::from(label));
        self.zone.pods.insert(hash, pod.clone(), |known| *known == pod);
        self.bump();
    }

    /// Takes in that no pod in that namespace has that address any more.
    pub fn remove_pod(&mut self, namespace: &str, address: IpAddr) {
        let Some(label) = wire_label(namespace) else { return };
        let hash = self.zone.hash(&address);
        self.zone.pods.remove(hash, |(known, place)| *known == address && **place == *label);
        self.bump();
    }

    /// Changes one Service and everything that follows from it; returns the hash of its key. What does
    /// not fit into a label can have no name, so nothing is kept of it.
    fn change(
        &mut self,
        namespace: &str,
        name: &str,
        edit: impl FnOnce(&ServiceEntry, &Lifetimes) -> ServiceEntry,
    ) -> Option<u64> {
        let (mut key, label) = (wire_label(name)?, wire_label(namespace)?);
        let name = key.clone();
        key.extend(&label);
        let zone = &mut self.zone;
        let hash = zone.hash(&*key);
        let old = zone.entry(&key).cloned();
        let old = old.unwrap_or_else(|| Arc::new(ServiceEntry::new(&key)));
        let new = Arc::new(edit(&old, &zone.settings.lifetimes));
        zone.by_address.relink(&zone.seed, hash, [&old, &new]);
        let (was, is) = (old.exists(), new.exists());
        let by_name = zone.hash(&*name);
        match (was, is) {
            (false, true) => zone.by_name.insert(by_name, hash, |known| *known == hash),
            (true, false) => zone.by_name.remove(by_name, |known| *known == hash),
            _ => {}
        }
        if new.is_void() {
            zone.services.remove(hash, |known| known.key == new.key);
        } else {
            zone.services.insert(hash, new.clone(), |known| known.key == new.key);
        }
        if was != is {
            self.edit_namespace(&label, |namespace| {
                namespace.services =
                    namespace.services.saturating_add_signed(if is { 1 } else { -1 });
            });
        }
        self.bump();
        Some(hash)
    }

    fn edit_namespace(&mut self, label: &[u8], edit: impl FnOnce(&mut NamespaceEntry)) {
        let zone = &mut self.zone;
        let hash = zone.hash(label);
        let same = |known: &Arc<NamespaceEntry>| *known.label == *label;
        let old = zone.namespaces.get(hash).find(|known| same(known));
        let mut namespace = old.map_or_else(
            || NamespaceEntry { label: label.into(), seen: false, listed: true, services: 0 },
            |old| NamespaceEntry::clone(old),
        );
        edit(&mut namespace);
        namespace.listed = match &zone.settings.namespaces {
            Namespaces::Listed(names) => names.contains(text(&label[1..])),
            Namespaces::All | Namespaces::Seen => true,
        };
        if namespace.seen || namespace.services > 0 {
            zone.namespaces.insert(hash, Arc::new(namespace), same);
        } else {
            zone.namespaces.remove(hash, same);
        }
    }

    fn bump(&mut self) {
        self.zone.serial = self.zone.serial.wrapping_add(1);
    }
}

fn suffix(origin: &Name) -> Arc<[u8]> {
    [b"\x03svc", origin.wire()].concat().into()
}

/// Whether a label in wire form is that text, whatever the case of its letters.
fn is(label: &[u8], name: &str) -> bool {
    label[1..].eq_ignore_ascii_case(name.as_bytes())
}

/// A label in wire form and small letters.
fn wire_label(name: &str) -> Option<Vec<u8>> {
    let length = u8::try_from(name.len()).ok().filter(|length| (1..=63).contains(length))?;
    let mut label = Vec::with_capacity(name.len() + 1);
    label.push(length);
    label.extend(name.to_ascii_lowercase().as_bytes());
    Some(label)
}

fn key_of(namespace: Option<&str>, name: Option<&str>) -> ObjectKey {
    ObjectKey::new(namespace.unwrap_or_default(), name.unwrap_or_default())
}
