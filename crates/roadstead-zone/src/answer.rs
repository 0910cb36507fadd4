//! From a question to its answer, without allocating.

use std::net::IpAddr;

use crate::aliases::Aliases;
use crate::entry::{AddressRecords, EntryKind, ReadyEndpoint, ServiceEntry};
use crate::label_path::LabelPath;
use crate::name::{MAX_LENGTH, Name, find_suffix};
use crate::record_type::RecordType;
use crate::records::{Host, HostLabel, PointerRecords, RecordTarget, Records, ServiceRecords};
use crate::reverse;
use crate::settings::{PodNames, Reverse};
use crate::view::undashed;
use crate::zone::Zone;

/// The answer to a question.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The aliases that were followed, in order.
    pub aliases: Aliases<'a>,
    /// How it ended after the last alias.
    pub end: AnswerEnd<'a>,
    /// Where the zone's own name begins within the name that was asked for.
    pub zone_at: usize,
}

impl Answer<'_> {
    /// Whether it is only that the name does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self.end, AnswerEnd::NoName(_)) && self.aliases.is_empty()
    }
}

/// How the search for records ended.
#[derive(Debug)]
pub enum AnswerEnd<'a> {
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
enum NameStep<'a> {
    End(AnswerEnd<'a>),
    Alias(&'a Name, u32),
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
                NameStep::End(AnswerEnd::NotOurs) if !aliases.is_empty() => {
                    return Answer { aliases, end: AnswerEnd::Elsewhere, zone_at };
                }
                NameStep::End(end) => return self.conclude(aliases, end, zone_at),
                NameStep::Alias(target, lifetime) => {
                    if !aliases.push(target) {
                        let circle = aliases.iter().any(|known| known.is(target));
                        let end = if circle { AnswerEnd::Loop } else { AnswerEnd::TooLong };
                        return self.conclude(Aliases::default(), end, zone_at);
                    }
                    if matches!(kind, RecordType::Cname | RecordType::Any) {
                        let end = AnswerEnd::Found(Records::Alias, lifetime);
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
    fn conclude<'a>(&self, aliases: Aliases<'a>, end: AnswerEnd<'a>, zone_at: usize) -> Answer<'a> {
        let nothing =
            matches!(end, AnswerEnd::NoData(_) | AnswerEnd::NoName(_)) && !aliases.is_empty();
        if self.settings.coredns_compat
            && (nothing || matches!(end, AnswerEnd::Loop | AnswerEnd::TooLong))
        {
            let end = AnswerEnd::NoData(self.settings.lifetimes.negative);
            return Answer { aliases: Aliases::default(), end, zone_at };
        }
        Answer { aliases, end, zone_at }
    }

    /// One name; `within` says where the zone's own begins in it.
    fn step(&self, name: &[u8], within: Option<usize>, kind: RecordType) -> NameStep<'_> {
        let Some(at) = within else { return NameStep::End(self.reverse(name, kind)) };
        let Some(path) = LabelPath::read(name, at) else { return NameStep::End(self.no_name()) };
        match (path.label(0), path.depth) {
            (b"svc", 2..) => self.in_namespace(&path, kind),
            (b"pod", 2..) => NameStep::End(self.pod(&path, kind)),
            _ => NameStep::End(self.fixed(&path, kind)),
        }
    }

    /// One name in the zone for outsiders: `web.shop` and what is below it.
    fn step_outside(&self, name: &[u8], at: usize, kind: RecordType) -> NameStep<'_> {
        let path = LabelPath::read(name, at).and_then(LabelPath::shifted);
        let Some(path) = path else { return NameStep::End(self.no_name()) };
        let lifetimes = &self.settings.lifetimes;
        let nothing = AnswerEnd::NoData(lifetimes.negative);
        let namespace = |at| self.namespace(path.wire(at, at)).is_some();
        let end = match (path.depth, kind) {
            (1, RecordType::Soa | RecordType::Any) => {
                AnswerEnd::Found(Records::Soa, lifetimes.cluster_ip)
            }
            (1, RecordType::Ns) => AnswerEnd::Found(Records::Ns(None), lifetimes.cluster_ip),
            (1, _) => nothing,
            (2, _) if path.label(1) == b"dns" || namespace(1) => nothing,
            (3, _) if path.label(1) == b"dns" && path.label(2) == b"ns" => {
                self.addresses(self.own_addresses(), kind, lifetimes.cluster_ip, lifetimes.negative)
            }
            (3.., _) if namespace(1) => {
                let entry = self.entry(path.wire(1, 2)).filter(|entry| entry.exists());
                match entry.and_then(|entry| entry.public()) {
                    None => self.no_name(),
                    Some(ServiceEntry { kind: EntryKind::External(Some(target)), .. })
                        if path.depth == 3 =>
                    {
                        return NameStep::Alias(target, lifetimes.endpoint);
                    }
                    Some(public) => self.in_service(public, &path, kind),
                }
            }
            _ => self.no_name(),
        };
        NameStep::End(end)
    }

    /// Names that do not depend on objects.
    fn fixed(&self, path: &LabelPath<'_>, kind: RecordType) -> AnswerEnd<'_> {
        let lifetimes = &self.settings.lifetimes;
        let compat = self.settings.coredns_compat;
        let none = || match kind {
            RecordType::Txt if compat => self.no_name(),
            _ => AnswerEnd::NoData(lifetimes.negative),
        };
        let long = lifetimes.cluster_ip;
        match (path.depth, path.label(0), path.label(1)) {
            (0, ..) => match kind {
                RecordType::Soa | RecordType::Any => AnswerEnd::Found(Records::Soa, long),
                RecordType::Ns => AnswerEnd::Found(Records::Ns(self.own_name()), long),
                _ => none(),
            },
            (1, b"dns-version", _) => match kind {
                RecordType::Txt | RecordType::Any => AnswerEnd::Found(Records::Version, 28_800),
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
    fn own_name(&self) -> Option<RecordTarget<'_>> {
        let entry = self.own_service()?;
        Some(RecordTarget { host: HostLabel::Service, key: &entry.key })
    }

    /// `10-1-2-3.namespace.pod`.
    fn pod(&self, path: &LabelPath<'_>, kind: RecordType) -> AnswerEnd<'_> {
        let namespace = path.wire(1, 1);
        let settings = &self.settings;
        if settings.pods == PodNames::Disabled || self.namespace(namespace).is_none() {
            return self.no_name();
        }
        match path.depth {
            2 => return AnswerEnd::NoData(settings.lifetimes.negative),
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
                AnswerEnd::Found(Records::One(address), settings.lifetimes.endpoint)
            }
            _ => AnswerEnd::NoData(settings.lifetimes.negative),
        }
    }

    fn in_namespace(&self, path: &LabelPath<'_>, kind: RecordType) -> NameStep<'_> {
        let lifetimes = &self.settings.lifetimes;
        let namespace = path.wire(1, 1);
        if path.depth == 2 {
            let text = self.settings.coredns_compat && kind == RecordType::Txt;
            let exists = self.namespace(namespace).is_some() && !text;
            return NameStep::End(if exists {
                AnswerEnd::NoData(lifetimes.negative)
            } else {
                self.no_name()
            });
        }
        let Some(entry) = self.entry(path.wire(1, 2)).filter(|entry| entry.exists()) else {
            return NameStep::End(self.no_name());
        };
        if self.namespace(namespace).is_none() {
            return NameStep::End(self.no_name());
        }
        if let EntryKind::External(target) = &entry.kind {
            let compat = self.settings.coredns_compat;
            return match (path.depth, target, kind) {
                (3, Some(_), RecordType::Srv | RecordType::Txt) if compat => {
                    NameStep::End(AnswerEnd::NoData(lifetimes.negative))
                }
                (3, Some(target), _) => NameStep::Alias(target, lifetimes.endpoint),
                _ => NameStep::End(self.no_name()),
            };
        }
        NameStep::End(self.in_service(entry, path, kind))
    }

    fn in_service<'a>(
        &'a self,
        entry: &'a ServiceEntry,
        path: &LabelPath<'_>,
        kind: RecordType,
    ) -> AnswerEnd<'a> {
        let settings = &self.settings;
        let soon = settings.lifetimes.negative_below_service;
        let missing = || if self.synced { AnswerEnd::NoName(soon) } else { AnswerEnd::NotReady };
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
                    true if !settings.coredns_compat => AnswerEnd::NoData(soon),
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

    fn services<'a>(
        &self,
        entry: &'a ServiceEntry,
        only: Option<usize>,
        lifetime: u32,
    ) -> AnswerEnd<'a> {
        let records = ServiceRecords { entry, only };
        match records.iter().next() {
            Some(_) => AnswerEnd::Found(Records::Services(records), lifetime),
            None => AnswerEnd::NoData(self.settings.lifetimes.negative_below_service),
        }
    }

    /// `zone.pin._zone` and `zone.prefer._zone`, as CoreDNS has them: the former are endpoints in a
    /// zone, the latter all of them if there are none there. `None` if there is no such name.
    fn zonal<'a>(
        &self,
        entry: &'a ServiceEntry,
        path: &LabelPath<'_>,
        kind: RecordType,
    ) -> Option<AnswerEnd<'a>> {
        let lifetimes = &self.settings.lifetimes;
        let nothing = AnswerEnd::NoData(lifetimes.negative_below_service);
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
    fn port(&self, entry: &ServiceEntry, name: &[u8], protocol: &[u8]) -> Option<usize> {
        if self.settings.coredns_compat {
            let bare = |label: &'_ [u8]| label.strip_prefix(b"_").map_or(label.len(), <[u8]>::len);
            let (name, protocol) =
                (&name[name.len() - bare(name)..], &protocol[protocol.len() - bare(protocol)..]);
            return entry.port(name, protocol);
        }
        let name = name.strip_prefix(b"_").filter(|name| !name.is_empty())?;
        entry.port(name, protocol.strip_prefix(b"_")?)
    }

    fn host<'a>(&self, endpoints: &'a [ReadyEndpoint], kind: RecordType) -> Option<AnswerEnd<'a>> {
        endpoints.first()?;
        let host = Host { endpoints };
        let lifetimes = &self.settings.lifetimes;
        let any = kind == RecordType::Any;
        Some(match kind {
            _ if host.has(RecordType::A) && (any || kind == RecordType::A) => {
                AnswerEnd::Found(Records::HostV4(host), lifetimes.endpoint)
            }
            _ if host.has(RecordType::Aaaa) && (any || kind == RecordType::Aaaa) => {
                AnswerEnd::Found(Records::HostV6(host), lifetimes.endpoint)
            }
            _ => AnswerEnd::NoData(lifetimes.negative_below_service),
        })
    }

    fn addresses<'a>(
        &self,
        addresses: &'a AddressRecords,
        kind: RecordType,
        lifetime: u32,
        negative: u32,
    ) -> AnswerEnd<'a> {
        match kind {
            RecordType::A | RecordType::Any if !addresses.v4.is_empty() => {
                AnswerEnd::Found(Records::V4(&addresses.v4), lifetime)
            }
            RecordType::Aaaa | RecordType::Any if !addresses.v6.is_empty() => {
                AnswerEnd::Found(Records::V6(&addresses.v6), lifetime)
            }
            _ => AnswerEnd::NoData(negative),
        }
    }

    /// The names of addresses, as far as they are ours; others may know the rest.
    fn reverse(&self, name: &[u8], kind: RecordType) -> AnswerEnd<'_> {
        let rest = || match self.settings.reverse {
            Reverse::Authoritative => self.no_name(),
            Reverse::FallThrough | Reverse::NotServed => AnswerEnd::NotOurs,
        };
        let is_ours = self.settings.reverse != Reverse::NotServed;
        let lifetimes = &self.settings.lifetimes;
        let negative = lifetimes.negative;
        match self.reverse_at(name).filter(|_| is_ours) {
            None => return AnswerEnd::NotOurs,
            // The zone itself.
            Some(0) => {
                return match kind {
                    RecordType::Soa | RecordType::Any => {
                        AnswerEnd::Found(Records::Soa, lifetimes.cluster_ip)
                    }
                    RecordType::Ns => AnswerEnd::Found(
                        Records::NsOfAddresses(self.own_name()),
                        lifetimes.cluster_ip,
                    ),
                    _ => AnswerEnd::NoData(negative),
                };
            }
            Some(_) => {}
        }
        let Some(address) = reverse::address(name) else {
            // Above a name there is one, too (RFC 8020).
            return match reverse::prefix(name) {
                Some(prefix) if self.has_prefix(prefix) => AnswerEnd::NoData(negative),
                Some(_) if !self.synced => AnswerEnd::NotReady,
                _ => rest(),
            };
        };
        let records = PointerRecords { zone: self, address };
        match (records.iter().next(), kind) {
            // It may be ours: others must not say that it has no name.
            (None, _) if !self.synced => AnswerEnd::NotReady,
            (None, _) => rest(),
            (Some(_), RecordType::Ptr | RecordType::Any) => {
                AnswerEnd::Found(Records::Pointers(records), self.settings.lifetimes.endpoint)
            }
            (Some(_), _) => AnswerEnd::NoData(negative),
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

    fn no_name(&self) -> AnswerEnd<'_> {
        let negative = self.settings.lifetimes.negative;
        if self.synced { AnswerEnd::NoName(negative) } else { AnswerEnd::NotReady }
    }
}

#[cfg(test)]
mod tests;
