//! The life of pods as `kubectl` shows it: probes, hooks, crashes and ends.

use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::laboratory_of;

use crate::images::{LAYER, up_with_images};

const SECOND: Duration = Duration::from_secs(1);

/// Pods named after what is wrong with them.
const PODS: &str = r#"
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: Pod, metadata: {name: unready}, spec: {containers: [{name: c, image: busybox,
    command: [sleep, "1000"],
    readinessProbe: {periodSeconds: 1, exec: {command: [sh, -c, "echo not yet; exit 3"]}}}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: hooked}, spec: {containers: [{name: c, image: busybox,
    command: [sh, -c, "trap 'exit 0' TERM; while true; do sleep 0.1; done"],
    readinessProbe: {periodSeconds: 1, exec: {command: [cat, /tmp/started]}},
    lifecycle: {postStart: {exec: {command: [touch, /tmp/started]}},
                preStop: {exec: {command: [sh, -c, "exit 1"]}}}}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: badhook}, spec: {terminationGracePeriodSeconds: 1,
    containers: [{name: c, image: busybox, command: [sleep, "1000"],
      lifecycle: {postStart: {exec: {command: [sh, -c, "exit 1"]}}}}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: crashing}, spec: {containers: [{name: c, image: busybox,
    command: [sh, -c, "printf no.disk > /dev/termination-log; exit 42"]}]}}]}
"#;

#[test]
fn what_describe_says() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply(PODS);
        let says = |pod: &str, texts: &[&str]| {
            let describe = || kubectl.run(&format!("describe pod {pod}"));
            for text in texts {
                eventually(text, 30 * SECOND, describe, |shown| shown.contains(text));
            }
        };
        kubectl.run("wait --for=condition=Ready pod/hooked --timeout=30s");
        says("unready", &["Readiness probe failed: not yet", "ContainersReady             False"]);
        says("badhook", &["PostStartHook failed", "FailedPostStartHook"]);
        says(
            "crashing",
            &[
                "CrashLoopBackOff",
                "Exit Code:    42",
                "Message:      no.disk",
                "Back-off restarting failed container c in pod crashing_default(",
            ],
        );
        let began = Instant::now();
        kubectl.run("delete pod hooked unready --grace-period=1 --wait=true --timeout=30s");
        assert!(began.elapsed() < 15 * SECOND, "{:?}", began.elapsed());
        let events = kubectl
            .run("get events -o custom-columns=A:.involvedObject.name,M:.message --no-headers");
        for (pod, text) in [("hooked", "Stopping container c"), ("hooked", "PreStopHook failed")] {
            let said = events.lines().any(|line| line.starts_with(pod) && line.contains(text));
            assert!(said, "{pod} {text}: {events}");
        }
    });
}

/// Nginx has no /healthz.
const WEB_POD: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-pod, labels: {app: web}}
spec:
  containers:
  - name: nginx
    image: nginx
    imagePullPolicy: IfNotPresent
    ports: [{containerPort: 80}]
    readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}
    livenessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1, initialDelaySeconds: 2}
";

#[test]
fn a_pod_without_its_health_page_is_left_out_and_restarted() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["nginx"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply(WEB_POD);
        let told = |text: &str| {
            let describe = || kubectl.run("describe pod web-pod");
            eventually(text, 60 * SECOND, describe, |shown| shown.contains(text));
        };
        told("Readiness probe failed: HTTP probe failed with statuscode: 404");
        let slice = |path: &str| {
            let of = "-l kubernetes.io/service-name=web";
            kubectl.run(&format!("get endpointslices {of} -o jsonpath='{{.items[*].{path}}}'"))
        };
        let conditions = "endpoints[*].conditions";
        assert_eq!(slice(&format!("{conditions}.ready")), "false");
        assert_eq!(slice(&format!("{conditions}.serving")), "false");
        let address = kubectl.run("get pod web-pod -o jsonpath='{.status.podIP}'");
        assert_eq!(slice("endpoints[*].addresses[*]"), address);
        told("Liveness probe failed: HTTP probe failed with statuscode: 404");
        told("Container nginx failed liveness probe, will be restarted");
        let status = |path: &str| {
            let path = format!("{{.status.containerStatuses[0].{path}}}");
            kubectl.run(&format!("get pod web-pod -o jsonpath='{path}'"))
        };
        let restarts = || status("restartCount").parse::<u32>().unwrap();
        eventually("it is restarted", 60 * SECOND, restarts, |count| *count >= 1);
        // It was asked to end, and did.
        assert_eq!(status("lastState.terminated.exitCode"), "0");
        assert!(kubectl.run("logs web-pod --previous").contains("GET /healthz"));
        assert_eq!(status("ready"), "false");
        assert_eq!(slice(&format!("{conditions}.ready")), "false");
        assert!(kubectl.run("get pod web-pod --no-headers").contains("0/1"));
    });
}

