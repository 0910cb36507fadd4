//! Answers that need other servers: remembered, shared, and old ones if there are no new ones.
//!
//! Clients that ask the same at the same time share one question to the outside. That is also why
//! a loop of servers cannot multiply queries: the one that comes back waits for itself.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use roadstead_dns_core::cache::{QuestionKey, StoredAnswer};
use roadstead_dns_core::clients::Clients;
use roadstead_dns_core::forward::LookedUp;
use roadstead_dns_core::message::Query;
use roadstead_dns_core::respond::{MAX_REPLY, QueryContext, Response, Transport, respond};
use roadstead_dns_core::rotation::Rotation;
use roadstead_dns_core::search::{Querier, SearchEnd, SearchFound};
use roadstead_dns_core::setup::{Block, CacheRule, Setup};
use roadstead_dns_core::upstream::question::query as query_for;
use roadstead_dns_core::upstream::{UpstreamFailure, UpstreamGroup};
use roadstead_zone::name::{find_suffix, labels};
use roadstead_zone::zone::Zone;
use tokio::time;
use tracing::error;

use crate::active_setup::ActiveSetup;
use crate::chance;
use crate::flights::FlightOutcome;
use crate::metrics::{CountedZones, Counters};
use crate::publish::Published;
use crate::tasks::Tasks;
use crate::upstream::Upstreams;

/// How long a client waits before it gets an old answer (RFC 8767).
const PATIENCE: Duration = Duration::from_millis(1800);
/// How long others may take if a search depends on them. After that the client is quicker by itself,
/// and when it comes to the last name it joins the question that is under way.
const SEARCH_PATIENCE: Duration = Duration::from_secs(1);
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
    pub(crate) setup: Arc<Published<ActiveSetup>>,
    /// Whose searches are completed.
    pub clients: Arc<Published<Clients>>,
    /// What was counted outside the threads of sockets.
    pub(crate) counters: Arc<Counters>,
    /// The zones by which queries are counted.
    pub(crate) counted_zones: Arc<CountedZones>,
    rotation: Rotation,
    secret: RandomState,
    /// Queries that wait for others, and the questions to these.
    pub(crate) tasks: Tasks,
}

impl Resolver {
    /// Names and rules to begin with.
    pub fn new(zone: Arc<Published<Zone>>, setup: Setup) -> Arc<Self> {
        let counted_zones = Arc::<CountedZones>::default();
        Arc::new(Self {
            zone,
            setup: Published::new(ActiveSetup::new(setup, &counted_zones)),
            counted_zones,
            clients: Published::new(Arc::default()),
            counters: Arc::default(),
            rotation: Rotation::new(chance::number()),
            secret: RandomState::new(),
            tasks: Tasks::default(),
        })
    }

    /// Takes other rules into use.
    pub fn install(&self, setup: Setup) {
        self.setup.publish(ActiveSetup::new(setup, &self.counted_zones));
    }

    /// How many upstreams do not work at the moment.
    pub fn broken_upstreams(&self) -> usize {
        self.setup.get().upstreams().map(|upstreams| upstreams.broken()).sum()
    }

    /// Answers what can be answered at once.
    pub(crate) fn respond(
        &self,
        query: &[u8],
        transport: Transport,
        peer: Option<IpAddr>,
        buffer: &mut [u8],
    ) -> Response {
        let (zone, active, clients) = (self.zone.get(), self.setup.get(), self.clients.get());
        let querier = peer.map(|address| Querier { clients: &clients, address });
        let context = QueryContext { querier, ..self.context(&zone, &active, transport) };
        respond(&context, query, buffer)
    }

