//! Real packets to every kind of Service, in every data plane that does not differ by design.
//!
//! The laboratory is a node with endpoints 2 and 3, a client pod 5, and a machine outside.
//! Endpoint 4 hangs on the same bridge, but its slice says that it runs on another node.
//!
//! The tests of IPVS need a kernel that has it. `scripts/lab` runs them in one.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_forwarding::service::IpFamily;
use roadstead_proxy::agent::Agent;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_testkit::netns::{inside, laboratory, make_node, make_pod, run};
use roadstead_watch::informer::{Change, key_of};
use serde_json::{Value, json};

const PORT: u16 = 8080;
/// What must come comes within this time; what must not is not waited for as long.
const PATIENCE: Duration = Duration::from_secs(3);
const IMPATIENCE: Duration = Duration::from_millis(400);
/// One of three endpoints stays unseen in so many calls once in four million times.
const CALLS: usize = 40;

fn start_pod(number: u8) {
    let (name, ..) = make_pod(number);
    let (tcp, udp) = inside(&name, || {
        (TcpListener::bind(("::", PORT)).unwrap(), UdpSocket::bind(("::", PORT)).unwrap())
    });
    thread::spawn(move || {
        for connection in tcp.incoming().flatten() {
            let peer = connection.peer_addr().map(|peer| peer.ip().to_canonical());
            let _ = peer.and_then(|peer| write!(&connection, "{number} {peer}"));
        }
    });
    thread::spawn(move || {
        while let Ok((_, peer)) = udp.recv_from(&mut [0; 64]) {
            let _ = udp.send_to(format!("{number} {}", peer.ip().to_canonical()).as_bytes(), peer);
        }
    });
}

/// Connects once; returns who answered and whom they saw.
fn call(protocol: &str, to: SocketAddr, patience: Duration) -> io::Result<String> {
    let mut answer = String::new();
    if protocol == "TCP" {
        let mut connection = TcpStream::connect_timeout(&to, patience)?;
        connection.set_read_timeout(Some(patience))?;
        connection.read_to_string(&mut answer)?;
    } else {
        let socket = UdpSocket::bind((if to.is_ipv4() { "0.0.0.0" } else { "::" }, 0))?;
        socket.set_read_timeout(Some(patience))?;
        socket.connect(to)?;
        socket.send(b"hello")?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
    }
    Ok(answer)
}

/// What is tested.
#[derive(Clone, Copy)]
struct Lab {
    family: IpFamily,
    mode: ProxyMode,
}

/// All that calls from a place may lead to, in words: `2 3 as client`, `refused`, `nothing`.
fn outcome(lab: Lab, from: &str, protocol: &str, to: SocketAddr, wanted: &str) -> String {
    let Lab { family, mode } = lab;
    let (calls, patience) = match wanted {
        "nothing" => (1, IMPATIENCE),
        "refused" => (2, PATIENCE),
        // IPVS takes turns.
        _ if mode == ProxyMode::Ipvs => (9, PATIENCE),
        _ => (CALLS, PATIENCE),
    };
    let calls = || (0..calls).map(|_| call(protocol, to, patience)).collect::<Vec<_>>();
    let answers = if from == "node" { calls() } else { inside(from, calls) };
    let (mut pods, mut peers) = (BTreeSet::new(), BTreeSet::new());
    for answer in answers {
        match answer {
            Ok(text) => {
                let (pod, peer) = text.split_once(' ').expect("pods answer in two words");
                pods.insert(pod.to_owned());
                peers.insert(who(family, peer.parse().unwrap()));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                peers.insert("refused");
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) =>
            {
                peers.insert("nothing");
            }
            Err(error) => panic!("{from} {protocol} {to}: {error}"),
        }
    }
    let peers = peers.into_iter().collect::<Vec<_>>().join(" or ");
    if pods.is_empty() {
        return peers;
    }
    format!("{} as {peers}", pods.into_iter().collect::<Vec<_>>().join(" "))
}

/// The roles of addresses: the node to its pods, or one of the callers.
fn who(family: IpFamily, peer: IpAddr) -> &'static str {
    let address = |v4: &str, v6: &str| -> IpAddr { pick(family, v4, v6).parse().unwrap() };
    if peer == address("10.244.0.1", "fd00:244::1") {
        "node"
    } else if [address("10.244.0.5", "fd00:244::5"), address("192.168.7.2", "fd00:7::2")]
        .contains(&peer)
    {
        "client"
    } else {
        "somebody else"
    }
}

fn pick<'a>(family: IpFamily, v4: &'a str, v6: &'a str) -> &'a str {
    match family {
        IpFamily::V4 => v4,
        IpFamily::V6 => v6,
    }
}

