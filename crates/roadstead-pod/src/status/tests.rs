use super::*;
use crate::facts::State;
use crate::facts::tests::{at, facts};
use crate::lifecycle::tests::pod as pod_of;
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use serde_json::json;

fn pod(policy: &str, init: &[&str], status: serde_json::Value) -> Pod {
    let init: Vec<_> = init.iter().map(|name| json!({"name": name})).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"restartPolicy": policy, "initContainers": init,
                 "containers": [{"name": "a", "image": "roadstead/echo"}, {"name": "b"}]},
        "status": status,
    }))
    .unwrap()
}

fn shown(container: &ContainerStatus) -> String {
    let state = container.state.clone().unwrap();
    match (state.running, state.waiting, state.terminated) {
        (Some(_), _, _) if container.ready => "ready".to_owned(),
        (Some(_), _, _) => "running".to_owned(),
        (_, Some(waiting), _) => waiting.reason.unwrap(),
        (_, _, Some(ended)) => format!("{}({})", ended.reason.unwrap(), ended.exit_code),
        _ => "nothing".to_owned(),
    }
}

/// `Running a=running b=waiting:ErrImagePull ready=False` and so on.
fn show(status: &PodStatus) -> String {
    let containers = status.container_statuses.iter().flatten();
    let containers = containers.map(|c| format!("{}={}", c.name, shown(c)));
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").unwrap();
    let reason = ready.reason.iter().map(|reason| format!("/{reason}")).collect::<String>();
    let parts = [status.phase.clone().unwrap()].into_iter().chain(containers);
    parts.chain([format!("{}{reason}", ready.status)]).collect::<Vec<_>>().join(" ")
}

#[test]
fn statuses() {
    let unready = "False/ContainersNotReady";
    let creating = "Pending a=ContainerCreating b=ContainerCreating";
    let cases = [
        ("a new pod", "Always", "", format!("{creating} {unready}")),
        ("all ready", "Always", "+ a=ready b=ready", "Running a=ready b=ready True".into()),
        (
            "one not ready",
            "Always",
            "+ a=ready b=running",
            format!("Running a=ready b=running {unready}"),
        ),
        (
            "no image",
            "Always",
            "+ a=ready b=why:ErrImagePull",
            format!("Pending a=ready b=ErrImagePull {unready}"),
        ),
        (
            "crash loop",
            "Always",
            "+ a=ready b=exit1@20",
            format!("Running a=ready b=CrashLoopBackOff {unready}"),
        ),
        (
            "about to restart",
            "Always",
            "+ a=ready b=exit1@5",
            format!("Running a=ready b=Error(1) {unready}"),
        ),
        (
            "success",
            "Never",
            "- a=exit0 b=exit0",
            "Succeeded a=Completed(0) b=Completed(0) False/PodCompleted".into(),
        ),
        (
            "failure",
            "OnFailure",
            "- a=exit0 b=exit0",
            "Succeeded a=Completed(0) b=Completed(0) False/PodCompleted".into(),
        ),
        (
            "one of two failed",
            "Never",
            "- a=exit0 b=exit3",
            "Failed a=Completed(0) b=Error(3) False/PodFailed".into(),
        ),
    ];
    for (name, policy, given, want) in cases {
        let pod = pod(policy, &[], json!({}));
        let status = plan_status(&pod, &facts(given), [10, 0, 0, 1].into(), at(10));
        assert_eq!(show(&status), want, "{name}");
    }
}

