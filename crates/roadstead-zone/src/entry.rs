//! Everything about one Service, merged from all of its slices and never changed afterwards.
//!
//! Addresses are kept as records ready for the wire, with the owner as a pointer to the question,
//! so that an answer is a copy of bytes. An endpoint takes some 40 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::blob::Blob;
use crate::settings::Lifetimes;
use crate::view::{
    Dashed, EndpointView, Port, Protocol, PublicView, ServiceKind, ServiceView, SliceView, undashed,
};

/// The length of an A record with a pointer for its owner.
pub const V4_RECORD: usize = 16;
/// The length of an AAAA record with a pointer for its owner.
pub const V6_RECORD: usize = 28;
/// What every record of ours begins with: a pointer to the name in the question.
const QUESTION: [u8; 2] = [0xc0, 12];

/// Addresses by family, in order, each once, as records for the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRecords {
    /// A records of [`V4_RECORD`] bytes each.
    pub v4: Blob<30>,
    /// AAAA records of [`V6_RECORD`] bytes each.
    pub v6: Blob<30>,
}

impl AddressRecords {
    /// Writes the records.
    pub(crate) fn new(addresses: impl Iterator<Item = IpAddr>, lifetime: u32) -> Self {
        let mut all: Vec<IpAddr> = addresses.collect();
        all.sort_unstable();
        all.dedup();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in all {
            let (records, kind, data): (&mut Vec<u8>, u8, &[u8]) = match &address {
                IpAddr::V4(address) => (&mut v4, 1, &address.octets()),
                IpAddr::V6(address) => (&mut v6, 28, &address.octets()),
            };
            let length = u8::try_from(data.len()).unwrap_or(0);
            records.extend(QUESTION);
            records.extend([0, kind, 0, 1]);
            records.extend(lifetime.to_be_bytes());
            records.extend([0, length]);
            records.extend(data);
        }
        Self { v4: v4.as_slice().into(), v6: v6.as_slice().into() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.v4.len() / V4_RECORD + self.v6.len() / V6_RECORD
    }

    /// The addresses themselves.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self
            .v4
            .chunks_exact(V4_RECORD)
            .filter_map(|record| Some(IpAddr::V4(Ipv4Addr::from(*record.last_chunk::<4>()?))));
        v4.chain(
            self.v6
                .chunks_exact(V6_RECORD)
                .filter_map(|record| Some(IpAddr::V6(Ipv6Addr::from(*record.last_chunk::<16>()?)))),
        )
    }
}

/// What a Service's name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// Only slices of it are known, or its address is still to be allocated.
    Unknown,
    ClusterIp,
    Headless,
    External(Option<crate::name::Name>),
}

/// One Service.
#[derive(Clone, Debug)]
pub(crate) struct ServiceEntry {
    /// The labels of its name and its namespace, in wire form.
    pub key: Blob<46>,
    pub kind: EntryKind,
    /// What its own name stands for.
    pub own: AddressRecords,
    /// The ports it can be asked for: its own, or those of its endpoints if it is headless.
    pub ports: Box<[Port]>,
    /// Ready endpoints, by label and address.
    pub endpoints: Box<[ReadyEndpoint]>,
    /// What SRV records there are; only if it is headless.
    pub pairs: Box<[EndpointPort]>,
    /// What the name of each port stands for, if that is not the same for all of a headless Service.
    by_port: Box<[AddressRecords]>,
    slices: Box<[Slice]>,
    /// Its endpoints by where they run; only if that is part of names.
    zones: Box<[Zonal]>,
    /// What it is in the zone for outsiders, if there is one and it is anything there.
    public: Option<Arc<ServiceEntry>>,
    /// Whether this is what another one is in the zone for outsiders.
    pub outside: bool,
}

/// The part of a headless Service that runs in one zone. It stays when the last endpoint is gone,
/// because there are few zones, and another one may come.
#[derive(Clone, Debug)]
struct Zonal {
    /// Labels in wire form.
    name: Box<[u8]>,
    part: Arc<ServiceEntry>,
}

/// A ready endpoint. Those without a host name come first, by address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadyEndpoint {
    pub host: Option<Box<str>>,
    pub address: IpAddr,
    slice: u16,
    /// Counted from 1; 0 is nowhere.
    zone: u16,
}

/// An endpoint with one of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndpointPort {
    /// The first endpoint with that label.
    pub endpoint: u32,
    pub number: u16,
    /// Which of the entry's ports it is.
    pub port: u16,
}

