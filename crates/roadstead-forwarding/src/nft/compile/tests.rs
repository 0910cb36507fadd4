//! The printed program of a small cluster, as a golden file.

use std::net::SocketAddr;
use std::time::Duration;

use roadstead_api::key::ObjectKey;

use super::*;
use crate::nft::model::{Is, NODE_PORT_KEY, Rule, Statement};
use crate::node_network::DetectLocal;
use crate::service::{IpFamily, Protocol};

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
    let here = port.cluster.iter().filter(|target| target.locality == Locality::Here);
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
    let locality = if here.is_some() { Locality::Here } else { Locality::Elsewhere };
    Target { address: socket.ip(), port: socket.port(), locality }
}

fn around(network: &str) -> NodeNetwork {
    let detect_local = DetectLocal::Networks(vec![network.parse().unwrap()]);
    NodeNetwork { detect_local, ..NodeNetwork::default() }
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
    let node_network = NodeNetwork {
        node_address: Some([192, 168, 7, 1].into()),
        node_ports: NodePorts::On([[192, 168, 7, 1].into()].into()),
        service_networks: vec!["10.96.0.0/12".parse().unwrap()],
        masquerade_egress: true,
        ..around("10.244.0.0/16")
    };
    let mut table = ForwardingTable::new(IpFamily::V4, &node_network);
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
fn node_ports_on_every_address() {
    let node_network = NodeNetwork {
        node_address: Some([192, 168, 7, 1].into()),
        node_ports: NodePorts::Every { loopback: true },
        service_networks: vec!["10.96.0.0/12".parse().unwrap()],
        masquerade_egress: true,
        ..around("10.244.0.0/16")
    };
    let mut table = ForwardingTable::new(IpFamily::V4, &node_network);
    add(&mut table, "plain", "tcp 10.96.0.1:80 >10.244.1.9:8080");
    add(&mut table, "node", "tcp 10.96.0.2:80 >10.244.1.9:8080 np:30080");
    add(&mut table, "sticky", "tcp 10.96.0.4:80 >10.244.1.9:8080 np:30082 sticky");
    add(&mut table, "empty", "tcp 10.96.0.5:80 np:30083");
    insta::assert_snapshot!(compile(&table));
}

/// Whoever is not for a node port is not asked about: looking up a route costs more than all else.
#[test]
fn whose_a_destination_is_is_asked_last() {
    for loopback in [true, false] {
        let node_ports = NodePorts::Every { loopback };
        let node_network = NodeNetwork { node_ports, ..around("10.244.0.0/16") };
        let program = compile(&ForwardingTable::new(IpFamily::V4, &node_network));
        let rules: Vec<_> = program.chains.values().flat_map(|chain| &chain.rules).collect();
        let asks = |rule: &&&Rule| rule.contains(&Statement::DestinationIsOurs);
        assert!(rules.iter().any(|rule| asks(&rule)), "{program}");
        let by_port = |first: &Statement| match first {
            Statement::Member(fields, Is::In, _) => *fields == NODE_PORT_KEY,
            _ => false,
        };
        let at_once = rules.iter().filter(asks).find(|rule| !by_port(&rule[0]));
        assert_eq!(at_once, None, "{program}");
    }
}

#[test]
fn the_other_family() {
    let mut table = ForwardingTable::new(IpFamily::V6, &around("fd00:244::/48"));
    let web = "tcp [fd00:96::20]:80 >[fd00:244::2]:8080,here![fd00:244::3]:8080 np:30080";
    add(&mut table, "web", web);
    insta::assert_snapshot!(compile(&table));
}
