//! From a question to its answer, without allocating.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::name::{MAX_LENGTH, Name, find_suffix, labels};
use crate::view::{PortView, ServiceKind, undashed};
use crate::zone::{Addresses, Entry, Namespace, Zone};

/// An ExternalName may lead to another one; so many times at most.
const MAX_ALIASES: usize = 8;
/// No name in the zone has more labels than this in front of the zone's own.
const MAX_LABELS: usize = 7;

/// The types of records that we can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Another name for the same thing.
    Cname,
    /// The name of an address.
    Ptr,
    /// Where a named port is served.
    Srv,
    /// Texts.
    Txt,
    /// About the zone itself.
    Soa,
    /// The servers of the zone.
    Ns,
    /// Whatever there is; we give one kind (RFC 8482).
    Any,
    /// A type of which we never have any.
    Other,
}

impl RecordType {
    /// Reads the number in a question.
    pub fn from_number(number: u16) -> Self {
        match number {
            1 => RecordType::A,
            2 => RecordType::Ns,
            5 => RecordType::Cname,
            6 => RecordType::Soa,
            12 => RecordType::Ptr,
            16 => RecordType::Txt,
            28 => RecordType::Aaaa,
            33 => RecordType::Srv,
            255 => RecordType::Any,
            _ => RecordType::Other,
        }
    }
}

/// The answer to a question.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The aliases that were followed, in order.
    pub aliases: Vec8<&'a Name>,
    /// How it ended after the last alias.
    pub end: End<'a>,
    /// Where the zone's own name begins within the name that was asked for.
    pub zone_at: usize,
}

/// How the search for records ended.
#[derive(Debug)]
pub enum End<'a> {
    /// There are records.
    Found(Records<'a>, u32),
    /// The name exists, but has no records of that type; remember that for so many seconds.
    NoData(u32),
    /// The name does not exist; remember that for so many seconds.
    NoName(u32),
    /// The last alias is a name outside the zone.
    Elsewhere,
    /// We cannot know yet, because not everything has been listed.
    NotReady,
    /// The aliases lead in a circle.
    Loop,
    /// The name is not in any of our zones.
    NotOurs,
}

/// Records of one type.
#[derive(Debug)]
pub enum Records<'a> {
    /// A records.
    V4(&'a [Ipv4Addr]),
    /// AAAA records.
    V6(&'a [Ipv6Addr]),
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
    /// The NS record; the server is called `ns.dns` in the zone.
    Ns,
    /// The version of the DNS specification.
    Version,
}

/// A name in the zone: `host.service.namespace.svc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The endpoint, or none for the Service itself.
    pub host: Option<&'a str>,
    /// The name of the Service.
    pub service: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
}

/// One SRV record.
#[derive(Debug)]
pub struct ServiceRecord<'a> {
    /// The port.
    pub port: u16,
    /// Shares add up to about a hundred.
    pub weight: u16,
    /// Who serves it.
    pub target: Target<'a>,
}

/// A target of SRV records, with its addresses.
#[derive(Debug)]
pub struct Glue<'a> {
    /// Whose addresses.
    pub target: Target<'a>,
    /// IPv4.
    pub v4: &'a [Ipv4Addr],
    /// IPv6.
    pub v6: &'a [Ipv6Addr],
}

/// The SRV records of a Service, of one port or of all.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRecords<'a> {
    entry: &'a Entry,
    target: Target<'a>,
    only: Option<&'a PortView>,
}

impl<'a> ServiceRecords<'a> {
    /// The records.
    pub fn iter(&self) -> impl Iterator<Item = ServiceRecord<'a>> + use<'a> {
        let count = self.pairs().count();
        let weight = u16::try_from(100 / count.max(1)).unwrap_or(0).max(1);
        self.pairs().map(move |(target, port)| ServiceRecord { port, weight, target })
    }

