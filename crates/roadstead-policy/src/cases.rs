//! The published cases: everybody to everybody, by the documentation's own words (`naive`), by the
//! reference and by the compiled program. What they say is in `cases.yaml`; `roadstead-netpol` sends
//! packets through the same.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Labels;
use roadstead_forwarding::service::Protocol;
use serde_json::{Value, json};

use crate::decide::{Attempt, Scope, decide};
use crate::layout::PolicyLayout;
use crate::naive::{self, World};
use crate::pod::PolicyPod;
use crate::policy::Policy;
use crate::trace::{Passage, trace};

const NODE: &str = "n1";

/// The address of the pod `x/a`, of nine, in either family.
fn address(pod: &str, v4: bool) -> IpAddr {
    let [space, _, name] = pod.as_bytes() else { panic!("{pod} is not a pod") };
    let number = 11 + 3 * (space - b'x') + (name - b'a');
    match v4 {
        true => [10, 244, 0, number].into(),
        false => [0xfd00, 0x244, 0, 0, 0, 0, 0, number.into()].into(),
    }
}

fn pods() -> impl Iterator<Item = String> {
    ["x", "y", "z"].into_iter().flat_map(|n| ["a", "b", "c"].map(|p| format!("{n}/{p}")))
}

fn pod(name: &str, labels: Labels) -> PolicyPod {
    let ports = [80, 81].into_iter().flat_map(|port| {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        all.map(|protocol| (format!("serve-{port}-{protocol}"), protocol, port))
    });
    PolicyPod {
        labels,
        node: NODE.into(),
        addresses: vec![address(name, true), address(name, false)],
        named_ports: ports.collect(),
        created: 1,
        mark: 1,
    }
}

fn labels(of: &Value) -> Labels {
    let entries = of.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

/// The specs of all policies, with addresses in the place of names; a block of both families is two.
fn specs(stage: &Value, v4: bool) -> Value {
    let mut text = stage["policies"].to_string();
    let (all, bits) = if v4 { ("0.0.0.0/0", 32) } else { ("::/0", 128) };
    text = text.replace("{all}", all);
    for pod in pods() {
        text = text.replace(&format!("{{{pod}}}"), &format!("{}/{bits}", address(&pod, v4)));
    }
    serde_json::from_str(&text).unwrap()
}

fn policies(stage: &Value, v4: bool) -> BTreeMap<ObjectKey, Policy> {
    let specs = specs(stage, v4);
    let read = |(key, spec): (&String, &Value)| {
        let key = ObjectKey::unpacked(key);
        let metadata = json!({"namespace": key.namespace, "name": key.name});
        let policy = json!({"metadata": metadata, "spec": spec});
        let policy: NetworkPolicy = serde_json::from_value(policy).unwrap();
        (key, Policy::read(&policy))
    };
    specs.as_object().into_iter().flatten().map(read).collect()
}

/// Labels of all namespaces or pods in a stage, besides what they always have.
fn space_labels(stage: &Value, space: &str) -> Labels {
    let own = [("ns", space), ("kubernetes.io/metadata.name", space)];
    let own = own.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    own.chain(labels(&stage["labels"][space])).collect()
}

fn pod_labels(stage: &Value, pod: &str) -> Labels {
    let own = || [("pod".to_owned(), pod[2..].to_owned())].into();
    stage["labels"].get(pod).map(labels).unwrap_or_else(own)
}

fn enter(layout: &mut PolicyLayout, before: &mut Vec<ObjectKey>, stage: &Value, v4: bool) {
    for space in ["x", "y", "z"] {
        layout.observe_namespace(space, Some(space_labels(stage, space)));
    }
    for name in pods() {
        let key = ObjectKey::unpacked(&name);
        layout.observe_pod(key, Some(pod(&name, pod_labels(stage, &name))));
    }
    let policies = policies(stage, v4);
    before.drain(..).filter(|key| !policies.contains_key(key)).for_each(|key| {
        layout.observe_policy(&key, None);
    });
    before.extend(policies.keys().cloned());
    for (key, policy) in policies {
        layout.observe_policy(&key, Some(policy));
    }
    layout.update();
}

/// Whether one of the pods is meant by a list such as `all but x/a x/b`.
fn is_meant(list: &str, pod: &str) -> bool {
    match list.strip_prefix("all") {
        Some(rest) => !rest.split(' ').any(|other| other == pod),
        None => list.split(' ').any(|other| other == pod),
    }
}

/// Somebody who is no pod.
fn outsider(v4: bool) -> IpAddr {
    if v4 { [192, 0, 2, 7].into() } else { [0x2001, 0xdb8, 0, 0, 0, 0, 0, 7].into() }
}

/// What the documentation says of a stage.
fn world(stage: &Value, v4: bool) -> (World, BTreeMap<String, naive::Pod>) {
    let namespaces = ["x", "y", "z"].map(|n| (n.to_owned(), space_labels(stage, n)));
    let specs = specs(stage, v4);
    let policies = specs.as_object().into_iter().flatten();
    let policies = policies.map(|(key, spec)| (key[..1].to_owned(), spec.clone())).collect();
    let pods = pods().map(|name| {
        let ports = pod(&name, Labels::default()).named_ports.into_iter();
        let ports =
            ports.map(|(name, protocol, port)| (name, protocol.to_string().to_uppercase(), port));
        let pod = naive::Pod {
            namespace: name[..1].to_owned(),
            labels: pod_labels(stage, &name),
            ports: ports.collect(),
        };
        (name, pod)
    });
    (World { namespaces: namespaces.into(), policies }, pods.collect())
}

/// A stage and what must be said of it, whoever is asked.
struct Look<'a> {
    what: String,
    stage: &'a Value,
    v4: bool,
    layout: &'a PolicyLayout,
}

