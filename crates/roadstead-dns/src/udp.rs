//! Datagrams: one thread per socket, many queries per system call, no waiting in between.
//!
//! What we know ourselves is answered by the thread that received the query. The rest goes over a
//! bounded channel to the tasks that ask others; when that is full, such queries are dropped, and
//! names of the cluster never wait for them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roadstead_dns_core::clients::Clients;
use roadstead_dns_core::message::{HEADER_LENGTH, question_type};
use roadstead_dns_core::rate_limit::{RateLimiter, RateVerdict};
use roadstead_dns_core::reply::{ResponseCode, bare};
use roadstead_dns_core::respond::{QueryContext, Response, Transport, respond};
use roadstead_dns_core::rotation::Rotation;
use roadstead_dns_core::search::Querier;
use roadstead_zone::zone::Zone;
use tokio::sync::mpsc;
use tracing::debug;

use self::batch::{DatagramBatch, QueryOrigin};
use crate::active_setup::ActiveSetup;
use crate::chance;
use crate::metrics::{Answered, Counters};
use crate::publish::PublishedReader;
use crate::query_log::log;
use crate::resolve::Resolver;
use crate::shares::Shares;

pub mod batch;
mod gather;

/// How many queries may wait for other servers at a time, of which no client may have all.
const MOST_WAITING: usize = 10_000;

/// A query for others.
pub(crate) struct LateQuery {
    query: Box<[u8]>,
    origin: QueryOrigin,
    socket: Arc<UdpSocket>,
}

/// What a thread reads.
type Readers<'a> = (
    &'a mut PublishedReader<Zone>,
    &'a mut PublishedReader<ActiveSetup>,
    &'a mut PublishedReader<Clients>,
);

/// One thread's own things.
pub(crate) struct DatagramWorker {
    /// Where queries come from.
    pub socket: Arc<UdpSocket>,
    /// What is known.
    pub resolver: Arc<Resolver>,
    /// Where queries for others go.
    pub late: mpsc::Sender<LateQuery>,
    /// What it counts.
    pub counters: Arc<Counters>,
    /// The budgets of strangers.
    pub limiter: RateLimiter,
    /// Set when it is over.
    pub stop: Arc<AtomicBool>,
}

impl DatagramWorker {
    /// Answers until stopped. The socket has a timeout, so that stopping is noticed.
    pub(crate) fn run(mut self) {
        let mut batch = DatagramBatch::default();
        let mut zone = self.resolver.zone.reader();
        let mut setup = self.resolver.setup.reader();
        let mut clients = self.resolver.clients.reader();
        let rotation = Rotation::new(chance::number());
        while !self.stop.load(Ordering::Relaxed) {
            let count = match batch.receive(self.socket.as_fd()) {
                Ok(count) => count,
                Err(error) if is_timeout(&error) => {
                    // Whoever is not asked anything must not keep what is out of date in memory.
                    zone.latest();
                    setup.latest();
                    clients.latest();
                    continue;
                }
                Err(error) => {
                    debug!(%error, "cannot receive");
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
            };
            let began = Instant::now();
            for slot in 0..count {
                let readers = (&mut zone, &mut setup, &mut clients);
                self.answer(&mut batch, slot, readers, (rotation.take(), began));
            }
            self.counters.dropped(batch.send(self.socket.as_fd()));
            let many = u32::try_from(count).unwrap_or(1).max(1);
            self.counters.took(began.elapsed() / many, many.into());
        }
    }

    fn answer(
        &mut self,
        batch: &mut DatagramBatch,
        slot: usize,
        (zone, setup, clients): Readers<'_>,
        (turn, now): (usize, Instant),
    ) {
        let (query, origin, reply) = batch.slot(slot);
        let Some(peer) = origin.peer() else { return };
        let known = || zone.latest().has_endpoint(peer.ip()) || clients.latest().knows(peer.ip());
        let verdict = self.limiter.check(peer.ip(), now, known);
        if verdict != RateVerdict::Answer {
            self.counters.limited();
            if verdict == RateVerdict::Truncate
                && query.len() >= HEADER_LENGTH
                && query[2] & 0x80 == 0
            {
                let length = bare(query, ResponseCode::NoError, reply);
                reply[2] |= 0x02;
                batch.reply(slot, length);
            }
            return;
        }
        let active = setup.latest();
        let context = QueryContext {
            zone: zone.latest(),
            setup: &active.setup,
            answers: &active.answers,
            transport: Transport::Udp,
            turn,
            now,
            querier: Some(Querier { clients: clients.latest(), address: peer.ip() }),
        };
        let response = respond(&context, query, reply);
        match response {
            Response::Ignore => {}
            Response::Reply(length) | Response::Remembered(length) => {
                if response == Response::Remembered(length) {
                    self.counters.hit(reply);
                }
                log(context.setup, query, &peer, reply);
                self.counters.answered(&Answered {
                    kind: question_type(query),
                    transport: Transport::Udp,
                    client: peer.ip(),
                    zone: active.counted_zone(query),
                    code: reply[3] & 0x0f,
                });
                batch.reply(slot, length);
            }
            Response::Forward => {
                let socket = self.socket.clone();
                let late = LateQuery { query: query.into(), origin: origin.clone(), socket };
                if self.late.try_send(late).is_err() {
                    self.counters.dropped(1);
                }
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Has others asked, and sends the replies.
pub(crate) async fn answer_late(mut queries: mpsc::Receiver<LateQuery>, resolver: Arc<Resolver>) {
    let room = Shares::new(MOST_WAITING);
    while let Some(late) = queries.recv().await {
        let peer = late.origin.peer();
        let address = peer.map(|peer| peer.ip().to_canonical());
        let Ok(place) = room.take(address) else {
            resolver.counters.dropped(1);
            continue;
        };
        let tasks = &resolver.tasks;
        let resolver = resolver.clone();
        tasks.spawn(async move {
            let began = Instant::now();
            if let Some(reply) = resolver.finish(&late.query, Transport::Udp, address).await {
                if let Some(peer) = peer {
                    log(&resolver.setup.get().setup, &late.query, &peer, &reply);
                }
                let code = reply.get(3).map_or(0, |flags| flags & 0x0f);
                resolver.counters.answered(&Answered {
                    kind: question_type(&late.query),
                    transport: Transport::Udp,
                    client: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                    zone: resolver.setup.get().counted_zone(&late.query),
                    code,
                });
                resolver.counters.took(began.elapsed(), 1);
                if let Err(error) = batch::send_one(late.socket.as_fd(), &late.origin, &reply) {
                    debug!(%error, "late reply not sent");
                    resolver.counters.dropped(1);
                }
            }
            drop(place);
        });
    }
}
