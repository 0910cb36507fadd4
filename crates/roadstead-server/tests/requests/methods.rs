//! What each method does, and what it never does.

use roadstead_server::identity::user::User;
use serde_json::json;

use crate::server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn server() -> Server {
    let server = Server::new().await;
    let map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    assert_eq!(server.ask(&format!("POST {MAPS}"), map).await.code, 201);
    server
}

#[tokio::test]
async fn a_head_is_a_get_without_a_body() {
    let server = server().await;
    let (all, one) = (MAPS.to_owned(), format!("{MAPS}/a"));
    let cases = [
        (all.clone(), 200),
        (format!("{all}?watch=true"), 200),
        ("/api/v1/configmaps".into(), 200),
        (one.clone(), 200),
        (format!("{MAPS}/none"), 404),
        ("/version".into(), 200),
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".into(), 405),
    ];
    for (path, want) in cases {
        let answer = server.ask(&format!("HEAD {path}"), "").await;
        assert_eq!((answer.code, &*answer.text), (want, ""), "{path}: {answer:?}");
    }
    assert_eq!(server.ask(&format!("GET {one}"), "").await.code, 200, "it is still there");
}

#[tokio::test]
async fn methods_that_do_nothing_do_nothing() {
    let server = server().await;
    let may_delete = User::new("dan", vec!["system:authenticated".into()]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "dan"}, "rules": [
        {"verbs": ["delete", "deletecollection"], "apiGroups": [""], "resources": ["*"]}]});
    server.ask(&format!("POST {rbac}/clusterroles"), role).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "dan"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "dan"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "dan"}]});
    assert_eq!(server.ask(&format!("POST {rbac}/clusterrolebindings"), binding).await.code, 201);
    for method in ["HEAD", "OPTIONS", "TRACE", "PURGE"] {
        for path in [format!("{MAPS}/a"), MAPS.to_owned()] {
            // Who may only delete may not look, not even this way.
            let answer = server.ask_for(may_delete.clone(), &format!("{method} {path}"), "").await;
            assert_eq!(answer.code, 403, "{method} {path}: {answer:?}");
            let want = if method == "HEAD" { 200 } else { 405 };
            let answer = server.ask(&format!("{method} {path}"), "").await;
            assert_eq!(answer.code, want, "{method} {path}: {answer:?}");
        }
    }
    assert_eq!(server.ask(&format!("GET {MAPS}/a"), "").await.code, 200, "it is still there");
}
