//! `roadstead netpol` as a process of its own, beside a network that is not ours: pods are namespaces on a
//! bridge, and an API server says what they are called.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{inside, laboratory_of, make_node, make_pod, run};

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(30);
const BINARY: &str = env!("CARGO_BIN_EXE_roadstead");

const OBJECTS: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: friend, labels: {app: friend}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, labels: {app: stranger}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
";

const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
";

/// Stopped when it goes out of scope.
struct Netpol(Child);

impl Netpol {
    fn start(roadstead: &Roadstead, notifications: &str) -> Self {
        let log = File::create(roadstead.directory().join("netpol.log")).unwrap();
        let mut command = Command::new(BINARY);
        command.arg("netpol").arg("--kubeconfig").arg(roadstead.kubeconfig());
        command.args(["--hostname-override", "n1"]).env("NOTIFY_SOCKET", notifications);
        Self(command.stdin(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Netpol {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn reaches_web(number: u8) -> bool {
    let web = SocketAddr::new(IpAddr::from([10, 244, 0, 11]), 80);
    inside(&format!("pod-{number}"), || {
        TcpStream::connect_timeout(&web, Duration::from_secs(1)).is_ok()
    })
}

/// Until the service says that it is ready.
fn until_ready(notifications: &UnixDatagram) {
    let (start, mut buffer) = (Instant::now(), [0; 256]);
    notifications.set_read_timeout(Some(PATIENCE)).unwrap();
    loop {
        assert!(start.elapsed() < PATIENCE, "it is ready");
        let length = notifications.recv(&mut buffer).expect("it says how it is");
        if String::from_utf8_lossy(&buffer[..length]).starts_with("READY=1\nSTATUS=ready") {
            return;
        }
    }
}

#[test]
fn policies_beside_another_network() {
    const FRIEND: u8 = 12;
    const STRANGER: u8 = 13;
    laboratory_of("L5", || {
        make_node();
        for number in [11, FRIEND, STRANGER] {
            make_pod(number);
        }
        let listener = inside("pod-11", || TcpListener::bind("0.0.0.0:80").unwrap());
        thread::spawn(move || listener.incoming().for_each(drop));
        let roadstead = Roadstead::apiserver();
        let kubectl = roadstead.kubectl();
        kubectl.apply(OBJECTS);
        for (pod, number) in [("web", 11), ("friend", FRIEND), ("stranger", STRANGER)] {
            let status = format!(
                r#"{{"status":{{"phase":"Running","podIP":"10.244.0.{number}","podIPs":[{{"ip":"10.244.0.{number}"}}]}}}}"#
            );
            kubectl.run(&format!("patch pod {pod} --subresource=status -p '{status}'"));
        }
        kubectl.apply(POLICY);
        assert!(reaches_web(STRANGER), "nobody enforces anything");
        let socket = roadstead.directory().join("notify");
        let notifications = UnixDatagram::bind(&socket).unwrap();
        let netpol = Netpol::start(&roadstead, &socket.display().to_string());
        until_ready(&notifications);
        // Whoever waits for it can rely on it.
        assert!(!reaches_web(STRANGER) && reaches_web(FRIEND), "ready means enforced");
        kubectl.run("delete networkpolicy friends");
        eventually("the policy is gone", PATIENCE, || reaches_web(STRANGER), |open| *open);
        kubectl.apply(POLICY);
        eventually("it is back", PATIENCE, || reaches_web(STRANGER), |open| !open);
        drop(netpol);
        assert!(!reaches_web(STRANGER) && reaches_web(FRIEND), "rules outlive who wrote them");
        let netpol = Netpol::start(&roadstead, &socket.display().to_string());
        until_ready(&notifications);
        assert!(!reaches_web(STRANGER) && reaches_web(FRIEND), "and are taken over");
        drop(netpol);
        run(&format!("{BINARY} netpol --cleanup"));
        assert_eq!(run("nft list tables"), "", "nothing is left behind");
        assert!(reaches_web(STRANGER));
    });
}
