//! A scheduler without any index, for comparison: it looks at every pod for every node, and chooses by
//! taints and by what stays free. And whole histories: nothing is ever overcommitted, no rule is broken,
//! and the numbers that follow changes are those that counting anew gives.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerPort, Node, Pod, PodAffinityTerm, Taint, Toleration};
use proptest::prelude::*;
use roadstead_api::requests::Requests;
use roadstead_api::selector::{Labels, Selector};
use serde_json::{Value, json};

use super::tests::{key_of, node, pod};
use super::*;

/// Nodes by their names, and the pods that are there.
#[derive(Default)]
struct Naive {
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<ObjectKey, Pod>,
}

fn spec(pod: &Pod) -> &k8s_openapi::api::core::v1::PodSpec {
    pod.spec.as_ref().unwrap()
}

fn labels(pod: &Pod) -> &Labels {
    pod.metadata.labels.as_ref().unwrap()
}

fn apart(pod: &Pod) -> Vec<PodAffinityTerm> {
    let affinity = spec(pod).affinity.as_ref().and_then(|own| own.pod_anti_affinity.clone());
    affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution).unwrap_or_default()
}

fn near(pod: &Pod) -> Vec<PodAffinityTerm> {
    let affinity = spec(pod).affinity.as_ref().and_then(|own| own.pod_affinity.clone());
    affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution).unwrap_or_default()
}

/// All of the test are in one namespace.
fn speaks_of(term: &PodAffinityTerm, pod: &Pod) -> bool {
    let selector = term.label_selector.as_ref().unwrap();
    Selector::from_object(selector).matches_labels(pod.metadata.labels.as_ref())
}

/// What a node has, or 0 if it does not say.
fn amount(node: &Node, name: &str) -> f64 {
    let all = node.status.as_ref().unwrap().allocatable.as_ref().unwrap();
    all.get(name).map_or(0.0, |amount| roadstead_api::quantity::read(&amount.0).unwrap())
}

fn bears(pod: &Pod, taint: &Taint) -> bool {
    let bears = |own: &Toleration| {
        let is_effect = own.effect.is_none() || own.effect.as_ref() == Some(&taint.effect);
        is_effect
            && match (own.operator.as_deref(), &own.key) {
                (Some("Exists"), None) => true,
                (Some("Exists"), Some(key)) => *key == taint.key,
                (_, key) => key.as_ref() == Some(&taint.key) && own.value == taint.value,
            }
    };
    spec(pod).tolerations.iter().flatten().any(bears)
}

/// How many taints of these effects a node has that the pod does not bear.
fn open_taints(pod: &Pod, node: &Node, effects: &[&str]) -> usize {
    let spec = node.spec.as_ref().unwrap();
    let cordon = (spec.unschedulable == Some(true)).then(|| Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    });
    let all = spec.taints.iter().flatten().chain(&cordon);
    all.filter(|taint| effects.contains(&&*taint.effect) && !bears(pod, taint)).count()
}

fn host_ports(pod: &Pod) -> Vec<&ContainerPort> {
    let ports = spec(pod).containers.iter().flat_map(|own| own.ports.iter().flatten());
    ports.filter(|port| port.host_port.is_some()).collect()
}

fn collide(one: &ContainerPort, other: &ContainerPort) -> bool {
    let everywhere =
        |port: &ContainerPort| port.host_ip.as_deref().is_none_or(|ip| ip == "0.0.0.0");
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or("TCP".to_owned());
    one.host_port == other.host_port
        && protocol(one) == protocol(other)
        && (everywhere(one) || everywhere(other) || one.host_ip == other.host_ip)
}

impl Naive {
    fn on<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Pod> {
        self.pods.values().filter(|pod| spec(pod).node_name == node.metadata.name)
    }

