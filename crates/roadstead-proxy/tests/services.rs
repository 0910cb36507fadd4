//! Every kind of Service, with real packets, in any mode: `every_kind(Mode::…)`.
//!
//! The laboratory is a node with two pods; a third runs on another node, `far`. A client calls
//! from outside the cluster. Whoever adds a data plane calls the same function for it.

mod lab;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_proxy::agent::{Agent, Config};
use roadstead_proxy::plane::Mode;
use roadstead_testkit::netns::{inside, laboratory, make_node, run};
use roadstead_watch::informer::Change;
use serde_json::{Value, json};

use self::lab::{NODE, PORT, call, call_within, serve, start_pod};

const FAR: &str = "far";
/// Long enough to tell a drop from a refusal.
const PATIENCE: Duration = Duration::from_millis(300);

/// Another node with one pod, which is the node itself.
fn make_far_node() {
    run("ip netns add far && ip link add far0 type veth peer name eth0 netns far");
    for command in [
        "ip address add 192.168.8.1/24 dev far0",
        "ip address add fd00:8::1/64 dev far0 nodad",
        "ip link set far0 up",
        "ip -n far link set lo up",
        "ip -n far address add 192.168.8.2/24 dev eth0",
        "ip -n far address add fd00:8::2/64 dev eth0 nodad",
        "ip -n far link set eth0 up",
        "ip -n far address add 10.244.1.9/32 dev lo",
        "ip -n far address add fd00:244:0:1::9/128 dev lo nodad",
        "ip -n far route add default via 192.168.8.1",
        "ip -n far route add default via fd00:8::1",
        "ip route add 10.244.1.0/24 via 192.168.8.2",
        "ip route add fd00:244:0:1::/64 via fd00:8::2",
    ] {
        run(command);
    }
    serve(FAR);
}

/// The addresses of one family.
struct World {
    family: &'static str,
    vips: [&'static str; 7],
    balancers: [&'static str; 7],
    own: &'static str,
    far: &'static str,
    client: &'static str,
    node: &'static str,
    node_to_pods: &'static str,
    node_to_far: &'static str,
    caller: &'static str,
    range: &'static str,
    other_range: &'static str,
}

const V4: World = World {
    family: "IPv4",
    vips: [
        "10.96.0.1",
        "10.96.0.2",
        "10.96.0.3",
        "10.96.0.4",
        "10.96.0.5",
        "10.96.0.6",
        "10.96.0.7",
    ],
    balancers: ["5.5.5.1", "5.5.5.2", "5.5.5.3", "5.5.5.4", "5.5.5.5", "5.5.5.6", "5.5.5.7"],
    own: "10.244.0.2",
    far: "10.244.1.9",
    client: "192.168.7.2",
    node: "192.168.7.1",
    node_to_pods: "10.244.0.1",
    node_to_far: "192.168.8.1",
    caller: "10.244.0.3",
    range: "192.168.7.0/24",
    other_range: "1.0.0.0/8",
};

/// The Services of a world, in the order of their addresses.
const SERVICES: [&str; 7] = ["any", "own", "away", "none", "open", "shut", "stay"];

impl World {
    fn service(&self, number: usize) -> Value {
        let name = SERVICES[number];
        let port = |protocol: &str| {
            let node_port = 30_000 + number;
            json!({"name": protocol.to_lowercase(), "port": 80, "protocol": protocol, "nodePort": node_port})
        };
        let mut spec = json!({
            "type": "LoadBalancer",
            "clusterIP": self.vips[number],
            "clusterIPs": [self.vips[number]],
            "ports": [port("TCP"), port("UDP")],
        });
        match name {
            "own" | "away" => spec["externalTrafficPolicy"] = json!("Local"),
            "open" => spec["loadBalancerSourceRanges"] = json!([self.range]),
            "shut" => spec["loadBalancerSourceRanges"] = json!([self.other_range]),
            "stay" => spec["sessionAffinity"] = json!("ClientIP"),
            _ => {}
        }
        json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": spec,
            "status": {"loadBalancer": {"ingress": [{"ip": self.balancers[number]}]}},
        })
    }

