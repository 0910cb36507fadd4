//! The records of an answer: borrowed from the zone, and listed without allocating.

use std::net::IpAddr;

use crate::entry::{AddressRecords, ReadyEndpoint, ServiceEntry};
use crate::record_type::RecordType;
use crate::zone::Zone;

/// Records of one type.
#[derive(Debug)]
pub enum Records<'a> {
    /// A records for the wire, of [`crate::entry::V4_RECORD`] bytes each.
    V4(&'a [u8]),
    /// AAAA records for the wire, of [`crate::entry::V6_RECORD`] bytes each.
    V6(&'a [u8]),
    /// The A records of an endpoint.
    HostV4(Host<'a>),
    /// The AAAA records of an endpoint.
    HostV6(Host<'a>),
    /// A single A or AAAA record.
    One(IpAddr),
    /// SRV records, to be followed by the addresses of their targets.
    Services(ServiceRecords<'a>),
    /// PTR records.
    Pointers(PointerRecords<'a>),
    /// The alias itself was asked for, and is in the list of aliases.
    Alias,
    /// The SOA record.
    Soa,
    /// The NS record: the Service that leads to this server, or `ns.dns` in the zone.
    Ns(Option<RecordTarget<'a>>),
    /// The same of a zone of addresses: `ns.dns` is in the cluster's zone then.
    NsOfAddresses(Option<RecordTarget<'a>>),
    /// The version of the DNS specification.
    Version,
}

/// The first label of an endpoint's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLabel<'a> {
    /// None: it is the Service itself.
    Service,
    /// A host name.
    Name(&'a str),
    /// An address, to be written with dashes.
    Address(IpAddr),
}

impl<'a> HostLabel<'a> {
    pub(crate) fn of(endpoint: &'a ReadyEndpoint) -> Self {
        endpoint.host.as_deref().map_or(HostLabel::Address(endpoint.address), HostLabel::Name)
    }
}

/// A name in the zone: `host.service.namespace.svc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTarget<'a> {
    /// The endpoint, or the Service itself.
    pub host: HostLabel<'a>,
    /// The labels of the Service and its namespace, in wire form.
    pub key: &'a [u8],
}

/// The endpoints behind one name.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    pub(crate) endpoints: &'a [ReadyEndpoint],
}

impl<'a> Host<'a> {
    /// Their addresses, each once.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        let all = self.endpoints.iter().enumerate();
        let endpoints = self.endpoints;
        let fresh = move |(at, endpoint): &(usize, &ReadyEndpoint)| {
            *at == 0 || endpoints[at - 1].address != endpoint.address
        };
        all.filter(fresh).map(|(_, endpoint)| endpoint.address)
    }

    pub(crate) fn has(&self, kind: RecordType) -> bool {
        self.endpoints.iter().any(|endpoint| match kind {
            RecordType::A => endpoint.address.is_ipv4(),
            RecordType::Aaaa => endpoint.address.is_ipv6(),
            _ => false,
        })
    }
}

/// One SRV record.
#[derive(Debug)]
pub struct ServiceRecord<'a> {
    /// The port.
    pub port: u16,
    /// Shares add up to about a hundred.
    pub weight: u16,
    /// Who serves it.
    pub target: RecordTarget<'a>,
}

/// A target of SRV records, with its addresses.
#[derive(Debug)]
pub enum Glue<'a> {
    /// The Service's own.
    Own(RecordTarget<'a>, &'a AddressRecords),
    /// An endpoint's.
    Host(RecordTarget<'a>, Host<'a>),
}

/// The SRV records of a Service, of one port or of all.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRecords<'a> {
    pub(crate) entry: &'a ServiceEntry,
    /// Which of its ports.
    pub(crate) only: Option<usize>,
}

impl<'a> ServiceRecords<'a> {
    /// Whether their names are in the zone for outsiders.
    pub fn is_outside(&self) -> bool {
        self.entry.outside
    }

    /// The records.
    pub fn iter(&self) -> impl Iterator<Item = ServiceRecord<'a>> + use<'a> {
        let weight = self.weight();
        let entry = self.entry;
        let hosts =
            self.of_hosts().map(move |(at, port)| (HostLabel::of(&entry.endpoints[at]), port));
        self.own().chain(hosts).map(move |(host, port)| ServiceRecord {
            port,
            weight,
            target: RecordTarget { host, key: &entry.key },
        })
    }

    /// The addresses of everybody whom the records name, in the order of the records, and how many of
    /// these name each.
    pub fn glue(&self) -> impl Iterator<Item = (Glue<'a>, usize)> + use<'a> {
        let entry = self.entry;
        let target = move |host| RecordTarget { host, key: &entry.key };
        let own = Some(self.own().count()).filter(|count| *count > 0);
        let own = own.map(|count| (Glue::Own(target(HostLabel::Service), &entry.own), count));
        let mut named = self.of_hosts().peekable();
        let hosts = std::iter::from_fn(move || {
            let (first, _) = named.next()?;
            let mut count = 1;
            while named.next_if(|(at, _)| *at == first).is_some() {
                count += 1;
            }
            let endpoints = entry.group(first);
            let label = HostLabel::of(endpoints.first()?);
            Some((Glue::Host(target(label), Host { endpoints }), count))
        });
        own.into_iter().chain(hosts)
    }

    /// All endpoints by label, whether the records name them or not.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (RecordTarget<'a>, Host<'a>)> + use<'a> {
        let entry = self.entry;
        let mut at = 0;
        std::iter::from_fn(move || {
            let endpoints = (at < entry.endpoints.len()).then(|| entry.group(at))?;
            at += endpoints.len();
            let host = HostLabel::of(endpoints.first()?);
            Some((RecordTarget { host, key: &entry.key }, Host { endpoints }))
        })
    }

    /// A hundred, shared by every address with every port.
    fn weight(&self) -> u16 {
        let entry = self.entry;
        let count = if entry.is_headless() {
            self.of_hosts().count()
        } else {
            self.own().count() * entry.own.len()
        };
        u16::try_from(100 / count.max(1)).unwrap_or(0).max(1)
    }

    fn own(&self) -> impl Iterator<Item = (HostLabel<'a>, u16)> + use<'a> {
        let Self { entry, only } = *self;
        let all = entry.ports.iter().enumerate().filter(move |_| !entry.is_headless());
        let fresh = move |number| move |port: &crate::view::Port| port.number != number;
        all.filter(move |(at, port)| match only {
            Some(only) => only == *at,
            // The same port over two protocols is one record.
            None => entry.ports[..*at].iter().all(fresh(port.number)),
        })
        .map(|(_, port)| (HostLabel::Service, port.number))
    }

    /// Endpoints by their place, the first one with each label, and ports.
    fn of_hosts(&self) -> impl Iterator<Item = (usize, u16)> + use<'a> {
        let Self { entry, only } = *self;
        let all = entry.pairs.iter().enumerate();
        all.filter(move |(at, pair)| match only {
            Some(only) => only == usize::from(pair.port),
            None => {
                let before = at.checked_sub(1).map(|before| entry.pairs[before]);
                before.is_none_or(|b| (b.endpoint, b.number) != (pair.endpoint, pair.number))
            }
        })
        .filter_map(|(_, pair)| {
            let at = usize::try_from(pair.endpoint).ok()?;
            (at < entry.endpoints.len()).then_some((at, pair.number))
        })
    }
}

/// The names of an address.
#[derive(Clone, Copy, Debug)]
pub struct PointerRecords<'a> {
    pub(crate) zone: &'a Zone,
    pub(crate) address: IpAddr,
}

impl<'a> PointerRecords<'a> {
    /// The Service that has it as its ClusterIP, or else every Service with such an endpoint.
    pub fn iter(&self) -> impl Iterator<Item = RecordTarget<'a>> + use<'a> {
        let Self { zone, address } = *self;
        let own = zone.with_cluster_ip(address).next();
        let own = own.map(|entry| RecordTarget { host: HostLabel::Service, key: &entry.key });
        let others = zone.with_endpoint(address).filter(move |_| own.is_none());
        own.into_iter().chain(others.flat_map(move |entry| {
            let here =
                entry.endpoints.iter().enumerate().filter(move |(_, e)| e.address == address);
            // The same endpoint may be in two slices.
            let fresh = here.filter(|(at, e)| {
                *at == 0 || {
                    let before = &entry.endpoints[at - 1];
                    !(before.shares_label(e) && before.address == e.address)
                }
            });
            fresh.map(|(_, e)| RecordTarget { host: HostLabel::of(e), key: &entry.key })
        }))
    }
}
