//! What somebody may do who may do little.

use roadstead_server::api::User;
use serde_json::{Value, json};

use crate::server::{Answer, Server};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A server on which alice may do this in all namespaces, from `verb,verb resource,resource; …`.
/// Resources of other groups than the core are written as `group:resource`.
async fn server(rights: &str) -> Server {
    let server = Server::new().await;
    let rules: Vec<_> = rights.split("; ").map(rule).collect();
    let role = json!({"metadata": {"name": "alice"}, "rules": rules});
    assert_eq!(server.ask(&format!("POST {RBAC}/clusterroles"), role).await.code, 201);
    let made = server.ask(&format!("POST {RBAC}/clusterrolebindings"), binding("alice")).await;
    assert_eq!(made.code, 201, "{}", made.text);
    server
}

fn rule(text: &str) -> Value {
    let (verbs, resources) = text.split_once(' ').unwrap();
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let (group, resources) = resources.split_once(':').unwrap_or(("", resources));
    json!({"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)})
}

/// A binding of alice to a ClusterRole, both with the same name.
fn binding(role: &str) -> Value {
    json!({"metadata": {"name": role},
        "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}})
}

async fn alice(server: &Server, request: &str, body: impl ToString) -> Answer {
    let user = User::new("alice", vec!["system:authenticated".into()]);
    server.ask_for(user, request, body).await
}

#[tokio::test]
async fn an_empty_name_is_no_way_around() {
    let server = server("get,list,create,delete,deletecollection pods/exec,secrets/status").await;
    for request in [
        "GET /api/v1/namespaces/default/secrets//status",
        "POST /api/v1/namespaces/default/pods//exec",
        "DELETE /api/v1/namespaces/default/pods//exec",
        "GET /api/v1/namespaces/default/secrets/%2fstatus",
    ] {
        // Alice may read what is below /api; nobody may do anything else to what does not exist.
        let want = if request.starts_with("GET") { 404 } else { 403 };
        let answer = alice(&server, request, "{}").await;
        assert_eq!(answer.code, want, "{request}: {}", answer.text);
    }
}
