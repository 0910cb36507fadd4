//! The rules that iptables lists are those that we compiled, in both of its variants.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::iptables::compile::compile;
use roadstead_forwarding::iptables::diff::{Kept, Layout};
use roadstead_forwarding::iptables::listing::Listing;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_forwarding::select::TrafficPolicy;
use roadstead_forwarding::service::{
    IpFamily, Locality, Protocol, ServicePort, ServicePortName, Target,
};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_proxy::agent;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_proxy::iptables::IptablesPlane;
use roadstead_testkit::cluster::FakeCluster;
use roadstead_testkit::netns::{laboratory, run};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

fn node_network() -> NodeNetwork {
    let networks = ["10.0.0.0/8", "fd00::/16"].map(|text| text.parse().unwrap());
    NodeNetwork {
        detect_local: DetectLocal::Networks(networks.into()),
        node_address: Some([192, 168, 0, 7].into()),
        ..NodeNetwork::default()
    }
}

fn add(table: &mut ForwardingTable, full_name: &str, protocol: Protocol, port: ServicePort) {
    let (namespace, rest) = full_name.split_once('/').unwrap();
    let (name, port_name) = rest.split_once(':').unwrap_or((rest, ""));
    let name = ServicePortName {
        namespace: namespace.into(),
        name: name.into(),
        port: port_name.into(),
        protocol,
    };
    table.replace(&ObjectKey::new(namespace, &*name.name), vec![(name, port)]);
}

fn port(address: &str, number: u16, targets: &str) -> ServicePort {
    let target = |word: &str| {
        let socket: std::net::SocketAddr = word.trim_start_matches("here!").parse().unwrap();
        let locality = if word.starts_with("here!") { Locality::Here } else { Locality::Elsewhere };
        Target { address: socket.ip(), port: socket.port(), locality }
    };
    let cluster: Vec<_> = targets.split_whitespace().map(target).collect();
    ServicePort {
        port: number,
        cluster_ips: vec![address.parse().unwrap()],
        local: cluster.iter().filter(|target| target.locality == Locality::Here).copied().collect(),
        cluster,
        ..ServicePort::default()
    }
}

/// A Service of every kind.
fn table(family: IpFamily) -> ForwardingTable {
    let mut table = ForwardingTable::new(family, &node_network());
    let (vip, other, two, range) = match family {
        IpFamily::V4 => ("10.96.0.1", "5.5.5.5", "here!10.1.0.1:80 10.1.0.2:80", "10.0.0.0/24"),
        IpFamily::V6 => ("fd00::96", "fd01::5", "here![fd00::1]:80 [fd00::2]:80", "fd02::/64"),
    };
    let with = |change: &dyn Fn(&mut ServicePort)| {
        let mut port = port(vip, 80, two);
        change(&mut port);
        port
    };
    let (tcp, udp, sctp) = (Protocol::Tcp, Protocol::Udp, Protocol::Sctp);
    add(&mut table, "ns/plain", tcp, with(&|_| {}));
    add(&mut table, "ns/sig", sctp, with(&|port| port.port = 81));
    let sticky = with(&|port| {
        port.port = 82;
        port.affinity = Some(Duration::from_secs(10_800));
    });
    add(&mut table, "ns/sticky:a", udp, sticky);
    let balanced = with(&|port| {
        port.port = 83;
        port.node_port = Some(30083);
        port.health_check_port = Some(31083);
        port.load_balancer_ips = vec![other.parse().unwrap()];
        port.source_ranges = Some(vec![range.parse().unwrap()]);
        port.external_policy = TrafficPolicy::Local;
    });
    add(&mut table, "ns/balanced", tcp, balanced);
    let empty = with(&|port| {
        port.port = 84;
        port.node_port = Some(30084);
        (port.cluster, port.local) = Default::default();
    });
    add(&mut table, "ns/empty", tcp, empty);
    let elsewhere = with(&|port| {
        port.port = 85;
        port.external_ips = vec![other.parse().unwrap()];
        port.internal_policy = TrafficPolicy::Local;
        port.external_policy = TrafficPolicy::Local;
        port.local.clear();
    });
    add(&mut table, "ns/elsewhere", tcp, elsewhere);
    table
}

