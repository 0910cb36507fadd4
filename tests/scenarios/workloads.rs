//! Pods that end, pods of every node, pods that must not all go at once, and updates that lose nobody.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{laboratory_of, run};

use crate::images::{LAYER, up_with_images};

const PATIENCE: Duration = Duration::from_secs(60);

const JOBS: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: squares}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: busybox, command: [sh, -c, 'echo $((JOB_COMPLETION_INDEX * JOB_COMPLETION_INDEX))']}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: hopeless}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: busybox, command: ['false']}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: busybox, command: [sleep, '1000']}]
";

#[test]
fn jobs_end_and_daemons_stay() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply(JOBS);
        kubectl.run("wait --for=condition=complete job/squares --timeout=120s");
        let said = kubectl.run("logs -l job-name=squares --tail=-1");
        let mut said: Vec<_> = said.lines().collect();
        said.sort_unstable();
        assert_eq!(said, ["0", "1", "4"]);
        let status = "get job squares -o jsonpath='{.status.succeeded} {.status.completedIndexes}'";
        assert_eq!(kubectl.run(status).trim(), "3 0-2");
        kubectl.run("wait --for=condition=failed job/hopeless --timeout=60s");
        let why = kubectl.run(
            "get job hopeless -o jsonpath='{.status.conditions[?(@.type==\"Failed\")].reason}'",
        );
        assert_eq!(why.trim(), "BackoffLimitExceeded");
        // Nobody keeps the pods of a Job that is deleted.
        kubectl.run("delete job squares hopeless --timeout=60s");
        let pods = || kubectl.run("get pods -l batch.kubernetes.io/job-name -o name");
        eventually("no pod is left", PATIENCE, pods, |pods| pods.is_empty());

        kubectl.run("rollout status daemonset/agent --timeout=60s");
        kubectl.run("set env daemonset/agent VERSION=2");
        kubectl.run("rollout status daemonset/agent --timeout=60s");
        let version = || kubectl.run("exec daemonset/agent -- sh -c 'echo $VERSION' || true");
        eventually("the new one runs", PATIENCE, version, |version| version.trim() == "2");
    });
}

#[test]
fn a_budget_holds_back_a_drain() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["nginx"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/nginx.yaml");
        kubectl.run("rollout status deployment/nginx --timeout=120s");
        kubectl.run("scale deployment/nginx --replicas=2");
        kubectl.run("rollout status deployment/nginx --timeout=120s");
        let labels =
            kubectl.run("get deployment nginx -o jsonpath='{.spec.selector.matchLabels.app}'");
        kubectl.apply(&format!(
            "{{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {{name: nginx}},
              spec: {{minAvailable: 1, selector: {{matchLabels: {{app: {}}}}}}}}}",
            labels.trim()
        ));
        let allowed = || kubectl.run("get pdb nginx -o jsonpath='{.status.disruptionsAllowed}'");
        eventually("one may go", PATIENCE, allowed, |allowed| allowed.trim() == "1");
        // On one node the second pod has no place to go to: the drain waits for ever.
        let drain = "drain node --ignore-daemonsets --delete-emptydir-data --force --timeout=8s 2>&1 || true";
        let said = kubectl.run(drain);
        assert!(said.contains("would violate the pod's disruption budget"), "{said}");
        let running = || {
            kubectl.run(&format!(
                "get pods -l app={} --field-selector status.phase=Running -o name",
                labels.trim()
            ))
        };
        eventually("one is left", PATIENCE, running, |pods| pods.lines().count() == 1);
        kubectl.run("uncordon node");
        kubectl.run("rollout status deployment/nginx --timeout=120s");

        // Our own command waits for budgets, too, and not for longer than it was told.
        let own = |command: &str| {
            let program = env!("CARGO_BIN_EXE_roadstead");
            let kubeconfig = roadstead.kubeconfig();
            run(&format!(
                "{program} node {command} --kubeconfig {} 2>&1 || true",
                kubeconfig.display()
            ))
        };
        eventually("one may go again", PATIENCE, allowed, |allowed| allowed.trim() == "1");
        let said = own("drain node --delete-emptydir-data --timeout=8s");
        for words in [
            "node/node cordoned",
            "has to wait: Cannot evict pod as it would violate the pod's disruption budget.",
            "node/node is not empty after 8 s",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        kubectl.run("delete pdb nginx");
        let said = own("drain node --delete-emptydir-data --grace-period=5 --timeout=60s");
        for words in
            ["node/node already cordoned", "evicting pod default/nginx-", "node/node drained"]
        {
            assert!(said.contains(words), "{words}: {said}");
        }
        eventually("nobody is left", PATIENCE, running, |pods| pods.is_empty());
        assert!(own("uncordon node").contains("node/node uncordoned"));
        kubectl.run("rollout status deployment/nginx --timeout=120s");
    });
}

