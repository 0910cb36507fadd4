//! From a question to its answer, without allocating.

use std::net::IpAddr;

use crate::entry::{Addresses, Endpoint, Entry, Kind};
use crate::name::{MAX_LENGTH, Name, find_suffix};
use crate::records::{Host, HostLabel, PointerRecords, Records, ServiceRecords, Target};
use crate::reverse;
use crate::settings::{PodNames, Reverse};
use crate::view::undashed;
use crate::zone::Zone;

/// An ExternalName may lead to another one; so many times at most.
pub(crate) const MAX_ALIASES: usize = 16;
/// No name in the zone has more labels than this in front of the zone's own.
const MAX_LABELS: usize = 10;

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
    pub aliases: Aliases<'a>,
    /// How it ended after the last alias.
    pub end: End<'a>,
    /// Where the zone's own name begins within the name that was asked for.
    pub zone_at: usize,
}

impl Answer<'_> {
    /// Whether it is only that the name does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self.end, End::NoName(_)) && self.aliases.is_empty()
    }
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
    /// There are too many aliases.
    TooLong,
    /// The name is not in any of our zones.
    NotOurs,
}

/// What a single name holds.
enum Step<'a> {
    End(End<'a>),
    Alias(&'a Name, u32),
}

/// The labels of a name in front of the zone, from right to left, because that is how the tree
/// grows; and where each begins.
pub(crate) struct Path<'n> {
    name: &'n [u8],
    starts: [usize; MAX_LABELS + 1],
    pub depth: usize,
}

impl<'n> Path<'n> {
    /// `None` if there are more labels than any name of ours has.
    pub fn read(name: &'n [u8], end: usize) -> Option<Self> {
        let mut forward = [0; MAX_LABELS + 1];
        let (mut at, mut depth) = (0, 0);
        while at < end {
            if depth == MAX_LABELS {
                return None;
            }
            forward[depth] = at;
            depth += 1;
            at += 1 + usize::from(name[at]);
        }
        // Position 0 is the end of the whole, the last one the first label.
        let mut starts = [end; MAX_LABELS + 1];
        for back in 1..=depth {
            starts[back] = forward[depth - back];
        }
        Some(Self { name, starts, depth })
    }

    /// As if there were one more label between these and the zone: `web.shop` becomes
    /// `web.shop.svc`, though nobody may ask for that label.
    fn shifted(self) -> Option<Self> {
        let Self { name, starts, depth } = self;
        if depth == MAX_LABELS {
            return None;
        }
        let mut shifted = [starts[0]; MAX_LABELS + 1];
        shifted[1..].copy_from_slice(&starts[..MAX_LABELS]);
        Some(Self { name, starts: shifted, depth: depth + 1 })
    }

    /// A label without its length; 0 is the rightmost.
    pub fn label(&self, at: usize) -> &'n [u8] {
        if at < self.depth { &self.name[self.starts[at + 1] + 1..self.starts[at]] } else { &[] }
    }

    /// Several labels in wire form, `from` being the rightmost of them.
    pub fn wire(&self, from: usize, to: usize) -> &'n [u8] {
        &self.name[self.starts[to + 1]..self.starts[from]]
    }
}

impl Zone {
    /// The zone's name, in wire form and small letters.
    pub fn origin(&self) -> &Name {
        &self.settings.origin
    }

    /// How long an alias may be remembered.
    pub fn alias_lifetime(&self) -> u32 {
        self.settings.lifetimes.endpoint
    }

