use k8s_openapi::api::core::v1::{
    PodCondition, PodIP, PodSpec, PodStatus, ServicePort, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;

fn service() -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some("web".into()),
            namespace: Some("default".into()),
            uid: Some("service-uid".into()),
            ..Default::default()
        },
        spec: Some(ServiceSpec {
            ip_families: Some(vec!["IPv4".into()]),
            ports: Some(vec![ServicePort { port: 80, ..Default::default() }]),
            ..Default::default()
        }),
        status: None,
    }
}

/// The address of a pod by its number; the order of texts is the order of numbers.
fn address(number: u32) -> String {
    format!("10.{}.{}.{}", 100 + number / 10_000, 100 + number / 100 % 100, 100 + number % 100)
}

/// `7=ready` is pod 7; states are ready, waiting, going, gone, homeless.
fn pod(number: u32, state: &str) -> Pod {
    let condition = PodCondition {
        type_: "Ready".into(),
        status: if state == "waiting" { "False" } else { "True" }.into(),
        ..Default::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("pod-{number}")),
            namespace: Some("default".into()),
            uid: Some(format!("uid-{number}")),
            deletion_timestamp: (state == "going").then_some(Time(jiff::Timestamp::UNIX_EPOCH)),
            ..Default::default()
        },
        spec: Some(PodSpec {
            node_name: Some(if state == "homeless" { "nowhere" } else { "node" }.into()),
            ..Default::default()
        }),
        status: Some(PodStatus {
            phase: Some(if state == "gone" { "Succeeded" } else { "Running" }.into()),
            pod_ips: Some(vec![PodIP { ip: address(number) }]),
            conditions: Some(vec![condition]),
            ..Default::default()
        }),
    }
}

fn pods(text: &str) -> Vec<Pod> {
    let pair = |word: &str| {
        let (number, state) = word.split_once('=').unwrap_or((word, "ready"));
        pod(number.parse().unwrap(), state)
    };
    text.split_whitespace().map(pair).collect()
}

/// A cluster that carries out plans, counting the writes.
#[derive(Default)]
struct Cluster {
    slices: Vec<EndpointSlice>,
    names: u32,
    writes: usize,
}

impl Cluster {
    fn sync(&mut self, service: &Service, pods: &[Pod], max: usize) -> SlicePlan {
        let node = Node::default();
        let find = |name: &str| (name == "node").then_some(&node);
        let pods: Vec<_> = pods.iter().collect();
        let slices: Vec<_> = self.slices.iter().collect();
        let input =
            Input { service, pods: &pods, node: &find, slices: &slices, max_endpoints: max };
        let plan = plan(&input);
        self.writes = plan.create.len() + plan.update.len() + plan.delete.len();
        for slice in &plan.delete {
            self.slices.retain(|old| old.metadata.name != slice.metadata.name);
        }
        for slice in &plan.update {
            let old = self.slices.iter_mut().find(|old| old.metadata.name == slice.metadata.name);
            *old.expect("only existing slices are updated") = slice.clone();
        }
        for slice in &plan.create {
            let mut slice = slice.clone();
            self.names += 1;
            slice.metadata.name = Some(format!("web-{:03}", self.names));
            self.slices.push(slice);
        }
        plan
    }

    fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<_> =
            self.slices.iter().map(|s| s.endpoints.iter().flatten().count()).collect();
        sizes.sort();
        sizes
    }

    fn show(&self) -> String {
        let endpoints = self.slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let words = endpoints.map(|endpoint| {
            let c = endpoint.conditions.as_ref().unwrap();
            let flag = |set: Option<bool>, letter| if set == Some(true) { letter } else { '-' };
            let target = endpoint.target_ref.as_ref().unwrap().name.as_deref().unwrap();
            let number = target.trim_start_matches("pod-");
            let flags = [flag(c.ready, 'r'), flag(c.serving, 's'), flag(c.terminating, 't')];
            format!("{number}:{}", String::from_iter(flags))
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn conditions_follow_the_pod() {
    let mut cluster = Cluster::default();
    let plan = cluster.sync(&service(), &pods("1 2=waiting 3=going 4=gone 5=homeless"), 100);
    assert_eq!(cluster.show(), "1:rs- 2:--- 3:-st");
    assert_eq!(plan.missing_nodes, BTreeSet::from(["nowhere".to_owned()]));
    let mut all = service();
    all.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
    cluster.sync(&all, &pods("1 2=waiting"), 100);
    assert_eq!(cluster.show(), "1:rs- 2:r--");
}

#[test]
fn a_service_without_pods_has_an_empty_slice() {
    let mut cluster = Cluster::default();
    cluster.sync(&service(), &[], 100);
    assert_eq!((cluster.sizes(), cluster.writes), (vec![0], 1));
    cluster.sync(&service(), &[], 100);
    assert_eq!(cluster.writes, 0, "the placeholder is not written again");
    let name = cluster.slices[0].metadata.name.clone();
    cluster.sync(&service(), &pods("1"), 100);
    assert_eq!((cluster.sizes(), cluster.writes), (vec![1], 1));
    assert_eq!(cluster.slices[0].metadata.name, name, "the slice is reused");
}

#[test]
fn slices_are_packed_with_few_writes() {
    let range = |from: u32, to: u32| (from..to).map(|n| pod(n, "ready")).collect::<Vec<_>>();
    let cases = [
        ("250 at once", vec![range(0, 250)], 100, vec![50, 100, 100], 3),
        ("250 by 80", vec![range(0, 250)], 80, vec![10, 80, 80, 80], 4),
        ("one more", vec![range(0, 250), range(0, 251)], 100, vec![51, 100, 100], 1),
        ("one less", vec![range(0, 250), range(1, 250)], 100, vec![50, 99, 100], 1),
        ("none left", vec![range(0, 250), vec![]], 100, vec![0], 3),
        (
            "60 gone from the first, then 30 new",
            vec![range(0, 250), range(60, 250), range(60, 280)],
            100,
            vec![40, 80, 100],
            1,
        ),
    ];
    for (name, steps, max, want, writes) in cases {
        let mut cluster = Cluster::default();
        for pods in steps {
            cluster.sync(&service(), &pods, max);
        }
        assert_eq!((cluster.sizes(), cluster.writes), (want, writes), "{name}");
    }
}

#[test]
fn a_new_port_rewrites_slices_in_place() {
    let pods: Vec<_> = (0..300).map(|n| pod(n, "ready")).collect();
    let mut cluster = Cluster::default();
    cluster.sync(&service(), &pods, 30);
    assert_eq!(cluster.sizes(), vec![30; 10]);
    let mut changed = service();
    changed.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].port = 81;
    let plan = cluster.sync(&changed, &pods, 100);
    let counts = (plan.create.len(), plan.update.len(), plan.delete.len());
    assert_eq!((counts, cluster.sizes()), ((0, 3, 7), vec![100; 3]));
}

#[test]
fn slices_of_a_predecessor_are_deleted() {
    let mut cluster = Cluster::default();
    cluster.sync(&service(), &pods("1"), 100);
    let mut successor = service();
    successor.metadata.uid = Some("another".into());
    let plan = cluster.sync(&successor, &pods("1"), 100);
    assert_eq!((plan.create.len(), plan.delete.len()), (1, 1));
}

proptest! {
    /// Over any history of pods: every eligible pod is in exactly one slice, no slice is too
    /// large, a second sync writes nothing, and one pod more or less costs one write.
    #[test]
    fn nothing_is_lost_doubled_or_rewritten(
        steps in proptest::collection::vec(
            proptest::collection::btree_map(0u32..40, "ready|waiting|going|gone", 0..30), 1..8),
        extra in 100u32..110,
        max in 1usize..12,
    ) {
        let mut cluster = Cluster::default();
        let service = service();
        for step in &steps {
            let pods: Vec<_> = step.iter().map(|(n, state)| pod(*n, state)).collect();
            cluster.sync(&service, &pods, max);
            let mut got: Vec<_> = cluster.slices.iter().flat_map(|s| s.endpoints.iter().flatten())
                .map(|e| e.target_ref.as_ref().unwrap().name.clone().unwrap()).collect();
            got.sort();
            let mut want: Vec<_> = step.iter().filter(|(_, state)| *state != "gone")
                .map(|(n, _)| format!("pod-{n}")).collect();
            want.sort();
            prop_assert_eq!(got, want);
            prop_assert!(cluster.sizes().iter().all(|size| *size <= max));
            prop_assert!(!cluster.slices.is_empty());
            cluster.sync(&service, &pods, max);
            prop_assert_eq!(cluster.writes, 0);
        }
        let mut pods: Vec<_> = steps.last().unwrap().iter().map(|(n, s)| pod(*n, s)).collect();
        pods.push(pod(extra, "ready"));
        cluster.sync(&service, &pods, max);
        prop_assert!(cluster.writes <= 1, "{} writes for a new pod", cluster.writes);
        pods.pop();
        cluster.sync(&service, &pods, max);
        prop_assert!(cluster.writes <= 1, "{} writes for a lost pod", cluster.writes);
    }
}
