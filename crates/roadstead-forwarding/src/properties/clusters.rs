//! Random news of a cluster, as a watch delivers them: in any order, with updates and deletions,
//! and with objects that no API server would accept. There are few names and addresses, so that
//! slices meet their Services and Services collide.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use roadstead_api::key::ObjectKey;
use serde_json::{Value, json};

use crate::packet::{Origin, Packet};
use crate::samples::{BALANCER, CLUSTER_IPS, EXTERNAL, NODE, OUTSIDE, PODS, address, network};
use crate::service::{IpFamily, Protocol};

/// One thing that a watch says.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Service(Box<Service>),
    NoService(ObjectKey),
    Slice(Box<EndpointSlice>),
    NoSlice(ObjectKey),
    /// The node moved to another zone, or to none.
    Zone(Option<String>),
}

/// An event, and whether there is time to act on it before the next one.
#[derive(Clone, Debug)]
pub(super) struct News {
    pub(super) event: Event,
    pub(super) pause: bool,
}

pub(super) fn news() -> impl Strategy<Value = News> {
    let event = prop_oneof![
        6 => services().prop_map(|service| Event::Service(Box::new(service))),
        1 => names('s').prop_map(|(space, name)| Event::NoService(ObjectKey::new(space, name))),
        15 => slices().prop_map(|slice| Event::Slice(Box::new(slice))),
        1 => names('e').prop_map(|(space, name)| Event::NoSlice(ObjectKey::new(space, name))),
        4 => option::weighted(0.8, zones()).prop_map(|zone| Event::Zone(zone.map(str::to_owned))),
    ];
    (event, any::<bool>()).prop_map(|(event, pause)| News { event, pause })
}

fn names(first: char) -> impl Strategy<Value = (&'static str, String)> {
    let space = prop_oneof![8 => Just("main"), 1 => Just("side")];
    let most = if first == 's' { 3 } else { 6 };
    (space, 0..most).prop_map(move |(space, number)| (space, format!("{first}{number}")))
}

fn zones() -> impl Strategy<Value = &'static str> {
    select(vec!["z1", "z2"])
}

/// Some of these texts, in order.
fn some(texts: Vec<String>) -> impl Strategy<Value = Vec<String>> {
    let most = texts.len();
    subsequence(texts, 0..=most)
}

/// Hosts of a network in both families.
fn hosts(net: u8, numbers: &[u8]) -> Vec<String> {
    let families = [IpFamily::V4, IpFamily::V6];
    let text = |family| move |host: &u8| address(family, net, *host).to_string();
    families.into_iter().flat_map(|family| numbers.iter().map(text(family))).collect()
}

/// `None` at times, where the API has a default.
fn texts(given: &[&str]) -> impl Strategy<Value = Value> {
    let given: Vec<_> = given.iter().map(|text| json!(text)).collect();
    prop_oneof![1 => Just(Value::Null), 4 => select(given)]
}

fn services() -> impl Strategy<Value = Service> {
    let labels = prop_oneof![
        12 => Just(json!({"app": "web"})),
        1 => Just(json!({"service.kubernetes.io/service-proxy-name": "another"})),
    ];
    let rules = (texts(&["Cluster", "Local"]), texts(&["Cluster", "Local"]), ranges(), affinity());
    let names = (names('s'), labels, created());
    (names, types(), cluster_ips(), service_ports(), frontends(), rules).prop_map(
        |(
            ((space, name), labels, created),
            kind,
            cluster_ips,
            ports,
            (external, ingress),
            rules,
        )| {
            let (internal, outer, ranges, (affinity, timeout)) = rules;
            let (single, many) = cluster_ips;
            let object = json!({
                "metadata": {
                    "namespace": space, "name": name, "labels": labels,
                    "creationTimestamp": created,
                },
                "spec": {
                    "type": kind, "clusterIP": single, "clusterIPs": many, "ports": ports,
                    "externalIPs": external, "loadBalancerSourceRanges": ranges,
                    "internalTrafficPolicy": internal, "externalTrafficPolicy": outer,
                    "sessionAffinity": affinity,
                    "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": timeout}},
                },
                "status": {"loadBalancer": {"ingress": ingress}},
            });
            serde_json::from_value(object).unwrap()
        },
    )
}

