//! Writing replies into a fixed buffer.
//!
//! A record that does not fit is left out as a whole. Whether that makes the reply truncated is
//! for the caller to say: answers must be complete, additional addresses need not be.

use std::fmt::{self, Write};
use std::net::IpAddr;

use roadstead_zone::records::{HostLabel, RecordTarget};
use roadstead_zone::view::Dashed;

use crate::message::{
    CLASS_INTERNET, Edns, HEADER_LENGTH, OPTION_IDENTITY, Query, Section, TYPE_OPT,
};
use crate::setup::Setup;

/// What a reply says about the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseCode {
    /// All is well.
    NoError = 0,
    /// We could not read the query.
    FormatError = 1,
    /// We cannot say right now.
    ServerFailure = 2,
    /// The name does not exist.
    NoName = 3,
    /// We do not do that.
    NotImplemented = 4,
    /// We do not do that for you.
    Refused = 5,
    /// We do not know that version of EDNS.
    BadVersion = 16,
}

/// The numbers of the record types that we write.
pub(crate) mod types {
    #![allow(missing_docs)]
    pub(crate) const A: u16 = 1;
    pub(crate) const NS: u16 = 2;
    pub(crate) const CNAME: u16 = 5;
    pub(crate) const SOA: u16 = 6;
    pub(crate) const PTR: u16 = 12;
    pub(crate) const TXT: u16 = 16;
    pub(crate) const AAAA: u16 = 28;
    pub(crate) const SRV: u16 = 33;
}

/// Whose record it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnerName<'a> {
    /// A name that is in the message already, at this place.
    At(usize),
    /// A name in full.
    Name(&'a [u8]),
    /// A label below a name that is in the message already, at this place.
    Below(HostLabel<'a>, usize),
    /// The name of a Service or an endpoint, and what such names end in.
    Target(RecordTarget<'a>, &'a [u8]),
}

/// The option that says why (RFC 8914).
const OPTION_REASON: u16 = 15;
/// What follows the question in a query: how much we can take ourselves.
const OPT_LENGTH: usize = 11;

/// A reply in the making.
#[derive(Debug)]
pub(crate) struct Reply<'a> {
    buffer: &'a mut [u8],
    at: usize,
    edns: Option<Edns>,
    setup: &'a Setup,
}

impl<'a> Reply<'a> {
    /// Begins a reply that repeats the question exactly as it was asked, letter by letter. The
    /// reply will not be longer than the buffer.
    pub(crate) fn new(query: &Query<'_>, buffer: &'a mut [u8], setup: &'a Setup) -> Self {
        let mut reply = Self { buffer, at: 0, edns: query.edns, setup };
        // It is a response, recursion is available if there is anybody to ask, and whether it was
        // wished for is repeated, as is whether signatures are to be checked.
        let available = if setup.asks_others() { 0x80 } else { 0 };
        let flags = [0x80 | (query.bytes[2] & 0x01), available | (query.bytes[3] & 0x10)];
        let asked = &query.bytes[..query.question_end];
        reply.put(asked).expect("the shortest buffer holds the longest question");
        reply.buffer[2..4].copy_from_slice(&flags);
        reply.buffer[4..HEADER_LENGTH].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        reply
    }

    /// Says that the data is ours.
    pub(crate) fn set_authoritative(&mut self) {
        self.buffer[2] |= 0x04;
    }

    /// Says that we ask nobody else, as CoreDNS does about its own data.
    pub(crate) fn clear_recursion(&mut self) {
        self.buffer[3] &= 0x7f;
    }

    /// Passes on that another server has checked the signatures.
    pub(crate) fn set_authentic(&mut self) {
        self.buffer[3] |= 0x20;
    }

    /// Says that there is more than fits.
    pub(crate) fn set_truncated(&mut self) {
        self.buffer[2] |= 0x02;
    }

