//! One query in, one reply out: the whole of the server but for its sockets and other servers.

use std::net::IpAddr;
use std::time::Instant;

use roadstead_zone::answer::{Answer, AnswerEnd};
use roadstead_zone::name::Name;
use roadstead_zone::record_type::RecordType;
use roadstead_zone::zone::Zone;

use crate::cache::{AgedAnswer, AnswerCaches, QuestionKey};
use crate::encode::{self, Encoder, ZoneName, foreign, hosts};
use crate::message::{CLASS_INTERNET, Fault, HEADER_LENGTH, NameBuffer, Query};
use crate::reply::{Reply, ResponseCode, bare};
use crate::search::Querier;
use crate::setup::{Block, Setup};

/// The longest reply over TCP, and so the size of buffer that always suffices.
pub const MAX_REPLY: usize = 65_535;
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
    /// The same, and it is what others said before.
    Remembered(usize),
    /// Others have to be asked; `resolve` does that and completes the reply.
    Forward,
}

/// What an answer is made from.
#[derive(Clone, Copy, Debug)]
pub struct QueryContext<'a> {
    /// The cluster's names.
    pub zone: &'a Zone,
    /// What is done with which names.
    pub setup: &'a Setup,
    /// What others said before.
    pub answers: &'a AnswerCaches,
    /// How the query came.
    pub transport: Transport,
    /// Different each time: it decides which of several addresses comes first.
    pub turn: usize,
    /// When the query came.
    pub now: Instant,
    /// Who asks, if searches are to be completed.
    pub querier: Option<Querier<'a>>,
}

/// Answers a query, into a buffer that holds any reply of that transport.
pub fn respond(context: &QueryContext<'_>, bytes: &[u8], buffer: &mut [u8]) -> Response {
    let query = match Query::parse(bytes) {
        Ok(query) => query,
        Err(Fault::Ignore) => return Response::Ignore,
        Err(Fault::Malformed) => {
            return Response::Reply(bare(bytes, ResponseCode::FormatError, buffer));
        }
        Err(Fault::NotImplemented) => {
            return Response::Reply(bare(bytes, ResponseCode::NotImplemented, buffer));
        }
    };
    if let Some(code) = refusal(&query) {
        return Response::Reply(context.refuse(&query, code, buffer));
    }
    let Some(block) = context.setup.block(query.name.wire()) else {
        return Response::Reply(context.refuse(&query, ResponseCode::Refused, buffer));
    };
    let rewritten = block.rewritten(query.name.wire());
    let rewritten = rewritten.and_then(|name| NameBuffer::from_wire(name.wire()));
    let name = rewritten.as_ref().unwrap_or(&query.name).wire();
    let asked = Asked { query: &query, name, rewritten: rewritten.is_some() };
    context.respond_about(&asked, block, buffer)
}

/// A query, and the name that it is about in the end.
struct Asked<'q> {
    query: &'q Query<'q>,
    name: &'q [u8],
    /// Whether that is another than the one in the query.
    rewritten: bool,
}

