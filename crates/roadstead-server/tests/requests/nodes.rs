//! What a node may do: to what is its own, and to what is another's.

use std::collections::BTreeMap;
use std::fmt::Write;

use roadstead_server::config::Services;
use roadstead_server::identity::user::User;
use serde_json::{Value, json};

use crate::parts::{CLUSTERED, NAMESPACED, Try, add};
use crate::server::{Answer, Server};

const NS: &str = "/api/v1/namespaces/default";

/// A cluster of two nodes, each with a pod that names things of its own: `n1` has `p1`, which names the
/// Secret `s1`, and so on.
async fn cluster() -> Server {
    let server = Server::new().await;
    for node in ["1", "2"] {
        let make = async |path: &str, object: Value| {
            let made = server.ask(&format!("POST {path}"), object).await;
            assert_eq!(made.code, 201, "{path}: {}", made.text);
        };
        let named = |kind: &str| json!({"metadata": {"name": format!("{kind}{node}")}});
        make("/api/v1/nodes", named("n")).await;
        make(&format!("{NS}/secrets"), named("s")).await;
        make(&format!("{NS}/configmaps"), named("m")).await;
        make(&format!("{NS}/serviceaccounts"), named("a")).await;
        let claim = json!({"metadata": {"name": format!("c{node}")}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        make(&format!("{NS}/persistentvolumeclaims"), claim).await;
        let volume = json!({"metadata": {"name": format!("v{node}")}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"},
            "claimRef": {"namespace": "default", "name": format!("c{node}")}}});
        make("/api/v1/persistentvolumes", volume).await;
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        make(lease, named("n")).await;
        make(
            "/apis/storage.k8s.io/v1/csinodes",
            json!({"metadata": {"name": format!("n{node}")},
            "spec": {"drivers": []}}),
        )
        .await;
        let pod = json!({"metadata": {"name": format!("p{node}")}, "spec": {
            "nodeName": format!("n{node}"), "serviceAccountName": format!("a{node}"),
            "containers": [{"name": "c", "image": "i"}], "volumes": [
                {"name": "s", "secret": {"secretName": format!("s{node}")}},
                {"name": "m", "configMap": {"name": format!("m{node}")}},
                {"name": "c", "persistentVolumeClaim": {"claimName": format!("c{node}")}}]}});
        make(&format!("{NS}/pods"), pod).await;
    }
    server
}

async fn ask(server: &Server, request: &str, body: Value) -> Answer {
    server.ask_for(User::of_node("n1"), request, body).await
}

#[tokio::test]
async fn own_and_others() {
    let server = cluster().await;
    let patch = json!({"metadata": {"annotations": {"a": "b"}}});
    let eviction = |pod: &str| json!({"metadata": {"name": pod}});
    // The request, with # for the number of the node; the body; the answers for its own and another's.
    let cases = [
        (format!("GET {NS}/secrets/s#"), json!({}), 200, 403),
        (format!("GET {NS}/secrets?fieldSelector=metadata.name%3Ds#"), json!({}), 200, 403),
        (format!("PATCH {NS}/secrets/s#"), patch.clone(), 403, 403),
        (format!("DELETE {NS}/secrets/s#"), json!({}), 403, 403),
        (format!("GET {NS}/configmaps/m#"), json!({}), 200, 403),
        (format!("GET {NS}/serviceaccounts/a#"), json!({}), 200, 403),
        (format!("GET {NS}/persistentvolumeclaims/c#"), json!({}), 200, 403),
        (format!("PATCH {NS}/persistentvolumeclaims/c#/status"), patch.clone(), 200, 403),
        ("GET /api/v1/persistentvolumes/v#".into(), json!({}), 200, 403),
        ("PATCH /api/v1/persistentvolumes/v#".into(), patch.clone(), 403, 403),
        (format!("GET {NS}/pods/p#"), json!({}), 200, 403),
        ("GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn#".into(), json!({}), 200, 403),
        (format!("PATCH {NS}/pods/p#"), patch.clone(), 403, 403),
        (format!("PATCH {NS}/pods/p#/status"), patch.clone(), 200, 403),
        (format!("POST {NS}/pods/p#/eviction?dryRun=All"), eviction("p#"), 201, 403),
        ("GET /api/v1/nodes/n#".into(), json!({}), 200, 200),
        ("PATCH /api/v1/nodes/n#".into(), patch.clone(), 200, 403),
        ("PATCH /api/v1/nodes/n#/status".into(), patch.clone(), 200, 403),
        ("DELETE /api/v1/nodes/n#".into(), json!({}), 403, 403),
        (
            "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n#".into(),
            patch.clone(),
            200,
            403,
        ),
        ("PATCH /apis/storage.k8s.io/v1/csinodes/n#".into(), patch.clone(), 200, 403),
        (format!("DELETE {NS}/pods/p#?dryRun=All"), json!({}), 200, 403),
    ];
    for (request, body, own, others) in cases {
        for (node, want) in [("1", own), ("2", others)] {
            let request = request.replace('#', node);
            let body: Value = serde_json::from_str(&body.to_string().replace('#', node)).unwrap();
            let answer = ask(&server, &request, body).await;
            assert_eq!(answer.code, want, "{request}: {}", answer.text);
        }
    }
    let fine = [
        format!("GET {NS}/services"),
        "GET /apis/discovery.k8s.io/v1/endpointslices".into(),
        "GET /api/v1/namespaces".into(),
        "GET /api/v1/nodes".into(),
    ];
    for request in fine {
        assert_eq!(ask(&server, &request, json!({})).await.code, 200, "{request}");
    }
    for request in [
        "GET /api/v1/secrets".to_owned(),
        format!("GET {NS}/secrets"),
        format!("GET {NS}/configmaps"),
        "GET /api/v1/pods".into(),
        "GET /api/v1/pods?labelSelector=roadstead.dev%2Fnode%3Dn1".into(),
        "GET /api/v1/persistentvolumeclaims".into(),
        format!("DELETE {NS}/pods"),
        format!("POST {NS}/secrets"),
        format!("POST {NS}/services"),
        "POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings".into(),
        "GET /api/v1/namespaces/kube-system/serviceaccounts/default".into(),
    ] {
        assert_eq!(ask(&server, &request, json!({})).await.code, 403, "{request}");
    }
    let stranger = User::new("system:node:n1", vec!["system:authenticated".into()]);
    let answer = server.ask_for(stranger, &format!("GET {NS}/secrets/s1"), "{}").await;
    assert_eq!(answer.code, 403, "who is called as a node is not in the group of nodes");
}

/// How the objects of a kind are called that belong to a node, but for its number.
fn names(resource: &str) -> (&'static str, &'static str) {
    match resource.split('/').next().unwrap_or_default() {
        "secrets" => ("default", "s"),
        "configmaps" => ("default", "m"),
        "serviceaccounts" => ("default", "a"),
        "persistentvolumeclaims" => ("default", "c"),
        "pods" => ("default", "p"),
        "leases" => ("kube-node-lease", "n"),
        "persistentvolumes" => ("", "v"),
        _ => ("default", "n"),
    }
}

/// Every verb on every kind: what the node may do to what is its own, and to what is another's.
#[tokio::test]
async fn every_verb_on_every_kind() {
    let server = cluster().await;
    let mut table = String::new();
    let (mut allowed, mut refused) = (0, 0);
    let clustered = CLUSTERED.iter().map(|row| (row, false));
    let rows = clustered.chain(NAMESPACED.iter().map(|row| (row, true)));
    let kinds = rows.flat_map(|((root, resources), has_namespace)| {
        resources.split_whitespace().map(move |resource| (*root, resource, has_namespace))
    });
    for (root, resource, has_namespace) in kinds {
        let mut verbs = BTreeMap::from([("own", Vec::new()), ("another's", Vec::new())]);
        for (whose, number) in [("own", 1), ("another's", 2)] {
            let (namespace, name) = names(resource);
            let namespace = if has_namespace { namespace } else { "" };
            let mut tries = Vec::new();
            add(&mut tries, root, resource, namespace, &format!("{name}{number}"));
            for Try { verb, request, .. } in tries {
                let why = server.forbids(User::of_node("n1"), &request).await;
                match why.is_empty() {
                    true => verbs.entry(whose).or_default().push(verb),
                    false => refused += 1,
                }
            }
        }
        allowed += verbs.values().map(Vec::len).sum::<usize>();
        let said = verbs.iter().rev().filter(|(_, verbs)| !verbs.is_empty());
        for (whose, verbs) in said {
            writeln!(table, "{resource}, {whose}: {}", verbs.join(",")).unwrap();
        }
    }
    eprintln!("a node: {allowed} requests allowed, {refused} refused");
    insta::assert_snapshot!("nodes", table);
}

#[tokio::test]
async fn a_node_knows_what_its_pods_name_at_once() {
    let server = cluster().await;
    let read = async || ask(&server, &format!("GET {NS}/secrets/s2"), json!({})).await.code;
    assert_eq!(read().await, 403);
    let pod = json!({"metadata": {"name": "late"}, "spec": {"nodeName": "n1", "containers":
        [{"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": "s2"}}]}]}});
    server.ask(&format!("POST {NS}/pods"), pod).await;
    assert_eq!(read().await, 200);
    server.ask(&format!("DELETE {NS}/pods/late?gracePeriodSeconds=0"), "{}").await;
    assert_eq!(read().await, 403);
}

