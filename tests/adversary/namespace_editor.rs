//! An editor of one namespace: may create pods and Services there, and wants what belongs to
//! others.

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{is_left_out, laboratory_of, run, try_run};
use serde_json::{Value, json};

use crate::attacks;
use crate::client::Server;
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
    attacks::refused(1);
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
        // An external address by a patch, ports of the node, other people's addresses, and a status.
        attacks::refused(6);
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

/// Sixty-four clients of one user, each on a connection of its own, who create at the same time: not one object
/// more than the quota allows.
#[test]
fn more_than_a_quota_allows() {
    if is_left_out("L5") {
        return;
    }
    const CLIENTS: usize = 64;
    const HARD: usize = 10;
    let server = Server::start(1024, &["bob"]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut root = server.door().enter("root").await.unwrap();
        root.bind("edit", "default", &["bob"]).await;
        let maps = "/api/v1/namespaces/default/configmaps";
        let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"count/configmaps": HARD.to_string()}}});
        let (code, said) = root.post("/api/v1/namespaces/default/resourcequotas", &quota).await;
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
        let wave = async |wave: usize| {
            let tries = (0..CLIENTS).map(async |number| {
                let mut bob = server.door().enter("bob").await.unwrap();
                let name = format!("m{wave}-{number}");
                let (code, said) = bob.post(maps, &json!({"metadata": {"name": name}})).await;
                let said = String::from_utf8_lossy(&said).into_owned();
                assert!(code == 201 || said.contains("exceeded quota: few"), "{code} {said}");
                (code == 201).then_some(name)
            });
            let made = futures::future::join_all(tries).await;
            made.into_iter().flatten().collect::<Vec<_>>()
        };
        // What a controller counts: there is nothing yet.
        let none = json!({"status": {"hard": {"count/configmaps": HARD.to_string()},
            "used": {"count/configmaps": "0"}}});
        let status = "PATCH /api/v1/namespaces/default/resourcequotas/few/status";
        let kind = [("content-type", "application/merge-patch+json")];
        let answer = root.send(status, &kind, none.to_string().into()).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
        for (number, want) in [HARD, 0, 0].into_iter().enumerate() {
            assert_eq!(wave(number).await.len(), want, "wave {number}");
        }
        let answer = root.send(&format!("GET {maps}"), &[], Bytes::new()).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["items"].as_array().unwrap().len(), HARD);
        attacks::refused(3 * CLIENTS - HARD);
    });
}

