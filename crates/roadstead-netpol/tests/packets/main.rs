//! The published cases with real packets: nine pods on a node, and the kernel between them. What they
//! say is in `cases.yaml` of `roadstead-policy`.

mod sctp;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::api::networking::v1::NetworkPolicy;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Labels;
use roadstead_forwarding::service::{IpFamily, Protocol};
use roadstead_netlink::nftables::others::OwnCommits;
use roadstead_netpol::plane::PolicyPlane;
use roadstead_policy::layout::PolicyLayout;
use roadstead_policy::pod::PolicyPod;
use roadstead_policy::policy::Policy;
use roadstead_testkit::netns::{inside, laboratory, make_node, make_pod, run, try_run};
use serde_json::{Value, json};

use crate::sctp::Association;

const NODE: &str = "n1";
const PATIENCE: Duration = Duration::from_secs(30);
/// Who is not allowed gets so much time to prove us wrong.
const GRACE: Duration = Duration::from_millis(150);

fn pods() -> impl Iterator<Item = String> {
    ["x", "y", "z"].into_iter().flat_map(|n| ["a", "b", "c"].map(|p| format!("{n}/{p}")))
}

fn number(pod: &str) -> u8 {
    let [space, _, name] = pod.as_bytes() else { panic!("{pod} is not a pod") };
    11 + 3 * (space - b'x') + (name - b'a')
}

fn address(pod: &str, family: IpFamily) -> IpAddr {
    let number = number(pod);
    match family {
        IpFamily::V4 => [10, 244, 0, number].into(),
        IpFamily::V6 => [0xfd00, 0x244, 0, 0, 0, 0, 0, number.into()].into(),
    }
}

fn namespace(pod: &str) -> String {
    format!("pod-{}", number(pod))
}

/// The nine pods, each serving two ports by TCP and UDP in both families, and hearing what there is of SCTP.
fn make_pods() {
    make_node();
    for pod in pods() {
        make_pod(number(&pod));
        sctp::listen(
            &namespace(&pod),
            [IpFamily::V4, IpFamily::V6].map(|family| address(&pod, family)),
        );
        for port in [80, 81] {
            let (tcp, udp) = inside(&namespace(&pod), || {
                let any: SocketAddr = ([0u16; 8], port).into();
                (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap())
            });
            thread::spawn(move || tcp.incoming().for_each(drop));
            thread::spawn(move || {
                let mut buffer = [0; 16];
                while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                    udp.send_to(&buffer[..length], from).ok();
                }
            });
        }
    }
}

fn view(pod: &str, labels: Labels) -> PolicyPod {
    let ports = [80, 81].into_iter().flat_map(|port| {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        all.map(|protocol| (format!("serve-{port}-{protocol}"), protocol, port))
    });
    PolicyPod {
        labels,
        node: NODE.into(),
        addresses: vec![address(pod, IpFamily::V4), address(pod, IpFamily::V6)],
        named_ports: ports.collect(),
        created: 1,
        mark: 1,
    }
}

