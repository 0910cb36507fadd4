//! Streams: many queries per connection, answered as soon as each can be, in whatever order.
//!
//! When there are too many connections, those that have been silent for longest have to go, so
//! that whoever only holds connections open keeps nobody else out. A client with many of them pushes
//! out its own. A silent one has no buffers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use roadstead_dns_core::message::question_type;
use roadstead_dns_core::respond::{MAX_REPLY, Response, Transport};
use roadstead_dns_core::transfer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::metrics::Answered;
use crate::query_log::log;
use crate::resolve::Resolver;

/// How many connections may be open at a time.
const MOST: usize = 10_240;
/// How much of the files that the process may open is for connections; the rest is for others.
const SHARE: u64 = 3;
/// One client may have so many times fewer. That is still many, because all pods of a node may come
/// from its address.
const FOR_ONE: usize = 4;
/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(10);
/// How many queries of one connection may wait for other servers.
const MOST_LATE: usize = 64;
/// How much is read at a time.
const CHUNK: usize = 4096;
/// How much may wait to be sent before we stop reading.
const MOST_UNSENT: usize = 256 << 10;

/// Accepts connections until `stop`.
pub async fn serve(listener: TcpListener, resolver: Arc<Resolver>, stop: CancellationToken) {
    let connections = Arc::new(Connections::default());
    let most = room();
    let conversations = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted.inspect_err(|error| warn!(%error, "cannot accept"))
        else {
            // Most likely there are too many open files: some of them can be spared.
            let now = connections.lock().all.len().max(1);
            connections.lock().make_room(now, None);
            time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let client = peer.ip().to_canonical();
        connections.lock().make_room(most, Some(client));
        let connection = connections.enter(client, stop.child_token());
        let (resolver, connections) = (resolver.clone(), connections.clone());
        conversations.spawn(async move {
            let talk = converse(stream, peer, &resolver, &connection);
            let _ = connection.leave.run_until_cancelled(talk).await;
            connections.lock().remove(connection.number);
        });
    }
    // Each of them has been told as well.
    conversations.close();
    conversations.wait().await;
}

/// Lets the process open as many files as the system permits, which is usually far more than it gives
/// at first; returns how many those were. Whoever starts a process with this server should call it,
/// and give programs that know nothing of it their old limit.
pub fn raise_file_limit() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit { current: before.maximum, ..before };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "cannot have more open files");
    }
    before.current
}

/// How many connections there may be, given how many files the process may open.
fn room() -> usize {
    let files = getrlimit(Resource::Nofile).current;
    let share = files.and_then(|files| usize::try_from(files / SHARE).ok());
    share.unwrap_or(MOST).clamp(1, MOST)
}

/// All who are connected.
#[derive(Debug, Default)]
struct Connections {
    next: AtomicU64,
    table: Mutex<ConnectionTable>,
}

/// Connections by number, and how many each client has.
#[derive(Debug, Default)]
struct ConnectionTable {
    all: HashMap<u64, Arc<Connection>>,
    clients: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    client: IpAddr,
    /// When it last said something, in milliseconds.
    active: AtomicU64,
    began: Instant,
    leave: CancellationToken,
}

impl Connection {
    fn touch(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active.store(now, Ordering::Relaxed);
    }

    fn silent_since(&self) -> Instant {
        self.began + Duration::from_millis(self.active.load(Ordering::Relaxed))
    }
}

impl Connections {
    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, client: IpAddr, leave: CancellationToken) -> Arc<Connection> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let active = AtomicU64::new(0);
        let connection =
            Arc::new(Connection { number, client, active, began: Instant::now(), leave });
        let mut table = self.lock();
        table.all.insert(number, connection.clone());
        *table.clients.entry(client).or_default() += 1;
        connection
    }
}

