//! Answers that need other servers: remembered, shared, and old ones if there are no new ones.
//!
//! Clients that ask the same at the same time share one question to the outside. That is also why
//! a loop of servers cannot multiply queries: the one that comes back waits for itself.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use roadstead_zone::answer::{End, RecordType};
use roadstead_zone::name::{find_suffix, labels};
use roadstead_zone::zone::Zone;
use tokio::time;
use tracing::error;

use crate::cache::{Key, Stored};
use crate::clients::Clients;
use crate::memory::Outcome;
use crate::message::{NameBuffer, Query};
use crate::metrics::Counters;
use crate::publish::Published;
use crate::reply::Code;
use crate::respond::{Context, MAX_REPLY, Response, Stage, Transport, key, respond};
use crate::search::{Asking, Ended};
use crate::setup::{Block, CacheRule, Setup};
use crate::turns::Turns;
use crate::upstream::{Failure, Upstreams, query as query_for};

/// How long a client waits before it gets an old answer (RFC 8767).
const PATIENCE: Duration = Duration::from_millis(1800);
/// Below this name we ask our upstreams for names that only we know.
const GUARD: &[u8] = b"\x04loop\x09roadstead\0";
/// The type that is asked for; nobody else uses it.
const HINFO: u16 = 13;

/// What every socket needs.
#[derive(Debug)]
pub struct Resolver {
    /// The cluster's names.
    pub zone: Arc<Published<Zone>>,
    /// What is done with which names.
    pub setup: Arc<Published<Setup>>,
    /// Whose searches are completed.
    pub clients: Arc<Published<Clients>>,
    /// What was counted outside the threads of sockets.
    pub counters: Arc<Counters>,
    turns: Turns,
    secret: RandomState,
}

impl Resolver {
    /// Names and rules to begin with.
    pub fn new(zone: Arc<Published<Zone>>, setup: Arc<Published<Setup>>) -> Arc<Self> {
        Arc::new(Self {
            zone,
            setup,
            clients: Published::new(Arc::default()),
            counters: Arc::default(),
            turns: Turns::default(),
            secret: RandomState::new(),
        })
    }

    /// Answers what can be answered at once.
    pub fn respond(
        &self,
        query: &[u8],
        transport: Transport,
        peer: Option<IpAddr>,
        buffer: &mut [u8],
    ) -> Response {
        let (zone, setup, clients) = (self.zone.get(), self.setup.get(), self.clients.get());
        let asking = peer.map(|address| Asking { clients: &clients, address });
        let context = Context { asking, ..self.context(&zone, &setup, transport) };
        respond(&context, query, buffer)
    }

