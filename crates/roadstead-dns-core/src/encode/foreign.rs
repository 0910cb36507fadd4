//! What other servers said, in a reply of our own.

use crate::cache::AgedAnswer;
use crate::message::{self, Query, Record, Section};
use crate::reply::{OwnerName, Reply, ResponseCode, types};

/// Writes what another server said about the very same name.
pub(crate) fn pass_on(
    reply: &mut Reply<'_>,
    query: &Query<'_>,
    answer: AgedAnswer<'_>,
) -> ResponseCode {
    let bytes = &answer.stored.bytes;
    let mut at = query.question_end;
    for (section, record) in message::records(bytes).map_while(Result::ok) {
        let written = reply.position();
        if reply.foreign(section, &bytes[at..record.end()]).is_none() {
            if section != Section::Additional {
                reply.set_truncated();
            }
            break;
        }
        let lifetime = answer.rest(record.lifetime);
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
pub(crate) fn retell(
    reply: &mut Reply<'_>,
    same: Option<(&[u8], usize)>,
    answer: AgedAnswer<'_>,
) -> ResponseCode {
    let bytes = &answer.stored.bytes;
    let fits = message::answers(bytes).all(|record| {
        let lifetime = answer.rest(record.lifetime);
        let wire = record.owner.wire();
        let owner = match same {
            Some((name, at)) if wire.eq_ignore_ascii_case(name) => OwnerName::At(at),
            _ => OwnerName::Name(wire),
        };
        reply.record(Section::Answer, owner, (record.kind, lifetime), |r| data(r, bytes, &record))
    });
    if !fits || bytes[2] & 0x02 != 0 {
        reply.set_truncated();
    }
    // For how long it may be remembered that there is nothing (RFC 2308).
    let denial = |(section, record): &(Section, Record)| {
        *section == Section::Authority && record.kind == types::SOA
    };
    if let Some((_, record)) = message::records(bytes).map_while(Result::ok).find(denial) {
        let lifetime = answer.rest(record.lifetime);
        let owner = OwnerName::Name(record.owner.wire());
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
fn code(bytes: &[u8]) -> ResponseCode {
    match bytes[3] & 0x0f {
        0 => ResponseCode::NoError,
        3 => ResponseCode::NoName,
        4 => ResponseCode::NotImplemented,
        5 => ResponseCode::Refused,
        _ => ResponseCode::ServerFailure,
    }
}
