//! Asks other servers about names that are not ours.
//!
//! The quickest server that works is asked first. If it is slower than it usually is, the next one
//! is asked as well, and the first good reply counts. Those that say nothing are asked again. A server
//! is down when it does not even answer the simplest question: about some name nobody may answer.
//! Identifiers, ports and the case of letters are random, so that nobody can answer in the place of the
//! server we asked.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use roadstead_dns_core::cache::QuestionKey;
use roadstead_dns_core::upstream::letters::SpelledQuestion;
use roadstead_dns_core::upstream::question::{belongs, query};
use roadstead_dns_core::upstream::rounds::Rounds;
use roadstead_dns_core::upstream::{
    UpstreamFailure, UpstreamGroup, UpstreamOptions, UpstreamPolicy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time;
use tracing::{debug, info, warn};

use crate::shares::{ShareRefusal, Shares};
use crate::tasks::Tasks;

/// How often a server that failed is tried.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Bounds of how long the first server may think before the second is asked as well.
const HEDGE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(400)];

/// Servers that know about the rest of the world.
#[derive(Debug)]
pub(crate) struct Upstreams {
    servers: Vec<Arc<Upstream>>,
    options: UpstreamOptions,
    secret: RandomState,
    asked: AtomicU64,
    room: Arc<Shares>,
    /// Those that find out whether a server is up again; they end with this.
    probes: Tasks,
}

#[derive(Debug)]
struct Upstream {
    address: SocketAddr,
    /// A moving average of how long it takes, in microseconds.
    usual: AtomicU64,
    /// How often it failed in a row.
    failures: AtomicU32,
    /// Whether it is being asked for what every server knows.
    probing: AtomicBool,
    /// Whether it did not know that.
    down: AtomicBool,
    looping: AtomicBool,
    /// Whether it does not repeat the letters of a question as they are.
    folds: AtomicBool,
}

impl Upstreams {
    /// Servers, and how to use them.
    pub(crate) fn new(group: UpstreamGroup) -> Self {
        let UpstreamGroup { addresses, options } = group;
        let server = |address| {
            Arc::new(Upstream {
                address,
                usual: AtomicU64::new(0),
                failures: AtomicU32::new(0),
                probing: AtomicBool::new(false),
                down: AtomicBool::new(false),
                looping: AtomicBool::new(false),
                folds: AtomicBool::new(false),
            })
        };
        Self {
            servers: addresses.into_iter().map(server).collect(),
            room: Shares::new(options.most),
            options,
            secret: RandomState::new(),
            asked: AtomicU64::new(0),
            probes: Tasks::default(),
        }
    }

    /// The addresses of the servers.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.servers.iter().map(|server| server.address)
    }

    /// How many servers do not work at the moment.
    pub(crate) fn broken(&self) -> usize {
        self.servers.iter().filter(|server| server.is_down()).count()
    }

    /// Notes that a server leads back to us; it is not asked again.
    pub(crate) fn condemn(&self, address: SocketAddr) {
        for server in self.servers.iter().filter(|server| server.address == address) {
            server.looping.store(true, Ordering::Relaxed);
        }
    }

    /// Asks one of the servers, and then others if need be, or the same again, on behalf of a client.
    pub(crate) async fn ask(
        &self,
        key: &QuestionKey,
        client: Option<IpAddr>,
    ) -> Result<Vec<u8>, UpstreamFailure> {
        let _place = self.room.take(client).map_err(|refusal| match refusal {
            ShareRefusal::Full => UpstreamFailure::Busy,
            ShareRefusal::Share => UpstreamFailure::Share,
        })?;
        let order = self.order()?;
        let question = SpelledQuestion::new(query(key, self.random()), || self.random());
        let mut rounds = Rounds::new(order.len());
        let mut waiting = FuturesUnordered::new();
        let mut best: Option<Vec<u8>> = None;
        // The first is asked at once.
        let mut next = time::Instant::now();
        let over = next + self.options.timeout * 2;
        while !waiting.is_empty() || rounds.go_on() {
            tokio::select! {
                biased;
                Some((server, result)) = waiting.next() => {
                    let result: io::Result<Vec<u8>> = result;
                    match result {
                        Ok(reply) if !is_failure(&reply) => return Ok(reply),
                        Ok(reply) => {
                            rounds.answered(server);
                            best = Some(reply);
                        }
                        Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                        Err(_) => rounds.failed(server),
                    }
                    if rounds.is_first() || waiting.is_empty() {
                        next = time::Instant::now();
                    }
                }
                () = time::sleep_until(next), if rounds.go_on() => {
                    let Some(server) = rounds.take() else { continue };
                    waiting.push(self.exchange((server, &order[server]), &question));
                    next = time::Instant::now() + rounds.pause(order[server].patience());
                }
                () = time::sleep_until(over) => break,
            }
        }
        let names = || order.iter().map(|server| server.address.to_string()).collect::<Vec<_>>();
        best.ok_or_else(|| UpstreamFailure::Silent(names().join(", ")))
    }

    /// Whom to ask, in this order. Servers that are down come last, in case all are.
    fn order(&self) -> Result<Vec<Arc<Upstream>>, UpstreamFailure> {
        let looping = |server: &Upstream| server.looping.load(Ordering::Relaxed);
        let usable = self.servers.iter().filter(|server| !looping(server));
        let mut order: Vec<_> = usable.cloned().collect();
        if let (true, Some(server)) = (order.is_empty(), self.servers.first()) {
            return Err(UpstreamFailure::Loop(server.address));
        }
        let turn = usize::from(match self.options.policy {
            UpstreamPolicy::Random => self.random(),
            UpstreamPolicy::RoundRobin => {
                u16::try_from(self.asked.fetch_add(1, Ordering::Relaxed) % 65_536).unwrap_or(0)
            }
            UpstreamPolicy::Quickest | UpstreamPolicy::Sequential => 0,
        });
        let count = order.len().max(1);
        order.rotate_left(turn % count);
        if self.options.policy == UpstreamPolicy::Quickest {
            order.sort_by_key(|server| server.usual.load(Ordering::Relaxed));
        }
        order.sort_by_key(|server| server.is_down());
        Ok(order)
    }

    fn random(&self) -> u16 {
        let hash = self.secret.hash_one(self.asked.fetch_add(1, Ordering::Relaxed));
        u16::from_be_bytes([hash.to_be_bytes()[0], hash.to_be_bytes()[1]])
    }

    /// Asks one server, and remembers how that went. Its number is returned with the result.
    async fn exchange(
        &self,
        (number, server): (usize, &Arc<Upstream>),
        question: &SpelledQuestion,
    ) -> (usize, io::Result<Vec<u8>>) {
        let began = Instant::now();
        let result = server.exchange(question, &self.options).await;
        match &result {
            Ok(_) => server.succeeded(began.elapsed()),
            Err(error) => {
                debug!(server = %server.address, %error, "no answer from upstream");
                server.failures.fetch_add(1, Ordering::Relaxed);
                if self.options.max_fails > 0 {
                    server.probe(self.options.clone(), &self.probes);
                }
            }
        }
        (number, result)
    }
}

