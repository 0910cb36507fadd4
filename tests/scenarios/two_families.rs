//! Pods and Services with addresses of both families, and of IPv6 alone.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(30);

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: roadstead/echo
        env:
        - {name: ALL, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
        - {name: HOSTS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: nest}
spec: {ipFamilyPolicy: PreferDualStack, clusterIP: None, selector: {app: web}, ports: [{port: 8080}]}
";

fn rolled_out(roadstead: &Roadstead) {
    let kubectl = roadstead.kubectl();
    kubectl.apply(WEB);
    let done = kubectl.run("rollout status deployment/web --timeout=60s");
    assert!(done.contains("successfully rolled out"), "{done}");
}

/// The answer to a request, from a process of the node or, by `nsenter`, of a pod.
fn curl(prefix: &str, url: &str) -> String {
    let output = try_run(&format!("{prefix} curl -s -m 2 '{url}'"));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A prefix for commands that are to run in the network of a pod.
fn inside(roadstead: &Roadstead) -> String {
    let path = "get pods -l app=web -o jsonpath='{.items[0].metadata.uid}'";
    let networks = roadstead.directory().join("data/node/netns");
    format!("nsenter --net={}/roadstead-{}", networks.display(), roadstead.kubectl().run(path))
}

#[test]
fn a_service_reaches_its_pods_by_both_families() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_with(
            "--cluster-cidr 10.244.0.0/16,fd00:10:244::/56 \
             --service-cidr 10.96.0.0/12,fd00:10:96::/112",
        );
        let kubectl = roadstead.kubectl();
        rolled_out(&roadstead);
        let node = kubectl.run("get node node -o jsonpath='{.spec.podCIDR} {.spec.podCIDRs}'");
        assert_eq!(node, "10.244.0.0/24 [\"10.244.0.0/24\",\"fd00:10:244::/64\"]");
        let pod = "get pods -l app=web -o jsonpath='{.items[0].status.podIP} \
                   {.items[0].status.podIPs[*].ip} {.items[0].status.hostIPs[*].ip}'";
        let pod = kubectl.run(pod);
        let [one, four, six, _, host_six] = pod.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{pod}")
        };
        assert!(one == four && four.starts_with("10.244.0."), "{pod}");
        assert!(six.starts_with("fd00:10:244::") && host_six.contains(':'), "{pod}");

        let families = kubectl.run(
            "get service web -o jsonpath='{.spec.ipFamilyPolicy} {.spec.ipFamilies[*]} \
             {.spec.clusterIPs[*]}'",
        );
        let words: Vec<_> = families.split(' ').collect();
        assert_eq!(words[..3], ["PreferDualStack", "IPv4", "IPv6"], "{families}");
        let urls = [format!("http://{}/", words[3]), format!("http://[{}]/", words[4])];
        let within = inside(&roadstead);
        for (from, prefix) in [("the node", ""), ("a pod", within.as_str())] {
            for url in &urls {
                let ask = || curl(prefix, url);
                eventually(&format!("{from} reaches {url}"), PATIENCE, ask, |said| {
                    said.starts_with("web-")
                });
            }
        }
        named(&kubectl, &within);
        told(four, six);
    });
}

/// Names have addresses of both families; headless ones those of the pods.
fn named(kubectl: &Kubectl, within: &str) {
    let dns = kubectl.run("get service -n kube-system kube-dns -o jsonpath='{.spec.clusterIP}'");
    for (name, kind, begins, count) in [
        ("web", "A", "10.", 1),
        ("web", "AAAA", "fd00:10:96::", 1),
        ("nest", "A", "10.244.", 2),
        ("nest", "AAAA", "fd00:10:244::", 2),
    ] {
        let dig = format!("{within} dig +short @{dns} {name}.default.svc.cluster.local {kind}");
        let ask = || String::from_utf8_lossy(&try_run(&dig).stdout).into_owned();
        eventually(&dig, PATIENCE, ask, |found| {
            let lines: Vec<_> = found.lines().collect();
            lines.len() == count && lines.iter().all(|line| line.starts_with(begins))
        });
    }
}

/// What a pod knows of its addresses.
fn told(four: &str, six: &str) {
    let hosts = format!("grep -ls '^{six}[[:space:]]web-' /proc/[0-9]*/root/etc/hosts");
    let processes = run(&format!("{hosts} | cut -d/ -f3"));
    // One of them is the container's own init, which has no variables of the pod.
    let variables = processes.lines().map(|process| {
        let read = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&read).into_owned()
    });
    let variables = variables.collect::<String>();
    assert!(variables.contains(&format!("ALL={four},{six}\0")), "{variables}");
}

#[test]
fn a_cluster_of_ipv6_alone() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_with(
            "--cluster-cidr fd00:10:244::/56 --service-cidr fd00:10:96::/112 --ephemeral",
        );
        let kubectl = roadstead.kubectl();
        rolled_out(&roadstead);
        let address = kubectl.run("get service web -o jsonpath='{.spec.clusterIP}'");
        assert!(address.starts_with("fd00:10:96::"), "{address}");
        let within = inside(&roadstead);
        for prefix in ["", within.as_str()] {
            let ask = || curl(prefix, &format!("http://[{address}]/"));
            eventually("the Service answers", PATIENCE, ask, |said| said.starts_with("web-"));
        }
        let dns = "fd00:10:96::a";
        let dig = format!("{within} dig +short @{dns} web.default.svc.cluster.local AAAA");
        let ask = || String::from_utf8_lossy(&try_run(&dig).stdout).trim().to_owned();
        eventually("the name", PATIENCE, ask, |found| *found == address);
        let api = kubectl.run("get endpointslices kubernetes -o jsonpath='{.addressType}'");
        assert_eq!(api, "IPv6");
        drop(roadstead);
        let left = run("ip link; ip -6 route; nft list ruleset");
        assert!(!left.contains("roadstead0") && !left.contains("fd00:10"), "{left}");
    });
}