#[test]
fn a_pod_is_looked_into() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        kubectl.run("run web --image=busybox --restart=Never -- sleep 1000");
        kubectl.run("wait --for=condition=Ready pod/web --timeout=30s");
        if !kubectl.is_at_least(27, "kubectl debug --profile") {
            return;
        }
        kubectl.run(
            "debug web --image=busybox --target=web --profile=general -c look -- \
             sh -c 'cat /proc/1/cmdline; sleep 1; exit 5'",
        );
        let path = "{.status.ephemeralContainerStatuses[0].state.terminated.exitCode}";
        let code = || kubectl.run(&format!("get pod web -o jsonpath='{path}'"));
        eventually("it has ended", 30 * SECOND, code, |code| code == "5");
        assert!(kubectl.run("logs web -c look").starts_with("sleep"));
        let phase = kubectl.run("get pod web -o jsonpath='{.status.phase} {.status.conditions[?(@.type==\"Ready\")].status}'");
        assert_eq!(phase, "Running True");
    });
}

/// One that no node has room for, one that is sent to a node all the same, and one that waits for leave.
const PLACED: &str = r#"
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: Pod, metadata: {name: big}, spec: {containers: [{name: c, image: busybox,
    command: [sleep, "1000"], resources: {requests: {cpu: 100k}}}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: pushed}, spec: {nodeName: node,
    containers: [{name: c, image: busybox, command: [sleep, "1000"],
      resources: {requests: {cpu: 100k}}}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: gated}, spec: {schedulingGates: [{name: example.com/wait}],
    containers: [{name: c, image: busybox, command: [sleep, "1000"]}]}}]}
"#;

#[test]
fn pods_wait_for_room_and_for_leave() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply(PLACED);
        let shown = |pod: &str, text: &str| {
            let show = || kubectl.run(&format!("get pod {pod} --no-headers"));
            eventually(text, 20 * SECOND, show, |row| row.contains(text));
        };
        shown("big", "Pending");
        shown("pushed", "OutOfcpu");
        shown("gated", "SchedulingGated");
        let describe = || kubectl.run("describe pod big");
        let why = "0/1 nodes are available: 1 Insufficient cpu.";
        eventually(why, 20 * SECOND, describe, |text| text.contains(why));
        let status = kubectl.run("get pod pushed -o jsonpath='{.status.message}'");
        let want = "Pod was rejected: Node didn't have enough resource: cpu, requested: 100000000,";
        assert!(status.starts_with(want), "{status}");
        kubectl.run("patch pod gated --type=json -p '[{\"op\": \"remove\", \"path\": \"/spec/schedulingGates\"}]'");
        kubectl.run("wait --for=condition=Ready pod/gated --timeout=30s");
    });
}

/// One reads what its init container wrote, the other begins anew as a whole.
const IN_PLACE: &str = r#"
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: Pod, metadata: {name: resized}, spec: {volumes: [{name: v, emptyDir: {}}],
    initContainers: [{name: i, image: busybox, volumeMounts: [{name: v, mountPath: /v}],
      command: [sh, -c, "echo \"GREETING='hello there' # from init\" > /v/env"]}],
    containers: [{name: c, image: busybox, command: [sleep, "1000"],
      resources: {requests: {cpu: 10m}, limits: {cpu: 100m}},
      env: [{name: GREETING, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: GREETING}}}]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: swept}, spec: {volumes: [{name: v, emptyDir: {}}],
    containers: [{name: a, image: busybox, volumeMounts: [{name: v, mountPath: /v}],
      command: [sh, -c, "sleep 1; test -f /v/again && sleep 1000; touch /v/again; exit 3"],
      restartPolicy: Never, restartPolicyRules: [
        {action: RestartAllContainers, exitCodes: {operator: In, values: [3]}}]},
      {name: b, image: busybox, command: [sleep, "1000"]}]}}]}
"#;

#[test]
fn pods_change_in_place() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply(IN_PLACE);
        kubectl.run("wait --for=condition=Ready pod/resized --timeout=60s");
        let said = kubectl.run("exec resized -c c -- sh -c 'echo $GREETING'");
        assert_eq!(said, "hello there\n");

        let status = "{.status.containerStatuses[?(@.name==\"b\")]";
        let path = format!("{status}.restartCount}} {status}.lastState.terminated.reason}}");
        let swept = || kubectl.run(&format!("get pod swept -o jsonpath='{path}'"));
        eventually("all begin anew", 30 * SECOND, swept, |text| {
            text == "1 RestartingAllContainers"
        });

        if !kubectl.is_at_least(32, "the subresource resize") {
            return;
        }
        let patch =
            r#"{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"200m"}}}]}}"#;
        kubectl.run(&format!("patch pod resized --subresource resize -p '{patch}'"));
        let status = "{.status.containerStatuses[0]";
        let path = format!("{status}.resources.limits.cpu}} {status}.restartCount}}");
        let resized = || kubectl.run(&format!("get pod resized -o jsonpath='{path}'"));
        eventually("it has more", 20 * SECOND, resized, |text| text == "200m 0");
        let events = || kubectl.run("describe pod resized");
        eventually("and it is told", 10 * SECOND, events, |text| text.contains("ResizeCompleted"));
    });
}
