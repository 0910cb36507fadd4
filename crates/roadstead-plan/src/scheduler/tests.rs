//! Where pods go, in a notation that lets a cluster fit on a line.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

use super::*;

/// `a zone=z1 cpu=2 memory=1Gi; b cordoned; c taint=k:v:NoSchedule; d down; e pods=1; f image=x:500; g gpu=1`: each
/// node has its name as the label `host`, too.
pub(super) fn node(text: &str) -> Node {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap();
    let mut node = json!({"metadata": {"name": name, "labels": {"host": name,
            "kubernetes.io/hostname": name}}, "spec": {"taints": []},
        "status": {"allocatable": {"cpu": "1", "memory": "4Gi", "pods": "110"}, "images": [],
            "conditions": [{"type": "Ready", "status": "True"}]}});
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "cordoned" => node["spec"]["unschedulable"] = json!(true),
            "down" => node["status"]["conditions"][0]["status"] = json!("Unknown"),
            "cpu" | "memory" | "pods" => node["status"]["allocatable"][key] = json!(value),
            "gpu" => node["status"]["allocatable"]["v.io/gpu"] = json!(value),
            "taint" => {
                let parts: Vec<_> = value.split(':').collect();
                let taint = json!({"key": parts[0], "value": parts[1], "effect": parts[2]});
                node["spec"]["taints"].as_array_mut().unwrap().push(taint);
            }
            "image" => {
                let (image, size) = value.split_once(':').unwrap();
                let size = size.parse::<u64>().unwrap() << 20;
                let image = json!({"names": [format!("{image}:latest")], "sizeBytes": size});
                node["status"]["images"].as_array_mut().unwrap().push(image);
            }
            _ => node["metadata"]["labels"][key] = json!(value),
        }
    }
    serde_json::from_value(node).unwrap()
}

/// `p@a app=x cpu=500m memory=1Gi prio=5 port=80 ns=other leaving since=3 apart=x near=x rather=x`: a pod on node a, with
/// labels, and terms about `app` and the label `host`.
pub(super) fn pod(text: &str) -> Value {
    let mut words = text.split_whitespace();
    let (name, node) = words.next().unwrap().split_once('@').unwrap();
    let mut pod = json!({"metadata": {"name": name, "uid": name, "namespace": "default", "labels": {}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i",
            "resources": {"requests": {}}}]}, "status": {}});
    let term =
        |app: &str| json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "host"});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let spec = &mut pod["spec"];
        match key {
            "cpu" | "memory" => spec["containers"][0]["resources"]["requests"][key] = json!(value),
            "gpu" => spec["containers"][0]["resources"]["requests"]["v.io/gpu"] = json!(value),
            "prio" => spec["priority"] = json!(value.parse::<i32>().unwrap()),
            "never" => spec["preemptionPolicy"] = json!("Never"),
            "image" => spec["containers"][0]["image"] = json!(value),
            "port" => {
                let port = value.parse::<i32>().unwrap();
                spec["containers"][0]["ports"] = json!([{"containerPort": 1, "hostPort": port}]);
            }
            "apart" => spec["affinity"]["podAntiAffinity"][required] = json!([term(value)]),
            "near" => spec["affinity"]["podAffinity"][required] = json!([term(value)]),
            "rather" => {
                let term = json!([{"weight": 10, "podAffinityTerm": term(value)}]);
                spec["affinity"]["podAffinity"][preferred] = term;
            }
            "ns" => pod["metadata"]["namespace"] = json!(value),
            "owner" => {
                pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "uid": value,
                    "kind": "ReplicaSet", "name": value, "controller": true}]);
            }
            "leaving" => pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            "since" => pod["status"]["startTime"] = json!(format!("2026-01-01T00:00:0{value}Z")),
            "for" => pod["status"]["nominatedNodeName"] = json!(value),
            _ => pod["metadata"]["labels"][key] = json!(value),
        }
    }
    pod
}

pub(super) fn key_of(pod: &Value) -> ObjectKey {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
    ObjectKey::new(text("namespace"), text("name"))
}

