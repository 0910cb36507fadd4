//! An editor of one namespace: may create pods and Services there, and wants what belongs to
//! others.

use std::fs;
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};
use serde_json::{Value, json};

use crate::process::Roadstead;

const DENIED: &str = "Use of external IPs is denied by admission control";

/// A pod that says whose it is, and a Service of it.
fn echo(namespace: &str, name: &str, spec: Value) -> String {
    let labels = json!({"app": name});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"containers": [{
            "name": "echo", "image": "roadstead/echo", "ports": [{"containerPort": 8080}],
        }]},
    });
    format!("{pod}\n---\n{}", service(namespace, name, spec))
}

fn service(namespace: &str, name: &str, mut spec: Value) -> String {
    spec["selector"] = json!({"app": name});
    if spec["ports"].is_null() {
        spec["ports"] = json!([{"port": 80, "targetPort": 8080}]);
    }
    let metadata = json!({"namespace": namespace, "name": name});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}).to_string()
}

/// Who answers there.
fn answers(to: &str) -> String {
    let said = try_run(&format!("curl -s -m 2 http://{to}/"));
    String::from_utf8_lossy(&said.stdout).into_owned()
}

#[track_caller]
fn is_answered_by(to: &str, who: &str) {
    let what = format!("{who} answers at {to}");
    eventually(&what, Duration::from_secs(10), || answers(to), |said| said.contains(who));
    for _ in 0..5 {
        let said = answers(to);
        assert!(said.contains(who), "{to} is not {who} but {said}");
    }
}

/// Applies something as eve, who must not have it; returns why.
#[track_caller]
fn refused(kubectl: &Kubectl, manifest: &str) -> String {
    kubectl.fails(&format!("--as=eve {}", kubectl.apply_command(manifest)))
}

fn begin(roadstead: &Roadstead) -> Kubectl {
    let kubectl = roadstead.kubectl();
    kubectl.run("create namespace dev");
    kubectl.run("create rolebinding eve -n dev --clusterrole=edit --user=eve");
    kubectl
}

#[test]
fn addresses_that_belong_to_others() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = begin(&roadstead);
        // By default nobody takes any address that is not given out.
        for address in ["192.0.2.1", "10.96.0.1", "10.96.0.10", "10.244.0.1"] {
            let said = refused(&kubectl, &service("dev", "a", json!({"externalIPs": [address]})));
            assert!(said.contains(DENIED), "{address}: {said}");
        }
        kubectl.run("--as=eve -n dev create service clusterip a --tcp=80");
        let patch = r#"'{"spec":{"externalIPs":["192.0.2.1"]}}'"#;
        let said = kubectl.fails(&format!("--as=eve -n dev patch service a -p {patch}"));
        assert!(said.contains(DENIED), "{said}");
        // A load balancer on the address of the node has none of the node's own ports.
        let ports = json!([{"port": 80, "targetPort": 8080, "nodePort": 30333}]);
        kubectl.apply(&echo("default", "victim", json!({"type": "NodePort", "ports": ports})));
        let node = kubectl.run("get nodes -o jsonpath='{.items[0].status.addresses[0].address}'");
        is_answered_by(&format!("{node}:30333"), "victim");
        kubectl.apply(&echo("dev", "evil", json!({})));
        for port in [30333, 6443, 22] {
            let ports = json!([{"port": port, "targetPort": 8080}]);
            let spec = json!({"type": "LoadBalancer", "ports": ports});
            let manifest = service("dev", "evil", spec);
            kubectl.run(&format!("--as=eve {}", kubectl.apply_command(&manifest)));
            let events = || kubectl.run("-n dev get events");
            let why = format!("port {port}/TCP of the nodes is not for load balancers");
            eventually(&why, Duration::from_secs(10), events, |said| said.contains(&why));
        }
        is_answered_by(&format!("{node}:30333"), "victim");
        // What is given out is given out once.
        let said = refused(&kubectl, &service("dev", "b", json!({"clusterIP": "10.96.0.10"})));
        assert!(said.contains("provided IP is already allocated"), "{said}");
        let said =
            kubectl.fails("--as=eve -n dev get --raw /apis/networking.k8s.io/v1/ipaddresses");
        assert!(said.contains("Forbidden") || said.contains("forbidden"), "{said}");
        // The status, in which load balancers say their addresses, is not hers to write.
        let patch = r#"'{"status":{"loadBalancer":{"ingress":[{"ip":"10.96.0.10"}]}}}'"#;
        let command = "--as=eve -n dev patch service a --subresource=status --type=merge -p";
        let said = kubectl.fails(&format!("{command} {patch}"));
        assert!(said.contains("cannot patch resource \"services/status\""), "{said}");
    });
}

