//! From answers to records on the wire.

use std::net::IpAddr;

use roadstead_zone::answer::{Answer, End, RecordType};
use roadstead_zone::entry::{V4_RECORD, V6_RECORD};
use roadstead_zone::explain::Reason;
use roadstead_zone::name::{Name, find_suffix};
use roadstead_zone::records::{Glue, HostLabel, PointerRecords, Records, ServiceRecords, Target};
use roadstead_zone::view::Dashed;
use roadstead_zone::zone::Zone;

use crate::cache::Stored;
use crate::message::{self, HEADER_LENGTH, Part, Query, Record};
use crate::reply::{Code, Owner, Reply, Section, types};
use crate::respond::Stage;
use crate::setup::Hosts;

/// Where the zone's own name is to be found.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a>(Owner<'a>);

impl<'a> Place<'a> {
    /// Within the question, so that its letters stay as they were asked; unless the question is
    /// about another name.
    pub fn of(answer: &Answer<'_>, rewritten: bool, zone: &'a Zone) -> Self {
        match rewritten {
            false => Self(Owner::At(HEADER_LENGTH + answer.zone_at)),
            true => Self(Owner::Name(zone.origin().wire())),
        }
    }

    /// In the question, which is about nothing else.
    pub fn of_question() -> Self {
        Self(Owner::At(HEADER_LENGTH))
    }
}

/// The number of a reason in RFC 8914.
pub fn number(reason: &Reason<'_>) -> u16 {
    match reason {
        Reason::NotListed => 14,
        _ => 0,
    }
}

/// Writes the cluster's answer.
pub fn answer(
    reply: &mut Reply<'_>,
    zone: &Zone,
    answer: &Answer<'_>,
    place: &Place<'_>,
    turn: usize,
) -> Code {
    answer_from(reply, zone, answer, place, turn, HEADER_LENGTH)
}

/// Writes the cluster's answer about a name that is in the message already, at this place.
pub fn answer_from(
    reply: &mut Reply<'_>,
    zone: &Zone,
    answer: &Answer<'_>,
    place: &Place<'_>,
    turn: usize,
    owner: usize,
) -> Code {
    reply.set_authoritative();
    let Some(owner) = aliases(reply, zone, answer, owner) else { return Code::NoError };
    match &answer.end {
        End::Found(found, lifetime) => {
            if !records(reply, zone, found, (owner, *lifetime), place, turn) {
                reply.set_truncated();
            }
            Code::NoError
        }
        End::NoData(lifetime) => {
            soa(reply, zone, Section::Authority, place, *lifetime);
            Code::NoError
        }
        End::NoName(lifetime) => {
            soa(reply, zone, Section::Authority, place, *lifetime);
            Code::NoName
        }
        End::NotReady | End::Loop | End::TooLong | End::Elsewhere | End::NotOurs => {
            Code::ServerFailure
        }
    }
}

/// Writes the aliases that were followed; returns where the last name is that was asked about.
/// `None` if they do not all fit: then nothing can follow, because its name would not be there.
pub fn aliases(
    reply: &mut Reply<'_>,
    zone: &Zone,
    answer: &Answer<'_>,
    first: usize,
) -> Option<usize> {
    let lifetime = zone.alias_lifetime();
    let mut all = answer.aliases.iter();
    all.try_fold(first, |owner, target| alias(reply, owner, [target.wire(), &[]], lifetime))
}

/// Writes that a name is an alias of another, which is given in two parts; returns where that is.
/// `None` if it does not fit, and the reply says so.
pub fn alias(
    reply: &mut Reply<'_>,
    owner: usize,
    target: [&[u8]; 2],
    lifetime: u32,
) -> Option<usize> {
    let mut at = owner;
    let fits = reply.record(Section::Answer, Owner::At(owner), (types::CNAME, lifetime), |r| {
        at = r.position();
        target.iter().try_for_each(|part| r.put(part))
    });
    if !fits {
        reply.set_truncated();
    }
    fits.then_some(at)
}