#[tokio::test]
async fn what_a_node_may_say() {
    let server = cluster().await;
    let mirror = |name: &str, node: &str, more: Value| {
        let mut pod = json!({"metadata": {"name": name, "annotations": {"kubernetes.io/config.mirror": "x"}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
        roadstead_patch::merge(&mut pod, &more).unwrap();
        pod
    };
    let plain = json!({"metadata": {"annotations": null}});
    let secret = json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s2"}}]}});
    let account = json!({"spec": {"serviceAccountName": "a2"}});
    let pods = format!("POST {NS}/pods");
    let node = "PATCH /api/v1/nodes/n1";
    let label = |name: &str| json!({"metadata": {"labels": {name: "x"}}});
    let token = |pod: &str, uid: &str| {
        json!({"spec": {"boundObjectRef": {"kind": "Pod",
        "apiVersion": "v1", "name": pod, "uid": uid}}})
    };
    let uid = |pod: Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let own = uid(server.ask(&format!("GET {NS}/pods/p1"), "").await.body);
    let other = uid(server.ask(&format!("GET {NS}/pods/p2"), "").await.body);
    let tokens = format!("POST {NS}/serviceaccounts/a1/token");
    let status = format!("PATCH {NS}/pods/p1/status");
    for (request, body, want) in [
        (&*pods, mirror("m1", "n1", json!({})), ""),
        (
            &pods,
            mirror("m2", "n2", json!({})),
            "node \"n1\" can only create pods with spec.nodeName set to itself",
        ),
        (&pods, mirror("m3", "n1", plain), "node \"n1\" can only create mirror pods"),
        (
            &pods,
            mirror("m4", "n1", secret),
            "node \"n1\" can not create pods that reference secrets",
        ),
        (
            &pods,
            mirror("m5", "n1", account),
            "can not create pods that reference a service account",
        ),
        (
            node,
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
            "node \"n1\" is not allowed to modify taints",
        ),
        (node, label("example.com/a"), ""),
        (node, label("topology.kubernetes.io/zone"), ""),
        (
            node,
            label("node-restriction.kubernetes.io/a"),
            "is not allowed to modify the following labels: node-restriction.kubernetes.io/a",
        ),
        (
            node,
            label("kubernetes.io/b"),
            "is not allowed to modify the following labels: kubernetes.io/b",
        ),
        (
            "POST /api/v1/nodes",
            json!({"metadata": {"name": "n3"}}),
            "node \"n1\" is not allowed to modify node \"n3\"",
        ),
        (
            node,
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "0"}]}}),
            "node \"n1\" is not allowed to modify ownerReferences",
        ),
        (&status, label("app"), "node \"n1\" cannot update labels through pod status"),
        (
            &status,
            json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x"}]}}),
            "node \"n1\" cannot update resource claim statues",
        ),
        (&status, json!({"status": {"phase": "Running"}}), ""),
        (&tokens, token("p1", &own), ""),
        (&tokens, json!({"spec": {}}), "node requested token not bound to a pod"),
        (&tokens, token("p1", ""), "node requested token with a pod binding without a uid"),
        (
            &tokens,
            token("p2", &other),
            "node requested token bound to a pod scheduled on a different node",
        ),
    ] {
        let answer = ask(&server, request, body.clone()).await;
        let refused =
            answer.code == 403 && answer.body["message"].as_str().unwrap_or("").contains(want);
        assert!(
            if want.is_empty() { answer.code < 300 } else { refused },
            "{request} {body}: {}",
            answer.text
        );
    }
    let others = format!("POST {NS}/serviceaccounts/a2/token");
    assert_eq!(ask(&server, &others, token("p1", &own)).await.code, 403);
}