/// What the server itself knows about a name.
#[derive(Debug)]
pub(crate) enum Stage<'a> {
    /// Addresses from the table of hosts, of whatever family.
    Hosts(&'a [IpAddr], u32),
    /// A name from the table of hosts.
    HostName(&'a Name, u32),
    /// Not in the table, and so nowhere.
    NoHost,
    /// Made from the question alone.
    Template(&'a [(u32, IpAddr)], ResponseCode),
    /// The cluster's answer.
    Zone(Answer<'a>),
    /// Others have to be asked.
    Others,
}

impl<'a> QueryContext<'a> {
    fn respond_about(&self, asked: &Asked<'_>, block: &'a Block, buffer: &mut [u8]) -> Response {
        let Asked { query, name, rewritten } = *asked;
        let kind = RecordType::from_number(query.kind);
        let stage = self.stage(block, name, kind);
        if let Stage::Zone(Answer { end: AnswerEnd::Elsewhere, .. }) | Stage::Others = stage {
            return self.respond_for_others(asked, block, &stage, buffer);
        }
        let missing = matches!(&stage, Stage::Zone(answer) if answer.is_missing());
        if missing
            && !rewritten
            && let Some(response) = self.complete_search(query, buffer)
        {
            return response;
        }
        let limit = self.limit(query);
        let mut reply = Reply::new(query, &mut buffer[..limit], self.setup);
        Response::Reply(match stage {
            Stage::Zone(answer) => {
                let reason =
                    reply.takes_reasons().then(|| self.zone.explain(name, kind, &answer)).flatten();
                let turn = if block.fixed_order { 0 } else { self.turn };
                if self.setup.coredns_compat {
                    reply.clear_recursion();
                }
                let zone_name = ZoneName::of(&answer, rewritten, self.zone);
                let mut encoder = Encoder { reply: &mut reply, zone: self.zone, zone_name, turn };
                let code = encoder.answer(&answer, HEADER_LENGTH);
                reply.finish_with(code, reason.map(|reason| (encode::number(&reason), reason)))
            }
            stage => {
                let code = hosts::write(&mut reply, &stage, kind, HEADER_LENGTH);
                reply.finish(code)
            }
        })
    }

    /// What can be answered from memory, or without anybody to ask.
    fn respond_for_others(
        &self,
        asked: &Asked<'_>,
        block: &Block,
        stage: &Stage<'_>,
        buffer: &mut [u8],
    ) -> Response {
        let query = asked.query;
        let target = match stage {
            Stage::Zone(answer) => answer.aliases.iter().last().map(|alias| alias.to_lowercase()),
            _ => None,
        };
        let name = target.as_ref().map_or(asked.name, |target| target.wire());
        let next = self.setup.block(name).filter(|_| target.is_some()).unwrap_or(block);
        if next.forward(name).is_none() && next.hosts.is_none() {
            return Response::Reply(match stage {
                // With nobody to ask, the alias itself is all we can say.
                Stage::Zone(_) => self.complete(query, None, None, buffer),
                _ => self.refuse(query, ResponseCode::Refused, buffer),
            });
        }
        if asked.rewritten || target.is_some() || block.cache(name).is_none() {
            return Response::Forward;
        }
        let known = self.answers.of(block).get(&key(query, name));
        let Some(stored) = known else { return Response::Forward };
        if !stored.is_fresh(self.now) {
            return Response::Forward;
        }
        let nothing = None::<(u16, &str)>;
        Response::Remembered(self.pass_on(query, stored.aged(self.now), nothing, buffer))
    }

    /// What we know about a name without asking anybody.
    pub(crate) fn stage(&self, block: &'a Block, name: &[u8], kind: RecordType) -> Stage<'a> {
        let mut templates = block.templates.iter();
        if let Some((answers, code)) = templates.find_map(|one| one.apply(name, kind)) {
            return Stage::Template(answers, code);
        }
        if let Some(stage) = block.hosts.as_ref().and_then(|hosts| hosts::look_up(hosts, name)) {
            return stage;
        }
        let Some(fall_through) = &block.kubernetes else { return Stage::Others };
        let answer = self.zone.answer(name, kind);
        match answer.end {
            AnswerEnd::NotOurs => Stage::Others,
            AnswerEnd::NoName(_) if fall_through.covers(name) => Stage::Others,
            _ => Stage::Zone(answer),
        }
    }

    /// Writes what another server said.
    pub(crate) fn pass_on(
        &self,
        query: &Query<'_>,
        answer: AgedAnswer<'_>,
        reason: Option<(u16, impl std::fmt::Display)>,
        buffer: &mut [u8],
    ) -> usize {
        let limit = self.limit(query);
        let mut reply = Reply::new(query, &mut buffer[..limit], self.setup);
        if self.setup.coredns_compat {
            reply.set_authoritative();
        }
        let code = foreign::pass_on(&mut reply, query, answer);
        reply.finish_with(code, reason)
    }

    /// Completes the answer to an alias, or to a name that stands for another, with what another
    /// server said about that; without it, only what is ours is said.
    pub(crate) fn complete(
        &self,
        query: &Query<'_>,
        asked: Option<&[u8]>,
        found: Option<AgedAnswer<'_>>,
        buffer: &mut [u8],
    ) -> usize {
        let limit = self.limit(query);
        let mut reply = Reply::new(query, &mut buffer[..limit], self.setup);
        let kind = RecordType::from_number(query.kind);
        let name = asked.unwrap_or(query.name.wire());
        let answer = self.zone.answer(name, kind);
        if !answer.aliases.is_empty() {
            reply.set_authoritative();
        }
        let fits = encode::aliases(&mut reply, self.zone, &answer, HEADER_LENGTH).is_some();
        let code = match found.filter(|_| fits) {
            None => ResponseCode::NoError,
            Some(found) => {
                let same = asked.map(|asked| (asked, HEADER_LENGTH));
                foreign::retell(&mut reply, same, found)
            }
        };
        reply.finish(code)
    }

    /// Writes a reply without data.
    pub(crate) fn refuse(&self, query: &Query<'_>, code: ResponseCode, buffer: &mut [u8]) -> usize {
        let buffer = &mut buffer[..usize::from(UDP_SIZE_WITHOUT_EDNS)];
        Reply::new(query, buffer, self.setup).finish(code)
    }

    /// Writes that it went wrong, and why.
    pub(crate) fn fail(
        &self,
        query: &Query<'_>,
        code: ResponseCode,
        reason: (u16, impl std::fmt::Display),
        buffer: &mut [u8],
    ) -> usize {
        let buffer = &mut buffer[..usize::from(UDP_SIZE_WITHOUT_EDNS)];
        let reply = Reply::new(query, buffer, self.setup);
        reply.finish_with(code, Some(reason))
    }

    /// How long the reply may be.
    pub fn limit(&self, query: &Query<'_>) -> usize {
        let most = self.setup.udp_size.max(UDP_SIZE_WITHOUT_EDNS);
        let size = match (self.transport, query.edns) {
            (Transport::Tcp, _) => return MAX_REPLY,
            (Transport::Udp, None) => UDP_SIZE_WITHOUT_EDNS,
            (Transport::Udp, Some(edns)) => edns.size.clamp(UDP_SIZE_WITHOUT_EDNS, most),
        };
        usize::from(size)
    }
}

/// What to ask others for on behalf of a query.
pub(crate) fn key(query: &Query<'_>, name: &[u8]) -> QuestionKey {
    QuestionKey {
        name: name.into(),
        kind: query.kind,
        dnssec: query.wants_dnssec(),
        unchecked: query.checking_disabled(),
    }
}

fn refusal(query: &Query<'_>) -> Option<ResponseCode> {
    const TRANSFERS: std::ops::RangeInclusive<u16> = 251..=252;
    if query.edns.is_some_and(|edns| edns.version > 0) {
        Some(ResponseCode::BadVersion)
    } else if query.class != CLASS_INTERNET || TRANSFERS.contains(&query.kind) {
        Some(ResponseCode::Refused)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