/// `cluster:1`, `external:1`, `balancer:1` with port 80, or `node:30080`.
fn frontend(family: IpFamily, text: &str) -> SocketAddr {
    let (kind, number) = text.split_once(':').unwrap();
    let address = match kind {
        "cluster" => format!("{}{number}", pick(family, "10.96.0.", "fd00:96::")),
        "external" => format!("{}{number}", pick(family, "5.5.5.", "fd00:5::")),
        "balancer" => format!("{}{number}", pick(family, "6.6.6.", "fd00:6::")),
        _ => pick(family, "192.168.7.1", "fd00:7::1").to_owned(),
    };
    let port = if kind == "node" { number.parse().unwrap() } else { 80 };
    SocketAddr::new(address.parse().unwrap(), port)
}

/// A Service with a frontend of every kind; `number` goes into all of its addresses and ports.
fn service(family: IpFamily, name: &str, number: u16, extra: &Value) -> Change<Service> {
    let address = |kind: &str| frontend(family, &format!("{kind}:{number}")).ip().to_string();
    let port = |protocol: &str| {
        json!({
            "name": protocol.to_lowercase(), "protocol": protocol, "port": 80,
            "nodePort": 30080 + number,
        })
    };
    let mut spec = json!({
        "type": "LoadBalancer",
        "clusterIP": address("cluster"),
        "clusterIPs": [address("cluster")],
        "externalIPs": [address("external")],
        "ports": [port("TCP"), port("UDP")],
    });
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let object = json!({
        "metadata": {"namespace": "default", "name": name},
        "spec": spec,
        "status": {"loadBalancer": {"ingress": [{"ip": address("balancer")}]}},
    });
    Change::Set(serde_json::from_value(object).unwrap())
}

fn slice(family: IpFamily, service: &str, pods: &[u8]) -> Change<EndpointSlice> {
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "port": PORT, "protocol": protocol});
    let endpoint = |pod: &u8| {
        let address = format!("{}{pod}", pick(family, "10.244.0.", "fd00:244::"));
        json!({"addresses": [address], "nodeName": if *pod == 4 { "other" } else { "node-1" }})
    };
    let object = json!({
        "metadata": {
            "namespace": "default",
            "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": pick(family, "IPv4", "IPv6"),
        "ports": [port("TCP"), port("UDP")],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    });
    Change::Set(serde_json::from_value(object).unwrap())
}

fn agent(family: IpFamily, mode: ProxyMode) -> Agent {
    let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let networks = ["10.244.0.0/16", "fd00:244::/48"].map(|text| text.parse().unwrap());
    let node = ["192.168.7.1", "10.244.0.1", "127.0.0.1", "fd00:7::1", "fd00:244::1", "::1"];
    let node_network = NodeNetwork {
        detect_local: DetectLocal::Networks(networks.into()),
        node_address: Some(frontend(family, "node:1").ip()),
        node_addresses: parse(&node),
        ..NodeNetwork::default()
    };
    let config = Config {
        node_name: "node-1".into(),
        node_network,
        mode,
        ipvs_fallback: false,
        families: vec![family],
        ..Config::default()
    };
    Agent::new(config, Outputs::default()).unwrap()
}

/// Who calls what, and what comes of it: in general, and through IPVS where that differs.
const CASES: [(&str, &str, &str, &str); 31] = [
    ("pod-5", "cluster:1", "2 3 4 as client", ""),
    ("node", "cluster:1", "2 3 4 as node", ""),
    ("outside", "cluster:1", "2 3 4 as node", ""),
    ("outside", "node:30081", "2 3 4 as node", ""),
    ("pod-5", "node:30081", "2 3 4 as node", ""),
    ("outside", "external:1", "2 3 4 as node", ""),
    ("outside", "balancer:1", "2 3 4 as node", ""),
    // Policy Local, with endpoints here.
    ("outside", "node:30082", "2 3 as client", ""),
    ("outside", "external:2", "2 3 as client", ""),
    ("outside", "balancer:2", "2 3 as client", ""),
    ("pod-5", "balancer:2", "2 3 4 as client", "2 3 as client"),
    ("pod-5", "cluster:2", "2 3 as client", ""),
    // Policy Local, with endpoints elsewhere only.
    ("outside", "node:30083", "nothing", "4 as client"),
    ("outside", "balancer:3", "nothing", "4 as client"),
    ("pod-5", "balancer:3", "4 as client", ""),
    ("pod-5", "cluster:3", "nothing", "refused"),
    // Without endpoints.
    ("outside", "node:30084", "refused", ""),
    ("outside", "balancer:4", "refused", ""),
    ("pod-5", "external:4", "refused", ""),
    ("pod-5", "cluster:4", "refused", ""),
    // Only for the outside.
    ("outside", "balancer:5", "2 3 4 as node", ""),
    ("pod-5", "balancer:5", "nothing", ""),
    ("pod-5", "node:30085", "2 3 4 as node", ""),
    // An endpoint that calls itself.
    ("pod-2", "cluster:6", "2 as node", ""),
    // Only for the outside, and listed as an external address as well.
    ("outside", "balancer:8", "2 3 4 as node", ""),
    ("pod-5", "balancer:8", "nothing", ""),
    // Only for somebody whom nobody can make out.
    ("outside", "balancer:9", "nothing", ""),
    ("pod-5", "cluster:9", "2 3 4 as client", ""),
    // Only for the outside, and without endpoints.
    ("outside", "balancer:10", "refused", ""),
    ("pod-5", "balancer:10", "nothing", ""),
    // A thief has what nobody else has.
    ("outside", "external:11", "2 as node", ""),
];

