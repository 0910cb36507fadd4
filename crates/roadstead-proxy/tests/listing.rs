//! What we write over netlink is what nft would have made of the printed program.

use std::fs;
use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::nft::compile::compile;
use roadstead_forwarding::select::TrafficPolicy;
use roadstead_forwarding::service::{
    IpFamily, Place, Protocol, ServicePort, ServicePortName, Target,
};
use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_proxy::nft::NftPlane;
use roadstead_testkit::netns::{laboratory, run};

fn table(family: IpFamily) -> ForwardingTable {
    let networks: &[&str] = match family {
        IpFamily::V4 => &["10.244.0.0/16", "10.1.16.0/20"],
        IpFamily::V6 => &["fd00:244::/48"],
    };
    let address = |net: u8, host: u8| -> IpAddr {
        match family {
            IpFamily::V4 => [10, net, 0, host].into(),
            IpFamily::V6 => [0xfd00, net.into(), 0, 0, 0, 0, 0, host.into()].into(),
        }
    };
    let networks: Vec<IpNet> = networks.iter().map(|text| text.parse().unwrap()).collect();
    let detect_local = DetectLocal::Networks(networks);
    let surroundings = Surroundings { detect_local, ..Surroundings::default() };
    let mut table = ForwardingTable::new(family, &surroundings);
    let target = |host: u8| Target {
        address: address(244, host),
        port: 8080,
        place: if host == 1 { Place::Here } else { Place::Elsewhere },
    };
    let mut add = |name: &str, number: u8, protocol, cluster: Vec<Target>, policy| {
        let name = ServicePortName {
            namespace: "default".into(),
            name: name.into(),
            port: String::new(),
            protocol,
        };
        let port = ServicePort {
            port: 80,
            cluster_ips: vec![address(96, number)],
            internal_policy: policy,
            cluster,
            ..ServicePort::default()
        };
        let key = ObjectKey::new("default", name.name.clone());
        table.replace(&key, vec![(name, port)]);
    };
    let (any, local) = (TrafficPolicy::Cluster, TrafficPolicy::Local);
    add("web", 1, Protocol::Tcp, (1..=17).map(target).collect(), any);
    add("dns", 2, Protocol::Udp, vec![target(1)], any);
    add("sig", 3, Protocol::Sctp, vec![target(1), target(2)], any);
    add("none", 4, Protocol::Tcp, vec![], any);
    add("far", 5, Protocol::Tcp, vec![target(2)], local);
    add(&"n".repeat(200), 6, Protocol::Tcp, vec![], any);
    table
}

/// The listing, but for the two ways of declaring slots and writing their numbers.
fn listing() -> String {
    let mut lines = Vec::new();
    let mut in_endpoints = false;
    for line in run("nft --numeric-protocol list ruleset").lines() {
        in_endpoints = line.contains("map endpoints") || (in_endpoints && line != "\t}");
        if in_endpoints && line.contains("type") {
            continue;
        }
        lines.push(if in_endpoints { slots_in_decimal(line) } else { line.to_owned() });
    }
    lines.join("\n")
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
        for family in [IpFamily::V4, IpFamily::V6] {
            let table = table(family);
            fs::write("/run/program.nft", compile(&table).to_string()).unwrap();
            run("nft -f /run/program.nft");
            let from_text = listing();
            run("nft flush ruleset");
            NftPlane::open().unwrap().commit(&table, Default::default()).unwrap();
            assert_eq!(listing(), from_text, "{family:?}");
            run("nft -j list ruleset");
            run("nft flush ruleset");
        }
    });
}
