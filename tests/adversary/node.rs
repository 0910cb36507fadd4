//! A node: a machine that holds the credentials of its node agent, and wants those of others.

use std::collections::BTreeMap;
use std::fs;

use bytes::Bytes;
use http_body_util::BodyExt;
use roadstead_testkit::netns::run;
use serde_json::{Value, json};

use crate::attacks;
use crate::client::{Client, Server};
use crate::process::Roadstead;

const NODE: &str = "--as=system:node:n1 --as-group=system:nodes --as-group=system:authenticated";

/// A node says where its pods are. It cannot make the API server, which stands where nobody else
/// does, knock anywhere else.
#[test]
fn an_address_that_is_not_a_pods() {
    let roadstead = Roadstead::apiserver_with("--cluster-cidr 10.244.0.0/16");
    let kubectl = roadstead.kubectl();
    let file = roadstead.directory().join("objects.yaml");
    let objects = "
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: v1
kind: Pod
metadata: {name: own, namespace: default}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host, namespace: default}
spec: {nodeName: n1, hostNetwork: true, containers: [{name: c, image: i}]}
";
    fs::write(&file, objects).unwrap();
    kubectl.run(&format!("create -f {}", file.display()));
    let claim = r#"{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.7"}]}}"#;
    // (kubectl reads before it patches, which nodes may not; they may write.)
    kubectl.run(&format!("patch node n1 --subresource=status -p '{claim}'"));
    for (pod, address) in [
        ("own", "127.0.0.1"),
        ("own", "169.254.169.254"),
        ("own", "10.96.0.1"),
        ("own", "192.0.2.7"),
        ("own", "198.51.100.1"),
        ("host", "127.0.0.1"),
        ("host", "10.96.0.1"),
        ("host", "10.244.0.9"),
        ("host", "198.51.100.1"),
    ] {
        let status =
            format!(r#"{{"status":{{"podIP":"{address}","podIPs":[{{"ip":"{address}"}}]}}}}"#);
        kubectl.run(&format!("patch pod {pod} --subresource=status -p '{status}'"));
        let path = format!("/api/v1/namespaces/default/pods/{pod}:6443/proxy/");
        let said = kubectl.fails(&format!("get --raw {path}"));
        assert!(said.contains("address not allowed"), "{pod} {address}: {said}");
    }
}

/// A node gets certificates for itself, and not for another.
#[test]
fn a_certificate_of_another_node() {
    let roadstead = Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    // Nodes may ask for certificates in every cluster; who approves them is another question.
    let place = roadstead.directory().display().to_string();
    for (name, subject, refused) in [
        (
            "other",
            "/O=system:nodes/CN=system:node:n2",
            Some("can only create a node CSR with CN=system:node:n1"),
        ),
        ("own", "/O=system:nodes/CN=system:node:n1", None),
    ] {
        run(&format!(
            "cd {place} && openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
             -keyout key -out csr -subj {subject} 2>/dev/null"
        ));
        let request = format!(
            "---\n{{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {{name: {name}}}, \
             spec: {{signerName: kubernetes.io/kube-apiserver-client-kubelet, usages: [client auth, \
             digital signature], request: {}}}}}",
            run(&format!("base64 -w0 {place}/csr"))
        );
        fs::write(format!("{place}/request.yaml"), request).unwrap();
        let command = format!("create -f {place}/request.yaml {NODE}");
        match refused {
            Some(words) => assert!(kubectl.fails(&command).contains(words)),
            None => drop(kubectl.run(&command)),
        }
    }
    // Nor does it approve or sign its own.
    let said = kubectl.fails(&format!("certificate approve own {NODE}"));
    assert!(said.contains("orbidden"), "{said}");
    attacks::refused(2);
}