/// Some are as old as others, and some do not say.
fn created() -> impl Strategy<Value = Option<&'static str>> {
    select(vec![None, Some("2026-11-17T08:00:00Z"), Some("2026-11-18T08:00:00Z")])
}

fn types() -> impl Strategy<Value = Value> {
    prop_oneof![
        12 => texts(&["ClusterIP", "NodePort", "LoadBalancer"]),
        1 => Just(json!("ExternalName")),
    ]
}

/// The single field and the list. Servers of old fill in only the first.
fn cluster_ips() -> impl Strategy<Value = (Value, Value)> {
    let addresses = (0..2u8).prop_map(|host| hosts(CLUSTER_IPS, &[host]));
    let given = (addresses, 0..4u8).prop_map(|(both, families)| match families {
        0 => vec![both[0].clone()],
        1 => vec![both[1].clone()],
        2 => vec![both[1].clone(), both[0].clone()],
        _ => both,
    });
    prop_oneof![
        12 => given.clone().prop_map(|many| (json!(many[0]), json!(many))),
        2 => given.prop_map(|many| (json!(many[0]), Value::Null)),
        1 => Just((json!("None"), json!(["None"]))),
        1 => Just((Value::Null, Value::Null)),
    ]
}

/// A port of a Service finds those of slices by its name and its protocol.
const PORTS: [(&str, &str); 6] =
    [("", "TCP"), ("", "UDP"), ("web", "TCP"), ("web", "UDP"), ("web", "SCTP"), ("dns", "TCP")];

fn service_ports() -> impl Strategy<Value = Vec<Value>> {
    let node_port = prop_oneof![Just(None), Just(Some(0)), (30080..30082).prop_map(Some)];
    // A name and a protocol make a port, so that pair is never there twice.
    btree_map(select(PORTS.to_vec()), (80..82, node_port), 1..5).prop_map(|ports| {
        let port = |((name, protocol), (port, node_port)): ((&str, &str), _)| {
            // What is the default may be absent.
            let name = if name.is_empty() { Value::Null } else { json!(name) };
            let protocol = if port == 80 && protocol == "TCP" { None } else { Some(protocol) };
            json!({"name": name, "protocol": protocol, "port": port, "nodePort": node_port})
        };
        ports.into_iter().map(port).collect()
    })
}

/// External addresses, and what a load balancer says of itself.
fn frontends() -> impl Strategy<Value = (Vec<String>, Vec<Value>)> {
    let mode = texts(&["VIP", "VIP", "Proxy"]);
    let balancer = (select(hosts(BALANCER, &[0, 1])), mode);
    let ingress = prop_oneof![
        6 => balancer.prop_map(|(ip, mode)| json!({"ip": ip, "ipMode": mode})),
        1 => Just(json!({"hostname": "balancer.example.org"})),
    ];
    // Some of what people ask for belongs to others.
    let mut external = hosts(EXTERNAL, &[0, 1]);
    external.extend(hosts(BALANCER, &[1]));
    external.extend(hosts(CLUSTER_IPS, &[0, 1]));
    external.push("10.201.000.001".into());
    (some(external), vec(ingress, 0..4))
}

fn ranges() -> impl Strategy<Value = Vec<String>> {
    let mut ranges = Vec::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        ranges.extend([OUTSIDE, PODS, NODE].map(|net| format!(" {} ", network(family, net))));
    }
    prop_oneof![
        3 => Just(Vec::new()),
        6 => some(ranges.clone()),
        1 => some(ranges.clone()).prop_map(|mut some| {
            some.extend(["0.0.0.0/0".into(), "::/0".into()]);
            some
        }),
        2 => some(ranges).prop_map(|mut some| {
            some.extend(["anywhere".into(), "10.201.000.000/030".into()]);
            some
        }),
        1 => Just(vec!["anywhere".into()]),
    ]
}

