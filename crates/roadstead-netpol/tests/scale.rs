//! What a change costs among a thousand pods and a thousand policies, kernel included.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use roadstead_api::key::ObjectKey;
use roadstead_api::selector::{Labels, Selector};
use roadstead_forwarding::service::{IpFamily, Protocol};
use roadstead_netlink::nftables::others::OwnCommits;
use roadstead_netpol::plane::PolicyPlane;
use roadstead_policy::layout::PolicyLayout;
use roadstead_policy::pod::PolicyPod;
use roadstead_policy::policy::{
    NamespaceScope, Peer, PodGroup, Policy, PolicyPort, PolicyRule, Ports,
};
use roadstead_testkit::netns::laboratory;

const SPACES: u16 = 50;
const ROUNDS: usize = 21;

fn labels(pairs: &[(&str, String)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

fn pod(number: u16, app: u16) -> (ObjectKey, PolicyPod) {
    let [high, low] = number.to_be_bytes();
    let pod = PolicyPod {
        labels: labels(&[("app", format!("a{app}"))]),
        node: "here".into(),
        addresses: vec![[10, 244, high, low].into()],
        named_ports: vec![("http".into(), Protocol::Tcp, 8080)],
        created: 1,
        mark: 1,
    };
    (ObjectKey::new(format!("n{}", number % SPACES), format!("p{number}")), pod)
}

/// The pods of an app may be called by another app of their namespace, and by namespaces of a team.
fn policy(number: u16, port: u16) -> (ObjectKey, Policy) {
    let app = |number: u16| Selector::parse(&format!("app=a{}", number % 20)).unwrap();
    let space = format!("n{}", number % SPACES);
    let team = Selector::parse(&format!("team=t{}", number % 10)).unwrap();
    let group = |namespaces, pods| Peer::Pods(PodGroup { namespaces, pods });
    let peers = vec![
        group(NamespaceScope::Named(space.clone()), app(number + 1)),
        group(NamespaceScope::Matching(team), app(number + 2)),
    ];
    let ports = vec![
        PolicyPort { protocol: Protocol::Tcp, ports: Ports::Range(port, port) },
        PolicyPort { protocol: Protocol::Tcp, ports: Ports::Named("http".into()) },
    ];
    let rule = PolicyRule { peers: Some(peers), ports: Some(ports) };
    let policy = Policy {
        subjects: app(number / SPACES),
        ingress: Some(vec![rule.clone()]),
        egress: Some(vec![rule]),
    };
    (ObjectKey::new(space, format!("r{number}")), policy)
}

#[test]
fn one_change_among_many() {
    laboratory(|| {
        let own = OwnCommits::default();
        let mut planes = [IpFamily::V4, IpFamily::V6]
            .map(|family| PolicyPlane::open(family, own.clone()).unwrap());
        let mut layout = PolicyLayout::new("here");
        for space in 0..SPACES {
            let team = labels(&[("team", format!("t{}", space % 10))]);
            layout.observe_namespace(&format!("n{space}"), Some(team));
        }
        for number in 0..1000 {
            let (key, pod) = pod(number, number / SPACES);
            layout.observe_pod(key, Some(pod));
            let (key, policy) = policy(number, 80);
            layout.observe_policy(&key, Some(policy));
        }
        let mut commit = |layout: &mut PolicyLayout| {
            let start = Instant::now();
            let changes = layout.update();
            let planned = start.elapsed();
            for plane in &mut planes {
                plane.commit(layout.program(), &changes).unwrap();
            }
            (start.elapsed(), planned, changes.operations())
        };
        let (took, _, operations) = commit(&mut layout);
        eprintln!("1,000 policies and 1,000 pods: {took:.1?}, {operations} operations");
        let mut rows: BTreeMap<&str, Vec<(Duration, Duration, usize)>> = BTreeMap::new();
        for round in 0..ROUNDS {
            let n = u16::try_from(round).unwrap();
            let (key, view) = pod(n, n + 3);
            layout.observe_pod(key.clone(), Some(view));
            rows.entry("a pod has other labels").or_default().push(commit(&mut layout));
            layout.observe_pod(key.clone(), None);
            rows.entry("a pod goes").or_default().push(commit(&mut layout));
            layout.observe_pod(key, Some(pod(n, n / SPACES).1));
            rows.entry("a pod comes").or_default().push(commit(&mut layout));
            let (key, changed) = policy(n, 81);
            layout.observe_policy(&key, Some(changed));
            rows.entry("a policy has another port").or_default().push(commit(&mut layout));
            layout.observe_policy(&key, None);
            rows.entry("a policy goes").or_default().push(commit(&mut layout));
            layout.observe_policy(&key, Some(policy(n, 80).1));
            rows.entry("a policy comes").or_default().push(commit(&mut layout));
            let all = Policy { subjects: Selector::default(), ingress: Some(vec![]), egress: None };
            let key = ObjectKey::new(format!("n{n}"), "deny");
            layout.observe_policy(&key, Some(all));
            rows.entry("a namespace is denied").or_default().push(commit(&mut layout));
            let team = labels(&[("team", format!("t{}", n + 1))]);
            layout.observe_namespace(&format!("n{n}"), Some(team));
            rows.entry("a namespace has other labels").or_default().push(commit(&mut layout));
        }
        for (what, mut row) in rows {
            row.sort();
            let (median, planned, operations) = row[row.len() / 2];
            eprintln!(
                "{what}: {median:.2?}, of it {planned:.2?} before the kernel (slowest {:.2?}), \
                 {operations} operations",
                row[row.len() - 1].0
            );
            // On a machine that has nothing else to do it is a tenth of that (`docs/networkpolicy.md`).
            let most = Duration::from_millis(50);
            assert!(median < most, "{what} took {median:?}");
        }
    });
}