    /// The addresses of everybody whom the records name.
    pub fn glue(&self) -> impl Iterator<Item = Glue<'a>> + use<'a> {
        let glue = |target, addresses: &'a Addresses| Glue {
            target,
            v4: &addresses.v4,
            v6: &addresses.v6,
        };
        let (entry, target) = (self.entry, self.target);
        let own = (!is_headless(entry)).then(|| glue(target, &entry.addresses));
        let hosts = entry.hosts.iter().filter(move |_| is_headless(entry));
        own.into_iter().chain(
            hosts.map(move |(name, host)| {
                glue(Target { host: Some(name), ..target }, &host.addresses)
            }),
        )
    }

    /// Every target with every port of it that was asked for.
    fn pairs(&self) -> impl Iterator<Item = (Target<'a>, u16)> + use<'a> {
        let Self { entry, target, only } = *self;
        let wanted = move |port: &&PortView| {
            only.is_none_or(|o| o.name == port.name && o.protocol == port.protocol)
        };
        let ports =
            move |ports: &'a [PortView]| ports.iter().filter(wanted).map(|port| port.number);
        let own: &[PortView] = match &entry.service {
            Some(service) if !is_headless(entry) => &service.ports,
            _ => &[],
        };
        let hosts = entry.hosts.iter().filter(move |_| is_headless(entry));
        let of_hosts = hosts.flat_map(move |(name, host)| {
            let target = Target { host: Some(name), ..target };
            ports(&host.ports).map(move |port| (target, port))
        });
        ports(own).map(move |port| (target, port)).chain(of_hosts)
    }
}

fn is_headless(entry: &Entry) -> bool {
    entry.service.as_ref().is_some_and(|service| service.kind == ServiceKind::Headless)
}

/// The names of an address.
#[derive(Clone, Copy, Debug)]
pub struct PointerRecords<'a> {
    zone: &'a Zone,
    address: IpAddr,
}

impl<'a> PointerRecords<'a> {
    /// The Service that has it as its ClusterIP, or else every Service with such an endpoint.
    pub fn iter(&self) -> impl Iterator<Item = Target<'a>> + use<'a> {
        let Self { zone, address } = *self;
        let own = zone.cluster_ips.get(&address).and_then(|keys| keys.first());
        let endpoints = zone.endpoint_ips.get(&address).filter(|_| own.is_none());
        let service =
            own.map(|key| Target { host: None, service: &key.name, namespace: &key.namespace });
        service.into_iter().chain(endpoints.into_iter().flatten().flat_map(move |key| {
            let entry = zone.namespaces.get(&key.namespace).and_then(|n| n.services.get(&key.name));
            let hosts = entry.into_iter().flat_map(|entry| &entry.hosts);
            hosts.filter(move |(_, host)| host.addresses.contains(address)).map(|(name, _)| {
                Target { host: Some(name), service: &key.name, namespace: &key.namespace }
            })
        }))
    }
}

impl Addresses {
    fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.binary_search(&address).is_ok(),
            IpAddr::V6(address) => self.v6.binary_search(&address).is_ok(),
        }
    }
}

