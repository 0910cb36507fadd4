//! A node that is short of something: what it says, and who has to go.

use roadstead_node::config::{Config, Housekeeping};
use serde_json::{Value, json};

use super::fake_api::FakeApi;
use super::fake_runtime::{FakeImages, FakeRuntime};
use super::{Agent, WEB, condition, config, is_ready, pod};

const NODE: &str = "/api/v1/nodes/node";

/// A node that has less memory than it should, whatever it has.
fn short_of_memory() -> Config {
    let eviction_hard = "memory.available<1Ei".parse().unwrap();
    Config { housekeeping: Housekeeping { eviction_hard, ..Housekeeping::default() }, ..config() }
}

#[tokio::test]
async fn the_least_important_pod_goes_first() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start_as(&api, short_of_memory(), runtime.clone(), FakeImages);
    let mut important = pod("roadstead/echo", &json!({}));
    important["metadata"]["name"] = json!("important");
    important["metadata"]["uid"] = json!("u2");
    important["spec"]["priority"] = json!(2_000_000_000);
    let path = "/api/v1/namespaces/default/pods/important";
    api.put(path, important);
    api.put(
        WEB,
        pod("roadstead/echo", &json!({"lifecycle": {"preStop": {"sleep": {"seconds": 99}}}})),
    );
    api.until(path, "ready", is_ready).await;
    let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
    let web = api.until(WEB, "evicted", failed).await;
    let status = &web["status"];
    let message = status["message"].as_str().unwrap();
    assert_eq!(status["reason"], "Evicted");
    let start = "The node was low on resource: memory. Threshold quantity: 1Ei, available: ";
    assert!(message.starts_with(start) && message.ends_with(". "), "{message:?}");
    assert_eq!(condition(&web, "DisruptionTarget"), "True");
    assert_eq!(condition(&web, "Ready"), "False");
    api.event("Evicted", message);

    let pressure = |node: &Value| condition(node, "MemoryPressure") == "True";
    let node = api.until(NODE, "under pressure", pressure).await;
    assert_eq!(node["status"]["allocatable"]["memory"], "0Ki");
    assert!(is_ready(&api.get(path).unwrap()), "the node cannot do without it");
    agent.stop().await;
}

#[tokio::test]
async fn the_node_tells_of_itself() {
    let api = FakeApi::new();
    let agent = Agent::start(&api, FakeRuntime::default());
    let ready = |node: &Value| condition(node, "Ready") == "True";
    let node = api.until(NODE, "ready", ready).await;
    let message = |type_: &str| {
        let all = node["status"]["conditions"].as_array().unwrap().iter();
        all.clone().find(|one| one["type"] == type_).unwrap()["message"].clone()
    };
    assert_eq!(message("Ready"), "kubelet is posting ready status");
    assert_eq!(message("MemoryPressure"), "kubelet has sufficient memory available");
    let told = async || {
        while !api.event_reasons().contains(&"NodeReady".to_owned()) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), told()).await.unwrap();
    api.event("Starting", "Starting kubelet.");
    api.event("NodeReady", "Node node status is now: NodeReady");
    api.event("NodeHasNoDiskPressure", "Node node status is now: NodeHasNoDiskPressure");
    agent.stop().await;
}