    /// Answers a question; `name` is in wire form and small letters.
    pub fn answer(&self, name: &[u8], kind: RecordType) -> Answer<'_> {
        let within = find_suffix(name, self.origin().wire());
        let mut zone_at = within.or_else(|| self.reverse_at(name)).unwrap_or(0);
        let mut aliases = Aliases::default();
        let outside = self.settings.outside.as_ref().filter(|_| within.is_none());
        let mut end = match outside.and_then(|zone| find_suffix(name, zone.origin.wire())) {
            None => self.step(name, within, kind),
            Some(at) => {
                zone_at = at;
                self.step_outside(name, at, kind)
            }
        };
        let mut buffer = [0; MAX_LENGTH];
        loop {
            match end {
                Step::End(End::NotOurs) if !aliases.is_empty() => {
                    return Answer { aliases, end: End::Elsewhere, zone_at };
                }
                Step::End(end) => return self.settled(aliases, end, zone_at),
                Step::Alias(target, lifetime) => {
                    if !aliases.push(target) {
                        let circle = aliases.iter().any(|known| known.is(target));
                        let end = if circle { End::Loop } else { End::TooLong };
                        return self.settled(Aliases::default(), end, zone_at);
                    }
                    if matches!(kind, RecordType::Cname | RecordType::Any) {
                        let end = End::Found(Records::Alias, lifetime);
                        return Answer { aliases, end, zone_at };
                    }
                    let length = target.wire().len();
                    buffer[..length].copy_from_slice(target.wire());
                    buffer[..length].make_ascii_lowercase();
                    let within = find_suffix(&buffer[..length], self.origin().wire());
                    end = self.step(&buffer[..length], within, kind);
                }
            }
        }
    }

    /// CoreDNS does not show an alias that leads to nothing within the zone.
    fn settled<'a>(&self, aliases: Aliases<'a>, end: End<'a>, zone_at: usize) -> Answer<'a> {
        let nothing = matches!(end, End::NoData(_) | End::NoName(_)) && !aliases.is_empty();
        if self.settings.coredns_compat && (nothing || matches!(end, End::Loop | End::TooLong)) {
            let end = End::NoData(self.settings.lifetimes.negative);
            return Answer { aliases: Aliases::default(), end, zone_at };
        }
        Answer { aliases, end, zone_at }
    }

    /// One name; `within` says where the zone's own begins in it.
    fn step(&self, name: &[u8], within: Option<usize>, kind: RecordType) -> Step<'_> {
        let Some(at) = within else { return Step::End(self.reverse(name, kind)) };
        let Some(path) = Path::read(name, at) else { return Step::End(self.no_name()) };
        match (path.label(0), path.depth) {
            (b"svc", 2..) => self.in_namespace(&path, kind),
            (b"pod", 2..) => Step::End(self.pod(&path, kind)),
            _ => Step::End(self.fixed(&path, kind)),
        }
    }

    /// One name in the zone for outsiders: `web.shop` and what is below it.
    fn step_outside(&self, name: &[u8], at: usize, kind: RecordType) -> Step<'_> {
        let path = Path::read(name, at).and_then(Path::shifted);
        let Some(path) = path else { return Step::End(self.no_name()) };
        let lifetimes = &self.settings.lifetimes;
        let nothing = End::NoData(lifetimes.negative);
        let namespace = |at| self.namespace(path.wire(at, at)).is_some();
        let end = match (path.depth, kind) {
            (1, RecordType::Soa | RecordType::Any) => {
                End::Found(Records::Soa, lifetimes.cluster_ip)
            }
            (1, RecordType::Ns) => End::Found(Records::Ns(None), lifetimes.cluster_ip),
            (1, _) => nothing,
            (2, _) if path.label(1) == b"dns" || namespace(1) => nothing,
            (3, _) if path.label(1) == b"dns" && path.label(2) == b"ns" => {
                self.addresses(self.own_addresses(), kind, lifetimes.cluster_ip, lifetimes.negative)
            }
            (3.., _) if namespace(1) => {
                let entry = self.entry(path.wire(1, 2)).filter(|entry| entry.exists());
                match entry.and_then(|entry| entry.public()) {
                    None => self.no_name(),
                    Some(Entry { kind: Kind::External(Some(target)), .. }) if path.depth == 3 => {
                        return Step::Alias(target, lifetimes.endpoint);
                    }
                    Some(public) => self.in_service(public, &path, kind),
                }
            }
            _ => self.no_name(),
        };
        Step::End(end)
    }

    /// Names that do not depend on objects.
    fn fixed(&self, path: &Path<'_>, kind: RecordType) -> End<'_> {
        let lifetimes = &self.settings.lifetimes;
        let compat = self.settings.coredns_compat;
        let none = || match kind {
            RecordType::Txt if compat => self.no_name(),
            _ => End::NoData(lifetimes.negative),
        };
        let long = lifetimes.cluster_ip;
        match (path.depth, path.label(0), path.label(1)) {
            (0, ..) => match kind {
                RecordType::Soa | RecordType::Any => End::Found(Records::Soa, long),
                RecordType::Ns => End::Found(Records::Ns(self.own_name()), long),
                _ => none(),
            },
            (1, b"dns-version", _) => match kind {
                RecordType::Txt | RecordType::Any => End::Found(Records::Version, 28_800),
                _ if compat => self.no_name(),
                _ => none(),
            },
            (2, b"dns", b"ns") => match kind {
                RecordType::Txt if compat => self.no_name(),
                _ => self.addresses(self.own_addresses(), kind, long, lifetimes.negative),
            },
            (1, b"dns", _) if compat => self.no_name(),
            (1, b"svc" | b"pod" | b"dns", _) => none(),
            _ => self.no_name(),
        }
    }

    /// The name of the Service through which clients reach this server.
    fn own_name(&self) -> Option<Target<'_>> {
        let entry = self.own_service()?;
        Some(Target { host: HostLabel::Service, key: &entry.key })
    }

    /// `10-1-2-3.namespace.pod`.
    fn pod(&self, path: &Path<'_>, kind: RecordType) -> End<'_> {
        let namespace = path.wire(1, 1);
        let settings = &self.settings;
        if settings.pods == PodNames::Disabled || self.namespace(namespace).is_none() {
            return self.no_name();
        }
        match path.depth {
            2 => return End::NoData(settings.lifetimes.negative),
            4.. if !settings.coredns_compat => return self.no_name(),
            _ => {}
        }
        let Some(address) = undashed(path.label(2)) else { return self.no_name() };
        if settings.pods == PodNames::Verified && !self.has_pod(address, namespace) {
            return self.no_name();
        }
        match (address, kind) {
            (IpAddr::V4(_), RecordType::A | RecordType::Any)
            | (IpAddr::V6(_), RecordType::Aaaa | RecordType::Any) => {
                End::Found(Records::One(address), settings.lifetimes.endpoint)
            }
            _ => End::NoData(settings.lifetimes.negative),
        }
    }

    fn in_namespace(&self, path: &Path<'_>, kind: RecordType) -> Step<'_> {
        let lifetimes = &self.settings.lifetimes;
        let namespace = path.wire(1, 1);
        if path.depth == 2 {
            let text = self.settings.coredns_compat && kind == RecordType::Txt;
            let exists = self.namespace(namespace).is_some() && !text;
            return Step::End(if exists {
                End::NoData(lifetimes.negative)
            } else {
                self.no_name()
            });
        }
        let Some(entry) = self.entry(path.wire(1, 2)).filter(|entry| entry.exists()) else {
            return Step::End(self.no_name());
        };
        if self.namespace(namespace).is_none() {
            return Step::End(self.no_name());
        }
        if let Kind::External(target) = &entry.kind {
            let compat = self.settings.coredns_compat;
            return match (path.depth, target, kind) {
                (3, Some(_), RecordType::Srv | RecordType::Txt) if compat => {
                    Step::End(End::NoData(lifetimes.negative))
                }
                (3, Some(target), _) => Step::Alias(target, lifetimes.endpoint),
                _ => Step::End(self.no_name()),
            };
        }
        Step::End(self.in_service(entry, path, kind))
    }

    fn in_service<'a>(&'a self, entry: &'a Entry, path: &Path<'_>, kind: RecordType) -> End<'a> {
        let settings = &self.settings;
        let soon = settings.lifetimes.negative_below_service;
        let missing = || if self.synced { End::NoName(soon) } else { End::NotReady };
        let lifetime = match &settings.outside {
            _ if entry.is_headless() => settings.lifetimes.endpoint,
            Some(outside) if entry.outside => outside.lifetime,
            _ => settings.lifetimes.cluster_ip,
        };
        // A headless Service without ready endpoints has no addresses, and no name either.
        let ignored = settings.ignore_empty_services && !entry.outside;
        let empty = entry.endpoints.is_empty() && (entry.is_headless() || ignored);
        let services = |only| self.services(entry, only, lifetime);
        match path.depth {
            _ if empty => missing(),
            4.. if settings.zonal && entry.is_headless() && path.label(3) == b"_zone" => {
                self.zonal(entry, path, kind).unwrap_or_else(missing)
            }
            3 if kind == RecordType::Srv => services(None),
            3 => self.addresses(&entry.own, kind, lifetime, soon),
            4 => match path.label(3) {
                [b'_', protocol @ ..] => match entry.has_protocol(protocol) {
                    true if !settings.coredns_compat => End::NoData(soon),
                    _ => missing(),
                },
                label => self.host(entry.host(label), kind).unwrap_or_else(missing),
            },
            5 => match self.port(entry, path.label(4), path.label(3)) {
                Some(only) if kind == RecordType::Srv => services(Some(only)),
                Some(only) => self.addresses(entry.at_port(only), kind, lifetime, soon),
                None => missing(),
            },
            _ => missing(),
        }
    }

    fn services<'a>(&self, entry: &'a Entry, only: Option<usize>, lifetime: u32) -> End<'a> {
        let records = ServiceRecords { entry, only };
        match records.iter().next() {
            Some(_) => End::Found(Records::Services(records), lifetime),
            None => End::NoData(self.settings.lifetimes.negative_below_service),
        }
    }

    /// `zone.pin._zone` and `zone.prefer._zone`, as CoreDNS has them: the former are endpoints in a
    /// zone, the latter all of them if there are none there. `None` if there is no such name.
    fn zonal<'a>(&self, entry: &'a Entry, path: &Path<'_>, kind: RecordType) -> Option<End<'a>> {
        let lifetimes = &self.settings.lifetimes;
        let nothing = End::NoData(lifetimes.negative_below_service);
        if path.depth == 4 {
            return Some(nothing);
        }
        let prefers = match path.label(4) {
            b"pin" => false,
            b"prefer" => true,
            _ => return None,
        };
        if path.depth == 5 {
            return Some(nothing);
        }
        // A zone's name may have dots in it.
        let part = entry.in_zone(path.wire(5, path.depth - 1)).or(prefers.then_some(entry));
        let Some(part) = part else { return Some(nothing) };
        Some(match kind {
            RecordType::Srv => self.services(part, None, lifetimes.endpoint),
            _ => {
                let negative = lifetimes.negative_below_service;
                self.addresses(&part.own, kind, lifetimes.endpoint, negative)
            }
        })
    }

    /// `_http._tcp`; unnamed ports have no name.
    fn port(&self, entry: &Entry, name: &[u8], protocol: &[u8]) -> Option<usize> {
        if self.settings.coredns_compat {
            let bare = |label: &'_ [u8]| label.strip_prefix(b"_").map_or(label.len(), <[u8]>::len);
            let (name, protocol) =
                (&name[name.len() - bare(name)..], &protocol[protocol.len() - bare(protocol)..]);
            return entry.port(name, protocol);
        }
        let name = name.strip_prefix(b"_").filter(|name| !name.is_empty())?;
        entry.port(name, protocol.strip_prefix(b"_")?)
    }

    fn host<'a>(&self, endpoints: &'a [Endpoint], kind: RecordType) -> Option<End<'a>> {
        endpoints.first()?;
        let host = Host { endpoints };
        let lifetimes = &self.settings.lifetimes;
        let any = kind == RecordType::Any;
        Some(match kind {
            _ if host.has(RecordType::A) && (any || kind == RecordType::A) => {
                End::Found(Records::HostV4(host), lifetimes.endpoint)
            }
            _ if host.has(RecordType::Aaaa) && (any || kind == RecordType::Aaaa) => {
                End::Found(Records::HostV6(host), lifetimes.endpoint)
            }
            _ => End::NoData(lifetimes.negative_below_service),
        })
    }

    fn addresses<'a>(
        &self,
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
        let rest = || match self.settings.reverse {
            Reverse::Authoritative => self.no_name(),
            Reverse::FallThrough | Reverse::NotServed => End::NotOurs,
        };
        let is_ours = self.settings.reverse != Reverse::NotServed;
        let lifetimes = &self.settings.lifetimes;
        let negative = lifetimes.negative;
        match self.reverse_at(name).filter(|_| is_ours) {
            None => return End::NotOurs,
            // The zone itself.
            Some(0) => {
                return match kind {
                    RecordType::Soa | RecordType::Any => {
                        End::Found(Records::Soa, lifetimes.cluster_ip)
                    }
                    RecordType::Ns => {
                        End::Found(Records::NsOfAddresses(self.own_name()), lifetimes.cluster_ip)
                    }
                    _ => End::NoData(negative),
                };
            }
            Some(_) => {}
        }
        let Some(address) = reverse::address(name) else {
            // Above a name there is one, too (RFC 8020).
            return match reverse::prefix(name) {
                Some(prefix) if self.has_prefix(prefix) => End::NoData(negative),
                Some(_) if !self.synced => End::NotReady,
                _ => rest(),
            };
        };
        let records = PointerRecords { zone: self, address };
        match (records.iter().next(), kind) {
            // It may be ours: others must not say that it has no name.
            (None, _) if !self.synced => End::NotReady,
            (None, _) => rest(),
            (Some(_), RecordType::Ptr | RecordType::Any) => {
                End::Found(Records::Pointers(records), self.settings.lifetimes.endpoint)
            }
            (Some(_), _) => End::NoData(negative),
        }
    }

    /// Where the zone of addresses begins within a name, if it is in one of ours.
    fn reverse_at(&self, name: &[u8]) -> Option<usize> {
        let zones = &self.settings.reverse_zones;
        if zones.is_empty() {
            return reverse::zone_at(name);
        }
        // The longest one begins first.
        zones.iter().filter_map(|zone| find_suffix(name, zone.wire())).min()
    }

    fn no_name(&self) -> End<'_> {
        let negative = self.settings.lifetimes.negative;
        if self.synced { End::NoName(negative) } else { End::NotReady }
    }
}

/// The names that one leads to after the other, in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aliases<'a> {
    names: [Option<&'a Name>; MAX_ALIASES],
}

impl<'a> Aliases<'a> {
    /// Appends one, if there is room.
    fn push(&mut self, name: &'a Name) -> bool {
        let free = self.names.iter_mut().find(|slot| slot.is_none());
        free.map(|slot| *slot = Some(name)).is_some()
    }

    /// The names, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a Name> + '_ {
        self.names.iter().map_while(|name| *name)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names[0].is_none()
    }
}

#[cfg(test)]
mod tests;
