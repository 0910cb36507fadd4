//! A pod: what runs in a container tries to reach the node, other pods and us.

use std::fs;
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};
use serde_json::{Value, json};

use crate::process::Roadstead;

/// A kernel parameter that belongs to the whole machine.
const PARAMETER: &str = "/proc/sys/kernel/printk_ratelimit_burst";

/// A pod that ends, with one container for each name, command and security context.
fn attacker<'a>(containers: impl IntoIterator<Item = (&'a str, Vec<&'a str>, Value)>) -> Value {
    let container = |(name, command, context): (&str, Vec<&str>, Value)| {
        json!({"name": name, "image": "roadstead/tools", "command": command,
               "securityContext": context})
    };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "attacker"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                 "containers": containers.into_iter().map(container).collect::<Vec<_>>()},
    })
}

fn create(roadstead: &Roadstead, pod: &Value) {
    let path = roadstead.directory().join("pod.json");
    fs::write(&path, pod.to_string()).unwrap();
    roadstead.kubectl().run(&format!("apply -f {}", path.display()));
}

fn statuses(kubectl: &Kubectl) -> Vec<Value> {
    let pod: Value = serde_json::from_str(&kubectl.run("get pod attacker -o json")).unwrap();
    pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default()
}

#[test]
fn writes_to_the_node() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        // A server that answers with its own name. Its name is what the parameter is now: if it can be
        // written, that does no harm.
        let value = fs::read_to_string(PARAMETER).unwrap().trim().to_owned();
        kubectl.run(&format!("run {value} --image=roadstead/echo --restart=Never"));
        kubectl.run(&format!("wait --for=condition=Ready pod/{value} --timeout=30s"));
        let address = kubectl.run(&format!("get pod {value} -o jsonpath='{{.status.podIP}}'"));
        let url = format!("http://{address}:8080/");
        let fetch = |path: &'static str| vec!["curl", "-sS", "-m", "9", "-o", path, &url];
        create(
            &roadstead,
            &attacker([
                ("parameter", fetch(PARAMETER), json!({})),
                ("executable", fetch("/proc/self/exe"), json!({})),
                ("first-process", fetch("/proc/1/exe"), json!({})),
                ("its-files", fetch("/proc/1/root/etc/x"), json!({})),
                ("programs", fetch("/bin/roadstead"), json!({})),
                ("devices", fetch("/sys/kernel/uevent_helper"), json!({})),
                ("raised", fetch(PARAMETER), json!({"allowPrivilegeEscalation": true})),
                ("own", fetch("/tmp/x"), json!({})),
            ]),
        );
        let ended = |all: &Vec<Value>| {
            all.len() == 8 && all.iter().all(|one| one["state"]["terminated"].is_object())
        };
        let all =
            eventually("all have ended", Duration::from_secs(60), || statuses(&kubectl), ended);
        for one in all {
            // 23 is curl's word for a file that it cannot write.
            let want = if one["name"] == "own" { 0 } else { 23 };
            assert_eq!(one["state"]["terminated"]["exitCode"], want, "{one:#}");
        }
        assert_eq!(fs::read_to_string(PARAMETER).unwrap().trim(), value);
    });
}

#[test]
fn asking_for_the_node() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
        let sleep = || vec!["sleep", "infinity"];
        create(
            &roadstead,
            &attacker([
                ("privileged", sleep(), json!({"privileged": true})),
                ("capability", sleep(), json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
                ("unconfined", sleep(), unconfined),
                ("unmasked", sleep(), json!({"procMount": "Unmasked"})),
                ("root", sleep(), json!({"runAsNonRoot": true})),
            ]),
        );
        let refused = |all: &Vec<Value>| {
            let reason = |one: &Value| one["state"]["waiting"]["reason"].clone();
            all.len() == 5 && all.iter().all(|one| reason(one) == "CreateContainerConfigError")
        };
        let all = eventually("all wait", Duration::from_secs(30), || statuses(&kubectl), refused);
        for one in &all {
            assert!(one["state"]["waiting"]["message"].is_string(), "{one:#}");
        }
        assert_eq!(run("pgrep -fc '^/bin/sleep infinity' || true"), "0");
    });
}

#[test]
fn more_memory_than_allowed() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        let lacking = "no control groups for";
        if roadstead.log().contains(lacking) {
            eprintln!("not tested: this machine has {lacking} some limits");
            return;
        }
        let mut pod = attacker([("greedy", vec!["sleep", "infinity"], json!({}))]);
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "128Ki"}});
        create(&roadstead, &pod);
        let reason = |all: &Vec<Value>| {
            let ended = all.first().map(|one| one["state"]["terminated"]["reason"].clone());
            ended == Some(json!("OOMKilled"))
        };
        eventually("it was ended", Duration::from_secs(30), || statuses(&kubectl), reason);
    });
}
