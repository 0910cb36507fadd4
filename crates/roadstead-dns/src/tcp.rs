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

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::resolve::Resolver;
use crate::respond::{MAX_REPLY, Response, Transport};
use crate::transfer;
use crate::udp::{kind, log};

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
    let crowd = Arc::new(Crowd::default());
    let most = room();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted.inspect_err(|error| warn!(%error, "cannot accept"))
        else {
            // Most likely there are too many open files: some of them can be spared.
            let now = crowd.lock().all.len().max(1);
            crowd.lock().make_room(now, None);
            time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let client = peer.ip().to_canonical();
        crowd.lock().make_room(most, Some(client));
        let guest = crowd.enter(client, stop.child_token());
        let (resolver, crowd) = (resolver.clone(), crowd.clone());
        tokio::spawn(async move {
            let talk = converse(stream, peer, &resolver, &guest);
            let _ = guest.leave.run_until_cancelled(talk).await;
            crowd.lock().remove(guest.number);
        });
    }
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
struct Crowd {
    next: AtomicU64,
    guests: Mutex<Guests>,
}

/// Connections by number, and how many each client has.
#[derive(Debug, Default)]
struct Guests {
    all: HashMap<u64, Arc<Guest>>,
    clients: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Guest {
    number: u64,
    client: IpAddr,
    /// When it last said something, in milliseconds.
    active: AtomicU64,
    began: Instant,
    leave: CancellationToken,
}

impl Guest {
    fn touch(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active.store(now, Ordering::Relaxed);
    }

    fn silent_since(&self) -> Instant {
        self.began + Duration::from_millis(self.active.load(Ordering::Relaxed))
    }
}

impl Crowd {
    fn lock(&self) -> std::sync::MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, client: IpAddr, leave: CancellationToken) -> Arc<Guest> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let active = AtomicU64::new(0);
        let guest = Arc::new(Guest { number, client, active, began: Instant::now(), leave });
        let mut guests = self.lock();
        guests.all.insert(number, guest.clone());
        *guests.clients.entry(client).or_default() += 1;
        guest
    }
}

