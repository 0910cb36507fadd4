//! Ports of pods on this machine, by the real kubectl.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};

use crate::images::{LAYER, up_with_images};

const SECOND: Duration = Duration::from_secs(1);

const OBJECTS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox
    imagePullPolicy: IfNotPresent
    command:
    - sh
    - -c
    - |
      mkdir /srv; echo a page > /srv/index.html
      nc -ll -p 7000 -e md5sum &
      nc -ll -p 7001 -e head -c 1100000000 /dev/zero &
      httpd -f -p 127.0.0.1:8080 -h /srv
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: server}
  ports: [{port: 80, targetPort: 8080}]
";

/// kubectl port-forward, for as long as this lives.
struct Forward {
    child: Child,
    log: String,
}

impl Forward {
    fn start(kubectl: &Kubectl, what: &str) -> Self {
        let log = format!("/run/forward-{}", what.replace(['/', ' ', ':'], "-"));
        let file = fs::File::create(&log).unwrap();
        let mut command = kubectl.command(&format!("port-forward {what}"));
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let forward = Self { child: command.spawn().unwrap(), log };
        eventually(
            "it forwards",
            20 * SECOND,
            || forward.said(),
            |said| said.contains("Forwarding from 127.0.0.1"),
        );
        forward
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        // A shell may be in between.
        run(&format!("pkill -KILL -P {0}; kill -KILL {0} || true", self.child.id()));
        let _ = self.child.wait();
    }
}

/// How much goes through it: 1000 is more than anybody waits for in every run.
fn megabytes() -> usize {
    env::var("ROADSTEAD_FORWARD_MEGABYTES").map_or(64, |text| text.parse().unwrap())
}

#[test]
fn ports_of_pods() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let sockets = roadstead.kubectl();
        let spdy = roadstead.kubectl().with("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
        sockets.apply(OBJECTS);
        sockets.run("wait --for=condition=Ready pod/server --timeout=60s");
        sockets
            .run("exec server -- sh -c 'until nc 127.0.0.1 8080 </dev/null; do sleep 0.1; done'");
        for (kubectl, first) in [(&sockets, 20), (&spdy, 30)] {
            let (one, two, three) = (first * 1000, first * 1000 + 1, first * 1000 + 2);
            let forward =
                Forward::start(kubectl, &format!("pod/server {one}:7000 {two}:7001 {three}:8080"));
            assert_eq!(run(&format!("curl -s http://localhost:{three}/")), "a page");
            many_at_once(three);
            many_bytes(one, two);
            // Older ones wait for ever for whoever left in the middle.
            if kubectl.is_at_least(27, "kubectl port-forward after a client that left") {
                many_at_once(three);
            }
            let said = forward.said();
            assert!(!said.contains("an error occurred forwarding"), "{said}");
            drop(forward);
            let port = first * 1000 + 3;
            let forward = Forward::start(kubectl, &format!("service/web {port}:80"));
            assert_eq!(run(&format!("curl -s http://localhost:{port}/")), "a page");
            drop(forward);
            refused(kubectl, first * 1000 + 4);
        }
    });
}

/// We end first, and still hear the answer; then the server does.
fn many_bytes(sum: u16, zeros: u16) {
    let piece = vec![7; 1 << 20];
    let mut stream = TcpStream::connect(("127.0.0.1", sum)).unwrap();
    let began = Instant::now();
    for _ in 0..megabytes() {
        stream.write_all(&piece).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    eprintln!("{} MB to the pod: {:?}", megabytes(), began.elapsed());
    let want = run(&format!("head -c {}M /dev/zero | tr '\\0' '\\7' | md5sum", megabytes()));
    assert_eq!(answer.trim(), want);

    let mut stream = TcpStream::connect(("127.0.0.1", zeros)).unwrap();
    let (began, mut count, mut buffer) = (Instant::now(), 0, vec![1; 1 << 16]);
    while count < megabytes() << 20 {
        let more = stream.read(&mut buffer).unwrap();
        assert!(more > 0 && buffer[..more].iter().all(|byte| *byte == 0), "after {count} bytes");
        count += more;
    }
    eprintln!("{} MB from the pod: {:?}", megabytes(), began.elapsed());
    // We leave in the middle; others go on.
}

fn many_at_once(port: u16) {
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                assert_eq!(run(&format!("curl -s -m 20 http://localhost:{port}/")), "a page");
            });
        }
    });
}

fn refused(kubectl: &Kubectl, port: u16) {
    let forward = Forward::start(kubectl, &format!("pod/server {port}:9"));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _ = stream.read(&mut [0]);
    let uid = kubectl.run("get pod server -o jsonpath='{.metadata.uid}'");
    let want = format!(
        "error forwarding port 9 to pod server, uid {uid}: failed to connect to localhost:9, \
         IPv4: dial tcp 127.0.0.1:9: connect: connection refused"
    );
    eventually("what went wrong", 10 * SECOND, || forward.said(), |said| said.contains(&want));
}
