//! Who did what: the lines of the audit log.

use roadstead_server::identity::audit::{Audit, Policy};
use roadstead_server::identity::user::User;
use roadstead_store::kv::Store;
use serde_json::{Value, json};

use crate::server::Server;

/// The lines so far.
fn lines(file: &tempfile::NamedTempFile) -> Vec<Value> {
    let text = std::fs::read_to_string(file.path()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn answers_and_watches_are_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let policy = Policy::parse(
        "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [\
         {level: RequestResponse, resources: [{group: '', resources: [configmaps]}]}]}",
    );
    let audit = Audit::new(policy.unwrap(), file.reopen().unwrap());
    let server = Server::with(Store::memory(), Some(audit)).await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "1"}});
    server.ask(&format!("POST {MAPS}"), &map).await;
    server.ask(&format!("GET {MAPS}/none"), "").await;
    server.ask(&format!("PATCH {MAPS}/m"), json!({"data": {"a": "2"}})).await;
    server.watch(&format!("{MAPS}?watch=1")).await;
    server.ask("GET /api/v1/nodes", "").await;
    let lines = lines(&file);
    let shown = lines.iter().map(|line| {
        let words = [&line["verb"], &line["stage"], &line["responseStatus"]["code"]];
        words.map(|word| word.to_string().replace('"', "")).join(" ")
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            "create ResponseComplete 201",
            "get ResponseComplete 404",
            "patch ResponseComplete 200",
            "watch ResponseStarted 200",
            "watch ResponseComplete 200",
        ]
    );
    assert_eq!(lines[0]["requestObject"], map);
    assert_eq!(lines[0]["responseObject"]["data"], json!({"a": "1"}));
    assert_eq!(lines[1]["responseObject"]["reason"], "NotFound");
    assert_eq!(lines[2]["requestObject"], json!({"data": {"a": "2"}}));
    assert_eq!(lines[3]["auditID"], lines[4]["auditID"]);
    assert_ne!(lines[2]["auditID"], lines[3]["auditID"]);
    assert_eq!(lines[3]["responseObject"], Value::Null, "a watch has no end to wait for");
}

#[tokio::test]
async fn those_who_are_turned_away_are_written_too() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let audit = Audit::new(Policy::default(), file.reopen().unwrap());
    let server = Server::with(Store::memory(), Some(audit)).await;
    let nodes = "GET /api/v1/nodes";
    let token = [("authorization", "Bearer wrong")];
    server.ask_by(User::anonymous(), &token, nodes).await;
    let alice = || User::new("alice", vec![]);
    server.ask_by(alice(), &[("impersonate-user", "bob")], nodes).await;
    server.ask_for(alice(), "POST /api/v1/nodes", "x".repeat(4 << 20)).await;
    server.ask("POST /api/v1/nodes", "x".repeat(4 << 20)).await;
    let shown = |line: &Value| {
        let user = line["user"]["username"].as_str().unwrap();
        format!("{user} {} {}", line["verb"], line["responseStatus"]["code"])
    };
    let shown: Vec<_> = lines(&file).iter().map(shown).collect();
    assert_eq!(
        shown,
        [
            " \"list\" 401",
            "alice \"list\" 403",
            "alice \"create\" 403",
            "system:roadstead \"create\" 413"
        ],
        "only what may be done is read"
    );
    let metrics = server.ask("GET /metrics", "").await.text;
    for code in [401, 403, 413] {
        assert!(metrics.contains(&format!("code=\"{code}\"")), "{code}: {metrics}");
    }
}

#[tokio::test]
async fn secrets_and_tokens_are_never_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let everything = Policy::parse("{kind: Policy, rules: [{level: RequestResponse}]}").unwrap();
    let audit = Audit::new(everything, file.reopen().unwrap());
    let server = Server::with(Store::memory(), Some(audit)).await;
    let default = "/api/v1/namespaces/default";
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
        "data": {"p": "aHVudGVyMg=="}});
    let patch = json!({"stringData": {"p": "hunter2"}});
    for (request, body) in [
        (format!("POST {default}/secrets"), secret.clone()),
        (format!("GET {default}/secrets"), json!("")),
        ("GET /api/v1/secrets".into(), json!("")),
        (format!("GET {default}/secrets/s"), json!("")),
        (format!("PATCH {default}/secrets/s"), patch),
        (format!("PUT {default}/secrets/s"), secret.clone()),
        // By mistake, in the place of others.
        (format!("POST {default}/pods"), secret.clone()),
        (format!("POST {default}/services"), json!({"kind": "List", "items": [secret.clone()]})),
        (format!("POST {MAPS}"), json!({"metadata": {"name": "m"}, "data": {"p": "hunter2"}})),
        (format!("POST {default}/serviceaccounts"), json!({"metadata": {"name": "robot"}})),
        (format!("DELETE {default}/secrets/s"), json!("")),
    ] {
        server.ask(&request, body).await;
    }
    let path = format!("POST {default}/serviceaccounts/robot/token");
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"});
    let issued = server.ask(&path, request).await.body;
    let token = issued["status"]["token"].as_str().unwrap();
    let review = json!({"spec": {"token": token}});
    server.ask("POST /apis/authentication.k8s.io/v1/tokenreviews", review).await;
    let text = std::fs::read_to_string(file.path()).unwrap();
    for secret in ["aHVudGVyMg==", "hunter2", token] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let bodies = lines(&file).iter().filter(|line| line["responseObject"].is_object()).count();
    assert!((3..10).contains(&bodies), "{bodies} others are written");
    assert_eq!(lines(&file).len(), 13);
}

#[tokio::test]
async fn violations_of_pod_security_are_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let policy = Policy::parse("{apiVersion: audit.k8s.io/v1, kind: Policy}").unwrap();
    let audit = Audit::new(policy, file.reopen().unwrap());
    let server = Server::with(Store::memory(), Some(audit)).await;
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/audit": "baseline"}}});
    server.ask("PATCH /api/v1/namespaces/default", labels).await;
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"hostPID": true, "containers": [{"name": "c", "image": "i"}]}});
    server.ask("POST /api/v1/namespaces/default/pods", pod).await;
    let lines = lines(&file);
    assert_eq!(
        lines[1]["annotations"]["pod-security.kubernetes.io/audit-violations"],
        "would violate PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"
    );
    assert_eq!(lines[0].get("annotations"), None);
}
