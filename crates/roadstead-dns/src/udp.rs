//! Datagrams: one thread per socket, many queries per system call, no waiting in between.
//!
//! What we know ourselves is answered by the thread that received the query. The rest goes over a
//! bounded channel to the tasks that ask others; when that is full, such queries are dropped, and
//! names of the cluster never wait for them.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roadstead_zone::name::Name;
use roadstead_zone::zone::Zone;
use tokio::sync::mpsc;
use tracing::{debug, info};

use self::batch::{Batch, Origin};
use crate::clients::Clients;
use crate::limit::{Limiter, Verdict};
use crate::message::{HEADER_LENGTH, read_name, read_u16};
use crate::metrics::Counters;
use crate::publish::Reader;
use crate::reply::Code;
use crate::resolve::Resolver;
use crate::respond::{Context, Response, Transport, respond};
use crate::search::Asking;
use crate::setup::{LoggedEnd, Setup};
use crate::shares::Shares;
use crate::turns::Turns;

pub mod batch;
mod gather;

/// How many queries may wait for other servers at a time, of which no client may have all.
const MOST_WAITING: usize = 10_000;

/// A query for others.
pub struct Late {
    query: Box<[u8]>,
    origin: Origin,
    socket: Arc<UdpSocket>,
}

/// What a thread reads.
type Readers<'a> = (&'a mut Reader<Zone>, &'a mut Reader<Setup>, &'a mut Reader<Clients>);

/// One thread's own things.
pub struct Worker {
    /// Where queries come from.
    pub socket: Arc<UdpSocket>,
    /// What is known.
    pub resolver: Arc<Resolver>,
    /// Where queries for others go.
    pub late: mpsc::Sender<Late>,
    /// What it counts.
    pub counters: Arc<Counters>,
    /// The budgets of strangers.
    pub limiter: Limiter,
    /// Set when it is over.
    pub stop: Arc<AtomicBool>,
}

impl Worker {
    /// Answers until stopped. The socket has a timeout, so that stopping is noticed.
    pub fn run(mut self) {
        let mut batch = Batch::default();
        let mut zone = self.resolver.zone.reader();
        let mut setup = self.resolver.setup.reader();
        let mut clients = self.resolver.clients.reader();
        let turns = Turns::default();
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
                self.answer(&mut batch, slot, readers, (turns.take(), began));
            }
            self.counters.dropped(batch.send(self.socket.as_fd()));
            let many = u32::try_from(count).unwrap_or(1).max(1);
            self.counters.took(began.elapsed() / many, many.into());
        }
    }

    fn answer(
        &mut self,
        batch: &mut Batch,
        slot: usize,
        (zone, setup, clients): Readers<'_>,
        (turn, now): (usize, Instant),
    ) {
        let (query, origin, reply) = batch.slot(slot);
        let Some(peer) = origin.peer() else { return };
        let known = || zone.latest().has_endpoint(peer.ip()) || clients.latest().knows(peer.ip());
        let verdict = self.limiter.check(peer.ip(), known);
        if verdict != Verdict::Answer {
            self.counters.limited();
            if verdict == Verdict::Truncate && query.len() >= HEADER_LENGTH && query[2] & 0x80 == 0
            {
                let length = crate::reply::bare(query, Code::NoError, reply);
                reply[2] |= 0x02;
                batch.reply(slot, length);
            }
            return;
        }
        let context = Context {
            zone: zone.latest(),
            setup: setup.latest(),
            transport: Transport::Udp,
            turn,
            now,
            asking: Some(Asking { clients: clients.latest(), address: peer.ip() }),
        };
        let response = respond(&context, query, reply);
        match response {
            Response::Ignore => {}
            Response::Reply(length) | Response::Remembered(length) => {
                if response == Response::Remembered(length) {
                    self.counters.hit(reply);
                }
                log(context.setup, query, &peer, reply);
                self.counters.answered(kind(query), Transport::Udp, reply[3] & 0x0f);
                batch.reply(slot, length);
            }
            Response::Forward => {
                let socket = self.socket.clone();
                let late = Late { query: query.into(), origin: origin.clone(), socket };
                if self.late.try_send(late).is_err() {
                    self.counters.dropped(1);
                }
            }
        }
    }
}

/// Logs a query, if the rules for its name say so.
pub fn log(setup: &Setup, query: &[u8], peer: &std::net::SocketAddr, reply: &[u8]) {
    if setup.blocks.iter().all(|block| block.logs.is_empty()) {
        return;
    }
    let Some((name, _)) = read_name(query, HEADER_LENGTH) else { return };
    let (lower, code) = (name.wire().to_ascii_lowercase(), reply.get(3).map_or(0, |b| b & 0x0f));
    if setup.block(&lower).is_some_and(|block| block.logs(&lower, LoggedEnd::of(reply))) {
        let name = Name::from_wire(name.wire()).map(|name| name.to_string());
        info!(%peer, name = name.unwrap_or_default(), kind = kind(query), code, "query");
    }
}

/// The type that a query asks for.
pub fn kind(query: &[u8]) -> u16 {
    let mut at = HEADER_LENGTH;
    while let Some(length) = query.get(at).filter(|length| **length > 0) {
        at += 1 + usize::from(*length);
    }
    read_u16(query, at + 1).unwrap_or(0)
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Has others asked, and sends the replies.
pub async fn answer_late(mut queries: mpsc::Receiver<Late>, resolver: Arc<Resolver>) {
    let room = Shares::new(MOST_WAITING);
    while let Some(late) = queries.recv().await {
        let peer = late.origin.peer();
        let address = peer.map(|peer| peer.ip().to_canonical());
        let Ok(place) = room.take(address) else {
            resolver.counters.dropped(1);
            continue;
        };
        let resolver = resolver.clone();
        tokio::spawn(async move {
            let began = Instant::now();
            if let Some(reply) = resolver.finish(&late.query, Transport::Udp, address).await {
                if let Some(peer) = peer {
                    log(&resolver.setup.get(), &late.query, &peer, &reply);
                }
                let code = reply.get(3).map_or(0, |flags| flags & 0x0f);
                resolver.counters.answered(kind(&late.query), Transport::Udp, code);
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