fn everything(table: &ForwardingTable) -> BTreeSet<std::sync::Arc<ServicePortName>> {
    table.iter().map(|(name, _)| name.clone()).collect()
}

/// A hint like the kubelet's decides which variant is used.
fn hint(programs: &str) {
    run(&format!("{programs} -t mangle -N KUBE-IPTABLES-HINT"));
}

fn listed(programs: &str) -> Listing {
    Listing::parse(&run(&format!("{programs}-save")))
}

#[test]
fn the_listing_is_what_was_compiled() {
    laboratory(|| {
        let variants = [
            ("iptables-nft", IpFamily::V4),
            ("ip6tables-nft", IpFamily::V6),
            ("iptables-legacy", IpFamily::V4),
            ("ip6tables-legacy", IpFamily::V6),
        ];
        for (programs, family) in variants {
            hint(programs);
            let table = table(family);
            let mut plane = IptablesPlane::open(family);
            let first = plane.commit(&table, everything(&table)).unwrap();
            assert!(first.whole && first.operations > 0);
            let compiled = Listing::parse(&compile(&table).to_string());
            let found = listed(programs);
            for (key, rules) in &compiled.chains {
                assert_eq!(found.chains.get(key), Some(rules), "{programs} {key:?}");
            }
            // A successor finds everything as it should be.
            let (_, nothing) = Layout::adopt(&table, &found);
            assert!(nothing.is_empty(), "{programs}: {nothing}");
            let again = IptablesPlane::open(family).commit(&table, Default::default()).unwrap();
            assert_eq!(again.operations, 0, "{programs}");

            plane.remove(&Kept::nothing()).unwrap();
            let left = run(&format!("{programs}-save | grep KUBE | grep -v HINT; true"));
            assert_eq!(left, "", "{programs}");
            run(&format!("{programs} -t mangle -X KUBE-IPTABLES-HINT"));
        }
    });
}

#[test]
fn the_listing_of_the_tutorial() {
    laboratory(|| {
        let mut table = ForwardingTable::new(IpFamily::V4, &node_network());
        let targets = "10.208.67.129:80 10.208.67.130:80 10.42.234.135:80";
        let nginx = port("172.16.73.164", 80, targets);
        add(&mut table, "week/nginx-svc:nginx", Protocol::Tcp, nginx);
        IptablesPlane::open(IpFamily::V4).commit(&table, Default::default()).unwrap();
        let by_address = r#"-A KUBE-SERVICES -d 172.16.73.164/32 -p tcp -m comment --comment "week/nginx-svc:nginx cluster IP" -m tcp --dport 80 -j KUBE-SVC-4LRRYOSSZE5QDVLA
-A KUBE-SVC-4LRRYOSSZE5QDVLA ! -s 10.0.0.0/8 -d 172.16.73.164/32 -p tcp -m comment --comment "week/nginx-svc:nginx cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ"#;
        assert_eq!(run("iptables-save | grep 172.16.73.164"), by_address);
        let by_chain = r#"-A KUBE-SVC-4LRRYOSSZE5QDVLA -m comment --comment "week/nginx-svc:nginx -> 10.208.67.129:80" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-S2NHQD4JFZO6ZT3O
-A KUBE-SVC-4LRRYOSSZE5QDVLA -m comment --comment "week/nginx-svc:nginx -> 10.208.67.130:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-WCKBX4BRVWPAVTTD
-A KUBE-SVC-4LRRYOSSZE5QDVLA -m comment --comment "week/nginx-svc:nginx -> 10.42.234.135:80" -j KUBE-SEP-2ELJFQOAS5FHEUHZ"#;
        let found = run("iptables-save | grep KUBE-SVC-4LRRYOSSZE5QDVLA | grep -e '->'");
        assert_eq!(found, by_chain);
        assert!(run("iptables -t nat -L KUBE-SERVICES | grep 172.16.73.164").contains("KUBE-SVC"));
    });
}

