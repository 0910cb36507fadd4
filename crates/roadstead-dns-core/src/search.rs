//! Completes a client's search for it: when the first name it tries does not exist, the reply says
//! at once what it would have ended with.
//!
//! The reply has the form that CoreDNS' autopath gives it: the name that was asked is an alias of
//! the one that exists. A resolver then sees what it would have seen several round trips later, as
//! long as every name that comes before is known not to exist. If that cannot be known, or takes
//! long, the name that was asked does not exist, and the client goes on by itself. What was decided
//! about one family of addresses holds for the other (`clients::agreement`).

use std::net::IpAddr;
use std::sync::Arc;

use roadstead_zone::answer::{Answer, AnswerEnd};
use roadstead_zone::record_type::RecordType;

use crate::cache::{QuestionKey, StoredAnswer};
use crate::clients::agreement::SearchWay;
use crate::clients::{Clients, Peer, SearchQuestion};
use crate::encode::{self, Encoder, ZoneName, foreign, hosts};
use crate::forward::LookedUp;
use crate::message::{HEADER_LENGTH, NameBuffer, Query};
use crate::reply::{Reply, ResponseCode};
use crate::respond::{QueryContext, Response, Stage, key};
use crate::setup::Block;

/// The types that programs look up by name. The others are asked about a name itself, which must
/// not become an alias for them.
const COMPLETED: [u16; 7] = [1, 15, 16, 28, 33, 64, 65];

/// Where a query comes from, and who that may be.
#[derive(Clone, Copy, Debug)]
pub struct Querier<'a> {
    /// All whose search list is known.
    pub clients: &'a Clients,
    /// Where the query came from.
    pub address: IpAddr,
}

/// A name that will be tried.
#[derive(Clone, Copy, Debug)]
struct SearchTry {
    /// In small letters.
    name: NameBuffer,
    /// How much of it is what the program asked for.
    base: usize,
    /// Whether nothing is tried after it.
    last: bool,
}

