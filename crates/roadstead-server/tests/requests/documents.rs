//! Discovery, OpenAPI and health.

use roadstead_server::identity::user::User;
use serde_json::json;

use crate::server::Server;

#[tokio::test]
async fn health_says_what_it_has_looked_at() {
    let server = Server::new().await;
    let cases = [
        ("/healthz", 200, "ok"),
        ("/livez/ping", 200, "ok"),
        ("/readyz/etcd", 200, "ok"),
        (
            "/readyz?verbose",
            200,
            "[+]ping ok\n[+]etcd ok\n[+]shutdown ok\n[+]storage-scrub ok\nreadyz check passed\n",
        ),
        (
            "/livez?verbose=1&exclude=etcd",
            200,
            "[+]ping ok\n[+]etcd excluded: ok\n[+]shutdown ok\n[+]storage-scrub ok\nlivez check passed\n",
        ),
    ];
    for (path, code, text) in cases {
        let answer = server.ask(&format!("GET {path}"), "").await;
        assert_eq!((answer.code, answer.text.as_str()), (code, text), "{path}");
    }
    assert_eq!(server.ask("GET /readyz/nope", "").await.code, 404);
}

#[tokio::test]
async fn documents_change_with_definitions() {
    let server = Server::new().await;
    let hash = async || {
        let index = server.ask("GET /openapi/v3", "").await.body;
        index["paths"]["apis/example.com/v1"]["serverRelativeURL"].clone()
    };
    assert_eq!(hash().await, json!(null));
    let definition = crate::definitions::definition("v1*");
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    server.ask(&format!("POST {path}"), definition).await;
    let first = hash().await;
    let field = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
    let patch = json!([{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema",
        "value": field}]);
    let path = format!("PATCH {path}/things.example.com");
    server.ask_as(&path, "application/json-patch+json", patch).await;
    assert_ne!(hash().await, first);
}

#[tokio::test]
async fn the_state_of_the_server_takes_a_right() {
    const STATE: &str = "/debug/state";
    let server = Server::new().await;
    let jane = || User::new("jane", vec!["system:authenticated".into()]);
    let monitoring = || User::new("prometheus", vec!["system:monitoring".into()]);
    for (user, name) in
        [(User::default(), "a stranger"), (jane(), "jane"), (monitoring(), "a probe")]
    {
        let refused = server.ask_by(user, &[], &format!("GET {STATE}")).await;
        assert!([401, 403].contains(&refused.code), "{name}: {}", refused.text);
        assert!(!refused.text.contains("revision"), "{name}: {}", refused.text);
    }
    let all = server.ask(&format!("GET {STATE}"), "").await;
    assert_eq!(all.code, 200, "{}", all.text);
    let own = &all.body["apiserver"];
    assert!(own["objects"]["namespaces"].as_u64() >= Some(4), "{}", all.text);
    assert!(own["revision"].as_u64() > Some(0) && own["readOnlyBecause"].is_null(), "{}", all.text);

    let role = json!({"metadata": {"name": "looker"},
        "rules": [{"nonResourceURLs": [STATE], "verbs": ["get"]}]});
    let binding = json!({"metadata": {"name": "looker"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looker"}});
    for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("POST /apis/rbac.authorization.k8s.io/v1/{plural}");
        assert_eq!(server.ask(&path, object).await.code, 201);
    }
    assert_eq!(server.ask_by(jane(), &[], &format!("GET {STATE}")).await.code, 200);
    let changing = server.ask_by(jane(), &[], &format!("POST {STATE}")).await;
    assert_eq!(changing.code, 403, "the right is to look: {}", changing.text);
}
