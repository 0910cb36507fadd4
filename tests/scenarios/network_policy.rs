//! A cluster in which not everybody may talk to everybody: deny, then allow, with real pods.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(30);
const BINARY: &str = env!("CARGO_BIN_EXE_roadstead");

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: roadstead/echo
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: roadstead/echo}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, labels: {app: stranger}}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: roadstead/echo}]}
";

const DENY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
";

const ALLOW: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: http}]}]
";

fn field(kubectl: &Kubectl, what: &str, path: &str) -> String {
    kubectl.run(&format!("get {what} -o jsonpath='{{{path}}}'"))
}

/// Whether a pod gets an answer, by the address of the server and by that of its Service.
fn reaches(roadstead: &Roadstead, pod: &str) -> [bool; 2] {
    let kubectl = roadstead.kubectl();
    let networks = roadstead.directory().join("data/node/netns");
    let uid = field(&kubectl, &format!("pod {pod}"), ".metadata.uid");
    let direct = format!("{}:8080", field(&kubectl, "pod web", ".status.podIP"));
    let service = field(&kubectl, "service web", ".spec.clusterIP");
    [direct, service].map(|to| {
        let enter = format!("nsenter --net={}/roadstead-{uid}", networks.display());
        let said = try_run(&format!("{enter} curl -s -m 2 http://{to}/"));
        String::from_utf8_lossy(&said.stdout).contains("web")
    })
}

fn wait_for(roadstead: &Roadstead, pod: &str, want: bool) {
    let what = format!("{pod} reaches web: {want}");
    eventually(&what, PATIENCE, || reaches(roadstead, pod), |now| *now == [want, want]);
}

#[test]
fn deny_then_allow() {
    laboratory_of("L5", || {
        let mut roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        kubectl.apply(PODS);
        kubectl.run("wait --for=condition=Ready pod --all --timeout=60s");
        for pod in ["client", "stranger"] {
            wait_for(&roadstead, pod, true);
        }
        kubectl.apply(DENY);
        for pod in ["client", "stranger"] {
            wait_for(&roadstead, pod, false);
        }
        kubectl.apply(ALLOW);
        wait_for(&roadstead, "client", true);
        wait_for(&roadstead, "stranger", false);
        // Who is under policies is still probed by its node, and who may talk is known.
        assert_eq!(field(&kubectl, "pod web", ".status.containerStatuses[0].ready"), "true");
        let server = field(&kubectl, "service web", ".spec.clusterIP");
        let trace = |pod: &str| {
            let from = field(&kubectl, &format!("pod {pod}"), ".status.podIP");
            let kubeconfig = roadstead.kubeconfig();
            let kubeconfig = kubeconfig.display();
            run(&format!(
                "{BINARY} trace --kubeconfig {kubeconfig} --from {from} --to {server}:80/tcp 2>/dev/null"
            ))
        };
        let client = trace("client");
        assert!(
            client.contains("policy   default/friends allows ingress of default/web"),
            "{client}"
        );
        let stranger = trace("stranger");
        let denied = "denied   ingress of default/web";
        assert!(stranger.contains(denied) && stranger.contains("default/deny"), "{stranger}");
        // Somebody takes all rules away.
        run("nft flush ruleset");
        wait_for(&roadstead, "client", true);
        wait_for(&roadstead, "stranger", false);
        kubectl.run("label pod stranger app=client --overwrite");
        wait_for(&roadstead, "stranger", true);
        kubectl.run("delete networkpolicy friends");
        wait_for(&roadstead, "client", false);
        kubectl.run("delete networkpolicy deny");
        wait_for(&roadstead, "client", true);
        roadstead.stop();
        assert_eq!(run("nft list tables"), "", "nothing is left behind");
    });
}
