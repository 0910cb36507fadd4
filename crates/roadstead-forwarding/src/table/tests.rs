//! Tables of decisions, in a small notation.
//!
//! `web 10.9.0.1:80 >10.0.0.1:8080,here!10.0.0.2:8080 np:30080 lb:5.5.5.5 ext:6.6.6.6` is a
//! service port; further words: `local` (external policy), `inside` (internal policy Local),
//! `from:NET` (`from:` alone lets nobody in), `made:SECOND`, `sticky`. Where it says `here!` the target runs on this node.

use super::*;
use crate::node_network::{DetectLocal, NodePorts};
use std::time::Duration;

fn port_name(name: &str) -> ServicePortName {
    ServicePortName {
        namespace: "ns".into(),
        name: name.into(),
        port: String::new(),
        protocol: Protocol::Tcp,
    }
}

fn service_port(text: &str) -> (ServicePortName, ServicePort) {
    let mut words = text.split_whitespace();
    let name = port_name(words.next().unwrap());
    let mut port = ServicePort::default();
    for word in words {
        match word.split_once(':').unwrap_or((word, "")) {
            ("np", number) => port.node_port = number.parse().ok(),
            ("lb", address) => port.load_balancer_ips.push(address.parse().unwrap()),
            ("ext", address) => port.external_ips.push(address.parse().unwrap()),
            ("from", range) => {
                let ranges = port.source_ranges.get_or_insert_default();
                if !range.is_empty() {
                    ranges.push(range.parse().unwrap());
                }
            }
            ("made", second) => port.created = second.parse().unwrap(),
            ("local", _) => port.external_policy = TrafficPolicy::Local,
            ("inside", _) => port.internal_policy = TrafficPolicy::Local,
            ("sticky", _) => port.affinity = Some(Duration::from_secs(60)),
            _ if word.starts_with('>') => port.cluster = targets(&word[1..]),
            (address, number) => {
                port.cluster_ips.push(address.parse().unwrap());
                port.port = number.parse().unwrap();
            }
        }
    }
    if port.uses_local() {
        let here = port.cluster.iter().filter(|target| target.locality == Locality::Here);
        port.local = here.copied().collect();
    }
    (name, port)
}

fn targets(text: &str) -> Vec<Target> {
    let target = |word: &str| {
        let here = word.strip_prefix("here!");
        let socket: SocketAddr = here.unwrap_or(word).parse().unwrap();
        let locality = if here.is_some() { Locality::Here } else { Locality::Elsewhere };
        Target { address: socket.ip(), port: socket.port(), locality }
    };
    text.split(',').filter(|word| !word.is_empty()).map(target).collect()
}

fn add(table: &mut ForwardingTable, text: &str) -> String {
    let (name, port) = service_port(text);
    let key = ObjectKey::new("ns", &*name.name);
    let ports = if port.cluster_ips.is_empty() { vec![] } else { vec![(name, port)] };
    let changed = table.replace(&key, ports);
    changed.iter().map(|name| name.name.clone()).collect::<Vec<_>>().join(" ")
}

fn node_network() -> NodeNetwork {
    NodeNetwork {
        detect_local: DetectLocal::Networks(vec!["10.0.0.0/16".parse().unwrap()]),
        node_address: Some([192, 168, 0, 7].into()),
        node_addresses: [[192, 168, 0, 7], [127, 0, 0, 1]].map(IpAddr::from).into(),
        service_networks: vec!["10.9.0.0/24".parse().unwrap()],
        ..NodeNetwork::default()
    }
}

fn table() -> ForwardingTable {
    ForwardingTable::new(IpFamily::V4, &node_network())
}