pub(super) fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty())
}

pub(super) fn cluster(nodes: &str, pods: &str) -> Occupancy {
    let mut cluster = Occupancy::default();
    for node in parts(nodes).map(node) {
        assert!(cluster.observe_node(node.metadata.name.as_deref().unwrap(), Some(&node)));
    }
    for pod in parts(pods).map(pod) {
        let placed: PlacedPod = serde_json::from_value(pod.clone()).unwrap();
        cluster.observe_pod(&key_of(&pod), Some(placed.into()));
    }
    cluster
}

fn told(decision: &Decision) -> String {
    match decision {
        Decision::Bind(node) => node.clone(),
        Decision::Wait(refusal) => refusal.why.clone(),
        Decision::Preempt(plan) => {
            let names: Vec<_> = plan.victims.iter().map(|key| key.name.as_str()).collect();
            format!("{} without {}", plan.node, names.join(","))
        }
    }
}

fn ask(cluster: &mut Occupancy, pod: &Value) -> String {
    let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
    let first = decide(&pod, cluster, &VolumeNeeds::default());
    assert_eq!(decide(&pod, cluster, &VolumeNeeds::default()), first, "the same every time");
    told(&first)
}

const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NO_HELP: &str = "Preemption is not helpful for scheduling";

#[test]
fn rules_that_must_hold() {
    let apart = "node(s) didn't match pod anti-affinity rules";
    let cases = [
        ("the emptiest", "a; b", "x@a; y@a; z@b", "p@", "b".to_owned()),
        ("enough processors", "b", "x@b cpu=900m", "p@ cpu=100m", "b".into()),
        (
            "too few of several things",
            "a cpu=2 pods=1; b; c cordoned; d down; e taint=k:v:NoExecute",
            "x@a cpu=1500m; y@b cpu=500m",
            "p@ cpu=600m",
            format!(
                "0/5 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint {{k: v}}, 1 \
                 node(s) had untolerated taint {{node.kubernetes.io/unreachable: }}, 1 node(s) were \
                 unschedulable, 2 Insufficient cpu. preemption: 0/5 nodes are available: 2 {NO_VICTIMS}, \
                 3 {NO_HELP}."
            ),
        ),
        ("a device", "a; b gpu=1", "", "p@ gpu=1", "b".into()),
        (
            "no such device",
            "a; b gpu=1",
            "x@b gpu=1",
            "p@ gpu=1",
            format!(
                "0/2 nodes are available: 2 Insufficient v.io/gpu. preemption: 0/2 nodes are available: \
                 1 {NO_VICTIMS}, 1 {NO_HELP}."
            ),
        ),
        ("no node", "", "", "p@", "no nodes available to schedule pods".into()),
        ("a port", "a; b", "x@a port=80; y@b; z@b", "p@ port=80", "b".into()),
        ("apart", "a; b", "x@a app=x; y@b; z@b", "p@ app=x apart=x", "b".into()),
        (
            "apart from another namespace",
            "a; b",
            "x@a app=x ns=n; y@b; z@b",
            "p@ apart=x",
            "a".into(),
        ),
        (
            "no room apart",
            "a; b",
            "x@a app=x; y@b app=x",
            "p@ apart=x",
            format!(
                "0/2 nodes are available: 2 {apart}. preemption: 0/2 nodes are available: 2 {NO_VICTIMS}."
            ),
        ),
        ("others want to be apart", "a; b", "x@a apart=p; y@b; z@b", "p@ app=p", "b".into()),
        (
            "all others want to be apart",
            "a",
            "x@a apart=p",
            "p@ app=p",
            format!(
                "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules. \
                 preemption: 0/1 nodes are available: 1 {NO_VICTIMS}."
            ),
        ),
        ("near", "a; b", "x@a app=x; y@a", "p@ near=x", "a".into()),
        ("the first of its own", "a; b", "y@a", "p@ app=x near=x", "b".into()),
        (
            "nobody to be near",
            "a",
            "x@a app=x ns=n",
            "p@ app=y near=x",
            format!(
                "0/1 nodes are available: 1 node(s) didn't match pod affinity rules. preemption: 0/1 nodes \
                 are available: 1 {NO_HELP}."
            ),
        ),
        (
            "never",
            "a",
            "x@a cpu=1",
            "p@ cpu=1 prio=9 never",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to \
             preemptionPolicy=Never."
                .into(),
        ),
        ("rather near", "a; b", "x@a app=x; y@a; z@b", "p@ rather=x", "a".into()),
        ("disliked taints", "a taint=k:v:PreferNoSchedule; b", "y@b; z@b", "p@", "b".into()),
        ("brothers elsewhere", "a; b", "x@a owner=o; y@b; z@b; w@b", "p@ owner=o", "b".into()),
        ("an image", "a; b image=i:900", "y@b", "p@", "b".into()),
    ];
    for (name, nodes, pods, given, want) in cases {
        assert_eq!(ask(&mut cluster(nodes, pods), &pod(given)), want, "{name}");
    }
}