/// What a single name holds.
enum Step<'a> {
    End(End<'a>),
    Alias(&'a Name, u32),
}

impl Zone {
    /// The zone's name, in wire form and small letters.
    pub fn origin(&self) -> &Name {
        &self.origin
    }

    /// How long an alias may be remembered.
    pub fn alias_lifetime(&self) -> u32 {
        self.lifetimes.endpoint
    }

    /// Answers a question; `name` is in wire form and small letters.
    pub fn answer(&self, name: &[u8], kind: RecordType) -> Answer<'_> {
        let zone_at = find_suffix(name, self.origin.wire()).unwrap_or(0);
        let mut aliases = Vec8::default();
        let mut buffer = [0; MAX_LENGTH];
        let mut length = name.len().min(MAX_LENGTH);
        buffer[..length].copy_from_slice(&name[..length]);
        loop {
            match self.step(&buffer[..length], kind) {
                Step::End(End::NotOurs) if !aliases.is_empty() => {
                    return Answer { aliases, end: End::Elsewhere, zone_at };
                }
                Step::End(end) => return Answer { aliases, end, zone_at },
                Step::Alias(target, lifetime) => {
                    if !aliases.push(target) {
                        return Answer { aliases: Vec8::default(), end: End::Loop, zone_at };
                    }
                    if matches!(kind, RecordType::Cname | RecordType::Any) {
                        return Answer {
                            aliases,
                            end: End::Found(Records::Alias, lifetime),
                            zone_at,
                        };
                    }
                    length = target.wire().len();
                    buffer[..length].copy_from_slice(target.wire());
                    buffer[..length].make_ascii_lowercase();
                }
            }
        }
    }

    fn step(&self, name: &[u8], kind: RecordType) -> Step<'_> {
        let Some(at) = find_suffix(name, self.origin.wire()) else {
            return Step::End(self.reverse(name, kind));
        };
        // Labels from right to left, because that is how the tree grows.
        let mut path = [[].as_slice(); MAX_LABELS];
        let mut depth = 0;
        for label in labels(&name[..at]) {
            if depth == MAX_LABELS {
                return Step::End(self.no_name());
            }
            path[depth] = label;
            depth += 1;
        }
        path[..depth].reverse();
        match &path[..depth] {
            [b"svc", namespace, rest @ ..] => self.in_namespace(namespace, rest, kind),
            path => Step::End(self.fixed(path, kind)),
        }
    }

    /// Names that do not depend on Services.
    fn fixed(&self, path: &[&[u8]], kind: RecordType) -> End<'_> {
        let none = || End::NoData(self.lifetimes.negative);
        let long = self.lifetimes.cluster_ip;
        match path {
            [] => match kind {
                RecordType::Soa | RecordType::Any => End::Found(Records::Soa, long),
                RecordType::Ns => End::Found(Records::Ns, long),
                _ => none(),
            },
            [b"dns-version"] if matches!(kind, RecordType::Txt | RecordType::Any) => {
                End::Found(Records::Version, 28_800)
            }
            [b"dns", b"ns"] => self.addresses(&self.server, kind, long, self.lifetimes.negative),
            [b"svc" | b"pod" | b"dns" | b"dns-version"] => none(),
            [b"pod", namespace, rest @ ..] if self.namespace(namespace).is_some() => match rest {
                [] => none(),
                [label] => self.pod(label, kind),
                _ => self.no_name(),
            },
            _ => self.no_name(),
        }
    }

    /// `10-1-2-3.namespace.pod` is that address, whether there is such a pod or not.
    fn pod(&self, label: &[u8], kind: RecordType) -> End<'_> {
        let address = str::from_utf8(label).ok().and_then(undashed);
        match (address, kind) {
            (None, _) => self.no_name(),
            (Some(address @ IpAddr::V4(_)), RecordType::A | RecordType::Any)
            | (Some(address @ IpAddr::V6(_)), RecordType::Aaaa | RecordType::Any) => {
                End::Found(Records::One(address), self.lifetimes.endpoint)
            }
            (Some(_), _) => End::NoData(self.lifetimes.negative),
        }
    }

    fn in_namespace(&self, namespace: &[u8], rest: &[&[u8]], kind: RecordType) -> Step<'_> {
        let Some((namespace_name, namespace)) = self.namespace(namespace) else {
            return Step::End(self.no_name());
        };
        let [service, below @ ..] = rest else {
            return Step::End(End::NoData(self.lifetimes.negative));
        };
        let found = str::from_utf8(service).ok().and_then(|s| namespace.services.get_key_value(s));
        let Some((name, entry)) = found.filter(|(_, entry)| entry.service.is_some()) else {
            return Step::End(self.no_name());
        };
        if let Some(ServiceKind::External(target)) = entry.service.as_ref().map(|s| &s.kind) {
            return match (below, target) {
                ([], Some(target)) => Step::Alias(target, self.lifetimes.endpoint),
                _ => Step::End(self.no_name()),
            };
        }
        let target = Target { host: None, service: name, namespace: namespace_name };
        Step::End(self.in_service(entry, target, below, kind))
    }

    fn in_service<'a>(
        &'a self,
        entry: &'a Entry,
        target: Target<'a>,
        below: &[&[u8]],
        kind: RecordType,
    ) -> End<'a> {
        let soon = self.lifetimes.negative_below_service;
        let missing = || if self.synced { End::NoName(soon) } else { End::NotReady };
        let lifetime =
            if is_headless(entry) { self.lifetimes.endpoint } else { self.lifetimes.cluster_ip };
        let services = |only| {
            let records = ServiceRecords { entry, target, only };
            match records.pairs().next() {
                Some(_) => End::Found(Records::Services(records), lifetime),
                None => End::NoData(soon),
            }
        };
        match below {
            // A headless Service without ready endpoints has no addresses, and no name either.
            [] if is_headless(entry) && entry.addresses.is_empty() => missing(),
            [] if kind == RecordType::Srv => services(None),
            [] => self.addresses(&entry.addresses, kind, lifetime, soon),
            [protocol] if protocol.first() == Some(&b'_') => {
                let mut ports = entry.ports();
                let exists = ports.any(|p| !p.name.is_empty() && is(protocol, p.protocol));
                if exists { End::NoData(soon) } else { missing() }
            }
            [protocol, port] => {
                let same = |p: &&PortView| {
                    !p.name.is_empty() && is(port, &p.name) && is(protocol, p.protocol)
                };
                match entry.ports().find(same) {
                    Some(only) if kind == RecordType::Srv => services(Some(only)),
                    Some(_) => self.addresses(&entry.addresses, kind, lifetime, soon),
                    None => missing(),
                }
            }
            [host] => match str::from_utf8(host).ok().and_then(|host| entry.hosts.get(host)) {
                Some(host) => self.addresses(&host.addresses, kind, self.lifetimes.endpoint, soon),
                None => missing(),
            },
            _ => missing(),
        }
    }

    fn addresses<'a>(
        &'a self,
        addresses: &'a Addresses,
        kind: RecordType,
        lifetime: u32,
        negative: u32,
    ) -> End<'a> {
        match kind {
            RecordType::A | RecordType::Any if !addresses.v4.is_empty() => {
                End::Found(Records::V4(&addresses.v4), lifetime)
            }
            RecordType::Aaaa | RecordType::Any if !addresses.v6.is_empty() => {
                End::Found(Records::V6(&addresses.v6), lifetime)
            }
            _ => End::NoData(negative),
        }
    }

    /// The names of addresses, as far as they are ours; others may know the rest.
    fn reverse(&self, name: &[u8], kind: RecordType) -> End<'_> {
        let Some(address) = reverse_address(name) else { return End::NotOurs };
        let records = PointerRecords { zone: self, address };
        match (records.iter().next(), kind) {
            (None, _) => End::NotOurs,
            (Some(_), RecordType::Ptr | RecordType::Any) => {
                End::Found(Records::Pointers(records), self.lifetimes.endpoint)
            }
            // There is no zone of ours above it, so a negative answer could not name one.
            (Some(_), _) => End::NotOurs,
        }
    }

    fn namespace(&self, label: &[u8]) -> Option<(&str, &Namespace)> {
        let name = str::from_utf8(label).ok()?;
        let (name, namespace) = self.namespaces.get_key_value(name)?;
        namespace.exists().then_some((name.as_str(), namespace))
    }

    fn no_name(&self) -> End<'_> {
        if self.synced { End::NoName(self.lifetimes.negative) } else { End::NotReady }
    }
}