/// What is known about a name without asking others.
#[derive(Debug)]
enum TryFate<'a> {
    NoName,
    Cluster(Answer<'a>),
    Host(Stage<'a>),
    Remembered(Arc<StoredAnswer>),
    Ask(&'a Block, QuestionKey),
    /// It is better not to say.
    Unclear,
}

impl<'a> QueryContext<'a> {
    /// Answers with what the search will find; `None` if that is nothing, or cannot be said.
    pub(crate) fn complete_search(&self, query: &Query<'_>, buffer: &mut [u8]) -> Option<Response> {
        let found = self.tries(query)?.find_map(|one| match self.fate(query, &one) {
            TryFate::NoName => None,
            fate => Some((one, fate)),
        });
        if let Some((_, TryFate::Ask(..))) = found {
            return Some(Response::Forward);
        }
        let said = found.and_then(|(one, fate)| self.say(query, &one, fate, buffer));
        let way = if said.is_some() { SearchWay::Completed } else { SearchWay::Alone };
        let said = said.filter(|_| self.agree(query, way) == SearchWay::Completed)?;
        self.querier?.clients.count();
        Some(Response::Reply(said))
    }

    /// The names that come after the one that was asked for, which does not exist.
    fn tries(&self, query: &Query<'_>) -> Option<impl Iterator<Item = SearchTry> + use<'a>> {
        let (client, base) = self.searching(query)?;
        let name = query.name;
        // What is not completed is remembered all the same: its later tries look like first ones.
        let rest = client.asker.search.rest(&name.wire()[..base]);
        let fresh = rest.is_some()
            && client.is_helped(self.now)
            && self.zone.is_out_of_place(name.wire(), base);
        let question = asked(query, &name.wire()[..base]);
        if !client.asker.may_complete(question, fresh, self.now) {
            return None;
        }
        let mut rest = rest?.peekable();
        Some(std::iter::from_fn(move || {
            let domain = rest.next()?;
            let name = NameBuffer::joined(&name.wire()[..base], domain)?;
            Some(SearchTry { name, base, last: rest.peek().is_none() })
        }))
    }

    /// Who asks, and where its first domain begins in the name, if that could be completed.
    fn searching(&self, query: &Query<'_>) -> Option<(&'a Peer, usize)> {
        let querier = self.querier?;
        let client = querier.clients.get(querier.address)?;
        let plain = !query.wants_dnssec() && !query.checking_disabled();
        if !plain || !COMPLETED.contains(&query.kind) {
            return None;
        }
        Some((client, client.asker.search.first_try(query.name.wire())?))
    }

    /// Takes in how a search would go on; returns how it does.
    fn agree(&self, query: &Query<'_>, way: SearchWay) -> SearchWay {
        let Some((client, base)) = self.searching(query) else { return SearchWay::Alone };
        client.asker.agree(asked(query, &query.name.wire()[..base]), way, self.now)
    }

    fn fate(&self, query: &Query<'_>, one: &SearchTry) -> TryFate<'a> {
        let name = one.name.wire();
        let Some(block) = self.setup.block(name) else { return TryFate::Unclear };
        if block.rewritten(name).is_some() {
            return TryFate::Unclear;
        }
        match self.stage(block, name, RecordType::from_number(query.kind)) {
            Stage::NoHost => TryFate::NoName,
            // They may make a difference between types.
            Stage::Template(..) => TryFate::Unclear,
            Stage::Zone(answer) => match answer.end {
                AnswerEnd::NoName(_) if answer.aliases.is_empty() => TryFate::NoName,
                AnswerEnd::Found(..) => TryFate::Cluster(answer),
                AnswerEnd::NoData(_) if one.last || self.has_other_family(query, name) => {
                    TryFate::Cluster(answer)
                }
                _ => TryFate::Unclear,
            },
            Stage::Others if block.forward(name).is_none() => TryFate::Unclear,
            Stage::Others => {
                let key = key(query, name);
                let stored =
                    self.answers.of(block).get(&key).filter(|_| block.cache(name).is_some());
                match stored.filter(|stored| stored.is_fresh(self.now)) {
                    Some(stored) => remembered(stored, one),
                    None => TryFate::Ask(block, key),
                }
            }
            host => TryFate::Host(host),
        }
    }

    /// Whether a name of the cluster has an address, though not of the family that was asked for.
    fn has_other_family(&self, query: &Query<'_>, name: &[u8]) -> bool {
        let other = match RecordType::from_number(query.kind) {
            RecordType::A => RecordType::Aaaa,
            RecordType::Aaaa => RecordType::A,
            _ => return false,
        };
        matches!(self.zone.answer(name, other).end, AnswerEnd::Found(..))
    }

    /// Writes that the name that was asked for is an alias, and of what.
    fn say(
        &self,
        query: &Query<'_>,
        one: &SearchTry,
        fate: TryFate<'_>,
        buffer: &mut [u8],
    ) -> Option<usize> {
        let limit = self.limit(query);
        let mut reply = Reply::new(query, &mut buffer[..limit], self.setup);
        reply.set_authoritative();
        // In the letters in which it was asked, because it is what programs show as the name.
        let raw = query.bytes.get(HEADER_LENGTH..HEADER_LENGTH + one.base)?;
        let target = [raw, &one.name.wire()[one.base..]];
        let lifetime = self.zone.settings().lifetimes.negative;
        let owner = encode::alias(&mut reply, HEADER_LENGTH, target, lifetime)?;
        let kind = RecordType::from_number(query.kind);
        let code = match fate {
            TryFate::Cluster(answer) => {
                let zone_name = ZoneName::of(&answer, true, self.zone);
                let (zone, turn) = (self.zone, self.turn);
                let mut encoder = Encoder { reply: &mut reply, zone, zone_name, turn };
                encoder.answer(&answer, owner)
            }
            TryFate::Host(stage) => hosts::write(&mut reply, &stage, kind, owner),
            TryFate::Remembered(stored) => {
                let same = Some((one.name.wire(), owner));
                foreign::retell(&mut reply, same, stored.aged(self.now))
            }
            TryFate::NoName | TryFate::Ask(..) | TryFate::Unclear => return None,
        };
        (code == ResponseCode::NoError).then(|| reply.finish(code))
    }
}

fn asked<'a>(query: &Query<'_>, base: &'a [u8]) -> SearchQuestion<'a> {
    let family = match RecordType::from_number(query.kind) {
        RecordType::A => 1,
        RecordType::Aaaa => 2,
        _ => 0,
    };
    let id = query.bytes.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
    SearchQuestion { base, family, id }
}

/// What a message of another server says about a name. At a name without data some resolvers end
/// their search, and others go on: each has to do that by itself.
fn remembered<'a>(stored: Arc<StoredAnswer>, one: &SearchTry) -> TryFate<'a> {
    match stored.bytes.get(3).map(|flags| flags & 0x0f) {
        Some(0) if one.last || !stored.is_absence() => TryFate::Remembered(stored),
        Some(3) => TryFate::NoName,
        _ => TryFate::Unclear,
    }
}

/// A search that others have to be asked about: a name after the other, until one exists.
#[derive(Debug)]
pub struct SearchWalk<'a> {
    rest: std::vec::IntoIter<SearchTry>,
    /// The one that others are asked about.
    open: Option<SearchTry>,
    found: Option<SearchFound<'a>>,
}

/// The name that a search ends with.
#[derive(Debug)]
pub struct SearchFound<'a> {
    name: SearchTry,
    fate: TryFate<'a>,
}

impl SearchFound<'_> {
    fn is_clear(&self) -> bool {
        !matches!(self.fate, TryFate::Unclear)
    }
}

impl<'a> SearchWalk<'a> {
    /// What to ask others next, and by which rules; `None` if nothing, because the walk has ended.
    pub fn next_question(
        &mut self,
        context: &QueryContext<'a>,
        query: &Query<'_>,
    ) -> Option<(&'a Block, QuestionKey)> {
        while self.found.is_none() {
            let name = self.rest.next()?;
            match context.fate(query, &name) {
                TryFate::NoName => {}
                TryFate::Ask(block, key) => {
                    self.open = Some(name);
                    return Some((block, key));
                }
                fate => self.found = Some(SearchFound { name, fate }),
            }
        }
        None
    }

    /// Takes in what others said.
    pub fn told(&mut self, answer: LookedUp) {
        let Some(name) = self.open.take() else { return };
        let fate = match answer {
            LookedUp::Fresh(stored) | LookedUp::Stale(stored) => remembered(stored, &name),
            LookedUp::Nothing(_) => TryFate::Unclear,
        };
        if !matches!(fate, TryFate::NoName) {
            self.found = Some(SearchFound { name, fate });
        }
    }

    /// Where it has ended.
    pub fn found(self) -> Option<SearchFound<'a>> {
        self.found
    }
}

