//! Pods that cannot run as they are written: each says why, in the words of Kubernetes, and harms no other.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};
use serde_json::Value;

use crate::images::{LAYER, offer_images};
use crate::process::Roadstead;

const SECOND: Duration = Duration::from_secs(1);
const REGISTRY: &str = "127.0.0.1:5055";

/// Pods named after what is wrong with them; nothing is wrong with `fine`.
const PODS: &str = r#"
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: ConfigMap, metadata: {name: there}, data: {a: b}},
  {apiVersion: v1, kind: Pod, metadata: {name: fine}, spec: {containers: [{name: c, image: roadstead/echo,
    ports: [{containerPort: 8080, hostPort: 18081}]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: digest}, spec: {containers: [{name: c,
    image: "REGISTRY/app@sha256:0000000000000000000000000000000000000000000000000000000000000000"}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: command}, spec: {containers: [{name: c, image: busybox,
    imagePullPolicy: IfNotPresent, command: [/no/such]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: greedy}, spec: {restartPolicy: Never, containers: [{name: c,
    image: busybox, imagePullPolicy: IfNotPresent, resources: {limits: {memory: 16Mi}},
    command: [dd, if=/dev/zero, of=/dev/null, bs=200M, count=1]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: crash}, spec: {containers: [{name: c, image: busybox,
    imagePullPolicy: IfNotPresent, command: [sh, -c, "exit 9"]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: variable}, spec: {containers: [{name: c,
    image: roadstead/tools, command: [sleep, infinity],
    env: [{name: V, valueFrom: {configMapKeyRef: {name: none, key: k}}}]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: key}, spec: {containers: [{name: c,
    image: roadstead/tools, command: [sleep, infinity],
    env: [{name: V, valueFrom: {configMapKeyRef: {name: there, key: k}}}]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: files}, spec: {volumes: [{name: v, configMap: {name: none}}],
    containers: [{name: c, image: roadstead/tools, command: [sleep, infinity],
      volumeMounts: [{name: v, mountPath: /v}]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: image}, spec: {containers: [{name: c,
    image: "nowhere.invalid/none:1"}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: never}, spec: {containers: [{name: c,
    image: "nowhere.invalid/none:1", imagePullPolicy: Never}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: absent}, spec: {
    volumes: [{name: v, hostPath: {path: /no/such/directory, type: Directory}}],
    containers: [{name: c, image: roadstead/tools, command: [sleep, infinity],
      volumeMounts: [{name: v, mountPath: /v}]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: thief}, spec: {
    volumes: [{name: v, hostPath: {path: "STATE/node/pods"}}],
    containers: [{name: c, image: roadstead/tools, command: [sleep, infinity],
      volumeMounts: [{name: v, mountPath: /v}]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: path}, spec: {
    volumes: [{name: v, hostPath: {path: /proc/version, type: Directory}}],
    containers: [{name: c, image: roadstead/tools, command: [sleep, infinity],
      volumeMounts: [{name: v, mountPath: /v}]}]}}]}
"#;

/// They come when `fine` has the port.
const RIVALS: &str = "
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: Pod, metadata: {name: pushed}, spec: {nodeName: node, containers: [{name: c,
    image: roadstead/echo, ports: [{containerPort: 8080, hostPort: 18081}]}]}},
  {apiVersion: v1, kind: Pod, metadata: {name: placed}, spec: {containers: [{name: c,
    image: roadstead/echo, ports: [{containerPort: 8080, hostPort: 18081}]}]}}]}
";

/// What each of them says, in its status or its events.
const SAYINGS: [(&str, &[&str]); 15] = [
    (
        "image",
        &[
            "\"phase\":\"Pending\"",
            "Normal Pulling Pulling image \"nowhere.invalid/none:1\"",
            "Warning Failed Failed to pull image \"nowhere.invalid/none:1\": ",
            "Warning Failed Error: ErrImagePull",
            "\"reason\":\"ImagePullBackOff\"",
            "\"message\":\"Back-off pulling image \\\"nowhere.invalid/none:1\\\": ErrImagePull: ",
            "Normal BackOff Back-off pulling image \"nowhere.invalid/none:1\"",
        ],
    ),
    (
        "never",
        &[
            "\"phase\":\"Pending\"",
            "\"reason\":\"ErrImageNeverPull\"",
            "Warning ErrImageNeverPull Container image \"nowhere.invalid/none:1\" is not present \
             with pull policy of Never",
        ],
    ),
    (
        "absent",
        &[
            "\"phase\":\"Pending\"",
            "\"reason\":\"ContainerCreating\"",
            "Warning FailedMount MountVolume.SetUp failed for volume \"v\" : \
             hostPath type check failed: /no/such/directory is not a directory",
        ],
    ),
    (
        "thief",
        &[
            "\"phase\":\"Pending\"",
            "\"reason\":\"ContainerCreating\"",
            "Warning FailedMount MountVolume.SetUp failed for volume \"v\" : hostPath ",
            "/data/node/pods belongs to the node agent",
        ],
    ),
    (
        "digest",
        &[
            "\"phase\":\"Pending\"",
            "Warning Failed Failed to pull image \"127.0.0.1:5055/app@sha256:00",
            " has digest sha256:",
            "Warning Failed Error: ErrImagePull",
            "\"reason\":\"ImagePullBackOff\"",
        ],
    ),
    (
        "command",
        &[
            "\"reason\":\"StartError\"",
            "\"exitCode\":128",
            "Warning Failed Error: ",
            "exec: \"/no/such\": stat /no/such: no such file or directory",
            "\"reason\":\"CrashLoopBackOff\"",
        ],
    ),
    ("greedy", &["\"phase\":\"Failed\"", "\"reason\":\"OOMKilled\"", "\"exitCode\":137"]),
    (
        "crash",
        &[
            "\"phase\":\"Running\"",
            "\"reason\":\"CrashLoopBackOff\"",
            "\"exitCode\":9",
            "back-off 10s restarting failed container=c pod=crash_default(",
            "Warning BackOff Back-off restarting failed container c in pod crash_default(",
        ],
    ),
    (
        "variable",
        &[
            "\"phase\":\"Pending\"",
            "\"reason\":\"CreateContainerConfigError\"",
            "\"message\":\"configmap \\\"none\\\" not found\"",
            "Warning Failed Error: configmap \"none\" not found",
        ],
    ),
    (
        "key",
        &[
            "\"reason\":\"CreateContainerConfigError\"",
            "Warning Failed Error: couldn't find key k in ConfigMap default/there",
        ],
    ),
    (
        "files",
        &[
            "\"reason\":\"ContainerCreating\"",
            "Warning FailedMount MountVolume.SetUp failed for volume \"v\" : configmap \"none\" not found",
        ],
    ),
    (
        "path",
        &[
            "\"reason\":\"ContainerCreating\"",
            "Warning FailedMount MountVolume.SetUp failed for volume \"v\" : \
             hostPath type check failed: /proc/version is not a directory, it's a file",
        ],
    ),
    (
        "pushed",
        &[
            "\"phase\":\"Failed\"",
            "\"reason\":\"NodePorts\"",
            "Warning NodePorts Predicate NodePorts failed: \
             node(s) didn't have free ports for the requested pod ports",
        ],
    ),
    (
        "placed",
        &[
            "\"reason\":\"Unschedulable\"",
            "Warning FailedScheduling 0/1 nodes are available: \
             1 node(s) didn't have free ports for the requested pod ports.",
        ],
    ),
    ("fine", &["\"phase\":\"Running\"", "\"restartCount\":0", "\"ready\":true"]),
];

#[test]
fn every_mistake_is_told_and_harms_nobody() {
    laboratory_of(LAYER, || {
        offer_images(&["busybox"]);
        a_registry_that_lies();
        let roadstead = Roadstead::up_with(
            "--images /run/images --allow-privileged --registry-config /run/registries.json",
        );
        let is_limited = !roadstead.log().contains("no control groups for");
        let kubectl = roadstead.kubectl();
        let state = roadstead.directory().join("data").display().to_string();
        kubectl.apply(&PODS.replace("REGISTRY", REGISTRY).replace("STATE", &state));
        kubectl.run("wait --for=condition=Ready pod/fine --timeout=60s");
        kubectl.apply(RIVALS);
        for (pod, texts) in SAYINGS {
            if pod == "greedy" && !is_limited {
                eprintln!(
                    "NOT RUN: a pod that takes more memory than it may, without control groups"
                );
                continue;
            }
            says(&kubectl, pod, texts);
        }
        assert_eq!(run("curl -s -m 2 127.0.0.1:18081"), "fine");
        // What was missing comes, and those that waited for it go on by themselves.
        kubectl.run("create configmap none --from-literal=k=v");
        kubectl.run("wait --for=condition=Ready pod/variable pod/files --timeout=60s");
        says(&kubectl, "fine", &["\"restartCount\":0"]);
    });
}

/// Waits until the pod says all that, in its status and its events.
fn says(kubectl: &Kubectl, pod: &str, texts: &[&str]) {
    let said = || {
        let found: Value =
            serde_json::from_str(&kubectl.run(&format!("get pod {pod} -o json"))).unwrap();
        let path = "{range .items[*]}{.type} {.reason} {.message}{\"\\n\"}{end}";
        let of = format!("--field-selector involvedObject.name={pod}");
        let events = kubectl.run(&format!("get events {of} -o jsonpath='{path}'"));
        format!("{}\n{events}", found["status"])
    };
    for text in texts {
        eventually(&format!("{pod} says {text}"), 60 * SECOND, said, |said| said.contains(text));
    }
}

/// Whatever it is asked for, it gives the same, which is none of what its names promise.
fn a_registry_that_lies() {
    let listener = TcpListener::bind(REGISTRY).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let body = "{\"schemaVersion\": 2}";
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    let hosts = format!("{{\"{REGISTRY}\": [{{\"url\": \"http://{REGISTRY}\"}}]}}");
    fs::write("/run/registries.json", hosts).unwrap();
}

const FILLER: &str = "
apiVersion: v1
kind: Pod
metadata: {name: filler}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'head -c 100m /dev/zero > /room/file 2> /dev/null; sleep 1000']
    volumeMounts: [{name: room, mountPath: /room}]
  volumes: [{name: room, emptyDir: {}}]
";

#[test]
fn a_full_disk_stops_those_that_come_and_nobody_else() {
    laboratory_of(LAYER, || {
        offer_images(&["busybox"]);
        let mut roadstead = Roadstead::up_with("--images /run/images");
        roadstead.stop();
        // Only what pods write to is small.
        let disk = roadstead.directory().join("data/node").display().to_string();
        run(&format!("mount -t tmpfs -o size=16m tmpfs {disk}"));
        roadstead.start_again();
        let kubectl = roadstead.kubectl();
        let runs = |name: &str| format!("run {name} --image=roadstead/echo --restart=Always");
        kubectl.run(&runs("neighbour"));
        kubectl.run("wait --for=condition=Ready pod/neighbour --timeout=60s");
        let address = kubectl.run("get pod neighbour -o jsonpath='{.status.podIP}'");
        kubectl.apply(FILLER);
        let room = || run(&format!("df --output=avail {disk} | tail -1")).trim().to_owned();
        eventually("the disk is full", 60 * SECOND, room, |room| room == "0");
        kubectl.run(&runs("late"));
        says(&kubectl, "late", &["\"phase\":\"Pending\"", "No space left on device"]);
        assert_eq!(run(&format!("curl -s -m 5 http://{address}:8080/")), "neighbour");
        kubectl.run("delete pod filler --timeout=60s");
        kubectl.run("wait --for=condition=Ready pod/late --timeout=90s");
        says(&kubectl, "neighbour", &["\"phase\":\"Running\"", "\"restartCount\":0"]);
        roadstead.stop();
        run(&format!("umount -l {disk}"));
    });
}
