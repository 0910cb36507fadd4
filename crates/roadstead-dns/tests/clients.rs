//! Other people's clients against the server, on port 53 of a network namespace of its own: dig,
//! nslookup, glibc's resolver with a pod's search path, and the way musl and Go ask.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use roadstead_dns::metrics::Metrics;
use roadstead_dns::publish::Published;
use roadstead_dns::resolve::Resolver;
use roadstead_dns::server::Server;
use roadstead_dns::setup::Setup;
use roadstead_testkit::netns::{laboratory, run, try_run};
use roadstead_zone::name::Name;
use roadstead_zone::zone::{Keeper, Settings};
use serde_json::json;
use tokio_util::sync::CancellationToken;

fn cluster() -> Keeper {
    let mut settings = Settings::new(&Name::parse("cluster.local").unwrap());
    settings.servers = vec!["127.0.0.1".parse().unwrap()];
    let mut keeper = Keeper::new(settings, 1);
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
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let served = runtime.spawn(async move {
            let server = Server::bind_with(&["0.0.0.0:53".parse().unwrap()], 1).unwrap();
            let zone = Published::new(cluster().snapshot());
            let setup = Published::new(Arc::new(Setup::standard(None)));
            server.serve(Resolver::new(zone, setup), &Metrics::default(), 0, token).await
        });
        std::thread::sleep(Duration::from_millis(300));
        dig();
        nslookup();
        glibc();
        parallel();
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
    let conf = std::env::temp_dir().join(format!("resolv.conf.{}", std::process::id()));
    let text = "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 127.0.0.1\noptions ndots:5\n";
    std::fs::write(&conf, text).unwrap();
    run(&format!("mount --bind {} /etc/resolv.conf", conf.display()));
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
    run("umount /etc/resolv.conf");
    std::fs::remove_file(&conf).unwrap();
}

/// musl and Go send A and AAAA at once from one socket, and take the replies in any order.
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
