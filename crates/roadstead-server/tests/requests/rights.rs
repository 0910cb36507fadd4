//! What somebody may do who may do little.

use roadstead_server::identity::user::User;
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

#[tokio::test]
async fn roles_give_no_more_than_their_author_has() {
    let server = server(
        "get,list secrets; create,update,patch,get \
         rbac.authorization.k8s.io:clusterroles,clusterrolebindings",
    )
    .await;
    let secrets = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]);
    let pods = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    let sum = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let role = |name: &str, rules: &Value| json!({"metadata": {"name": name}, "rules": rules});
    let roles = format!("{RBAC}/clusterroles");
    server.ask(&format!("POST {roles}"), role("pods", &pods)).await;
    let mut summing = role("sum", &secrets);
    summing["aggregationRule"] = sum.clone();
    let not_held = "is attempting to grant RBAC permissions not currently held";
    let cases = [
        (format!("POST {roles}"), role("own", &secrets), 201, ""),
        (format!("POST {roles}"), role("more", &pods), 403, not_held),
        (
            format!("POST {roles}"),
            summing,
            403,
            "must have cluster-admin privileges to use the aggregationRule",
        ),
        (
            format!("PATCH {roles}/own"),
            json!({"aggregationRule": sum}),
            403,
            "must have cluster-admin privileges to use the aggregationRule",
        ),
        // Labels can make a role part of a sum: whoever sets them must have what it gives.
        (format!("PATCH {roles}/own"), json!({"metadata": {"labels": {"a": "b"}}}), 200, ""),
        (format!("PATCH {roles}/pods"), json!({"metadata": {"labels": {"a": "b"}}}), 403, not_held),
        (format!("PATCH {roles}/pods"), json!({"metadata": {"finalizers": ["a/b"]}}), 200, ""),
        (format!("PUT {roles}/pods"), role("pods", &secrets), 200, ""),
        (
            format!("POST {RBAC}/clusterrolebindings"),
            binding("nobody"),
            404,
            "clusterroles.rbac.authorization.k8s.io \"nobody\" not found",
        ),
        (format!("POST {RBAC}/clusterrolebindings"), binding("own"), 201, ""),
        (
            format!("PATCH {RBAC}/clusterrolebindings/own"),
            json!({"roleRef": {"name": "pods"}}),
            422,
            "field is immutable",
        ),
    ];
    for (request, body, code, words) in cases {
        let answer = alice(&server, &request, &body).await;
        assert_eq!(answer.code, code, "{request} {body}: {}", answer.text);
        assert!(answer.text.contains(&words.replace('"', "\\\"")), "{request}: {}", answer.text);
    }
}

#[tokio::test]
async fn an_update_that_creates_is_a_creation() {
    let server = server("update,patch services,configmaps").await;
    let apply = "application/apply-patch+yaml";
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let path = "/api/v1/namespaces/default/configmaps/a?fieldManager=alice";
    let user = || User::new("alice", vec!["system:authenticated".into()]);
    let refused = server.ask_with(user(), &format!("PATCH {path}"), apply, &config).await;
    assert_eq!(refused.code, 403, "{}", refused.text);
    assert_eq!(
        refused.body["message"],
        "configmaps \"a\" is forbidden: User \"alice\" cannot create resource \"configmaps\" in \
         API group \"\" in the namespace \"default\""
    );
    assert_eq!(server.ask_as(&format!("PATCH {path}"), apply, &config).await.code, 201);
    let applied = server.ask_with(user(), &format!("PATCH {path}"), apply, &config).await;
    assert_eq!(applied.code, 200, "{}", applied.text);
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let put = alice(&server, "PUT /api/v1/namespaces/default/services/web", service).await;
    assert_eq!(put.code, 403, "{}", put.text);
}

#[tokio::test]
async fn a_watch_of_one_object_tells_of_no_other() {
    let server = Server::new().await;
    let rules = json!([{"verbs": ["get", "list", "watch"], "apiGroups": [""],
        "resources": ["configmaps"], "resourceNames": ["a"]}]);
    let role = json!({"metadata": {"name": "alice"}, "rules": rules});
    server.ask(&format!("POST {RBAC}/clusterroles"), role).await;
    server.ask(&format!("POST {RBAC}/clusterrolebindings"), binding("alice")).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["a", "b"] {
        server.ask(&format!("POST {maps}"), json!({"metadata": {"name": name}})).await;
    }
    // What is asked for, and whom the answer is about.
    let cases = [
        (format!("{maps}/a?watch=1&timeoutSeconds=1"), "a"),
        (format!("{maps}/a?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Db"), ""),
        (format!("{maps}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Da"), "a"),
        (format!("{maps}?fieldSelector=metadata.name%3Da"), "a"),
        (format!("{maps}?fieldSelector=metadata.name%3Da,metadata.name%3Db"), ""),
        (format!("{maps}?fieldSelector=metadata.name%3Db"), "refused"),
        (format!("{maps}?fieldSelector=metadata.name!%3Da"), "refused"),
        (maps.to_owned(), "refused"),
    ];
    for (path, want) in cases {
        let answer = alice(&server, &format!("GET {path}"), "").await;
        let names = ["a", "b"].into_iter();
        let found = names.filter(|name| answer.text.contains(&format!("\"name\":\"{name}\"")));
        let found = match answer.code {
            200 => found.collect::<Vec<_>>().join(" "),
            403 => "refused".to_owned(),
            other => other.to_string(),
        };
        assert_eq!(found, want, "{path}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_small_role_is_not_multiplied_out() {
    let server = server(
        "get pods; create,update,get rbac.authorization.k8s.io:roles,rolebindings; create \
         authorization.k8s.io:selfsubjectrulesreviews",
    )
    .await;
    let words = |letter: &str| (0..330).map(|n| format!("{letter}{n}")).collect::<Vec<_>>();
    let rules = json!([{"verbs": words("v"), "apiGroups": words("g"), "resources": words("r")}]);
    let role = json!({"metadata": {"name": "wide"}, "rules": rules});
    let path = format!("{RBAC}/namespaces/default/roles");
    let began = std::time::Instant::now();
    let refused = alice(&server, &format!("POST {path}"), role.clone()).await;
    assert_eq!(refused.code, 403);
    assert!(refused.text.len() < 20_000, "{} bytes", refused.text.len());
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.ends_with("\n… and 108880 more"), "{message}");
    assert!(
        message.contains("{APIGroups:[\"g0\"], Resources:[\"r0\"], Verbs:[\"v0\" "),
        "{message}"
    );
    // Held as often as one likes, it counts once.
    assert_eq!(server.ask(&format!("POST {path}"), role.clone()).await.code, 201);
    let subjects: Vec<_> = (0..2_000)
        .map(|_| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}))
        .collect();
    let binding = json!({"metadata": {"name": "wide"}, "subjects": subjects, "roleRef":
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "wide"}});
    let path = format!("{RBAC}/namespaces/default/rolebindings");
    assert_eq!(server.ask(&format!("POST {path}"), binding).await.code, 201);
    let review = json!({"spec": {"namespace": "default"}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let answer = alice(&server, &format!("POST {reviews}"), review).await;
    assert_eq!((answer.code, &answer.body["status"]["incomplete"]), (201, &json!(false)));
    assert!(answer.text.len() < 50_000, "{} bytes", answer.text.len());
    let mut again = role;
    again["metadata"]["name"] = "again".into();
    let path = format!("{RBAC}/namespaces/default/roles");
    assert_eq!(alice(&server, &format!("POST {path}"), again).await.code, 201, "now it is held");
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}
