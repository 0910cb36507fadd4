//! Reading messages: queries from clients, and what other servers answer.

use roadstead_zone::name::MAX_LENGTH;

/// The fixed part of every message.
pub const HEADER_LENGTH: usize = 12;
/// The class of everything we serve.
pub(crate) const CLASS_INTERNET: u16 = 1;
/// The pseudo-record with which a client says how much it can take (RFC 6891).
pub(crate) const TYPE_OPT: u16 = 41;

const MAX_POINTERS: usize = 16;

/// A query that can be answered, or at least refused.
#[derive(Debug)]
pub struct Query<'a> {
    /// The whole message.
    pub bytes: &'a [u8],
    /// The name asked for, in small letters.
    pub name: NameBuffer,
    /// The number of the type asked for.
    pub kind: u16,
    /// The class asked for.
    pub class: u16,
    /// Where the question ends.
    pub question_end: usize,
    /// What the client said about itself.
    pub edns: Option<Edns>,
}

/// What a client says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    /// The longest reply it takes over UDP.
    pub size: u16,
    /// The version of the extension; only 0 exists.
    pub version: u8,
    /// Whether it wants the records of DNSSEC.
    pub dnssec: bool,
    /// Whether it wants to know who answers (NSID, RFC 5001).
    pub identity: bool,
}

/// The option with which a client asks who answers.
pub(crate) const OPTION_IDENTITY: u16 = 3;

/// Why a message is not a query for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not a query at all. To answer might start a fight between two servers.
    Ignore,
    /// It cannot be read.
    Malformed,
    /// It wants something other than an answer.
    NotImplemented,
}

/// A name in wire form, without pointers, in place.
#[derive(Clone, Copy, Debug)]
pub struct NameBuffer {
    bytes: [u8; MAX_LENGTH],
    length: usize,
}

impl NameBuffer {
    /// The bytes, with the zero at the end.
    pub fn wire(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The same name in small letters.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let mut name = Self { bytes: [0; MAX_LENGTH], length: 0 };
        name.push(wire)?;
        name.bytes[..name.length].make_ascii_lowercase();
        Some(name)
    }

    /// A name made of two parts, both in small letters.
    pub fn joined(before: &[u8], behind: &[u8]) -> Option<Self> {
        let mut name = Self { bytes: [0; MAX_LENGTH], length: 0 };
        name.push(before)?;
        name.push(behind)?;
        Some(name)
    }

    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.length + bytes.len();
        self.bytes.get_mut(self.length..end)?.copy_from_slice(bytes);
        self.length = end;
        Some(())
    }
}

impl<'a> Query<'a> {
    /// Reads a message from a client.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Fault> {
        if bytes.len() < HEADER_LENGTH || bytes[2] & 0x80 != 0 {
            return Err(Fault::Ignore);
        }
        if bytes[2] & 0x78 != 0 {
            return Err(Fault::NotImplemented);
        }
        let count = |at| read_u16(bytes, at).unwrap_or(0);
        if count(4) != 1 {
            return Err(Fault::Malformed);
        }
        let (name, at) = read_plain_name(bytes).ok_or(Fault::Malformed)?;
        let kind = read_u16(bytes, at).ok_or(Fault::Malformed)?;
        let class = read_u16(bytes, at + 2).ok_or(Fault::Malformed)?;
        let before = usize::from(count(6)) + usize::from(count(8));
        let edns = read_edns(bytes, at + 4, (before, usize::from(count(10))))?;
        Ok(Self { bytes, name, kind, class, question_end: at + 4, edns })
    }
}

impl Query<'_> {
    /// Whether the client checks signatures itself.
    pub(crate) fn checking_disabled(&self) -> bool {
        self.bytes[3] & 0x10 != 0
    }

    /// Whether the client wants the records of DNSSEC.
    pub(crate) fn wants_dnssec(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec)
    }
}

/// A record of a message, with its data still in place.
#[derive(Debug)]
pub struct Record {
    /// Whose record it is.
    pub owner: NameBuffer,
    /// The number of its type.
    pub kind: u16,
    /// The class; for `OPT` something else.
    pub class: u16,
    /// How long it may be remembered; for `OPT` something else.
    pub lifetime: u32,
    /// Where its data begins.
    pub data_at: usize,
    /// How long its data is.
    pub data_length: usize,
}

impl Record {
    /// Reads the record at a place; `None` if there is none.
    pub fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let (owner, at) = read_name(bytes, at)?;
        let data_at = at + 10;
        let data_length = usize::from(read_u16(bytes, at + 8)?);
        bytes.get(data_at..data_at + data_length)?;
        let high = u32::from(read_u16(bytes, at + 4)?);
        Some(Self {
            owner,
            kind: read_u16(bytes, at)?,
            class: read_u16(bytes, at + 2)?,
            lifetime: (high << 16) | u32::from(read_u16(bytes, at + 6)?),
            data_at,
            data_length,
        })
    }

    /// Where the next record begins.
    pub fn end(&self) -> usize {
        self.data_at + self.data_length
    }
}