impl Entry {
    /// The ports by which it can be asked for.
    fn ports(&self) -> impl Iterator<Item = &PortView> {
        let own = self.service.iter().flat_map(|service| &service.ports);
        let headless = is_headless(self);
        let of_hosts = self.hosts.values().filter(move |_| headless).flat_map(|host| &host.ports);
        own.filter(move |_| !headless).chain(of_hosts)
    }
}

/// Whether a label is `_word`.
fn is(label: &[u8], word: &str) -> bool {
    label.split_first().is_some_and(|(first, rest)| *first == b'_' && rest == word.as_bytes())
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for.
fn reverse_address(name: &[u8]) -> Option<IpAddr> {
    const V4: &[u8] = b"\x07in-addr\x04arpa\0";
    const V6: &[u8] = b"\x03ip6\x04arpa\0";
    let number = |label: &[u8], radix| {
        let canonical = label.len() == 1 || label[0] != b'0';
        let digits = label.iter().all(u8::is_ascii_alphanumeric) && canonical;
        u8::from_str_radix(str::from_utf8(label).ok().filter(|_| digits)?, radix).ok()
    };
    if let Some(at) = find_suffix(name, V4) {
        let mut octets = [0; 4];
        let mut labels = labels(&name[..at]);
        for octet in octets.iter_mut().rev() {
            *octet = number(labels.next()?, 10)?;
        }
        return labels.next().is_none().then(|| octets.into());
    }
    let at = find_suffix(name, V6)?;
    let mut octets = [0; 16];
    let mut labels = labels(&name[..at]);
    for octet in octets.iter_mut().rev() {
        let (low, high) = (labels.next()?, labels.next()?);
        if low.len() != 1 || high.len() != 1 {
            return None;
        }
        *octet = (number(high, 16)? << 4) | number(low, 16)?;
    }
    labels.next().is_none().then(|| octets.into())
}

/// Up to eight values, in place.
#[derive(Clone, Copy, Debug)]
pub struct Vec8<T> {
    items: [Option<T>; MAX_ALIASES],
}

impl<T: Copy> Default for Vec8<T> {
    fn default() -> Self {
        Self { items: [None; MAX_ALIASES] }
    }
}

impl<T: Copy> Vec8<T> {
    /// Appends a value, if there is room.
    fn push(&mut self, item: T) -> bool {
        match self.items.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => {
                *slot = Some(item);
                true
            }
            None => false,
        }
    }

    /// The values, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.items.iter().map_while(|item| *item)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items[0].is_none()
    }
}

#[cfg(test)]
mod tests;