#[test]
fn containers_have_what_they_ask_for() {
    let ask = json!({"requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"memory": "2Mi"}});
    let limited = json!({"limits": {"cpu": "1"}});
    for (name, given, asked, want, allocated) in [
        ("waiting", "", &ask, &ask, &ask["requests"]),
        ("running", "+ a=ready", &ask, &ask, &ask["requests"]),
        ("ended", "+ a=exit1", &ask, &ask, &ask["requests"]),
        ("limits alone", "+ a=ready", &limited, &limited, &json!(null)),
        ("nothing", "+ a=ready", &json!(null), &json!({}), &json!(null)),
    ] {
        let pod =
            json!({"metadata": {}, "spec": {"containers": [{"name": "a", "resources": asked}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let status = plan_status(&pod, &facts(given), [10, 0, 0, 1].into(), at(10));
        let shown = serde_json::to_value(&status.container_statuses.unwrap()[0]).unwrap();
        assert_eq!(&shown["resources"], want, "{name}");
        assert_eq!(&shown["allocatedResources"], allocated, "{name}");
    }
}

#[test]
fn init_containers_hold_the_others_back() {
    let pod = pod("Always", &["i"], json!({}));
    let status = plan_status(&pod, &facts("+ i=running"), [10, 0, 0, 1].into(), at(10));
    let want = "Pending a=PodInitializing b=PodInitializing False/ContainersNotReady";
    assert_eq!(show(&status), want);
    let init = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Initialized");
    assert_eq!(init.unwrap().message.unwrap(), "containers with incomplete status: [i]");
}

#[test]
fn conditions_keep_their_history_and_their_neighbours() {
    let before = json!({"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:03Z"},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:01Z"},
        {"type": "example.com/gate", "status": "False"},
    ]});
    let mut pod = pod("Always", &[], before);
    let status = |pod: &Pod, given: &str| {
        plan_status(pod, &facts(given), [10, 0, 0, 1].into(), at(10)).conditions.unwrap()
    };
    let times = |conditions: &[PodCondition], type_: &str| {
        let found = conditions.iter().find(|c| c.type_ == type_).unwrap();
        (found.status.clone(), found.last_transition_time.clone().map(|t| t.0.as_second()))
    };
    let same = status(&pod, "+ a=ready b=ready");
    assert_eq!(times(&same, "Ready"), ("True".into(), Some(3)));
    assert_eq!(times(&same, "PodScheduled"), ("True".into(), Some(1)));
    assert_eq!(times(&same, "example.com/gate"), ("False".into(), None));
    let flipped = status(&pod, "+ a=ready b=running");
    assert_eq!(times(&flipped, "Ready"), ("False".into(), Some(10)));

    let gates = json!([{"conditionType": "example.com/gate"}]);
    pod.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gates).unwrap();
    let gated = status(&pod, "+ a=ready b=ready");
    assert_eq!(times(&gated, "Ready").0, "False");
    assert_eq!(times(&gated, "ContainersReady").0, "True");
}

#[test]
fn phases() {
    // Specs and facts as in the tables of `lifecycle`; shown are phase, init containers, the others.
    let cases = [
        ("init runs", "Always", "i! a", "+ i=running", "Pending i=running"),
        ("init failed", "Never", "i! a", "+ i=exit1", "Failed i=Error(1)"),
        (
            "init failed, sidecar runs",
            "Never",
            "s* i! a",
            "+ s=ready i=exit1",
            "Pending s=ready i=Error(1)",
        ),
        ("init is done", "Always", "i! a", "+ i=exit0 a=ready", "Running i=Completed(0)!"),
        ("a sidecar starts", "Always", "s* a", "+ s=hook", "Pending s=PodInitializing"),
        ("a sidecar died", "Always", "s* a", "+ s=exit1@20 a=ready", "Running s=CrashLoopBackOff"),
        (
            "a sidecar does not count",
            "Never",
            "s* a",
            "+ s=exit137 a=exit0",
            "Succeeded s=Error(137)",
        ),
        ("sidecars still run", "Never", "s* a", "+ s=prestop a=exit0", "Running s=running"),
        ("a hook failed", "Always", "h^", "+ h=hook-failed", "Pending"),
        ("deleted, runs", "Always", "a X", "+ a=signalled", "Running"),
        ("deleted, ended", "Always", "a X", "- a=exit0", "Succeeded"),
        ("deleted before it ran", "Always", "a X", "-", "Failed"),
        ("deleted, crashing", "Always", "a X", "- a=exit2@20", "Failed"),
        ("ephemeral ones do not count", "Always", "a e?", "+ a=ready e=exit1", "Running"),
    ];
    for (name, policy, spec, given, want) in cases {
        let status =
            plan_status(&pod_of(policy, spec), &facts(given), [10, 0, 0, 1].into(), at(10));
        let init = status.init_container_statuses.iter().flatten().map(|init| {
            let done = if init.ready && shown(init).starts_with("Completed") { "!" } else { "" };
            format!(" {}={}{done}", init.name, shown(init))
        });
        let found = status.phase.clone().unwrap() + &init.collect::<String>();
        assert_eq!(found, want, "{name}");
    }
}

#[test]
fn states_of_containers() {
    let cases = [
        ("a hook runs", "h^", "+ h=hook", "ContainerCreating"),
        ("a hook failed", "h^", "+ h=hook-failed", "PostStartHookError"),
        ("behind init containers", "i! h", "+ i=exit0", "PodInitializing"),
        ("deleted", "h X", "- h=exit2@20", "Error(2)"),
    ];
    for (name, spec, given, want) in cases {
        let status =
            plan_status(&pod_of("Always", spec), &facts(given), [10, 0, 0, 1].into(), at(10));
        assert_eq!(shown(&status.container_statuses.unwrap()[0]), want, "{name}");
    }
    // What could not be started says so for a moment.
    let mut given = facts("+ a=exit128@20");
    let Some(State::Exited(exit)) = given.containers.get_mut("a").map(|known| &mut known.state)
    else {
        panic!()
    };
    exit.reason = "StartError".into();
    for (now, want) in [(3, "RunContainerError"), (4, "CrashLoopBackOff"), (20, "StartError(128)")]
    {
        let status = plan_status(&pod_of("Always", "a"), &given, [10, 0, 0, 1].into(), at(now));
        assert_eq!(shown(&status.container_statuses.unwrap()[0]), want, "{now}");
    }
}

#[test]
fn messages_have_an_end() {
    let mut given = facts("- a=exit1 b=exit1");
    for known in given.containers.values_mut() {
        let State::Exited(exit) = &mut known.state else { panic!() };
        exit.message = Some("ä".repeat(10 << 10));
    }
    let status = plan_status(&pod_of("Never", "a b"), &given, [10, 0, 0, 1].into(), at(10));
    for container in status.container_statuses.unwrap() {
        assert_eq!(container.state.unwrap().terminated.unwrap().message.unwrap().len(), 6 << 10);
    }
}

#[test]
fn gates() {
    let gates = json!([{"conditionType": "a"}, {"conditionType": "b"}]);
    let before = json!({"conditions": [{"type": "b", "status": "Unknown"}]});
    let mut pod = pod("Always", &[], before);
    pod.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gates).unwrap();
    let status = plan_status(&pod, &facts("+ a=ready b=ready"), [10, 0, 0, 1].into(), at(10));
    let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
    let want = "corresponding condition of pod readiness gate \"a\" does not exist., \
        the status of pod readiness gate \"b\" is not \"True\", but Unknown";
    assert_eq!(
        (ready.reason.unwrap().as_str(), ready.message.unwrap().as_str()),
        ("ReadinessGatesNotReady", want)
    );
}