/// Returns whether all of them fit.
fn records(
    reply: &mut Reply<'_>,
    zone: &Zone,
    records: &Records<'_>,
    (owner, lifetime): (usize, u32),
    place: &Place<'_>,
    turn: usize,
) -> bool {
    let at = Owner::At(owner);
    match records {
        Records::V4(all) => reply.ready_made(all, V4_RECORD, owner, turn),
        Records::V6(all) => reply.ready_made(all, V6_RECORD, owner, turn),
        Records::HostV4(host) => host
            .addresses()
            .filter(IpAddr::is_ipv4)
            .all(|one| address(reply, Section::Answer, at, one, lifetime)),
        Records::HostV6(host) => host
            .addresses()
            .filter(IpAddr::is_ipv6)
            .all(|one| address(reply, Section::Answer, at, one, lifetime)),
        Records::One(one) => address(reply, Section::Answer, at, *one, lifetime),
        Records::Services(all) => services(reply, zone, all, owner, lifetime),
        Records::Pointers(all) => pointers(reply, zone, all, owner, lifetime),
        Records::Alias => true,
        Records::Soa => soa(reply, zone, Section::Answer, place, lifetime),
        Records::Ns(target) => {
            let section = Section::Additional;
            name_server(reply, zone, *target, (owner, lifetime), place, section)
        }
        Records::NsOfAddresses(target) => {
            let place = Place(Owner::Name(zone.origin().wire()));
            let section = Section::Additional;
            name_server(reply, zone, *target, (owner, lifetime), &place, section)
        }
        Records::Version => {
            reply.record(Section::Answer, at, (types::TXT, lifetime), |r| r.label(b"1.1.0"))
        }
    }
}

/// Returns whether it fits.
pub fn address(
    reply: &mut Reply<'_>,
    section: Section,
    owner: Owner<'_>,
    address: IpAddr,
    lifetime: u32,
) -> bool {
    match address {
        IpAddr::V4(address) => {
            reply.record(section, owner, (types::A, lifetime), |r| r.put(&address.octets()))
        }
        IpAddr::V6(address) => {
            reply.record(section, owner, (types::AAAA, lifetime), |r| r.put(&address.octets()))
        }
    }
}

fn services(
    reply: &mut Reply<'_>,
    zone: &Zone,
    all: &ServiceRecords<'_>,
    owner: usize,
    lifetime: u32,
) -> bool {
    let suffix = zone.suffix(all.is_outside());
    let first = reply.position();
    let fits = all.iter().all(|service| {
        reply.record(Section::Answer, Owner::At(owner), (types::SRV, lifetime), |r| {
            r.put(&[0, 0])?;
            r.put(&service.weight.to_be_bytes())?;
            r.put(&service.port.to_be_bytes())?;
            // RFC 2782 wants this name in full.
            r.name(Owner::Target(service.target, suffix))
        })
    });
    // Addresses are a courtesy: if they do not fit, nothing is missing.
    let service =
        first + BEFORE_TARGET + all.glue().next().map_or(0, |(one, _)| label_length(&one));
    let mut at = first;
    let _ = fits
        && all.glue().all(|(one, count)| {
            let (Glue::Own(target, _) | Glue::Host(target, _)) = one;
            let name = at + BEFORE_TARGET;
            at += count * (BEFORE_TARGET + label_length(&one) + target.key.len() + suffix.len());
            let owner = match name < POINTERS_END {
                true => Owner::At(name),
                false => Owner::Below(target.host, service),
            };
            glue(reply, &one, owner, lifetime)
        });
    fits
}

/// What comes before the name in an SRV record whose owner is a pointer.
const BEFORE_TARGET: usize = 2 + 10 + 6;
/// Pointers have fourteen bits.
const POINTERS_END: usize = 1 << 14;

/// How long the label of an endpoint is in wire form; a Service has none.
fn label_length(glue: &Glue<'_>) -> usize {
    let (Glue::Own(target, _) | Glue::Host(target, _)) = glue;
    match target.host {
        HostLabel::Service => 0,
        HostLabel::Name(name) => 1 + name.len(),
        HostLabel::Address(address) => 1 + Dashed::new(address).bytes().len(),
    }
}

fn glue(reply: &mut Reply<'_>, glue: &Glue<'_>, owner: Owner<'_>, lifetime: u32) -> bool {
    let mut add = |one| address(reply, Section::Additional, owner, one, lifetime);
    match glue {
        Glue::Own(_, own) => own.iter().all(&mut add),
        Glue::Host(_, host) => host.addresses().all(&mut add),
    }
}

