//! The rules of small clusters: the listing of the tutorial, and golden files.

use std::time::Duration;

use roadstead_api::key::ObjectKey;

use super::*;
use crate::iptables::print;
use crate::select::TrafficPolicy;
use crate::service::{Locality, Protocol, ServicePort, ServicePortName, Target};

fn target(text: &str) -> Target {
    let here = text.strip_prefix("here!");
    let socket: std::net::SocketAddr = here.unwrap_or(text).parse().unwrap();
    let locality = if here.is_some() { Locality::Here } else { Locality::Elsewhere };
    Target { address: socket.ip(), port: socket.port(), locality }
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
    let cluster: Vec<_> = targets.split_whitespace().map(target).collect();
    ServicePort {
        port: number,
        cluster_ips: vec![address.parse().unwrap()],
        local: cluster.iter().filter(|t| t.locality == Locality::Here).copied().collect(),
        cluster,
        ..ServicePort::default()
    }
}

fn node_network(networks: &[&str]) -> NodeNetwork {
    let networks = networks.iter().map(|text| text.parse().unwrap()).collect();
    NodeNetwork { detect_local: DetectLocal::Networks(networks), ..NodeNetwork::default() }
}

/// What `iptables-save | grep` shows.
fn grep(program: &Program, word: &str) -> Vec<String> {
    let text = program.to_string();
    let found = |line: &&str| line.starts_with("-A") && line.contains(word);
    text.lines().filter(found).map(str::to_owned).collect()
}

#[test]
fn names_are_never_rules() {
    let mut table = ForwardingTable::new(IpFamily::V4, &node_network(&[]));
    let plain = compile(&table).to_string().lines().count();
    let name = "ns/web\n-A INPUT -j DROP\r\nCOMMIT\0\x1b[2J:http";
    add(&mut table, name, Protocol::Tcp, port("10.96.0.1", 80, ""));
    let text = compile(&table).to_string();
    assert_eq!(text.lines().count(), plain + 1, "{text}");
    assert!(text.contains("\"ns/web-A INPUT -j DROPCOMMIT[2J:http has no endpoints\""), "{text}");
}

#[test]
fn packets_that_fit_no_connection() {
    let cases = [
        ((true, false), "-m conntrack --ctstate INVALID -j DROP"),
        (
            (true, true),
            "-m conntrack --ctstate INVALID -m nfacct --nfacct-name \
             ct_state_invalid_dropped_pkts -j DROP",
        ),
        ((false, true), ""),
    ];
    for ((drop_invalid, named_counters), want) in cases {
        let around = NodeNetwork { drop_invalid, named_counters, ..NodeNetwork::default() };
        let program = compile(&ForwardingTable::new(IpFamily::V4, &around));
        let found = grep(&program, "INVALID").join(" ");
        assert_eq!(found.strip_prefix("-A KUBE-FORWARD ").unwrap_or_default(), want);
    }
}

#[test]
fn the_listing_of_the_tutorial() {
    let mut table = ForwardingTable::new(IpFamily::V4, &node_network(&["10.0.0.0/8"]));
    let targets = "10.208.67.129:80 10.208.67.130:80 10.42.234.135:80";
    let nginx = port("172.16.73.164", 80, targets);
    add(&mut table, "week/nginx-svc:nginx", Protocol::Tcp, nginx);
    let program = compile(&table);
    let by_address = [
        r#"-A KUBE-SERVICES -d 172.16.73.164/32 -p tcp -m comment --comment "week/nginx-svc:nginx cluster IP" -m tcp --dport 80 -j KUBE-SVC-4LRRYOSSZE5QDVLA"#,
        r#"-A KUBE-SVC-4LRRYOSSZE5QDVLA ! -s 10.0.0.0/8 -d 172.16.73.164/32 -p tcp -m comment --comment "week/nginx-svc:nginx cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ"#,
    ];
    assert_eq!(grep(&program, "172.16.73.164"), by_address);
    let by_chain = [
        by_address[0],
        by_address[1],
        r#"-A KUBE-SVC-4LRRYOSSZE5QDVLA -m comment --comment "week/nginx-svc:nginx -> 10.208.67.129:80" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-S2NHQD4JFZO6ZT3O"#,
        r#"-A KUBE-SVC-4LRRYOSSZE5QDVLA -m comment --comment "week/nginx-svc:nginx -> 10.208.67.130:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-WCKBX4BRVWPAVTTD"#,
        r#"-A KUBE-SVC-4LRRYOSSZE5QDVLA -m comment --comment "week/nginx-svc:nginx -> 10.42.234.135:80" -j KUBE-SEP-2ELJFQOAS5FHEUHZ"#,
    ];
    assert_eq!(grep(&program, "KUBE-SVC-4LRRYOSSZE5QDVLA"), by_chain);
}