    /// Whether there is enough for one more.
    fn has_room(&self, pod: &Pod, node: &Node) -> bool {
        let own = Requests::of_pod(spec(pod));
        let all = self.on(node).map(|other| Requests::of_pod(spec(other)));
        let (cpu, memory) = all.fold((0, 0), |sum, own| (sum.0 + own.cpu, sum.1 + own.memory));
        let fits = |asked: u64, used: u64, has: f64| asked == 0 || (used + asked) as f64 <= has;
        fits(own.cpu, cpu, amount(node, "cpu") * 1000.0)
            && fits(own.memory, memory, amount(node, "memory"))
            && fits(1, self.on(node).count() as u64, amount(node, "pods"))
    }

    fn has_ports(&self, pod: &Pod, node: &Node) -> bool {
        let taken = || self.on(node).flat_map(host_ports);
        host_ports(pod).into_iter().all(|own| !taken().any(|other| collide(own, other)))
    }

    /// Which of these is the best by taints, by what stays free, and by how evenly it is taken. Nobody
    /// here wants company, which would count, too.
    fn choose(&self, pod: &Pod, feasible: &[String]) -> Option<String> {
        let nodes: Vec<_> = feasible.iter().map(|name| &self.nodes[name]).collect();
        let disliked = |node: &Node| open_taints(pod, node, &["PreferNoSchedule"]) as i64;
        let most = nodes.iter().map(|node| disliked(node)).max()?;
        let points = |node: &Node| {
            let taints = if most == 0 { 100 } else { 100 - 100 * disliked(node) / most };
            let sum = |of: fn(&k8s_openapi::api::core::v1::PodSpec) -> Requests| {
                let all = self.on(node).chain([pod]).map(|pod| of(spec(pod)));
                all.fold((0, 0), |sum, own| (sum.0 + own.cpu, sum.1 + own.memory))
            };
            let has = (amount(node, "cpu") * 1000.0, amount(node, "memory"));
            let (cpu, memory) = sum(Requests::estimated);
            let free = |taken: u64, has: f64| 100 * (has as u64).saturating_sub(taken) / has as u64;
            let free = (free(cpu, has.0) + free(memory, has.1)) as i64 / 2;
            let (cpu, memory) = sum(Requests::of_pod);
            let part = |taken: u64, has: f64| (taken as f64 / has).min(1.0);
            let apart = (part(cpu, has.0) - part(memory, has.1)).abs();
            let even = ((1.0 - apart / 2.0) * 100.0) as i64;
            let asks = Requests::of_pod(spec(pod)) != Requests::default();
            3 * taints + free + if asks { even } else { 0 }
        };
        let rank = |node: &&Node| {
            (std::cmp::Reverse(points(node)), self.on(node).count(), node.metadata.name.clone())
        };
        nodes.iter().min_by_key(|node| rank(node))?.metadata.name.clone()
    }

    fn place(&self, node: &str, label: &str) -> Option<String> {
        self.nodes.get(node)?.metadata.labels.as_ref()?.get(label).cloned()
    }

    fn takes(&self, pod: &Pod, node: &Node) -> bool {
        let name = node.metadata.name.as_deref().unwrap();
        let same = |other: &Pod, key: &str| {
            let other = spec(other).node_name.as_deref().and_then(|other| self.place(other, key));
            other.is_some() && other == self.place(name, key)
        };
        let meets = |term: &PodAffinityTerm, with: &Pod| speaks_of(term, with);
        let near = near(pod);
        let company: Vec<_> =
            self.pods.values().filter(|other| near.iter().all(|term| meets(term, other))).collect();
        let has_place = near.iter().all(|term| self.place(name, &term.topology_key).is_some());
        let known = |other: &&Pod| {
            near.iter().any(|term| {
                spec(other)
                    .node_name
                    .as_deref()
                    .is_some_and(|n| self.place(n, &term.topology_key).is_some())
            })
        };
        let is_first = !company.iter().any(known) && near.iter().all(|term| meets(term, pod));
        let is_near = has_place
            && (is_first
                || near.iter().all(|term| company.iter().any(|o| same(o, &term.topology_key))));
        self.has_room(pod, node)
            && self.has_ports(pod, node)
            && open_taints(pod, node, &["NoSchedule", "NoExecute"]) == 0
            && is_near
            && apart(pod).iter().all(|term| {
                !self
                    .pods
                    .values()
                    .any(|other| meets(term, other) && same(other, &term.topology_key))
            })
            && self.pods.values().all(|other| {
                apart(other)
                    .iter()
                    .all(|term| !meets(term, pod) || !same(other, &term.topology_key))
            })
            && self.is_even(pod, node)
    }