/// An editor of a namespace that takes restricted pods only tries to get one with more rights in: in the pod, later,
/// beside it, and by changing what the namespace takes.
#[test]
fn pods_that_a_namespace_does_not_take() {
    if is_left_out("L5") {
        return;
    }
    let server = Server::start(1024, &["bob"]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut root = server.door().enter("root").await.unwrap();
        let level = "pod-security.kubernetes.io/enforce";
        let namespace = json!({"metadata": {"name": "strict", "labels": {level: "restricted"}}});
        assert_eq!(root.post("/api/v1/namespaces", &namespace).await.0, 201);
        let account = json!({"metadata": {"name": "default"}});
        root.post("/api/v1/namespaces/strict/serviceaccounts", &account).await;
        root.bind("edit", "strict", &["bob"]).await;
        let mut bob = server.door().enter("bob").await.unwrap();
        let context = json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}});
        let good = json!({"metadata": {"name": "good"},
            "spec": {"containers": [{"name": "c", "image": "i", "securityContext": context}]}});
        let pods = "/api/v1/namespaces/strict/pods";
        let (code, said) = bob.post(pods, &good).await;
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
        let container = "/spec/containers/0/securityContext";
        let volume = |of: Value| json!([{"name": "v", "hostPath": of}]);
        let mut tried = 0;
        for (at, value) in [
            ("/spec/hostNetwork".to_owned(), json!(true)),
            ("/spec/hostPID".to_owned(), json!(true)),
            ("/spec/hostIPC".to_owned(), json!(true)),
            ("/spec/volumes".to_owned(), volume(json!({"path": "/"}))),
            ("/spec/initContainers".to_owned(), json!([{"name": "i", "image": "i"}])),
            (
                "/spec/initContainers".to_owned(),
                json!([{"name": "i", "image": "i", "restartPolicy": "Always",
                "securityContext": {"privileged": true}}]),
            ),
            (
                "/spec/securityContext".to_owned(),
                json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
            ),
            ("/spec/securityContext".to_owned(), json!({"seccompProfile": {"type": "Unconfined"}})),
            ("/spec/containers/0/ports".to_owned(), json!([{"containerPort": 80, "hostPort": 80}])),
            (format!("{container}/privileged"), json!(true)),
            (format!("{container}/allowPrivilegeEscalation"), json!(true)),
            (format!("{container}/runAsUser"), json!(0)),
            (format!("{container}/runAsNonRoot"), json!(false)),
            (format!("{container}/procMount"), json!("Unmasked")),
            (format!("{container}/capabilities"), json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]})),
            (format!("{container}/capabilities"), json!({"drop": ["NET_RAW"]})),
            (format!("{container}/seccompProfile"), json!({"type": "Unconfined"})),
            (format!("{container}/appArmorProfile"), json!({"type": "Unconfined"})),
            (format!("{container}/seLinuxOptions"), json!({"type": "spc_t"})),
        ] {
            let mut bad = good.clone();
            bad["metadata"]["name"] = json!("bad");
            // Who says that it is something special is not believed.
            bad["metadata"]["labels"] = json!({level: "privileged"});
            let (parent, field) = at.rsplit_once('/').unwrap();
            bad.pointer_mut(parent).unwrap()[field] = value;
            let (code, said) = bob.post(pods, &bad).await;
            let said = String::from_utf8_lossy(&said).into_owned();
            // What makes no sense at all is told so.
            let refused = code == 403 && said.contains("violates PodSecurity") || code == 422;
            assert!(refused, "{at}: {code} {said}");
            tried += 1;
        }
        let merge = [("content-type", "application/merge-patch+json")];
        let debugger = json!({"spec": {"ephemeralContainers":
            [{"name": "d", "image": "i", "securityContext": {"privileged": true}}]}});
        let free = json!({"metadata": {"labels": {level: "privileged"}}});
        for (request, body) in [
            (format!("PATCH {pods}/good/ephemeralcontainers"), debugger),
            ("PATCH /api/v1/namespaces/strict".to_owned(), free.clone()),
            ("PATCH /api/v1/namespaces/strict/status".to_owned(), free),
        ] {
            let answer = bob.send(&request, &merge, body.to_string().into()).await.unwrap();
            assert_eq!(answer.status(), 403, "{request}");
            answer.into_body().collect().await.unwrap();
            tried += 1;
        }
        attacks::refused(tried);
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
                // That one is.
                String::new(),
            ),
            (
                "{apiVersion: batch/v1, kind: CronJob, metadata: {name: job}, spec: {schedule: '0 0 1 1 *', \
                 jobTemplate: {spec: {template: {spec: {restartPolicy: Never, \
                 containers: [{name: c, image: i}]}}}}}}",
                // So is that one.
                String::new(),
            ),
            (
                "{apiVersion: v1, kind: ResourceQuota, metadata: {name: quota}, \
                 spec: {hard: {pods: '0'}}}",
                String::new(),
            ),
            (
                "{apiVersion: v1, kind: Namespace, metadata: {name: safe, labels: \
                 {pod-security.kubernetes.io/enforce: restricted}}}",
                // These two are, as well.
                String::new(),
            ),
            (
                "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: door}, spec: {rules: \
                 [{host: example.com}]}}",
                kept("networking.k8s.io/v1 Ingress"),
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