    /// Where the next thing will be written.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Appends a record whose data `fill` writes; returns false if it does not fit.
    #[must_use]
    pub(crate) fn record(
        &mut self,
        section: Section,
        owner: OwnerName<'_>,
        (kind, lifetime): (u16, u32),
        fill: impl FnOnce(&mut Self) -> Option<()>,
    ) -> bool {
        let start = self.at;
        let done = self.try_record(owner, kind, lifetime, fill).is_some();
        if done {
            self.count(section);
        } else {
            self.at = start;
        }
        done
    }

    fn try_record(
        &mut self,
        owner: OwnerName<'_>,
        kind: u16,
        lifetime: u32,
        fill: impl FnOnce(&mut Self) -> Option<()>,
    ) -> Option<()> {
        let mut fixed = [0; 10];
        fixed[..2].copy_from_slice(&kind.to_be_bytes());
        fixed[2..4].copy_from_slice(&CLASS_INTERNET.to_be_bytes());
        fixed[4..8].copy_from_slice(&lifetime.to_be_bytes());
        self.name(owner)?;
        self.put(&fixed)?;
        let data = self.at;
        fill(self)?;
        let length = u16::try_from(self.at - data).ok()?;
        self.buffer[data - 2..data].copy_from_slice(&length.to_be_bytes());
        Some(())
    }

    /// Appends an A or AAAA record; returns false if it does not fit.
    #[must_use]
    pub(crate) fn address(
        &mut self,
        section: Section,
        owner: OwnerName<'_>,
        address: IpAddr,
        lifetime: u32,
    ) -> bool {
        match address {
            IpAddr::V4(address) => {
                self.record(section, owner, (types::A, lifetime), |r| r.put(&address.octets()))
            }
            IpAddr::V6(address) => {
                self.record(section, owner, (types::AAAA, lifetime), |r| r.put(&address.octets()))
            }
        }
    }

    /// Appends a name.
    pub(crate) fn name(&mut self, name: OwnerName<'_>) -> Option<()> {
        match name {
            OwnerName::At(at) => self.put(&(0xc000 | u16::try_from(at).ok()?).to_be_bytes()),
            OwnerName::Name(wire) => self.put(wire),
            OwnerName::Below(host, at) => {
                self.host(host)?;
                self.name(OwnerName::At(at))
            }
            OwnerName::Target(target, suffix) => {
                self.host(target.host)?;
                self.put(target.key)?;
                self.put(suffix)
            }
        }
    }

    fn host(&mut self, host: HostLabel<'_>) -> Option<()> {
        match host {
            HostLabel::Service => Some(()),
            HostLabel::Name(name) => self.label(name.as_bytes()),
            HostLabel::Address(address) => self.label(Dashed::new(address).bytes()),
        }
    }

    /// Appends a label.
    pub(crate) fn label(&mut self, label: &[u8]) -> Option<()> {
        self.put(&[u8::try_from(label.len()).ok()?])?;
        self.put(label)
    }

    /// Appends answers that are ready for the wire, beginning with the one whose turn it is;
    /// returns false if some do not fit. `owner` is where the name is that they belong to.
    #[must_use]
    pub(crate) fn ready_made(
        &mut self,
        all: &[u8],
        length: usize,
        owner: usize,
        turn: usize,
    ) -> bool {
        let count = all.len() / length;
        let room = (self.room() / length).min(count);
        let first = turn % count.max(1);
        let (front, back) = all.split_at(first * length);
        let from = self.at;
        let back = &back[..back.len().min(room * length)];
        let front = &front[..room * length - back.len()];
        let done = self.put(back).and_then(|()| self.put(front)).is_some();
        if owner != HEADER_LENGTH {
            let pointer = (0xc000 | u16::try_from(owner).unwrap_or(0)).to_be_bytes();
            for record in self.buffer[from..self.at].chunks_exact_mut(length) {
                record[..2].copy_from_slice(&pointer);
            }
        }
        self.add(Section::Answer, u16::try_from(room).unwrap_or(u16::MAX));
        done && room == count
    }

