//! The first packet of a flow and its answer, a connection, and a request on a flow that exists, from
//! a client through the node to a pod: by a Service, and straight while the rules are loaded.
//!
//! Besides plain forwarding there are two more baselines: tracking connections at all, and one rule
//! that translates one address, which is the least that any Service proxy can do. The kernel
//! forgets all connections before each series, because every flow of a series stays in its memory
//! for minutes, and looking for a free port among tens of thousands is not the proxy's work.
//!
//! Client and pod are two sockets of one thread on one core: a packet has arrived when the call that
//! sent it returns. So nothing but the way through the node is measured; with a thread for each, the
//! two changes between them take longer than that way, and leave the caches cold for it.

use std::env;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use roadstead_netlink::netfilter;
use roadstead_netlink::socket::{NetlinkFamily, Request, Socket};
use roadstead_proxy::agent::Agent;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_testkit::netns::{inside, make_node, make_pod, run};

use crate::cluster::{self, address, config, config_of_up, service, slice};
use crate::peer::{KUBE_PROXY, KubeProxy};

const SIZES: [u32; 4] = [100, 1_000, 10_000, 30_000];
const PEER_SIZES: [u32; 2] = [100, 1_000];
/// Each figure is the median of so many series, so that a burst of somebody else's does not show.
const SERIES: usize = 11;
const ROUND_TRIPS: usize = 600;
const PATIENCE: Duration = Duration::from_secs(1);
/// The client is one of the cluster, so it is not masqueraded.
const CLIENT: &str = "192.168.7.0/24";

pub(crate) fn measure() {
    make_node();
    let (pod, target, _) = make_pod(2);
    let server = inside(&pod, Server::start);
    let direct = format!("{target}:8080");
    let (first, one) = (address(0), format!("{}:80", address(0)));
    let translate = format!("ip daddr {first} udp dport 80 dnat to {target}:8080");
    // Debian's own choice would take minutes for the largest of these.
    run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    let peer = env::var_os(KUBE_PROXY).is_some();
    for trip in [Trip::FirstPacket, Trip::Connection, Trip::Established] {
        let table = Table { server: &server, trip, direct: &direct };
        table.begin();
        table.row("plain forwarding", &direct, &|| Rules::ByHand);
        table.row("connections tracked", &direct, &|| {
            Rules::by_hand("filter hook forward priority 0", "ct state invalid drop")
        });
        table.row("to a pod, nftables loaded", &direct, &|| Rules::of(ProxyMode::Nftables, 1_000));
        table.row("to a pod, nftables of up", &direct, &|| Rules::of_up(1_000));
        table.row("to a pod, iptables loaded", &direct, &|| Rules::of(ProxyMode::Iptables, 1_000));
        if peer {
            table.row("to a pod, kube-proxy loaded", &direct, &|| Rules::of_peer(1_000));
        }
        if trip == Trip::Connection {
            // The Services here speak UDP.
            continue;
        }
        if trip == Trip::FirstPacket {
            table.row("one rule", &one, &|| {
                Rules::by_hand("nat hook prerouting priority -100", &translate)
            });
        }
        let sizes = if trip == Trip::FirstPacket { &SIZES[..] } else { &SIZES[1..2] };
        for mode in [ProxyMode::Nftables, ProxyMode::Iptables] {
            for &services in sizes {
                let last = format!("{}:80", address(services / 2));
                let rules = || Rules::of(mode, services);
                table.row(&format!("{mode}, {services} Services"), &last, &rules);
            }
        }
        let last = format!("{}:80", address(500));
        table.row("nftables of up, 1000 Services", &last, &|| Rules::of_up(1_000));
        for services in PEER_SIZES.into_iter().filter(|_| peer) {
            let last = format!("{}:80", address(services / 2));
            let rules = || Rules::of_peer(services);
            table.row(&format!("kube-proxy, {services} Services"), &last, &rules);
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trip {
    /// The first packet of a UDP flow and its answer.
    FirstPacket,
    /// Until a TCP connection stands.
    Connection,
    /// A question and its answer on a UDP flow that both sides know already.
    Established,
}

impl Trip {
    fn title(self) -> &'static str {
        match self {
            Self::FirstPacket => "first packet (UDP)",
            Self::Connection => "connection (TCP)",
            Self::Established => "established request (UDP)",
        }
    }
}

/// The rows of one kind of trip.
struct Table<'a> {
    server: &'a Server,
    trip: Trip,
    direct: &'a str,
}

impl Table<'_> {
    fn begin(&self) {
        self.round_trip(self.direct);
        let title = self.trip.title();
        println!("\n{title:>28} {:>10} {:>10} {:>12} {:>8}", "plain", "p50", "over plain", "times");
    }

    /// Each row has plain forwarding beside it, a moment before the rules are there.
    fn row(&self, name: &str, to: &str, rules: &dyn Fn() -> Rules) {
        let plain = self.round_trip(self.direct);
        let rules = rules();
        let took = self.round_trip(to);
        rules.remove();
        let (plain, took) = (plain.as_secs_f64() * 1e6, took.as_secs_f64() * 1e6);
        let (over, times) = (took - plain, took / plain);
        println!("{name:>28} {plain:>7.1} µs {took:>7.1} µs {over:>9.1} µs {times:>8.2}");
    }

    /// The median of the medians of some series.
    fn round_trip(&self, target: &str) -> Duration {
        let series = || {
            forget_connections();
            let mut times: Vec<Duration> = inside("outside", || match self.trip {
                Trip::FirstPacket => {
                    (0..ROUND_TRIPS).map(|_| self.server.ask(&flow(target))).collect()
                }
                Trip::Connection => (0..ROUND_TRIPS).map(|_| self.server.connect(target)).collect(),
                Trip::Established => {
                    let flow = flow(target);
                    (0..ROUND_TRIPS).map(|_| self.server.ask(&flow)).collect()
                }
            });
            times.sort();
            times[ROUND_TRIPS / 2]
        };
        let mut medians: Vec<_> = (0..SERIES).map(|_| series()).collect();
        medians.sort();
        medians[SERIES / 2]
    }
}

