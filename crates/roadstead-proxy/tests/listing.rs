//! What we write over netlink is what nft would have made of the printed program.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::nft::compile::compile;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork, NodePorts};
use roadstead_forwarding::select::TrafficPolicy;
use roadstead_forwarding::service::{
    IpFamily, Locality, Protocol, ServicePort, ServicePortName, Target,
};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_proxy::nft::NftPlane;
use roadstead_testkit::netns::{laboratory, run};

fn table(family: IpFamily, detect_local: DetectLocal, node_ports: NodePorts) -> ForwardingTable {
    let address = |net: u8, host: u8| -> IpAddr {
        match family {
            IpFamily::V4 => [10, net, 0, host].into(),
            IpFamily::V6 => [0xfd00, net.into(), 0, 0, 0, 0, 0, host.into()].into(),
        }
    };
    let node_network = NodeNetwork {
        detect_local,
        node_ports,
        node_address: Some(address(150, 1)),
        service_networks: vec![IpNet::new(address(96, 0), 24).unwrap()],
        masquerade_egress: true,
        ..NodeNetwork::default()
    };
    let mut table = ForwardingTable::new(family, &node_network);
    let target = |host: u8| Target {
        address: address(244, host),
        port: 8080,
        locality: if host == 1 { Locality::Here } else { Locality::Elsewhere },
    };
    let targets = |hosts: std::ops::RangeInclusive<u8>| hosts.map(target).collect::<Vec<_>>();
    let mut number = 0;
    let mut add = |name: &str, protocol, port: ServicePort| {
        let name = ServicePortName {
            namespace: "default".into(),
            name: name.into(),
            port: String::new(),
            protocol,
        };
        number += 1;
        let mut port = ServicePort { port: 80, cluster_ips: vec![address(96, number)], ..port };
        if port.uses_local() {
            port.local =
                port.cluster.iter().filter(|t| t.locality == Locality::Here).copied().collect();
        }
        let key = ObjectKey::new("default", name.name.clone());
        table.replace(&key, vec![(name, port)]);
    };
    let plain = |cluster| ServicePort { cluster, ..ServicePort::default() };
    let outside = |cluster, number: u8, external_policy| ServicePort {
        node_port: Some(30_000 + u16::from(number)),
        load_balancer_ips: vec![address(97, number)],
        external_ips: vec![address(98, number)],
        source_ranges: Some(vec![IpNet::new(address(150, 0), 24).unwrap()]),
        external_policy,
        ..plain(cluster)
    };
    let (any, local) = (TrafficPolicy::Cluster, TrafficPolicy::Local);
    let sticky = Some(Duration::from_secs(10_800));
    add("web", Protocol::Tcp, plain(targets(1..=17)));
    add("dns", Protocol::Udp, plain(targets(1..=1)));
    add("sig", Protocol::Sctp, plain(targets(1..=2)));
    add("none", Protocol::Tcp, plain(vec![]));
    add("far", Protocol::Tcp, ServicePort { internal_policy: local, ..plain(targets(2..=2)) });
    add(&"n".repeat(200), Protocol::Tcp, plain(vec![]));
    add("out", Protocol::Tcp, outside(targets(1..=3), 1, any));
    add("own", Protocol::Udp, outside(targets(1..=3), 2, local));
    add("away", Protocol::Tcp, outside(targets(2..=3), 3, local));
    add("gone", Protocol::Tcp, outside(vec![], 4, local));
    add("stay", Protocol::Tcp, ServicePort { affinity: sticky, ..outside(targets(1..=3), 5, any) });
    add(
        "home",
        Protocol::Udp,
        ServicePort { affinity: sticky, ..outside(targets(1..=3), 6, local) },
    );
    let long = ServicePort { affinity: sticky, ..plain(targets(1..=2)) };
    add(&"\u{e9}x".repeat(150), Protocol::Tcp, long);
    table
}