/// `node` sends from the node itself; `eth0!1.2.3.4` comes in by that interface.
fn packet(source: &str, destination: &str) -> Packet {
    let destination: SocketAddr = destination.parse().unwrap();
    let (interface, address) = source.split_once('!').unwrap_or(("eth0", source));
    let (source, origin) = match address {
        "node" => ([192, 168, 0, 7].into(), Origin::Node),
        _ => (address.parse().unwrap(), Origin::Network(interface.into())),
    };
    Packet {
        source,
        destination: destination.ip(),
        protocol: Protocol::Tcp,
        port: destination.port(),
        origin,
    }
}

fn words(outcomes: &BTreeSet<Outcome>) -> String {
    let word = |outcome: &Outcome| match outcome {
        Outcome::Forward { target, masquerade } => {
            format!("{}{}", target.ip(), if *masquerade { "*" } else { "" })
        }
        other => format!("{other:?}").to_lowercase(),
    };
    outcomes.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn decide(table: &ForwardingTable, source: &str, destination: &str) -> String {
    words(&table.decide(&packet(source, destination)))
}

#[test]
fn decisions() {
    let mut table = table();
    let both = ">10.0.0.1:8080,here!10.0.0.2:8080";
    add(&mut table, &format!("web 10.9.0.1:80 {both} np:30080 lb:5.5.5.5 ext:6.6.6.6"));
    add(&mut table, "none 10.9.0.2:80 > np:30081 lb:5.5.5.6 from:1.0.0.0/8");
    add(&mut table, "far 10.9.0.3:80 >10.0.0.1:8080 inside");
    add(&mut table, &format!("own 10.9.0.4:80 {both} np:30082 lb:5.5.5.7 local"));
    add(&mut table, "away 10.9.0.5:80 >10.0.0.1:8080 np:30083 lb:5.5.5.8 local");
    add(
        &mut table,
        &format!(
            "fenced 10.9.0.6:80 {both} np:30084 lb:5.5.5.9 from:1.0.0.0/8 from:192.168.0.0/24"
        ),
    );
    add(
        &mut table,
        &format!("both 10.9.0.7:80 {both} lb:5.5.5.10 ext:5.5.5.10 ext:6.6.6.7 from:1.0.0.0/8"),
    );
    add(&mut table, &format!("shut 10.9.0.8:80 {both} lb:5.5.5.11 from:"));
    let cases = [
        ("a pod", "10.0.0.9", "10.9.0.1:80", "10.0.0.1 10.0.0.2"),
        ("a local target calls itself", "10.0.0.2", "10.9.0.1:80", "10.0.0.1 10.0.0.2*"),
        ("a remote one is not seen here", "10.0.0.1", "10.9.0.1:80", "10.0.0.1 10.0.0.2"),
        ("from outside", "1.1.1.1", "10.9.0.1:80", "10.0.0.1* 10.0.0.2*"),
        ("from the node", "node", "10.9.0.1:80", "10.0.0.1* 10.0.0.2*"),
        ("no endpoints", "10.0.0.9", "10.9.0.2:80", "reject"),
        ("none for us", "10.0.0.9", "10.9.0.3:80", "drop"),
        ("a port that is not served", "10.0.0.9", "10.9.0.1:81", "reject"),
        ("an address that no Service has", "10.0.0.9", "10.9.0.99:80", "drop"),
        ("somebody else", "10.0.0.9", "10.8.0.9:80", "pass"),
        ("node port", "1.1.1.1", "192.168.0.7:30080", "10.0.0.1* 10.0.0.2*"),
        ("node port from a pod", "10.0.0.9", "192.168.0.7:30080", "10.0.0.1* 10.0.0.2*"),
        ("node port of nobody", "1.1.1.1", "192.168.0.7:30999", "pass"),
        ("node port on loopback", "node", "127.0.0.1:30080", "pass"),
        ("node port of another machine", "1.1.1.1", "192.168.0.8:30080", "pass"),
        ("load balancer", "1.1.1.1", "5.5.5.5:80", "10.0.0.1* 10.0.0.2*"),
        ("external address", "1.1.1.1", "6.6.6.6:80", "10.0.0.1* 10.0.0.2*"),
        ("another port of it", "1.1.1.1", "6.6.6.6:81", "pass"),
        ("node port without endpoints", "1.1.1.1", "192.168.0.7:30081", "reject"),
        ("refused if it may ask", "1.1.1.1", "5.5.5.6:80", "reject"),
        ("not even refused if it may not", "9.1.1.1", "5.5.5.6:80", "drop"),
        ("external, too, from an allowed sender", "1.1.1.1", "5.5.5.10:80", "10.0.0.1* 10.0.0.2*"),
        ("external, too, from another", "9.1.1.1", "5.5.5.10:80", "drop"),
        ("only external", "9.1.1.1", "6.6.6.7:80", "10.0.0.1* 10.0.0.2*"),
        ("for nobody", "1.1.1.1", "5.5.5.11:80", "drop"),
        ("local policy from outside", "1.1.1.1", "5.5.5.7:80", "10.0.0.2"),
        ("local policy by node port", "1.1.1.1", "192.168.0.7:30082", "10.0.0.2"),
        ("local policy from a pod", "10.0.0.9", "5.5.5.7:80", "10.0.0.1 10.0.0.2"),
        ("local policy from the node", "node", "5.5.5.7:80", "10.0.0.1* 10.0.0.2*"),
        ("the ClusterIP stays out of it", "10.0.0.9", "10.9.0.4:80", "10.0.0.1 10.0.0.2"),
        ("nothing local", "1.1.1.1", "5.5.5.8:80", "drop"),
        ("nothing local by node port", "1.1.1.1", "192.168.0.7:30083", "drop"),
        ("nothing local, from a pod", "10.0.0.9", "5.5.5.8:80", "10.0.0.1"),
        ("an allowed sender", "1.1.1.1", "5.5.5.9:80", "10.0.0.1* 10.0.0.2*"),
        ("another sender", "9.1.1.1", "5.5.5.9:80", "drop"),
        ("node ports have no fence", "9.1.1.1", "192.168.0.7:30084", "10.0.0.1* 10.0.0.2*"),
        ("looped back", "5.5.5.9", "5.5.5.9:80", "10.0.0.1* 10.0.0.2*"),
    ];
    for (name, source, destination, want) in cases {
        assert_eq!(decide(&table, source, destination), want, "{name}");
    }
}

#[test]
fn local_detection_and_masquerading() {
    let bridge = DetectLocal::Bridge("br0".into());
    let prefix = DetectLocal::InterfacePrefix("veth".into());
    let networks = node_network().detect_local;
    let cases = [
        ("networks", &networks, false, "eth0!10.0.0.9", "10.0.0.1"),
        ("networks, stranger", &networks, false, "eth0!1.1.1.1", "10.0.0.1*"),
        ("bridge", &bridge, false, "br0!1.1.1.1", "10.0.0.1"),
        ("bridge, stranger", &bridge, false, "br01!10.0.0.9", "10.0.0.1*"),
        ("prefix", &prefix, false, "veth1!1.1.1.1", "10.0.0.1"),
        ("prefix, stranger", &prefix, false, "eth0!10.0.0.9", "10.0.0.1*"),
        ("prefix, the node", &prefix, false, "node", "10.0.0.1*"),
        ("unknown", &DetectLocal::Unknown, false, "eth0!1.1.1.1", "10.0.0.1"),
        ("everybody", &networks, true, "eth0!10.0.0.9", "10.0.0.1*"),
    ];
    for (name, detect_local, masquerade_all, source, want) in cases {
        let detect_local = detect_local.clone();
        let around = NodeNetwork { detect_local, masquerade_all, ..node_network() };
        let mut table = ForwardingTable::new(IpFamily::V4, &around);
        add(&mut table, "web 10.9.0.1:80 >10.0.0.1:8080 lb:5.5.5.5 local");
        assert_eq!(decide(&table, source, "10.9.0.1:80"), want, "{name}");
        let external = if want.ends_with('*') && source != "node" { "drop" } else { want };
        let external = match (source, name) {
            (_, "unknown") => "drop",
            (_, "everybody") => "10.0.0.1",
            _ => external,
        };
        assert_eq!(decide(&table, source, "5.5.5.5:80"), external, "{name} from outside");
    }
}

#[test]
fn node_port_addresses() {
    let addresses = |list: &[[u8; 4]]| list.iter().copied().map(IpAddr::from).collect();
    let cases = [
        ("every", NodePorts::Every { loopback: false }, "192.168.0.7:30080", "10.0.0.1*"),
        ("loopback too", NodePorts::Every { loopback: true }, "127.0.0.1:30080", "10.0.0.1*"),
        ("one", NodePorts::On(addresses(&[[192, 168, 0, 7]])), "192.168.0.7:30080", "10.0.0.1*"),
        ("another", NodePorts::On(addresses(&[[192, 168, 0, 8]])), "192.168.0.7:30080", "pass"),
        ("none", NodePorts::On(BTreeSet::new()), "192.168.0.7:30080", "pass"),
    ];
    for (name, node_ports, destination, want) in cases {
        let around = NodeNetwork { node_ports, ..node_network() };
        let mut table = ForwardingTable::new(IpFamily::V4, &around);
        add(&mut table, "web 10.9.0.1:80 >10.0.0.1:8080 np:30080");
        assert_eq!(decide(&table, "1.1.1.1", destination), want, "{name}");
    }
}

#[test]
fn clients_stay_with_their_target() {
    let mut table = table();
    add(&mut table, "web 10.9.0.1:80 >10.0.0.1:80,here!10.0.0.2:80 sticky lb:5.5.5.5 local");
    add(&mut table, "any 10.9.0.2:80 >10.0.0.1:80,10.0.0.2:80");
    let cases = [
        ("the first time", "10.9.0.1:80", None, "10.0.0.1* 10.0.0.2*"),
        ("again", "10.9.0.1:80", Some("10.0.0.1:80"), "10.0.0.1*"),
        ("by another frontend", "5.5.5.5:80", Some("10.0.0.2:80"), "10.0.0.2"),
        ("one that policy forbids", "5.5.5.5:80", Some("10.0.0.1:80"), "10.0.0.2"),
        ("one that has gone", "10.9.0.1:80", Some("10.0.0.3:80"), "10.0.0.1* 10.0.0.2*"),
        ("no affinity", "10.9.0.2:80", Some("10.0.0.1:80"), "10.0.0.1* 10.0.0.2*"),
    ];
    for (name, destination, before, want) in cases {
        let before = before.map(|text| text.parse().unwrap());
        let got = table.explain(&packet("1.1.1.1", destination), before);
        assert_eq!(words(&got.outcomes), want, "{name}");
    }
}

#[test]
fn a_frontend_belongs_to_the_first_name() {
    let mut table = table();
    assert_eq!(add(&mut table, "b 10.9.0.1:80 >10.0.0.2:80 np:30080"), "b");
    assert_eq!(add(&mut table, "c 10.9.0.1:80 >10.0.0.3:80"), "c");
    assert_eq!(decide(&table, "10.0.0.9", "10.9.0.1:80"), "10.0.0.2");
    assert_eq!(add(&mut table, "a 10.9.0.1:80 >10.0.0.1:80 np:30080"), "a b", "b loses it");
    assert_eq!(decide(&table, "10.0.0.9", "10.9.0.1:80"), "10.0.0.1");
    assert_eq!(decide(&table, "10.0.0.9", "192.168.0.7:30080"), "10.0.0.1*");
    assert!(table.frontends_of(&port_name("b")).is_empty());
    assert_eq!(add(&mut table, "a"), "a b", "b has it back");
    assert_eq!(decide(&table, "10.0.0.9", "10.9.0.1:80"), "10.0.0.2");
    assert_eq!(add(&mut table, "b 10.9.0.1:80 >10.0.0.2:80 np:30080"), "", "nothing new");
    assert_eq!(add(&mut table, "b 10.9.0.1:80 >10.0.0.2:80 ext:10.9.0.1"), "b c", "twice");
    assert_eq!(table.frontends_of(&port_name("b")).len(), 1);
    assert_eq!(add(&mut table, "b"), "b c");
}

/// Whoever comes first, `a` loses to `b`, and has it when `b` is gone.
#[test]
fn the_strongest_claim_has_a_frontend() {
    let cases = [
        ("ClusterIP, load balancer", "10.9.0.2:80", "lb:10.9.0.2 made:1", "made:2"),
        ("ClusterIP, external", "10.9.0.2:80", "ext:10.9.0.2 made:1", "made:2"),
        ("load balancer, external", "5.5.5.5:80", "ext:5.5.5.5 made:1", "lb:5.5.5.5 made:2"),
        ("the older load balancer", "5.5.5.5:80", "lb:5.5.5.5 made:2", "lb:5.5.5.5 made:1"),
        ("the older external", "5.5.5.5:80", "ext:5.5.5.5 made:2", "ext:5.5.5.5 made:1"),
        ("the older node port", "192.168.0.7:30080", "np:30080 made:2", "np:30080 made:1"),
    ];
    for (name, destination, loser, winner) in cases {
        let loser = format!("a 10.9.0.1:80 >10.0.0.1:80 {loser}");
        let winner = format!("b 10.9.0.2:80 >10.0.0.2:80 {winner}");
        for order in [[&loser, &winner], [&winner, &loser]] {
            let mut table = table();
            order.iter().for_each(|text| drop(add(&mut table, text)));
            let got = decide(&table, "1.1.1.1", destination);
            assert_eq!(got, "10.0.0.2*", "{name}");
            let lost = table.lost_by(&port_name("a"));
            assert_eq!(lost.len(), 1, "{name}");
            assert_eq!(lost[0].1, Arc::new(port_name("b")), "{name}");
            assert!(table.lost_by(&port_name("b")).is_empty(), "{name}");
            assert!(table.take_disputed().contains(&port_name("a")), "{name}");
            assert_eq!(add(&mut table, "b"), "a b", "{name}");
            assert_eq!(decide(&table, "1.1.1.1", destination), "10.0.0.1*", "{name}: afterwards");
            assert!(table.take_disputed().contains(&port_name("a")), "{name}: afterwards");
            assert!(table.lost_by(&port_name("a")).is_empty(), "{name}: afterwards");
        }
    }
}

#[test]
fn nobody_else_opens_a_port_on_a_cluster_ip() {
    let mut table = table();
    add(&mut table, "a 10.9.0.1:81 >10.0.0.1:80 ext:10.9.0.2 ext:6.6.6.6");
    assert_eq!(decide(&table, "10.0.0.9", "10.9.0.2:81"), "10.0.0.1*", "as long as it is nobody's");
    assert_eq!(add(&mut table, "b 10.9.0.2:80 >10.0.0.2:80"), "a b");
    assert_eq!(decide(&table, "10.0.0.9", "10.9.0.2:81"), "reject");
    assert_eq!(decide(&table, "10.0.0.9", "6.6.6.6:81"), "10.0.0.1*", "the rest is its own");
    assert_eq!(table.lost_by(&port_name("a"))[0].1, Arc::new(port_name("b")));
    assert_eq!(add(&mut table, "b 10.9.0.2:80 >10.0.0.3:80"), "b", "another endpoint wakes nobody");
    assert_eq!(add(&mut table, "b"), "a b");
    assert_eq!(decide(&table, "10.0.0.9", "10.9.0.2:81"), "10.0.0.1*");
}