/// A Service of every kind.
fn every_kind() -> ForwardingTable {
    let node_network = NodeNetwork {
        node_address: Some([192, 168, 0, 7].into()),
        ..node_network(&["10.244.0.0/16"])
    };
    let mut table = ForwardingTable::new(IpFamily::V4, &node_network);
    let two = "here!10.244.0.2:8080 10.244.1.3:8080";
    let address = |text: &str| vec![text.parse().unwrap()];
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    add(&mut table, "default/dns:dns", udp, port("10.96.0.10", 53, "10.244.1.9:53"));
    let sticky =
        ServicePort { affinity: Some(Duration::from_secs(10_800)), ..port("10.96.0.11", 80, two) };
    add(&mut table, "default/sticky", tcp, sticky);
    let balanced = ServicePort {
        node_port: Some(30080),
        health_check_port: Some(31000),
        load_balancer_ips: address("5.5.5.5"),
        source_ranges: Some(vec!["192.168.0.0/24".parse().unwrap()]),
        external_policy: TrafficPolicy::Local,
        ..port("10.96.0.12", 80, two)
    };
    add(&mut table, "default/balanced:http", tcp, balanced);
    let elsewhere = ServicePort {
        node_port: Some(30081),
        external_ips: address("6.6.6.6"),
        external_policy: TrafficPolicy::Local,
        internal_policy: TrafficPolicy::Local,
        ..port("10.96.0.13", 80, "10.244.1.3:8080")
    };
    add(&mut table, "default/elsewhere", tcp, elsewhere);
    let empty = ServicePort { node_port: Some(30082), ..port("10.96.0.14", 80, "") };
    add(&mut table, "default/empty", tcp, empty);
    table
}

/// Upstream's rules in upstream's order, but for where the first one leads.
#[test]
fn an_external_address_that_is_a_load_balancers_too() {
    let mut table = ForwardingTable::new(IpFamily::V4, &node_network(&[]));
    let ranges = ["203.0.113.0/25", "1.2.3.0/28", "203.0.113.0/25"];
    let both = |targets: &str| ServicePort {
        external_ips: vec![[1, 2, 3, 4].into()],
        load_balancer_ips: vec![[1, 2, 3, 4].into()],
        source_ranges: Some(ranges.map(|text| text.parse().unwrap()).into()),
        ..port("172.30.0.41", 80, targets)
    };
    add(&mut table, "namespace/svc0:8080", Protocol::Tcp, both("10.180.0.1:80"));
    let program = compile(&table);
    let rule = |chain: &str, from: &str, what: &str, to: &str| {
        format!(
            "-A {chain} {from}-d 1.2.3.4/32 -p tcp -m comment --comment \
             \"namespace/svc0:8080 {what}\" -m tcp --dport 80 -j {to}"
        )
    };
    let fence = "KUBE-FW-7S3BOWXDKQS3LONZ";
    let kept_out = format!("traffic not accepted by {fence}");
    let want = [
        rule("KUBE-SERVICES", "", "external IP", fence),
        rule("KUBE-SERVICES", "", "loadbalancer IP", fence),
        rule("KUBE-PROXY-FIREWALL", "", &kept_out, "DROP"),
    ];
    assert_eq!(grep(&program, "1.2.3.4/32"), want);
    let admitted: Vec<_> = grep(&program, &format!("-A {fence} -s"));
    let sources = admitted.iter().map(|rule| rule.split(' ').nth(3).unwrap());
    assert_eq!(sources.collect::<Vec<_>>(), ranges, "in the order given, and as often");
    // Without endpoints, those who may call are refused, and others are not.
    add(&mut table, "namespace/svc0:8080", Protocol::Tcp, both(""));
    let refused = format!(
        "{} --reject-with icmp-port-unreachable",
        rule("KUBE-EXTERNAL-SERVICES", "", "has no endpoints", "REJECT")
    );
    let mut want = vec![refused.clone(), refused];
    want.extend(
        ranges
            .map(|range| rule("KUBE-PROXY-FIREWALL", &format!("-s {range} "), &kept_out, "RETURN")),
    );
    want.push(rule("KUBE-PROXY-FIREWALL", "", &kept_out, "DROP"));
    assert_eq!(grep(&compile(&table), "1.2.3.4/32"), want);
}

#[test]
fn every_kind_of_service() {
    insta::assert_snapshot!(compile(&every_kind()));
}

