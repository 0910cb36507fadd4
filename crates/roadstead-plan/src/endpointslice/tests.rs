use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::prelude::*;

use super::*;
use crate::pod_view::{NamedPort, Phase};

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
fn pod(number: u32, state: &str) -> PodView {
    PodView {
        metadata: ObjectMeta {
            name: Some(format!("pod-{number}")),
            namespace: Some("default".into()),
            uid: Some(format!("uid-{number}")),
            deletion_timestamp: (state == "going").then_some(Time(jiff::Timestamp::UNIX_EPOCH)),
            ..Default::default()
        },
        node: if state == "homeless" { "nowhere" } else { "node" }.into(),
        phase: if state == "gone" { Phase::Failed } else { Phase::Running },
        addresses: vec![address(number).parse().unwrap()],
        ready: state != "waiting",
        ..Default::default()
    }
}

fn pods(text: &str) -> Vec<PodView> {
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
    fn sync(&mut self, service: &Service, pods: &[PodView], max: usize) -> SlicePlan {
        let node = Node::default();
        let find = |name: &str| (name == "node").then_some(&node);
        let pods: Vec<_> = pods.iter().collect();
        let slices: Vec<_> = self.slices.iter().collect();
        let input = Input {
            service,
            pods: &pods,
            node: &find,
            slices: &slices,
            max_endpoints: max,
            topology: &Topology::default(),
            trigger: None,
        };
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
fn a_slice_over_a_lower_limit_is_split() {
    let pods: Vec<_> = (0..100).map(|n| pod(n, "ready")).collect();
    let mut cluster = Cluster::default();
    cluster.sync(&service(), &pods, 100);
    cluster.sync(&service(), &pods, 40);
    assert_eq!(cluster.sizes(), [20, 40, 40]);
}

#[test]
fn upstream_packing_figures() {
    let range = |from: u32, to: u32| (from..to).map(|n| pod(n, "ready")).collect::<Vec<_>>();
    let held = |from: u32, to: u32| {
        let mut other = Cluster::default();
        other.sync(&service(), &range(from, to), 100);
        other.slices.remove(0)
    };
    // Slices that exist, all pods, sizes in the end, creates, updates.
    let cases = [
        ("62 + 61 of 250", vec![(0, 62), (62, 123)], 250, vec![61, 89, 100], 1, 1),
        ("74 + 74 of 300", vec![(0, 74), (74, 148)], 300, vec![52, 74, 74, 100], 2, 0),
    ];
    for (name, existing, all, want, creates, updates) in cases {
        let mut cluster = Cluster::default();
        for (number, (from, to)) in existing.into_iter().enumerate() {
            let mut slice = held(from, to);
            slice.metadata.name = Some(format!("old-{number}"));
            cluster.slices.push(slice);
        }
        let plan = cluster.sync(&service(), &range(0, all), 100);
        assert_eq!(cluster.sizes(), want, "{name}");
        assert_eq!((plan.create.len(), plan.update.len()), (creates, updates), "{name}");
    }
}

#[test]
fn pods_with_different_ports_are_apart() {
    let mut service = service();
    let by_name = |port: i32, name: &str| ServicePort {
        name: Some(name.into()),
        port,
        target_port: Some(IntOrString::String(name.into())),
        ..Default::default()
    };
    service.spec.as_mut().unwrap().ports = Some(vec![by_name(80, "h"), by_name(90, "m")]);
    let listening = |number: u32, ports: &[(&str, i32)]| PodView {
        ports: ports
            .iter()
            .map(|(name, number)| NamedPort {
                name: (*name).into(),
                protocol: "TCP".into(),
                number: *number,
            })
            .collect(),
        ..pod(number, "ready")
    };
    let pods = [
        listening(1, &[("h", 8080), ("m", 9090)]),
        listening(2, &[("h", 8443), ("m", 9090)]),
        listening(3, &[("m", 9090)]),
        listening(4, &[("h", 8080), ("m", 9090)]),
    ];
    let mut cluster = Cluster::default();
    cluster.sync(&service, &pods, 100);
    let mut got: Vec<_> = cluster
        .slices
        .iter()
        .map(|slice| {
            let ports = slice.ports.iter().flatten();
            let ports: Vec<_> = ports.map(|p| p.port.unwrap().to_string()).collect();
            (ports.join(","), slice.endpoints.iter().flatten().count())
        })
        .collect();
    got.sort();
    let want = [("8080,9090", 2), ("8443,9090", 1), ("9090", 1)];
    assert_eq!(got, want.map(|(ports, count)| (ports.to_owned(), count)));
}

#[test]
fn every_family_has_its_slices() {
    let mut service = service();
    service.spec.as_mut().unwrap().ip_families = Some(vec!["IPv4".into(), "IPv6".into()]);
    let mut dual = pod(1, "ready");
    dual.addresses.push("fd00::1".parse().unwrap());
    let pods = [dual, pod(2, "ready")];
    let mut cluster = Cluster::default();
    cluster.sync(&service, &pods, 100);
    let sizes = |cluster: &Cluster, family: &str| {
        let slices = cluster.slices.iter().filter(|slice| slice.address_type == family);
        slices.map(|slice| slice.endpoints.iter().flatten().count()).collect::<Vec<_>>()
    };
    assert_eq!((sizes(&cluster, "IPv4"), sizes(&cluster, "IPv6")), (vec![2], vec![1]));
    service.spec.as_mut().unwrap().ip_families = Some(vec!["IPv4".into()]);
    cluster.sync(&service, &pods, 100);
    assert_eq!((sizes(&cluster, "IPv4"), sizes(&cluster, "IPv6")), (vec![2], vec![]));
}

#[test]
fn names_labels_and_hints_of_a_slice() {
    let mut service = service();
    service.metadata.labels = Some(
        [("team".to_owned(), "a".to_owned()), (MANAGED_BY.to_owned(), "me".to_owned())].into(),
    );
    let spec = service.spec.as_mut().unwrap();
    spec.cluster_ip = Some("None".into());
    spec.traffic_distribution = Some("PreferSameNode".into());
    let named = PodView { hostname: "one".into(), subdomain: "web".into(), ..pod(1, "ready") };
    let other = PodView { hostname: "two".into(), subdomain: "db".into(), ..pod(2, "ready") };
    let mut cluster = Cluster::default();
    cluster.sync(&service, &[named, other], 100);
    let slice = &cluster.slices[0];
    let want = [(SERVICE_NAME, "web"), (MANAGED_BY, CONTROLLER), (HEADLESS, ""), ("team", "a")];
    let want = want.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(slice.metadata.labels, Some(BTreeMap::from(want)));
    let owner = &slice.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Service", "service-uid"));
    let endpoints = slice.endpoints.as_ref().unwrap();
    let names: Vec<_> = endpoints.iter().map(|e| e.hostname.as_deref()).collect();
    assert_eq!(names, [Some("one"), None]);
    let nodes = endpoints[0].hints.as_ref().unwrap().for_nodes.as_ref().unwrap();
    assert_eq!(nodes[0].name, "node");
    service.metadata.labels.as_mut().unwrap().insert("team".into(), "b".into());
    cluster.sync(&service, &pods("1 2"), 100);
    assert_eq!(cluster.slices[0].metadata.labels.as_ref().unwrap()["team"], "b");
}

#[test]
fn the_trigger_is_written_with_a_change_and_not_without() {
    let (service, node) = (service(), Node::default());
    let find = |_: &str| Some(&node);
    let pods = pods("1");
    let pods: Vec<_> = pods.iter().collect();
    let topology = Topology::default();
    let input = |slices, trigger| Input {
        service: &service,
        pods: &pods,
        node: &find,
        slices,
        max_endpoints: 100,
        topology: &topology,
        trigger,
    };
    let first = plan(&input(&[], Some(Timestamp::UNIX_EPOCH)));
    let annotations = first.create[0].metadata.annotations.clone().unwrap();
    assert_eq!(annotations[trigger_time::ANNOTATION], "1970-01-01T00:00:00Z");
    let again = plan(&input(&[&first.create[0]], None));
    assert_eq!((again.create.len(), again.update.len()), (0, 0));
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