fn pointers(
    reply: &mut Reply<'_>,
    zone: &Zone,
    all: &PointerRecords<'_>,
    owner: usize,
    lifetime: u32,
) -> bool {
    all.iter().all(|target| {
        reply.record(Section::Answer, Owner::At(owner), (types::PTR, lifetime), |r| {
            r.name(Owner::Target(target, zone.suffix(false)))
        })
    })
}

/// Writes who serves the zone, and where that is into another section; returns whether it fits.
pub fn name_server(
    reply: &mut Reply<'_>,
    zone: &Zone,
    target: Option<Target<'_>>,
    (owner, lifetime): (usize, u32),
    place: &Place<'_>,
    glue: Section,
) -> bool {
    let mut at = 0;
    let suffix = zone.suffix(false);
    let fits = reply.record(Section::Answer, Owner::At(owner), (types::NS, lifetime), |r| {
        at = r.position();
        match target {
            Some(target) => r.name(Owner::Target(target, suffix)),
            None => server_name(r, place),
        }
    });
    // A Service's addresses are among the answers already.
    if fits && (glue == Section::Additional || target.is_none()) {
        for one in zone.servers() {
            let _ = address(reply, glue, Owner::At(at), one, lifetime);
        }
    }
    fits
}

/// Returns whether it fits.
pub fn soa(
    reply: &mut Reply<'_>,
    zone: &Zone,
    section: Section,
    place: &Place<'_>,
    lifetime: u32,
) -> bool {
    const REFRESH_RETRY_EXPIRE: [u8; 12] = [0, 0, 0x1c, 0x20, 0, 0, 7, 8, 0, 1, 0x51, 0x80];
    reply.record(section, place.0, (types::SOA, lifetime), |r| {
        let mut numbers = [0; 20];
        numbers[..4].copy_from_slice(&zone.serial().to_be_bytes());
        numbers[4..16].copy_from_slice(&REFRESH_RETRY_EXPIRE);
        numbers[16..].copy_from_slice(&lifetime.to_be_bytes());
        server_name(r, place)?;
        r.put(b"\x0ahostmaster")?;
        r.name(place.0)?;
        r.put(&numbers)
    })
}

/// `ns.dns` in the zone.
fn server_name(reply: &mut Reply<'_>, place: &Place<'_>) -> Option<()> {
    reply.put(b"\x02ns\x03dns")?;
    reply.name(place.0)
}

/// Looks a name up in the table of hosts; `None` leaves it to the next in line.
pub(crate) fn look_up<'a>(hosts: &'a Hosts, name: &[u8]) -> Option<Stage<'a>> {
    let within = hosts.zones.iter().any(|zone| find_suffix(name, zone.wire()).is_some());
    let within = within || hosts.zones.is_empty();
    if let Some(addresses) = hosts.addresses.get(name).filter(|_| within) {
        return Some(Stage::Hosts(addresses, hosts.lifetime));
    }
    let address = roadstead_zone::reverse::address(name);
    if let Some(found) = address.and_then(|address| hosts.names.get(&address)) {
        return Some(Stage::HostName(found, hosts.lifetime));
    }
    match &hosts.fall_through {
        _ if !within => None,
        None => Some(Stage::NoHost),
        Some(fall_through) => (!fall_through.covers(name)).then_some(Stage::NoHost),
    }
}

/// Writes what the table of hosts, or a template, says.
pub(crate) fn hosts(
    reply: &mut Reply<'_>,
    stage: &Stage<'_>,
    kind: RecordType,
    owner: usize,
) -> Code {
    reply.set_authoritative();
    let owner = Owner::At(owner);
    let fits = match stage {
        Stage::Hosts(addresses, lifetime) => addresses
            .iter()
            .filter(|one| wants(kind, one))
            .all(|one| address(reply, Section::Answer, owner, *one, *lifetime)),
        Stage::HostName(name, lifetime) => {
            let wanted = matches!(kind, RecordType::Ptr | RecordType::Any);
            !wanted || pointer(reply, owner, name, *lifetime)
        }
        Stage::Template(answers, code) => {
            let all = answers.iter().filter(|(_, one)| wants(kind, one));
            let mut all = all.map(|(lifetime, one)| (*one, *lifetime));
            if !all.all(|(one, lifetime)| address(reply, Section::Answer, owner, one, lifetime)) {
                reply.set_truncated();
            }
            return *code;
        }
        _ => return Code::NoName,
    };
    if !fits {
        reply.set_truncated();
    }
    Code::NoError
}

