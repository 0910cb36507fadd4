//! For random news of a cluster and random attempts, the program does what the reference says, and
//! what the kernel was told amounts to the program.

use std::net::IpAddr;

use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::{Labels, Selector};
use roadstead_forwarding::service::Protocol;

use crate::decide::{Attempt, Judgement, Scope, decide};
use crate::layout::PolicyLayout;
use crate::pod::PolicyPod;
use crate::policy::{
    Direction, NamespaceScope, Peer, PodGroup, Policy, PolicyPort, PolicyRule, Ports,
};
use crate::program::{PolicyProgram, PolicyTransaction};
use crate::trace::{Passage, trace, trace_untracked};

#[derive(Clone, Debug)]
enum News {
    Pod(ObjectKey, Option<PolicyPod>),
    Namespace(String, Option<Labels>),
    Node(String, Option<Vec<IpNet>>),
    Policy(ObjectKey, Option<Policy>),
}

fn keys(first: char) -> impl Strategy<Value = ObjectKey> {
    (select(vec!["x", "y"]), 0..5u8)
        .prop_map(move |(n, p)| ObjectKey::new(n, format!("{first}{p}")))
}

fn labels() -> impl Strategy<Value = Labels> {
    let (keys, values) = (select(vec!["a", "b"]), select(vec!["1", "2"]));
    btree_map(keys.prop_map(str::to_owned), values.prop_map(str::to_owned), 0..3)
}

fn selectors() -> impl Strategy<Value = Selector> {
    let texts = vec!["", "", "a=1", "a=2", "b=1", "a in (1,2),b!=1", "!a", "b", "a notin (2)"];
    select(texts).prop_map(|text| Selector::parse(text).unwrap())
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    let v4 = (0..7u8).prop_map(|n| IpAddr::from([10, 0, 0, n]));
    let v6 = (0..3u16).prop_map(|n| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n]));
    prop_oneof![4 => v4, 1 => v6]
}

fn networks() -> impl Strategy<Value = IpNet> {
    let texts =
        ["10.0.0.0/8", "10.0.0.0/30", "10.0.0.4/31", "10.0.0.2/32", "0.0.0.0/0", "fd00::/64"];
    select(texts.map(|text| text.parse::<IpNet>().unwrap()).to_vec())
}

