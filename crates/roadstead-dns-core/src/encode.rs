//! From answers to records on the wire: the cluster's own here, those of others in `foreign`, those of
//! tables and templates in `hosts`.

use std::net::IpAddr;

use roadstead_zone::answer::{Answer, AnswerEnd};
use roadstead_zone::entry::{V4_RECORD, V6_RECORD};
use roadstead_zone::explain::AnswerReason;
use roadstead_zone::records::{
    Glue, HostLabel, PointerRecords, RecordTarget, Records, ServiceRecords,
};
use roadstead_zone::view::Dashed;
use roadstead_zone::zone::Zone;

use crate::message::{HEADER_LENGTH, Section};
use crate::reply::{OwnerName, Reply, ResponseCode, types};

pub(crate) mod foreign;
pub(crate) mod hosts;

/// Where the zone's own name is to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZoneName<'a>(OwnerName<'a>);

impl<'a> ZoneName<'a> {
    /// Within the question, so that its letters stay as they were asked; unless the question is
    /// about another name.
    pub(crate) fn of(answer: &Answer<'_>, rewritten: bool, zone: &'a Zone) -> Self {
        match rewritten {
            false => Self(OwnerName::At(HEADER_LENGTH + answer.zone_at)),
            true => Self(OwnerName::Name(zone.origin().wire())),
        }
    }

    /// In the question, which is about nothing else.
    pub(crate) fn of_question() -> Self {
        Self(OwnerName::At(HEADER_LENGTH))
    }
}

/// The number of a reason in RFC 8914.
pub(crate) fn number(reason: &AnswerReason<'_>) -> u16 {
    match reason {
        AnswerReason::NotListed => 14,
        _ => 0,
    }
}