/// Whether an address is of the type that was asked for.
fn wants(kind: RecordType, address: &IpAddr) -> bool {
    match kind {
        RecordType::A => address.is_ipv4(),
        RecordType::Aaaa => address.is_ipv6(),
        _ => kind == RecordType::Any,
    }
}

fn pointer(reply: &mut Reply<'_>, owner: Owner<'_>, name: &Name, lifetime: u32) -> bool {
    reply.record(Section::Answer, owner, (types::PTR, lifetime), |r| r.put(name.wire()))
}

/// Writes what another server said about the very same name.
pub fn foreign(reply: &mut Reply<'_>, query: &Query<'_>, stored: &Stored, age: u32) -> Code {
    let bytes = &stored.bytes;
    let mut at = query.question_end;
    for (part, record) in message::records(bytes).map_while(Result::ok) {
        let section = match part {
            Part::Answer => Section::Answer,
            Part::Authority => Section::Authority,
            Part::Additional => Section::Additional,
        };
        let written = reply.position();
        if reply.foreign(section, &bytes[at..record.end()]).is_none() {
            if part != Part::Additional {
                reply.set_truncated();
            }
            break;
        }
        let lifetime = stored.rest(record.lifetime, age);
        reply.patch(written + record.data_at - 6 - at, &lifetime.to_be_bytes());
        at = record.end();
    }
    if bytes[2] & 0x02 != 0 {
        reply.set_truncated();
    }
    // Whether signatures were checked interests those who asked for it (RFC 6840).
    if bytes[3] & 0x20 != 0 && (query.wants_dnssec() || query.bytes[3] & 0x20 != 0) {
        reply.set_authentic();
    }
    code(bytes)
}

/// Writes the answers of another server under names of our own: `same` is the name that we asked
/// about in the place of the one in the question, if they differ, and where its owner is.
pub fn retold(
    reply: &mut Reply<'_>,
    same: Option<(&[u8], usize)>,
    stored: &Stored,
    age: u32,
) -> Code {
    let bytes = &stored.bytes;
    let fits = message::answers(bytes).all(|record| {
        let lifetime = stored.rest(record.lifetime, age);
        let wire = record.owner.wire();
        let owner = match same {
            Some((name, at)) if wire.eq_ignore_ascii_case(name) => Owner::At(at),
            _ => Owner::Name(wire),
        };
        reply.record(Section::Answer, owner, (record.kind, lifetime), |r| data(r, bytes, &record))
    });
    if !fits || bytes[2] & 0x02 != 0 {
        reply.set_truncated();
    }
    // For how long it may be remembered that there is nothing (RFC 2308).
    let denial =
        |(part, record): &(Part, Record)| *part == Part::Authority && record.kind == types::SOA;
    if let Some((_, record)) = message::records(bytes).map_while(Result::ok).find(denial) {
        let lifetime = stored.rest(record.lifetime, age);
        let owner = Owner::Name(record.owner.wire());
        let kind = (types::SOA, lifetime);
        let _ = reply.record(Section::Authority, owner, kind, |r| data(r, bytes, &record));
    }
    code(bytes)
}

/// The data of a record; names within it may point to elsewhere in that other message.
fn data(reply: &mut Reply<'_>, bytes: &[u8], record: &Record) -> Option<()> {
    const MX: u16 = 15;
    const RP: u16 = 17;
    const AFSDB: u16 = 18;
    const DNAME: u16 = 39;
    // How many bytes come first, and how many names then (RFC 3597, section 4).
    let (before, names) = match record.kind {
        types::CNAME | types::PTR | types::NS | DNAME => (0, 1),
        types::SOA | RP => (0, 2),
        MX | AFSDB => (2, 1),
        types::SRV => (6, 1),
        _ => (record.data_length, 0),
    };
    let mut at = record.data_at + before;
    reply.put(bytes.get(record.data_at..at)?)?;
    for _ in 0..names {
        let (name, next) = message::read_name(bytes, at)?;
        reply.put(name.wire())?;
        at = next;
    }
    reply.put(bytes.get(at..record.end())?)
}

/// That another server could not read a question is not the client's fault, but ours.
fn code(bytes: &[u8]) -> Code {
    match bytes[3] & 0x0f {
        0 => Code::NoError,
        3 => Code::NoName,
        4 => Code::NotImplemented,
        5 => Code::Refused,
        _ => Code::ServerFailure,
    }
}
