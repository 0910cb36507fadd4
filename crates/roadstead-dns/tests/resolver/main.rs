//! Names of others, with other servers that work, fail, wait, lie and die; and the cluster's own
//! names all the while.

mod upstream;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use roadstead_dns::metrics::{Gauges, Metrics};
use roadstead_dns::publish::Published;
use roadstead_dns::resolve::Resolver;
use roadstead_dns::server::DnsServer;
use roadstead_dns_core::clients::Clients;
use roadstead_dns_core::corefile::{self, CorefileEnvironment};
use roadstead_dns_core::rate_limit::RateLimits;
use roadstead_dns_core::setup::Setup;
use roadstead_dns_core::upstream::{UpstreamGroup, UpstreamOptions};
use roadstead_zone::search::SearchList;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::json;
use tokio::task;
use tokio_util::sync::{CancellationToken, DropGuard};

use upstream::{
    Upstream, cuts, denies, dies, fails, forges, hesitates, knows_only_the_root, lies, misses,
    silent, slow, works,
};

/// A server with a small cluster behind it.
struct Running {
    address: SocketAddr,
    resolver: Arc<Resolver>,
    metrics: Arc<Metrics>,
    _stop: DropGuard,
}

fn cluster() -> Keeper {
    let mut keeper = Keeper::new(
        ZoneSettings::new(&roadstead_zone::name::Name::parse("cluster.local").unwrap()),
        1,
        Seed::new(1),
    );
    let web = json!({"metadata": {"namespace": "prod", "name": "web"}, "spec": {"clusterIPs": ["10.96.0.1"]}});
    keeper.observe_service(&serde_json::from_value(web).unwrap());
    let outer = json!({"metadata": {"namespace": "prod", "name": "outer"},
        "spec": {"type": "ExternalName", "externalName": "example.org"}});
    keeper.observe_service(&serde_json::from_value(outer).unwrap());
    keeper.set_synced();
    keeper
}

fn run(setup: Setup) -> Running {
    let server = DnsServer::bind_with(&["127.0.0.1:0".parse().unwrap()], 2).unwrap();
    let address = server.addresses().unwrap()[0];
    let resolver = Resolver::new(Published::new(cluster().snapshot()), setup);
    let stop = CancellationToken::new();
    let (serving, token) = (resolver.clone(), stop.clone());
    let metrics = Arc::new(Metrics::default());
    let counting = metrics.clone();
    tokio::spawn(async move {
        server.serve(serving, &counting, &RateLimits::default(), token).await.unwrap()
    });
    Running { address, resolver, metrics, _stop: stop.drop_guard() }
}

fn run_with(upstreams: &[&Upstream]) -> Running {
    run_at(upstreams.iter().map(|upstream| upstream.address).collect())
}

fn run_at(addresses: Vec<SocketAddr>) -> Running {
    let options =
        UpstreamOptions { timeout: Duration::from_millis(700), ..UpstreamOptions::default() };
    run(Setup::standard(Some(UpstreamGroup { addresses, options })))
}

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(99, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.set_edns(Edns::new());
    message.to_vec().unwrap()
}