impl Guests {
    fn remove(&mut self, number: u64) -> Option<Arc<Guest>> {
        let guest = self.all.remove(&number)?;
        if let Entry::Occupied(mut count) = self.clients.entry(guest.client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(guest)
    }

    /// Sends some away if there are that many, or if one client has more than its share of them.
    fn make_room(&mut self, most: usize, client: Option<IpAddr>) {
        let share = (most / FOR_ONE).max(1);
        let greedy = client.filter(|client| self.clients.get(client).is_some_and(|n| *n >= share));
        match greedy {
            Some(client) => self.send_away(share, |guest| guest.client == client),
            None if self.all.len() >= most => self.send_away(most, |_| true),
            None => {}
        }
    }

    /// Sends away those who have been silent for longest: some at a time, so that a flood does not
    /// make us search for each one; but only some, because others wait while they leave.
    fn send_away(&mut self, of: usize, whom: impl Fn(&Guest) -> bool) {
        let some = self.all.values().filter(|guest| whom(guest));
        let mut some: Vec<_> = some.map(|guest| (guest.silent_since(), guest.number)).collect();
        let count = (of / 64).max(1);
        if count < some.len() {
            some.select_nth_unstable(count);
        }
        for (_, number) in some.into_iter().take(count) {
            if let Some(guest) = self.remove(number) {
                guest.leave.cancel();
            }
        }
    }
}

async fn converse(
    mut stream: TcpStream,
    peer: SocketAddr,
    resolver: &Arc<Resolver>,
    guest: &Guest,
) -> io::Result<()> {
    let mut late = Late::default();
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut over = false;
    // Whoever asks nothing more may still wait for answers (RFC 1035, 4.2.2).
    while !over || late.waiting > 0 {
        tokio::select! {
            reply = late.next(), if late.waiting > 0 => frame(&mut output, &reply),
            read = read_some(&mut stream, &mut input), if !over && late.waiting < MOST_LATE => {
                over = read? == 0;
                guest.touch();
            }
        }
        let mut used = 0;
        while let Some(query) = next(&input[used..]) {
            used += 2 + query.len();
            match answer(resolver, query, &peer, &mut output) {
                Verdict::Done => {}
                Verdict::Leave => return Ok(()),
                Verdict::Late => late.ask(resolver, query.to_vec(), peer),
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

/// The queries of one connection that others have to be asked about.
#[derive(Debug, Default)]
struct Late {
    waiting: usize,
    /// Made when there is the first one: few connections have any.
    replies: Option<Replies>,
}

type Replies = (mpsc::Sender<Vec<u8>>, mpsc::Receiver<Vec<u8>>);

impl Late {
    /// The next reply.
    async fn next(&mut self) -> Vec<u8> {
        let Some((_, replies)) = &mut self.replies else { return std::future::pending().await };
        let reply = replies.recv().await.unwrap_or_default();
        self.waiting -= 1;
        reply
    }

    fn ask(&mut self, resolver: &Arc<Resolver>, query: Vec<u8>, peer: SocketAddr) {
        let (sender, _) = self.replies.get_or_insert_with(|| mpsc::channel(MOST_LATE));
        let (sender, resolver) = (sender.clone(), resolver.clone());
        self.waiting += 1;
        tokio::spawn(async move {
            let began = Instant::now();
            let reply = resolver.finish(&query, Transport::Tcp, Some(peer.ip())).await;
            let reply = reply.unwrap_or_default();
            let code = reply.get(3).map_or(0, |flags| flags & 0x0f);
            resolver.counters.answered(kind(&query), Transport::Tcp, code);
            resolver.counters.took(began.elapsed(), 1);
            log(&resolver.setup.get(), &query, &peer, &reply);
            // The client may have left.
            let _ = sender.send(reply).await;
        });
    }
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

enum Verdict {
    Done,
    Late,
    Leave,
}

thread_local! {
    /// Room for one reply per thread rather than per connection.
    static SCRATCH: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; MAX_REPLY]);
}

fn answer(resolver: &Resolver, query: &[u8], peer: &SocketAddr, output: &mut Vec<u8>) -> Verdict {
    if transfer::is_wanted(kind(query)) {
        let (zone, setup) = (resolver.zone.get(), resolver.setup.get());
        if let Some(messages) = transfer::messages(&zone, &setup, query, peer.ip()) {
            messages.iter().for_each(|message| frame(output, message));
            resolver.counters.answered(kind(query), Transport::Tcp, 0);
            return Verdict::Done;
        }
    }
    SCRATCH.with_borrow_mut(|buffer| {
        let response = resolver.respond(query, Transport::Tcp, Some(peer.ip()), buffer);
        match response {
            Response::Ignore => Verdict::Leave,
            Response::Forward => Verdict::Late,
            Response::Reply(length) | Response::Remembered(length) => {
                if response == Response::Remembered(length) {
                    resolver.counters.hit(buffer);
                }
                let code = buffer[3] & 0x0f;
                log(&resolver.setup.get(), query, peer, buffer);
                resolver.counters.answered(kind(query), Transport::Tcp, code);
                frame(output, &buffer[..length]);
                Verdict::Done
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::Published;
    use crate::setup::Setup;
    use roadstead_zone::name::Name;
    use roadstead_zone::zone::Keeper;

    /// Lets clients in, one after the other; returns how many connections each has at the end.
    fn crowd(most: usize, clients: &str) -> String {
        let crowd = Crowd::default();
        for client in clients.bytes() {
            let client = IpAddr::from([10, 0, 0, client]);
            crowd.lock().make_room(most, Some(client));
            crowd.enter(client, CancellationToken::new());
        }
        let guests = crowd.lock();
        let mut counts: Vec<_> = guests.clients.iter().collect();
        counts.sort_unstable();
        assert_eq!(guests.all.len(), counts.iter().map(|(_, count)| **count).sum::<usize>());
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
            assert_eq!(crowd(most, clients), want, "{name}");
        }
    }

    /// How long a connection is kept over which this comes, and nothing else.
    async fn kept(bytes: &[u8]) -> Duration {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let guest = Crowd::default().enter(peer.ip(), CancellationToken::new());
        let zone = roadstead_zone::settings::Settings::new(&Name::parse("cluster.local").unwrap());
        let zone = Published::new(Keeper::new(zone, 1).snapshot());
        let resolver = Resolver::new(zone, Published::new(Arc::new(Setup::standard(None))));
        let began = time::Instant::now();
        converse(stream, peer, &resolver, &guest).await.unwrap();
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