fn affinity() -> impl Strategy<Value = (Value, Option<i32>)> {
    (texts(&["None", "ClientIP"]), option::of(60..100_000))
}

fn slices() -> impl Strategy<Value = EndpointSlice> {
    let family = prop_oneof![9 => Just("IPv4"), 9 => Just("IPv6"), 1 => Just("FQDN")];
    let labels = (option::weighted(0.95, 0..3u8), prop::bool::weighted(0.05));
    (names('e'), labels, family).prop_flat_map(|((space, name), (owner, headless), family)| {
        (slice_ports(), endpoints(family)).prop_map(move |(ports, endpoints)| {
            let mut labels = json!({});
            if let Some(owner) = owner {
                labels["kubernetes.io/service-name"] = json!(format!("s{owner}"));
            }
            if headless {
                labels["service.kubernetes.io/headless"] = json!("");
            }
            let object = json!({
                "metadata": {"namespace": space, "name": name, "labels": labels},
                "addressType": family, "ports": ports, "endpoints": endpoints,
            });
            serde_json::from_value(object).unwrap()
        })
    })
}

/// Most of those that Services look for, and some that say nothing.
fn slice_ports() -> impl Strategy<Value = Vec<Value>> {
    let useful = (subsequence(PORTS.to_vec(), 3..=6), 8080..8082).prop_map(|(ports, number)| {
        let port = |(name, protocol): (&str, &str)| {
            // What is the default may be absent.
            let protocol = if number == 8080 && protocol == "TCP" { None } else { Some(protocol) };
            json!({"name": name, "protocol": protocol, "port": number})
        };
        ports.into_iter().map(port).collect::<Vec<_>>()
    });
    let odd = select(vec![
        json!({"name": null, "protocol": "TCP", "port": 9000}),
        json!({"name": "web", "protocol": "TCP", "port": null}),
        json!({"name": "web", "protocol": "TCP", "port": 0}),
        json!({"name": "web", "protocol": "ICMP", "port": 9000}),
        json!({"name": "web", "protocol": "TCP", "port": 9000}),
    ]);
    (useful, option::weighted(0.3, odd)).prop_map(|(mut ports, odd)| {
        ports.extend(odd);
        ports
    })
}

/// Conditions and hints go by slice, or else the hints of one endpoint would always be void for
/// want of those of another.
fn endpoints(family: &'static str) -> impl Strategy<Value = Vec<Value>> {
    let kinds = (select(vec![0, 0, 0, 1, 2]), select(vec![0, 1, 2, 3, 3, 3]));
    kinds.prop_flat_map(move |(conditions, hints)| vec(endpoint(family, conditions, hints), 0..6))
}

/// An address is on one node, whoever mentions it; where it is does not always get told.
fn endpoint(family: &str, conditions: u8, hints: u8) -> impl Strategy<Value = Value> + use<> {
    let families = match family {
        "IPv6" => [IpFamily::V6, IpFamily::V4],
        _ => [IpFamily::V4, IpFamily::V6],
    };
    let [right, wrong] = families.map(|family| move |host| address(family, PODS, host).to_string());
    let kind = prop_oneof![16 => Just(0), 1 => Just(1), 1 => Just(2), 1 => Just(3)];
    (0..6u8, kind, conditions_of(conditions), hints_of(hints)).prop_map(
        move |(host, kind, conditions, hints)| {
            let addresses = match kind {
                0 => vec![right(host), right(host + 1)],
                1 => vec![wrong(host)],
                2 => vec!["nowhere.example.org".to_owned()],
                _ => vec![],
            };
            let node = [Some("n1"), Some("n2"), None][usize::from(host % 3)];
            json!({"addresses": addresses, "conditions": conditions, "nodeName": node, "hints": hints})
        },
    )
}