#[derive(Clone, Debug)]
struct Slice {
    name: Box<str>,
    ports: Arc<[Port]>,
    unready: u32,
}

impl ServiceEntry {
    /// A Service of which nothing is known yet.
    pub(crate) fn new(key: &[u8]) -> Self {
        Self {
            key: key.into(),
            kind: EntryKind::Unknown,
            own: AddressRecords::default(),
            ports: Box::default(),
            endpoints: Box::default(),
            pairs: Box::default(),
            by_port: Box::default(),
            slices: Box::default(),
            zones: Box::default(),
            public: None,
            outside: false,
        }
    }

    /// What it is in the zone for outsiders.
    pub(crate) fn public(&self) -> Option<&Self> {
        self.public.as_deref()
    }

    /// Whether there is nothing left to know.
    pub(crate) fn is_void(&self) -> bool {
        self.kind == EntryKind::Unknown && self.slices.is_empty()
    }

    pub(crate) fn is_headless(&self) -> bool {
        self.kind == EntryKind::Headless
    }

    /// Whether the Service itself exists.
    pub(crate) fn exists(&self) -> bool {
        self.kind != EntryKind::Unknown
    }

    /// Whether a slice of that name is part of it.
    pub(crate) fn has_slice(&self, name: &str) -> bool {
        self.slices.iter().any(|slice| *slice.name == *name)
    }

    /// How many endpoints are not ready.
    pub(crate) fn unready(&self) -> u32 {
        self.slices.iter().map(|slice| slice.unready).sum()
    }

    /// The same with another state of the Service itself. `outside` is the lifetime of answers to
    /// outsiders.
    pub(crate) fn with_service(
        &self,
        view: Option<ServiceView>,
        lifetimes: &Lifetimes,
        outside: u32,
    ) -> Self {
        let mut entry = self.clone();
        entry.public = view.as_ref().and_then(|view| {
            let public = view.public.as_ref()?;
            Some(Arc::new(Self::of_public(&self.key, public, &view.ports, outside)))
        });
        let (kind, ports, addresses) = match view {
            None => (EntryKind::Unknown, Vec::new(), Vec::new()),
            Some(view) => match view.kind {
                ServiceKind::ClusterIps(addresses) => (EntryKind::ClusterIp, view.ports, addresses),
                ServiceKind::Headless => (EntryKind::Headless, Vec::new(), Vec::new()),
                ServiceKind::External(name) => (EntryKind::External(name), Vec::new(), Vec::new()),
            },
        };
        entry.kind = kind;
        entry.ports = ports.into();
        entry.own = AddressRecords::new(addresses.into_iter(), lifetimes.cluster_ip);
        entry.finish(lifetimes);
        entry
    }

    fn of_public(key: &[u8], view: &PublicView, ports: &[Port], lifetime: u32) -> Self {
        let (kind, addresses) = match view {
            PublicView::Addresses(addresses) => (EntryKind::ClusterIp, addresses.as_slice()),
            PublicView::Host(name) => (EntryKind::External(Some(name.clone())), &[][..]),
            PublicView::Endpoints => (EntryKind::Headless, &[][..]),
        };
        let own = AddressRecords::new(addresses.iter().copied(), lifetime);
        Self { kind, own, ports: ports.into(), outside: true, ..Self::new(key) }
    }