fn labels(of: &Value) -> Labels {
    let entries = of.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

fn policies(stage: &Value, family: IpFamily) -> BTreeMap<ObjectKey, Policy> {
    let mut text = stage["policies"].to_string();
    let (all, bits) = match family {
        IpFamily::V4 => ("0.0.0.0/0", 32),
        IpFamily::V6 => ("::/0", 128),
    };
    text = text.replace("{all}", all);
    for pod in pods() {
        text = text.replace(&format!("{{{pod}}}"), &format!("{}/{bits}", address(&pod, family)));
    }
    let specs: Value = serde_json::from_str(&text).unwrap();
    let read = |(key, spec): (&String, &Value)| {
        let key = ObjectKey::unpacked(key);
        let metadata = json!({"namespace": key.namespace, "name": key.name});
        let policy: NetworkPolicy =
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        (key, Policy::read(&policy))
    };
    specs.as_object().into_iter().flatten().map(read).collect()
}

/// A node's policies and its kernel.
struct Node {
    layout: PolicyLayout,
    planes: [PolicyPlane; 2],
    policies: BTreeSet<ObjectKey>,
}

impl Node {
    fn new() -> Self {
        let own = OwnCommits::default();
        let planes = [IpFamily::V4, IpFamily::V6]
            .map(|family| PolicyPlane::open(family, own.clone()).unwrap());
        let mut layout = PolicyLayout::new(NODE);
        for pod in pods() {
            let labels = [("pod".to_owned(), pod[2..].to_owned())].into();
            layout.observe_pod(ObjectKey::unpacked(&pod), Some(view(&pod, labels)));
        }
        Self { layout, planes, policies: BTreeSet::new() }
    }

    fn enter(&mut self, stage: &Value, family: IpFamily) {
        for space in ["x", "y", "z"] {
            let own = [("ns", space), ("kubernetes.io/metadata.name", space)];
            let own = own.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
            let labels = own.chain(labels(&stage["labels"][space])).collect();
            self.layout.observe_namespace(space, Some(labels));
        }
        for pod in pods() {
            let given = stage["labels"].get(&pod).map(labels);
            let own = || [("pod".to_owned(), pod[2..].to_owned())].into();
            let view = view(&pod, given.unwrap_or_else(own));
            self.layout.observe_pod(ObjectKey::unpacked(&pod), Some(view));
        }
        let wanted = policies(stage, family);
        for key in self.policies.iter().filter(|key| !wanted.contains_key(*key)) {
            self.layout.observe_policy(key, None);
        }
        self.policies = wanted.keys().cloned().collect();
        for (key, policy) in wanted {
            self.layout.observe_policy(&key, Some(policy));
        }
        self.commit();
    }

    fn commit(&mut self) {
        let changes = self.layout.update();
        for plane in &mut self.planes {
            plane.commit(self.layout.program(), &changes).unwrap();
        }
    }

    fn is_intact(&mut self) -> bool {
        let program = self.layout.program();
        let intact = self.planes.each_mut().map(|plane| plane.check(program).unwrap());
        intact == [true, true]
    }
}

fn is_meant(list: &str, pod: &str) -> bool {
    match list.strip_prefix("all") {
        Some(rest) => !rest.split(' ').any(|other| other == pod),
        None => list.split(' ').any(|other| other == pod),
    }
}

/// Somebody who tries to reach a port.
enum Probe {
    Tcp(Connecting),
    Udp(UdpSocket, SocketAddr),
    Sctp(Association),
}

impl Probe {
    fn begin(client: &str, protocol: &str, to: SocketAddr) -> Self {
        inside(&namespace(client), || match protocol {
            "tcp" => Probe::Tcp(Connecting::to(to)),
            "sctp" => {
                let family = if to.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 };
                Probe::Sctp(Association::begin(address(client, family), to))
            }
            _ => {
                let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
                let socket = UdpSocket::bind((any, 0)).unwrap();
                socket.set_nonblocking(true).unwrap();
                Probe::Udp(socket, to)
            }
        })
    }

    fn has_arrived(&mut self) -> bool {
        match self {
            Probe::Tcp(connecting) => connecting.0.try_recv().is_ok(),
            Probe::Sctp(association) => association.has_arrived(),
            Probe::Udp(socket, to) => {
                socket.send_to(b"?", *to).ok();
                match socket.recv_from(&mut [0; 16]) {
                    Ok(_) => true,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                        false
                    }
                }
            }
        }
    }
}

/// A connection, without waiting for it. Threads are where the one is that starts them.
struct Connecting(mpsc::Receiver<()>);

impl Connecting {
    fn to(address: SocketAddr) -> Self {
        let (done, receiver) = mpsc::channel();
        thread::spawn(move || {
            if TcpStream::connect_timeout(&address, PATIENCE).is_ok() {
                done.send(()).ok();
            }
        });
        Self(receiver)
    }
}

