//! Other people's clients against the server, on port 53 of a network namespace of its own: dig,
//! nslookup, the resolvers of glibc and musl with a pod's search path, and the way Go asks.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name as HickoryName, RData, Record, RecordType};
use roadstead_dns::metrics::{Gauges, Metrics};
use roadstead_dns::publish::Published;
use roadstead_dns::resolve::Resolver;
use roadstead_dns::server::DnsServer;
use roadstead_dns_core::clients::Clients;
use roadstead_dns_core::rate_limit::RateLimits;
use roadstead_dns_core::setup::Setup;
use roadstead_dns_core::upstream::UpstreamGroup;
use roadstead_testkit::netns::{is_left_out, laboratory, run, try_run};
use roadstead_zone::name::Name;
use roadstead_zone::search::SearchList;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::json;
use tokio_util::sync::CancellationToken;

fn cluster() -> Keeper {
    let mut settings = ZoneSettings::new(&Name::parse("cluster.local").unwrap());
    settings.servers = vec!["127.0.0.1".parse().unwrap()];
    let mut keeper = Keeper::new(settings, 1, Seed::new(1));
    keeper.observe_namespace("default");
    for (name, spec) in [
        (
            "web",
            json!({"clusterIPs": ["10.96.0.1", "fd96::1"], "ports": [{"name": "http", "port": 80}]}),
        ),
        ("four", json!({"clusterIPs": ["10.96.0.4"]})),
        ("big", json!({"clusterIPs": ["None"]})),
    ] {
        let object = json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec});
        keeper.observe_service(&serde_json::from_value(object).unwrap());
    }
    let endpoints: Vec<_> =
        (0..100).map(|n| json!({"addresses": [format!("10.0.0.{n}")]})).collect();
    let slice = json!({
        "metadata": {"namespace": "shop", "name": "big-1", "labels": {"kubernetes.io/service-name": "big"}},
        "addressType": "IPv4", "endpoints": endpoints,
    });
    keeper.observe_slice(&serde_json::from_value(slice).unwrap());
    keeper.set_synced();
    keeper
}

#[test]
fn clients_of_others() {
    laboratory(|| {
        run("ip link set lo up");
        // Without an address of that family glibc would not ask for it.
        run("ip address add fd00::7/128 dev lo nodad");
        let world = the_world();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let zone = Published::new(cluster().snapshot());
        let upstreams = UpstreamGroup::new(vec![world]);
        let setup = Setup::standard(Some(upstreams));
        let resolver = Resolver::new(zone, setup);
        let metrics = Arc::new(Metrics::default());
        let (serving, counting) = (resolver.clone(), metrics.clone());
        let served = runtime.spawn(async move {
            let server = DnsServer::bind_with(&["0.0.0.0:53".parse().unwrap()], 1).unwrap();
            server.serve(serving, &counting, &RateLimits::default(), token).await
        });
        std::thread::sleep(Duration::from_millis(300));
        dig();
        nslookup();
        parallel();
        let search = SEARCHES.join(" ");
        let text = format!("search {search}\nnameserver 127.0.0.1\noptions ndots:5\n");
        std::fs::write("/run/resolv.conf", text).unwrap();
        run("mount --bind /run/resolv.conf /etc/resolv.conf");
        glibc();
        busybox();
        searches(&resolver, &metrics);
        stop.cancel();
        runtime.block_on(served).unwrap().unwrap();
    });
}

fn dig() {
    let dig = |what: &str| run(&format!("dig +time=2 +tries=1 @127.0.0.1 {what}"));
    assert_eq!(dig("+short web.shop.svc.cluster.local"), "10.96.0.1");
    assert_eq!(dig("+short -x 10.96.0.1"), "web.shop.svc.cluster.local.");
    let srv = dig("+short SRV _http._tcp.web.shop.svc.cluster.local");
    assert_eq!(srv, "0 50 80 web.shop.svc.cluster.local.");
    let long = dig("+short big.shop.svc.cluster.local");
    assert_eq!(long.lines().count(), 100, "it comes back over TCP");
    let all = dig("nothing.shop.svc.cluster.local");
    for want in ["NXDOMAIN", "EDE: 0 (Other)", "there is no Service nothing in namespace shop"] {
        assert!(all.contains(want), "{want}:\n{all}");
    }
    assert!(!all.contains("recursion requested but not available"), "{all}");
    // From another of our addresses the reply must come from there.
    run("ip address add 192.0.2.7/32 dev lo");
    assert_eq!(
        run("dig +time=2 +tries=1 +short @192.0.2.7 web.shop.svc.cluster.local"),
        "10.96.0.1"
    );
}

fn nslookup() {
    let text = run("nslookup web.shop.svc.cluster.local 127.0.0.1");
    assert!(text.contains("Address: 10.96.0.1") && text.contains("Address: fd96::1"), "{text}");
    assert!(!text.contains("recursion not available"), "{text}");
}

/// getent with a pod's resolv.conf; the laboratory has its own mounts.
fn glibc() {
    let cases = [
        ("web.shop", "10.96.0.1"),
        ("web.shop.svc", "10.96.0.1"),
        ("web.shop.svc.cluster.local", "10.96.0.1"),
        ("four.shop", "10.96.0.4"),
    ];
    for (name, want) in cases {
        let text = run(&format!("getent ahostsv4 {name}"));
        assert!(text.starts_with(want), "{name}:\n{text}");
        let both = run(&format!("getent ahosts {name}"));
        assert!(both.contains(want), "{name}, both families:\n{both}");
    }
    assert!(!try_run("getent ahosts web").status.success(), "not in this namespace");
}

