//! Connections to ports of a pod, made inside its network.

use std::fs::File;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

/// Why a port of a pod cannot be reached, in the words that people search for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DialError(String);

impl DialError {
    /// With these words.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// Connects to the port of a loopback address: of this network, or of our own.
pub(super) async fn dial(network: Option<PathBuf>, port: u16) -> Result<TcpStream, DialError> {
    let entered = |error: io::Error| {
        DialError(format!("failed to enter the network namespace of the pod: {error}"))
    };
    let [four, six] = match network {
        Some(network) => sockets_inside(network).await.map_err(entered)?,
        None => sockets(),
    };
    let dialed = |words: &str, address: SocketAddr, error: io::Error| {
        format!("{words}: dial tcp {address}: connect: {}", reason(&error))
    };
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let first = match connect(four, address).await {
        Ok(stream) => return Ok(stream),
        Err(error) => dialed("IPv4", address, error),
    };
    let address = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), port);
    connect(six, address).await.map_err(|error| {
        let second = dialed("IPv6", address, error);
        DialError(format!("failed to connect to localhost:{port}, {first}, {second}"))
    })
}

/// For IPv4 and IPv6.
type Sockets = [io::Result<TcpSocket>; 2];

fn sockets() -> Sockets {
    [TcpSocket::new_v4(), TcpSocket::new_v6()]
}

/// A socket belongs to the network in which it was made, whoever uses it. So only that happens there, in
/// a thread that ends with it: one that cannot go back must not be lent to others.
fn sockets_inside(network: PathBuf) -> impl Future<Output = io::Result<Sockets>> {
    let (made, sockets_made) = oneshot::channel();
    let enter = move || {
        let network = File::open(network)?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(sockets())
    };
    let runtime = tokio::runtime::Handle::current();
    let begun = thread::Builder::new().name("dial".to_owned()).spawn(move || {
        let _entered = runtime.enter();
        let _ = made.send(enter());
    });
    async move {
        begun?;
        sockets_made.await.map_err(io::Error::other)?
    }
}

async fn connect(socket: io::Result<TcpSocket>, address: SocketAddr) -> io::Result<TcpStream> {
    let stream = socket?.connect(address).await?;
    // Who types on it wants to see each letter.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// As others write it: without the number.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}