    fn is_even(&self, pod: &Pod, node: &Node) -> bool {
        let name = node.metadata.name.as_deref().unwrap();
        spec(pod).topology_spread_constraints.iter().flatten().all(|rule| {
            let Some(own) = self.place(name, &rule.topology_key) else { return false };
            let selector = Selector::from_object(rule.label_selector.as_ref().unwrap());
            let mut counts: BTreeMap<String, i32> = BTreeMap::new();
            for node in self.nodes.keys() {
                let Some(place) = self.place(node, &rule.topology_key) else { continue };
                let count = counts.entry(place).or_default();
                *count += self
                    .pods
                    .values()
                    .filter(|other| {
                        spec(other).node_name.as_ref() == Some(node)
                            && selector.matches_labels(other.metadata.labels.as_ref())
                    })
                    .count() as i32;
            }
            let more = i32::from(selector.matches_labels(Some(labels(pod))));
            counts[&own] + more - counts.values().min().unwrap() <= rule.max_skew
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { pod: Value, evenly: bool },
    Leave(usize),
    Node { number: usize, text: Option<String> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rule = prop_oneof![
        6 => Just(String::new()),
        2 => "apart=[xy]",
        1 => "near=[xy]",
    ];
    let amounts = (0..12_u32, prop_oneof![2 => Just(None), 3 => (0..8_u32).prop_map(Some)]);
    let labels = ("app=[xy]", rule, amounts, 0..3_i32, any::<bool>(), ports(), tolerations());
    let arrive = labels.prop_map(|(app, rule, (cpu, memory), priority, evenly, ports, bears)| {
        let memory = memory.map(|memory| format!("memory={}Mi", memory * 256)).unwrap_or_default();
        let mut pod = pod(&format!("p@ {app} {rule} cpu={}m {memory} prio={priority}", cpu * 100));
        pod["spec"]["containers"][0]["ports"] = ports;
        pod["spec"]["tolerations"] = bears;
        Step::Arrive { pod, evenly }
    });
    let more = prop_oneof![
        6 => Just(String::new()),
        1 => Just("cordoned".to_owned()),
        1 => Just("pods=2".to_owned()),
        4 => "taint=k:[vw]:(NoSchedule|NoExecute|PreferNoSchedule)",
    ];
    let node = ("zone=[12]", 1..3_u32, 1..4_u32, more);
    let change = (0..5_usize, proptest::option::weighted(0.7, node));
    let change = change.prop_map(|(number, node)| Step::Node {
        number,
        text: node.map(|(zone, cpu, memory, more)| {
            format!("n{number} {zone} cpu={cpu} memory={memory}Gi {more}")
        }),
    });
    let step = prop_oneof![6 => arrive, 2 => any::<usize>().prop_map(Step::Leave), 2 => change];
    proptest::collection::vec(step, 1..60)
}

/// Most pods take no port of their node.
fn ports() -> impl Strategy<Value = Value> {
    let address = prop_oneof![
        Just(json!(null)),
        Just(json!("0.0.0.0")),
        "10.0.0.[12]".prop_map(Value::from),
    ];
    let one = (80..82_i32, prop_oneof!["TCP", "UDP"], address);
    let one = one.prop_map(|(port, protocol, address)| {
        json!([{"containerPort": 1, "hostPort": port, "protocol": protocol, "hostIP": address}])
    });
    prop_oneof![3 => Just(json!([])), 1 => one]
}

fn tolerations() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => Just(json!([])),
        1 => Just(json!([{"operator": "Exists"}])),
        1 => Just(json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}])),
        1 => Just(json!([{"key": "k", "value": "v"}])),
        1 => Just(json!([{"key": "other", "operator": "Exists"}])),
    ]
}

