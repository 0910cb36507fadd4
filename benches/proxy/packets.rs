//! The first packet of a flow and its answer, from a client through the node to a pod.
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
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use roadstead_proxy::agent::Agent;
use roadstead_proxy::netlink::{ACKNOWLEDGE, Socket, request};
use roadstead_proxy::plane::Mode;
use roadstead_testkit::netns::{inside, make_node, make_pod, run};

use crate::cluster::{self, address, config, service, slice};
use crate::peer::{KUBE_PROXY, KubeProxy};

const SIZES: [u32; 4] = [100, 1_000, 10_000, 30_000];
const PEER_SIZES: [u32; 2] = [100, 1_000];
/// Each figure is the median of so many series, so that a burst of somebody else's does not show.
const SERIES: usize = 11;
const ROUND_TRIPS: usize = 600;
const PATIENCE: Duration = Duration::from_secs(1);
/// The client is one of the cluster, so it is not masqueraded.
const CLIENT: &str = "192.168.7.0/24";

pub fn measure() {
    make_node();
    let (pod, target, _) = make_pod(2);
    let server = inside(&pod, || UdpSocket::bind("0.0.0.0:8080").expect("a free port"));
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let round_trip = |to: &str| round_trip(&server, to);
    let direct = format!("{target}:8080");
    println!(
        "{:>28} {:>10} {:>10} {:>12} {:>8}",
        "first packet", "plain", "p50", "over plain", "times"
    );
    // Each row has plain forwarding beside it, a moment before the rules are there.
    let row = |name: &str, to: &str, rules: &dyn Fn() -> Rules| {
        let plain = round_trip(&direct);
        let rules = rules();
        let took = round_trip(to);
        rules.remove();
        let (plain, took) = (plain.as_secs_f64() * 1e6, took.as_secs_f64() * 1e6);
        let (over, times) = (took - plain, took / plain);
        println!("{name:>28} {plain:>7.1} µs {took:>7.1} µs {over:>9.1} µs {times:>8.2}");
    };
    round_trip(&direct);
    row("plain forwarding", &direct, &|| Rules::ByHand);
    row("connections tracked", &direct, &|| {
        Rules::by_hand("filter hook forward priority 0", "ct state invalid drop")
    });
    let (first, one) = (address(0), format!("{}:80", address(0)));
    row("one rule", &one, &|| {
        let rule = format!("ip daddr {first} udp dport 80 dnat to {target}:8080");
        Rules::by_hand("nat hook prerouting priority -100", &rule)
    });
    // Debian's own choice would take minutes for the largest of these.
    run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    for mode in [Mode::Nftables, Mode::Iptables] {
        for services in SIZES {
            let last = format!("{}:80", address(services / 2));
            row(&format!("{mode}, {services} Services"), &last, &|| {
                Rules::OfServices(Box::new(serve(mode, services)))
            });
        }
    }
    if env::var_os(KUBE_PROXY).is_some() {
        for services in PEER_SIZES {
            let last = format!("{}:80", address(services / 2));
            row(&format!("kube-proxy, {services} Services"), &last, &|| {
                let targets = |n| vec![target_of(n, services)];
                Rules::OfPeer(KubeProxy::start(services, targets, CLIENT))
            });
        }
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

fn serve(mode: Mode, services: u32) -> Agent {
    let mut agent = Agent::new(config(mode, &[CLIENT])).expect("we may write rules here");
    for n in 0..services {
        let target = target_of(n, services);
        agent.observe_service(&service(n));
        agent.observe_slice(&slice(n, target..target + 1));
    }
    agent.commit().expect("the kernel takes it");
    agent
}

/// The median of the medians of some series.
fn round_trip(server: &UdpSocket, target: &str) -> Duration {
    let mut medians: Vec<_> = (0..SERIES).map(|_| series(server, target)).collect();
    medians.sort();
    medians[SERIES / 2]
}

/// Every round trip comes from another port, so that each is the first of its flow.
fn series(server: &UdpSocket, target: &str) -> Duration {
    forget_connections();
    let mut buffer = [0; 16];
    let mut times: Vec<Duration> = inside("outside", || {
        (0..ROUND_TRIPS)
            .map(|_| {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
                socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                socket.connect(target).expect("a route");
                let started = Instant::now();
                socket.send(b"hello").expect("a way out");
                let (length, client) = server.recv_from(&mut buffer).expect("a question");
                server.send_to(&buffer[..length], client).expect("a way back");
                socket.recv(&mut buffer).expect("an answer");
                started.elapsed()
            })
            .collect()
    });
    times.sort();
    times[ROUND_TRIPS / 2]
}

/// Deletes all entries of the connection tracking table of this namespace.
fn forget_connections() {
    const SUBSYSTEM_CONNECTIONS: u16 = 1;
    const DELETE: u16 = 2;
    let mut socket = Socket::open().expect("a netlink socket");
    let all = request(SUBSYSTEM_CONNECTIONS, DELETE, ACKNOWLEDGE, 0, |_| {});
    socket.ask(&all).expect("the kernel forgets");
}
