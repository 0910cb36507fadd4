//! What tests with real packets share: pods that answer with their own name and the address they
//! see, and clients that call them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::netns::{inside, make_pod};

/// The name of the node that the proxy under test runs on.
pub const NODE: &str = "node-1";
/// Where each pod listens.
pub const PORT: u16 = 8080;
/// A call that takes longer has failed.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// A pod that answers on TCP and UDP.
pub struct Pod {
    /// The name of its namespace, which it answers with.
    pub name: String,
    /// Its IPv4 address.
    pub address: Ipv4Addr,
    /// Its IPv6 address.
    pub v6: Ipv6Addr,
}

/// Makes a pod and lets it answer.
pub fn start_pod(number: u8) -> Pod {
    let (name, address, v6) = make_pod(number);
    serve(&name);
    Pod { name, address, v6 }
}

/// Answers every call to a namespace with its name and the address of the caller.
pub fn serve(name: &str) {
    let (tcp, udp) = inside(name, || {
        (TcpListener::bind(("::", PORT)).unwrap(), UdpSocket::bind(("::", PORT)).unwrap())
    });
    let own = name.to_owned();
    thread::spawn(move || {
        for connection in tcp.incoming().flatten() {
            let peer = connection.peer_addr().map(|peer| peer.ip().to_canonical());
            let _ = peer.and_then(|peer| writeln!(&connection, "{own} {peer}"));
            wait_for_end(&connection);
        }
    });
    let own = name.to_owned();
    thread::spawn(move || {
        while let Ok((_, peer)) = udp.recv_from(&mut [0; 64]) {
            let _ = udp.send_to(format!("{own} {}", peer.ip().to_canonical()).as_bytes(), peer);
        }
    });
}

/// Whoever closes first remembers the connection for a minute. If that were the pod, it would take
/// another client that the node gives the same port for the old one, and not answer.
fn wait_for_end(mut connection: &TcpStream) {
    let _ = connection.set_read_timeout(Some(TIMEOUT));
    let _ = connection.read(&mut [0]);
}

/// Connects once; returns who answered and whom they saw.
pub fn call(protocol: &str, frontend: SocketAddr) -> io::Result<(String, IpAddr)> {
    let patience = TIMEOUT;
    let mut answer = String::new();
    if protocol == "TCP" {
        let connection = TcpStream::connect_timeout(&frontend, patience)?;
        connection.set_read_timeout(Some(patience))?;
        BufReader::new(connection).read_line(&mut answer)?;
    } else {
        let any = if frontend.is_ipv4() { "0.0.0.0" } else { "::" };
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(patience))?;
        socket.connect(frontend)?;
        socket.send(b"hello")?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
    }
    let (name, peer) = answer.trim_end().split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
    Ok((name.to_owned(), peer.parse().map_err(|_| io::ErrorKind::InvalidData)?))
}