/// Both know the same.
struct Pair {
    cluster: Occupancy,
    naive: Naive,
}

impl Pair {
    fn node(&mut self, name: &str, text: Option<&str>) {
        let found = text.map(node);
        self.cluster.observe_node(name, found.as_ref());
        match found {
            Some(node) => drop(self.naive.nodes.insert(name.to_owned(), node)),
            None => drop(self.naive.nodes.remove(name)),
        }
    }

    fn leave(&mut self, key: &ObjectKey) {
        self.naive.pods.remove(key);
        self.cluster.observe_pod(key, None);
    }

    fn arrive(&mut self, waiting: &Value) -> Result<(), TestCaseError> {
        let waiting: Pod = serde_json::from_value(waiting.clone()).unwrap();
        let key = ObjectKey::new("default", waiting.metadata.name.clone().unwrap());
        let takes = |pair: &Self| -> Vec<String> {
            let all = pair.naive.nodes.values().filter(|node| pair.naive.takes(&waiting, node));
            all.map(|node| node.metadata.name.clone().unwrap()).collect()
        };
        let feasible = takes(self);
        match decide(&waiting, &mut self.cluster, &VolumeNeeds::default()) {
            Decision::Bind(node) => {
                prop_assert!(feasible.contains(&node), "{node} is none of {feasible:?}");
                let all = self.naive.pods.values().chain([&waiting]);
                if all.flat_map(near).next().is_none() {
                    let best = self.naive.choose(&waiting, &feasible);
                    prop_assert_eq!(best.as_ref(), Some(&node), "of {:?}", feasible);
                }
                self.bind(&key, waiting, node);
            }
            Decision::Preempt(plan) => {
                prop_assert!(feasible.is_empty(), "{feasible:?}");
                prop_assert!(!plan.victims.is_empty());
                let priority = spec(&waiting).priority;
                for victim in &plan.victims {
                    prop_assert!(spec(&self.naive.pods[victim]).priority < priority);
                    self.leave(victim);
                }
                let now = takes(self);
                prop_assert!(now.contains(&plan.node), "in vain: {now:?}");
                self.bind(&key, waiting, plan.node);
            }
            Decision::Wait(refusal) => {
                prop_assert!(feasible.is_empty(), "{}: {feasible:?}", refusal.why);
            }
        }
        Ok(())
    }

    fn bind(&mut self, key: &ObjectKey, mut pod: Pod, node: String) {
        let placed = PlacedPod::assumed(&pod, &node);
        self.cluster.observe_pod(key, Some(placed.into()));
        pod.spec.as_mut().unwrap().node_name = Some(node);
        self.naive.pods.insert(key.clone(), pod);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn equals_a_naive_reference(steps in steps()) {
        let mut pair = Pair { cluster: Occupancy::default(), naive: Naive::default() };
        pair.node("n0", Some("n0 zone=1"));
        pair.node("n1", Some("n1 zone=2 cpu=2"));
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Node { number, text } => {
                    pair.node(&format!("n{number}"), text.as_deref());
                }
                Step::Leave(which) => {
                    let all: Vec<_> = pair.naive.pods.keys().cloned().collect();
                    if let Some(key) = all.get(which % all.len().max(1)) {
                        pair.leave(key);
                    }
                }
                Step::Arrive { mut pod, evenly } => {
                    pod["metadata"]["name"] = json!(format!("p{number}"));
                    if evenly {
                        let app = pod["metadata"]["labels"]["app"].clone();
                        pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1,
                            "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                            "labelSelector": {"matchLabels": {"app": app}}}]);
                    }
                    prop_assert_eq!(key_of(&pod).namespace, "default");
                    pair.arrive(&pod)?;
                }
            }
        }
    }
}
