//! The proxy's nftables plane: cold start, one change, memory, and the first packet.
//!
//! `cargo bench -p roadstead --bench proxy -- [SERVICES,…]` runs itself again in a network
//! namespace of its own (as root of a user namespace if need be), so it never touches the
//! machine's rules. Sizes default to 1000,5000,10000,20000. Each cluster is IPv4 with two endpoints
//! per Service; one more has 5,000 Services with 50 endpoints each. Objects go through the agent as
//! a watch would deliver them, so the figures include decoding views, deciding and committing.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::env;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_proxy::agent::{Agent, Config};
use roadstead_testkit::netns::{inside, make_node, make_pod, run};
use roadstead_watch::informer::Change;
use serde_json::json;

const INSIDE: &str = "ROADSTEAD_BENCH_INSIDE";
const CHANGES: u32 = 1_000;
const ROUND_TRIPS: usize = 20_000;

fn main() {
    let sizes = env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let sizes = sizes.unwrap_or_else(|| "1000,5000,10000,20000".into());
    match env::var(INSIDE).as_deref() {
        Err(_) => return reenter(&sizes),
        Ok("row") => return measure_row(&sizes),
        Ok(_) => {}
    }
    run("mount -t tmpfs tmpfs /run && mkdir -p /run/netns && ip link set lo up");
    println!(
        "{:>9} {:>9} {:>12} {:>12} {:>12} {:>9}",
        "services", "endpoints", "cold", "change p50", "change p99", "RSS"
    );
    for services in sizes.split(',').map(|text| text.parse().expect("a number of Services")) {
        alone(services, 2);
    }
    alone(5_000, 50);
    first_packets();
}

/// A process and a namespace of its own, so that neither memory nor rules of one run reach another.
fn reenter(sizes: &str) {
    let privileged = Command::new("unshare").args(["-nm", "true"]).status();
    let flags: &[&str] = match privileged.is_ok_and(|status| status.success()) {
        true => &["--net", "--mount", "--pid", "--fork", "--mount-proc"],
        false => {
            &["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--mount-proc"]
        }
    };
    let own = env::current_exe().expect("a benchmark knows its path");
    let status = Command::new("unshare").args(flags).arg(own).arg(sizes).env(INSIDE, "1").status();
    assert!(status.is_ok_and(|status| status.success()), "the benchmark failed in its namespace");
}

/// One row, measured in a child so that its memory is its own.
fn alone(services: u32, endpoints: u32) {
    let own = env::current_exe().expect("a benchmark knows its path");
    let row = format!("{services}x{endpoints}");
    let status = Command::new(own).arg(row).env(INSIDE, "row").status();
    assert!(status.is_ok_and(|status| status.success()), "a row failed");
}

fn measure_row(row: &str) {
    let (services, endpoints) = row.split_once('x').expect("written that way");
    measure(services.parse().expect("a number"), endpoints.parse().expect("a number"));
}

fn measure(services: u32, endpoints: u32) {
    let mut agent = agent();
    let own = |n: u32| (0..endpoints).map(move |slot| n * endpoints + slot);
    let objects: Vec<_> = (0..services).map(|n| (service(n), slice(n, own(n)))).collect();
    let started = Instant::now();
    for (service, slice) in objects {
        agent.observe_service(&service);
        agent.observe_slice(&slice);
    }
    agent.commit().expect("the kernel takes it");
    let cold = started.elapsed();
    let fresh = services * endpoints;
    let mut times: Vec<Duration> = (0..CHANGES)
        .map(|i| {
            let n = i.wrapping_mul(7919) % services;
            let change = slice(n, own(n).skip(1).chain([fresh + i]));
            let started = Instant::now();
            agent.observe_slice(&change);
            agent.commit().expect("the kernel takes it");
            started.elapsed()
        })
        .collect();
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{services:>9} {:>9} {cold:>12.1?} {:>12.1?} {:>12.1?} {:>6} MB",
        services * endpoints,
        at(50),
        at(99),
        resident() >> 10,
    );
    agent_cleanup();
}

fn agent_cleanup() {
    roadstead_proxy::agent::cleanup().expect("the kernel lets go");
}

fn agent() -> Agent {
    let networks = vec!["10.244.0.0/14".parse().expect("a network")];
    let surroundings =
        Surroundings { detect_local: DetectLocal::Networks(networks), ..Surroundings::default() };
    let config = Config {
        node_name: "node-1".into(),
        surroundings,
        families: vec![IpFamily::V4],
        ..Config::default()
    };
    Agent::new(config).expect("we may write rules here")
}

fn service(n: u32) -> Change<Service> {
    let address = Ipv4Addr::from(0x0a60_0000 + n + 1).to_string();
    let object = json!({
        "metadata": {"namespace": "default", "name": format!("service-{n}")},
        "spec": {"clusterIP": address, "clusterIPs": [address],
            "ports": [{"name": "http", "port": 80, "protocol": "UDP"}]},
    });
    Change::Set(Arc::new(serde_json::from_value(object).expect("a Service")))
}

fn slice(n: u32, targets: impl Iterator<Item = u32>) -> Change<EndpointSlice> {
    let endpoint = |target: u32| {
        let address = Ipv4Addr::from(0x0af4_0002 + target).to_string();
        json!({"addresses": [address], "nodeName": "node-2", "conditions": {"ready": true}})
    };
    let object = json!({
        "metadata": {"namespace": "default", "name": format!("service-{n}-x"),
            "labels": {"kubernetes.io/service-name": format!("service-{n}")}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "UDP"}],
        "endpoints": targets.map(endpoint).collect::<Vec<_>>(),
    });
    Change::Set(Arc::new(serde_json::from_value(object).expect("a slice")))
}

/// The first packet of a flow and its answer, from outside through the node to a pod.
fn first_packets() {
    make_node();
    let (pod, address, _) = make_pod(2);
    let server = inside(&pod, || UdpSocket::bind("0.0.0.0:8080").expect("a free port"));
    std::thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((length, peer)) = server.recv_from(&mut buffer) {
            let _ = server.send_to(&buffer[..length], peer);
        }
    });
    println!("{:>9} {:>24}", "services", "first packet p50");
    println!("{:>9} {:>24?}", "plain", round_trip(&format!("{address}:8080")));
    for services in [100, 1_000, 10_000, 30_000] {
        let mut agent = agent();
        for n in 0..services {
            agent.observe_service(&service(n));
            // The first Service leads to the pod, the others nowhere.
            agent.observe_slice(&slice(n, n..n + 1));
        }
        agent.commit().expect("the kernel takes it");
        let target = Ipv4Addr::from(0x0a60_0001).to_string();
        println!("{services:>9} {:>24?}", round_trip(&format!("{target}:80")));
        agent_cleanup();
    }
}

/// Every round trip comes from another port, so that each is the first of its flow.
fn round_trip(target: &str) -> Duration {
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
    times[times.len() / 2]
}

/// In KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}