impl ConnectionTable {
    fn remove(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.all.remove(&number)?;
        if let Entry::Occupied(mut count) = self.clients.entry(connection.client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(connection)
    }

    /// Sends some away if there are that many, or if one client has more than its share of them.
    fn make_room(&mut self, most: usize, client: Option<IpAddr>) {
        let share = (most / FOR_ONE).max(1);
        let greedy = client.filter(|client| self.clients.get(client).is_some_and(|n| *n >= share));
        match greedy {
            Some(client) => self.send_away(share, |connection| connection.client == client),
            None if self.all.len() >= most => self.send_away(most, |_| true),
            None => {}
        }
    }

    /// Sends away those who have been silent for longest: some at a time, so that a flood does not
    /// make us search for each one; but only some, because others wait while they leave.
    fn send_away(&mut self, of: usize, whom: impl Fn(&Connection) -> bool) {
        let some = self.all.values().filter(|connection| whom(connection));
        let mut some: Vec<_> =
            some.map(|connection| (connection.silent_since(), connection.number)).collect();
        let count = (of / 64).max(1);
        if count < some.len() {
            some.select_nth_unstable(count);
        }
        for (_, number) in some.into_iter().take(count) {
            if let Some(connection) = self.remove(number) {
                connection.leave.cancel();
            }
        }
    }
}

async fn converse(
    mut stream: TcpStream,
    peer: SocketAddr,
    resolver: &Arc<Resolver>,
    connection: &Connection,
) -> io::Result<()> {
    let mut late = LateReplies::default();
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut over = false;
    // Whoever asks nothing more may still wait for answers (RFC 1035, 4.2.2).
    while !over || late.len() > 0 {
        tokio::select! {
            reply = late.next(), if late.len() > 0 => frame(&mut output, &reply),
            read = read_some(&mut stream, &mut input), if !over && late.len() < MOST_LATE => {
                over = read? == 0;
                connection.touch();
            }
        }
        let mut used = 0;
        while let Some(query) = next(&input[used..]) {
            used += 2 + query.len();
            match answer(resolver, query, &peer, &mut output) {
                QueryOutcome::Done => {}
                QueryOutcome::Leave => return Ok(()),
                QueryOutcome::Late => late.ask(resolver, query.to_vec(), peer),
            }
            if output.len() > MOST_UNSENT {
                send(&mut stream, &mut output).await?;
            }
        }
        input.drain(..used);
        send(&mut stream, &mut output).await?;
        // Most connections are silent most of the time; then they should be nothing but that.
        if input.is_empty() {
            (input, output) = (Vec::new(), Vec::new());
        }
    }
    Ok(())
}

async fn send(stream: &mut TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
    if !output.is_empty() {
        // Whoever does not read what was asked for must not hold our memory.
        time::timeout(IDLE, stream.write_all(output)).await??;
        output.clear();
    }
    Ok(())
}

/// Waits for something and reads it; nothing at the end, and when nothing came for too long. There
/// is no buffer before there is something to put into it.
async fn read_some(stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<usize> {
    // A new connection may be called readable though nothing has come: the limit is for both.
    let read = async {
        stream.readable().await?;
        input.reserve(CHUNK);
        stream.read_buf(input).await
    };
    time::timeout(IDLE, read).await.unwrap_or(Ok(0))
}

/// The queries of one connection that others have to be asked about. They end with it.
#[derive(Debug, Default)]
struct LateReplies {
    /// Made when there is the first one: few connections have any.
    waiting: Option<JoinSet<Vec<u8>>>,
}

impl LateReplies {
    fn len(&self) -> usize {
        self.waiting.as_ref().map_or(0, JoinSet::len)
    }

    /// The next reply.
    async fn next(&mut self) -> Vec<u8> {
        let Some(waiting) = &mut self.waiting else { return std::future::pending().await };
        match waiting.join_next().await {
            Some(reply) => reply.unwrap_or_default(),
            None => std::future::pending().await,
        }
    }

    fn ask(&mut self, resolver: &Arc<Resolver>, query: Vec<u8>, peer: SocketAddr) {
        let resolver = resolver.clone();
        self.waiting.get_or_insert_default().spawn(async move {
            let began = Instant::now();
            let reply = resolver.finish(&query, Transport::Tcp, Some(peer.ip())).await;
            let reply = reply.unwrap_or_default();
            let code = reply.get(3).map_or(0, |flags| flags & 0x0f);
            count(&resolver, &query, &peer, code);
            resolver.counters.took(began.elapsed(), 1);
            log(&resolver.setup.get().setup, &query, &peer, &reply);
            reply
        });
    }
}

fn count(resolver: &Resolver, query: &[u8], peer: &SocketAddr, code: u8) {
    resolver.counters.answered(&Answered {
        kind: question_type(query),
        transport: Transport::Tcp,
        client: peer.ip(),
        zone: resolver.setup.get().counted_zone(query),
        code,
    });
}

/// The first complete query.
fn next(input: &[u8]) -> Option<&[u8]> {
    let (length, rest) = input.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

fn frame(output: &mut Vec<u8>, reply: &[u8]) {
    output.extend(u16::try_from(reply.len()).unwrap_or(0).to_be_bytes());
    output.extend(reply);
}

enum QueryOutcome {
    Done,
    Late,
    Leave,
}

thread_local! {
    /// Room for one reply per thread rather than per connection.
    static SCRATCH: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; MAX_REPLY]);
}

fn answer(
    resolver: &Resolver,
    query: &[u8],
    peer: &SocketAddr,
    output: &mut Vec<u8>,
) -> QueryOutcome {
    if transfer::is_wanted(question_type(query)) {
        let (zone, active) = (resolver.zone.get(), resolver.setup.get());
        if let Some(messages) = transfer::messages(&zone, &active.setup, query, peer.ip()) {
            messages.iter().for_each(|message| frame(output, message));
            count(resolver, query, peer, 0);
            return QueryOutcome::Done;
        }
    }
    SCRATCH.with_borrow_mut(|buffer| {
        let response = resolver.respond(query, Transport::Tcp, Some(peer.ip()), buffer);
        match response {
            Response::Ignore => QueryOutcome::Leave,
            Response::Forward => QueryOutcome::Late,
            Response::Reply(length) | Response::Remembered(length) => {
                if response == Response::Remembered(length) {
                    resolver.counters.hit(buffer);
                }
                let code = buffer[3] & 0x0f;
                log(&resolver.setup.get().setup, query, peer, buffer);
                count(resolver, query, peer, code);
                frame(output, &buffer[..length]);
                QueryOutcome::Done
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::Published;
    use roadstead_dns_core::setup::Setup;
    use roadstead_zone::name::Name;
    use roadstead_zone::seed::Seed;
    use roadstead_zone::zone::Keeper;

    /// Lets clients in, one after the other; returns how many connections each has at the end.
    fn connections(most: usize, clients: &str) -> String {
        let connections = Connections::default();
        for client in clients.bytes() {
            let client = IpAddr::from([10, 0, 0, client]);
            connections.lock().make_room(most, Some(client));
            connections.enter(client, CancellationToken::new());
        }
        let table = connections.lock();
        let mut counts: Vec<_> = table.clients.iter().collect();
        counts.sort_unstable();
        assert_eq!(table.all.len(), counts.iter().map(|(_, count)| **count).sum::<usize>());
        let last =
            |client: &IpAddr| client.to_string().rsplit('.').next().unwrap().parse().unwrap();
        let text = counts.iter().map(|(client, count)| {
            let letter: u8 = last(client);
            format!("{}{count}", char::from(letter))
        });
        text.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_client_pushes_out_its_own() {
        for (name, most, clients, want) in [
            ("room for all", 8, "abab", "a2 b2"),
            ("too many of one", 8, "abaaaaaaaa", "a2 b1"),
            ("too many in all", 4, "abcde", "b1 c1 d1 e1"),
            ("the one that is there longest", 4, "aaaa", "a1"),
        ] {
            assert_eq!(connections(most, clients), want, "{name}");
        }
    }

    /// How long a connection is kept over which this comes, and nothing else.
    async fn kept(bytes: &[u8]) -> Duration {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let connection = Connections::default().enter(peer.ip(), CancellationToken::new());
        let zone =
            roadstead_zone::settings::ZoneSettings::new(&Name::parse("cluster.local").unwrap());
        let zone = Published::new(Keeper::new(zone, 1, Seed::new(1)).snapshot());
        let resolver = Resolver::new(zone, Setup::standard(None));
        let began = time::Instant::now();
        converse(stream, peer, &resolver, &connection).await.unwrap();
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends() {
        for (name, bytes) in [("nothing at all", &[][..]), ("a byte", &[0]), ("a half", &[0, 9, 1])]
        {
            let kept = kept(bytes).await;
            assert!(kept >= IDLE && kept < 2 * IDLE, "{name}: {kept:?}");
        }
    }
}