/// The sections of a message that hold records, in their order. Each number is the place in the
/// header where they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// What was asked for.
    Answer = 6,
    /// Who is responsible.
    Authority = 8,
    /// What will probably be asked next, and what concerns the message itself.
    Additional = 10,
}

/// All records of a message with one question, by section. An error says that there should be more,
/// but they cannot be read.
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<(Section, Record), Fault>> {
    let question_end = match read_u16(bytes, 4) {
        Some(1) => read_plain_name(bytes).map(|(_, at)| at + 4),
        _ => None,
    };
    let count = |at| question_end.and_then(|_| read_u16(bytes, at)).unwrap_or(0);
    let sections = [Section::Answer, Section::Authority, Section::Additional];
    let all = sections.map(|one| std::iter::repeat_n(one, usize::from(count(one as usize))));
    let mut at = question_end;
    all.into_iter().flatten().map_while(move |section| {
        let record = Record::read(bytes, at?);
        at = record.as_ref().map(Record::end);
        Some(record.map(|record| (section, record)).ok_or(Fault::Malformed))
    })
}

/// The records of a message's answer section, as far as they can be read.
pub(crate) fn answers(bytes: &[u8]) -> impl Iterator<Item = Record> {
    let readable = records(bytes).map_while(Result::ok);
    readable.take_while(|(section, _)| *section == Section::Answer).map(|(_, record)| record)
}

/// The type that a query asks for; 0 if it cannot be read.
pub fn question_type(query: &[u8]) -> u16 {
    let mut at = HEADER_LENGTH;
    while let Some(length) = query.get(at).filter(|length| **length > 0) {
        at += 1 + usize::from(*length);
    }
    read_u16(query, at + 1).unwrap_or(0)
}

/// Reads a number of two bytes.
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Reads a name that may end in a pointer; returns it and where the next thing begins.
pub fn read_name(bytes: &[u8], start: usize) -> Option<(NameBuffer, usize)> {
    let mut name = NameBuffer { bytes: [0; MAX_LENGTH], length: 0 };
    let mut at = start;
    let mut after = None;
    let mut pointers = 0;
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => {
                name.push(&[0])?;
                return Some((name, after.unwrap_or(at + 1)));
            }
            1..=63 => {
                name.push(bytes.get(at..at + 1 + length)?)?;
                at += 1 + length;
            }
            0xc0.. => {
                pointers += 1;
                let target = usize::from(read_u16(bytes, at)? & 0x3fff);
                // Pointers lead backwards, or else they could lead in a circle.
                if pointers > MAX_POINTERS || target >= at {
                    return None;
                }
                after = after.or(Some(at + 2));
                at = target;
            }
            _ => return None,
        }
    }
}

/// Reads the name of the question, before which there is nothing to point to, in small letters.
/// Every query comes through here, so it is found first and copied at once.
fn read_plain_name(bytes: &[u8]) -> Option<(NameBuffer, usize)> {
    let mut end = HEADER_LENGTH;
    loop {
        match usize::from(*bytes.get(end)?) {
            0 => break,
            length @ 1..=63 => end += 1 + length,
            _ => return None,
        }
    }
    let wire = &bytes[HEADER_LENGTH..=end];
    let mut name = NameBuffer { bytes: [0; MAX_LENGTH], length: wire.len() };
    let copy = name.bytes.get_mut(..wire.len())?;
    for (small, byte) in copy.iter_mut().zip(wire) {
        *small = byte.to_ascii_lowercase();
    }
    Some((name, end + 1))
}

/// Looks for the one `OPT` record. Junk behind the question is tolerated, as others do.
fn has_option(mut options: &[u8], wanted: u16) -> bool {
    while let Some(([high, low, long, short], rest)) = options.split_first_chunk::<4>() {
        if u16::from_be_bytes([*high, *low]) == wanted {
            return true;
        }
        let length = usize::from(u16::from_be_bytes([*long, *short]));
        options = rest.get(length..).unwrap_or_default();
    }
    false
}

fn read_edns(
    bytes: &[u8],
    mut at: usize,
    (before, additional): (usize, usize),
) -> Result<Option<Edns>, Fault> {
    let mut found = None;
    for number in 0..before + additional {
        let record = Record::read(bytes, at).ok_or(Fault::Malformed)?;
        at = record.end();
        // Elsewhere it means nothing (RFC 6891, section 6.1.1).
        if record.kind != TYPE_OPT || number < before {
            continue;
        }
        let options = &bytes[record.data_at..record.end()];
        if !options_are_whole(options) {
            return Err(Fault::Malformed);
        }
        let [_, version, flags, _] = record.lifetime.to_be_bytes();
        let edns = Edns {
            size: record.class,
            version,
            dnssec: flags & 0x80 != 0,
            identity: has_option(options, OPTION_IDENTITY),
        };
        if found.replace(edns).is_some() {
            return Err(Fault::Malformed);
        }
    }
    Ok(found)
}

/// Whether options fill their record exactly.
fn options_are_whole(mut options: &[u8]) -> bool {
    while !options.is_empty() {
        let length = read_u16(options, 2).map(usize::from);
        let Some(rest) = length.and_then(|length| options.get(4 + length..)) else { return false };
        options = rest;
    }
    true
}