fn protocols() -> impl Strategy<Value = Protocol> {
    select(vec![Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
}

fn pods() -> impl Strategy<Value = PolicyPod> {
    let ports = vec((select(vec!["web", "dns"]), protocols(), 1..4u16), 0..3);
    let node = select(vec!["here", "here", "there", "yonder"]);
    (labels(), node, vec(addresses(), 0..3), ports, 0..3u8).prop_map(
        |(labels, node, mut addresses, ports, created)| {
            addresses.sort();
            addresses.dedup();
            let named_ports = ports.into_iter().map(|(n, p, number)| (n.to_owned(), p, number));
            let named_ports = named_ports.collect();
            let (created, mark) = (created.into(), created.into());
            PolicyPod { labels, node: node.into(), addresses, named_ports, created, mark }
        },
    )
}

fn rules() -> impl Strategy<Value = Vec<PolicyRule>> {
    let named = select(vec!["x", "y"]).prop_map(|name| NamespaceScope::Named(name.to_owned()));
    let namespaces = prop_oneof![named, selectors().prop_map(NamespaceScope::Matching)];
    let group =
        (namespaces, selectors()).prop_map(|(namespaces, pods)| PodGroup { namespaces, pods });
    let block =
        (networks(), vec(networks(), 0..3)).prop_map(|(net, except)| Peer::Block(net, except));
    let peer = prop_oneof![3 => group.prop_map(Peer::Pods), 1 => block];
    let ports = prop_oneof![
        Just(Ports::Any),
        (1..4u16, 0..3u16).prop_map(|(first, more)| Ports::Range(first, first + more)),
        select(vec!["web", "dns"]).prop_map(|name| Ports::Named(name.to_owned())),
    ];
    let port = (protocols(), ports).prop_map(|(protocol, ports)| PolicyPort { protocol, ports });
    let rule = (option::weighted(0.8, vec(peer, 0..4)), option::weighted(0.5, vec(port, 0..4)));
    vec(rule.prop_map(|(peers, ports)| PolicyRule { peers, ports }), 0..3)
}

fn policies() -> impl Strategy<Value = Policy> {
    let direction = || option::weighted(0.7, rules());
    (selectors(), direction(), direction()).prop_map(|(subjects, ingress, egress)| Policy {
        subjects,
        ingress,
        egress,
    })
}

fn news() -> impl Strategy<Value = News> {
    let pod = (keys('p'), option::weighted(0.8, pods())).prop_map(|(key, pod)| News::Pod(key, pod));
    let space = (select(vec!["x", "y"]), option::weighted(0.9, labels()));
    let policy = (keys('r'), option::weighted(0.8, policies()));
    let node = (select(vec!["here", "there"]), option::weighted(0.8, vec(networks(), 0..2)));
    prop_oneof![
        5 => pod,
        1 => node.prop_map(|(name, blocks)| News::Node(name.to_owned(), blocks)),
        1 => space.prop_map(|(name, labels)| News::Namespace(name.to_owned(), labels)),
        3 => policy.prop_map(|(key, policy)| News::Policy(key, policy)),
    ]
}

fn attempts() -> impl Strategy<Value = Attempt> {
    (addresses(), addresses(), option::weighted(0.9, protocols()), 1..5u16)
        .prop_map(|(client, server, protocol, port)| Attempt { client, server, protocol, port })
}

fn carry_out(program: &mut PolicyProgram, transaction: PolicyTransaction) {
    for set in transaction.add_sets {
        assert!(program.sets.insert(set), "{set} was there");
    }
    for key in transaction.delete {
        assert!(program.elements.remove(&key).is_some(), "{key:?} was not there");
    }
    for (key, value) in transaction.add {
        assert!(program.sets.contains(&key.set), "{key:?} has no set");
        assert!(program.elements.insert(key, value).is_none(), "{key:?} was there");
    }
    for chain in transaction.add_chains {
        assert!(program.chains.insert(chain, Vec::new()).is_none());
    }
    for (chain, rules) in transaction.write {
        assert!(program.chains.insert(chain, rules).is_some(), "only chains that are there");
    }
    for chain in transaction.delete_chains {
        assert!(program.chains.remove(&chain).is_some());
    }
    for set in transaction.delete_sets {
        assert!(program.sets.remove(&set));
        program.elements.retain(|key, _| key.set != set);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_program_does_what_is_decided(
        bursts in vec(vec(news(), 1..6), 1..8),
        attempts in vec(attempts(), 30),
    ) {
        let mut layout = PolicyLayout::new("here");
        let mut kernel = PolicyProgram::default();
        for burst in bursts {
            for news in burst {
                match news {
                    News::Pod(key, pod) => layout.observe_pod(key, pod),
                    News::Namespace(name, labels) => layout.observe_namespace(&name, labels),
                    News::Node(name, blocks) => layout.observe_node(&name, blocks),
                    News::Policy(key, policy) => layout.observe_policy(&key, policy),
                }
            }
            carry_out(&mut kernel, layout.update());
            prop_assert_eq!(&kernel, layout.program());
            for attempt in &attempts {
                let verdict = decide(layout.cluster(), Scope::Node("here"), attempt);
                match trace(&kernel, attempt) {
                    Passage::Passed(_) => prop_assert!(verdict.is_allowed(), "{:?}", verdict),
                    Passage::Dropped(direction) => {
                        let judged = match direction {
                            Direction::Ingress => &verdict.ingress,
                            Direction::Egress => &verdict.egress,
                        };
                        prop_assert!(matches!(judged, Some(Judgement::Denied(..))), "{:?}", verdict);
                    }
                }
                // Of no connection: nobody who is under policies sends or gets it, unless one of them
                // asks nothing at all.
                let free = |own: &Option<Judgement>, direction| {
                    let address = match direction {
                        Direction::Ingress => attempt.server,
                        Direction::Egress => attempt.client,
                    };
                    let owner = layout.cluster().owner_on("here", address);
                    let owner = owner.filter(|_| own.is_some());
                    let policies = owner.map(|pod| layout.cluster().policies_on(pod, direction));
                    let rules = policies.into_iter().flatten().filter_map(|(_, p)| p.rules(direction));
                    let rules: Vec<_> = rules.collect();
                    let open = |rule: &PolicyRule| rule.peers.is_none() && rule.ports.is_none();
                    rules.is_empty() || rules.concat().iter().any(open)
                };
                let want = free(&verdict.egress, Direction::Egress)
                    && free(&verdict.ingress, Direction::Ingress);
                let passed = matches!(trace_untracked(&kernel, attempt), Passage::Passed(_));
                prop_assert_eq!(passed, want);
            }
        }
    }
}
