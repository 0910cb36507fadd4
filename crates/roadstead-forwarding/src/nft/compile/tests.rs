//! The printed program of a small cluster, as a golden file.

use std::net::SocketAddr;
use std::time::Duration;

use roadstead_api::key::ObjectKey;

use super::*;
use crate::service::{IpFamily, Protocol};
use crate::surroundings::DetectLocal;

/// `tcp 10.96.0.20:80 >10.244.0.2:8080 np:30080 …`: a service port, as in the tests of the table.
fn add(table: &mut ForwardingTable, name: &str, text: &str) {
    let mut words = text.split_whitespace();
    let protocol = Protocol::parse(words.next().map(str::to_uppercase).as_deref()).unwrap();
    let frontend: SocketAddr = words.next().unwrap().parse().unwrap();
    let mut port = ServicePort {
        port: frontend.port(),
        cluster_ips: vec![frontend.ip()],
        ..ServicePort::default()
    };
    for word in words {
        match word.split_once(':').unwrap_or((word, "")) {
            ("np", number) => port.node_port = number.parse().ok(),
            ("lb", address) => port.load_balancer_ips.push(address.parse().unwrap()),
            ("from", range) => {
                port.source_ranges.get_or_insert_default().push(range.parse().unwrap());
            }
            ("local", _) => port.external_policy = TrafficPolicy::Local,
            ("inside", _) => port.internal_policy = TrafficPolicy::Local,
            ("sticky", _) => port.affinity = Some(Duration::from_secs(10_800)),
            _ => port.cluster = word[1..].split(',').map(target).collect(),
        }
    }
    let here = port.cluster.iter().filter(|target| target.place == Place::Here);
    port.local = if port.uses_local() { here.copied().collect() } else { Vec::new() };
    let name = ServicePortName {
        namespace: "default".into(),
        name: name.into(),
        port: "main".into(),
        protocol,
    };
    table.replace(&ObjectKey::new("default", &*name.name), vec![(name, port)]);
}

fn target(word: &str) -> Target {
    let here = word.strip_prefix("here!");
    let socket: SocketAddr = here.unwrap_or(word).parse().unwrap();
    let place = if here.is_some() { Place::Here } else { Place::Elsewhere };
    Target { address: socket.ip(), port: socket.port(), place }
}

fn around(network: &str) -> Surroundings {
    let detect_local = DetectLocal::Networks(vec![network.parse().unwrap()]);
    Surroundings { detect_local, ..Surroundings::default() }
}

#[test]
fn a_small_cluster() {
    let mut table = ForwardingTable::new(IpFamily::V4, &around("10.244.0.0/16"));
    let web = "tcp 10.96.0.20:80 >10.244.1.10:8080,here!10.244.0.2:8080,10.244.1.9:8080";
    add(&mut table, "web", web);
    add(&mut table, "dns", "udp 10.96.0.10:53 >here!10.244.0.3:53");
    add(&mut table, "empty", "tcp 10.96.0.30:80");
    add(&mut table, "elsewhere", "tcp 10.96.0.31:80 >10.244.1.9:80 inside");
    insta::assert_snapshot!(compile(&table));
}

#[test]
fn every_kind_of_service() {
    let surroundings = Surroundings {
        node_address: Some([192, 168, 7, 1].into()),
        node_ports: NodePorts::On([[192, 168, 7, 1].into()].into()),
        service_networks: vec!["10.96.0.0/12".parse().unwrap()],
        masquerade_egress: true,
        ..around("10.244.0.0/16")
    };
    let mut table = ForwardingTable::new(IpFamily::V4, &surroundings);
    let both = ">10.244.1.9:8080,here!10.244.0.2:8080";
    add(&mut table, "node", &format!("tcp 10.96.0.1:80 {both} np:30080"));
    add(&mut table, "own", &format!("tcp 10.96.0.2:80 {both} np:30081 lb:5.5.5.5 local"));
    add(
        &mut table,
        "fenced",
        "udp 10.96.0.3:53 >here!10.244.0.3:53 lb:5.5.5.6 from:192.168.7.0/24",
    );
    add(&mut table, "sticky", &format!("tcp 10.96.0.4:80 {both} np:30082 sticky local"));
    add(&mut table, "empty", "tcp 10.96.0.5:80 np:30083 lb:5.5.5.7");
    insta::assert_snapshot!(compile(&table));
}

#[test]
fn the_other_family() {
    let mut table = ForwardingTable::new(IpFamily::V6, &around("fd00:244::/48"));
    let web = "tcp [fd00:96::20]:80 >[fd00:244::2]:8080,here![fd00:244::3]:8080 np:30080";
    add(&mut table, "web", web);
    insta::assert_snapshot!(compile(&table));
}
