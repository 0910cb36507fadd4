//! One query in, one reply out: the whole of the server but for its sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roadstead_zone::answer::{
    Answer, End, Glue, PointerRecords, RecordType, Records, ServiceRecords,
};
use roadstead_zone::zone::Zone;

use crate::message::{self, CLASS_INTERNET, Fault, HEADER_LENGTH, Query, Record};
use crate::reply::{Code, Owner, Reply, Section, bare, types};

/// The longest reply over TCP, and so the size of buffer that always suffices.
pub const MAX_REPLY: usize = 65_535;
/// Replies over UDP stay below this, so that no network cuts them into pieces.
const UDP_SIZE: u16 = 1232;
/// What a client takes that did not say.
const UDP_SIZE_WITHOUT_EDNS: u16 = 512;

/// How the query came, and so how long the reply may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// As a datagram.
    Udp,
    /// In a stream.
    Tcp,
}

/// What to do with a query.
#[derive(Debug, PartialEq, Eq)]
pub enum Response {
    /// Nothing.
    Ignore,
    /// Send this many bytes of the buffer.
    Reply(usize),
    /// Ask another server and pass on what it says.
    Forward,
    /// Ask another server about the alias, whose name in wire form this is, and complete the reply
    /// with [`complete`].
    Chase(Box<[u8]>),
}

/// Answers a query from the zone, into `buffer` of [`MAX_REPLY`] bytes.
///
/// `turn` should be different each time: it decides which of several addresses comes first.
pub fn respond(
    zone: &Zone,
    bytes: &[u8],
    transport: Transport,
    turn: usize,
    buffer: &mut [u8],
) -> Response {
    let query = match Query::parse(bytes) {
        Ok(query) => query,
        Err(Fault::Ignore) => return Response::Ignore,
        Err(Fault::Malformed) => return Response::Reply(bare(bytes, Code::FormatError, buffer)),
        Err(Fault::NotImplemented) => {
            return Response::Reply(bare(bytes, Code::NotImplemented, buffer));
        }
    };
    if let Some(code) = refusal(&query) {
        return Response::Reply(refuse(&query, code, buffer));
    }
    let answer = zone.answer(query.name.wire(), RecordType::from_number(query.kind));
    match answer.end {
        End::NotOurs => Response::Forward,
        End::Elsewhere => {
            let last = answer.aliases.iter().last().expect("an alias led elsewhere");
            Response::Chase(last.wire().into())
        }
        _ => {
            let buffer = &mut buffer[..limit(&query, transport)];
            Response::Reply(write(zone, &query, &answer, turn, buffer))
        }
    }
}

/// Writes a reply without data, for a query that cannot be answered; returns its length, or
/// nothing if the query cannot even be read.
pub fn respond_with(bytes: &[u8], code: Code, buffer: &mut [u8]) -> Option<usize> {
    Some(refuse(&Query::parse(bytes).ok()?, code, buffer))
}

/// Completes the answer to an alias with what another server said about its target.
pub fn complete(
    zone: &Zone,
    bytes: &[u8],
    transport: Transport,
    found: &[u8],
    buffer: &mut [u8],
) -> Option<usize> {
    let query = Query::parse(bytes).ok()?;
    let answer = zone.answer(query.name.wire(), RecordType::from_number(query.kind));
    let mut reply = Reply::new(&query, &mut buffer[..limit(&query, transport)], UDP_SIZE);
    reply.set_authoritative();
    write_aliases(&mut reply, zone, &answer);
    let known = |record: &Record| matches!(record.kind, types::A | types::AAAA | types::CNAME);
    let fits = message::answers(found).filter(known).all(|record| {
        let data = &found[record.data_at..record.end()];
        let header = (record.kind, record.lifetime);
        reply.record(Section::Answer, Owner::Name(record.owner.wire()), header, |reply| {
            if record.kind != types::CNAME {
                return reply.put(data);
            }
            // The name inside the data may point to elsewhere in that other message.
            let (target, _) = message::read_name(found, record.data_at)?;
            reply.put(target.wire())
        })
    });
    let cut_short = found.get(2).is_some_and(|flags| flags & 0x02 != 0);
    if !fits || cut_short {
        reply.set_truncated();
    }
    let code = match found.get(3).map(|flags| flags & 0x0f) {
        Some(0) => Code::NoError,
        Some(3) => Code::NoName,
        _ => Code::ServerFailure,
    };
    Some(reply.finish(code))
}

fn refusal(query: &Query<'_>) -> Option<Code> {
    const TRANSFERS: std::ops::RangeInclusive<u16> = 251..=252;
    if query.edns.is_some_and(|edns| edns.version > 0) {
        Some(Code::BadVersion)
    } else if query.class != CLASS_INTERNET || TRANSFERS.contains(&query.kind) {
        Some(Code::Refused)
    } else {
        None
    }
}

fn refuse(query: &Query<'_>, code: Code, buffer: &mut [u8]) -> usize {
    Reply::new(query, &mut buffer[..usize::from(UDP_SIZE_WITHOUT_EDNS)], UDP_SIZE).finish(code)
}

fn limit(query: &Query<'_>, transport: Transport) -> usize {
    let size = match (transport, query.edns) {
        (Transport::Tcp, _) => return MAX_REPLY,
        (Transport::Udp, None) => UDP_SIZE_WITHOUT_EDNS,
        (Transport::Udp, Some(edns)) => edns.size.clamp(UDP_SIZE_WITHOUT_EDNS, UDP_SIZE),
    };
    usize::from(size)
}