    fn context<'a>(
        &'a self,
        zone: &'a Zone,
        setup: &'a Setup,
        transport: Transport,
    ) -> Context<'a> {
        let turn = self.turns.take();
        Context { zone, setup, transport, turn, now: Instant::now(), asking: None }
    }

    /// Asks others, and returns the complete reply; `None` if there is nothing to say.
    pub async fn finish(
        self: &Arc<Self>,
        bytes: &[u8],
        transport: Transport,
        peer: Option<IpAddr>,
    ) -> Option<Vec<u8>> {
        let query = Query::parse(bytes).ok()?;
        let (zone, setup, clients) = (self.zone.get(), self.setup.get(), self.clients.get());
        let context = self.context(&zone, &setup, transport);
        let Some(plan) = self.plan(&context, &query) else {
            let asking = peer.map(|address| Asking { clients: &clients, address });
            let search = Context { asking, ..context };
            let ended = self.complete_search(&search, &query).await;
            let search = Context { now: Instant::now(), ..search };
            return Some(with_buffer(&context, &query, |buffer| {
                let said = match ended {
                    Ended::With(found) => search.say(&query, &found.0, found.1, buffer),
                    Ended::Alone => return answer_alone(&context, &query, buffer),
                    Ended::Unknown => None,
                };
                said.inspect(|_| clients.count()).unwrap_or_else(|| {
                    let reason = (22, "no answer about the name that the search ends with");
                    context.fail(&query, Code::ServerFailure, reason, buffer)
                })
            }));
        };
        let found = self.look_up(plan.block, plan.key.clone(), peer).await;
        Some(with_buffer(&context, &query, |buffer| write(&context, &query, &plan, found, buffer)))
    }

    /// What has to be asked; `None` if nothing.
    fn plan<'a>(&self, context: &Context<'a>, query: &Query<'_>) -> Option<Plan<'a>> {
        if self.is_guard(query, context.setup) {
            return None;
        }
        let block = context.setup.block(query.name.wire())?;
        let rewritten = block.rewritten(query.name.wire());
        let name = match &rewritten {
            Some(name) => NameBuffer::from_wire(name.wire())?,
            None => query.name,
        };
        let kind = RecordType::from_number(query.kind);
        let rewritten = rewritten.map(|name| name.wire().into());
        match context.stage(block, name.wire(), kind) {
            Stage::Others => {
                Some(Plan { block, key: key(query, name.wire()), rewritten, alias: false })
            }
            Stage::Zone(answer) if matches!(answer.end, End::Elsewhere) => {
                let target = answer.aliases.iter().last()?.to_lowercase();
                let block = context.setup.block(target.wire()).unwrap_or(block);
                Some(Plan { block, key: key(query, target.wire()), rewritten, alias: true })
            }
            _ => None,
        }
    }

    /// Finds an answer in memory, with ourselves, or elsewhere.
    /// `client` is who wants to know.
    pub(crate) async fn look_up(
        self: &Arc<Self>,
        block: &Block,
        key: Key,
        client: Option<IpAddr>,
    ) -> Found {
        let now = Instant::now();
        let known = block.memory.answers.get(&key);
        if let Some(stored) = known.as_ref().filter(|stored| stored.is_fresh(now)) {
            self.counters.hit(&stored.bytes);
            return Found::Fresh(stored.clone());
        }
        self.counters.miss();
        let kept = block.cache(&key.name);
        let rule = kept.unwrap_or(CacheRule::NONE);
        let Some(forward) = block.forward(&key.name) else { return self.own(&key, &rule) };
        let (mut flight, pilot) = block.memory.join(&key);
        if let Some(pilot) = pilot {
            let (memory, upstreams) = (block.memory.clone(), forward.upstreams.clone());
            let forgets = [false, true].map(|absence| block.forgets(&key.name, absence));
            let resolver = self.clone();
            tokio::spawn(async move {
                let outcome = resolver.ask(&key, &upstreams, &rule, client).await;
                if let (Some(_), Ok(stored)) = (kept, &outcome)
                    && !forgets[usize::from(stored.is_absence())]
                {
                    memory.answers.learn(key, stored);
                }
                pilot.land(outcome);
            });
        }
        let old = known.filter(|stored| {
            now.saturating_duration_since(stored.received) < stored.lifetime + rule.stale
        });
        let outcome = flight.wait_for(Option::is_some);
        let outcome = match &old {
            Some(_) => time::timeout(PATIENCE, outcome).await.ok(),
            None => Some(outcome.await),
        };
        let outcome = outcome.and_then(Result::ok).and_then(|outcome| outcome.clone());
        match (outcome, old) {
            (Some(Ok(stored)), None) => Found::Fresh(stored),
            (Some(Ok(stored)), Some(_)) if !stored.is_failure() => Found::Fresh(stored),
            (_, Some(old)) => Found::Stale(old),
            (Some(Err(failure)), None) => Found::Nothing(failure),
            (None, None) => Found::Nothing(Failure::Silent("anybody".into())),
        }
    }

    /// An alias may lead to a name that we know ourselves, such as one in the table of hosts.
    fn own(&self, key: &Key, rule: &CacheRule) -> Found {
        let mut buffer = vec![0; MAX_REPLY];
        let query = query_for(key, 0);
        let stored = match self.respond(&query, Transport::Tcp, None, &mut buffer) {
            Response::Reply(length) | Response::Remembered(length) => {
                Stored::read(&buffer[..length], rule, Instant::now())
            }
            Response::Ignore | Response::Forward => None,
        };
        match stored {
            Some(stored) => Found::Fresh(Arc::new(stored)),
            None => Found::Nothing(Failure::Silent("anybody".into())),
        }
    }

    async fn ask(
        &self,
        key: &Key,
        upstreams: &Upstreams,
        rule: &CacheRule,
        client: Option<IpAddr>,
    ) -> Outcome {
        let began = Instant::now();
        let reply = upstreams.ask(key, client).await;
        self.counters.forwarded(began.elapsed(), reply.is_ok());
        let stored = Stored::read(&reply?, rule, Instant::now());
        let stored = stored.ok_or_else(|| Failure::Silent("anybody that makes sense".into()))?;
        Ok(Arc::new(stored))
    }

    /// Asks every upstream for a name that only we know. If that question comes to us, the
    /// upstream leads back here, and is not asked again.
    pub async fn guard(self: &Arc<Self>) {
        let setup = self.setup.get();
        let forwards = setup.blocks.iter().flat_map(|block| &block.forwards);
        let addresses = forwards.flat_map(|forward| forward.upstreams.addresses());
        let probes = addresses.map(|address| async move {
            let one = Upstreams::new(vec![address], crate::upstream::Options::default());
            let label = format!("{:016x}", self.secret.hash_one(address));
            let name = [&[16], label.as_bytes(), GUARD].concat().into();
            let key = Key { name, kind: HINFO, dnssec: false, unchecked: false };
            // What comes back does not matter; what comes to us does.
            let _ = one.ask(&key, None).await;
        });
        join_all(probes).await;
    }

    /// Whether a query is one of those that only we send.
    fn is_guard(&self, query: &Query<'_>, setup: &Setup) -> bool {
        let name = query.name.wire();
        if query.kind != HINFO || find_suffix(name, GUARD).is_none() {
            return false;
        }
        let label = labels(name).next().unwrap_or_default();
        let mut found = false;
        for forward in setup.blocks.iter().flat_map(|block| &block.forwards) {
            for address in forward.upstreams.addresses() {
                if format!("{:016x}", self.secret.hash_one(address)).as_bytes() == label {
                    error!(upstream = %address, "upstream leads back to this server: not used");
                    forward.upstreams.condemn(address);
                    found = true;
                }
            }
        }
        found
    }
}