#[test]
fn somebody_elses_rules_stay_and_ours_come_back() {
    laboratory(|| {
        run("iptables-nft -A INPUT -s 10.99.0.0/16 -j DROP");
        let table = table(IpFamily::V4);
        let mut plane = IptablesPlane::open(IpFamily::V4);
        plane.commit(&table, Default::default()).unwrap();
        let whole = listed("iptables-nft");
        assert!(plane.check().unwrap(), "nobody has done anything");
        for flush in [
            "iptables-nft -t nat -F; iptables-nft -t nat -X",
            "iptables-nft -t nat -F KUBE-SERVICES",
            "iptables-nft -t nat -D POSTROUTING 1",
            "nft flush ruleset",
        ] {
            run(flush);
            run(
                "iptables-nft -C INPUT -s 10.99.0.0/16 -j DROP 2>/dev/null || iptables-nft -A INPUT -s 10.99.0.0/16 -j DROP",
            );
            assert!(!plane.check().unwrap(), "{flush} must be noticed");
            plane.commit(&table, Default::default()).unwrap();
            assert_eq!(listed("iptables-nft"), whole, "{flush} must be healed");
        }
        plane.remove(&Kept::nothing()).unwrap();
        assert_eq!(run("iptables-nft -S INPUT | tail -1"), "-A INPUT -s 10.99.0.0/16 -j DROP");
    });
}

/// What somebody destroys while we write is noticed at the next look, not seconds later.
#[test]
fn damage_beside_a_commit_is_noticed() {
    laboratory(|| {
        let mut table = table(IpFamily::V4);
        let mut plane = IptablesPlane::open(IpFamily::V4);
        plane.commit(&table, Default::default()).unwrap();
        assert!(plane.check().unwrap(), "our own commits are no damage");
        run("iptables-nft -t nat -D POSTROUTING 1");
        let name = "default/another:http";
        add(&mut table, name, Protocol::Tcp, port("10.96.0.77", 80, "10.0.0.7:80"));
        let changed = table.iter().map(|(name, _)| name.clone()).collect();
        plane.commit(&table, changed).unwrap();
        assert!(!plane.check().unwrap(), "a jump was deleted just before the commit");
        plane.commit(&table, Default::default()).unwrap();
        assert!(plane.check().unwrap(), "healed, and nobody has done anything since");
    });
}

/// The whole proxy, when somebody flushes the tables: the nft variant shows that at once, the
/// legacy one has to be looked at every now and then.
#[test]
fn a_flush_is_healed() {
    let cases = [
        ("nft", "iptables-nft -t nat -F"),
        ("nft", "iptables-nft -F; iptables-nft -t nat -F; iptables-nft -t nat -X"),
        ("legacy", "iptables-legacy -t nat -F"),
    ];
    laboratory(|| {
        for (variant, damage) in cases {
            // As the kubelet says which variant to use.
            run(&format!("iptables-{variant} -t mangle -N KUBE-IPTABLES-HINT"));
            heals(&format!("iptables-{variant}"), damage);
            run(&format!("iptables-{variant} -t mangle -X KUBE-IPTABLES-HINT"));
        }
    });
}

fn heals(program: &str, damage: &str) {
    const LIMIT: Duration = Duration::from_secs(20);
    let cluster = FakeCluster::default();
    let service = json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"clusterIPs": ["10.96.0.20"], "ports": [{"port": 80, "protocol": "TCP"}]},
    });
    cluster.put("/api/v1/services", service);
    Runtime::new().unwrap().block_on(async {
        let families = vec![IpFamily::V4];
        let config = Config { mode: ProxyMode::Iptables, families, ..Config::default() };
        let outputs = Outputs::default();
        let mut programmed = outputs.programmed.subscribe();
        let stop = CancellationToken::new();
        let task = tokio::spawn(agent::run(cluster.client(), config, outputs, stop.clone()));
        programmed.wait_for(|state| state.commits > 0).await.unwrap();
        let rules = listed(program);
        let commits = programmed.borrow().commits;
        run(damage);
        let started = Instant::now();
        // It may be healed before we look; somebody has written again, then.
        while listed(program) != rules || programmed.borrow().commits == commits {
            let (now, late) = (listed(program), started.elapsed() >= LIMIT);
            let changes = programmed.borrow().commits - commits;
            assert!(
                !late,
                "`{damage}`, {changes} commits later:\n{now:#?}\nbut it was\n{rules:#?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        eprintln!("`{damage}` healed after {:?}", started.elapsed());
        stop.cancel();
        task.await.unwrap().unwrap();
    });
    agent::cleanup().unwrap();
}
