//! What people without an account, or with few rights, can make the server do.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::stream;
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use roadstead_server::identity::user::User;
use serde_json::json;

use crate::server::Server;

#[tokio::test]
async fn nobody_reads_what_strangers_send() {
    let server = Server::new().await;
    static READ: AtomicBool = AtomicBool::new(false);
    for request in ["GET /version", "GET /api/v1/nodes", "POST /api/v1/nodes", "FOO /nowhere"] {
        let frames = stream::once(async {
            READ.store(true, Ordering::Relaxed);
            Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"{}")))
        });
        let (method, path) = request.split_once(' ').unwrap();
        let body = StreamBody::new(Box::pin(frames));
        let request = Request::builder().method(method).uri(path).body(body).unwrap();
        let code = server.send_request(User::anonymous(), request).await.code;
        assert_eq!(code, if path == "/version" { 200 } else { 401 }, "{method} {path}");
        assert!(!READ.load(Ordering::Relaxed), "{method} {path}");
    }
}

#[tokio::test]
async fn nobody_makes_up_labels() {
    let server = Server::new().await;
    for request in [
        "GET /apis/invented.example/v7/invented",
        "GET /api/v1/namespaces/invented/invented/x",
        "GET /api/v1/namespaces/default/pods/x/invented",
        "INVENTED /invented",
        "INVENTED /version",
    ] {
        for user in [User::anonymous(), User::component()] {
            server.ask_by(user, &[], request).await;
        }
    }
    let metrics = server.ask("GET /metrics", "").await.text;
    assert!(metrics.contains("resource=\"pods\",subresource=\"\""), "{metrics}");
    assert!(!metrics.to_lowercase().contains("invented"), "{metrics}");
}

#[tokio::test]
async fn paths_need_rights_before_anything_is_made() {
    let server = Server::new().await;
    let role = json!({"metadata": {"name": "all"}, "rules": [
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    server.ask(&format!("POST {rbac}/clusterroles"), role).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "all"},
        "subjects": [{"kind": "User", "name": "alice", "apiGroup": group}],
        "roleRef": {"kind": "ClusterRole", "name": "all", "apiGroup": group}});
    server.ask(&format!("POST {rbac}/clusterrolebindings"), binding).await;
    let master = || User::new("root", vec!["system:masters".into()]);
    let (alice, bob) = (|| User::new("alice", vec![]), || User::new("bob", vec![]));
    let cases = [
        (User::anonymous(), "/healthz", 200),
        (User::anonymous(), "/metrics", 401),
        (User::anonymous(), "/openapi/v3", 401),
        (User::anonymous(), "/apis", 401),
        (bob(), "/metrics", 403),
        (bob(), "/nowhere", 403),
        (alice(), "/metrics", 200),
        (alice(), "/nowhere", 404),
        // Whoever holds every role still does not get a copy of all secrets.
        (alice(), "/debug/snapshot", 403),
        (master(), "/debug/snapshot", 200),
    ];
    for (user, path, code) in cases {
        let name = user.name.clone();
        let answer = server.ask_by(user, &[], &format!("GET {path}")).await;
        assert_eq!(answer.code, code, "{name} {path}: {}", answer.text);
    }
}

/// What a machine must know of the cluster that it joins, and nothing beside it.
#[tokio::test]
async fn strangers_read_one_object() {
    let server = Server::new().await;
    let public = "/api/v1/namespaces/kube-public/configmaps";
    for name in ["cluster-info", "other"] {
        let map = json!({"metadata": {"name": name}, "data": {"kubeconfig": "x"}});
        assert_eq!(server.ask(&format!("POST {public}"), map).await.code, 201);
    }
    for (request, want) in [
        (format!("GET {public}/cluster-info"), 200),
        (format!("GET {public}/cluster-info?watch=1"), 401),
        (format!("GET {public}/other"), 401),
        (format!("GET {public}"), 401),
        (format!("GET {public}?fieldSelector=metadata.name%3Dcluster-info"), 401),
        (format!("PATCH {public}/cluster-info"), 401),
        (format!("DELETE {public}/cluster-info"), 401),
        ("GET /api/v1/namespaces/default/configmaps/cluster-info".into(), 401),
        ("GET /api/v1/namespaces/kube-public/secrets/cluster-info".into(), 401),
        ("GET /api/v1/namespaces/kube-public".into(), 401),
    ] {
        let answer = server.ask_by(User::anonymous(), &[], &request).await;
        assert_eq!(answer.code, want, "{request}: {}", answer.text);
    }
    // Whoever wants nobody to read it takes the right away.
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public/rolebindings";
    server.ask(&format!("DELETE {path}/roadstead:cluster-info"), "").await;
    let request = format!("GET {public}/cluster-info");
    assert_eq!(server.ask_by(User::anonymous(), &[], &request).await.code, 403);
}
