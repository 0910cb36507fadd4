//! The sockets of the server: threads for datagrams, tasks for streams.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roadstead_dns_core::rate_limit::{RateLimiter, RateLimits};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::chance;
use crate::metrics::{Counters, Metrics};
use crate::resolve::Resolver;
use crate::tcp;
use crate::udp::{DatagramWorker, answer_late, batch};

/// Room for a burst of queries while we are busy.
const RECEIVE_BUFFER: usize = 4 << 20;
/// How many queries may be on their way to the tasks that ask others.
const MOST_LATE: usize = 4096;
/// How soon a thread notices that it should stop, if nothing wakes it.
const NOTICE: Duration = Duration::from_secs(1);

/// Sockets that are bound, but not served yet.
#[derive(Debug)]
pub struct DnsServer {
    udp: Vec<Vec<Arc<UdpSocket>>>,
    tcp: Vec<std::net::TcpListener>,
    /// Whether queries wait until everything that exists is in the zone, instead of failing.
    pub(crate) waits_until_ready: bool,
}

impl DnsServer {
    /// Binds UDP and TCP on every address, with a socket and so a thread per processor.
    pub fn bind(listen: &[SocketAddr]) -> io::Result<Self> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(16);
        Self::bind_with(listen, threads)
    }

    /// Binds UDP and TCP on every address, with so many sockets for datagrams.
    pub fn bind_with(listen: &[SocketAddr], threads: usize) -> io::Result<Self> {
        let mut server = Self { udp: Vec::new(), tcp: Vec::new(), waits_until_ready: false };
        for address in listen {
            let (first, tcp) = match pair(*address) {
                Err(error) if is_dispensable(*address, listen, &error) => continue,
                bound => bound?,
            };
            let address = first.local_addr()?;
            let mut sockets = vec![Arc::new(first)];
            for _ in 1..threads.max(1) {
                sockets.push(Arc::new(datagrams(address)?));
            }
            server.udp.push(sockets);
            tcp.set_nonblocking(true)?;
            tcp.listen(4096)?;
            server.tcp.push(tcp.into());
        }
        Ok(server)
    }

    /// The same sockets once more, for a server that follows another one. Whoever asks in between is not
    /// refused, but waits until that server knows the cluster.
    pub fn again(&self) -> io::Result<Self> {
        let tcp = self.tcp.iter().map(std::net::TcpListener::try_clone);
        let tcp = tcp.collect::<io::Result<_>>()?;
        Ok(Self { udp: self.udp.clone(), tcp, waits_until_ready: true })
    }

    /// The addresses on which it can be reached.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.udp.iter().filter_map(|all| all.first()).map(|one| one.local_addr()).collect()
    }

    /// Answers until `stop`.
    ///
    /// A thread that ends by surprise ends the server, because the kernel would go on giving it its
    /// share of the queries.
    pub async fn serve(
        self,
        resolver: Arc<Resolver>,
        metrics: &Metrics,
        limits: &RateLimits,
        stop: CancellationToken,
    ) -> io::Result<()> {
        metrics.register(resolver.counters.clone());
        let port = self.addresses()?.first().map_or(0, SocketAddr::port);
        metrics.describe(resolver.counted_zones.clone(), port);
        let (late, queries) = mpsc::channel(MOST_LATE);
        let over = Over(Arc::new(AtomicBool::new(false)));
        let gone = CancellationToken::new();
        let mut threads = Vec::new();
        for (at, socket) in self.udp.iter().flatten().enumerate() {
            let counters = Arc::new(Counters::default());
            metrics.register(counters.clone());
            let worker = DatagramWorker {
                socket: socket.clone(),
                resolver: resolver.clone(),
                late: late.clone(),
                counters,
                limiter: RateLimiter::new(limits.clone(), chance::number(), Instant::now()),
                stop: over.0.clone(),
            };
            let thread = thread::Builder::new().name(format!("dns-{at}"));
            let end = gone.clone().drop_guard();
            threads.push(thread.spawn(move || {
                let _end = end;
                worker.run();
            })?);
        }
        drop(late);
        let mut tasks = JoinSet::new();
        tasks.spawn(answer_late(queries, resolver.clone()));
        for listener in self.tcp {
            let listener = TcpListener::from_std(listener)?;
            tasks.spawn(tcp::serve(listener, resolver.clone(), stop.clone()));
        }
        let surprise = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = gone.cancelled() => Some("a thread for datagrams"),
            _ = tasks.join_next() => Some("a task for streams or for questions to others"),
        };
        drop(over);
        drop(tasks);
        resolver.tasks.end().await;
        wake(self.udp.iter().flatten());
        let ended = tokio::task::spawn_blocking(move || {
            threads.into_iter().all(|thread| thread.join().is_ok())
        });
        if !ended.await.unwrap_or(false) {
            error!("a thread for datagrams ended badly");
        }
        match surprise {
            None => Ok(()),
            Some(what) => Err(io::Error::other(format!("{what} ended by surprise"))),
        }
    }
}

