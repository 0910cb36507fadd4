//! The printed program of a small cluster, as a golden file.

use roadstead_api::key::ObjectKey;

use super::*;
use crate::service::{IpFamily, Protocol, ServicePort};

fn add(table: &mut ForwardingTable, name: &str, protocol: Protocol, frontend: &str, targets: &str) {
    let socket: std::net::SocketAddr = frontend.parse().unwrap();
    let target = |word: &str| {
        let here = word.strip_prefix("here!");
        let socket: std::net::SocketAddr = here.unwrap_or(word).parse().unwrap();
        let place = if here.is_some() { Place::Here } else { Place::Elsewhere };
        Target { address: socket.ip(), port: socket.port(), place }
    };
    let internal = match targets {
        "reject" => Handling::Reject,
        "drop" => Handling::Drop,
        _ => Handling::Forward(targets.split(' ').map(target).collect()),
    };
    let frontends = vec![Frontend { address: socket.ip(), protocol, port: socket.port() }];
    let name = ServicePortName {
        namespace: "default".into(),
        name: name.into(),
        port: "main".into(),
        protocol,
    };
    let key = ObjectKey::new("default", &*name.name);
    table.replace(&key, vec![(name, ServicePort { frontends, internal })]);
}

#[test]
fn a_small_cluster() {
    let mut table = ForwardingTable::new(IpFamily::V4, &["10.244.0.0/16".parse().unwrap()]);
    let web = "10.244.1.10:8080 here!10.244.0.2:8080 10.244.1.9:8080";
    add(&mut table, "web", Protocol::Tcp, "10.96.0.20:80", web);
    add(&mut table, "dns", Protocol::Udp, "10.96.0.10:53", "here!10.244.0.3:53");
    add(&mut table, "empty", Protocol::Tcp, "10.96.0.30:80", "reject");
    add(&mut table, "elsewhere", Protocol::Tcp, "10.96.0.31:80", "drop");
    insta::assert_snapshot!(compile(&table));
}

#[test]
fn the_other_family() {
    let mut table = ForwardingTable::new(IpFamily::V6, &["fd00:244::/48".parse().unwrap()]);
    add(
        &mut table,
        "web",
        Protocol::Tcp,
        "[fd00:96::20]:80",
        "[fd00:244::2]:8080 here![fd00:244::3]:8080",
    );
    insta::assert_snapshot!(compile(&table));
}
