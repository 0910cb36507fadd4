//! Discovery, OpenAPI and health.

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
            "[+]ping ok\n[+]etcd ok\n[+]storage-scrub ok\nreadyz check passed\n",
        ),
        (
            "/livez?verbose=1&exclude=etcd",
            200,
            "[+]ping ok\n[+]etcd excluded: ok\n[+]storage-scrub ok\nlivez check passed\n",
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
