//! Guards, as seen through kubectl: what a namespace may have, and what its pods may be.

use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::is_left_out;

use crate::controllers::controllers;
use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(30);

const LIMITS: &str = "
apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec:
  limits:
  - {type: Container, max: {cpu: '1'}, default: {cpu: 200m}, defaultRequest: {cpu: 100m}}
";

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: x}]}
";

const LARGE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: big}
spec: {containers: [{name: c, image: x, resources: {limits: {cpu: '2'}}}]}
";

#[test]
fn quotas_and_limits() {
    if is_left_out("L5") {
        return;
    }
    let server = Roadstead::apiserver();
    let _controllers = controllers(&server, &[]);
    let kubectl = server.kubectl();
    kubectl.run("create quota team --hard=pods=2,requests.cpu=1,configmaps=1");
    let counted = || kubectl.run("get quota team -o jsonpath={.status.used.pods}");
    eventually("the quota is counted", PATIENCE, counted, |used| used == "0");
    let refused = kubectl.fails("run a --image=x");
    assert!(
        refused.contains(
            "pods \"a\" is forbidden: failed quota: team: must specify requests.cpu for: a"
        ),
        "{refused}"
    );
    kubectl.apply(LIMITS);
    let described = kubectl.run("describe limits limits");
    for words in ["Container", "cpu", "100m", "200m"] {
        assert!(described.contains(words), "{described}");
    }
    kubectl.apply(DEPLOYMENT);
    let events = || {
        kubectl
            .run("get events --field-selector reason=FailedCreate -o jsonpath={.items[*].message}")
    };
    let words = "exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2";
    eventually("the deployment hears of it", PATIENCE, events, |told| told.contains(words));
    let pods = kubectl.run("get pods -o name");
    assert_eq!(pods.lines().count(), 2, "{pods}");
    let described = kubectl.run("describe quota team");
    let row = |name: &str| {
        let mut lines = described.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|line| line.first() == Some(&name)).unwrap_or_default().join(" ")
    };
    assert_eq!(row("pods"), "pods 2 2", "{described}");
    assert_eq!(row("requests.cpu"), "requests.cpu 200m 1", "{described}");
    let refused = kubectl.fails(&kubectl.apply_command(LARGE));
    assert!(
        refused.contains(
            "pods \"big\" is forbidden: maximum cpu usage per Container is 1, but limit is 2"
        ),
        "{refused}"
    );
    kubectl.run("delete deployment web");
    eventually("what is deleted is free again", PATIENCE, counted, |used| used == "0");
}

#[test]
fn pods_that_a_namespace_does_not_take() {
    if is_left_out("L5") {
        return;
    }
    let server = Roadstead::apiserver();
    let kubectl = server.kubectl();
    kubectl.run("run plain --image=x");
    let label = "label --overwrite ns default pod-security.kubernetes.io/enforce=restricted";
    let told = |command: &str| {
        let output = kubectl.try_run(command);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let violations = "Warning: plain: allowPrivilegeEscalation != false, unrestricted capabilities, \
        runAsNonRoot != true, seccompProfile";
    let tried = told(&format!("{label} --dry-run=server"));
    assert!(tried.contains(violations), "{tried}");
    kubectl.run("run another --image=x");
    let labelled = told(label);
    assert!(labelled.contains("Warning: another (and 1 other pod): "), "{labelled}");
    let refused = kubectl.fails("run third --image=x");
    assert!(
        refused.contains(
            "pods \"third\" is forbidden: violates PodSecurity \"restricted:latest\": \
             allowPrivilegeEscalation != false (container \"third\" must set \
             securityContext.allowPrivilegeEscalation=false), unrestricted capabilities"
        ),
        "{refused}"
    );
    let warned = told("create deployment web --image=x");
    assert!(
        warned.contains("Warning: would violate PodSecurity \"restricted:latest\": "),
        "{warned}"
    );
    let refused = kubectl.fails("label --overwrite ns default pod-security.kubernetes.io/warn=odd");
    assert!(refused.contains("must be one of privileged, baseline, restricted"), "{refused}");
}