fn prepare() {
    make_node();
    // The kernel refuses only so often per second; we ask more often.
    for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
        run(&format!("echo 0 > /proc/sys/net/{limit}"));
    }
    for pod in 2..=5 {
        start_pod(pod);
    }
}

fn every_kind(family: IpFamily, mode: ProxyMode) {
    let lab = Lab { family, mode };
    let mut agent = agent(family, mode);
    let local = json!({"externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"});
    let ranges = json!({"loadBalancerSourceRanges": ["192.168.7.0/24", " fd00:7::/64 "]});
    let sticky = json!({"sessionAffinity": "ClientIP"});
    let to = |text: &str| frontend(family, text).ip().to_string();
    let mut both = ranges.clone();
    both["externalIPs"] = json!([to("balancer:8")]);
    let shut = json!({"loadBalancerSourceRanges": ["the office"]});
    // By its name it would be the first of all.
    let loot = json!({"externalIPs": [to("cluster:1"), to("balancer:1"), to("external:11")]});
    let all: &[(&str, &Value, &[u8])] = &[
        ("web", &json!({}), &[2, 3, 4]),
        ("local", &local, &[2, 3, 4]),
        ("far", &local, &[4]),
        ("empty", &json!({}), &[]),
        ("ranged", &ranges, &[2, 3, 4]),
        ("own", &json!({}), &[2]),
        ("sticky", &sticky, &[2, 3, 4]),
        ("both", &both, &[2, 3, 4]),
        ("shut", &shut, &[2, 3, 4]),
        ("fenced", &ranges, &[]),
        ("a-thief", &loot, &[2]),
    ];
    for (number, (name, extra, pods)) in (1..).zip(all) {
        agent.observe_service(&service(family, name, number, extra));
        agent.observe_slice(&slice(family, name, pods));
    }
    agent.commit().unwrap();
    for protocol in ["TCP", "UDP"] {
        for (from, to, usual, by_ipvs) in CASES {
            let differs = mode == ProxyMode::Ipvs && !by_ipvs.is_empty();
            let wanted = if differs { by_ipvs } else { usual };
            let found = outcome(lab, from, protocol, frontend(family, to), wanted);
            assert_eq!(found, wanted, "{protocol} from {from} to {to}");
        }
        for (from, to) in [("outside", "node:30087"), ("pod-5", "cluster:7")] {
            let found = outcome(lab, from, protocol, frontend(family, to), "one");
            assert_eq!(found.split(' ').count(), 3, "{protocol} {from} stays with one: {found}");
        }
    }
    // One endpoint less, and one Service less.
    agent.observe_slice(&slice(family, "web", &[2, 4]));
    let Change::Set(own) = service(family, "own", 6, &json!({})) else { unreachable!() };
    agent.observe_service(&Change::Gone(key_of(&own), 0));
    agent.commit().unwrap();
    let found = outcome(lab, "outside", "TCP", frontend(family, "node:30081"), "2 4");
    assert_eq!(found, "2 4 as node");
    roadstead_proxy::agent::cleanup().unwrap();
    assert_eq!(run("iptables-nft-save | grep KUBE; iptables-legacy-save | grep KUBE; true"), "");
}

#[test]
fn every_kind_through_nftables() {
    laboratory(|| {
        prepare();
        every_kind(IpFamily::V4, ProxyMode::Nftables);
        every_kind(IpFamily::V6, ProxyMode::Nftables);
    });
}

#[test]
fn every_kind_through_iptables() {
    laboratory(|| {
        prepare();
        every_kind(IpFamily::V4, ProxyMode::Iptables);
        every_kind(IpFamily::V6, ProxyMode::Iptables);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn every_kind_through_ipvs() {
    laboratory(|| {
        prepare();
        every_kind(IpFamily::V4, ProxyMode::Ipvs);
        every_kind(IpFamily::V6, ProxyMode::Ipvs);
    });
}
