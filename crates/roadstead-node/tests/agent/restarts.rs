//! Containers that begin anew by rules of their own, and variables from files that others wrote.

use serde_json::{Value, json};

use super::fake_api::FakeApi;
use super::fake_runtime::FakeRuntime;
use super::{Agent, WEB, condition, is_ready, pod};

#[tokio::test]
async fn all_containers_begin_anew() {
    let (api, runtime) = (FakeApi::new(), FakeRuntime::default());
    let agent = Agent::start(&api, runtime.clone());
    let rules = json!([{"action": "RestartAllContainers",
                        "exitCodes": {"operator": "In", "values": [3]}}]);
    let container = json!({"restartPolicy": "Never", "restartPolicyRules": rules});
    let mut web = pod("roadstead/echo", &container);
    let image = "roadstead/echo";
    web["spec"]["initContainers"] = json!([{"name": "init", "image": image}]);
    let side = json!({"name": "side", "image": image});
    web["spec"]["containers"].as_array_mut().unwrap().push(side);
    api.put(WEB, web);
    let is_running = |name: &'static str, restarts: i64| {
        move |pod: &Value| {
            let all = ["initContainerStatuses", "containerStatuses"];
            let mut all = all.iter().flat_map(|list| pod["status"][list].as_array()).flatten();
            all.any(|one| {
                one["name"] == name
                    && one["state"]["running"].is_object()
                    && one["restartCount"] == restarts
            })
        }
    };
    api.until(WEB, "begun", is_running("init", 0)).await;
    runtime.end("web", "init", 0);
    api.until(WEB, "ready", is_ready).await;
    assert_eq!(condition(&api.get(WEB).unwrap(), "AllContainersRestarting"), "False");

    runtime.end("web", "main", 3);
    let asked = |_: &Value| runtime.calls().contains(&"stop web/side Gracefully".to_owned());
    let asked = api.until(WEB, "sweeping", asked).await;
    assert_eq!(asked["status"]["phase"], "Running");
    runtime.end("web", "side", 137);
    let again = api.until(WEB, "at its beginning", is_running("init", 1)).await;
    assert_eq!(
        (condition(&again, "Initialized"), &again["status"]["phase"]),
        ("True", &json!("Running"))
    );
    let last = &again["status"]["containerStatuses"][1]["lastState"]["terminated"];
    assert_eq!(
        (&last["reason"], &last["exitCode"]),
        (&json!("RestartingAllContainers"), &json!(137))
    );
    runtime.end("web", "init", 0);
    api.until(WEB, "up again", is_running("side", 1)).await;
    api.until(WEB, "up again", is_running("main", 1)).await;
    let sandboxes = runtime.calls().iter().filter(|call| call.starts_with("sandbox")).count();
    assert_eq!(sandboxes, 1, "its address stays");
    agent.stop().await;
}

#[tokio::test]
async fn variables_come_from_files_of_volumes() {
    let (api, runtime) = (FakeApi::new(), FakeRuntime::default());
    let agent = Agent::start(&api, runtime.clone());
    let from = |key: &str, optional: bool| {
        json!({"name": key, "valueFrom": {"fileKeyRef":
            {"volumeName": "v", "path": "env", "key": key, "optional": optional}}})
    };
    let container = json!({"env": [from("A", false), from("B", true)]});
    let mut web = pod("roadstead/echo", &container);
    web["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    web["spec"]["initContainers"] = json!([{"name": "init", "image": "roadstead/echo"}]);
    api.put(WEB, web);
    let begun =
        |pod: &Value| pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object();
    api.until(WEB, "begun", begun).await;
    runtime.write("v/env", "# made by init\nA='one two'\n");
    runtime.end("web", "init", 0);
    api.until(WEB, "ready", is_ready).await;
    assert_eq!(runtime.variable("A").as_deref(), Some("one two"));
    assert_eq!(runtime.variable("B"), None);
    agent.stop().await;
}