/// A node that is somebody else's now tries, with its certificate, everything that it could need to become
/// more: nothing of it works, nothing of it changes anything, and what it needs for its own pod still does.
#[test]
fn a_hostile_node() {
    let server = Server::durable(1024, &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut root = server.door().enter("root").await.unwrap();
        furnish(&mut root).await;
        let before = everything(&mut root).await;
        let certificate = server.door_with_certificate("/O=system:nodes/CN=system:node:n1");
        let mut node = certificate.enter("").await.unwrap();
        let (mut counts, mut answered) = (BTreeMap::<u16, usize>::new(), Vec::new());
        for request in attacks() {
            let (code, said) = attack(&mut node, &request).await;
            // What is not there, or not served, tells nothing; whatever else is not forbidden was possible.
            let is_refused =
                matches!(code, 403 | 405) || code == 404 && is_nothing(&request, &said);
            if !is_refused {
                answered.push(format!("{request}: {code} {said}"));
            }
            *counts.entry(code).or_default() += 1;
        }
        assert!(answered.is_empty(), "{} were possible:\n{}", answered.len(), answered.join("\n"));
        let tried: usize = counts.values().sum();
        eprintln!("{tried} requests of a hostile node were refused: {counts:?}");
        assert!(tried >= 300 && counts[&403] >= 300, "{counts:?}");
        assert_eq!(everything(&mut root).await, before, "nothing has changed");
        for own in [
            "GET /api/v1/namespaces/default/secrets/n1",
            "GET /api/v1/namespaces/default/pods/n1",
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
            "GET /api/v1/nodes/n1",
        ] {
            assert_eq!(node.read(own, &[]).await.unwrap().0, 200, "{own}");
        }
        let ready = r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
        let (code, said) =
            attack(&mut node, &format!("PATCH /api/v1/nodes/n1/status|{ready}")).await;
        assert_eq!(code, 200, "its own status: {said}");
        // Only the group makes a node of somebody with the name of one.
        let stranger = server.door_with_certificate("/CN=system:node:n1");
        let mut stranger = stranger.enter("").await.unwrap();
        let own = "GET /api/v1/namespaces/default/secrets/n1";
        assert_eq!(stranger.read(own, &[]).await.unwrap().0, 403);
        attacks::refused(tried + 1);
    });
}