/// Two controllers at once, or a node that takes what another has.
#[tokio::test]
async fn no_two_nodes_have_the_same_pod_addresses() {
    let server = Server::new().await;
    let node = |name: &str, blocks: &[&str]| json!({"metadata": {"name": name}, "spec": {"podCIDR": blocks[0], "podCIDRs": blocks}});
    let make = async |name: &str, blocks: &[&str]| {
        server.ask("POST /api/v1/nodes", node(name, blocks)).await
    };
    assert_eq!(make("n1", &["10.244.0.0/24", "fd00::/64"]).await.code, 201);
    for (name, blocks) in [
        ("same", &["10.244.0.0/24"][..]),
        ("inside", &["10.244.0.128/25"]),
        ("around", &["10.244.0.0/16"]),
        ("the other family", &["10.244.1.0/24", "fd00::/48"]),
    ] {
        let answer = make("n2", blocks).await;
        assert_eq!(answer.code, 409, "{name}: {}", answer.text);
        assert!(
            answer.text.contains("are those of the node \\\"n1\\\""),
            "{name}: {}",
            answer.text
        );
    }
    assert_eq!(make("n2", &["10.244.1.0/24"]).await.code, 201);
    // A status, and a label, are no other addresses.
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(server.ask("PATCH /api/v1/nodes/n1", patch).await.code, 200);
    // What a node had is free when its object is gone.
    server.ask("DELETE /api/v1/nodes/n1", "").await;
    assert_eq!(make("n3", &["10.244.0.0/24"]).await.code, 201);

    let others = ["n5", "n6", "n7", "n8"].map(|name| node(name, &["10.245.0.0/24"]));
    let asked = others.into_iter().map(|object| server.ask("POST /api/v1/nodes", object));
    let codes: Vec<_> = futures::future::join_all(asked).await.iter().map(|one| one.code).collect();
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1, "at once: {codes:?}");
}

