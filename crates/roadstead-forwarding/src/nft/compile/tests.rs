//! The printed program of a small cluster, as a golden file.

use roadstead_api::key::ObjectKey;

use super::*;
use crate::select::TrafficPolicy;
use crate::service::{IpFamily, Protocol, ServicePort};

fn add(table: &mut ForwardingTable, name: &str, protocol: Protocol, frontend: &str, targets: &str) {
    let socket: std::net::SocketAddr = frontend.parse().unwrap();
    let target = |word: &str| {
        let here = word.strip_prefix("here!");
        let socket: std::net::SocketAddr = here.unwrap_or(word).parse().unwrap();
        let place = if here.is_some() { Place::Here } else { Place::Elsewhere };
        Target { address: socket.ip(), port: socket.port(), place }
    };
    let (targets, internal_policy) = match targets {
        "reject" => (vec![], TrafficPolicy::Cluster),
        "drop" => (vec![target("10.244.9.9:80")], TrafficPolicy::Local),
        _ => (targets.split(' ').map(target).collect(), TrafficPolicy::Cluster),
    };
    let port = ServicePort {
        port: socket.port(),
        cluster_ips: vec![socket.ip()],
        internal_policy,
        cluster: targets,
        ..ServicePort::default()
    };
    let name = ServicePortName {
        namespace: "default".into(),
        name: name.into(),
        port: "main".into(),
        protocol,
    };
    let key = ObjectKey::new("default", &*name.name);
    table.replace(&key, vec![(name, port)]);
}

fn around(network: &str) -> Surroundings {
    let detect_local = DetectLocal::Networks(vec![network.parse().unwrap()]);
    Surroundings { detect_local, ..Surroundings::default() }
}

#[test]
fn a_small_cluster() {
    let mut table = ForwardingTable::new(IpFamily::V4, &around("10.244.0.0/16"));
    let web = "10.244.1.10:8080 here!10.244.0.2:8080 10.244.1.9:8080";
    add(&mut table, "web", Protocol::Tcp, "10.96.0.20:80", web);
    add(&mut table, "dns", Protocol::Udp, "10.96.0.10:53", "here!10.244.0.3:53");
    add(&mut table, "empty", Protocol::Tcp, "10.96.0.30:80", "reject");
    add(&mut table, "elsewhere", Protocol::Tcp, "10.96.0.31:80", "drop");
    insta::assert_snapshot!(compile(&table));
}

#[test]
fn the_other_family() {
    let mut table = ForwardingTable::new(IpFamily::V6, &around("fd00:244::/48"));
    add(
        &mut table,
        "web",
        Protocol::Tcp,
        "[fd00:96::20]:80",
        "[fd00:244::2]:8080 here![fd00:244::3]:8080",
    );
    insta::assert_snapshot!(compile(&table));
}
