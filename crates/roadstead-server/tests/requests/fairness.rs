//! FlowSchemas and PriorityLevelConfigurations: kept, described, and counted by.

use roadstead_server::identity::user::User;
use roadstead_store::kv::Store;
use serde_json::{Value, json};

use crate::server::Server;

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";

fn schema(level: &str) -> Value {
    json!({"metadata": {"name": "own"}, "spec": {
        "priorityLevelConfiguration": {"name": level},
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "jane"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}})
}

fn level(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": "Limited",
        "limited": {"limitResponse": {"type": "Reject"}}}})
}

#[tokio::test]
async fn a_schema_says_at_once_whether_its_level_exists() {
    let server = Server::new().await;
    let dangling = |schema: &Value| {
        let condition = &schema["status"]["conditions"][0];
        assert_eq!(condition["type"], "Dangling", "{schema}");
        format!("{} {}", condition["status"], condition["reason"]).replace('"', "")
    };
    let now = async || server.ask(&format!("GET {SCHEMAS}/own"), "").await.body;
    let made = server.ask(&format!("POST {SCHEMAS}"), schema("mine")).await;
    assert_eq!((made.code, dangling(&made.body)), (201, "True NotFound".into()));
    assert_eq!(made.body["spec"]["matchingPrecedence"], 1000);
    let made = server.ask(&format!("POST {LEVELS}"), level("mine")).await;
    assert_eq!(
        (made.code, &made.body["spec"]["limited"]["nominalConcurrencyShares"]),
        (201, &json!(30))
    );
    assert_eq!(dangling(&now().await), "False Found");
    server.ask(&format!("DELETE {LEVELS}/mine"), "").await;
    assert_eq!(dangling(&now().await), "True NotFound");
    let other = json!({"spec": {"priorityLevelConfiguration": {"name": "exempt"}}});
    let changed = server.ask(&format!("PATCH {SCHEMAS}/own"), other).await;
    assert_eq!((changed.code, dangling(&changed.body)), (200, "False Found".into()));
}

#[tokio::test]
async fn what_every_cluster_has_comes_back() {
    let store = Store::memory();
    let server = Server::over(store.clone()).await;
    let shares = async |server: &Server, name: &str| {
        let level = server.ask(&format!("GET {LEVELS}/{name}"), "").await;
        level.body["spec"]["limited"]["nominalConcurrencyShares"].clone()
    };
    let all = server.ask(&format!("GET {SCHEMAS}"), "").await.body;
    let all = all["items"].as_array().unwrap().clone();
    assert_eq!(all.len(), 11);
    let found = |schema: &Value| schema["status"]["conditions"][0]["reason"] == "Found";
    assert!(all.iter().all(found), "{all:?}");
    let seven = json!({"spec": {"limited": {"nominalConcurrencyShares": 7}}});
    let fixed = server.ask(&format!("PATCH {LEVELS}/catch-all"), &seven).await;
    assert_eq!(fixed.code, 422);
    assert!(
        fixed.body["message"]
            .as_str()
            .unwrap()
            .contains("spec of 'catch-all' must equal the fixed value")
    );
    for name in ["system", "workload-low"] {
        assert_eq!(server.ask(&format!("PATCH {LEVELS}/{name}"), &seven).await.code, 200);
    }
    let own = json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}}});
    assert_eq!(server.ask(&format!("PATCH {LEVELS}/workload-low"), own).await.code, 200);
    let mut old = level("old");
    old["metadata"]["annotations"] = json!({"apf.kubernetes.io/autoupdate-spec": "true"});
    assert_eq!(server.ask(&format!("POST {LEVELS}"), old).await.code, 201);
    for gone in [format!("{LEVELS}/catch-all"), format!("{SCHEMAS}/probes")] {
        assert_eq!(server.ask(&format!("DELETE {gone}"), "").await.code, 200);
    }
    let again = Server::over(store).await;
    assert_eq!(shares(&again, "system").await, 30);
    assert_eq!(shares(&again, "workload-low").await, 7, "the operator wants it so");
    assert_eq!(shares(&again, "catch-all").await, 5);
    assert_eq!(again.ask(&format!("GET {SCHEMAS}/probes"), "").await.code, 200);
    assert_eq!(
        again.ask(&format!("GET {LEVELS}/old"), "").await.code,
        404,
        "nobody needs it any more"
    );
}

#[tokio::test]
async fn answers_name_what_requests_belonged_to() {
    let server = Server::new().await;
    let uid = async |path: String| {
        let object = server.ask(&format!("GET {path}"), "").await.body;
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let default = format!(
        "{} {}",
        uid(format!("{SCHEMAS}/global-default")).await,
        uid(format!("{LEVELS}/global-default")).await
    );
    let exempt = format!(
        "{} {}",
        uid(format!("{SCHEMAS}/exempt")).await,
        uid(format!("{LEVELS}/exempt")).await
    );
    let jane = User::new("jane", vec!["system:authenticated".into()]);
    let root = User::new("root", vec!["system:masters".into()]);
    // Also those who may not: the seats come first.
    for (user, path, code, want) in [
        (jane.clone(), "/api/v1/pods", 403, &default),
        (jane.clone(), "/version", 200, &default),
        (root.clone(), "/api/v1/pods", 200, &exempt),
    ] {
        let answer = server.ask_by(user, &[], &format!("GET {path}")).await;
        assert_eq!((answer.code, &answer.flow), (code, want), "{path}");
    }
    assert_eq!(
        server.ask("GET /api/v1/pods", "").await.flow,
        " ",
        "our own components need no seats"
    );
    let dump = "/debug/api_priority_and_fairness/dump_priority_levels";
    assert_eq!(server.ask_by(jane, &[], &format!("GET {dump}")).await.code, 403);
    let dump = server.ask_by(root, &[], &format!("GET {dump}")).await.text;
    let line = dump.lines().find(|line| line.starts_with("global-default,")).unwrap();
    let cells: Vec<_> = line.split(',').map(str::trim).collect();
    assert_eq!(
        cells,
        ["global-default", "0", "true", "false", "0", "0", "3", "0", "0", "0"],
        "{dump}"
    );
}
