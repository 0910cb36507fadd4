//! Hooks, and the order in which a pod ends.

use super::*;

/// A command as a hook.
fn exec(command: &str) -> Value {
    json!({"exec": {"command": command.split(' ').collect::<Vec<_>>()}})
}

fn delete(api: &FakeApi, grace: i64) {
    let deletion = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
                                       "deletionGracePeriodSeconds": grace}});
    api.patch(WEB, &deletion);
}

async fn until_called(runtime: &FakeRuntime, call: &str) {
    let end = Instant::now() + Duration::from_secs(10);
    while !runtime.calls().iter().any(|made| made == call) {
        assert!(Instant::now() < end, "no {call}: {:?}", runtime.calls());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_post_start_hook_holds_the_next_container_back() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let mut web =
        pod("roadstead/echo", &json!({"lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}));
    let second = json!({"name": "second", "image": "roadstead/echo"});
    web["spec"]["containers"].as_array_mut().unwrap().push(second);
    api.put(WEB, web);
    until_called(&runtime, "start web/main").await;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let pending = api.get(WEB).unwrap();
    assert_eq!(
        (&pending["status"]["phase"], waiting(&pending)),
        (&json!("Pending"), "ContainerCreating")
    );
    assert_eq!(pending["status"]["podIP"], "10.244.0.2");
    until_called(&runtime, "start web/second").await;
    assert!(began.elapsed() > Duration::from_millis(800), "{:?}", began.elapsed());
    api.until(WEB, "ready", is_ready).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_post_start_hook_that_fails_ends_its_container() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let container = json!({"lifecycle": {"postStart": exec("fail badly")}});
    api.put(WEB, pod("roadstead/echo", &container));
    let failed = api.until(WEB, "failing", |pod| waiting(pod) == "PostStartHookError").await;
    let state = &failed["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(state["message"], "command \"fail badly\" exited with 1: badly");
    api.until_message("PostStartHook failed").await;
    until_called(&runtime, "stop web/main Now").await;
    api.until(WEB, "waiting for its next run", |pod| restarts(pod) > 0).await;
    let about = api.event("Killing", "FailedPostStartHook");
    assert_eq!(about["involvedObject"]["fieldPath"], "spec.containers{main}");
    agent.stop().await;
}

#[tokio::test]
async fn a_pre_stop_hook_comes_before_the_signal_and_within_the_grace_period() {
    for (hook, events, calls) in [
        ("ok bye", &["Stopping container main"][..], &["exec web/main ok bye"][..]),
        ("fail", &["PreStopHook failed"], &["exec web/main fail"]),
        ("hang", &["Stopping container main"], &["exec web/main hang", "kill web/main"]),
    ] {
        let api = FakeApi::new();
        let runtime = FakeRuntime::default();
        let agent = Agent::start(&api, runtime.clone());
        api.put(WEB, pod("roadstead/echo", &json!({"lifecycle": {"preStop": exec(hook)}})));
        api.until(WEB, "ready", is_ready).await;
        delete(&api, 1);
        let began = Instant::now();
        until_called(&runtime, "stop web/main Gracefully").await;
        assert_eq!(hook == "hang", began.elapsed() > Duration::from_millis(900), "{hook}");
        let signalled = Instant::now();
        api.until(WEB, "gone", Value::is_null).await;
        assert!(signalled.elapsed() > Duration::from_millis(1800), "two seconds are for everybody");
        let made = runtime.calls();
        let from = made.iter().position(|call| call.starts_with("exec")).unwrap();
        let mut want = calls.to_vec();
        want.extend([
            "stop web/main Gracefully",
            "stop web/main Now",
            "remove sandbox web",
            "remove web",
        ]);
        // The command of a hook that was given up ends a moment later.
        let mut found: Vec<_> = made[from..].iter().map(String::as_str).collect();
        found.sort_unstable();
        want.sort_unstable();
        assert_eq!(found, want, "{hook}");
        for event in events {
            api.until_message(event).await;
        }
        agent.stop().await;
    }
}

#[tokio::test]
async fn sidecars_end_last_and_the_end_is_seen_before_the_pod_is_gone() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let mut web = pod("roadstead/echo", &json!({}));
    web["spec"]["initContainers"] = json!([
        {"name": "s", "image": "roadstead/echo", "restartPolicy": "Always"},
        {"name": "t", "image": "roadstead/echo", "restartPolicy": "Always",
         "lifecycle": {"preStop": exec("ok bye")}}]);
    api.put(WEB, web);
    api.until(WEB, "ready", is_ready).await;
    delete(&api, 30);
    // The hooks of all run at once, the signals come one after the other.
    until_called(&runtime, "stop web/main Gracefully").await;
    until_called(&runtime, "exec web/t ok bye").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for name in ["t", "s"] {
        assert!(!runtime.calls().contains(&format!("stop web/{name} Gracefully")));
        runtime.end("web", if name == "t" { "main" } else { "t" }, 0);
        until_called(&runtime, &format!("stop web/{name} Gracefully")).await;
    }
    let about = api.event("Killing", "Stopping container s");
    assert_eq!(about["involvedObject"]["fieldPath"], "spec.initContainers{s}");
    let seen = api.follow(WEB);
    runtime.end("web", "s", 143);
    api.until(WEB, "gone", Value::is_null).await;
    let last = seen.lock().unwrap().last().cloned().unwrap();
    assert_eq!(last["status"]["phase"], "Succeeded", "sidecars do not count: {last:#}");
    assert_eq!(condition(&last, "Ready"), "False");
    let ended = &last["status"]["initContainerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["exitCode"], 143);
    agent.stop().await;
}

#[tokio::test]
async fn sidecars_end_when_the_work_is_done() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let mut web = pod("roadstead/echo", &json!({}));
    web["spec"]["restartPolicy"] = json!("Never");
    web["spec"]["initContainers"] =
        json!([{"name": "s", "image": "roadstead/echo", "restartPolicy": "Always"}]);
    api.put(WEB, web);
    api.until(WEB, "ready", is_ready).await;
    runtime.end("web", "main", 0);
    until_called(&runtime, "stop web/s Gracefully").await;
    assert_eq!(api.get(WEB).unwrap()["status"]["phase"], "Running");
    runtime.end("web", "s", 137);
    api.until(WEB, "done", |pod| pod["status"]["phase"] == "Succeeded").await;
    agent.stop().await;
}

#[tokio::test]
async fn who_loses_patience_waits_no_longer() {
    for force in [false, true] {
        let api = FakeApi::new();
        let runtime = FakeRuntime::default();
        let agent = Agent::start(&api, runtime.clone());
        api.put(WEB, pod("roadstead/echo", &json!({"lifecycle": {"preStop": exec("hang")}})));
        api.until(WEB, "ready", is_ready).await;
        delete(&api, 300);
        until_called(&runtime, "exec web/main hang").await;
        let began = Instant::now();
        match force {
            true => drop(api.delete(WEB)),
            false => delete(&api, 1),
        }
        until_called(&runtime, "remove web").await;
        let took = began.elapsed();
        assert!((Duration::from_secs(2)..Duration::from_secs(6)).contains(&took), "{took:?}");
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_pod_whose_sandbox_is_lost_begins_anew() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let mut web = pod("roadstead/echo", &json!({}));
    web["spec"]["initContainers"] = json!([{"name": "i", "image": "roadstead/echo"}]);
    let status = |name: &str, state: Value| {
        json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
               "containerID": "roadstead://old", "state": state})
    };
    web["status"] = json!({"phase": "Running", "podIP": "10.244.0.9",
        "initContainerStatuses": [status("i", json!({"terminated": {"exitCode": 0}}))],
        "containerStatuses":
            [status("main", json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))]});
    api.put(WEB, web);
    let agent = Agent::start(&api, runtime.clone());
    api.until_message("Pod sandbox changed, it will be killed and re-created.").await;
    until_called(&runtime, "start web/i").await;
    let seen = api.until(WEB, "waiting", |pod| waiting(pod) == "PodInitializing").await;
    let last = &seen["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(
        (&last["exitCode"], &last["reason"]),
        (&json!(137), &json!("ContainerStatusUnknown"))
    );
    assert_eq!(seen["status"]["phase"], "Running", "it has been");
    runtime.end("web", "i", 0);
    let again = |pod: &Value| is_ready(pod) && restarts(pod) == 1;
    api.until(WEB, "running again", again).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_pod_that_is_active_for_too_long_fails() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let mut web = pod("roadstead/echo", &json!({}));
    web["spec"]["activeDeadlineSeconds"] = json!(1);
    api.put(WEB, web);
    api.until(WEB, "ready", is_ready).await;
    let failed = api.until(WEB, "failed", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(failed["status"]["reason"], "DeadlineExceeded");
    let why = "Pod was active on the node longer than the specified deadline";
    assert_eq!(failed["status"]["message"], why);
    assert_eq!(failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    api.until_message(why).await;
    agent.stop().await;
}

#[tokio::test]
async fn ephemeral_containers_run_once_and_count_for_nothing() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    api.put(WEB, pod("roadstead/echo", &json!({})));
    api.until(WEB, "ready", is_ready).await;
    let debugger = json!({"name": "debugger", "image": "roadstead/echo"});
    api.patch(WEB, &json!({"spec": {"ephemeralContainers": [debugger]}}));
    let state = |pod: &Value| pod["status"]["ephemeralContainerStatuses"][0]["state"].clone();
    api.until(WEB, "debugged", |pod| !state(pod)["running"].is_null()).await;
    let about = api.event("Started", "Container started");
    let fields = ["spec.containers{main}", "spec.ephemeralContainers{debugger}"];
    assert!(fields.iter().any(|field| about["involvedObject"]["fieldPath"] == *field));
    runtime.end("web", "debugger", 1);
    let ended = api.until(WEB, "done", |pod| !state(pod)["terminated"].is_null()).await;
    assert!(is_ready(&ended) && ended["status"]["phase"] == "Running");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let starts = runtime.calls();
    assert_eq!(starts.iter().filter(|call| *call == "start web/debugger").count(), 1);
    agent.stop().await;
}

#[tokio::test]
async fn a_container_whose_image_changes_is_started_again() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let mut web = pod("roadstead/echo", &json!({}));
    web["spec"]["restartPolicy"] = json!("Never");
    api.put(WEB, web);
    api.until(WEB, "ready", is_ready).await;
    let new = pod("there", &json!({}));
    api.patch(WEB, &json!({"spec": {"containers": new["spec"]["containers"]}}));
    api.until_message("Container main definition changed, will be restarted").await;
    until_called(&runtime, "stop web/main Gracefully").await;
    runtime.end("web", "main", 143);
    let again = |pod: &Value| is_ready(pod) && restarts(pod) == 1;
    let seen = api.until(WEB, "running the new one", again).await;
    assert_eq!(seen["status"]["containerStatuses"][0]["image"], "there");
    agent.stop().await;
}

#[tokio::test]
async fn numbers_that_make_no_sense_harm_nobody() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let most = i64::MAX;
    let hooks = json!({"preStop": {"sleep": {"seconds": most}}});
    let probe = json!({"exec": {"command": ["fail"]}, "periodSeconds": i32::MAX,
        "initialDelaySeconds": i32::MAX, "terminationGracePeriodSeconds": most});
    let mut web = pod("roadstead/echo", &json!({"lifecycle": hooks, "livenessProbe": probe}));
    web["spec"]["terminationGracePeriodSeconds"] = json!(most);
    web["spec"]["activeDeadlineSeconds"] = json!(most);
    api.put(WEB, web);
    api.until(WEB, "ready", is_ready).await;
    delete(&api, most);
    api.until_message("Stopping container main").await;
    runtime.end("web", "main", 0);
    api.until(WEB, "gone", Value::is_null).await;
    agent.stop().await;
}