/// A port of all addresses, of both families.
pub fn everywhere(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

/// A page's port of all addresses is written as the newer family's; it serves both, or the older one
/// on a machine that has no other.
pub(crate) fn listen_for_pages(place: SocketAddr) -> io::Result<TcpListener> {
    let bind = |place: SocketAddr| {
        let socket = Socket::new(Domain::for_address(place), Type::STREAM, Some(Protocol::TCP))?;
        if place.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&place.into())?;
        socket.listen(128)?;
        TcpListener::from_std(socket.into())
    };
    let [v4, _] = everywhere(place.port());
    match bind(place) {
        Err(error) if is_dispensable(place, &[v4], &error) => bind(v4),
        bound => bound,
    }
}

/// Whether we can do without an address: all those of a family that the machine does not have, if
/// there is another to listen on.
fn is_dispensable(address: SocketAddr, all: &[SocketAddr], error: &io::Error) -> bool {
    let missing = matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL));
    let everything = address.is_ipv6() && address.ip().is_unspecified();
    missing && everything && all.iter().any(SocketAddr::is_ipv4)
}

/// Ends the threads, even if nobody waits for the server any more.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends each socket a datagram that is no query, so that its thread looks up.
fn wake<'a>(sockets: impl Iterator<Item = &'a Arc<UdpSocket>>) {
    for socket in sockets {
        // To itself: with several sockets on one address the kernel may choose another one, and
        // that thread then wakes by its timeout.
        if let Ok(address) = socket.local_addr() {
            let _ = socket.send_to(&[], address);
        }
    }
}

/// One socket of each kind. A port chosen by the system must be free for both.
fn pair(address: SocketAddr) -> io::Result<(UdpSocket, Socket)> {
    let mut chances = if address.port() == 0 { 20 } else { 1 };
    loop {
        chances -= 1;
        let udp = datagrams(address)?;
        match bind(udp.local_addr()?, Type::STREAM, Protocol::TCP) {
            Err(_) if chances > 0 => {}
            tcp => return Ok((udp, tcp?)),
        }
    }
}

fn datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = bind(address, Type::DGRAM, Protocol::UDP)?;
    socket.set_read_timeout(Some(NOTICE))?;
    // More than the system allows is cut to what it allows.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    if address.ip().is_unspecified() {
        batch::learn_addresses(socket.as_fd(), address.is_ipv4())?;
    }
    Ok(socket.into())
}

fn bind(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::DGRAM {
        socket.set_reuse_port(true)?;
    } else {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_the_machine_does_not_have() {
        let no_family = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        let in_use = || io::Error::from_raw_os_error(libc::EADDRINUSE);
        let cases = [
            ("all addresses", "[::]:53", "0.0.0.0:53 [::]:53", no_family(), true),
            ("nowhere else to listen", "[::]:53", "[::]:53", no_family(), false),
            (
                "an address that was wished for",
                "[::1]:53",
                "0.0.0.0:53 [::1]:53",
                no_family(),
                false,
            ),
            ("the port is taken", "[::]:53", "0.0.0.0:53 [::]:53", in_use(), false),
        ];
        for (name, address, all, error, want) in cases {
            let all: Vec<_> = all.split(' ').map(|one| one.parse().unwrap()).collect();
            assert_eq!(is_dispensable(address.parse().unwrap(), &all, &error), want, "{name}");
        }
    }

    #[tokio::test]
    async fn a_page_is_there_for_both_families() {
        let listener = listen_for_pages("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for client in ["127.0.0.1", "::1"] {
            assert!(tokio::net::TcpStream::connect((client, port)).await.is_ok(), "{client}");
        }
    }
}
