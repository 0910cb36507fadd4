//! What is kept and does nothing says so to whoever writes it.

use roadstead_server::config::Neighbours;
use serde_json::json;

use crate::server::Server;

const DEFAULT: &str = "/api/v1/namespaces/default";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";

#[tokio::test]
async fn guards_that_are_not_there() {
    let server = Server::new().await;
    let components = Some(vec!["deployment"]);
    server.set_neighbours(Neighbours { components });
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}});
    let policy = json!({"metadata": {"name": "none"}, "spec": {"podSelector": {}}});
    let quota_words = "299 - \"v1 ResourceQuota is kept, but nothing on this cluster enforces it\"";
    let policy_words = "299 - \"networking.k8s.io/v1 NetworkPolicy is kept, but nothing on this \
        cluster enforces it\"";
    for (request, body, want) in [
        (format!("POST {DEFAULT}/resourcequotas"), &quota, vec![quota_words]),
        (format!("PATCH {DEFAULT}/resourcequotas/q"), &quota, vec![quota_words]),
        (format!("PATCH {DEFAULT}/resourcequotas/q/status"), &json!({}), vec![]),
        (format!("GET {DEFAULT}/resourcequotas/q"), &json!({}), vec![]),
        (format!("DELETE {DEFAULT}/resourcequotas/q"), &json!({}), vec![]),
        (format!("POST {POLICIES}?dryRun=All"), &policy, vec![policy_words]),
        (format!("POST {POLICIES}"), &policy, vec![policy_words]),
    ] {
        let answer = server.ask(&request, body).await;
        assert!(answer.code < 300, "{request}: {answer:?}");
        assert_eq!(answer.warnings, want, "{request}");
    }
}

/// Beside a server alone others may run, such as kube-controller-manager.
#[tokio::test]
async fn nobody_knows_who_else_acts() {
    let server = Server::new().await;
    let policy = json!({"metadata": {"name": "none"}, "spec": {"podSelector": {}}});
    let answer = server.ask(&format!("POST {POLICIES}"), policy).await;
    assert_eq!((answer.code, answer.warnings), (201, vec![]));
}