fn over_udp(server: SocketAddr, query: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.send_to(query, server).unwrap();
    let mut buffer = vec![0; 4096];
    let (length, _) = socket.recv_from(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

async fn ask(server: SocketAddr, name: &'static str) -> (ResponseCode, String) {
    let reply = task::spawn_blocking(move || over_udp(server, &query(name, RecordType::A)));
    let reply = Message::from_vec(&reply.await.unwrap()).unwrap();
    let words: Vec<_> = reply.answers.iter().map(|record| record.data.to_string()).collect();
    (reply.metadata.response_code, words.join(" "))
}

const OUTSIDE: &str = "example.org.";

#[tokio::test(flavor = "multi_thread")]
async fn whatever_other_servers_do() {
    use ResponseCode::{NXDomain, NoError, ServFail};
    let cases: [(&str, &[upstream::Behaviour], ResponseCode, &str); 9] = [
        ("it works", &[works], NoError, "192.0.2.1"),
        ("there is no such name", &[denies], NXDomain, ""),
        ("the first is silent", &[silent, works], NoError, "192.0.2.1"),
        ("the first fails", &[fails, works], NoError, "192.0.2.1"),
        ("a query is lost", &[misses], NoError, "192.0.2.1"),
        ("all fail", &[fails, fails], ServFail, ""),
        ("all are silent", &[silent, silent], ServFail, ""),
        ("impostors are quicker", &[lies], NoError, "192.0.2.1"),
        ("slow ones are waited for", &[slow], NoError, "192.0.2.1"),
    ];
    for (name, behaviours, code, want) in cases {
        let upstreams: Vec<_> = behaviours.iter().map(|one| Upstream::start(*one)).collect();
        let running = run_with(&upstreams.iter().collect::<Vec<_>>());
        assert_eq!(ask(running.address, OUTSIDE).await, (code, want.into()), "{name}");
        // A second time it comes from memory, unless it was a failure.
        let before: usize = upstreams.iter().map(Upstream::asked).sum();
        assert_eq!(ask(running.address, OUTSIDE).await.0, code, "{name}, again");
        let after: usize = upstreams.iter().map(Upstream::asked).sum();
        assert!(code == ServFail || before == after, "{name}: asked {before} and {after} times");
    }
}

/// Whoever does not repeat the letters of a question is asked again over TCP, and then knows them or
/// does not care for them.
#[tokio::test(flavor = "multi_thread")]
async fn letters_are_repeated() {
    // Names with many letters, so that they are not all small ones by chance.
    let names = ["one-name-with-many-letters.example.org.", "another-one-of-those.example.org."];
    let upstream = Upstream::start_folding();
    let running = run_with(&[&upstream]);
    let (code, answers) = ask(running.address, names[0]).await;
    assert_eq!(code, ResponseCode::NoError);
    assert!(answers.starts_with("192.0.2.200 "), "what it says over TCP: {answers}");
    assert_eq!(ask(running.address, names[1]).await.1, "192.0.2.1", "then it is known");
    assert_eq!(upstream.asked(), 2);

    let upstream = Upstream::start(forges);
    let running = run_with(&[&upstream]);
    for name in names {
        let (_, answers) = ask(running.address, name).await;
        assert!(answers.starts_with("192.0.2.200 "), "never the impostor's: {answers}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_leads_outside() {
    let upstream = Upstream::start(works);
    let running = run_with(&[&upstream]);
    let (code, answers) = ask(running.address, "outer.prod.svc.cluster.local.").await;
    assert_eq!((code, answers.as_str()), (ResponseCode::NoError, "example.org. 192.0.2.1"));
}

/// Behind an alias others say for how long there is nothing (RFC 2308): clients may remember it.
#[tokio::test(flavor = "multi_thread")]
async fn an_alias_leads_to_nothing() {
    let upstream = Upstream::start(denies);
    let running = run_with(&[&upstream]);
    let server = running.address;
    for _ in 0..2 {
        let bytes = query("outer.prod.svc.cluster.local.", RecordType::A);
        let reply = task::spawn_blocking(move || over_udp(server, &bytes)).await.unwrap();
        let reply = Message::from_vec(&reply).unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{reply:?}");
        let kinds = |records: &[hickory_proto::rr::Record]| {
            records.iter().map(|record| record.record_type()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&reply.answers), [RecordType::CNAME], "{reply:?}");
        assert_eq!(kinds(&reply.authorities), [RecordType::SOA], "{reply:?}");
        assert_eq!(reply.authorities[0].name.to_string(), "org.", "theirs, not ours");
    }
}

/// Whoever was told that a search ends here is not told that it goes on, though that takes longer
/// than a search usually waits for others.
#[tokio::test(flavor = "multi_thread")]
async fn both_families_of_a_search_end_at_the_same_name() {
    let upstream = Upstream::start(hesitates);
    let upstreams = UpstreamGroup::new(vec![upstream.address]);
    let running = run(Setup::standard(Some(upstreams)));
    let searches = ["prod.svc.cluster.local", "svc.cluster.local", "cluster.local"];
    let search = SearchList::new(&searches.map(str::to_owned), 5).unwrap();
    let clients = Clients::of([([127, 0, 0, 1].into(), search)], Instant::now());
    running.resolver.clients.publish(Arc::new(clients));
    let server = running.address;
    let ask = |kind| {
        let bytes = query("www.example.org.prod.svc.cluster.local.", kind);
        task::spawn_blocking(move || Message::from_vec(&over_udp(server, &bytes)).unwrap())
    };
    let six = ask(RecordType::AAAA).await.unwrap();
    let four = ask(RecordType::A).await.unwrap();
    for (reply, want) in [(six, 1), (four, 2)] {
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError, "{reply:?}");
        assert_eq!(reply.answers.len(), want, "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_from_memory_are_counted() {
    let upstream = Upstream::start(works);
    let running = run_with(&[&upstream]);
    for _ in 0..4 {
        assert_eq!(ask(running.address, OUTSIDE).await.1, "192.0.2.1");
    }
    let page = running.metrics.page(&Gauges::default());
    let server = format!("server=\"dns://:{}\"", running.address.port());
    for want in [
        format!("hits_total{{{server},type=\"success\"}} 3"),
        format!("misses_total{{{server}}} 1"),
    ] {
        assert!(page.lines().any(|line| line == format!("coredns_cache_{want}")), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_ask_the_same_share_an_answer() {
    let upstream = Upstream::start(slow);
    let running = run_with(&[&upstream]);
    let all = (0..50).map(|_| tokio::spawn(ask(running.address, OUTSIDE)));
    for one in all.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap(), (ResponseCode::NoError, "192.0.2.1".into()));
    }
    assert_eq!(upstream.asked(), 1);
}

/// Clients give up after five seconds; and one name says nothing about a server.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_about_which_nobody_answers() {
    let upstream = Upstream::start(knows_only_the_root);
    let upstreams = UpstreamGroup::new(vec![upstream.address]);
    let running = run(Setup::standard(Some(upstreams)));
    let began = Instant::now();
    assert_eq!(ask(running.address, OUTSIDE).await.0, ResponseCode::ServFail);
    let took = began.elapsed();
    assert!(took < Duration::from_millis(4300), "{took:?}");
    assert_eq!(running.resolver.broken_upstreams(), 0, "it answers other questions");
    // Three times about the name, and whether it is there at all.
    assert!(upstream.asked() <= 5, "{}", upstream.asked());
    let silent = Upstream::start(silent);
    let upstreams = UpstreamGroup::new(vec![silent.address]);
    let running = run(Setup::standard(Some(upstreams)));
    assert_eq!(ask(running.address, OUTSIDE).await.0, ResponseCode::ServFail);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(running.resolver.broken_upstreams(), 1, "it answers nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_wait_than_may() {
    let upstream = Upstream::start(silent);
    let timeout = Duration::from_millis(700);
    let options = UpstreamOptions { most: 1, timeout, ..UpstreamOptions::default() };
    let upstreams = UpstreamGroup { addresses: vec![upstream.address], options };
    let running = run(Setup::standard(Some(upstreams)));
    let first = tokio::spawn(ask(running.address, OUTSIDE));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ask(running.address, "other.org.").await.0, ResponseCode::Refused);
    assert_eq!(first.await.unwrap().0, ResponseCode::ServFail);
}

/// What was asked under old rules is of no concern to whoever asks under new ones.
#[tokio::test(flavor = "multi_thread")]
async fn new_rules_begin_with_nothing() {
    let (old, new) = (Upstream::start(slow), Upstream::start(denies));
    let running = run_with(&[&old]);
    let first = tokio::spawn(ask(running.address, OUTSIDE));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let upstreams = UpstreamGroup::new(vec![new.address]);
    running.resolver.install(Setup::standard(Some(upstreams)));
    assert_eq!(ask(running.address, OUTSIDE).await.0, ResponseCode::NXDomain);
    assert_eq!(first.await.unwrap().1, "192.0.2.1");
    assert_eq!(ask(running.address, OUTSIDE).await.0, ResponseCode::NXDomain);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_answer_is_better_than_none() {
    let upstream = Upstream::start(dies);
    let running = run_with(&[&upstream]);
    assert_eq!(ask(running.address, OUTSIDE).await.1, "192.0.2.1");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let server = running.address;
    let reply = task::spawn_blocking(move || over_udp(server, &query(OUTSIDE, RecordType::A)));
    let reply = reply.await.unwrap();
    let message = Message::from_vec(&reply).unwrap();
    assert_eq!(message.answers.len(), 1, "{message:?}");
    let reason = b"no newer answer could be had";
    assert!(reply.windows(reason.len()).any(|window| window == reason), "and it says so");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_fetched_over_tcp() {
    let upstream = Upstream::start(cuts);
    let running = run_with(&[&upstream]);
    let server = running.address;
    let read = task::spawn_blocking(move || {
        let udp = Message::from_vec(&over_udp(server, &query(OUTSIDE, RecordType::A))).unwrap();
        let mut stream = TcpStream::connect(server).unwrap();
        let bytes = query(OUTSIDE, RecordType::A);
        stream.write_all(&u16::try_from(bytes.len()).unwrap().to_be_bytes()).unwrap();
        stream.write_all(&bytes).unwrap();
        (udp, read_framed(&mut stream))
    });
    let (udp, tcp) = read.await.unwrap();
    assert!(udp.metadata.truncation && udp.answers.len() > 20, "as many as fit");
    assert!(!tcp.metadata.truncation);
    assert_eq!(tcp.answers.len(), 200);
}

fn read_framed(stream: &mut TcpStream) -> Message {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut reply = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut reply).unwrap();
    Message::from_vec(&reply).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_answered_in_the_order_of_readiness() {
    let upstream = Upstream::start(slow);
    let running = run_with(&[&upstream]);
    let server = running.address;
    let names = task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(server).unwrap();
        let mut bytes = Vec::new();
        for name in [OUTSIDE, "web.prod.svc.cluster.local."] {
            let query = query(name, RecordType::A);
            bytes.extend(u16::try_from(query.len()).unwrap().to_be_bytes());
            bytes.extend(query);
        }
        // In two pieces, cut in the middle of the second query.
        let (first, second) = bytes.split_at(bytes.len() - 7);
        stream.write_all(first).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        stream.write_all(second).unwrap();
        let mut name = || read_framed(&mut stream).queries[0].name().to_string();
        [name(), name()]
    });
    assert_eq!(names.await.unwrap(), ["web.prod.svc.cluster.local.", OUTSIDE]);
}

/// Whoever has nothing more to ask still wants the answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_may_be_closed_before_the_answers() {
    let upstream = Upstream::start(slow);
    let running = run_with(&[&upstream]);
    let server = running.address;
    let read = task::spawn_blocking(move || {
        ["example.org.", "other.org.", "outer.prod.svc.cluster.local."].map(|name| {
            let mut stream = TcpStream::connect(server).unwrap();
            let query = query(name, RecordType::A);
            stream.write_all(&u16::try_from(query.len()).unwrap().to_be_bytes()).unwrap();
            stream.write_all(&query).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let reply = read_framed(&mut stream);
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "and then it is over");
            reply.answers.len()
        })
    });
    assert_eq!(read.await.unwrap(), [1, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_servers_do_not_slow_the_cluster_down() {
    let running = run_with(&[&Upstream::start(silent), &Upstream::start(silent)]);
    let server = running.address;
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    for n in 0..5000 {
        let name = format!("n{n}.example.org.");
        let _ = flood.send_to(&query(&name, RecordType::A), server);
    }
    let times = task::spawn_blocking(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let bytes = query("web.prod.svc.cluster.local.", RecordType::A);
        let mut buffer = [0; 512];
        let mut times: Vec<Duration> = (0..200)
            .map(|_| {
                let began = Instant::now();
                socket.send_to(&bytes, server).unwrap();
                socket.recv_from(&mut buffer).unwrap();
                began.elapsed()
            })
            .collect();
        times.sort_unstable();
        times
    });
    let median = times.await.unwrap()[100];
    assert!(median < Duration::from_millis(20), "{median:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_leads_back_is_not_asked() {
    // The port is known only when the server runs, so it is told to ask itself afterwards.
    let running = run_at(vec!["192.0.2.53:53".parse().unwrap()]);
    let itself = UpstreamGroup::new(vec![running.address]);
    running.resolver.install(Setup::standard(Some(itself)));
    running.resolver.guard().await;
    let began = Instant::now();
    assert_eq!(ask(running.address, OUTSIDE).await.0, ResponseCode::ServFail);
    assert!(began.elapsed() < Duration::from_secs(1), "nobody waits for nothing");
    assert_eq!(ask(running.address, "web.prod.svc.cluster.local.").await.1, "10.96.0.1");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_a_corefile() {
    let (world, acme) = (Upstream::start(works), Upstream::start(denies));
    let text = format!(
        "acme.local {{\n forward . {}\n}}\n. {{\n hosts {{\n  192.0.2.77 db.corp\n  fallthrough\n }}\n \
         rewrite name old.corp web.prod.svc.cluster.local\n \
         rewrite name suffix .was.org .org\n \
         rewrite name moved.corp x.acme.local\n \
         rewrite name regex ^(.*)--(.*)\\.corp$ {{1}}.{{2}}.svc.cluster.local\n \
         template IN A made.up {{\n  answer \"{{{{ .Name }}}} 60 IN A 192.0.2.78\"\n }}\n \
         template ANY ANY gone.up {{\n  rcode NXDOMAIN\n }}\n \
         kubernetes cluster.local\n forward . {}\n cache\n}}\n",
        acme.address, world.address
    );
    let rules = corefile::read(
        &text,
        false,
        &CorefileEnvironment::files(&|path| std::fs::read_to_string(path)),
    )
    .unwrap();
    let running = run(rules.setup);
    use ResponseCode::{NXDomain, NoError};
    for (name, code, want) in [
        ("web.prod.svc.cluster.local.", NoError, "10.96.0.1"),
        ("db.corp.", NoError, "192.0.2.77"),
        ("old.corp.", NoError, "10.96.0.1"),
        ("example.was.org.", NoError, "192.0.2.1"),
        ("web--prod.corp.", NoError, "10.96.0.1"),
        ("example.org.", NoError, "192.0.2.1"),
        // The rules of the name in the question hold for the name that it stands for, too.
        ("moved.corp.", NoError, "192.0.2.1"),
        ("x.acme.local.", NXDomain, ""),
        ("any.made.up.", NoError, "192.0.2.78"),
        ("any.gone.up.", NXDomain, ""),
    ] {
        assert_eq!(ask(running.address, name).await, (code, want.into()), "{name}");
    }
    assert_eq!(acme.asked(), 1);
}
