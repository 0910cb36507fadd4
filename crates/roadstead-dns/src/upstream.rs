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
use roadstead_zone::name::MAX_LENGTH;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time;
use tracing::{debug, info, warn};

use self::letters::Question;
use self::rounds::Rounds;
use crate::cache::Key;
use crate::message::{CLASS_INTERNET, HEADER_LENGTH, Query, TYPE_OPT, records};
use crate::shares::{Refusal, Shares};

mod letters;
mod rounds;

/// The size of reply we take over UDP.
const OUR_SIZE: u16 = 1232;
/// How often a server that failed is tried.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Bounds of how long the first server may think before the second is asked as well.
const HEDGE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(400)];

/// Which server is asked first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The quickest.
    #[default]
    Quickest,
    /// Any.
    Random,
    /// Each in turn.
    RoundRobin,
    /// In the order given.
    Sequential,
}

/// What the operator chooses about asking others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Who is asked first.
    pub policy: Policy,
    /// How long one server may take. All together get twice as long: clients give up after five
    /// seconds, and should hear before that that there is no answer.
    pub timeout: Duration,
    /// After how many failures in a row a server is left alone; 0 is never.
    pub max_fails: u32,
    /// How many questions may wait at a time, of which no client may have all; 0 is without limit.
    pub most: usize,
    /// Whether to use TCP always.
    pub force_tcp: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            timeout: Duration::from_secs(2),
            max_fails: 2,
            most: 1000,
            force_tcp: false,
        }
    }
}

/// Why nobody answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Too many questions wait already.
    #[error("too many questions wait for other servers")]
    Busy,
    /// Too many questions of that client wait already.
    #[error("too many of your questions wait for other servers")]
    Share,
    /// None of the servers answered.
    #[error("no answer from {0}")]
    Silent(String),
    /// The servers lead back to us.
    #[error("the upstream {0} leads back to this server")]
    Loop(SocketAddr),
}

/// Servers that know about the rest of the world.
#[derive(Debug)]
pub struct Upstreams {
    servers: Vec<Arc<Server>>,
    options: Options,
    secret: RandomState,
    asked: AtomicU64,
    room: Arc<Shares>,
}

#[derive(Debug)]
struct Server {
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
    pub fn new(servers: Vec<SocketAddr>, options: Options) -> Self {
        let server = |address| {
            Arc::new(Server {
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
            servers: servers.into_iter().map(server).collect(),
            room: Shares::new(options.most),
            options,
            secret: RandomState::new(),
            asked: AtomicU64::new(0),
        }
    }

    /// The addresses of the servers.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.servers.iter().map(|server| server.address)
    }

    /// How many servers do not work at the moment.
    pub fn broken(&self) -> usize {
        self.servers.iter().filter(|server| server.is_down()).count()
    }

    /// Notes that a server leads back to us; it is not asked again.
    pub fn condemn(&self, address: SocketAddr) {
        for server in self.servers.iter().filter(|server| server.address == address) {
            server.looping.store(true, Ordering::Relaxed);
        }
    }

    /// Asks one of the servers, and then others if need be, or the same again, on behalf of a client.
    pub async fn ask(&self, key: &Key, client: Option<IpAddr>) -> Result<Vec<u8>, Failure> {
        let _place = self.room.take(client).map_err(|refusal| match refusal {
            Refusal::Full => Failure::Busy,
            Refusal::Share => Failure::Share,
        })?;
        let order = self.order()?;
        let question = Question::new(query(key, self.random()), || self.random());
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
        best.ok_or_else(|| Failure::Silent(names().join(", ")))
    }

    /// Whom to ask, in this order. Servers that are down come last, in case all are.
    fn order(&self) -> Result<Vec<Arc<Server>>, Failure> {
        let looping = |server: &Server| server.looping.load(Ordering::Relaxed);
        let usable = self.servers.iter().filter(|server| !looping(server));
        let mut order: Vec<_> = usable.cloned().collect();
        if let (true, Some(server)) = (order.is_empty(), self.servers.first()) {
            return Err(Failure::Loop(server.address));
        }
        let turn = usize::from(match self.options.policy {
            Policy::Random => self.random(),
            Policy::RoundRobin => {
                u16::try_from(self.asked.fetch_add(1, Ordering::Relaxed) % 65_536).unwrap_or(0)
            }
            Policy::Quickest | Policy::Sequential => 0,
        });
        let count = order.len().max(1);
        order.rotate_left(turn % count);
        if self.options.policy == Policy::Quickest {
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
        (number, server): (usize, &Arc<Server>),
        question: &Question,
    ) -> (usize, io::Result<Vec<u8>>) {
        let began = Instant::now();
        let result = server.exchange(question, &self.options).await;
        match &result {
            Ok(_) => server.succeeded(began.elapsed()),
            Err(error) => {
                debug!(server = %server.address, %error, "no answer from upstream");
                server.failures.fetch_add(1, Ordering::Relaxed);
                if self.options.max_fails > 0 {
                    server.probe(self.options.clone());
                }
            }
        }
        (number, result)
    }
}

impl Server {
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

    async fn exchange(&self, question: &Question, options: &Options) -> io::Result<Vec<u8>> {
        let Options { timeout, force_tcp, .. } = *options;
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
    fn probe(self: &Arc<Self>, options: Options) {
        if self.probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let server = Arc::downgrade(self);
        tokio::spawn(async move {
            let root = Key { name: [0].into(), kind: 2, dnssec: false, unchecked: false };
            // When nobody uses the server any more, there is nothing to find out.
            while let Some(server) = server.upgrade() {
                let began = Instant::now();
                let question = Question::new(query(&root, 1), || 0);
                match server.exchange(&question, &options).await {
                    Ok(_) => {
                        server.probing.store(false, Ordering::Relaxed);
                        return server.succeeded(began.elapsed());
                    }
                    Err(error) => server.failed_again(&error, options.max_fails),
                }
                drop(server);
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

/// A query in our own name.
pub fn query(key: &Key, identifier: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LENGTH + MAX_LENGTH + 15);
    bytes.extend(identifier.to_be_bytes());
    // Recursion is desired; one question and one additional record.
    bytes.extend([1, if key.unchecked { 0x10 } else { 0 }, 0, 1, 0, 0, 0, 0, 0, 1]);
    bytes.extend(&key.name);
    bytes.extend(key.kind.to_be_bytes());
    bytes.extend(CLASS_INTERNET.to_be_bytes());
    bytes.push(0);
    bytes.extend(TYPE_OPT.to_be_bytes());
    bytes.extend(OUR_SIZE.to_be_bytes());
    bytes.extend([0, 0, if key.dnssec { 0x80 } else { 0 }, 0, 0, 0]);
    bytes
}

/// A reply belongs to a query if it has its identifier and repeats its question; and it must be
/// readable throughout.
pub fn belongs(reply: &[u8], query: &[u8]) -> bool {
    let question_end = Query::parse(query).map_or(HEADER_LENGTH, |query| query.question_end);
    let question =
        |bytes: &[u8]| bytes.get(HEADER_LENGTH..question_end).map(<[u8]>::to_ascii_lowercase);
    let is_reply = reply.len() >= HEADER_LENGTH && reply[2] & 0x80 != 0;
    is_reply
        && reply[..2] == query[..2]
        && reply[4..6] == [0, 1]
        && question(reply) == question(query)
        && records(reply).all(|record| record.is_ok())
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