/// Who reaches these targets, out of all pods, is who should.
fn look(what: &str, reach: &Value, family: IpFamily) -> usize {
    let mut probes = Vec::new();
    for (target, list) in reach.as_object().unwrap() {
        let [server, protocol, port] = target.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{target}")
        };
        if protocol == "sctp" && !sctp::is_followed() {
            eprintln!("NOT RUN: {what}, {target}: this kernel does not follow SCTP");
            continue;
        }
        let to = SocketAddr::new(address(server, family), port.parse().unwrap());
        for client in pods().filter(|client| client != server) {
            let want = is_meant(list.as_str().unwrap(), &client);
            let probe = Probe::begin(&client, protocol, to);
            probes.push((format!("{client} to {target}"), want, probe, false));
        }
    }
    let (count, start) = (probes.len(), Instant::now());
    while probes.iter().any(|(_, want, _, arrived)| *want && !arrived) {
        for (_, _, probe, arrived) in &mut probes {
            *arrived = *arrived || probe.has_arrived();
        }
        let missing = probes.iter().filter(|(_, want, _, arrived)| *want && !arrived);
        let missing: Vec<_> = missing.map(|(name, ..)| name).collect();
        assert!(start.elapsed() < PATIENCE, "{what}, {family:?}: not reached: {missing:?}");
        thread::sleep(Duration::from_millis(20));
    }
    let grace = Instant::now();
    while grace.elapsed() < GRACE {
        for (name, want, probe, arrived) in &mut probes {
            *arrived = *arrived || probe.has_arrived();
            assert!(*want || !*arrived, "{what}, {family:?}: reached: {name}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    count
}

#[test]
fn published_cases_by_real_packets() {
    laboratory(|| {
        make_pods();
        let mut node = Node::new();
        let cases: Vec<Value> =
            serde_saphyr::from_str(include_str!("../../../roadstead-policy/cases.yaml")).unwrap();
        let (mut packets, start) = (0, Instant::now());
        for case in &cases {
            for family in [IpFamily::V4, IpFamily::V6] {
                for stage in case["stages"].as_array().unwrap() {
                    node.enter(stage, family);
                    packets += look(case["name"].as_str().unwrap(), &stage["reach"], family);
                }
            }
        }
        let took = start.elapsed();
        eprintln!("{} cases, {packets} attempts with real packets in {took:.1?}", cases.len());
    });
}

/// Whether somebody gets a connection, who should or should not.
fn connects(from: Option<&str>, to: SocketAddr, wanted: bool) -> bool {
    let time = if wanted { PATIENCE } else { 2 * GRACE };
    let dial = || TcpStream::connect_timeout(&to, time).is_ok();
    from.map_or_else(dial, |namespace| inside(namespace, dial))
}

/// What runs in the network of a node is the node to others: no policy is about it. Its own pods talk to it
/// and it to them whatever policies say; other nodes are addresses like any others.
#[test]
fn nodes_and_their_pods() {
    laboratory(|| {
        make_pods();
        let mut node = Node::new();
        let own = TcpListener::bind("[::]:95").unwrap();
        thread::spawn(move || own.incoming().for_each(drop));
        let other = inside("outside", || TcpListener::bind("[::]:95").unwrap());
        thread::spawn(move || other.incoming().for_each(drop));
        for (family, other_node) in
            [(IpFamily::V4, "192.168.7.2/32"), (IpFamily::V6, "fd00:7::2/128")]
        {
            let pod = SocketAddr::new(address("x/a", family), 80);
            let (bridge, uplink, outside): (IpAddr, IpAddr, IpAddr) = match family {
                IpFamily::V4 => {
                    ([10, 244, 0, 1].into(), [192, 168, 7, 1].into(), [192, 168, 7, 2].into())
                }
                IpFamily::V6 => (
                    "fd00:244::1".parse().unwrap(),
                    "fd00:7::1".parse().unwrap(),
                    "fd00:7::2".parse().unwrap(),
                ),
            };
            let in_pod = namespace("x/a");
            let in_pod = Some(&*in_pod);
            let ways = [
                ("its node calls the pod", None, pod),
                ("the pod calls its node", in_pod, (uplink, 95).into()),
                ("and its bridge", in_pod, (bridge, 95).into()),
                ("another node calls the pod", Some("outside"), pod),
                ("the pod calls another node", in_pod, (outside, 95).into()),
            ];
            let block = json!([{"ipBlock": {"cidr": other_node}}]);
            let allow = json!({"policies": {"x/nodes": {"podSelector": {},
                "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": block}], "egress": [{"to": block}]}}});
            let deny = json!({"policies":
                {"x/none": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}}});
            // Selectors, even of everybody, mean pods.
            let everybody = json!([{"namespaceSelector": {}}]);
            let pods = json!({"policies": {"x/pods": {"podSelector": {},
                "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": everybody}], "egress": [{"to": everybody}]}}});
            for (what, stage, others) in [
                ("no policy", json!({}), true),
                ("everything is denied", deny, false),
                ("the other node's address is allowed", allow, true),
                ("all pods are allowed", pods, false),
            ] {
                node.enter(&stage, family);
                for (way, from, to) in ways {
                    let want = others || !way.contains("another");
                    assert_eq!(connects(from, to, want), want, "{family:?}, {what}: {way}");
                }
            }
        }
    });
}

fn deny() -> Value {
    json!({"policies": {"x/deny": {"podSelector": {}, "policyTypes": ["Ingress"]}}})
}

