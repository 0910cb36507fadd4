//! Names of the cluster are answered as quickly as ever while others misbehave.
//!
//! The bounds leave room for a debug build on a busy machine; the figures are written out.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use roadstead_dns::metrics::Metrics;
use roadstead_dns::publish::Published;
use roadstead_dns::resolve::Resolver;
use roadstead_dns::server::DnsServer;
use roadstead_dns_core::rate_limit::RateLimits;
use roadstead_dns_core::setup::Setup;
use roadstead_dns_core::upstream::UpstreamGroup;
use roadstead_zone::name::Name;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// How often is measured, and how many questions are asked each time.
const ROUNDS: usize = 5;
const QUESTIONS: u16 = 200;

fn query(id: u16, name: &str) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    let mut bytes = vec![high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend(Name::parse(name).unwrap().wire());
    bytes.extend([0, 1, 0, 1]);
    bytes
}

/// How a client reaches the server.
#[derive(Clone, Copy, Debug)]
enum Way {
    Udp,
    /// Over one connection, which is open already.
    Tcp,
    /// Over a new connection each time.
    Connect,
}

fn connect(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(server).expect("there is room for one more");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Asks over a connection.
fn ask(stream: &mut TcpStream, query: &[u8], reply: &mut [u8; 512]) -> usize {
    let length = u16::try_from(query.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length, query].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).expect("no answer is lost");
    let length = usize::from(u16::from_be_bytes(length));
    stream.read_exact(&mut reply[..length]).unwrap();
    length
}

/// Asks one question after the other; returns how long the median took, and 99 of 100.
fn round(server: SocketAddr, way: Way) -> [Duration; 2] {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.connect(server).unwrap();
    let mut stream = connect(server);
    let mut times = Vec::new();
    let mut reply = [0; 512];
    for id in 0..QUESTIONS {
        let query = query(id, "web.prod.svc.cluster.local");
        let began = Instant::now();
        let length = match way {
            Way::Udp => {
                socket.send(&query).unwrap();
                socket.recv(&mut reply).expect("no answer is lost")
            }
            Way::Tcp => ask(&mut stream, &query, &mut reply),
            Way::Connect => ask(&mut connect(server), &query, &mut reply),
        };
        times.push(began.elapsed());
        assert_eq!(reply[..2], query[..2]);
        assert_eq!(reply[length - 4..length], [10, 96, 0, 1]);
    }
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}

/// The best of several rounds: whatever else the machine does, it does not do all the time, and an
/// attack does.
fn latencies(server: SocketAddr, way: Way) -> [Duration; 2] {
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round(server, way)).collect();
    [0, 1].map(|at| rounds.iter().map(|round| round[at]).min().unwrap())
}

/// Something that goes on until it is dropped.
struct Attack {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _held: Vec<TcpStream>,
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

type Begin = fn(SocketAddr) -> Attack;

/// Some thousand datagrams per second.
fn flood(server: SocketAddr, packet: fn(u64) -> Vec<u8>) -> Attack {
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let thread = thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..10 {
                number += 1;
                let _ = socket.send_to(&packet(number), server);
            }
            thread::sleep(Duration::from_millis(2));
        }
    });
    Attack { over, threads: vec![thread], _held: Vec::new() }
}

/// Bytes that look more or less like a query.
fn malformed(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut packet = query(7, "web.prod.svc.cluster.local");
    for _ in 0..number % 12 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let at = usize::try_from(state % packet.len() as u64).unwrap();
        packet[at] = state.to_le_bytes()[7];
    }
    packet.truncate(packet.len() - usize::try_from(number % 30).unwrap());
    packet
}

/// A name that only the dead servers could know, a different one each time.
fn foreign(number: u64) -> Vec<u8> {
    query(9, &format!("host-{number}.example.org"))
}

/// Thousands of connections over which nothing is ever asked.
fn connections(server: SocketAddr) -> Attack {
    // Both ends are in this process, though the server takes no more than a third of the files.
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let files: usize = files.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX);
    let count = files.saturating_sub(5_000).max(files / 3).min(10_000);
    let held = (0..count).map_while(|_| TcpStream::connect(server).ok()).collect::<Vec<_>>();
    assert!(held.len() > count / 2, "only {} of {count} connections", held.len());
    eprintln!("{} connections are open", held.len());
    Attack { over: Arc::default(), threads: Vec::new(), _held: held }
}

/// Some thousand connections per second, of which the last few hundred are open.
fn revolving(server: SocketAddr) -> Attack {
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let thread = thread::spawn(move || {
        let mut held = VecDeque::new();
        while !stop.load(Ordering::Relaxed) {
            held.extend((0..4).filter_map(|_| TcpStream::connect(server).ok()));
            while held.len() > 400 {
                held.pop_front();
            }
            thread::sleep(Duration::from_millis(2));
        }
    });
    Attack { over, threads: vec![thread], _held: Vec::new() }
}

