//! What the server allows others: clients who hold connections and say nothing keep nobody out, and
//! strangers cannot use us against a third party.
//!
//! `ROADSTEAD_DNS_CONNECTIONS` sets how many connections are held.

use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use roadstead_dns::metrics::Metrics;
use roadstead_dns::publish::Published;
use roadstead_dns::resolve::Resolver;
use roadstead_dns::server::DnsServer;
use roadstead_dns_core::cache::QuestionKey;
use roadstead_dns_core::rate_limit::RateLimits;
use roadstead_dns_core::setup::Setup;
use roadstead_dns_core::upstream::question::query as query_for;
use roadstead_testkit::netns::{laboratory, run};
use roadstead_zone::name::Name;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio_util::sync::{CancellationToken, DropGuard};

const NAME: &str = "web.prod.svc.cluster.local";
const BIG: &str = "big.prod.svc.cluster.local";

struct Running {
    address: SocketAddr,
    _stop: DropGuard,
    _runtime: Runtime,
}

fn serve(listen: &str, rate: u32) -> Running {
    let limits = RateLimits { rate, friends: Vec::new() };
    let mut keeper =
        Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
    for (name, addresses) in [("web", json!(["10.96.0.1"])), ("big", json!(["None"]))] {
        let object = json!({"metadata": {"namespace": "prod", "name": name},
            "spec": {"clusterIPs": addresses}});
        keeper.observe_service(&serde_json::from_value(object).unwrap());
    }
    let endpoints: Vec<_> =
        (0..60).map(|n| json!({"addresses": [format!("10.0.0.{n}")]})).collect();
    let slice = json!({"addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"namespace": "prod", "name": "big-1", "labels": {"kubernetes.io/service-name": "big"}}});
    keeper.observe_slice(&serde_json::from_value(slice).unwrap());
    keeper.set_synced();
    let runtime = Runtime::new().unwrap();
    let stop = CancellationToken::new();
    let server = DnsServer::bind_with(&[listen.parse().unwrap()], 2).unwrap();
    let address = server.addresses().unwrap()[0];
    let setup = Setup::standard(None);
    let resolver = Resolver::new(Published::new(keeper.snapshot()), setup);
    let token = stop.clone();
    runtime.spawn(async move {
        server.serve(resolver, &Metrics::default(), &limits, token).await.unwrap();
    });
    Running { address, _stop: stop.drop_guard(), _runtime: runtime }
}

fn question(name: &str) -> Vec<u8> {
    let name = Name::parse(name).unwrap().wire().into();
    query_for(&QuestionKey { name, kind: 1, dnssec: false, unchecked: false }, 7)
}

/// How long each of some lookups took over UDP, in order; none may fail.
fn lookups(server: SocketAddr, count: usize) -> Vec<Duration> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let query = question(NAME);
    let mut buffer = [0; 512];
    let one = |_| {
        let began = Instant::now();
        socket.send_to(&query, server).unwrap();
        let (length, _) = socket.recv_from(&mut buffer).expect("every query is answered");
        assert!(buffer[..length].windows(4).any(|bytes| bytes == [10, 96, 0, 1]));
        began.elapsed()
    };
    let mut times: Vec<_> = (0..count).map(one).collect();
    times.sort_unstable();
    times
}

/// The same over a connection of its own.
fn over_tcp(server: SocketAddr) -> Duration {
    let began = Instant::now();
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let query = question(NAME);
    let length = u16::try_from(query.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], &query].concat()).unwrap();
    let mut header = [0; 2];
    stream.read_exact(&mut header).expect("every connection is answered");
    let mut reply = vec![0; usize::from(u16::from_be_bytes(header))];
    stream.read_exact(&mut reply).unwrap();
    assert!(reply.windows(4).any(|bytes| bytes == [10, 96, 0, 1]));
    began.elapsed()
}

#[test]
fn those_who_hold_connections() {
    let count = env::var("ROADSTEAD_DNS_CONNECTIONS").ok().and_then(|text| text.parse().ok());
    let count: usize = count.unwrap_or(400);
    let server = serve("127.0.0.1:0", 0);
    let mut held = Vec::new();
    for n in 0..count {
        let mut stream = match TcpStream::connect(server.address) {
            Ok(stream) => stream,
            Err(error) => panic!("connection {n}: {error} (is `ulimit -n` high enough?)"),
        };
        // Some say nothing, some say half of something.
        if n % 2 == 0 {
            let _ = stream.write_all(&[0, 40, 1, 2, 3]);
        }
        held.push(stream);
    }
    let times = lookups(server.address, 200);
    assert!(times[100] < Duration::from_millis(20), "{:?}", times[100]);
    let mut tcp: Vec<_> = (0..50).map(|_| over_tcp(server.address)).collect();
    tcp.sort_unstable();
    assert!(tcp[25] < Duration::from_millis(100), "{:?}", tcp[25]);
}

/// Whoever forges a victim's address gets less out of us than what it sends.
#[test]
fn strangers_cannot_use_us() {
    laboratory(|| {
        run("ip address add 198.51.100.1/24 dev lo");
        let server = serve("198.51.100.1:53", 20);
        let victim = UdpSocket::bind("198.51.100.7:0").unwrap();
        victim.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let query = question(BIG);
        let (mut sent, mut received) = (0, 0);
        let mut buffer = [0; 4096];
        for _ in 0..2000 {
            sent += victim.send_to(&query, server.address).unwrap();
        }
        while let Ok((length, _)) = victim.recv_from(&mut buffer) {
            received += length;
        }
        assert!(received < sent, "{received} bytes for {sent}");
        // A stranger who means it comes back over TCP.
        assert!(over_tcp(server.address) < Duration::from_secs(1));
        // And whoever belongs here notices nothing.
        let own = serve("127.0.0.1:0", 20);
        assert_eq!(lookups(own.address, 300).len(), 300);
    });
}
