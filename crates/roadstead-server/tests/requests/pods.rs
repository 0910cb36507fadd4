//! What new pods get from other objects.

use serde_json::{Value, json};

use crate::server::Server;

const PODS: &str = "POST /api/v1/namespaces/default/pods";
const CLASSES: &str = "POST /apis/scheduling.k8s.io/v1/priorityclasses";

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod
}

#[tokio::test]
async fn accounts_and_priorities() {
    let server = Server::new().await;
    let account = json!({"metadata": {"name": "web"}});
    server.ask("POST /api/v1/namespaces/default/serviceaccounts", account).await;
    let class = json!({"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"});
    server.ask(CLASSES, class).await;
    let system = "system-node-critical";
    // The account, class, priority and preemption of those who are admitted.
    let cases = [
        (json!({}), "default - 0 PreemptLowerPriority"),
        (json!({"serviceAccountName": "web"}), "web - 0 PreemptLowerPriority"),
        (json!({"priorityClassName": "high"}), "default high 1000 Never"),
        (json!({"priorityClassName": "high", "priority": 1000}), "default high 1000 Never"),
        (
            json!({"priorityClassName": system}),
            "default system-node-critical 2000001000 PreemptLowerPriority",
        ),
        (
            json!({"serviceAccountName": "none"}),
            "pods \"5\" is forbidden: error looking up service account default/none: \
             serviceaccount \"none\" not found",
        ),
        (
            json!({"priorityClassName": "none"}),
            "pods \"6\" is forbidden: no PriorityClass with name none was found",
        ),
        (
            json!({"priority": 7}),
            "pods \"7\" is forbidden: the integer value of priority (7) must not be provided in \
             pod spec; priority admission controller computed 0 from the given PriorityClass name",
        ),
    ];
    for (index, (spec, want)) in cases.into_iter().enumerate() {
        let answer = server.ask(PODS, pod(&index.to_string(), spec.clone())).await;
        let made = &answer.body["spec"];
        let found = match answer.code {
            201 => format!(
                "{} {} {} {}",
                made["serviceAccountName"].as_str().unwrap(),
                made["priorityClassName"].as_str().unwrap_or("-"),
                made["priority"],
                made["preemptionPolicy"].as_str().unwrap()
            ),
            _ => answer.body["message"].as_str().unwrap().to_owned(),
        };
        assert_eq!(found, want, "{spec}");
    }
    let default = json!({"metadata": {"name": "usual"}, "value": 5, "globalDefault": true});
    server.ask(CLASSES, default).await;
    let made = server.ask(PODS, pod("usual", json!({}))).await.body;
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["priorityClassName"]),
        (&json!(5), &json!("usual"))
    );
}
