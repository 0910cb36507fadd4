//! Pods that look a name up as the first thing they do, on a machine that has other things to do.

use std::env;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};

use crate::dns::the_world;
use crate::process::Roadstead;

/// How many pods there are at a time.
const BATCH: usize = 25;
/// The number that curl gives for a name that it cannot resolve.
const UNRESOLVED: &str = "6";

const WEB: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: other}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: other}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: other, labels: {app: web}}
spec: {containers: [{name: c, image: roadstead/echo, args: ['--port', '8080']}]}
";

/// A pod of which each container looks up one name, and is done.
fn pod(number: usize) -> String {
    let container = |(name, url): (&str, &str)| {
        format!("{{name: {name}, image: roadstead/tools, command: [curl, -sSm20, '{url}']}}")
    };
    let urls = [
        ("short", "http://web.other/"),
        ("long", "http://web.other.svc.cluster.local/"),
        ("outside", "http://www.example.com/"),
    ];
    let containers = urls.map(container).join(", ");
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: fresh-{number}, labels: {{app: fresh}}}}\n\
         spec: {{restartPolicy: Never, containers: [{containers}]}}\n"
    )
}

/// The server behind www.example.com.
fn website() {
    run("ip address add 192.0.2.80/32 dev lo");
    let listener = TcpListener::bind("192.0.2.80:80").unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        }
    });
}

/// As much work as there are processors, until it is dropped.
struct Load(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Load {
    fn begin() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let work = |over: Arc<AtomicBool>| {
            thread::spawn(move || {
                let mut number = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    number = black_box(number.wrapping_mul(3) + 1);
                }
            })
        };
        let count = thread::available_parallelism().map_or(2, usize::from);
        let threads = (0..count).map(|_| work(over.clone())).collect();
        Self(over, threads)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        for thread in self.1.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Runs some pods to their end; returns the exit codes of all their containers.
fn run_batch(kubectl: &Kubectl, from: usize, count: usize) -> Vec<String> {
    let pods: String = (from..from + count).map(pod).collect();
    kubectl.apply(&pods);
    let codes = "get pods -l app=fresh -o jsonpath='\
        {range .items[*].status.containerStatuses[*]}{.state.terminated.exitCode} {end}'";
    let words = || kubectl.run(codes).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let patience = Duration::from_secs(120);
    let all = eventually("all are done", patience, words, |all| all.len() == 3 * count);
    kubectl.run("delete pods -l app=fresh --grace-period=1 --timeout=120s");
    all
}

#[test]
fn fresh_pods_find_names_at_once() {
    laboratory_of("L5", || {
        let number = env::var("ROADSTEAD_FRESH_PODS").ok().and_then(|text| text.parse().ok());
        let number: usize = number.unwrap_or(50);
        the_world();
        website();
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply(WEB);
        kubectl.run("wait --for=condition=Ready --timeout=60s -n other pod web");
        let load = Load::begin();
        let mut all = Vec::new();
        for from in (0..number).step_by(BATCH) {
            all.extend(run_batch(&kubectl, from, BATCH.min(number - from)));
        }
        drop(load);
        let unresolved = all.iter().filter(|code| *code == UNRESOLVED).count();
        let failed = all.iter().filter(|code| *code != "0").count();
        eprintln!("{number} pods, {} lookups, {unresolved} names not found", all.len());
        assert_eq!((unresolved, failed), (0, 0), "of {} lookups", all.len());
    });
}