/// Makes room for a reply, now that it can be written: many may wait for others for long. Returns the
/// reply.
fn with_buffer(
    context: &Context<'_>,
    query: &Query<'_>,
    fill: impl FnOnce(&mut [u8]) -> usize,
) -> Vec<u8> {
    let mut buffer = vec![0; context.limit(query)];
    let length = fill(&mut buffer);
    buffer.truncate(length);
    buffer.shrink_to_fit();
    buffer
}

fn write(
    context: &Context<'_>,
    query: &Query<'_>,
    plan: &Plan<'_>,
    found: Found,
    buffer: &mut [u8],
) -> usize {
    let (stored, stale) = match found {
        Found::Fresh(stored) => (stored, None),
        Found::Stale(stored) => (stored, Some((3, "no newer answer could be had"))),
        Found::Nothing(failure) => {
            let (code, number) = match failure {
                Failure::Busy | Failure::Share => (Code::Refused, 0),
                Failure::Silent(_) => (Code::ServerFailure, 22),
                Failure::Loop(_) => (Code::ServerFailure, 0),
            };
            return context.fail(query, code, (number, failure), buffer);
        }
    };
    let age = stored.age(Instant::now());
    if plan.alias || plan.rewritten.is_some() {
        let asked = plan.rewritten.as_deref();
        return context.complete(query, asked, Some((&stored, age)), buffer);
    }
    context.pass_on(query, &stored, age, stale, buffer)
}

/// Answers without anybody else.
fn answer_alone(context: &Context<'_>, query: &Query<'_>, buffer: &mut [u8]) -> usize {
    match respond(context, query.bytes, buffer) {
        Response::Reply(length) | Response::Remembered(length) => length,
        // The guard came back, or the rules have changed in between.
        Response::Ignore | Response::Forward => {
            let reason = (0, "this server forwards to itself");
            context.fail(query, Code::ServerFailure, reason, buffer)
        }
    }
}

/// What has to be asked of others for a query.
struct Plan<'a> {
    /// The rules for it: those of the name in the question, even if that stands for another one; but
    /// an alias leads to where its name belongs.
    block: &'a Block,
    key: Key,
    /// The name that the one in the question stands for.
    rewritten: Option<Box<[u8]>>,
    /// Whether an alias of ours led to it.
    alias: bool,
}

/// What came of a question.
pub(crate) enum Found {
    Fresh(Arc<Stored>),
    Stale(Arc<Stored>),
    Nothing(Failure),
}
