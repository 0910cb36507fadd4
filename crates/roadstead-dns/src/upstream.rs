//! Asks other servers about names that are not ours.
//!
//! Messages pass through as they are, except for the identifier: ours is random, so that nobody
//! can answer in the place of the server we asked.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roadstead_zone::name::MAX_LENGTH;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time;
use tracing::debug;

use crate::message::{CLASS_INTERNET, HEADER_LENGTH, Query};
use crate::respond::{MAX_REPLY, Transport};

/// How long one server may take before the next one is asked.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The servers that know about the rest of the world.
#[derive(Debug)]
pub struct Upstreams {
    servers: Vec<SocketAddr>,
    secret: RandomState,
    asked: AtomicU64,
}

impl Upstreams {
    /// Servers in the order in which they should be asked.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers, secret: RandomState::new(), asked: AtomicU64::new(0) }
    }

    /// Whether there is nobody to ask.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Passes a query on; returns the first reply, with the identifier of the query.
    pub async fn ask(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let mut asked = query.to_vec();
        let identifier = self.secret.hash_one(self.asked.fetch_add(1, Ordering::Relaxed));
        asked.get_mut(..2)?.copy_from_slice(&identifier.to_be_bytes()[..2]);
        for server in &self.servers {
            let exchange = async {
                match transport {
                    Transport::Udp => over_udp(*server, &asked).await,
                    Transport::Tcp => over_tcp(*server, &asked).await,
                }
            };
            match time::timeout(TIMEOUT, exchange).await {
                Ok(Ok(mut reply)) => {
                    reply[..2].copy_from_slice(&query[..2]);
                    return Some(reply);
                }
                Ok(Err(error)) => debug!(%server, %error, "no answer from upstream"),
                Err(_) => debug!(%server, "upstream did not answer in time"),
            }
        }
        None
    }
}

/// A query for a name in wire form.
pub fn query(name: &[u8], kind: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LENGTH + MAX_LENGTH + 4);
    // One question, and recursion is desired.
    bytes.extend([0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    bytes.extend(name);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(CLASS_INTERNET.to_be_bytes());
    bytes
}

/// A reply belongs to a query if it has its identifier and repeats its question.
fn belongs(reply: &[u8], query: &[u8]) -> bool {
    let question_end = Query::parse(query).map_or(HEADER_LENGTH, |query| query.question_end);
    let question =
        |bytes: &[u8]| bytes.get(HEADER_LENGTH..question_end).map(<[u8]>::to_ascii_lowercase);
    let is_reply = reply.len() >= HEADER_LENGTH && reply[2] & 0x80 != 0;
    is_reply && reply[..2] == query[..2] && question(reply) == question(query)
}

async fn over_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; MAX_REPLY];
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
