//! The whole server on loopback: a pretended cluster behind it, real sockets in front.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use roadstead_dns::agent::{Config, DnsAgent, Outputs};
use roadstead_dns::metrics::Metrics;
use roadstead_dns::publish::Published;
use roadstead_dns::resolve::Resolver;
use roadstead_dns::server::{DnsServer, everywhere};
use roadstead_dns_core::rate_limit::RateLimits;
use roadstead_dns_core::setup::Setup;
use roadstead_testkit::cluster::FakeCluster;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::{Value, json};
use tokio::task::{self, JoinHandle};
use tokio_util::sync::CancellationToken;

const NAMESPACES: &str = "/api/v1/namespaces";
const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"namespace": "prod", "name": name}, "spec": spec})
}

fn slice(service: &str, addresses: &[&str]) -> Value {
    json!({
        "metadata": {
            "namespace": "prod",
            "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": addresses.iter().map(|a| json!({"addresses": [a]})).collect::<Vec<_>>(),
    })
}

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(99, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

fn over_udp(server: SocketAddr, query: &[u8]) -> Vec<u8> {
    let own = if server.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let socket = UdpSocket::bind(own).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.send_to(query, server).unwrap();
    let mut buffer = vec![0; 4096];
    let (length, _) = socket.recv_from(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

fn over_tcp(server: SocketAddr, query: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(&u16::try_from(query.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(query).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut reply = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut reply).unwrap();
    reply
}

/// Asks in both ways; the replies must be the same.
async fn ask(server: SocketAddr, name: &str, kind: RecordType) -> (ResponseCode, String) {
    let query = query(name, kind);
    let reply = task::spawn_blocking(move || {
        let reply = over_udp(server, &query);
        assert_eq!(Message::from_vec(&over_tcp(server, &query)).unwrap().answers.len(), {
            Message::from_vec(&reply).unwrap().answers.len()
        });
        Message::from_vec(&reply).unwrap()
    })
    .await
    .unwrap();
    let mut words: Vec<_> = reply.answers.iter().map(|r| r.data.to_string()).collect();
    words.sort();
    (reply.metadata.response_code, words.join(" "))
}

struct Running {
    address: SocketAddr,
    published: tokio::sync::watch::Receiver<roadstead_dns::agent::Programmed>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), roadstead_dns::agent::DnsError>>,
}

fn start(cluster: &FakeCluster, zone: &str, upstreams: Vec<SocketAddr>) -> Running {
    start_on(cluster, &["127.0.0.1:0".parse().unwrap()], zone, upstreams)
}

fn start_on(
    cluster: &FakeCluster,
    listen: &[SocketAddr],
    zone: &str,
    upstreams: Vec<SocketAddr>,
) -> Running {
    let mut config = Config::default();
    config.zone.domain = zone.into();
    config.upstreams.addresses = upstreams;
    let outputs = Outputs::default();
    let published = outputs.programmed.subscribe();
    let server = DnsServer::bind(listen).unwrap();
    let address = *server.addresses().unwrap().last().unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(
        DnsAgent { client: cluster.client(), config, outputs }.serve(server, stop.clone()),
    );
    Running { address, published, stop, task }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_follow_the_cluster() {
    let cluster = FakeCluster::default();
    cluster.put(NAMESPACES, json!({"metadata": {"name": "prod"}}));
    cluster.put(SERVICES, service("web", json!({"clusterIPs": ["10.96.0.1"]})));
    cluster.put(SERVICES, service("db", json!({"clusterIPs": ["None"]})));
    cluster.put(SLICES, slice("db", &["10.0.0.1", "10.0.0.2"]));
    let mut running = start(&cluster, "cluster.local", Vec::new());
    running.published.wait_for(|published| published.ready).await.unwrap();
    let server = running.address;

    let ok = |text: &str| (ResponseCode::NoError, text.to_owned());
    let a = RecordType::A;
    assert_eq!(ask(server, "web.prod.svc.cluster.local.", a).await, ok("10.96.0.1"));
    assert_eq!(ask(server, "db.prod.svc.cluster.local.", a).await, ok("10.0.0.1 10.0.0.2"));
    assert_eq!(ask(server, "web.prod.svc.cluster.local.", RecordType::AAAA).await, ok(""));
    let missing = (ResponseCode::NXDomain, String::new());
    assert_eq!(ask(server, "new.prod.svc.cluster.local.", a).await, missing);
    let refused = (ResponseCode::Refused, String::new());
    assert_eq!(ask(server, "example.org.", a).await, refused);

    let started = Instant::now();
    let revision = cluster.put(SLICES, slice("db", &["10.0.0.2", "10.0.0.3"]));
    running.published.wait_for(|published| published.revision >= revision).await.unwrap();
    eprintln!("a changed endpoint was answered after {:?}", started.elapsed());
    assert_eq!(ask(server, "db.prod.svc.cluster.local.", a).await, ok("10.0.0.2 10.0.0.3"));
    let revision = cluster.delete(SERVICES, service("web", json!({})));
    running.published.wait_for(|published| published.revision >= revision).await.unwrap();
    assert_eq!(ask(server, "web.prod.svc.cluster.local.", a).await, missing);

    running.stop.cancel();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn other_names_are_asked_of_others() {
    // The "rest of the world" is another cluster with another zone.
    let world = FakeCluster::default();
    world.put(SERVICES, service("www", json!({"clusterIPs": ["192.0.2.1"]})));
    let mut upstream = start(&world, "world.test", Vec::new());
    let cluster = FakeCluster::default();
    let outer = json!({"type": "ExternalName", "externalName": "www.prod.svc.world.test"});
    cluster.put(SERVICES, service("outer", outer));
    let mut running = start(&cluster, "cluster.local", vec![upstream.address]);
    upstream.published.wait_for(|published| published.ready).await.unwrap();
    running.published.wait_for(|published| published.ready).await.unwrap();

    let ask = |name: &'static str| ask(running.address, name, RecordType::A);
    let ok = |text: &str| (ResponseCode::NoError, text.to_owned());
    assert_eq!(ask("www.prod.svc.world.test.").await, ok("192.0.2.1"));
    let alias = "192.0.2.1 www.prod.svc.world.test.";
    assert_eq!(ask("outer.prod.svc.cluster.local.").await, ok(alias));
    let missing = (ResponseCode::NXDomain, String::new());
    assert_eq!(ask("none.prod.svc.world.test.").await, missing);
    assert_eq!(ask("example.org.").await, (ResponseCode::Refused, String::new()));

    running.stop.cancel();
    running.task.await.unwrap().unwrap();
    upstream.stop.cancel();
    upstream.task.await.unwrap().unwrap();
}

/// A client that asks for both families at once, over and over, is sent to all endpoints alike.
#[tokio::test(flavor = "multi_thread")]
async fn pairs_of_questions_do_not_favour_an_endpoint() {
    let cluster = FakeCluster::default();
    cluster.put(NAMESPACES, json!({"metadata": {"name": "prod"}}));
    cluster.put(SERVICES, service("db", json!({"clusterIPs": ["None"]})));
    cluster.put(SLICES, slice("db", &["10.0.0.1", "10.0.0.2"]));
    let mut running = start(&cluster, "cluster.local", Vec::new());
    running.published.wait_for(|published| published.ready).await.unwrap();
    let server = running.address;
    let count = move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut first = 0;
        for _ in 0..1000 {
            for kind in [RecordType::A, RecordType::AAAA] {
                socket.send_to(&query("db.prod.svc.cluster.local.", kind), server).unwrap();
                let mut buffer = [0; 512];
                let (length, _) = socket.recv_from(&mut buffer).unwrap();
                let reply = Message::from_vec(&buffer[..length]).unwrap();
                let address = reply.answers.first().map(|record| record.data.to_string());
                first += usize::from(address.as_deref() == Some("10.0.0.1"));
            }
        }
        first
    };
    let first = task::spawn_blocking(count).await.unwrap();
    assert!((400..600).contains(&first), "{first} of 1000");
    running.stop.cancel();
    running.task.await.unwrap().unwrap();
}

/// What is out of date is forgotten even if nobody asks anything.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_keeps_only_the_newest_zone() {
    let settings = ZoneSettings::new(&roadstead_zone::name::Name::parse("cluster.local").unwrap());
    let zone = Published::new(Keeper::new(settings.clone(), 1, Seed::new(1)).snapshot());
    let setup = Setup::standard(None);
    let server = DnsServer::bind_with(&["127.0.0.1:0".parse().unwrap()], 2).unwrap();
    let stop = CancellationToken::new();
    let (resolver, token) = (Resolver::new(zone.clone(), setup), stop.clone());
    let task = tokio::spawn(async move {
        server.serve(resolver, &Metrics::default(), &RateLimits::default(), token).await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let old = Arc::downgrade(&zone.get());
    zone.publish(Keeper::new(settings, 2, Seed::new(1)).snapshot());
    let began = Instant::now();
    while old.upgrade().is_some() {
        assert!(began.elapsed() < Duration::from_secs(10), "it is still there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    task.await.unwrap().unwrap();
}

/// The kernel would go on giving its share of the queries to the socket of a thread that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_a_thread_ends() {
    let settings = ZoneSettings::new(&roadstead_zone::name::Name::parse("cluster.local").unwrap());
    let zone = Published::new(Keeper::new(settings, 1, Seed::new(1)).snapshot());
    // No configuration can say so: replies may be longer than the buffer for them.
    let mut setup = Setup::standard(None);
    setup.udp_size = 60_000;
    let resolver = Resolver::new(zone, setup);
    let server = DnsServer::bind_with(&["127.0.0.1:0".parse().unwrap()], 2).unwrap();
    let address = server.addresses().unwrap()[0];
    let task = tokio::spawn(async move {
        server
            .serve(resolver, &Metrics::default(), &RateLimits::default(), CancellationToken::new())
            .await
    });
    let mut message = Message::from_vec(&query("a.cluster.local.", RecordType::A)).unwrap();
    message.set_edns(Edns::new()).edns.as_mut().unwrap().set_max_payload(60_000);
    let query = message.to_vec().unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(&query, address).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), task).await;
    let error = ended.expect("it ends").unwrap().unwrap_err();
    assert_eq!(error.to_string(), "a thread for datagrams ended by surprise");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_families_are_listened_on() {
    let cluster = FakeCluster::default();
    cluster.put(SERVICES, service("web", json!({"clusterIPs": ["10.96.0.1"]})));
    let mut running = start_on(&cluster, &everywhere(0), "cluster.local", Vec::new());
    running.published.wait_for(|published| published.ready).await.unwrap();
    let newer = SocketAddr::from((Ipv6Addr::LOCALHOST, running.address.port()));
    let answer = ask(newer, "web.prod.svc.cluster.local.", RecordType::A).await;
    assert_eq!(answer, (ResponseCode::NoError, "10.96.0.1".to_owned()));
    running.stop.cancel();
    running.task.await.unwrap().unwrap();
}
