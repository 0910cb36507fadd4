//! Looking into pods: logs and commands, by the real kubectl.

mod agent_port;
mod attach;
mod exec;
mod port_forward;

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::laboratory_of;

use crate::images::{LAYER, up_with_images};

const SECOND: Duration = Duration::from_secs(1);

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: talker, labels: {app: talk}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'echo one; echo two >&2; echo three; sleep 1000']
  - name: side
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'echo beside; sleep 1000']
---
apiVersion: v1
kind: Pod
metadata: {name: short}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'echo first; sleep 15; echo last']
---
apiVersion: v1
kind: Pod
metadata: {name: crasher, labels: {app: talk}}
spec:
  containers:
  - name: main
    image: busybox
    imagePullPolicy: IfNotPresent
    command:
    - sh
    - -c
    - cat /proc/sys/kernel/random/uuid; [ -e /memory/ran ] && sleep 1000; touch /memory/ran; exit 3
    volumeMounts: [{name: memory, mountPath: /memory}]
  volumes: [{name: memory, emptyDir: {}}]
";

#[test]
fn what_containers_say() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply(PODS);
        kubectl.run("wait --for=condition=Ready pod/talker --timeout=60s");
        let log = || lines(&kubectl.run("logs talker -c main"));
        eventually("three lines", 20 * SECOND, log, |found| found == "one three two");
        assert_eq!(kubectl.run("logs talker -c main --tail=1").lines().count(), 1);
        assert_eq!(kubectl.run("logs talker -c side").trim(), "beside");
        let all = lines(&kubectl.run("logs talker --all-containers --prefix"));
        assert!(all.contains("[pod/talker/side] beside"), "{all}");
        let labelled = kubectl.run("logs -l app=talk -c main --tail=-1 --ignore-errors");
        assert!(labelled.contains("three"), "{labelled}");
        let stamped = kubectl.run("logs talker -c side --timestamps");
        let time = stamped.split(' ').next().unwrap();
        assert!(time.len() == 30 && time.ends_with('Z'), "{stamped}");
        assert_eq!(kubectl.run("logs talker -c side --limit-bytes=3").trim(), "bes");
        assert_eq!(kubectl.run("logs talker -c side --since=5m").trim(), "beside");
        refusals(&kubectl);
        runs_before(&kubectl);
        followed(&kubectl);
    });
}

/// In the order of the alphabet: what goes to two pipes has no other.
fn lines(text: &str) -> String {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.join(" ")
}

fn refusals(kubectl: &Kubectl) {
    for (command, want) in [
        ("logs nobody", "pods \"nobody\" not found"),
        ("logs talker -c none", "container none is not valid for pod talker"),
        (
            "logs talker -c main --previous",
            "previous terminated container \"main\" in pod \"talker\" not found",
        ),
    ] {
        let said = kubectl.fails(command);
        assert!(said.contains(want), "{command}: {said}");
    }
}

fn runs_before(kubectl: &Kubectl) {
    let path = "{.status.containerStatuses[0].restartCount}";
    let restarts = || kubectl.run(&format!("get pod crasher -o jsonpath='{path}'"));
    eventually("a second run", 30 * SECOND, restarts, |count| count.as_str() != "0");
    let both = || (kubectl.run("logs crasher --previous"), kubectl.run("logs crasher"));
    let differ = |(old, new): &(String, String)| {
        old.trim().len() == 36 && new.trim().len() == 36 && old != new
    };
    eventually("each run has its own", 20 * SECOND, both, differ);
}

/// Follows the log to its end, which comes while we look.
fn followed(kubectl: &Kubectl) {
    let follow = |command: &str| kubectl.run(&format!("logs -f {command}"));
    assert_eq!(follow("short"), "first\nlast\n", "it ends with the container");
}