    fn slice(&self, number: usize) -> Value {
        let name = SERVICES[number];
        let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "port": PORT, "protocol": protocol});
        let endpoint = |address: &str, node: &str| json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}});
        let (own, far) = (endpoint(self.own, NODE), endpoint(self.far, FAR));
        let endpoints = match name {
            "away" => vec![far],
            "none" => vec![],
            _ => vec![own, far],
        };
        json!({
            "metadata": {"namespace": "default", "name": name,
                "labels": {"kubernetes.io/service-name": name}},
            "addressType": self.family,
            "ports": [port("TCP"), port("UDP")],
            "endpoints": endpoints,
        })
    }

    fn program(&self, agent: &mut Agent) {
        for number in 0..SERVICES.len() {
            let service = serde_json::from_value(self.service(number)).unwrap();
            agent.observe_service(&Change::Set(Arc::new(service)));
            let slice = serde_json::from_value(self.slice(number)).unwrap();
            agent.observe_slice(&Change::Set(Arc::new(slice)));
        }
        agent.commit().unwrap();
    }

    /// The address that a word names: `any` is a ClusterIP, `any!lb` a load balancer's address,
    /// `any!node` a node port.
    fn address(&self, word: &str) -> SocketAddr {
        let (name, kind) = word.split_once('!').unwrap_or((word, ""));
        let number = SERVICES.iter().position(|service| *service == name).unwrap();
        let (address, port) = match kind {
            "" => (self.vips[number], 80),
            "lb" => (self.balancers[number], 80),
            _ => (self.node, u16::try_from(30_000 + number).unwrap()),
        };
        SocketAddr::new(address.parse().unwrap(), port)
    }

    /// Whom the pod sees: `self` is the caller as it is, `node` is this node.
    fn seen(&self, from: &str, server: &str, sees: &str) -> IpAddr {
        let address = match (sees, from, server) {
            ("node", _, FAR) => self.node_to_far,
            ("node", ..) => self.node_to_pods,
            (_, "outside", _) => self.client,
            (_, "pod-2", _) => self.own,
            _ => self.caller,
        };
        address.parse().unwrap()
    }
}

fn from<T: Send>(place: &str, body: impl FnOnce() -> T + Send) -> T {
    match place {
        "node" => body(),
        namespace => inside(namespace, body),
    }
}

/// From where, to which frontend, which pods answer, and whom they see.
const SERVED: &[(&str, &str, &[&str], &str)] = &[
    ("pod-3", "any", &["pod-2", FAR], "self"),
    ("outside", "any", &["pod-2", FAR], "node"),
    ("node", "any", &["pod-2", FAR], "somebody"),
    ("outside", "any!lb", &["pod-2", FAR], "node"),
    ("outside", "any!node", &["pod-2", FAR], "node"),
    ("pod-3", "any!lb", &["pod-2", FAR], "node"),
    ("outside", "own!lb", &["pod-2"], "self"),
    ("outside", "own!node", &["pod-2"], "self"),
    ("pod-3", "own!lb", &["pod-2", FAR], "self"),
    ("node", "own!lb", &["pod-2", FAR], "somebody"),
    ("pod-3", "away!lb", &[FAR], "self"),
    ("node", "away!lb", &[FAR], "somebody"),
    ("outside", "open!lb", &["pod-2", FAR], "node"),
    ("outside", "shut!node", &["pod-2", FAR], "node"),
];

fn check_served(world: &World, protocol: &str) {
    for (place, frontend, servers, sees) in SERVED {
        let address = world.address(frontend);
        let mut answered = BTreeSet::new();
        for _ in 0..100 {
            let (server, peer) = from(place, || call(protocol, address))
                .unwrap_or_else(|error| panic!("{place} to {frontend} by {protocol}: {error}"));
            // The node has an address in the pods' network, so it may appear as either.
            if *sees != "somebody" {
                let wanted = world.seen(place, &server, sees);
                assert_eq!(peer, wanted, "{place} to {frontend} by {protocol}");
            }
            answered.insert(server);
            if answered.len() == servers.len() && answered.len() > 1 {
                break;
            }
            if servers.len() == 1 && answered.len() == 1 {
                break;
            }
        }
        let wanted: BTreeSet<_> = servers.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(answered, wanted, "{place} to {frontend} by {protocol}");
    }
}

fn check_unserved(world: &World, protocol: &str) {
    let cases = [
        ("outside", "none!lb", ErrorKind::ConnectionRefused),
        ("outside", "none!node", ErrorKind::ConnectionRefused),
        ("pod-3", "none", ErrorKind::ConnectionRefused),
        ("outside", "away!lb", ErrorKind::TimedOut),
        ("outside", "away!node", ErrorKind::TimedOut),
        ("outside", "shut!lb", ErrorKind::TimedOut),
    ];
    for (place, frontend, want) in cases {
        let address = world.address(frontend);
        let kind = from(place, || call_within(PATIENCE, protocol, address)).unwrap_err().kind();
        let kind = if kind == ErrorKind::WouldBlock { ErrorKind::TimedOut } else { kind };
        assert_eq!(kind, want, "{place} to {frontend} by {protocol}");
    }
}

