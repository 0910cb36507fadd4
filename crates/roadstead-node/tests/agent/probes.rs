//! Probes by commands, and what they change.

use super::*;

fn exec(command: &str, more: Value) -> Value {
    let mut probe = json!({"exec": {"command": ["sh", "-c"]}, "periodSeconds": 1});
    probe["exec"]["command"] = command.split(' ').collect();
    for (name, value) in more.as_object().unwrap() {
        probe[name.as_str()] = value.clone();
    }
    probe
}

#[tokio::test]
async fn commands_decide() {
    let env = json!([{"name": "WORD", "value": "ok"}]);
    for (name, probe, ready, event) in [
        ("success", exec("ok", json!({})), true, "Container started"),
        ("variables", exec("$(WORD)", json!({})), true, "Container started"),
        ("failure", exec("fail so there", json!({})), false, "Readiness probe failed: so there"),
        (
            "never ends",
            exec("hang on", json!({})),
            false,
            "Readiness probe failed: command timed out: \"hang on\" timed out after 1s",
        ),
        (
            "cannot be asked",
            exec("nonsense", json!({})),
            false,
            "Readiness probe errored and resulted in unknown state: there is no such program",
        ),
        (
            "no such port",
            json!({"httpGet": {"port": "x"}}),
            false,
            "Readiness probe errored and resulted in unknown state: couldn't find port: \"x\"",
        ),
    ] {
        let api = FakeApi::new();
        let runtime = FakeRuntime::default();
        let agent = Agent::start(&api, runtime.clone());
        api.put(WEB, pod("roadstead/echo", &json!({"readinessProbe": probe, "env": env})));
        api.until_message(event).await;
        if ready {
            api.until(WEB, "ready", is_ready).await;
        }
        assert_eq!(is_ready(&api.get(WEB).unwrap()), ready, "{name}");
        let calls = runtime.calls();
        match name {
            "never ends" => assert!(calls.contains(&"kill web/main".into()), "{calls:?}"),
            "cannot be asked" => {
                let tried = calls.iter().filter(|call| call.starts_with("exec")).count();
                assert_eq!(tried % 3, 0, "three tries each time: {calls:?}");
            }
            _ => {}
        }
        agent.stop().await;
    }
}

#[tokio::test]
async fn what_the_startup_probe_decides() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    // The readiness probe would have to wait for an hour, had it begun with the container.
    let container = json!({
        "startupProbe": exec("ok startup", json!({})),
        "readinessProbe": exec("ok readiness", json!({"periodSeconds": 3600})),
        "livenessProbe": exec("fail liveness", json!({"failureThreshold": 1})),
    });
    api.put(WEB, pod("roadstead/echo", &container));
    api.until(WEB, "ready", is_ready).await;
    api.until_message("Container main failed liveness probe, will be restarted").await;
    let calls = runtime.calls();
    let execs: Vec<_> = calls.iter().filter(|call| call.starts_with("exec")).collect();
    assert_eq!(execs[0], "exec web/main ok startup");
    assert_eq!(execs.iter().filter(|call| call.ends_with("startup")).count(), 1, "{execs:?}");
    agent.stop().await;
}