#[test]
fn established_connections_follow_a_change() {
    laboratory(|| {
        make_pods();
        let mut node = Node::new();
        for family in [IpFamily::V4, IpFamily::V6] {
            node.enter(&json!({}), family);
            let at = SocketAddr::new(address("x/a", family), 90);
            let server = inside(&namespace("x/a"), || TcpListener::bind(at).unwrap());
            let mut client = inside(&namespace("y/a"), || TcpStream::connect(at).unwrap());
            let (mut accepted, _) = server.accept().unwrap();
            let mut buffer = [0; 8];
            client.write_all(b"before").unwrap();
            assert_eq!(accepted.read(&mut buffer).unwrap(), 6);
            node.enter(&deny(), family);
            client.write_all(b"during").unwrap();
            accepted.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let heard = accepted.read(&mut buffer);
            assert!(heard.is_err(), "{family:?}: the client is not heard any more");
            accepted.write_all(b"answer").unwrap();
            client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let heard = client.read(&mut buffer);
            assert!(heard.is_err(), "{family:?}: nor the server by whom it may not serve");
            node.enter(&json!({}), family);
            accepted.set_read_timeout(Some(PATIENCE)).unwrap();
            let again = accepted.read(&mut buffer).unwrap();
            assert_eq!(again, 6, "{family:?}: TCP tries again, and now it passes");
        }
    });
}

/// Datagrams between two that have talked before: the kernel knows them as established, too.
#[test]
fn established_flows_of_datagrams_follow_a_change() {
    laboratory(|| {
        make_pods();
        let mut node = Node::new();
        for family in [IpFamily::V4, IpFamily::V6] {
            node.enter(&json!({}), family);
            let at = |pod: &str, port: u16| SocketAddr::new(address(pod, family), port);
            let bind = |pod: &str, port: u16| {
                let socket = inside(&namespace(pod), || UdpSocket::bind(at(pod, port)).unwrap());
                socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                socket
            };
            let (server, client) = (bind("x/a", 91), bind("y/a", 92));
            let passes = |from: &UdpSocket, to: &UdpSocket, at: SocketAddr| {
                from.send_to(b"hello", at).unwrap();
                to.recv(&mut [0; 8]).is_ok()
            };
            let both = |node: &mut Node, stage: Value| {
                node.enter(&stage, family);
                // What was sent first may wait for the other's link address.
                let there = (0..10).any(|_| passes(&client, &server, at("x/a", 91)));
                (there, passes(&server, &client, at("y/a", 92)))
            };
            assert_eq!(both(&mut node, json!({})), (true, true), "{family:?}");
            assert_eq!(both(&mut node, deny()), (false, false), "{family:?}: known, and not heard");
            assert_eq!(both(&mut node, json!({})), (true, true), "{family:?}: as before");
        }
    });
}

const LISTING: &str = "nft list table ip roadstead-policy; nft list table ip6 roadstead-policy";

#[test]
fn what_somebody_destroys_comes_back() {
    laboratory(|| {
        make_pods();
        let mut node = Node::new();
        let deny = json!({"policies": {
            "x/deny": {"podSelector": {}, "policyTypes": ["Ingress"]},
            "x/some": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]},
            "x/port": {"podSelector": {}, "ingress": [{
                "from": [
                    {"ipBlock": {"cidr": "192.168.7.0/24", "except": ["192.168.7.9/32"]}},
                    {"ipBlock": {"cidr": "fd00:7::/64"}},
                ],
                "ports": [{"port": "serve-80-tcp"}, {"port": 7, "endPort": 9, "protocol": "UDP"}],
            }]},
        }});
        node.enter(&deny, IpFamily::V4);
        assert!(node.is_intact());
        let wholes = run(LISTING);
        assert!(wholes.contains("chain ingress-x/deny"), "{wholes}");
        for damage in [
            "nft flush ruleset",
            "nft delete table ip roadstead-policy",
            "nft flush chain ip roadstead-policy ingress",
            "nft flush set ip6 roadstead-policy group-1",
            "nft add element ip roadstead-policy group-1 '{ 10.244.0.99 }'",
            "nft add rule ip roadstead-policy ingress accept",
        ] {
            run(damage);
            let start = Instant::now();
            while try_run(LISTING).stdout.trim_ascii() != wholes.as_bytes() {
                assert!(start.elapsed() < PATIENCE, "{damage} is healed");
                node.is_intact();
                node.commit();
                thread::sleep(Duration::from_millis(50));
            }
        }
        let reach = json!({"x/a tcp 80": "x/b x/c", "y/a tcp 80": "all"});
        look("healed", &reach, IpFamily::V4);
        node.planes.iter_mut().for_each(|plane| plane.remove().unwrap());
        assert_eq!(run("nft list ruleset"), "");
    });
}