#[test]
fn updates_lose_no_connection() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["nginx"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/nginx.yaml");
        kubectl.run("scale deployment/nginx --replicas=2");
        // A server is not ready before it listens.
        let probe = r#"[{"op": "add", "path": "/spec/template/spec/containers/0/readinessProbe",
            "value": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1}}]"#;
        kubectl.run(&format!("patch deployment nginx --type=json -p '{probe}'"));
        kubectl.run("rollout status deployment/nginx --timeout=120s");
        let address = kubectl.run("get service nginx -o jsonpath='{.spec.clusterIP}'");
        let address: IpAddr = address.trim().parse().unwrap();
        eventually("nginx answers", PATIENCE, || answers(address), |answers| *answers);
        let (rollouts, rate) =
            (number("ROADSTEAD_ROLLOUTS", 3), number("ROADSTEAD_CONNECTIONS", 100));
        let pause = Duration::from_secs(CLIENTS.into()) / rate;
        let (stop, failed, asked) =
            (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut next = Instant::now();
                    while !stop.load(Ordering::Relaxed) {
                        asked.fetch_add(1, Ordering::Relaxed);
                        if !answers(address) {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                        // Who is late on a slow machine does not catch up.
                        next = (next + pause).max(Instant::now());
                        std::thread::sleep(next.saturating_duration_since(Instant::now()));
                    }
                });
            }
            let _end = StopAtEnd(&stop);
            for _ in 0..rollouts {
                let request = Unfinished::begin(address);
                // kubectl writes the second into the template, so it restarts once a second at most.
                std::thread::sleep(Duration::from_millis(1_100));
                kubectl.run("rollout restart deployment/nginx");
                kubectl.run("rollout status deployment/nginx --timeout=120s");
                request.finish();
                let pods = || kubectl.run("get pods -o name");
                eventually("the old ones are gone", PATIENCE, pods, |pods| {
                    pods.lines().count() == 2
                });
            }
        });
        let (failed, asked) = (failed.into_inner(), asked.into_inner());
        eprintln!("{rollouts} rollouts, {asked} connections, {failed} failed");
        assert_eq!(failed, 0, "of {asked}");
        assert!(asked > 50, "only {asked} connections were tried");
    });
}

/// So many ask at the same time.
const CLIENTS: u32 = 4;

fn number(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Whether a new connection is taken, and what is asked answered.
fn answers(address: IpAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let patience = Duration::from_secs(5);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, 80), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: nginx\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// A request of which half was sent before a pod is asked to go: what has begun may end.
struct Unfinished(TcpStream);

impl Unfinished {
    fn begin(address: IpAddr) -> Self {
        let mut stream = TcpStream::connect((address, 80)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: nginx\r\n").unwrap();
        Self(stream)
    }

    fn finish(mut self) {
        // Its pod has had its signal by now.
        std::thread::sleep(Duration::from_secs(4));
        self.0.write_all(b"Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        self.0.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    }
}

/// Stops those who ask, also when the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