/// Two nodes, each with a pod that names a Secret, and things that are nobody's.
async fn furnish(root: &mut Client) {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(root.post(accounts, &json!({"metadata": {"name": "default"}})).await.0, 201);
    for node in ["n1", "n2"] {
        let named = json!({"metadata": {"name": node}});
        let pod = json!({"metadata": {"name": node}, "spec": {"nodeName": node, "containers":
            [{"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": node}}]}]}});
        let claim = json!({"metadata": {"name": node}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        let volume = json!({"metadata": {"name": node}, "spec": {"capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
        let slice = json!({"metadata": {"name": node}, "addressType": "IPv4", "endpoints": []});
        let csi = json!({"metadata": {"name": node}, "spec": {"drivers": []}});
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        for (path, object) in [
            ("/api/v1/nodes", &named),
            ("/api/v1/namespaces/default/secrets", &named),
            ("/api/v1/namespaces/kube-system/secrets", &named),
            ("/api/v1/namespaces/kube-system/configmaps", &named),
            ("/api/v1/namespaces/kube-system/serviceaccounts", &named),
            ("/api/v1/namespaces/default/pods", &pod),
            ("/api/v1/namespaces/default/persistentvolumeclaims", &claim),
            ("/api/v1/persistentvolumes", &volume),
            ("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice),
            ("/apis/storage.k8s.io/v1/csinodes", &csi),
            (leases, &named),
        ] {
            let (code, said) = root.post(path, object).await;
            assert_eq!(code, 201, "{path}: {}", String::from_utf8_lossy(&said));
        }
    }
}

/// What there is of whatever is attacked, with its versions.
async fn everything(root: &mut Client) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for kind in [
        "/api/v1/secrets",
        "/api/v1/configmaps",
        "/api/v1/serviceaccounts",
        "/api/v1/persistentvolumeclaims",
        "/api/v1/persistentvolumes",
        "/api/v1/pods",
        "/api/v1/nodes",
        "/api/v1/namespaces",
        "/api/v1/services",
        "/api/v1/resourcequotas",
        "/apis/apps/v1/deployments",
        "/apis/apps/v1/daemonsets",
        "/apis/batch/v1/jobs",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        "/apis/coordination.k8s.io/v1/leases",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/networking.k8s.io/v1/networkpolicies",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/rolebindings",
        "/apis/rbac.authorization.k8s.io/v1/roles",
        "/apis/storage.k8s.io/v1/csinodes",
    ] {
        let answer = root.send(&format!("GET {kind}"), &[], Bytes::new()).await.unwrap();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        let list: Value = serde_json::from_slice(&text).unwrap();
        for object in list["items"].as_array().unwrap() {
            let metadata = &object["metadata"];
            let name = format!("{kind} {}/{}", metadata["namespace"], metadata["name"]);
            all.push((name, metadata["resourceVersion"].to_string()));
        }
    }
    all
}

/// Sends a request: method and path, and behind a `|` what else there is: a body, or `user=NAME` to act as.
async fn attack(node: &mut Client, request: &str) -> (u16, String) {
    let reads = request.starts_with("GET") || request.starts_with("DELETE");
    let nothing = if reads { "" } else { "{}" };
    let (request, more) = request.split_once('|').unwrap_or((request, nothing));
    let media_type = match request.starts_with("PATCH") {
        true => "application/merge-patch+json",
        false => "application/json",
    };
    let mut headers = vec![("content-type", media_type)];
    let body = match more.strip_prefix("user=") {
        Some(user) => {
            headers.push(("impersonate-user", user));
            nothing
        }
        None => more,
    };
    let answer = node.send(request, &headers, body.to_owned().into()).await.unwrap();
    let code = answer.status().as_u16();
    let said = answer.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&said).into_owned())
}

/// Whether that was not found because no such thing is served, or is in the cluster of the test.
fn is_nothing(request: &str, said: &str) -> bool {
    let unserved = said.contains("could not find the requested resource");
    unserved || request.starts_with("GET /logs") || request.starts_with("PUT ")
}

/// Requests that must not be answered, some with a body behind a `|`.
fn attacks() -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |request: String| all.push(request);
    let core = ["secrets", "configmaps", "serviceaccounts", "persistentvolumeclaims", "pods"];
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        for kind in core {
            let path = format!("/api/v1/namespaces/{namespace}/{kind}");
            add(format!("GET {path}"));
            add(format!("GET {path}?watch=1"));
            add(format!("GET {path}/n2"));
            add(format!("GET {path}?fieldSelector=metadata.name%3Dn2"));
            add(format!("DELETE {path}"));
            add(format!("PUT {path}/n2|{{\"metadata\":{{\"name\":\"n2\"}}}}"));
            add(format!("PATCH {path}/n2|{{\"metadata\":{{\"labels\":{{\"a\":\"b\"}}}}}}"));
        }
    }
    for kind in core {
        add(format!("GET /api/v1/{kind}"));
        add(format!("GET /api/v1/{kind}?watch=1"));
    }
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for kind in ["clusterroles", "clusterrolebindings"] {
        add(format!("POST {rbac}/{kind}"));
        add(format!("GET {rbac}/{kind}"));
        add(format!("PATCH {rbac}/{kind}/system:node"));
        add(format!("DELETE {rbac}/{kind}/system:node"));
    }
    for account in ["default", "n1", "n2"] {
        let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{account}/token");
        add(format!("POST {path}|{{\"spec\":{{}}}}"));
        let bound =
            "{\"spec\":{\"boundObjectRef\":{\"kind\":\"Pod\",\"name\":\"n1\",\"uid\":\"x\"}}}";
        add(format!("POST {path}|{bound}"));
    }
    for part in ["", "/status"] {
        add(format!(
            "PATCH /api/v1/nodes/n2{part}|{{\"metadata\":{{\"labels\":{{\"a\":\"b\"}}}}}}"
        ));
        add(format!("PUT /api/v1/nodes/n2{part}|{{\"metadata\":{{\"name\":\"n2\"}}}}"));
    }
    for change in [
        "{\"spec\":{\"taints\":[{\"key\":\"a\",\"effect\":\"NoExecute\"}]}}",
        "{\"metadata\":{\"labels\":{\"node-restriction.kubernetes.io/a\":\"b\"}}}",
        "{\"metadata\":{\"labels\":{\"node-role.kubernetes.io/control-plane\":\"\"}}}",
    ] {
        add(format!("PATCH /api/v1/nodes/n1|{change}"));
    }
    add("DELETE /api/v1/nodes/n1".into());
    add("DELETE /api/v1/nodes/n2".into());
    add("POST /api/v1/nodes|{\"metadata\":{\"name\":\"n9\"}}".into());
    let pods = "/api/v1/namespaces/default/pods";
    add(format!("DELETE {pods}/n2"));
    add(format!("PATCH {pods}/n2/status|{{\"status\":{{\"podIP\":\"10.0.0.9\"}}}}"));
    add(format!("POST {pods}/n2/eviction|{{\"metadata\":{{\"name\":\"n2\"}}}}"));
    add(format!("POST {pods}/n1/binding|{{\"target\":{{\"name\":\"n1\"}}}}"));
    for verb in ["exec?command=sh&stdout=1", "attach?stdout=1", "portforward", "proxy/", "log"] {
        add(format!("GET {pods}/n2/{verb}"));
    }
    for (annotation, node, more) in [
        ("x", "n1", ""),
        ("kubernetes.io/config.mirror", "n2", ""),
        ("kubernetes.io/config.mirror", "n1", ",\"serviceAccountName\":\"default\""),
        ("kubernetes.io/config.mirror", "n1", ",\"imagePullSecrets\":[{\"name\":\"n2\"}]"),
        (
            "kubernetes.io/config.mirror",
            "n1",
            ",\"volumes\":[{\"name\":\"v\",\"secret\":{\"secretName\":\"n2\"}}]",
        ),
    ] {
        add(format!(
            "POST {pods}|{{\"metadata\":{{\"name\":\"evil\",\"annotations\":{{\"{annotation}\":\"1\"}}}},\
             \"spec\":{{\"nodeName\":\"{node}\",\"containers\":[{{\"name\":\"c\",\"image\":\"i\"}}]{more}}}}}"
        ));
    }
    for path in [
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler",
        "/apis/storage.k8s.io/v1/csinodes/n2",
        "/api/v1/namespaces/kube-system",
        "/apis/apps/v1/namespaces/default/deployments/web",
    ] {
        add(format!("PATCH {path}"));
        add(format!("DELETE {path}"));
    }
    for path in [
        "/api/v1/namespaces",
        "/api/v1/persistentvolumes",
        "/api/v1/namespaces/default/services",
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/apps/v1/namespaces/kube-system/daemonsets",
        "/apis/batch/v1/namespaces/default/jobs",
        "/api/v1/namespaces/default/resourcequotas",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ] {
        add(format!("POST {path}|{{\"metadata\":{{\"name\":\"evil\"}}}}"));
    }
    more_attacks(&mut add);
    for path in ["/metrics", "/debug/state", "/logs", "/api/v1/namespaces/kube-system/pods/n1/log"]
    {
        add(format!("GET {path}"));
    }
    all
}