/// A socket of its own: what it sends first is the first of its flow.
fn flow(target: &str) -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.connect(target).expect("a route");
    socket
}

/// What listens in the pod.
struct Server {
    packets: UdpSocket,
    connections: TcpListener,
}

impl Server {
    fn start() -> Self {
        let packets = UdpSocket::bind("0.0.0.0:8080").expect("a free port");
        packets.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { packets, connections: TcpListener::bind("0.0.0.0:8080").expect("a free port") }
    }

    fn ask(&self, flow: &UdpSocket) -> Duration {
        let mut buffer = [0; 16];
        let started = Instant::now();
        flow.send(b"hello").expect("a way out");
        let (length, client) = self.packets.recv_from(&mut buffer).expect("a question");
        self.packets.send_to(&buffer[..length], client).expect("a way back");
        flow.recv(&mut buffer).expect("an answer");
        started.elapsed()
    }

    /// The kernel of the pod answers by itself, so that nobody needs to wait for us.
    fn connect(&self, target: &str) -> Duration {
        let target = target.parse().expect("an address and a port");
        let started = Instant::now();
        let client = TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
        let took = started.elapsed();
        drop(self.connections.accept().expect("the same connection"));
        drop(client);
        took
    }
}

/// The rules between client and pod.
enum Rules {
    ByHand,
    OfServices(Box<Agent>),
    OfPeer(KubeProxy),
}

impl Rules {
    /// One rule in a table of its own.
    fn by_hand(hook: &str, rule: &str) -> Self {
        run(&format!(
            "nft 'add table ip t; add chain ip t c {{ type {hook}; }}; add rule ip t c {rule}'"
        ));
        Self::ByHand
    }

    fn of(mode: ProxyMode, services: u32) -> Self {
        Self::OfServices(Box::new(serve(config(mode, &[CLIENT]), services)))
    }

    fn of_up(services: u32) -> Self {
        Self::OfServices(Box::new(serve(config_of_up(&[CLIENT]), services)))
    }

    fn of_peer(services: u32) -> Self {
        let targets = |n| vec![target_of(n, services)];
        Self::OfPeer(KubeProxy::start(services, targets, CLIENT))
    }

    fn remove(self) {
        match self {
            Self::ByHand => {}
            Self::OfServices(agent) => drop(agent),
            Self::OfPeer(peer) => drop(peer),
        }
        cluster::cleanup();
        run("nft 'add table ip t; delete table ip t'");
    }
}

/// The Service in the middle leads to the pod, the others nowhere.
fn target_of(n: u32, services: u32) -> u32 {
    if n == services / 2 { 0 } else { n + 1 }
}

fn serve(config: Config, services: u32) -> Agent {
    let mut agent = Agent::new(config, Outputs::default()).expect("we may write rules here");
    for n in 0..services {
        let target = target_of(n, services);
        agent.observe_service(&service(n));
        agent.observe_slice(&slice(n, target..target + 1));
    }
    agent.commit().expect("the kernel takes it");
    agent
}

/// Deletes all entries of the connection tracking table of this namespace.
fn forget_connections() {
    const SUBSYSTEM_CONNECTIONS: u8 = 1;
    const DELETE: u8 = 2;
    let mut socket = Socket::open(NetlinkFamily::Netfilter).expect("a netlink socket");
    let kind = netfilter(SUBSYSTEM_CONNECTIONS, DELETE);
    let all = Request { kind, flags: 0, header: &[0; 4] };
    socket.order(&all, |_| {}).expect("the kernel forgets");
}