    /// The same with another state of one slice.
    pub(crate) fn with_slice(
        &self,
        name: &str,
        view: Option<SliceView>,
        lifetimes: &Lifetimes,
    ) -> Self {
        let mut entry = self.clone();
        let mut slices = std::mem::take(&mut entry.slices).into_vec();
        let mut endpoints = std::mem::take(&mut entry.endpoints).into_vec();
        if let Some(at) = slices.iter().position(|slice| *slice.name == *name) {
            // The last one takes the place of the one that goes.
            let (at, last) = (number(at), number(slices.len() - 1));
            endpoints.retain(|endpoint| endpoint.slice != at);
            slices.swap_remove(usize::from(at));
            for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.slice == last) {
                endpoint.slice = at;
            }
        }
        if let Some(view) = view {
            let slice = number(slices.len());
            let unready = u32::try_from(view.unready).unwrap_or(u32::MAX);
            let same = slices.iter().find(|slice| *slice.ports == *view.ports);
            let ports = same.map_or_else(|| view.ports.into(), |slice| slice.ports.clone());
            slices.push(Slice { name: name.into(), ports, unready });
            for EndpointView { host, address, zone } in view.endpoints {
                let zone = zone.map_or(0, |zone| entry.zone_number(zone));
                endpoints.push(ReadyEndpoint { host, address, slice, zone });
            }
        }
        share_labels(&mut endpoints);
        endpoints.sort_unstable();
        entry.slices = slices.into();
        entry.endpoints = endpoints.into();
        entry.finish(lifetimes);
        entry
    }

    /// The same with other lifetimes.
    pub(crate) fn with_lifetimes(&self, lifetimes: &Lifetimes) -> Self {
        let mut entry = self.clone();
        entry.own = AddressRecords::new(self.own.iter(), lifetimes.cluster_ip);
        entry.finish(lifetimes);
        entry
    }

    /// What follows from the endpoints.
    fn finish(&mut self, lifetimes: &Lifetimes) {
        self.pairs = Box::default();
        self.by_port = Box::default();
        if self.public().is_some_and(Self::is_headless) {
            let mut public = Self {
                kind: EntryKind::Headless,
                endpoints: self.endpoints.clone(),
                slices: self.slices.clone(),
                outside: true,
                ..Self::new(&self.key)
            };
            public.finish(lifetimes);
            self.public = Some(Arc::new(public));
        }
        if self.kind != EntryKind::Headless {
            return;
        }
        let addresses = self.endpoints.iter().map(|endpoint| endpoint.address);
        self.own = AddressRecords::new(addresses, lifetimes.endpoint);
        let mut ports: Vec<Port> =
            self.used_slices().flat_map(|slice| slice.ports.to_vec()).collect();
        ports.sort_unstable();
        ports.dedup_by(|a, b| a.name == b.name && a.protocol == b.protocol);
        let same = |a: &Port, b: &Port| a.name == b.name && a.protocol == b.protocol;
        let mut pairs = Vec::new();
        let mut first = 0;
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            if !endpoint.shares_label(&self.endpoints[first]) {
                first = at;
            }
            for port in self.slices[usize::from(endpoint.slice)].ports.iter() {
                let known = ports.iter().position(|known| same(known, port)).unwrap_or(0);
                let endpoint = u32::try_from(first).unwrap_or(u32::MAX);
                pairs.push(EndpointPort { endpoint, number: port.number, port: number(known) });
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        self.ports = ports.into();
        self.pairs = pairs.into();
        self.by_port = self.addresses_by_port(lifetimes);
        let mut zones = std::mem::take(&mut self.zones);
        for (at, zone) in zones.iter_mut().enumerate() {
            zone.part = Arc::new(self.part(number(at + 1), lifetimes));
        }
        self.zones = zones;
    }

    /// The addresses of the endpoints that have each port; nothing if all have all.
    fn addresses_by_port(&self, lifetimes: &Lifetimes) -> Box<[AddressRecords]> {
        let has = |slice: &Slice, port: &Port| {
            let same = |own: &Port| own.name == port.name && own.protocol == port.protocol;
            slice.ports.iter().any(same)
        };
        if self.used_slices().all(|slice| self.ports.iter().all(|port| has(slice, port))) {
            return Box::default();
        }
        let of_port = |port: &Port| {
            let serves = |one: &&ReadyEndpoint| has(&self.slices[usize::from(one.slice)], port);
            let endpoints = self.endpoints.iter().filter(serves);
            AddressRecords::new(endpoints.map(|one| one.address), lifetimes.endpoint)
        };
        self.ports.iter().map(of_port).collect()
    }

    /// What the name of one of its ports stands for.
    pub(crate) fn at_port(&self, port: usize) -> &AddressRecords {
        self.by_port.get(port).unwrap_or(&self.own)
    }

    /// The slices with ready endpoints; a port that only the others have leads nowhere.
    fn used_slices(&self) -> impl Iterator<Item = &Slice> {
        let mut used = vec![false; self.slices.len()];
        for endpoint in &self.endpoints {
            used[usize::from(endpoint.slice)] = true;
        }
        self.slices.iter().zip(used).filter_map(|(slice, used)| used.then_some(slice))
    }

    /// The same with only those endpoints that are in a zone.
    fn part(&self, zone: u16, lifetimes: &Lifetimes) -> Self {
        let here = self.endpoints.iter().filter(|endpoint| endpoint.zone == zone);
        let mut part = Self {
            kind: EntryKind::Headless,
            endpoints: here.cloned().collect(),
            slices: self.slices.clone(),
            ..Self::new(&self.key)
        };
        part.finish(lifetimes);
        part
    }

    /// The number of a zone, which is new perhaps.
    fn zone_number(&mut self, name: Box<[u8]>) -> u16 {
        let known = self.zones.iter().position(|zone| zone.name == name);
        let at = known.unwrap_or_else(|| {
            let part = Arc::new(Self::new(&self.key));
            let new = std::iter::once(Zonal { name, part });
            self.zones = std::mem::take(&mut self.zones).into_iter().chain(new).collect();
            self.zones.len() - 1
        });
        number(at + 1)
    }

    /// What runs in a zone, whose name is labels in wire form; `None` if nothing does.
    pub(crate) fn in_zone(&self, name: &[u8]) -> Option<&Self> {
        let zone = self.zones.iter().find(|zone| *zone.name == *name)?;
        Some(zone.part.as_ref()).filter(|part| !part.endpoints.is_empty())
    }

    /// The endpoints with a label; empty if there are none.
    pub(crate) fn host(&self, label: &[u8]) -> &[ReadyEndpoint] {
        let unnamed = self.endpoints.partition_point(|endpoint| endpoint.host.is_none());
        let (unnamed, named) = self.endpoints.split_at(unnamed);
        let name = |endpoint: &ReadyEndpoint| {
            endpoint.host.as_deref().unwrap_or_default().as_bytes() < label
        };
        let from = named.partition_point(name);
        let rest = &named[from..];
        let count = rest.iter().take_while(|e| e.host.as_deref().map(str::as_bytes) == Some(label));
        let found = &rest[..count.count()];
        if !found.is_empty() {
            return found;
        }
        let Some(address) = undashed(label) else { return &[] };
        if Dashed::new(address).bytes() != label {
            return &[];
        }
        let from = unnamed.partition_point(|endpoint| endpoint.address < address);
        let count = unnamed[from..].iter().take_while(|endpoint| endpoint.address == address);
        &unnamed[from..from + count.count()]
    }

    /// The endpoints from this one on that share its label.
    pub(crate) fn group(&self, first: usize) -> &[ReadyEndpoint] {
        let rest = &self.endpoints[first..];
        let count = rest.iter().take_while(|endpoint| endpoint.shares_label(&rest[0])).count();
        &rest[..count]
    }

    /// Finds the port `_name._protocol`.
    pub(crate) fn port(&self, name: &[u8], protocol: &[u8]) -> Option<usize> {
        let same = |port: &Port| *port.name.as_bytes() == *name && is(protocol, port.protocol);
        self.ports.iter().position(same)
    }

    /// Whether there is any named port of that protocol.
    pub(crate) fn has_protocol(&self, protocol: &[u8]) -> bool {
        self.ports.iter().any(|port| !port.name.is_empty() && is(protocol, port.protocol))
    }
}