#[test]
fn places_that_pods_name() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let field = |name: &str| {
        json!({"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}}}})
    };
    let preferred = json!({"affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference":
            {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}]}}});
    let tolerant = json!({"tolerations": [{"operator": "Exists"}]});
    let selector = |value: &str| json!({"nodeSelector": {"disk": value}});
    let none = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: \
        0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    let cases = [
        ("by label", "a disk=ssd; b", selector("ssd"), "a"),
        ("by name", "a; b", field("b"), "b"),
        ("by a name that is not there", "a; b", field("c"), none),
        ("a label that nobody has", "a disk=ssd; b", selector("hdd"), none),
        ("rather by label", "a; b disk=ssd", preferred, "b"),
        ("cordons and taints", "c cordoned taint=k:v:NoSchedule", tolerant, "c"),
    ];
    for (name, nodes, spec, want) in cases {
        let mut pod = pod("p@");
        spec.as_object().unwrap().iter().for_each(|(key, value)| pod["spec"][key] = value.clone());
        assert_eq!(ask(&mut cluster(nodes, "x@b; y@b"), &pod), want, "{name}");
    }
}

#[test]
fn spreading() {
    let rule = |more: Value| {
        let mut rule = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "x"}}});
        more.as_object().unwrap().iter().for_each(|(key, value)| rule[key] = value.clone());
        rule
    };
    let nodes = "a zone=1; b zone=2; c zone=2; d";
    let none = |reasons: &str, preemption: &str| {
        format!(
            "0/4 nodes are available: {reasons}. preemption: 0/4 nodes are available: {preemption}."
        )
    };
    let spread = "node(s) didn't match pod topology spread constraints";
    let full = none(
        &format!("1 {spread} (missing required label), 3 {spread}"),
        "1 Preemption is not helpful for scheduling, 3 No preemption victims found for incoming pod",
    );
    let soft = json!({"whenUnsatisfiable": "ScheduleAnyway", "topologyKey": "zone"});
    let cases = [
        ("the emptier zone", json!({}), "x@b app=x; y@a; z@a", "a".to_owned()),
        ("both are even", json!({}), "x@b app=x; y@a app=x", "c".into()),
        ("too few domains", json!({"minDomains": 3}), "x@b app=x; y@a app=x", full.clone()),
        ("who goes does not count", json!({}), "x@b app=x leaving; y@a; z@a; w@a", "c".into()),
        ("another namespace", json!({}), "x@b app=x ns=n; y@b; y@a; z@a; w@a", "c".into()),
        ("not of this kind", json!({}), "x@a app=x v=1; y@b; z@b; y2@c; z2@c", "b".into()),
        (
            "by another label",
            json!({"matchLabelKeys": ["v"]}),
            "x@a app=x v=1; y@b; z@b; y2@c; z2@c",
            "a".into(),
        ),
        ("rather", soft, "x@b app=x; x2@c app=x; y@a", "a".into()),
    ];
    for (name, more, pods, want) in cases {
        let mut pod = pod("p@ app=x v=2");
        pod["spec"]["topologySpreadConstraints"] = json!([rule(more.clone())]);
        assert_eq!(ask(&mut cluster(nodes, pods), &pod), want, "{name}");
    }
    // Nodes on which the pod cannot be count only if it says so.
    let tainted = "a zone=1 taint=k:v:NoSchedule; b zone=2";
    let mut pod = pod("p@ app=x");
    for (policy, want) in [("Honor", "b"), ("Ignore", "0/2 nodes")] {
        let more = json!({"nodeTaintsPolicy": policy});
        pod["spec"]["topologySpreadConstraints"] = json!([rule(more)]);
        let found = ask(&mut cluster(tainted, "x@b app=x"), &pod);
        assert!(found.starts_with(want), "{policy}: {found}");
    }
}