/// What most small images have. It asks for both families, and stops at the first error.
fn busybox() {
    if is_left_out("busybox") {
        return;
    }
    // Of Debian's package busybox.
    let look = |what: &str| run(&format!("busybox nslookup {what}"));
    let both = look("web.shop.svc.cluster.local");
    assert!(both.contains("10.96.0.1") && both.contains("fd96::1"), "{both}");
    let one = look("four.shop.svc.cluster.local 127.0.0.1");
    assert!(one.contains("10.96.0.4"), "{one}");
    let back = look("10.96.0.1");
    assert!(back.contains("web.shop.svc.cluster.local"), "{back}");
    let ports = look("-type=srv _http._tcp.web.shop.svc.cluster.local");
    assert!(ports.contains("80 web.shop.svc.cluster.local"), "{ports}");
    let outer = look("www.example.com.");
    assert!(outer.contains("192.0.2.80"), "{outer}");
    let nothing = try_run("busybox nslookup nothing.shop.svc.cluster.local");
    let text = String::from_utf8_lossy(&nothing.stdout).into_owned();
    assert!(!nothing.status.success() && text.contains("NXDOMAIN"), "{text}");
}

const SEARCHES: [&str; 3] = ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"];

/// The rest of the world: whatever begins with www has an IPv4 address.
fn the_world() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.2:5353").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let query = Message::from_vec(&buffer[..length]).unwrap();
            let mut reply = query.clone().into_response();
            let asked = &query.queries[0];
            let exists = asked.name().to_ascii().to_lowercase().starts_with("www.");
            if exists && asked.query_type() == RecordType::A {
                let data = RData::A(A::new(192, 0, 2, 80));
                reply.add_answer(Record::from_rdata(asked.name().clone(), 60, data));
            } else {
                let root = HickoryName::root();
                let soa = SOA::new(root.clone(), root.clone(), 1, 1, 1, 1, 60);
                reply.add_authority(Record::from_rdata(root, 60, RData::SOA(soa)));
            }
            if !exists {
                reply.metadata.response_code = ResponseCode::NXDomain;
            }
            let _ = socket.send_to(&reply.to_vec().unwrap(), peer);
        }
    });
    address
}

/// What a program built with musl gets; it is linked statically, so it runs anywhere.
fn musl() -> Option<String> {
    if is_left_out("musl") {
        return None;
    }
    const PROGRAM: &str = r#"
        #include <netdb.h>
        #include <stdio.h>
        #include <sys/socket.h>
        int main(int count, char **words) {
            struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *one;
            int error = getaddrinfo(words[1], 0, &hints, &one);
            if (error) return 1;
            for (; one; one = one->ai_next) {
                char text[99];
                getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST);
                puts(text);
            }
        }"#;
    std::fs::write("/run/getaddrinfo.c", PROGRAM).unwrap();
    // Of Debian's package musl-tools.
    run("musl-gcc -static -o /run/getaddrinfo /run/getaddrinfo.c");
    Some("/run/getaddrinfo".into())
}

/// How many queries real resolvers send for a name, by themselves and with our help.
fn searches(resolver: &Resolver, metrics: &Metrics) {
    let queries = || {
        let page = metrics.page(&Gauges::default());
        let lines = page.lines().filter(|line| line.starts_with("coredns_dns_requests_total"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let search = SearchList::new(&SEARCHES.map(str::to_owned), 5).unwrap();
    let helped = Arc::new(Clients::of([([127, 0, 0, 1].into(), search)], Instant::now()));
    let dig = "dig +search +noall +short".to_owned();
    // Both families, but for dig.
    let clients = [("getent ahosts".to_owned(), 2), (dig, 1)];
    let clients = clients.into_iter().chain(musl().map(|program| (program, 2)));
    let names = [
        ("www.example.com", "192.0.2.80", 4),
        ("web.shop", "10.96.0.1", 2),
        ("web.shop.svc.cluster.local", "10.96.0.1", 4),
    ];
    for (client, families) in clients {
        for (name, want, tries) in names {
            for (clients, expected) in [(Arc::default(), tries), (helped.clone(), 1)] {
                resolver.clients.publish(clients);
                // Others have been asked before, so that nobody is impatient.
                run(&format!("{client} {name}"));
                let before = queries();
                let text = run(&format!("{client} {name}"));
                assert!(text.contains(want), "{client} {name}: {text}");
                assert_eq!(queries() - before, expected * families, "{client} {name}");
            }
        }
    }
    assert!(helped.completed() > 0);
}

/// Go sends A and AAAA at once, as musl does, from one socket, and takes the replies in any order.
fn parallel() {
    let server: SocketAddr = "127.0.0.1:53".parse().unwrap();
    for (name, v4, v6) in [("web", 1, 1), ("four", 1, 0)] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let wire = Name::parse(&format!("{name}.shop.svc.cluster.local")).unwrap();
        for kind in [1_u16, 28] {
            let header = [&kind.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
            let query = [&header, wire.wire(), &kind.to_be_bytes(), &[0, 1]].concat();
            socket.send_to(&query, server).unwrap();
        }
        let mut buffer = [0; 512];
        let mut counts = [None, None];
        for _ in 0..2 {
            let (_, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(from.ip(), IpAddr::from([127, 0, 0, 1]));
            assert_eq!(buffer[3] & 0x0f, 0, "no error for either family");
            counts[usize::from(buffer[1] == 28)] = Some(buffer[7]);
        }
        assert_eq!(counts, [Some(v4), Some(v6)], "{name}");
    }
}