impl ReadyEndpoint {
    /// Whether both have the same name.
    pub(crate) fn shares_label(&self, other: &Self) -> bool {
        match (&self.host, &other.host) {
            (None, None) => self.address == other.address,
            (one, two) => one == two,
        }
    }
}

/// An endpoint may be called what another one is called by its address. Then both have that name, and
/// it is written once.
fn share_labels(endpoints: &mut [ReadyEndpoint]) {
    let looks_like = |endpoint: &ReadyEndpoint| {
        let host = endpoint.host.as_deref()?.as_bytes();
        undashed(host).filter(|address| Dashed::new(*address).bytes() == host)
    };
    let mut claimed = Vec::new();
    for endpoint in endpoints.iter_mut() {
        match looks_like(endpoint) {
            Some(address) if address == endpoint.address => endpoint.host = None,
            Some(address) => claimed.push(address),
            None => {}
        }
    }
    if claimed.is_empty() {
        return;
    }
    for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.host.is_none()) {
        if claimed.contains(&endpoint.address) {
            let label = Dashed::new(endpoint.address);
            endpoint.host = str::from_utf8(label.bytes()).ok().map(Box::from);
        }
    }
}

fn is(label: &[u8], protocol: Protocol) -> bool {
    *protocol.label().as_bytes() == *label
}

/// Slices and ports of one Service are counted in 16 bits; beyond that they share a number.
fn number(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}