fn check_affinity(world: &World, protocol: &str) {
    let mut servers = BTreeSet::new();
    for frontend in ["stay", "stay!lb", "stay!node"] {
        for _ in 0..8 {
            let answer = inside("outside", || call(protocol, world.address(frontend)));
            servers.insert(answer.unwrap().0);
        }
    }
    assert_eq!(servers.len(), 1, "{protocol}: a client stays, by whichever frontend");
}

/// A pod that reaches itself sees the node.
fn check_hairpin(world: &World, protocol: &str) {
    let itself = (0..60).map(|_| inside("pod-2", || call(protocol, world.address("any"))).unwrap());
    let (_, peer) = itself.into_iter().find(|(server, _)| server == "pod-2").expect("one of sixty");
    assert_eq!(peer, world.seen("pod-2", "pod-2", "node"), "{protocol}");
}

/// The whole of it in one mode.
fn every_kind(mode: Mode) {
    make_node();
    make_far_node();
    [2, 3].into_iter().for_each(|number| drop(start_pod(number)));
    for world in [V4] {
        let networks = ["10.244.0.0/16", "fd00:244::/32"].map(|text| text.parse().unwrap());
        let surroundings = Surroundings {
            detect_local: DetectLocal::Networks(networks.into()),
            node_address: Some(world.node.parse().unwrap()),
            ..Surroundings::default()
        };
        let config = Config { node_name: NODE.into(), mode, surroundings, ..Config::default() };
        let mut agent = Agent::new(config).unwrap();
        world.program(&mut agent);
        check_served(&world, "TCP");
        check_unserved(&world, "TCP");
        check_affinity(&world, "TCP");
        check_hairpin(&world, "TCP");
    }
}

#[test]
fn every_kind_of_service_through_nftables() {
    laboratory(|| every_kind(Mode::Nftables));
}

#[test]
fn every_kind_of_service_through_iptables() {
    laboratory(|| every_kind(Mode::Iptables));
}

/// A client of UDP keeps its port, so the kernel keeps its flow; it must be moved when its target
/// goes, and when the first one comes.
#[test]
fn datagrams_follow_their_service() {
    laboratory(|| {
        make_node();
        make_far_node();
        [2, 3].into_iter().for_each(|number| drop(start_pod(number)));
        let config = Config { node_name: NODE.into(), ..Config::default() };
        let mut agent = Agent::new(config).unwrap();
        let web = V4.address("any");
        let set = |agent: &mut Agent, addresses: &[&str]| {
            let mut slice = V4.slice(0);
            let endpoint = |a: &&str| json!({"addresses": [a], "conditions": {"ready": true}});
            slice["endpoints"] = addresses.iter().map(endpoint).collect();
            agent.observe_slice(&Change::Set(Arc::new(serde_json::from_value(slice).unwrap())));
            agent.commit().unwrap();
        };
        let service = serde_json::from_value(V4.service(0)).unwrap();
        agent.observe_service(&Change::Set(Arc::new(service)));
        set(&mut agent, &[V4.own]);
        let socket = inside("pod-3", || std::net::UdpSocket::bind("0.0.0.0:4000").unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let ask = || {
            socket.send_to(b"hello", web).ok()?;
            let mut buffer = [0; 64];
            let (length, _) = socket.recv_from(&mut buffer).ok()?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            text.split(' ').next().map(str::to_owned)
        };
        for (addresses, want) in [
            (vec![V4.own], Some("pod-2")),
            (vec![V4.far], Some(FAR)),
            (vec![], None),
            (vec![V4.own], Some("pod-2")),
            (vec![V4.own, V4.far], Some("pod-2")),
        ] {
            set(&mut agent, &addresses);
            // Flows are forgotten right after the commit, on a thread of their own.
            let started = Instant::now();
            let mut answer = ask();
            while answer.as_deref() != want && started.elapsed() < Duration::from_secs(2) {
                answer = ask();
            }
            assert_eq!(answer.as_deref(), want, "{addresses:?}");
        }
    });
}
