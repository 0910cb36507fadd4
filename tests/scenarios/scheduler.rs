//! Where pods go, and who goes for them, as seen through kubectl: nodes that only exist in the API.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::is_left_out;

use crate::controllers::controllers;
use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(30);
const WORKERS: &str = "--controllers=deployment,replicaset,scheduler,disruption";

/// A node with one processor, which says that it is ready.
fn add_node(kubectl: &Kubectl, name: &str) {
    kubectl.apply(&format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{kubernetes.io/hostname: {name}}}}}}}"
    ));
    let node = kubectl.run(&format!("get node {name} -o json"));
    let mut node: serde_json::Value = serde_json::from_str(&node).unwrap();
    node["status"] = serde_json::json!({
        "allocatable": {"cpu": "1", "memory": "4Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}]});
    let path = format!("/api/v1/nodes/{name}/status");
    kubectl.run(&format!("replace --raw {path} -f - <<'END'\n{node}\nEND"));
}

const HA_WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: ha-web}
spec:
  replicas: 3
  selector: {matchLabels: {app: ha-web}}
  template:
    metadata: {labels: {app: ha-web}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - labelSelector: {matchLabels: {app: ha-web}}
            topologyKey: kubernetes.io/hostname
      containers: [{name: web, image: nginx}]
";

#[test]
fn replicas_that_want_to_be_apart() {
    if is_left_out("L5") {
        return;
    }
    let server = Roadstead::apiserver();
    let _controllers = controllers(&server, &[WORKERS]);
    let kubectl = server.kubectl();
    add_node(&kubectl, "n1");
    kubectl.apply(HA_WEB);
    let nodes = || {
        let text = kubectl
            .run("get pods -l app=ha-web -o jsonpath='{range .items[*]}[{.spec.nodeName}]{end}'");
        let mut nodes: Vec<_> =
            text.split(['[', ']', '\'']).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        nodes.sort();
        nodes
    };
    eventually("one has a place", PATIENCE, nodes, |nodes| *nodes == ["n1"]);
    let events = || {
        kubectl.run(
            "get events --field-selector reason=FailedScheduling -o jsonpath={.items[*].message}",
        )
    };
    let why = "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. preemption: 0/1 \
        nodes are available: 1 No preemption victims found for incoming pod.";
    eventually("the others hear why not", PATIENCE, events, |told| told.contains(why));
    add_node(&kubectl, "n2");
    add_node(&kubectl, "n3");
    eventually("each has a node", PATIENCE, nodes, |nodes| *nodes == ["n1", "n2", "n3"]);
}

const CLASS: &str = "
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}
";

fn pod(name: &str, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}}}, spec: {{{more}
        containers: [{{name: c, image: x, resources: {{requests: {{cpu: 800m}}}}}}]}}}}"
    )
}

#[test]
fn who_matters_more_gets_the_place() {
    if is_left_out("L5") {
        return;
    }
    let server = Roadstead::apiserver();
    let _controllers = controllers(&server, &[WORKERS]);
    let kubectl = server.kubectl();
    kubectl.apply(CLASS);
    add_node(&kubectl, "n1");
    kubectl.apply(&pod("low", ""));
    let field = |pod: &str, path: &str| {
        kubectl.run(&format!("get pod {pod} -o jsonpath='{{{path}}}' --ignore-not-found"))
    };
    let node = |pod: &'static str| move || field(pod, ".spec.nodeName");
    eventually("low has a place", PATIENCE, node("low"), |node| node == "n1");
    kubectl.apply(&pod("equal", ""));
    let told = || field("equal", ".status.conditions[?(@.type==\"PodScheduled\")].message");
    let why = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No \
        preemption victims found for incoming pod.";
    eventually("equal has none", PATIENCE, told, |told| told == why);
    kubectl.apply(&pod("high", "priorityClassName: high,"));
    let target = "{.status.conditions[?(@.type==\"DisruptionTarget\")].reason}";
    let reason = || kubectl.run(&format!("get pod low -o jsonpath='{target}'"));
    eventually("low is asked to go", PATIENCE, reason, |reason| reason == "PreemptionByScheduler");
    let leaving = || field("low", ".metadata.deletionTimestamp");
    eventually("with its time to end", PATIENCE, leaving, |since| !since.is_empty());
    let promised = || field("high", ".status.nominatedNodeName");
    eventually("high will be there", PATIENCE, promised, |node| node == "n1");
    let events = || {
        kubectl.run("get events --field-selector reason=Preempted -o jsonpath={.items[*].message}")
    };
    eventually("it is told", PATIENCE, events, |told| {
        told.contains("Preempted by pod") && told.contains("on node n1")
    });
    assert_eq!(field("high", ".spec.nodeName"), "", "low has not ended yet");
    // What its node would do.
    kubectl.run("delete pod low --grace-period=0 --force");
    eventually("high has the place", PATIENCE, node("high"), |node| node == "n1");
    assert_eq!(field("equal", ".spec.nodeName"), "", "and nobody else");
}
