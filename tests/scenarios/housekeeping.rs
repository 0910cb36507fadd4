//! What a node says of itself, ports of it that lead to pods, and pods that take more room than they may.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{inside, laboratory_of, run};

use crate::images::{LAYER, up_with_images};
use crate::process::Roadstead;

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  containers:
  - name: main
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'head -c 3000000 /dev/zero > /room/file; sleep 1000']
    volumeMounts: [{name: room, mountPath: /room}]
  volumes: [{name: room, emptyDir: {sizeLimit: 1Mi}}]
---
apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  containers:
  - name: main
    image: roadstead/echo
    env: [{name: PORT, value: '8080'}]
    ports: [{containerPort: 8080, hostPort: 18080}]
---
apiVersion: v1
kind: Pod
metadata: {name: rival}
spec:
  nodeName: NODE
  containers:
  - {name: main, image: roadstead/echo, ports: [{containerPort: 8080, hostPort: 18080}]}
";

#[test]
fn a_node_looks_after_itself() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        let node = kubectl.run("get nodes -o jsonpath='{.items[0].metadata.name}'");
        let (first, rival) = PODS.split_at(PODS.rfind("---").unwrap());
        kubectl.apply(first);
        kubectl.run("wait --for=condition=Ready pod/server --timeout=30s");
        kubectl.apply(&rival.replace("NODE", &node));

        assert_eq!(run("curl -s -m 2 127.0.0.1:18080"), "server");
        let of = |pod: &str, path: &str| {
            kubectl.run(&format!("get pod {pod} -o jsonpath='{{.status.{path}}}'"))
        };
        let evicted = || of("writer", "reason");
        eventually("evicted", Duration::from_secs(40), evicted, |reason| reason == "Evicted");
        assert_eq!(of("writer", "phase"), "Failed");
        let message = "Usage of EmptyDir volume \"room\" exceeds the limit \"1Mi\". ";
        assert_eq!(of("writer", "message").trim_end(), message.trim_end());

        let status =
            |path: &str| kubectl.run(&format!("get node {node} -o jsonpath='{{.status.{path}}}'"));
        assert!(status("images[0].names").contains("docker.io/library/busybox:latest"));
        assert!(status("capacity.ephemeral-storage").ends_with("Ki"));
        // Stories are told that nothing must stay free.
        assert_eq!(status("allocatable.memory"), status("capacity.memory"));
        let events = kubectl.run("get events -A --field-selector involvedObject.kind=Node");
        for reason in ["Starting kubelet.", "NodeReady", "NodeHasSufficientMemory"] {
            assert!(events.contains(reason), "{events}");
        }
        // Two pods cannot have one port.
        eventually(
            "rejected",
            Duration::from_secs(10),
            || of("rival", "phase"),
            |it| it == "Failed",
        );
        assert_eq!(of("rival", "reason"), "NodePorts");
        kubectl.run("delete pod --all --timeout=60s");
        assert_eq!(run("nft list tables | grep -c hostports || true"), "0");
    });
}

/// Whoever is outside knows the node, and has no way to pods.
#[test]
fn pods_reach_the_world() {
    laboratory_of("L5", || {
        run("ip netns add world && ip link add world0 type veth peer name eth0 netns world");
        run("ip address add 198.18.0.1/24 dev world0 && ip link set world0 up");
        run("ip -n world address add 198.18.0.2/24 dev eth0 && ip -n world link set eth0 up");
        let server = inside("world", || TcpListener::bind("198.18.0.2:80").unwrap());
        std::thread::spawn(move || {
            while let Ok((mut stream, peer)) = server.accept() {
                let _ = stream.read(&mut [0; 1024]);
                let (length, peer) = (peer.ip().to_string().len(), peer.ip());
                let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n{peer}");
            }
        });
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply(
            "{apiVersion: v1, kind: Pod, metadata: {name: out}, spec: {restartPolicy: Never, \
             containers: [{name: main, image: roadstead/echo, \
             command: [curl, -s, -m, '5', 198.18.0.2]}]}}",
        );
        let phase = || kubectl.run("get pod out -o jsonpath='{.status.phase}'");
        eventually("it is done", Duration::from_secs(30), phase, |phase| phase == "Succeeded");
        assert_eq!(kubectl.run("logs out").trim(), "198.18.0.1", "the node speaks for its pods");
    });
}