    fn context<'a>(
        &'a self,
        zone: &'a Zone,
        active: &'a ActiveSetup,
        transport: Transport,
    ) -> QueryContext<'a> {
        QueryContext {
            zone,
            setup: &active.setup,
            answers: &active.answers,
            transport,
            turn: self.rotation.take(),
            now: Instant::now(),
            querier: None,
        }
    }

    /// Asks others, and returns the complete reply; `None` if there is nothing to say.
    pub(crate) async fn finish(
        self: &Arc<Self>,
        bytes: &[u8],
        transport: Transport,
        peer: Option<IpAddr>,
    ) -> Option<Vec<u8>> {
        let query = Query::parse(bytes).ok()?;
        let (zone, active, clients) = (self.zone.get(), self.setup.get(), self.clients.get());
        let context = self.context(&zone, &active, transport);
        let plan = match self.is_guard(&query, &active) {
            true => None,
            false => context.plan_upstream(&query),
        };
        let Some(plan) = plan else {
            let querier = peer.map(|address| Querier { clients: &clients, address });
            let search = QueryContext { querier, ..context };
            let end = self.complete_search(&search, &active, &query).await;
            let search = QueryContext { now: Instant::now(), ..search };
            return Some(with_buffer(&search, &query, |buffer| {
                search.reply_to_search(&query, end, buffer)
            }));
        };
        let found = self.look_up(&active, plan.block, plan.key.clone(), peer).await;
        let context = QueryContext { now: Instant::now(), ..context };
        Some(with_buffer(&context, &query, |buffer| {
            context.reply_with(&query, &plan, &found, buffer)
        }))
    }

    /// Completes a search for which others have to be asked.
    async fn complete_search<'a>(
        self: &Arc<Self>,
        context: &QueryContext<'a>,
        active: &Arc<ActiveSetup>,
        query: &Query<'_>,
    ) -> SearchEnd<'a> {
        let search = self.search(context, active, query);
        let found = time::timeout(SEARCH_PATIENCE, search).await.ok().flatten();
        let context = QueryContext { now: Instant::now(), ..*context };
        match context.agree_to_end(query, found) {
            Some(end) => end,
            None => self.search(&context, active, query).await.into(),
        }
    }

    async fn search<'a>(
        self: &Arc<Self>,
        context: &QueryContext<'a>,
        active: &Arc<ActiveSetup>,
        query: &Query<'_>,
    ) -> Option<SearchFound<'a>> {
        let client = context.querier.map(|querier| querier.address);
        let mut walk = context.begin_search(query)?;
        while let Some((block, key)) = walk.next_question(context, query) {
            walk.told(self.look_up(active, block, key, client).await);
        }
        walk.found()
    }

    /// Finds an answer in memory, with ourselves, or elsewhere, on behalf of a client.
    async fn look_up(
        self: &Arc<Self>,
        active: &Arc<ActiveSetup>,
        block: &Block,
        key: QuestionKey,
        client: Option<IpAddr>,
    ) -> LookedUp {
        let now = Instant::now();
        let known = active.answers.of(block).get(&key);
        if let Some(stored) = known.as_ref().filter(|stored| stored.is_fresh(now)) {
            self.counters.hit(&stored.bytes);
            return LookedUp::Fresh(stored.clone());
        }
        self.counters.miss();
        let kept = block.cache(&key.name);
        let rule = kept.unwrap_or(CacheRule::NONE);
        let Some(forward) = block.forward(&key.name) else { return self.own(&key, &rule) };
        let (mut flight, pilot) = active.flights(block).join(&key);
        if let Some(pilot) = pilot {
            let (active, upstreams) = (active.clone(), active.forward(block, forward).clone());
            let forgets = [false, true].map(|absence| block.forgets(&key.name, absence));
            let (resolver, block) = (self.clone(), block.number());
            self.tasks.spawn(async move {
                let outcome = resolver.ask(&key, &upstreams, &rule, client).await;
                if let (Some(_), Ok(stored)) = (kept, &outcome)
                    && !forgets[usize::from(stored.is_absence())]
                {
                    let block = &active.setup.blocks()[block];
                    active.answers.of(block).learn(key, stored);
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
            (Some(Ok(stored)), None) => LookedUp::Fresh(stored),
            (Some(Ok(stored)), Some(_)) if !stored.is_failure() => LookedUp::Fresh(stored),
            (_, Some(old)) => LookedUp::Stale(old),
            (Some(Err(failure)), None) => LookedUp::Nothing(failure),
            (None, None) => LookedUp::Nothing(UpstreamFailure::Silent("anybody".into())),
        }
    }

    /// An alias may lead to a name that we know ourselves, such as one in the table of hosts.
    fn own(&self, key: &QuestionKey, rule: &CacheRule) -> LookedUp {
        let mut buffer = vec![0; MAX_REPLY];
        let query = query_for(key, 0);
        let stored = match self.respond(&query, Transport::Tcp, None, &mut buffer) {
            Response::Reply(length) | Response::Remembered(length) => {
                StoredAnswer::read(&buffer[..length], rule, Instant::now())
            }
            Response::Ignore | Response::Forward => None,
        };
        match stored {
            Some(stored) => LookedUp::Fresh(Arc::new(stored)),
            None => LookedUp::Nothing(UpstreamFailure::Silent("anybody".into())),
        }
    }

    async fn ask(
        &self,
        key: &QuestionKey,
        upstreams: &Upstreams,
        rule: &CacheRule,
        client: Option<IpAddr>,
    ) -> FlightOutcome {
        let began = Instant::now();
        let reply = upstreams.ask(key, client).await;
        self.counters.forwarded(began.elapsed(), reply.is_ok());
        let stored = StoredAnswer::read(&reply?, rule, Instant::now());
        let stored =
            stored.ok_or_else(|| UpstreamFailure::Silent("anybody that makes sense".into()))?;
        Ok(Arc::new(stored))
    }

    /// Asks every upstream for a name that only we know. If that question comes to us, the
    /// upstream leads back here, and is not asked again.
    pub async fn guard(self: &Arc<Self>) {
        let active = self.setup.get();
        let addresses = active.upstreams().flat_map(|upstreams| upstreams.addresses());
        let probes = addresses.map(|address| async move {
            let one = Upstreams::new(UpstreamGroup::new(vec![address]));
            let label = format!("{:016x}", self.secret.hash_one(address));
            let name = [&[16], label.as_bytes(), GUARD].concat().into();
            let key = QuestionKey { name, kind: HINFO, dnssec: false, unchecked: false };
            // What comes back does not matter; what comes to us does.
            let _ = one.ask(&key, None).await;
        });
        join_all(probes).await;
    }

    /// Whether a query is one of those that only we send.
    fn is_guard(&self, query: &Query<'_>, active: &ActiveSetup) -> bool {
        let name = query.name.wire();
        if query.kind != HINFO || find_suffix(name, GUARD).is_none() {
            return false;
        }
        let label = labels(name).next().unwrap_or_default();
        let mut found = false;
        for upstreams in active.upstreams() {
            for address in upstreams.addresses() {
                if format!("{:016x}", self.secret.hash_one(address)).as_bytes() == label {
                    error!(upstream = %address, "upstream leads back to this server: not used");
                    upstreams.condemn(address);
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
    context: &QueryContext<'_>,
    query: &Query<'_>,
    fill: impl FnOnce(&mut [u8]) -> usize,
) -> Vec<u8> {
    let mut buffer = vec![0; context.limit(query)];
    let length = fill(&mut buffer);
    buffer.truncate(length);
    buffer.shrink_to_fit();
    buffer
}
