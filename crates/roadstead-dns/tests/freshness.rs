//! Under load, an endpoint that is gone is in no answer to a question that was asked afterwards.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roadstead_dns::agent::{Config, DnsAgent, Outputs};
use roadstead_dns::metrics::Metrics;
use roadstead_dns::publish::Published;
use roadstead_dns::resolve::Resolver;
use roadstead_dns::server::DnsServer;
use roadstead_dns_core::rate_limit::RateLimits;
use roadstead_dns_core::setup::Setup;
use roadstead_testkit::cluster::FakeCluster;
use roadstead_zone::name::Name;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::{Value, json};
use tokio::task;
use tokio_util::sync::CancellationToken;

const CHANGES: u32 = 10_000;

/// A headless Service.
fn service() -> Value {
    json!({"metadata": {"namespace": "prod", "name": "db"}, "spec": {"clusterIPs": ["None"]}})
}

/// Its only endpoint is the change's number.
fn slice(number: u32) -> Value {
    let address = Ipv4Addr::from(0x0a00_0000 + number).to_string();
    json!({
        "metadata": {"namespace": "prod", "name": "db-1",
            "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]}],
    })
}

fn change(keeper: &mut Keeper, number: u32) {
    keeper.observe_slice(&serde_json::from_value(slice(number)).unwrap());
}

/// Asks, and returns the number of the change that the answer shows.
fn ask(socket: &UdpSocket, server: SocketAddr) -> u32 {
    const QUERY: &[u8] =
        b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x02db\x04prod\x03svc\x07cluster\x05local\0\0\x01\0\x01";
    socket.send_to(QUERY, server).unwrap();
    let mut reply = [0; 512];
    let (length, _) = socket.recv_from(&mut reply).unwrap();
    assert_eq!(length, QUERY.len() + 16, "one answer");
    let address: [u8; 4] = reply[length - 4..length].try_into().unwrap();
    u32::from_be_bytes(address) - 0x0a00_0000
}

fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_older_than_its_question() {
    let mut keeper =
        Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
    keeper.observe_service(&serde_json::from_value(service()).unwrap());
    change(&mut keeper, 0);
    keeper.set_synced();
    let server = DnsServer::bind_with(&["127.0.0.1:0".parse().unwrap()], 2).unwrap();
    let address = server.addresses().unwrap()[0];
    let zone = Published::new(keeper.snapshot());
    let setup = Setup::standard(None);
    let resolver = Resolver::new(zone.clone(), setup);
    let stop = CancellationToken::new();
    let token = stop.clone();
    let serving = tokio::spawn(async move {
        server.serve(resolver, &Metrics::default(), &RateLimits::default(), token).await
    });

    let (published, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let asked = Arc::new(AtomicU64::new(0));
    let load: Vec<_> = (0..2)
        .map(|_| {
            let (published, over, asked) = (published.clone(), over.clone(), asked.clone());
            task::spawn_blocking(move || {
                let socket = client();
                while !over.load(Ordering::SeqCst) {
                    let before = published.load(Ordering::SeqCst);
                    let shown = ask(&socket, address);
                    assert!(shown >= before, "change {before} was published, {shown} was shown");
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let writer = task::spawn_blocking(move || {
        let socket = client();
        let mut times = Vec::new();
        for number in 1..=CHANGES {
            let began = Instant::now();
            change(&mut keeper, number);
            zone.publish(keeper.snapshot());
            published.store(number, Ordering::SeqCst);
            if number % 10 == 0 {
                assert_eq!(ask(&socket, address), number, "the very next answer");
                times.push(began.elapsed());
            }
        }
        times.sort_unstable();
        times
    });
    let times = writer.await.unwrap();
    over.store(true, Ordering::SeqCst);
    for one in load {
        one.await.unwrap();
    }
    assert!(asked.load(Ordering::SeqCst) > 1000, "there was load");
    // A debug build on a busy machine: the figure that we promise is measured by benches/dns.
    let high = times[times.len() * 99 / 100];
    assert!(high < Duration::from_millis(100), "99 of 100 changes within {high:?}");
    stop.cancel();
    serving.await.unwrap().unwrap();
}

/// From the event of a watch, through everything that follows it, to a socket.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_answered_at_once() {
    const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
    let cluster = FakeCluster::default();
    cluster.put("/api/v1/namespaces", json!({"metadata": {"name": "prod"}}));
    cluster.put("/api/v1/services", service());
    cluster.put(SLICES, slice(0));
    let (config, outputs) = (Config::default(), Outputs::default());
    let mut published = outputs.programmed.subscribe();
    let server = DnsServer::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.addresses().unwrap()[0];
    let stop = CancellationToken::new();
    let serving = tokio::spawn(
        DnsAgent { client: cluster.client(), config, outputs }.serve(server, stop.clone()),
    );
    published.wait_for(|published| published.ready).await.unwrap();
    let times = task::spawn_blocking(move || {
        let socket = client();
        let mut times = Vec::new();
        for number in 1..=500 {
            cluster.put(SLICES, slice(number));
            let began = Instant::now();
            loop {
                let shown = ask(&socket, address);
                assert!(shown + 1 >= number, "{shown} was gone before {number}");
                if shown == number {
                    break;
                }
            }
            times.push(began.elapsed());
            assert_eq!(ask(&socket, address), number, "and it stays so");
        }
        times.sort_unstable();
        times
    });
    let times = times.await.unwrap();
    let (half, most) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    eprintln!("an event is answered after {half:?} (p50), {most:?} (p99)");
    // A release build does it within a millisecond, which benches/dns measures.
    assert!(half < Duration::from_millis(10) && most < Duration::from_millis(100), "{most:?}");
    stop.cancel();
    serving.await.unwrap().unwrap();
}
