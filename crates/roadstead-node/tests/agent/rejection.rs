//! Pods that this node does not take.

use super::*;

#[tokio::test]
async fn a_pod_that_does_not_fit_fails_at_once_and_says_why() {
    let asks = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
    let affinity =
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    for (container, spec, reason, why) in [
        (
            asks("100k"),
            json!({}),
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 100000000, used: 0",
        ),
        (json!({}), json!({"nodeSelector": {"disk": "ssd"}}), "NodeAffinity", affinity),
        (json!({}), json!({"os": {"name": "windows"}}), "PodOSNotSupported", "Failed to admit pod"),
    ] {
        let api = FakeApi::new();
        let runtime = FakeRuntime::default();
        let agent = Agent::start(&api, runtime.clone());
        api.until("/api/v1/nodes/node", "there", |node| !node.is_null()).await;
        let mut web = pod("roadstead/echo", &container);
        for (name, value) in spec.as_object().unwrap() {
            web["spec"][name.as_str()] = value.clone();
        }
        api.put(WEB, web);
        let failed = api.until(WEB, "failed", |pod| pod["status"]["phase"] == "Failed").await;
        let status = &failed["status"];
        assert_eq!(status["reason"], reason);
        let message = status["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("Pod was rejected: {why}")), "{message}");
        assert!(status["containerStatuses"].is_null(), "{status}");
        api.until_message(why).await;
        assert_eq!(runtime.calls(), [""; 0]);
        agent.stop().await;
    }
}

#[tokio::test]
async fn who_was_here_before_stays_and_counts() {
    let api = FakeApi::new();
    let agent = Agent::start(&api, FakeRuntime::default());
    let named = |name: &str, port: u16| {
        let container = json!({"ports": [{"containerPort": 80, "hostPort": port}]});
        let mut pod = pod("roadstead/echo", &container);
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["uid"] = json!(name);
        (format!("/api/v1/namespaces/default/pods/{name}"), pod)
    };
    let (path, first) = named("first", 8080);
    api.put(&path, first);
    api.until(&path, "ready", is_ready).await;
    agent.stop().await;
    // Another one, made while nobody looked, is listed before it.
    let (early, another) = named("another", 8080);
    api.put(&early, another);
    let (free, third) = named("third", 8081);
    api.put(&free, third);
    let agent = Agent::start(&api, FakeRuntime::default());
    let failed = api.until(&early, "failed", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(failed["status"]["reason"], "NodePorts");
    api.until(&free, "ready", is_ready).await;
    api.until(&path, "ready again", is_ready).await;
    agent.stop().await;
}
