//! Streams: many queries per connection, answered as soon as each can be, in whatever order.
//!
//! When there are too many connections, the one that has been silent for longest has to go, so
//! that those who only hold connections open keep nobody else out.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::resolve::Resolver;
use crate::respond::{MAX_REPLY, Response, Transport};
use crate::udp::{kind, log};

/// How many connections may be open at a time.
const MOST: usize = 4096;
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
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted.inspect_err(|error| warn!(%error, "cannot accept"))
        else {
            // Most likely there are too many open files: some of them can be spared.
            let most = crowd.lock().len().max(1);
            crowd.make_room(most);
            time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        crowd.make_room(MOST);
        let guest = crowd.enter(stop.child_token());
        let (resolver, crowd) = (resolver.clone(), crowd.clone());
        tokio::spawn(async move {
            let talk = converse(stream, peer, &resolver, &guest);
            let _ = guest.leave.run_until_cancelled(talk).await;
            crowd.lock().remove(&guest.number);
        });
    }
}

/// All who are connected.
#[derive(Debug, Default)]
struct Crowd {
    next: AtomicU64,
    guests: Mutex<HashMap<u64, Arc<Guest>>>,
}

#[derive(Debug)]
struct Guest {
    number: u64,
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
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Guest>>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, leave: CancellationToken) -> Arc<Guest> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let active = AtomicU64::new(0);
        let guest = Arc::new(Guest { number, active, began: Instant::now(), leave });
        self.lock().insert(number, guest.clone());
        guest
    }

    /// Sends away whoever has been silent for longest, until there are fewer than that.
    fn make_room(&self, most: usize) {
        let mut guests = self.lock();
        if guests.len() < most {
            return;
        }
        // A sixteenth at a time, so that a flood does not make us search for each one.
        let mut all: Vec<_> = guests.values().map(|g| (g.silent_since(), g.number)).collect();
        all.sort_unstable();
        for (_, number) in all.into_iter().take((most / 16).max(1)) {
            if let Some(guest) = guests.remove(&number) {
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
    let (late, mut replies) = mpsc::channel::<Vec<u8>>(MOST_LATE);
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut waiting = 0_usize;
    loop {
        tokio::select! {
            Some(reply) = replies.recv(), if waiting > 0 => {
                waiting -= 1;
                frame(&mut output, &reply);
            }
            read = read_some(&mut stream, &mut input), if waiting < MOST_LATE => {
                if !read? {
                    return Ok(());
                }
                guest.touch();
            }
        }
        let mut used = 0;
        while let Some(query) = next(&input[used..]) {
            used += 2 + query.len();
            match answer(resolver, query, &peer, &mut output) {
                Verdict::Done => {}
                Verdict::Leave => return Ok(()),
                Verdict::Late => {
                    waiting += 1;
                    ask(resolver, query.to_vec(), peer.ip(), late.clone());
                }
            }
            if output.len() > MOST_UNSENT {
                send(&mut stream, &mut output).await?;
            }
        }
        input.drain(..used);
        send(&mut stream, &mut output).await?;
    }
}

async fn send(stream: &mut TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
    if !output.is_empty() {
        // Whoever does not read what was asked for must not hold our memory.
        time::timeout(IDLE, stream.write_all(output)).await??;
        output.clear();
    }
    Ok(())
}

/// Returns false at the end, and when nothing came for too long.
async fn read_some(stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<bool> {
    input.reserve(CHUNK);
    match time::timeout(IDLE, stream.read_buf(input)).await {
        Ok(read) => Ok(read? > 0),
        Err(_) => Ok(false),
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
    SCRATCH.with_borrow_mut(|buffer| {
        let response = resolver.respond(query, Transport::Tcp, Some(peer.ip()), buffer);
        match response {
            Response::Ignore => Verdict::Leave,
            Response::Forward => Verdict::Late,
            Response::Reply(length) => {
                let code = buffer[3] & 0x0f;
                log(&resolver.setup.get(), query, peer, code);
                resolver.counters.answered(kind(query), Transport::Tcp, code);
                frame(output, &buffer[..length]);
                Verdict::Done
            }
        }
    })
}

fn ask(resolver: &Arc<Resolver>, query: Vec<u8>, peer: IpAddr, late: mpsc::Sender<Vec<u8>>) {
    let resolver = resolver.clone();
    tokio::spawn(async move {
        let reply = resolver.finish(&query, Transport::Tcp, Some(peer)).await.unwrap_or_default();
        // The client may have left.
        let _ = late.send(reply).await;
    });
}