/// A server for other names, which says nothing about some of them.
fn choosy() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            if buffer[..length].windows(4).any(|window| window.eq_ignore_ascii_case(b"host")) {
                continue;
            }
            // The question without what follows it, and an address.
            let mut reply = buffer[..length - 11].to_vec();
            reply[2] |= 0x80;
            (reply[7], reply[11]) = (1, 0);
            reply.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01");
            let _ = socket.send_to(&reply, peer);
        }
    });
    address
}

/// One client asks for names whose servers are silent, as many as it can. Others still get answers
/// from outside.
#[tokio::test(flavor = "multi_thread")]
async fn one_client_does_not_take_all_places() {
    let keeper =
        Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
    let server = DnsServer::bind_with(&["127.0.0.1:0".parse().unwrap()], 2).unwrap();
    let address = server.addresses().unwrap()[0];
    let upstreams = UpstreamGroup::new(vec![choosy()]);
    let setup = Setup::standard(Some(upstreams));
    let resolver = Resolver::new(Published::new(keeper.snapshot()), setup);
    let stop = CancellationToken::new();
    let token = stop.clone();
    let serving = tokio::spawn(async move {
        server.serve(resolver, &Metrics::default(), &RateLimits::default(), token).await
    });
    let asked = tokio::task::spawn_blocking(move || {
        let greedy = UdpSocket::bind("127.0.0.2:0").unwrap();
        for number in 0..4000 {
            let _ = greedy.send_to(&foreign(number), address);
            if number % 50 == 0 {
                thread::sleep(Duration::from_millis(2));
            }
        }
        let modest = UdpSocket::bind("127.0.0.1:0").unwrap();
        modest.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut reply = [0; 512];
        for number in 0..20 {
            let name = format!("good-{number}.example.com");
            modest.send_to(&query(number, &name), address).unwrap();
            modest.recv(&mut reply).expect("an answer");
            assert_eq!(reply[3] & 0x0f, 0, "{name}");
        }
        // And it is told why it gets nothing more.
        let mut codes = [0; 16];
        greedy.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while greedy.recv(&mut reply).is_ok() {
            codes[usize::from(reply[3] & 0x0f)] += 1;
        }
        assert!(codes[5] > 50 && codes[0] == 0, "{codes:?}");
    });
    asked.await.unwrap();
    stop.cancel();
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn latency_under_attack() {
    let mut keeper =
        Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
    let web = json!({"metadata": {"namespace": "prod", "name": "web"}, "spec": {"clusterIPs": ["10.96.0.1"]}});
    keeper.observe_service(&serde_json::from_value(web).unwrap());
    keeper.set_synced();
    let server = DnsServer::bind_with(&["127.0.0.1:0".parse().unwrap()], 2).unwrap();
    let address = server.addresses().unwrap()[0];
    // One upstream takes everything and says nothing, the other one is not there.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let upstreams = vec![silent.local_addr().unwrap(), "127.0.0.1:1".parse().unwrap()];
    let upstreams = UpstreamGroup::new(upstreams);
    let setup = Setup::standard(Some(upstreams));
    let resolver = Resolver::new(Published::new(keeper.snapshot()), setup);
    let stop = CancellationToken::new();
    let token = stop.clone();
    let serving = tokio::spawn(async move {
        server.serve(resolver, &Metrics::default(), &RateLimits::default(), token).await
    });

    let attacks: [(&str, Begin); 4] = [
        ("malformed packets", |server| flood(server, malformed)),
        ("names of dead upstreams", |server| flood(server, foreign)),
        ("idle connections", connections),
        ("connections that come and go", revolving),
    ];
    let measured = tokio::task::spawn_blocking(move || {
        round(address, Way::Udp);
        let measure = || [Way::Udp, Way::Tcp, Way::Connect].map(|way| latencies(address, way));
        for (name, begin) in attacks {
            let quiet = measure();
            let attack = begin(address);
            let under = measure();
            drop(attack);
            for ((way, quiet), under) in ["udp", "tcp", "connect"].iter().zip(quiet).zip(under) {
                eprintln!("{name}, {way}: p50, p99 {quiet:?} before, {under:?} under attack");
                assert!(under[0] < quiet[0] * 3 + Duration::from_micros(300), "{name}, {way}: p50");
                assert!(under[1] < quiet[1] * 5 + Duration::from_millis(5), "{name}, {way}: p99");
            }
        }
    });
    measured.await.unwrap();
    stop.cancel();
    serving.await.unwrap().unwrap();
}
