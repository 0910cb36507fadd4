//! The sockets: one task per listening address and transport.
//!
//! Answers from the zone are written within the receiving loop itself. Only a question for another
//! server becomes a task of its own, and there is a limit to how many of those wait at a time.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use roadstead_zone::zone::Zone;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::message::read_u16;
use crate::reply::Code;
use crate::respond::{MAX_REPLY, Response, Transport, complete, respond, respond_with};
use crate::upstream::{self, Upstreams};

/// Room for a burst of queries while we are busy.
const RECEIVE_BUFFER: usize = 4 << 20;
/// How many questions may wait for other servers at a time.
const WAITING_LIMIT: usize = 1000;
/// How many TCP connections may be open at a time.
const CONNECTION_LIMIT: usize = 500;
/// How long a TCP connection may be idle.
const IDLE: Duration = Duration::from_secs(10);

/// What every socket needs.
#[derive(Debug)]
pub struct Shared {
    zone: Arc<RwLock<Zone>>,
    upstreams: Upstreams,
    turn: AtomicUsize,
    waiting: Semaphore,
    connections: Arc<Semaphore>,
}

impl Shared {
    /// The zone to answer from, and whom to ask about the rest.
    pub fn new(zone: Arc<RwLock<Zone>>, upstreams: Vec<SocketAddr>) -> Self {
        Self {
            zone,
            upstreams: Upstreams::new(upstreams),
            turn: AtomicUsize::new(0),
            waiting: Semaphore::new(WAITING_LIMIT),
            connections: Arc::new(Semaphore::new(CONNECTION_LIMIT)),
        }
    }

    fn respond(&self, query: &[u8], transport: Transport, buffer: &mut [u8]) -> Response {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner);
        let response = respond(&zone, query, transport, turn, buffer);
        match response {
            Response::Forward if self.upstreams.is_empty() => {
                respond_with(query, Code::Refused, buffer).map_or(Response::Ignore, Response::Reply)
            }
            // With nobody to ask, the alias itself is all we can say.
            Response::Chase(_) if self.upstreams.is_empty() => {
                complete(&zone, query, transport, &[0; 4], buffer)
                    .map_or(Response::Ignore, Response::Reply)
            }
            other => other,
        }
    }

    /// Asks others, and returns the complete reply.
    async fn ask_others(
        &self,
        query: &[u8],
        transport: Transport,
        alias: Option<&[u8]>,
    ) -> Option<Vec<u8>> {
        let found = match (self.waiting.try_acquire(), alias) {
            (Ok(_permit), None) => self.upstreams.ask(query, transport).await,
            (Ok(_permit), Some(name)) => {
                let kind = read_u16(query, question_end(query)? - 4)?;
                self.upstreams.ask(&upstream::query(name, kind), transport).await
            }
            (Err(_), _) => None,
        };
        let mut buffer = vec![0; MAX_REPLY];
        let length = match (found, alias) {
            (Some(reply), None) => return Some(reply),
            (Some(found), Some(_)) => {
                let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner);
                complete(&zone, query, transport, &found, &mut buffer)?
            }
            (None, _) => respond_with(query, Code::ServerFailure, &mut buffer)?,
        };
        buffer.truncate(length);
        Some(buffer)
    }
}

fn question_end(query: &[u8]) -> Option<usize> {
    crate::message::Query::parse(query).ok().map(|query| query.question_end)
}

/// Sockets that are bound, but not served yet.
#[derive(Debug)]
pub struct Server {
    udp: Vec<Arc<UdpSocket>>,
    tcp: Vec<TcpListener>,
}

impl Server {
    /// Binds UDP and TCP on every address.
    pub fn bind(listen: &[SocketAddr]) -> io::Result<Self> {
        let mut server = Self { udp: Vec::new(), tcp: Vec::new() };
        for address in listen {
            let udp = UdpSocket::from_std(bind(*address, Type::DGRAM, Protocol::UDP)?.into())?;
            // A port chosen by the system must be the same for both.
            let address = udp.local_addr()?;
            let tcp = bind(address, Type::STREAM, Protocol::TCP)?;
            tcp.listen(1024)?;
            server.udp.push(Arc::new(udp));
            server.tcp.push(TcpListener::from_std(tcp.into())?);
        }
        Ok(server)
    }

    /// The addresses on which it can be reached.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.udp.iter().map(|socket| socket.local_addr()).collect()
    }

    /// Answers until `stop`.
    pub async fn serve(self, shared: Arc<Shared>, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        for socket in self.udp {
            tasks.spawn(serve_udp(socket, shared.clone(), stop.clone()));
        }
        for listener in self.tcp {
            tasks.spawn(serve_tcp(listener, shared.clone(), stop.clone()));
        }
        while tasks.join_next().await.is_some() {}
    }
}

fn bind(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    } else {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>, stop: CancellationToken) {
    let mut query = vec![0; MAX_REPLY];
    let mut reply = vec![0; MAX_REPLY];
    loop {
        let received = tokio::select! {
            () = stop.cancelled() => return,
            received = socket.recv_from(&mut query) => received,
        };
        let Ok((length, peer)) = received else { continue };
        let query = &query[..length];
        let alias = match shared.respond(query, Transport::Udp, &mut reply) {
            Response::Ignore => continue,
            Response::Reply(length) => {
                if let Err(error) = socket.send_to(&reply[..length], peer).await {
                    debug!(%peer, %error, "reply not sent");
                }
                continue;
            }
            Response::Forward => None,
            Response::Chase(alias) => Some(alias),
        };
        let (socket, shared, query) = (socket.clone(), shared.clone(), query.to_vec());
        let stop = stop.clone();
        tokio::spawn(async move {
            let reply = shared.ask_others(&query, Transport::Udp, alias.as_deref());
            if let Some(Some(reply)) = stop.run_until_cancelled(reply).await {
                let _ = socket.send_to(&reply, peer).await;
            }
        });
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted.inspect_err(|error| warn!(%error, "cannot accept")) else {
            time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Whoever comes when the house is full is sent away.
        let Ok(permit) = shared.connections.clone().try_acquire_owned() else { continue };
        let (shared, stop) = (shared.clone(), stop.clone());
        tokio::spawn(async move {
            let _ = stop.run_until_cancelled(serve_connection(stream, &shared)).await;
            drop(permit);
        });
    }
}

async fn serve_connection(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut query = Vec::new();
    let mut reply = vec![0; MAX_REPLY];
    while let Ok(Ok(length)) = time::timeout(IDLE, stream.read_u16()).await {
        query.resize(usize::from(length), 0);
        time::timeout(IDLE, stream.read_exact(&mut query)).await??;
        let others;
        let answer = match shared.respond(&query, Transport::Tcp, &mut reply) {
            Response::Ignore => return Ok(()),
            Response::Reply(length) => &reply[..length],
            Response::Forward => {
                others = shared.ask_others(&query, Transport::Tcp, None).await;
                others.as_deref().unwrap_or_default()
            }
            Response::Chase(alias) => {
                others = shared.ask_others(&query, Transport::Tcp, Some(&alias)).await;
                others.as_deref().unwrap_or_default()
            }
        };
        let length = u16::try_from(answer.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        stream.write_all(&[&length.to_be_bytes(), answer].concat()).await?;
    }
    Ok(())
}
