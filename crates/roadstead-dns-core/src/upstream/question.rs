//! Questions to other servers, and whether a reply is one to them.

use roadstead_zone::name::MAX_LENGTH;

use crate::cache::QuestionKey;
use crate::message::{CLASS_INTERNET, HEADER_LENGTH, Query, TYPE_OPT, records};

/// The size of reply we take over UDP.
const OUR_SIZE: u16 = 1232;

/// A query in our own name.
pub fn query(key: &QuestionKey, identifier: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LENGTH + MAX_LENGTH + 15);
    bytes.extend(identifier.to_be_bytes());
    // Recursion is desired; one question and one additional record.
    bytes.extend([1, if key.unchecked { 0x10 } else { 0 }, 0, 1, 0, 0, 0, 0, 0, 1]);
    bytes.extend(&key.name);
    bytes.extend(key.kind.to_be_bytes());
    bytes.extend(CLASS_INTERNET.to_be_bytes());
    bytes.push(0);
    bytes.extend(TYPE_OPT.to_be_bytes());
    bytes.extend(OUR_SIZE.to_be_bytes());
    bytes.extend([0, 0, if key.dnssec { 0x80 } else { 0 }, 0, 0, 0]);
    bytes
}

/// A reply belongs to a query if it has its identifier and repeats its question; and it must be
/// readable throughout.
pub fn belongs(reply: &[u8], query: &[u8]) -> bool {
    let question_end = Query::parse(query).map_or(HEADER_LENGTH, |query| query.question_end);
    let question =
        |bytes: &[u8]| bytes.get(HEADER_LENGTH..question_end).map(<[u8]>::to_ascii_lowercase);
    let is_reply = reply.len() >= HEADER_LENGTH && reply[2] & 0x80 != 0;
    is_reply
        && reply[..2] == query[..2]
        && reply[4..6] == [0, 1]
        && question(reply) == question(query)
        && records(reply).all(|record| record.is_ok())
}