#[test]
fn namespaces_by_their_labels() {
    let mut pod = pod("p@ apart=x");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let term = &mut pod["spec"]["affinity"]["podAntiAffinity"][required][0];
    term["namespaceSelector"] = json!({"matchLabels": {"team": "t"}});
    let mut cluster = cluster("a; b", "x@a app=x ns=n; y@b; z@b");
    assert_eq!(ask(&mut cluster, &pod), "a", "nothing is known of the namespace");
    let labels = [("team".to_owned(), "t".to_owned())].into();
    assert!(cluster.observe_namespace("n", Some(&labels)));
    assert_eq!(ask(&mut cluster, &pod), "b");
    assert!(!cluster.observe_namespace("n", Some(&labels)), "nothing new");
    assert!(cluster.observe_namespace("n", None));
    assert_eq!(ask(&mut cluster, &pod), "a");
}

#[test]
fn services_spread_their_pods() {
    let mut cluster = cluster("a; b", "x@a app=x; y@b; z@b; w@b");
    assert_eq!(ask(&mut cluster, &pod("p@ app=x")), "a", "the emptier");
    let selector = [("app".to_owned(), "x".to_owned())].into();
    cluster.observe_service(&ObjectKey::new("default", "s"), Some(&selector));
    assert_eq!(ask(&mut cluster, &pod("p@ app=x")), "b", "where none of the Service is");
}

#[test]
fn victims() {
    let cases = [
        (
            "who matters less",
            "a",
            "x@a cpu=500m; y@a cpu=500m prio=20",
            "p@ cpu=500m prio=10",
            "a without x",
        ),
        (
            "as few as possible",
            "a",
            "x@a cpu=100m; y@a cpu=800m; z@a cpu=100m",
            "p@ cpu=700m prio=1",
            "a without y",
        ),
        (
            "the least important",
            "a; b",
            "x@a cpu=1 prio=5; y@b cpu=1 prio=4",
            "p@ cpu=1 prio=9",
            "b without y",
        ),
        (
            "the smaller sum",
            "a; b",
            "x@a cpu=500m; x2@a cpu=500m; y@b cpu=1",
            "p@ cpu=1 prio=9",
            "b without y",
        ),
        (
            "the younger",
            "a; b",
            "x@a cpu=1 since=1; y@b cpu=1 since=2",
            "p@ cpu=1 prio=9",
            "b without y",
        ),
        ("who is going already", "a", "x@a cpu=1 leaving", "p@ cpu=1 prio=9", "a without "),
        ("who wants to be apart", "a", "x@a apart=p", "p@ app=p prio=9", "a without x"),
        ("who has the port", "a", "x@a port=80; y@a", "p@ port=80 prio=9", "a without x"),
        (
            "a promise is kept",
            "a; b",
            "x@a cpu=1 leaving; y@b cpu=1",
            "p@ cpu=1 prio=9 for=a",
            "0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible due to terminating pod \
             on the nominated node.",
        ),
        ("a promised node is taken before all", "a; b", "x@a; y@a", "p@ for=a", "a"),
        (
            "what is promised is not free",
            "a; b",
            "q@ cpu=1 prio=9 for=a; y@b",
            "p@ cpu=500m prio=9",
            "b",
        ),
        (
            "but for those who matter more",
            "a; b cordoned",
            "q@ cpu=1 prio=9 for=a",
            "p@ cpu=500m prio=10",
            "a",
        ),
    ];
    for (name, nodes, pods, given, want) in cases {
        assert_eq!(ask(&mut cluster(nodes, pods), &pod(given)), want, "{name}");
    }
}