/// Those of a healthy Service, of one that is shut down, or any.
fn conditions_of(kind: u8) -> impl Strategy<Value = Value> {
    let condition = |likely: bool| prop_oneof![1 => Just(None), 4 => Just(Some(likely)), 1 => Just(Some(!likely))];
    let (ready, serving, terminating) = match kind {
        0 => (condition(true), condition(true), condition(false)),
        1 => (condition(false), condition(true), condition(true)),
        _ => (condition(false), condition(false), condition(true)),
    };
    let all = (ready, serving, terminating).prop_map(|(ready, serving, terminating)| {
        json!({"ready": ready, "serving": serving, "terminating": terminating})
    });
    prop_oneof![1 => Just(Value::Null), 6 => all]
}

/// None, for zones, for nodes, or both.
fn hints_of(kind: u8) -> impl Strategy<Value = Value> {
    let list = |wanted: bool, names: [&str; 2]| {
        let names: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        let some = subsequence(names, 1..=2).prop_map(|names| json!(names));
        prop_oneof![1 => Just(Value::Null), 15 => some]
            .prop_map(move |hints| if wanted { hints } else { Value::Null })
    };
    let lists = (list(kind & 1 != 0, ["z1", "z2"]), list(kind & 2 != 0, ["n1", "n2"]));
    lists.prop_map(|(zones, nodes)| json!({"forZones": zones, "forNodes": nodes}))
}

/// A packet, before it has a family and, unless it goes astray, a frontend to go to.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    from: (u8, u8, &'static str),
    to: To,
}

#[derive(Clone, Debug)]
enum To {
    Frontend(Index),
    Anywhere(u8, u8, u16, Protocol),
}

impl Draft {
    /// Aims it at one of these frontends, if it is not to go astray.
    pub(super) fn of(&self, family: IpFamily, frontends: &[SocketFrontend]) -> Packet {
        let (from, source, interface) = self.from;
        let (to, protocol) = match &self.to {
            To::Frontend(index) if !frontends.is_empty() => *index.get(frontends),
            To::Frontend(_) => ((address(family, CLUSTER_IPS, 0), 80).into(), Protocol::Tcp),
            To::Anywhere(net, host, port, protocol) => {
                ((address(family, *net, *host), *port).into(), *protocol)
            }
        };
        Packet {
            source: address(family, from, source),
            destination: to.ip(),
            protocol,
            port: to.port(),
            origin: match interface {
                "" => Origin::Node,
                name => Origin::Network(name.into()),
            },
        }
    }
}

/// What clients dial, with the address spelled out.
pub(super) type SocketFrontend = (SocketAddr, Protocol);

pub(super) fn packets() -> impl Strategy<Value = Draft> {
    let pod = (0..6u8, select(vec!["pods0", "pods0", "pod7", "eth0"]));
    let from = prop_oneof![
        4 => pod.prop_map(|(host, interface)| (PODS, host, interface)),
        3 => Just((OUTSIDE, 1, "eth0")),
        1 => Just((NODE, 9, "eth0")),
        2 => Just((NODE, 1, "")),
    ];
    let nets = select(vec![CLUSTER_IPS, EXTERNAL, BALANCER, NODE, PODS]);
    let protocol = select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    let port = select(vec![80, 81, 30080, 30081, 8080]);
    let astray = (nets, 0..3u8, port, protocol)
        .prop_map(|(net, host, port, protocol)| To::Anywhere(net, host, port, protocol));
    let to = prop_oneof![4 => any::<Index>().prop_map(To::Frontend), 1 => astray];
    let usual = (from, to).prop_map(|(from, to)| Draft { from, to });
    // Some load balancers send what a node said to them back to it, from their own address.
    let looped_back = (0..2u8).prop_map(|host| Draft {
        from: (BALANCER, host, "eth0"),
        to: To::Anywhere(BALANCER, host, 80, Protocol::Tcp),
    });
    prop_oneof![20 => usual, 1 => looped_back]
}

/// An endpoint, before it has a family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pod(u8, u16);

impl Pod {
    pub(super) fn of(self, family: IpFamily) -> SocketAddr {
        (address(family, PODS, self.0), self.1).into()
    }
}

pub(super) fn pods() -> impl Strategy<Value = Pod> {
    (0..6u8, 8080..8082u16).prop_map(|(host, port)| Pod(host, port))
}