impl Look<'_> {
    /// Everybody to everybody: the documentation, the reference and the program say the same, and what
    /// the table says where it says something. Returns how many attempts that were.
    fn matrix(&self) -> usize {
        let (world, pods) = world(self.stage, self.v4);
        let mut all: Vec<_> = pods.iter().map(|(name, pod)| (&**name, Some(pod))).collect();
        all.push(("out", None));
        let party = |(name, pod): &(&str, _)| naive::Party {
            address: if *name == "out" { outsider(self.v4) } else { address(name, self.v4) },
            pod: *pod,
        };
        let mut tried = 0;
        for (client, server) in all.iter().flat_map(|one| all.iter().map(move |two| (one, two))) {
            for (protocol, port) in
                ["TCP", "UDP", "SCTP"].into_iter().flat_map(|name| [(name, 80), (name, 81)])
            {
                let (from, to) = (party(client), party(server));
                let attempt = Attempt {
                    client: from.address,
                    server: to.address,
                    protocol: Protocol::parse(Some(protocol)),
                    port,
                };
                let want = world.lets(&naive::Call { client: from, server: to, protocol, port });
                let what = format!("{}: {} to {} {protocol} {port}", self.what, client.0, server.0);
                let verdict = decide(self.layout.cluster(), Scope::Node(NODE), &attempt);
                assert_eq!(verdict.is_allowed(), want, "{what}: {verdict:?}");
                let passage = trace(self.layout.program(), &attempt);
                assert_eq!(matches!(passage, Passage::Passed(_)), want, "{what}: {passage:?}");
                let target = format!("{} {} {port}", server.0, protocol.to_lowercase());
                if let (Some(list), Some(_)) = (self.stage["reach"][&target].as_str(), client.1) {
                    assert_eq!(
                        want,
                        is_meant(list, client.0),
                        "{what}: the table says something else"
                    );
                }
                tried += 1;
            }
        }
        tried
    }
}

#[test]
fn published_cases() {
    let cases: Vec<Value> = serde_saphyr::from_str(include_str!("../cases.yaml")).unwrap();
    assert!(cases.len() >= 49);
    let mut tried = 0;
    for case in &cases {
        for v4 in [true, false] {
            let mut layout = PolicyLayout::new(NODE);
            let mut before = Vec::new();
            for (at, stage) in case["stages"].as_array().unwrap().iter().enumerate() {
                enter(&mut layout, &mut before, stage, v4);
                for target in stage["reach"].as_object().unwrap().keys() {
                    assert!(is_target(target), "{target} is tried by nobody");
                }
                let what = format!("{}, stage {at}", case["name"]);
                tried += Look { what, stage, v4, layout: &layout }.matrix();
            }
        }
    }
    eprintln!("{} cases, {tried} attempts", cases.len());
}

/// Whether the table speaks of something that is tried.
fn is_target(target: &str) -> bool {
    let [server, protocol, port] = target.split(' ').collect::<Vec<_>>()[..] else { return false };
    pods().any(|pod| pod == server)
        && ["tcp", "udp", "sctp"].contains(&protocol)
        && ["80", "81"].contains(&port)
}
