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
use std::time::{Duration, Instant};

use roadstead_zone::answer::{Answer, End, RecordType};
use tokio::time;

use crate::cache::{Key, Stored};
use crate::clients::agreement::Way;
use crate::clients::{Clients, Peer};
use crate::message::{HEADER_LENGTH, NameBuffer, Query};
use crate::reply::{Code, Reply};
use crate::resolve::{Found, Resolver};
use crate::respond::{Context, Response, Stage, key};
use crate::setup::Block;
use crate::write;

/// The types that programs look up by name. The others are asked about a name itself, which must
/// not become an alias for them.
const COMPLETED: [u16; 7] = [1, 15, 16, 28, 33, 64, 65];
/// How long others may take. After that the client is quicker by itself, and when it comes to the
/// last name it joins the question that is under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// All whose search list is known.
    pub clients: &'a Clients,
    /// Where the query came from.
    pub address: IpAddr,
}

/// A name that will be tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try {
    /// In small letters.
    name: NameBuffer,
    /// How much of it is what the program asked for.
    base: usize,
    /// Whether nothing is tried after it.
    last: bool,
}

/// What is known about a name without asking others.
pub(crate) enum Fate<'a> {
    NoName,
    Cluster(Answer<'a>),
    Host(Stage<'a>),
    Remembered(Arc<Stored>),
    Ask(&'a Block, Key),
    /// It is better not to say.
    Unclear,
}

impl<'a> Context<'a> {
    /// Answers with what the search will find; `None` if that is nothing, or cannot be said.
    pub(crate) fn complete_search(&self, query: &Query<'_>, buffer: &mut [u8]) -> Option<Response> {
        let found = self.tries(query)?.find_map(|one| match self.fate(query, &one) {
            Fate::NoName => None,
            fate => Some((one, fate)),
        });
        if let Some((_, Fate::Ask(..))) = found {
            return Some(Response::Forward);
        }
        let said = found.and_then(|(one, fate)| self.say(query, &one, fate, buffer));
        let way = if said.is_some() { Way::Completed } else { Way::Alone };
        let said = said.filter(|_| self.agree(query, way) == Way::Completed)?;
        self.asking?.clients.count();
        Some(Response::Reply(said))
    }

    /// The names that come after the one that was asked for, which does not exist.
    pub(crate) fn tries(&self, query: &Query<'_>) -> Option<impl Iterator<Item = Try> + use<'a>> {
        let (client, base) = self.searching(query)?;
        let name = query.name;
        let rest = client.asker.search.rest(&name.wire()[..base])?;
        let fresh = client.is_helped(self.now) && self.zone.is_out_of_place(name.wire(), base);
        let question = (&name.wire()[..base], family(query));
        if !client.asker.may_complete(question, fresh, self.now) {
            return None;
        }
        let mut rest = rest.peekable();
        Some(std::iter::from_fn(move || {
            let domain = rest.next()?;
            let name = NameBuffer::joined(&name.wire()[..base], domain)?;
            Some(Try { name, base, last: rest.peek().is_none() })
        }))
    }

    /// Who asks, and where its first domain begins in the name, if that could be completed.
    fn searching(&self, query: &Query<'_>) -> Option<(&'a Peer, usize)> {
        let asking = self.asking?;
        let client = asking.clients.get(asking.address)?;
        let plain = !query.wants_dnssec() && !query.checking_disabled();
        if !plain || !COMPLETED.contains(&query.kind) {
            return None;
        }
        Some((client, client.asker.search.first_try(query.name.wire())?))
    }

    /// Takes in how a search would go on; returns how it does.
    pub(crate) fn agree(&self, query: &Query<'_>, way: Way) -> Way {
        let Some((client, base)) = self.searching(query) else { return Way::Alone };
        client.asker.agree((&query.name.wire()[..base], family(query)), way, self.now)
    }

    fn fate(&self, query: &Query<'_>, one: &Try) -> Fate<'a> {
        let name = one.name.wire();
        let Some(block) = self.setup.block(name) else { return Fate::Unclear };
        if block.rewritten(name).is_some() {
            return Fate::Unclear;
        }
        match self.stage(block, name, RecordType::from_number(query.kind)) {
            Stage::NoHost => Fate::NoName,
            // They may make a difference between types.
            Stage::Template(..) => Fate::Unclear,
            Stage::Zone(answer) => match answer.end {
                End::NoName(_) if answer.aliases.is_empty() => Fate::NoName,
                End::Found(..) => Fate::Cluster(answer),
                End::NoData(_) if one.last || self.has_other_family(query, name) => {
                    Fate::Cluster(answer)
                }
                _ => Fate::Unclear,
            },
            Stage::Others if block.forward(name).is_none() => Fate::Unclear,
            Stage::Others => {
                let key = key(query, name);
                let stored = block.memory.answers.get(&key).filter(|_| block.cache(name).is_some());
                match stored.filter(|stored| stored.is_fresh(self.now)) {
                    Some(stored) => remembered(stored, one),
                    None => Fate::Ask(block, key),
                }
            }
            host => Fate::Host(host),
        }
    }

    /// Whether a name of the cluster has an address, though not of the family that was asked for.
    fn has_other_family(&self, query: &Query<'_>, name: &[u8]) -> bool {
        let other = match RecordType::from_number(query.kind) {
            RecordType::A => RecordType::Aaaa,
            RecordType::Aaaa => RecordType::A,
            _ => return false,
        };
        matches!(self.zone.answer(name, other).end, End::Found(..))
    }

    /// Writes that the name that was asked for is an alias, and of what.
    pub(crate) fn say(
        &self,
        query: &Query<'_>,
        one: &Try,
        fate: Fate<'_>,
        buffer: &mut [u8],
    ) -> Option<usize> {
        let limit = self.limit(query);
        let mut reply = Reply::new(query, &mut buffer[..limit], self.setup);
        reply.set_authoritative();
        // In the letters in which it was asked, because it is what programs show as the name.
        let raw = query.bytes.get(HEADER_LENGTH..HEADER_LENGTH + one.base)?;
        let target = [raw, &one.name.wire()[one.base..]];
        let lifetime = self.zone.settings().lifetimes.negative;
        let owner = write::alias(&mut reply, HEADER_LENGTH, target, lifetime)?;
        let kind = RecordType::from_number(query.kind);
        let code = match fate {
            Fate::Cluster(answer) => {
                let place = write::Place::of(&answer, true, self.zone);
                write::answer_from(&mut reply, self.zone, &answer, &place, self.turn, owner)
            }
            Fate::Host(stage) => write::hosts(&mut reply, &stage, kind, owner),
            Fate::Remembered(stored) => {
                let age = stored.age(self.now);
                let same = Some((one.name.wire(), owner));
                write::retold(&mut reply, same, &stored, age)
            }
            Fate::NoName | Fate::Ask(..) | Fate::Unclear => return None,
        };
        (code == Code::NoError).then(|| reply.finish(code))
    }
}

/// The family of addresses that is asked for, as a bit; 0 for anything else.
fn family(query: &Query<'_>) -> u8 {
    match RecordType::from_number(query.kind) {
        RecordType::A => 1,
        RecordType::Aaaa => 2,
        _ => 0,
    }
}

/// What a message of another server says about a name. At a name without data some resolvers end
/// their search, and others go on: each has to do that by itself.
fn remembered<'a>(stored: Arc<Stored>, one: &Try) -> Fate<'a> {
    match stored.bytes.get(3).map(|flags| flags & 0x0f) {
        Some(0) if one.last || !stored.is_absence() => Fate::Remembered(stored),
        Some(3) => Fate::NoName,
        _ => Fate::Unclear,
    }
}

/// How a search ends for which others had to be asked.
pub(crate) enum Ended<'a> {
    /// The name that was asked for is an alias of this one.
    With(Box<(Try, Fate<'a>)>),
    /// The client goes on by itself, or there is nothing.
    Alone,
    /// It would have to be completed, but nobody said how.
    Unknown,
}

impl Resolver {
    /// Completes a search for which others have to be asked.
    pub(crate) async fn complete_search<'a>(
        self: &Arc<Self>,
        context: &Context<'a>,
        query: &Query<'_>,
    ) -> Ended<'a> {
        let found = time::timeout(PATIENCE, self.search(context, query)).await;
        let found = found.ok().flatten();
        let clear = |(_, fate): &(Try, Fate<'_>)| !matches!(fate, Fate::Unclear);
        let way = if found.as_ref().is_some_and(clear) { Way::Completed } else { Way::Alone };
        let context = Context { now: Instant::now(), ..*context };
        if context.agree(query, way) == Way::Alone {
            return Ended::Alone;
        }
        // The other family was quicker, and its reply says that the search ends here.
        let found = match found.filter(clear) {
            Some(found) => Some(found),
            None => self.search(&context, query).await,
        };
        match found {
            None => Ended::Alone,
            Some((_, Fate::Unclear)) => Ended::Unknown,
            Some(found) => Ended::With(Box::new(found)),
        }
    }

    async fn search<'a>(
        self: &Arc<Self>,
        context: &Context<'a>,
        query: &Query<'_>,
    ) -> Option<(Try, Fate<'a>)> {
        let client = context.asking.map(|asking| asking.address);
        let tries: Vec<Try> = context.tries(query)?.collect();
        for one in tries {
            let fate = match context.fate(query, &one) {
                Fate::Ask(block, key) => match self.look_up(block, key, client).await {
                    Found::Fresh(stored) | Found::Stale(stored) => remembered(stored, &one),
                    Found::Nothing(_) => Fate::Unclear,
                },
                fate => fate,
            };
            if !matches!(fate, Fate::NoName) {
                return Some((one, fate));
            }
        }
        None
    }
}
