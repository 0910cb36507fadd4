//! What somebody may do who has nothing but a token to join with.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use roadstead_server::identity::user::User;
use serde_json::{Value, json};

use crate::server::Server;

/// A request for a certificate that jane has signed.
const JANE: &str = include_str!("jane.csr");

fn newcomer() -> User {
    let groups = ["system:bootstrappers", "system:authenticated"].map(str::to_owned);
    User::new("system:bootstrap:abc123", groups.to_vec())
}

#[tokio::test]
async fn little_more_than_asking() {
    let server = Server::new().await;
    let certificates = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let secret = json!({"metadata": {"name": "bootstrap-token-abc123"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abc123", "token-secret": "0123456789abcdef"}});
    server.ask("POST /api/v1/namespaces/kube-system/secrets", secret).await;
    server.ask("POST /api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let request = |signer: &str, usage: &str| {
        json!({"metadata": {"generateName": "csr-"}, "spec": {
            "request": STANDARD.encode(JANE), "signerName": format!("kubernetes.io/{signer}"),
            "usages": ["digital signature", usage]}})
    };
    let asked = server
        .ask_for(
            newcomer(),
            &format!("POST {certificates}"),
            request("kube-apiserver-client-kubelet", "client auth"),
        )
        .await;
    assert_eq!(asked.code, 201, "{}", asked.text);
    assert_eq!(asked.body["spec"]["username"], "system:bootstrap:abc123");
    let name = asked.body["metadata"]["name"].as_str().unwrap();
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True",
        "reason": "Mine", "message": "mine"}]}});
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    let role = json!({"metadata": {"name": "mine"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole", "name": "cluster-admin"}, "subjects": [{"kind": "Group",
        "apiGroup": "rbac.authorization.k8s.io", "name": "system:bootstrappers"}]});
    let tokens = "/api/v1/namespaces/kube-system/secrets";
    for (request, body, want) in [
        (format!("GET {certificates}/{name}"), Value::Null, 200),
        (format!("PATCH {certificates}/{name}/approval"), approved.clone(), 403),
        (format!("PATCH {certificates}/{name}/status"), approved, 403),
        (format!("PATCH {certificates}/{name}"), patch.clone(), 403),
        (format!("DELETE {certificates}/{name}"), Value::Null, 403),
        (format!("GET {tokens}/bootstrap-token-abc123"), Value::Null, 403),
        (format!("GET {tokens}"), Value::Null, 403),
        (format!("POST {tokens}"), json!({"metadata": {"name": "bootstrap-token-zzzzzz"}}), 403),
        ("GET /api/v1/nodes".into(), Value::Null, 403),
        ("POST /api/v1/nodes".into(), json!({"metadata": {"name": "n2"}}), 403),
        ("PATCH /api/v1/nodes/n1".into(), patch, 403),
        ("GET /api/v1/pods".into(), Value::Null, 403),
        ("GET /api/v1/namespaces/kube-system/configmaps".into(), Value::Null, 403),
        ("POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings".into(), role, 403),
        (
            "POST /api/v1/namespaces/kube-system/serviceaccounts/roadstead-network-policy/token"
                .into(),
            json!({"spec": {}}),
            403,
        ),
    ] {
        let answer = server.ask_for(newcomer(), &request, body).await;
        assert_eq!(answer.code, want, "{request}: {}", answer.text);
    }
}