fn write(
    zone: &Zone,
    query: &Query<'_>,
    answer: &Answer<'_>,
    turn: usize,
    buffer: &mut [u8],
) -> usize {
    let mut reply = Reply::new(query, buffer, UDP_SIZE);
    reply.set_authoritative();
    let owner = write_aliases(&mut reply, zone, answer);
    let zone_at = HEADER_LENGTH + answer.zone_at;
    let code = match &answer.end {
        End::Found(records, lifetime) => {
            write_records(&mut reply, zone, records, (owner, *lifetime), zone_at, turn);
            Code::NoError
        }
        End::NoData(lifetime) => {
            write_soa(&mut reply, zone, Section::Authority, zone_at, *lifetime);
            Code::NoError
        }
        End::NoName(lifetime) => {
            write_soa(&mut reply, zone, Section::Authority, zone_at, *lifetime);
            Code::NoName
        }
        End::NotReady | End::Loop | End::Elsewhere | End::NotOurs => Code::ServerFailure,
    };
    reply.finish(code)
}

/// Writes the aliases that were followed; returns where the last name is that was asked about.
fn write_aliases(reply: &mut Reply<'_>, zone: &Zone, answer: &Answer<'_>) -> usize {
    let lifetime = zone.alias_lifetime();
    answer.aliases.iter().fold(HEADER_LENGTH, |owner, target| {
        let mut at = owner;
        let fits = reply.record(Section::Answer, Owner::At(owner), (types::CNAME, lifetime), |r| {
            at = r.position();
            r.put(target.wire())
        });
        if !fits {
            reply.set_truncated();
        }
        at
    })
}

fn write_records(
    reply: &mut Reply<'_>,
    zone: &Zone,
    records: &Records<'_>,
    (owner, lifetime): (usize, u32),
    zone_at: usize,
    turn: usize,
) {
    let fits = match records {
        Records::V4(all) => rotated(all, turn)
            .all(|a| address(reply, Section::Answer, Owner::At(owner), IpAddr::V4(*a), lifetime)),
        Records::V6(all) => rotated(all, turn)
            .all(|a| address(reply, Section::Answer, Owner::At(owner), IpAddr::V6(*a), lifetime)),
        Records::One(one) => address(reply, Section::Answer, Owner::At(owner), *one, lifetime),
        Records::Services(all) => write_services(reply, zone, all, owner, lifetime),
        Records::Pointers(all) => write_pointers(reply, zone, all, owner, lifetime),
        Records::Alias => true,
        Records::Soa => write_soa(reply, zone, Section::Answer, zone_at, lifetime),
        Records::Ns => {
            reply.record(Section::Answer, Owner::At(owner), (types::NS, lifetime), |r| {
                server_name(r, zone_at)
            })
        }
        Records::Version => {
            reply.record(Section::Answer, Owner::At(owner), (types::TXT, lifetime), |r| {
                r.label("1.1.0")
            })
        }
    };
    if !fits {
        reply.set_truncated();
    }
}

/// The same items, but beginning elsewhere each time, so that clients spread.
fn rotated<T>(items: &[T], turn: usize) -> impl Iterator<Item = &T> {
    let (front, back) = items.split_at(turn % items.len().max(1));
    back.iter().chain(front)
}

fn address(
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

fn write_services(
    reply: &mut Reply<'_>,
    zone: &Zone,
    all: &ServiceRecords<'_>,
    owner: usize,
    lifetime: u32,
) -> bool {
    let origin = zone.origin().wire();
    let fits = all.iter().all(|service| {
        reply.record(Section::Answer, Owner::At(owner), (types::SRV, lifetime), |r| {
            r.put(&[0, 0])?;
            r.put(&service.weight.to_be_bytes())?;
            r.put(&service.port.to_be_bytes())?;
            // RFC 2782 wants this name in full.
            r.name(Owner::Target(service.target, origin))
        })
    });
    // Addresses are a courtesy: if they do not fit, nothing is missing.
    let _ = fits && all.glue().all(|glue| write_glue(reply, &glue, origin, lifetime));
    fits
}

fn write_glue(reply: &mut Reply<'_>, glue: &Glue<'_>, origin: &[u8], lifetime: u32) -> bool {
    let owner = Owner::Target(glue.target, origin);
    let v4 = glue.v4.iter().map(|a: &Ipv4Addr| IpAddr::V4(*a));
    let mut all = v4.chain(glue.v6.iter().map(|a: &Ipv6Addr| IpAddr::V6(*a)));
    all.all(|one| address(reply, Section::Additional, owner, one, lifetime))
}

fn write_pointers(
    reply: &mut Reply<'_>,
    zone: &Zone,
    all: &PointerRecords<'_>,
    owner: usize,
    lifetime: u32,
) -> bool {
    all.iter().all(|target| {
        reply.record(Section::Answer, Owner::At(owner), (types::PTR, lifetime), |r| {
            r.name(Owner::Target(target, zone.origin().wire()))
        })
    })
}

fn write_soa(
    reply: &mut Reply<'_>,
    zone: &Zone,
    section: Section,
    zone_at: usize,
    lifetime: u32,
) -> bool {
    const REFRESH_RETRY_EXPIRE: [u32; 3] = [7200, 1800, 86_400];
    reply.record(section, Owner::At(zone_at), (types::SOA, lifetime), |r| {
        server_name(r, zone_at)?;
        r.label("hostmaster")?;
        r.name(Owner::At(zone_at))?;
        r.put(&zone.serial().to_be_bytes())?;
        REFRESH_RETRY_EXPIRE.iter().try_for_each(|seconds| r.put(&seconds.to_be_bytes()))?;
        r.put(&lifetime.to_be_bytes())
    })
}

/// `ns.dns` in the zone.
fn server_name(reply: &mut Reply<'_>, zone_at: usize) -> Option<()> {
    reply.label("ns")?;
    reply.label("dns")?;
    reply.name(Owner::At(zone_at))
}

#[cfg(test)]
mod tests;