/// What is there in IPv6 whether there are Services or not, and one Service: the firewall of strangers that call
/// 127.0.0.1 has no rule, but its chain and the jumps to it are always there, as upstream's.
#[test]
fn six() {
    let around = NodeNetwork {
        node_ports: NodePorts::Every { loopback: true },
        ..node_network(&["fd00:10:244::/56"])
    };
    let mut table = ForwardingTable::new(IpFamily::V6, &around);
    let web = ServicePort {
        node_port: Some(30080),
        ..port("fd00:10:96::1", 80, "here![fd00:10:244::2]:8080 [fd00:10:244:1::3]:8080")
    };
    add(&mut table, "default/web:http", Protocol::Tcp, web);
    let program = compile(&table);
    assert_eq!(
        grep(&program, "KUBE-FIREWALL"),
        ["-A OUTPUT -j KUBE-FIREWALL", "-A INPUT -j KUBE-FIREWALL"]
    );
    insta::assert_snapshot!(program);
}

#[test]
fn many_endpoints_have_no_comments() {
    let mut table = ForwardingTable::new(IpFamily::V4, &node_network(&["10.0.0.0/8"]));
    let targets: Vec<_> = (0..1001u32)
        .map(|n| std::net::SocketAddr::new((0x0a01_0000 + n).to_be_bytes().into(), 80).to_string())
        .collect();
    add(&mut table, "ns/few", Protocol::Tcp, port("10.96.0.1", 80, &targets[..1000].join(" ")));
    assert_eq!(grep(&compile(&table), "10.1.0.7:80\"").len(), 1);
    assert_eq!(grep(&compile(&table), "ns/few").len(), 2 + 3 * 1000);
    add(&mut table, "ns/one", Protocol::Tcp, port("10.96.0.2", 80, &targets[1000]));
    assert_eq!(grep(&compile(&table), "ns/few").len(), 2, "frontends keep theirs");
}

#[test]
fn ways_to_tell_pods_from_others() {
    let masquerade = |detect_local: DetectLocal, masquerade_all: bool| {
        let node_network = NodeNetwork { detect_local, masquerade_all, ..NodeNetwork::default() };
        let mut table = ForwardingTable::new(IpFamily::V4, &node_network);
        let web = ServicePort {
            external_policy: TrafficPolicy::Local,
            node_port: Some(30080),
            ..port("10.96.0.1", 80, "10.0.0.1:80")
        };
        add(&mut table, "ns/web", Protocol::Tcp, web);
        let program = compile(&table);
        let line = |chain: &str, word: &str| {
            grep(&program, chain).into_iter().find(|line| line.contains(word)).unwrap_or_default()
        };
        (line("-A KUBE-SVC", "KUBE-MARK-"), line("-A KUBE-EXT", "pod traffic"))
    };
    let networks = |texts: &[&str]| {
        DetectLocal::Networks(texts.iter().map(|text| text.parse().unwrap()).collect())
    };
    let cases = [
        ("a network", networks(&["10.0.0.0/8"]), "! -s 10.0.0.0/8", "-s 10.0.0.0/8"),
        ("a bridge", DetectLocal::Bridge("cbr0".into()), "! -i cbr0", "-i cbr0"),
        ("a prefix", DetectLocal::InterfacePrefix("veth".into()), "! -i veth+", "-i veth+"),
    ];
    for (name, detect, stranger, pod) in cases {
        let (marks, short_cut) = masquerade(detect, false);
        assert!(marks.contains(stranger) && short_cut.contains(pod), "{name}: {marks} {short_cut}");
    }
    assert_eq!(masquerade(DetectLocal::Unknown, false), Default::default(), "no way");
    let (everybody, _) = masquerade(DetectLocal::Unknown, true);
    assert!(everybody.contains(" -d 10.96.0.1/32 ") && !everybody.contains('!'), "{everybody}");
}

#[test]
fn both_families_print_their_own_words() {
    let reject = Rule::new([], Verdict::Reject);
    let sticky = Rule::new([Match::Remember("KUBE-SEP-X".into())], Verdict::Nothing);
    let to = Rule::new([], Verdict::Destination("[fd00::1]:80".parse().unwrap()));
    let cases = [
        (IpFamily::V4, &reject, "-j REJECT --reject-with icmp-port-unreachable"),
        (IpFamily::V6, &reject, "-j REJECT --reject-with icmp6-port-unreachable"),
        (
            IpFamily::V4,
            &sticky,
            "-m recent --set --name KUBE-SEP-X --mask 255.255.255.255 --rsource",
        ),
        (IpFamily::V6, &to, "-j DNAT --to-destination [fd00::1]:80"),
    ];
    for (family, rule, want) in cases {
        assert_eq!(print::rule(family, rule), want);
    }
}