/// Where controllers give addresses out, nodes do not help themselves.
#[tokio::test]
async fn nodes_do_not_say_which_pod_addresses_they_have() {
    let services = Services { gives_pod_ranges: true, ..Services::default() };
    let server = Server::with_services(services).await;
    let spec = json!({"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]});
    let own = |spec: Value| json!({"metadata": {"name": "n1"}, "spec": spec});
    let refused = "is not allowed to say which pod addresses it has";
    let answer = ask(&server, "POST /api/v1/nodes", own(spec.clone())).await;
    assert!(answer.code == 403 && answer.text.contains(refused), "{}", answer.text);
    assert_eq!(ask(&server, "POST /api/v1/nodes", own(json!({}))).await.code, 201);
    let answer = ask(&server, "PATCH /api/v1/nodes/n1", json!({"spec": spec})).await;
    assert!(answer.code == 403 && answer.text.contains(refused), "{}", answer.text);
    assert_eq!(server.ask("PATCH /api/v1/nodes/n1", json!({"spec": spec})).await.code, 200);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(ask(&server, "PATCH /api/v1/nodes/n1", label).await.code, 200);
}

/// A token by which policies are read, for the node itself and while there is one.
#[tokio::test]
async fn the_token_for_policies_ends_with_the_node() {
    let server = cluster().await;
    let account = json!({"metadata": {"name": "roadstead-network-policy"}});
    let home = "/api/v1/namespaces/kube-system/serviceaccounts";
    assert_eq!(server.ask(&format!("POST {home}"), account).await.code, 201);
    let node = server.ask("GET /api/v1/nodes/n1", "").await.body;
    let other = server.ask("GET /api/v1/nodes/n2", "").await.body;
    let request = |name: &str, uid: &Value| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}}})
    };
    let path = format!("POST {home}/roadstead-network-policy/token");
    let (own, others) = (&node["metadata"]["uid"], &other["metadata"]["uid"]);
    for (body, want) in [
        (request("n1", own), 201),
        (request("n2", others), 403),
        (request("n1", others), 403),
        (
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
            403,
        ),
    ] {
        let answer = ask(&server, &path, body).await;
        assert_eq!(answer.code, want, "{}", answer.text);
    }
    let other = format!("POST {home}/default/token");
    assert_eq!(ask(&server, &other, request("n1", own)).await.code, 403);
    let token = ask(&server, &path, request("n1", own)).await.body["status"]["token"].take();
    let review = json!({"spec": {"token": token}});
    let asked = "POST /apis/authentication.k8s.io/v1/tokenreviews";
    let known =
        async || server.ask(asked, review.clone()).await.body["status"]["authenticated"].take();
    assert_eq!(known().await, json!(true));
    server.ask("DELETE /api/v1/nodes/n1", "").await;
    assert_ne!(known().await, json!(true));
}