#[test]
fn traffic_that_belongs_to_others() {
    laboratory_of("L5", || {
        // A machine with an address of its own, and a way out for whatever is not in the cluster.
        run("ip link add up0 type veth peer name up1 && ip link set up1 up");
        run("ip address add 192.168.50.1/24 dev up0 && ip link set up0 up");
        run("ip route add default via 192.168.50.254");
        // The operator allows external addresses.
        let roadstead = Roadstead::up_with(
            "--ephemeral --deny-service-external-ips=false --load-balancer-pool 198.51.100.0/28",
        );
        let kubectl = begin(&roadstead);
        kubectl.run("create namespace zoo");
        let victim = json!({"type": "LoadBalancer", "clusterIP": "10.96.5.5"});
        kubectl.apply(&echo("zoo", "victim", victim));
        kubectl.apply(&echo("dev", "evil", json!({})));
        let show = |what: &str| {
            let command = format!("-n zoo get service victim -o jsonpath='{{{what}}}'");
            let asked = || kubectl.run(&command);
            eventually(what, Duration::from_secs(10), asked, |text| !text.is_empty())
        };
        let balanced = show(".status.loadBalancer.ingress[0].ip");
        let node_port = show(".spec.ports[0].nodePort");
        let node = kubectl.run("get nodes -o jsonpath='{.items[0].status.addresses[0].address}'");
        let dns = |name: &str| run(&format!("nslookup {name} 10.96.0.10 2>&1 || true"));

        // What is the cluster's is refused, and how it is written makes no difference.
        for (address, why) in [
            ("10.96.5.5", "may not be in the range of cluster IPs"),
            ("10.96.0.10", "may not be in the range of cluster IPs"),
            ("10.96.0.1", "may not be in the range of cluster IPs"),
            ("10.244.0.7", "may not be in the range of pod IPs"),
            (&node, "may not be the address of a Node"),
            ("010.96.0.10", "may not be in the range of cluster IPs"),
            ("::ffff:10.96.0.10", "may not be in the range of cluster IPs"),
        ] {
            let manifest = service("dev", "evil", json!({"externalIPs": [address]}));
            let said = refused(&kubectl, &manifest);
            assert!(said.contains(why), "{address}: {said}");
        }
        let ports = json!([{"port": 80, "nodePort": node_port.parse::<u16>().unwrap()}]);
        let spec = json!({"type": "NodePort", "ports": ports});
        let said = refused(&kubectl, &service("dev", "evil", spec));
        assert!(said.contains("provided port is already allocated"), "{said}");

        // What nobody can know to be another's is accepted, and does not lead to her.
        let eve = |external: &[&str]| {
            let manifest = service("dev", "evil", json!({"externalIPs": external}));
            kubectl.run(&format!("--as=eve {}", kubectl.apply_command(&manifest)));
        };
        eve(&[&balanced, "192.0.2.1", "10.50.0.1"]);
        is_answered_by("192.0.2.1", "evil");
        is_answered_by(&balanced, "victim");
        is_answered_by("10.50.0.1", "evil");
        let events = || kubectl.run("-n dev get events");
        eventually("she is told", Duration::from_secs(10), events, |said| {
            said.contains(&format!("{balanced}:80/tcp belongs to another Service"))
        });
        assert!(!events().contains("victim"), "but not whose it is");
        // An address that becomes a ClusterIP later was never hers.
        let range = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "more"}, "spec": {"cidrs": ["10.50.0.0/24"]},
        });
        kubectl.apply(&range.to_string());
        let second = service("zoo", "victim", json!({"clusterIP": "10.50.0.1"}));
        kubectl.apply(&second.replace("\"name\":\"victim\"", "\"name\":\"second\""));
        is_answered_by("10.50.0.1", "victim");
        // All the while everything else is where it was.
        is_answered_by("10.96.5.5", "victim");
        is_answered_by(&format!("{node}:{node_port}"), "victim");
        let said = dns("victim.zoo.svc.cluster.local");
        assert!(said.contains("10.96.5.5"), "{said}");
        // What she has is not broken by what she can no longer ask for.
        kubectl.run("--as=eve -n dev label service evil still=fine");
        // The strongest claim goes, and the next one has it.
        kubectl.run("-n zoo delete service victim second");
        is_answered_by(&balanced, "evil");
        is_answered_by("10.50.0.1", "evil");
    });
}

/// Whoever relies on a guard that is not there hears that it is not.
#[test]
fn guards_that_nobody_enforces() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        let file = roadstead.directory().join("object.yaml");
        let kept = |version: &str| format!("{version} is kept, but nothing on this cluster");
        for (object, warning) in [
            (
                "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: none}, \
                 spec: {podSelector: {}}}",
                kept("networking.k8s.io/v1 NetworkPolicy"),
            ),
            (
                "{apiVersion: batch/v1, kind: Job, metadata: {name: job}, spec: {template: {spec: \
                 {restartPolicy: Never, containers: [{name: c, image: i}]}}}}",
                kept("batch/v1 Job"),
            ),
            (
                "{apiVersion: v1, kind: ResourceQuota, metadata: {name: quota}, \
                 spec: {hard: {pods: '0'}}}",
                "v1 ResourceQuota is kept, but this server does not enforce it".into(),
            ),
            (
                "{apiVersion: v1, kind: Namespace, metadata: {name: safe, labels: \
                 {pod-security.kubernetes.io/enforce: restricted}}}",
                "label pod-security.kubernetes.io/enforce is kept, but".into(),
            ),
            ("{apiVersion: v1, kind: ConfigMap, metadata: {name: map}}", String::new()),
            (
                "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 0, \
                 selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: \
                 {containers: [{name: c, image: i}]}}}}",
                String::new(),
            ),
        ] {
            fs::write(&file, format!("---\n{object}")).unwrap();
            let output = kubectl.try_run(&format!("apply -f {}", file.display()));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            assert!(said.contains(&warning) && said.is_empty() == warning.is_empty(), "{said}");
        }
    });
}