/// How a search ends for which others had to be asked.
#[derive(Debug)]
pub enum SearchEnd<'a> {
    /// The name that was asked for is an alias of this one, if that can be said.
    With(Box<SearchFound<'a>>),
    /// The client goes on by itself, or there is nothing.
    Alone,
}

impl<'a> QueryContext<'a> {
    /// Begins a search that others have to be asked about; `None` if it is not to be completed.
    pub fn begin_search(&self, query: &Query<'_>) -> Option<SearchWalk<'a>> {
        let rest = self.tries(query)?.collect::<Vec<_>>().into_iter();
        Some(SearchWalk { rest, open: None, found: None })
    }

    /// Takes in what a search would end with, if that was found in time. If the client was told before
    /// that the search ends here, because the other family was quicker, it must end here: then `None`
    /// says that it has to be found out, however long that takes.
    pub fn agree_to_end(
        &self,
        query: &Query<'_>,
        found: Option<SearchFound<'a>>,
    ) -> Option<SearchEnd<'a>> {
        let found = found.filter(SearchFound::is_clear);
        let way = if found.is_some() { SearchWay::Completed } else { SearchWay::Alone };
        match (self.agree(query, way), found) {
            (SearchWay::Alone, _) => Some(SearchEnd::Alone),
            (SearchWay::Completed, Some(found)) => Some(SearchEnd::With(Box::new(found))),
            (SearchWay::Completed, None) => None,
        }
    }

    /// Writes how a search ended; returns how long the reply is.
    pub fn reply_to_search(
        &self,
        query: &Query<'_>,
        end: SearchEnd<'a>,
        buffer: &mut [u8],
    ) -> usize {
        let SearchEnd::With(found) = end else {
            return QueryContext { querier: None, ..*self }.reply_alone(query, buffer);
        };
        let SearchFound { name, fate } = *found;
        match self.say(query, &name, fate, buffer) {
            Some(length) => {
                self.querier.inspect(|querier| querier.clients.count());
                length
            }
            None => {
                let reason = (22, "no answer about the name that the search ends with");
                self.fail(query, ResponseCode::ServerFailure, reason, buffer)
            }
        }
    }
}

impl<'a> From<Option<SearchFound<'a>>> for SearchEnd<'a> {
    fn from(found: Option<SearchFound<'a>>) -> Self {
        found.map_or(SearchEnd::Alone, |found| SearchEnd::With(Box::new(found)))
    }
}