/// The listing, but for the two ways of declaring slots and writing their numbers.
fn listing() -> String {
    let mut lines = Vec::new();
    let mut in_endpoints = false;
    for line in run("nft --numeric-protocol list ruleset").lines() {
        in_endpoints =
            line.contains("endpoints {") && line.contains("map") || (in_endpoints && line != "\t}");
        if in_endpoints && line.contains("type") {
            continue;
        }
        lines.push(if in_endpoints { slots_in_decimal(line) } else { line.to_owned() });
    }
    // Chains are listed in the order in which they were made, which does not matter.
    let text = lines.join("\n");
    let mut blocks: Vec<_> = text.split("\n\n").collect();
    blocks.sort_unstable();
    blocks.join("\n\n")
}

fn slots_in_decimal(line: &str) -> String {
    let word = |word: &str| match word.strip_prefix("0x").map(|hex| u32::from_str_radix(hex, 16)) {
        Some(Ok(number)) => number.to_string(),
        _ => word.to_owned(),
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn netlink_and_text_make_the_same_rules() {
    laboratory(|| {
        let networks = |texts: &[&str]| {
            DetectLocal::Networks(texts.iter().map(|text| text.parse().unwrap()).collect())
        };
        let every = |loopback| NodePorts::Every { loopback };
        let own = |address: &str| NodePorts::On([address.parse().unwrap()].into());
        let bridge = || DetectLocal::Bridge("bridge0".into());
        let prefix = || DetectLocal::InterfacePrefix("veth".into());
        let worlds = [
            (IpFamily::V4, networks(&["10.244.0.0/16", "10.1.16.0/20"]), every(false)),
            (IpFamily::V6, networks(&["fd00:244::/48"]), every(false)),
            (IpFamily::V4, bridge(), every(true)),
            (IpFamily::V4, prefix(), own("10.150.0.1")),
            (IpFamily::V6, prefix(), own("fd00:96::1")),
            (IpFamily::V4, DetectLocal::Unknown, every(false)),
        ];
        for (family, detect_local, node_ports) in worlds {
            let table = table(family, detect_local, node_ports);
            fs::write("/run/program.nft", compile(&table).to_string()).unwrap();
            run("nft -f /run/program.nft");
            let from_text = listing();
            run("nft flush ruleset");
            NftPlane::open(family).unwrap().commit(&table, Default::default()).unwrap();
            assert_eq!(listing(), from_text, "{family:?} {:?}", table.node_network());
            run("nft -j list ruleset");
            run("nft flush ruleset");
        }
    });
}

/// The chains that see every packet before it is translated are there only while a Service has
/// source ranges.
#[test]
fn fences_come_and_go() {
    laboratory(|| {
        let node_ports = NodePorts::On([[10, 150, 0, 1].into()].into());
        let mut table = table(IpFamily::V4, DetectLocal::Unknown, node_ports);
        let mut plane = NftPlane::open(IpFamily::V4).unwrap();
        let chains = || run("nft list chains ip | grep -c pre-dnat || true");
        plane.commit(&table, Default::default()).unwrap();
        assert_eq!(chains(), "2");
        let fenced: Vec<_> =
            table.iter().filter(|(_, port)| port.source_ranges.is_some()).collect();
        let fenced: Vec<_> = fenced.into_iter().map(|(n, p)| (n.clone(), p.clone())).collect();
        for (is_open, want) in [(true, "0"), (false, "2"), (true, "0")] {
            for (name, port) in &fenced {
                let ranges = port.source_ranges.clone().filter(|_| !is_open);
                let port = ServicePort { source_ranges: ranges, ..port.clone() };
                let key = ObjectKey::new(name.namespace.clone(), name.name.clone());
                table.replace(&key, vec![((**name).clone(), port)]);
            }
            let changed = fenced.iter().map(|(name, _)| name.clone()).collect();
            plane.commit(&table, changed).unwrap();
            assert_eq!(chains(), want, "everybody may call: {is_open}");
        }
    });
}