/// To be somebody else, to be signed for, to be where others are looked for.
fn more_attacks(add: &mut impl FnMut(String)) {
    for user in [
        "system:admin",
        "system:node:n2",
        "system:kube-scheduler",
        "system:serviceaccount:kube-system:n1",
        "system:serviceaccount:kube-system:generic-garbage-collector",
    ] {
        for request in ["GET /api/v1/secrets", "GET /api/v1/nodes/n1", "DELETE /api/v1/nodes/n2"] {
            add(format!("{request}|user={user}"));
        }
    }
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    for part in ["", "/approval", "/status"] {
        add(format!("PUT {requests}/x{part}|{{\"metadata\":{{\"name\":\"x\"}}}}"));
        add(format!("PATCH {requests}/x{part}"));
    }
    add(format!("DELETE {requests}/x"));
    add(format!("DELETE {requests}"));
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    for path in [slices, policies, "/api/v1/namespaces/default/endpoints"] {
        add(format!("POST {path}|{{\"metadata\":{{\"name\":\"evil\"}}}}"));
        add(format!("PATCH {path}/n2|{{\"metadata\":{{\"labels\":{{\"a\":\"b\"}}}}}}"));
        add(format!("DELETE {path}/n2"));
        add(format!("DELETE {path}"));
    }
    for volume in ["/api/v1/persistentvolumes/n2", "/api/v1/persistentvolumes/n1"] {
        add(format!("GET {volume}"));
        add(format!("DELETE {volume}"));
        for part in ["", "/status"] {
            add(format!("PATCH {volume}{part}|{{\"metadata\":{{\"labels\":{{\"a\":\"b\"}}}}}}"));
        }
    }
    for selection in [
        "pods?labelSelector=roadstead.dev%2Fnode%3Dn1",
        "pods?fieldSelector=spec.nodeName%21%3Dn2",
        "pods?fieldSelector=metadata.name%3Dn1",
        "persistentvolumes?labelSelector=roadstead.dev%2Fnode%3Dn2",
        "persistentvolumes?labelSelector=roadstead.dev%2Fnode%20in%20(n1,n2)",
        "secrets?fieldSelector=metadata.name%3Dn1",
    ] {
        add(format!("GET /api/v1/{selection}"));
        add(format!("GET /api/v1/{selection}&watch=1"));
    }
    let claim = "/api/v1/namespaces/default/persistentvolumeclaims/n2/status";
    add(format!("PATCH {claim}|{{\"status\":{{\"phase\":\"Bound\"}}}}"));
    for part in ["ephemeralcontainers", "resize"] {
        add(format!("PATCH /api/v1/namespaces/default/pods/n2/{part}"));
        add(format!("PATCH /api/v1/namespaces/default/pods/n1/{part}"));
    }
    for verb in ["exec?command=sh&stdout=1", "attach?stdout=1", "portforward", "log"] {
        add(format!("POST /api/v1/namespaces/default/pods/n1/{verb}"));
    }
    for path in ["stats/summary", "run/default/n2/c?cmd=id", "pods"] {
        add(format!("GET /api/v1/nodes/n2/proxy/{path}"));
        add(format!("POST /api/v1/nodes/n1/proxy/{path}"));
    }
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    add(format!("POST {leases}|{{\"metadata\":{{\"name\":\"kube-controller-manager\"}}}}"));
    add(format!("GET {leases}/kube-scheduler"));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2";
    add(format!("GET {lease}"));
    add(format!("PUT {lease}|{{\"metadata\":{{\"name\":\"n2\"}}}}"));
    let label = |key: &str| format!("{{\"metadata\":{{\"labels\":{{\"{key}\":\"x\"}}}}}}");
    for key in [
        "kubernetes.io/anything",
        "k8s.io/anything",
        "x.node-restriction.kubernetes.io/a",
        "node-role.kubernetes.io/master",
    ] {
        add(format!("PATCH /api/v1/nodes/n1|{}", label(key)));
    }
    add("PATCH /api/v1/nodes/n1|{\"metadata\":{\"ownerReferences\":[{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"a\",\"uid\":\"b\"}]}}".into());
    add("PATCH /api/v1/namespaces/default/pods/n1/status|{\"metadata\":{\"labels\":{\"app\":\"web\"}}}".into());
    add("PATCH /api/v1/namespaces/default/pods/n1/status|{\"status\":{\"resourceClaimStatuses\":[{\"name\":\"gpu\",\"resourceClaimName\":\"all\"}]}}".into());
    for account in ["default", "n1", "n2"] {
        let bound = "{\"boundObjectRef\":{\"kind\":\"Pod\",\"name\":\"n2\",\"uid\":\"x\"}}";
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        add(format!("POST {path}|{{\"spec\":{bound}}}"));
        add(format!("POST {path}|{{\"spec\":{{}}}}"));
    }
    for path in [
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        "/apis/apiregistration.k8s.io/v1/apiservices",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/storage.k8s.io/v1/storageclasses",
        "/apis/node.k8s.io/v1/runtimeclasses",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings",
        "/apis/networking.k8s.io/v1/servicecidrs",
    ] {
        add(format!("POST {path}|{{\"metadata\":{{\"name\":\"evil\"}}}}"));
        add(format!("DELETE {path}"));
    }
}
