//! What an answer costs without the sockets: the time of `respond` for each query of two loads.
//!
//! With `--serve ADDRESS` it is a server over the same made-up cluster instead, to look at with a
//! profiler while dnsperf asks.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Instant;

use roadstead_dns::metrics::Metrics;
use roadstead_dns::publish::Published;
use roadstead_dns::resolve::Resolver;
use roadstead_dns::server::DnsServer;
use roadstead_dns_core::cache::AnswerCaches;
use roadstead_dns_core::rate_limit::RateLimits;
use roadstead_dns_core::respond::{QueryContext, Response, Transport, respond};
use roadstead_dns_core::setup::Setup;
use roadstead_zone::name::Name;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const SERVICES: usize = 5000;
const NAMESPACES: usize = 50;
const QUERIES: usize = 1_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let keeper = keeper();
    if let Some(at) = arguments.iter().position(|argument| argument == "--serve") {
        serve(&keeper, arguments[at + 1].parse().expect("an address"));
        return;
    }
    for (load, make) in [("hits", hit as fn(usize) -> Vec<u8>), ("mix", mixed)] {
        // In an order that no processor can foresee.
        let queries: Vec<_> = (0..100_000).map(|n| make(n * 7919 % 99_991)).collect();
        let nanoseconds = measure(&keeper, &queries);
        println!("{load:<5} {nanoseconds:.0} ns per answer");
    }
}

/// The cluster of `benches/dns/cluster.py`.
fn keeper() -> Keeper {
    let mut keeper = Keeper::new(
        ZoneSettings::new(&Name::parse("cluster.local").expect("a name")),
        1,
        Seed::new(1),
    );
    for n in 0..NAMESPACES {
        keeper.observe_namespace(&format!("ns-{n}"));
    }
    for n in 0..SERVICES {
        let service = json!({
            "metadata": {"namespace": format!("ns-{}", n % NAMESPACES), "name": format!("svc-{n}")},
            "spec": {
                "clusterIPs": [format!("10.96.{}.{}", n / 256, n % 256)],
                "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
            },
        });
        keeper.observe_service(&serde_json::from_value(service).expect("a Service"));
        let addresses = (0..10).map(|at| n * 10 + at);
        let endpoints =
            addresses.map(|n| json!({"addresses": [format!("10.128.{}.{}", n / 256, n % 256)]}));
        let slice = json!({
            "metadata": {
                "namespace": format!("ns-{}", n % NAMESPACES),
                "name": format!("svc-{n}-abcde"),
                "labels": {"kubernetes.io/service-name": format!("svc-{n}")},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": endpoints.collect::<Vec<_>>(),
        });
        keeper.observe_slice(&serde_json::from_value(slice).expect("an EndpointSlice"));
    }
    keeper.set_synced();
    keeper
}

fn query(name: &str, kind: u8) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend(Name::parse(name).expect("a name").wire());
    bytes.extend([0, kind, 0, 1]);
    bytes
}

fn hit(n: usize) -> Vec<u8> {
    let n = n % SERVICES;
    query(&format!("svc-{n}.ns-{}.svc.cluster.local", n % NAMESPACES), 1)
}

/// Half of it is about names that do not exist, as from clients with `ndots:5`.
fn mixed(n: usize) -> Vec<u8> {
    let service = n % SERVICES;
    match n % 4 {
        0 => hit(n),
        1 => query(&format!("svc-{service}.ns-{}.svc.cluster.local", service % NAMESPACES), 28),
        2 => query(&format!("api{n}.example.com.ns-1.svc.cluster.local"), 1),
        _ => query(&format!("api{n}.example.com.svc.cluster.local"), 28),
    }
}

fn measure(keeper: &Keeper, queries: &[Vec<u8>]) -> f64 {
    let (zone, setup) = (keeper.snapshot(), Setup::standard(None));
    let answers = AnswerCaches::new(&setup, 1);
    let mut buffer = [0; 4096];
    let mut best = f64::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        for turn in 0..QUERIES / 5 {
            let transport = Transport::Udp;
            let context = QueryContext {
                zone: &zone,
                setup: &setup,
                answers: &answers,
                transport,
                turn,
                now: began,
                querier: None,
            };
            let response = respond(&context, &queries[turn % queries.len()], &mut buffer);
            assert!(matches!(black_box(response), Response::Reply(_)), "an answer");
        }
        best = best.min(began.elapsed().as_secs_f64() * 1e9 / (QUERIES / 5) as f64);
    }
    best
}

fn serve(keeper: &Keeper, address: SocketAddr) {
    let server = DnsServer::bind_with(&[address], 1).expect("an address to listen on");
    let setup = Setup::standard(None);
    let resolver = Resolver::new(Published::new(keeper.snapshot()), setup);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let metrics = Metrics::default();
    let limits = RateLimits::default();
    let serving = server.serve(resolver, &metrics, &limits, CancellationToken::new());
    runtime.expect("a runtime").block_on(serving).expect("it serves");
}
