//! The first packet of a flow and its answer, from a client through the node to a pod.
//!
//! Besides plain forwarding there are two more baselines: tracking connections at all, and one rule
//! that translates one address, which is the least that any Service proxy can do. The kernel
//! forgets all connections before each series, because every flow of a series stays in its memory
//! for minutes, and looking for a free port among tens of thousands is not the proxy's work.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use roadstead_proxy::agent::Agent;
use roadstead_proxy::netlink::{ACKNOWLEDGE, Socket, request};
use roadstead_proxy::plane::Mode;
use roadstead_testkit::netns::{inside, make_node, make_pod, run};

use crate::cluster::{self, address, config, service, slice};

const SIZES: [u32; 4] = [100, 1_000, 10_000, 30_000];
const ROUND_TRIPS: usize = 4_000;
/// The client is one of the cluster, so it is not masqueraded.
const CLIENT: &str = "192.168.7.0/24";

pub fn measure() {
    make_node();
    let (pod, target, _) = make_pod(2);
    let server = inside(&pod, || UdpSocket::bind("0.0.0.0:8080").expect("a free port"));
    std::thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((length, peer)) = server.recv_from(&mut buffer) {
            let _ = server.send_to(&buffer[..length], peer);
        }
    });
    let direct = format!("{target}:8080");
    println!("{:>28} {:>12} {:>12} {:>12}", "first packet", "p50", "p10", "over plain");
    round_trip(&direct);
    let plain = round_trip(&direct);
    // Others who use the machine show in the median more than in the tenth percentile.
    let report = |name: &str, took: Percentiles| {
        let over = (took.p10.as_secs_f64() - plain.p10.as_secs_f64()) * 1e6;
        println!("{name:>28} {:>12.1?} {:>12.1?} {over:>9.1} µs", took.p50, took.p10);
    };
    report("plain forwarding", plain);
    run("nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; }; \
         add rule ip t c ct state invalid drop'");
    report("connections tracked", round_trip(&direct));
    run("nft delete table ip t");
    run(&format!(
        "nft 'add table ip t; add chain ip t c {{ type nat hook prerouting priority -100; }}; \
         add rule ip t c ip daddr {} udp dport 80 dnat to {target}:8080'",
        address(0),
    ));
    report("one rule", round_trip(&format!("{}:80", address(0))));
    run("nft delete table ip t");
    // Debian's own choice would take minutes for the largest of these.
    run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    for mode in [Mode::Nftables, Mode::Iptables] {
        for services in SIZES {
            let (agent, last) = serve(mode, services);
            report(&format!("{mode}, {services} Services"), round_trip(&format!("{last}:80")));
            drop(agent);
            cluster::cleanup();
        }
    }
}

/// The Service in the middle leads to the pod, the others nowhere.
fn serve(mode: Mode, services: u32) -> (Agent, String) {
    let mut agent = Agent::new(config(mode, &[CLIENT])).expect("we may write rules here");
    let chosen = services / 2;
    for n in 0..services {
        let target = if n == chosen { 0 } else { n + 1 };
        agent.observe_service(&service(n));
        agent.observe_slice(&slice(n, target..target + 1));
    }
    agent.commit().expect("the kernel takes it");
    (agent, address(chosen).to_string())
}

#[derive(Clone, Copy)]
struct Percentiles {
    p10: Duration,
    p50: Duration,
}

/// Every round trip comes from another port, so that each is the first of its flow.
fn round_trip(target: &str) -> Percentiles {
    forget_connections();
    let mut times: Vec<Duration> = inside("outside", || {
        (0..ROUND_TRIPS)
            .map(|_| {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
                socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
                socket.connect(target).expect("a route");
                let started = Instant::now();
                socket.send(b"hello").expect("a way out");
                socket.recv(&mut [0; 16]).expect("an answer");
                started.elapsed()
            })
            .collect()
    });
    times.sort();
    Percentiles { p10: times[times.len() / 10], p50: times[times.len() / 2] }
}

/// Deletes all entries of the connection tracking table of this namespace.
fn forget_connections() {
    const SUBSYSTEM_CONNECTIONS: u16 = 1;
    const DELETE: u16 = 2;
    let mut socket = Socket::open().expect("a netlink socket");
    let all = request(SUBSYSTEM_CONNECTIONS, DELETE, ACKNOWLEDGE, 0, |_| {});
    socket.ask(&all).expect("the kernel forgets");
}
