//! What the kernel is told of one change is the same among ten pods and among a thousand.

use roadstead_api::key::ObjectKey;
use roadstead_api::selector::{Labels, Selector};
use roadstead_forwarding::service::Protocol;

use crate::layout::PolicyLayout;
use crate::pod::PolicyPod;
use crate::policy::{NamespaceScope, Peer, PodGroup, Policy, PolicyPort, PolicyRule, Ports};

fn pod(number: u16, app: &str) -> PolicyPod {
    let [high, low] = number.to_be_bytes();
    PolicyPod {
        labels: Labels::from([("app".to_owned(), app.to_owned())]),
        node: "here".into(),
        addresses: vec![[10, 244, high, low].into()],
        created: 1,
        ..PolicyPod::default()
    }
}

/// Who may call these pods, on one port.
fn policy(subjects: &str, peers: &str, port: u16) -> Policy {
    let selector = |text| Selector::parse(text).unwrap();
    let group = PodGroup { namespaces: NamespaceScope::Named("x".into()), pods: selector(peers) };
    let port = PolicyPort { protocol: Protocol::Tcp, ports: Ports::Range(port, port) };
    let rule = PolicyRule { peers: Some(vec![Peer::Pods(group)]), ports: Some(vec![port]) };
    Policy { subjects: selector(subjects), ingress: Some(vec![rule]), egress: None }
}

/// What each change costs among so many pods of one namespace.
fn costs(pods: u16) -> Vec<(&'static str, usize)> {
    let key = |name: &str| ObjectKey::new("x", name);
    let mut layout = PolicyLayout::new("here");
    layout.observe_namespace("x", Some(Labels::default()));
    for number in 0..pods {
        let app = if number % 2 == 0 { "web" } else { "client" };
        layout.observe_pod(key(&format!("p{number}")), Some(pod(number, app)));
    }
    layout.observe_policy(&key("web"), Some(policy("app=web", "app=client", 80)));
    layout.update();
    let deny = Policy { subjects: Selector::default(), ingress: Some(vec![]), egress: None };
    type Change<'a> = (&'static str, Box<dyn Fn(&mut PolicyLayout) + 'a>);
    let changes: [Change<'_>; 8] = [
        (
            "a pod comes",
            Box::new(|all: &mut PolicyLayout| {
                all.observe_pod(key("new"), Some(pod(60_000, "web")))
            }),
        ),
        (
            "has other labels",
            Box::new(|all: &mut PolicyLayout| {
                all.observe_pod(key("new"), Some(pod(60_000, "client")))
            }),
        ),
        ("goes", Box::new(|all: &mut PolicyLayout| all.observe_pod(key("new"), None))),
        (
            "a policy has another port",
            Box::new(|all: &mut PolicyLayout| {
                all.observe_policy(&key("web"), Some(policy("app=web", "app=client", 81)));
            }),
        ),
        (
            "a policy more for the same pods",
            Box::new(|all: &mut PolicyLayout| {
                all.observe_policy(&key("more"), Some(policy("app=web", "app=client", 82)));
            }),
        ),
        ("and it goes", Box::new(|all: &mut PolicyLayout| all.observe_policy(&key("more"), None))),
        (
            "all who are under policies already are denied",
            Box::new(|all: &mut PolicyLayout| {
                let subjects = Selector::parse("app=web").unwrap();
                all.observe_policy(&key("deny"), Some(Policy { subjects, ..deny.clone() }));
            }),
        ),
        (
            "and not any more",
            Box::new(|all: &mut PolicyLayout| all.observe_policy(&key("deny"), None)),
        ),
    ];
    let cost = |(name, change): &Change<'_>| {
        change(&mut layout);
        (*name, layout.update().operations())
    };
    changes.iter().map(cost).collect()
}

#[test]
fn a_change_costs_the_same_among_any_number_of_pods() {
    let few = costs(10);
    assert_eq!(few, costs(1000));
    assert!(few.iter().all(|(_, operations)| (1..=10).contains(operations)), "{few:?}");
}