#[test]
fn budgets_are_spared() {
    let mut cluster = cluster("a; b", "x@a cpu=1 app=x; y@b cpu=500m prio=3; y2@b cpu=500m prio=4");
    let budget = json!({"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}});
    let budget: PodDisruptionBudget = serde_json::from_value(budget).unwrap();
    let high = pod("p@ cpu=1 prio=9");
    assert_eq!(ask(&mut cluster, &high), "a without x");
    cluster.observe_budget(&ObjectKey::new("default", "b"), Some(&budget));
    assert_eq!(ask(&mut cluster, &high), "b without y2,y");
    cluster.observe_node("b", None);
    assert_eq!(ask(&mut cluster, &high), "a without x", "if nothing else helps");
}

#[test]
fn the_less_important_lose_their_promise() {
    let mut cluster = cluster("a", "x@a cpu=1; q@ cpu=1 prio=3 for=a");
    let high: Pod = serde_json::from_value(pod("p@ cpu=1 prio=9")).unwrap();
    let Decision::Preempt(plan) = decide(&high, &mut cluster, &VolumeNeeds::default()) else {
        panic!("x goes");
    };
    assert_eq!(plan.disappointed, [ObjectKey::new("default", "q")]);
    assert_eq!(plan.refusal.why, "0/1 nodes are available: 1 Insufficient cpu.");
}

/// Nobody gets room by asking for too much.
#[test]
fn enormous_requests_leave_the_rest_as_it_was() {
    let mut cluster = cluster("a", "x@a cpu=900m; huge@a cpu=1E");
    cluster.observe_pod(&ObjectKey::new("default", "huge"), None);
    let found = ask(&mut cluster, &pod("p@ cpu=200m"));
    assert!(found.starts_with("0/1 nodes are available: 1 Insufficient cpu."), "{found}");
    assert_eq!(ask(&mut cluster, &pod("p@ cpu=100m")), "a");
}

#[test]
fn what_may_help() {
    let pods = "x@a cpu=1 app=x";
    let cases = [
        ("a", "p@ cpu=500m", vec![Occasion::NodeChanged, Occasion::PodGone]),
        ("a cordoned", "p@", vec![Occasion::NodeChanged]),
        ("a", "p@ near=y", vec![Occasion::NodeChanged, Occasion::PodPlaced]),
        ("a", "p@ apart=x", vec![Occasion::NodeChanged, Occasion::PodGone]),
    ];
    for (nodes, given, want) in cases {
        let waiting: Pod = serde_json::from_value(pod(given)).unwrap();
        let found = decide(&waiting, &mut cluster(nodes, pods), &VolumeNeeds::default());
        let Decision::Wait(refusal) = found else { panic!("{given}: {found:?}") };
        use Occasion::{NodeChanged, PodGone, PodPlaced, VolumeChanged};
        let all = [NodeChanged, PodGone, PodPlaced, VolumeChanged];
        let found: Vec<_> = all.into_iter().filter(|o| refusal.wakeups.include(*o)).collect();
        assert_eq!(found, want, "{nodes} {given}");
    }
    let mut cluster = cluster("a", "");
    assert!(!cluster.observe_node("a", Some(&node("a"))), "a heartbeat");
    assert!(cluster.observe_node("a", Some(&node("a zone=1"))));
    let found = hopeless(&cluster, "persistentvolumeclaim \"c\" not found");
    let want = "0/1 nodes are available: persistentvolumeclaim \"c\" not found. preemption: 0/1 nodes are \
        available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(told(&found), want);
}
