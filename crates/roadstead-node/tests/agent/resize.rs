//! Pods that get more of the machine while they run.

use serde_json::{Value, json};

use super::fake_api::FakeApi;
use super::fake_runtime::FakeRuntime;
use super::{Agent, WEB, condition, is_ready, pod};

/// Asks for that much processor, as the subresource `resize` does.
fn ask(api: &FakeApi, cpu: &str, generation: i64) {
    let mut containers = api.get(WEB).unwrap()["spec"]["containers"].take();
    containers[0]["resources"] = json!({"requests": {"cpu": cpu}});
    let patch = json!({"metadata": {"generation": generation}, "spec": {"containers": containers}});
    api.patch(WEB, &patch);
}

fn applied(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"]
}

#[tokio::test]
async fn more_is_given_where_there_is_more() {
    let (api, runtime) = (FakeApi::new(), FakeRuntime::default());
    let agent = Agent::start(&api, runtime.clone());
    let container = json!({"resources": {"requests": {"cpu": "10m"}}});
    api.put(WEB, pod("roadstead/echo", &container));
    let first = api.until(WEB, "ready", is_ready).await;
    assert_eq!(applied(&first), "10m");

    ask(&api, "20m", 2);
    let is_given =
        |pod: &Value| applied(pod) == "20m" && condition(pod, "PodResizeInProgress") == "none";
    let given = api.until(WEB, "resized", is_given).await;
    let status = &given["status"]["containerStatuses"][0];
    assert_eq!(status["allocatedResources"]["cpu"], "20m");
    assert_eq!(status["restartCount"], 0);
    assert!(runtime.calls().contains(&"resize web/main 20".to_owned()), "{:?}", runtime.calls());
    api.until_message("Pod resize started: {").await;
    api.until_message("Pod resize completed: {").await;

    // So much no node has: what runs keeps what it has.
    ask(&api, "100k", 3);
    let refused = api.until(WEB, "refused", |pod| condition(pod, "PodResizePending") == "True");
    let refused = refused.await;
    assert_eq!(applied(&refused), "20m");
    let conditions = refused["status"]["conditions"].as_array().unwrap();
    let pending = conditions.iter().find(|one| one["type"] == "PodResizePending").unwrap();
    assert_eq!(
        (&pending["reason"], &pending["observedGeneration"]),
        (&json!("Infeasible"), &json!(3))
    );
    let message = pending["message"].as_str().unwrap();
    assert!(message.starts_with("Node didn't have enough capacity: cpu, requested: 100000000,"));
    // Also when it begins anew.
    runtime.end("web", "main", 1);
    let restarted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    assert_eq!(applied(&api.until(WEB, "restarted", restarted).await), "20m");

    ask(&api, "30m", 4);
    let is_given =
        |pod: &Value| applied(pod) == "30m" && condition(pod, "PodResizePending") == "none";
    api.until(WEB, "resized", is_given).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_container_begins_anew_that_wants_to() {
    let (api, runtime) = (FakeApi::new(), FakeRuntime::default());
    let agent = Agent::start(&api, runtime.clone());
    let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let container = json!({"resources": {"requests": {"cpu": "10m"}}, "resizePolicy": policy});
    api.put(WEB, pod("roadstead/echo", &container));
    api.until(WEB, "ready", is_ready).await;
    ask(&api, "20m", 2);
    api.until_message("Container main resize requires restart").await;
    runtime.end("web", "main", 0);
    let restarted = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1 && applied(pod) == "20m"
    };
    api.until(WEB, "restarted", restarted).await;
    let calls = runtime.calls();
    assert!(!calls.iter().any(|call| call.starts_with("resize")), "{calls:?}");
    agent.stop().await;
}