impl Upstream {
    fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    fn patience(&self) -> Duration {
        let usual = Duration::from_micros(self.usual.load(Ordering::Relaxed));
        (usual * 4).clamp(HEDGE[0], HEDGE[1])
    }

    fn succeeded(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let usual = self.usual.load(Ordering::Relaxed);
        let usual = if usual == 0 { took } else { (usual * 7 + took.min(10_000_000)) / 8 };
        self.usual.store(usual, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        if self.down.swap(false, Ordering::Relaxed) {
            info!(server = %self.address, "upstream is up again");
        }
    }

    async fn exchange(
        &self,
        question: &SpelledQuestion,
        options: &UpstreamOptions,
    ) -> io::Result<Vec<u8>> {
        let UpstreamOptions { timeout, force_tcp, .. } = *options;
        let folds = self.folds.load(Ordering::Relaxed);
        let query = if folds || force_tcp { &question.plain } else { &question.spelled };
        if force_tcp {
            return within(timeout, over_tcp(self.address, query)).await;
        }
        let reply = within(timeout, over_udp(self.address, query)).await?;
        let repeated = folds || question.is_repeated(&reply);
        if repeated && is_whole(&reply) {
            return Ok(question.restored(reply));
        }
        // There is more than fits, or the letters are others: that was an impostor, or a server that
        // does not care. The truth is to be had over TCP, where nobody can interfere.
        let whole = within(timeout, over_tcp(self.address, query)).await;
        let reply = match whole {
            Ok(whole) => {
                self.folds.store(folds || !question.is_repeated(&whole), Ordering::Relaxed);
                whole
            }
            Err(_) if repeated => reply,
            Err(_) => {
                let reply = within(timeout, over_udp(self.address, &question.plain)).await?;
                self.folds.store(true, Ordering::Relaxed);
                reply
            }
        };
        Ok(question.restored(reply))
    }

    /// Takes in that not even the simplest question was answered.
    fn failed_again(&self, error: &io::Error, max_fails: u32) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= max_fails && !self.down.swap(true, Ordering::Relaxed) {
            warn!(server = %self.address, %error, "upstream is down");
        }
    }

    /// Asks for the root's servers until there is an answer, in a task of its own. If there is none,
    /// and the server has failed often enough, it is down.
    fn probe(self: &Arc<Self>, options: UpstreamOptions, tasks: &Tasks) {
        if self.probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let server = self.clone();
        tasks.spawn(async move {
            let root = QuestionKey { name: [0].into(), kind: 2, dnssec: false, unchecked: false };
            loop {
                let began = Instant::now();
                let question = SpelledQuestion::new(query(&root, 1), || 0);
                match server.exchange(&question, &options).await {
                    Ok(_) => {
                        server.probing.store(false, Ordering::Relaxed);
                        return server.succeeded(began.elapsed());
                    }
                    Err(error) => server.failed_again(&error, options.max_fails),
                }
                time::sleep(PROBE_EVERY).await;
            }
        });
    }
}

async fn within<T>(time: Duration, reply: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    time::timeout(time, reply).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Whether there is no more than that.
fn is_whole(reply: &[u8]) -> bool {
    reply[2] & 0x02 == 0
}

fn is_failure(reply: &[u8]) -> bool {
    matches!(reply[3] & 0x0f, 2 | 5)
}

async fn over_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if belongs(&buffer[..length], query) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes(), query].concat()).await?;
    let length = stream.read_u16().await?;
    let mut reply = vec![0; usize::from(length)];
    stream.read_exact(&mut reply).await?;
    if belongs(&reply, query) { Ok(reply) } else { Err(io::ErrorKind::InvalidData.into()) }
}