/// Writes the aliases that were followed; returns where the last name is that was asked about.
/// `None` if they do not all fit: then nothing can follow, because its name would not be there.
pub(crate) fn aliases(
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
pub(crate) fn alias(
    reply: &mut Reply<'_>,
    owner: usize,
    target: [&[u8]; 2],
    lifetime: u32,
) -> Option<usize> {
    let mut at = owner;
    let fits = reply.record(Section::Answer, OwnerName::At(owner), (types::CNAME, lifetime), |r| {
        at = r.position();
        target.iter().try_for_each(|part| r.put(part))
    });
    if !fits {
        reply.set_truncated();
    }
    fits.then_some(at)
}

/// Writes what the cluster's zone says.
pub(crate) struct Encoder<'e, 'b> {
    pub reply: &'e mut Reply<'b>,
    pub zone: &'e Zone,
    pub zone_name: ZoneName<'e>,
    /// Decides which of several addresses comes first.
    pub turn: usize,
}

impl Encoder<'_, '_> {
    /// Writes the answer about a name that is in the message already, at the place `owner`.
    pub(crate) fn answer(&mut self, answer: &Answer<'_>, owner: usize) -> ResponseCode {
        self.reply.set_authoritative();
        let Some(owner) = aliases(self.reply, self.zone, answer, owner) else {
            return ResponseCode::NoError;
        };
        match &answer.end {
            AnswerEnd::Found(found, lifetime) => {
                if !self.records(found, owner, *lifetime) {
                    self.reply.set_truncated();
                }
                ResponseCode::NoError
            }
            AnswerEnd::NoData(lifetime) => {
                self.soa(Section::Authority, *lifetime);
                ResponseCode::NoError
            }
            AnswerEnd::NoName(lifetime) => {
                self.soa(Section::Authority, *lifetime);
                ResponseCode::NoName
            }
            AnswerEnd::NotReady
            | AnswerEnd::Loop
            | AnswerEnd::TooLong
            | AnswerEnd::Elsewhere
            | AnswerEnd::NotOurs => ResponseCode::ServerFailure,
        }
    }

    /// Returns whether all of them fit.
    fn records(&mut self, records: &Records<'_>, owner: usize, lifetime: u32) -> bool {
        let at = OwnerName::At(owner);
        match records {
            Records::V4(all) => self.reply.ready_made(all, V4_RECORD, owner, self.turn),
            Records::V6(all) => self.reply.ready_made(all, V6_RECORD, owner, self.turn),
            Records::HostV4(host) => host
                .addresses()
                .filter(IpAddr::is_ipv4)
                .all(|one| self.reply.address(Section::Answer, at, one, lifetime)),
            Records::HostV6(host) => host
                .addresses()
                .filter(IpAddr::is_ipv6)
                .all(|one| self.reply.address(Section::Answer, at, one, lifetime)),
            Records::One(one) => self.reply.address(Section::Answer, at, *one, lifetime),
            Records::Services(all) => self.services(all, owner, lifetime),
            Records::Pointers(all) => self.pointers(all, owner, lifetime),
            Records::Alias => true,
            Records::Soa => self.soa(Section::Answer, lifetime),
            Records::Ns(target) => {
                self.name_server(*target, (owner, lifetime), Section::Additional)
            }
            Records::NsOfAddresses(target) => {
                self.zone_name = ZoneName(OwnerName::Name(self.zone.origin().wire()));
                self.name_server(*target, (owner, lifetime), Section::Additional)
            }
            Records::Version => {
                self.reply
                    .record(Section::Answer, at, (types::TXT, lifetime), |r| r.label(b"1.1.0"))
            }
        }
    }

    fn services(&mut self, all: &ServiceRecords<'_>, owner: usize, lifetime: u32) -> bool {
        let (suffix, reply) = (self.zone.suffix(all.is_outside()), &mut *self.reply);
        let first = reply.position();
        let fits = all.iter().all(|service| {
            reply.record(Section::Answer, OwnerName::At(owner), (types::SRV, lifetime), |r| {
                r.put(&[0, 0])?;
                r.put(&service.weight.to_be_bytes())?;
                r.put(&service.port.to_be_bytes())?;
                // RFC 2782 wants this name in full.
                r.name(OwnerName::Target(service.target, suffix))
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
                at +=
                    count * (BEFORE_TARGET + label_length(&one) + target.key.len() + suffix.len());
                let owner = match name < POINTERS_END {
                    true => OwnerName::At(name),
                    false => OwnerName::Below(target.host, service),
                };
                glue(reply, &one, owner, lifetime)
            });
        fits
    }

    fn pointers(&mut self, all: &PointerRecords<'_>, owner: usize, lifetime: u32) -> bool {
        let suffix = self.zone.suffix(false);
        all.iter().all(|target| {
            self.reply.record(Section::Answer, OwnerName::At(owner), (types::PTR, lifetime), |r| {
                r.name(OwnerName::Target(target, suffix))
            })
        })
    }

    /// Writes who serves the zone, and where that is into another section; returns whether it fits.
    pub(crate) fn name_server(
        &mut self,
        target: Option<RecordTarget<'_>>,
        (owner, lifetime): (usize, u32),
        glue: Section,
    ) -> bool {
        let mut at = 0;
        let (suffix, zone_name) = (self.zone.suffix(false), self.zone_name);
        let owner = OwnerName::At(owner);
        let fits = self.reply.record(Section::Answer, owner, (types::NS, lifetime), |r| {
            at = r.position();
            match target {
                Some(target) => r.name(OwnerName::Target(target, suffix)),
                None => server_name(r, zone_name),
            }
        });
        // A Service's addresses are among the answers already.
        if fits && (glue == Section::Additional || target.is_none()) {
            for one in self.zone.servers() {
                let _ = self.reply.address(glue, OwnerName::At(at), one, lifetime);
            }
        }
        fits
    }

    /// Returns whether it fits.
    pub(crate) fn soa(&mut self, section: Section, lifetime: u32) -> bool {
        const REFRESH_RETRY_EXPIRE: [u8; 12] = [0, 0, 0x1c, 0x20, 0, 0, 7, 8, 0, 1, 0x51, 0x80];
        let (serial, zone_name) = (self.zone.serial(), self.zone_name);
        self.reply.record(section, zone_name.0, (types::SOA, lifetime), |r| {
            let mut numbers = [0; 20];
            numbers[..4].copy_from_slice(&serial.to_be_bytes());
            numbers[4..16].copy_from_slice(&REFRESH_RETRY_EXPIRE);
            numbers[16..].copy_from_slice(&lifetime.to_be_bytes());
            server_name(r, zone_name)?;
            r.put(b"\x0ahostmaster")?;
            r.name(zone_name.0)?;
            r.put(&numbers)
        })
    }
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

fn glue(reply: &mut Reply<'_>, glue: &Glue<'_>, owner: OwnerName<'_>, lifetime: u32) -> bool {
    let mut add = |one| reply.address(Section::Additional, owner, one, lifetime);
    match glue {
        Glue::Own(_, own) => own.iter().all(&mut add),
        Glue::Host(_, host) => host.addresses().all(&mut add),
    }
}

/// `ns.dns` in the zone.
fn server_name(reply: &mut Reply<'_>, zone_name: ZoneName<'_>) -> Option<()> {
    reply.put(b"\x02ns\x03dns")?;
    reply.name(zone_name.0)
}