    fn room(&self) -> usize {
        let reserved = if self.edns.is_some() { OPT_LENGTH } else { 0 };
        self.buffer.len().saturating_sub(self.at + reserved)
    }

    /// Appends bytes, if there is room.
    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at + bytes.len();
        if bytes.len() > self.room() {
            return None;
        }
        self.buffer[self.at..end].copy_from_slice(bytes);
        self.at = end;
        Some(())
    }

    /// Overwrites bytes that were written before.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn count(&mut self, section: Section) {
        self.add(section, 1);
    }

    fn add(&mut self, section: Section, more: u16) {
        let field = &mut self.buffer[section as usize..][..2];
        let count = u16::from_be_bytes([field[0], field[1]]);
        field.copy_from_slice(&count.saturating_add(more).to_be_bytes());
    }

    /// Appends records of another server, whose names are in full or point to places that are the
    /// same here.
    pub(crate) fn foreign(&mut self, section: Section, record: &[u8]) -> Option<()> {
        self.put(record)?;
        self.count(section);
        Some(())
    }

    /// Whether the client can be told why.
    pub(crate) fn takes_reasons(&self) -> bool {
        self.edns.is_some()
    }

    /// Completes the reply; returns its length.
    pub(crate) fn finish(self, code: ResponseCode) -> usize {
        self.finish_with(code, None::<(u16, &str)>)
    }

    /// Completes the reply with a reason (RFC 8914), if the client takes one and it fits; returns
    /// its length.
    pub(crate) fn finish_with(
        mut self,
        code: ResponseCode,
        reason: Option<(u16, impl fmt::Display)>,
    ) -> usize {
        let code = code as u8;
        self.buffer[3] |= code & 0x0f;
        if let Some(edns) = self.edns.take() {
            let [size_high, size_low] = self.setup.udp_size.to_be_bytes();
            let [kind_high, kind_low] = TYPE_OPT.to_be_bytes();
            let dnssec = if edns.dnssec { 0x80 } else { 0 };
            let opt = [0, kind_high, kind_low, size_high, size_low, code >> 4, 0, dnssec, 0, 0, 0];
            // What was kept free until now is no longer.
            if self.put(&opt).is_some() {
                self.count(Section::Additional);
                let options = self.at;
                let identity = &self.setup.identity;
                if edns.identity && !identity.is_empty() {
                    self.option(OPTION_IDENTITY, |r| r.put(identity.as_bytes()));
                }
                if let Some((number, text)) = reason {
                    self.option(OPTION_REASON, |r| {
                        r.put(&number.to_be_bytes())?;
                        write!(r, "{text}").ok()
                    });
                }
                let length = u16::try_from(self.at - options).unwrap_or(0);
                self.buffer[options - 2..options].copy_from_slice(&length.to_be_bytes());
            }
        }
        self.at
    }

    /// Appends an option to the OPT record that was just written, if it fits.
    fn option(&mut self, code: u16, fill: impl FnOnce(&mut Self) -> Option<()>) {
        let start = self.at;
        if self.try_option(code, fill).is_none() {
            self.at = start;
        }
    }

    fn try_option(&mut self, code: u16, fill: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.put(&code.to_be_bytes())?;
        self.put(&[0, 0])?;
        let data = self.at;
        fill(self)?;
        let length = u16::try_from(self.at - data).ok()?;
        self.buffer[data - 2..data].copy_from_slice(&length.to_be_bytes());
        Some(())
    }
}

impl Write for Reply<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes()).ok_or(fmt::Error)
    }
}

/// Writes the shortest possible reply, to a query that could not be read; returns its length.
pub fn bare(query: &[u8], code: ResponseCode, buffer: &mut [u8]) -> usize {
    buffer[..HEADER_LENGTH].fill(0);
    buffer[..2].copy_from_slice(&query[..2]);
    buffer[2] = 0x80 | (query[2] & 0x79);
    buffer[3] = 0x80 | code as u8;
    HEADER_LENGTH
}
