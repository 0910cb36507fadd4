//! The controllers as a process of their own, over HTTPS: what they make of a Service.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::is_left_out;

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(20);

/// `roadstead controllers`, stopped when it goes out of scope.
pub(crate) struct Controllers(Child);

impl Drop for Controllers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the controllers beside an API server.
pub(crate) fn controllers(of: &Roadstead, flags: &[&str]) -> Controllers {
    controllers_of(&of.kubeconfig(), flags)
}

/// Starts controllers that may do what this kubeconfig may.
pub(crate) fn controllers_of(kubeconfig: &Path, flags: &[&str]) -> Controllers {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
    command.arg("controllers").arg("--kubeconfig").arg(kubeconfig);
    if !flags.iter().any(|flag| flag.starts_with("--metrics-bind-address")) {
        command.args(["--metrics-bind-address", "127.0.0.1:0"]);
    }
    command.args(flags);
    Controllers(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

const MANIFEST: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: x, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  selector: {app: web}
  trafficDistribution: PreferSameZone
  ports: [{port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: legacy}
spec: {ports: [{port: 3306}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: legacy}
subsets: [{addresses: [{ip: 192.168.1.100}], ports: [{port: 3306}]}]
";

fn make_ready(kubectl: &Kubectl) {
    let pod = kubectl.run("get pod web-0 -o json");
    let mut pod: serde_json::Value = serde_json::from_str(&pod).unwrap();
    pod["status"] = serde_json::json!({"phase": "Running", "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]});
    // Old versions of kubectl know no other way to a subresource.
    let path = "/api/v1/namespaces/default/pods/web-0/status";
    kubectl.run(&format!("replace --raw {path} -f - <<'END'\n{pod}\nEND"));
}

fn becomes(kubectl: &Kubectl, command: &str, want: &str) {
    eventually(command, PATIENCE, || kubectl.run(command), |text| text.trim() == want);
}

#[test]
fn services_lead_somewhere() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    let pool = ["--load-balancer-pool", "192.0.2.10-192.0.2.11", "--leader-elect"];
    let running = controllers(&roadstead, &pool);
    kubectl.apply(MANIFEST);
    make_ready(&kubectl);
    becomes(
        &kubectl,
        "get endpointslices -l kubernetes.io/service-name=web -o jsonpath='{range \
         .items[*].endpoints[*]}{.addresses[0]} {.conditions.ready} {.hints.forZones[0].name}{end}'",
        "10.1.0.1 true za",
    );
    becomes(&kubectl, "get endpoints web --no-headers | awk '{print $2}'", "10.1.0.1:8080");
    becomes(
        &kubectl,
        "get endpointslices -l kubernetes.io/service-name=legacy --no-headers | awk '{print $4}'",
        "192.168.1.100",
    );
    becomes(&kubectl, "get service web --no-headers | awk '{print $4}'", "192.0.2.10");

    // A slice that somebody deletes comes back, and Endpoints too.
    kubectl.run("delete endpointslices -l kubernetes.io/service-name=web");
    kubectl.run("delete endpoints web");
    becomes(
        &kubectl,
        "get endpointslices -l kubernetes.io/service-name=web --no-headers | awk '{print $4}'",
        "10.1.0.1",
    );
    becomes(&kubectl, "get endpoints web --no-headers | awk '{print $2}'", "10.1.0.1:8080");

    // What is no longer a load balancer holds no address and can be deleted.
    kubectl.run("patch service web --type=merge -p '{\"spec\":{\"type\":\"ClusterIP\"}}'");
    becomes(
        &kubectl,
        "get service web -o jsonpath='{.metadata.finalizers}{.status.loadBalancer}'",
        "{}",
    );
    kubectl.run("delete service web legacy --timeout=20s");
    becomes(&kubectl, "get endpoints -o name --field-selector metadata.name!=kubernetes", "");
    becomes(&kubectl, "get endpointslices -o name --field-selector metadata.name!=kubernetes", "");
    drop(running);
}

#[test]
fn a_lost_node_is_noticed() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    let _running = controllers(&roadstead, &["--node-monitor-grace-period", "1"]);
    kubectl.apply(MANIFEST);
    make_ready(&kubectl);
    let status =
        "get node n1 -o jsonpath='{.status.conditions[0].status} {.spec.taints[*].effect}'";
    becomes(&kubectl, status, "Unknown NoSchedule NoExecute");
    becomes(
        &kubectl,
        "get endpointslices -l kubernetes.io/service-name=web -o \
         jsonpath='{.items[*].endpoints[*].conditions.ready}'",
        "false",
    );
}
