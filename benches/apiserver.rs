//! The API server under load, over HTTPS, from a second process.
//!
//! `cargo bench -p roadstead --bench apiserver` starts our release binary on a fresh data directory
//! and measures it. `ROADSTEAD_BENCH_SIZES` says around which numbers of objects (default
//! 1000,10000,100000), so that growth shows. `ROADSTEAD_BENCH_PEER` names the kubeconfig of another
//! server on this machine, a kube-apiserver with etcd for example, and `ROADSTEAD_BENCH_PEER_PIDS`
//! the ids of its processes, separated by commas: before each of our sizes it is measured in the
//! same way, around the first size, and our rows end with how many times as fast we are (for
//! memory: what part of the peer's we need). Whichever server is not measured is stopped meanwhile.
//!
//! The load comes from sixteen connections that each wait for an answer before they ask again.
//! They speak plain HTTP/1.1 and do not look into the answers, are served by one thread, and all
//! that they will send is made before the clock starts: on a machine with few processors, the time
//! that the load takes is missing for the server, and the faster server misses it more. `cpu` is the time that the server's processes spend on one request; on a busy machine
//! it says more than the rate.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, WatchParams};
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_rustls::TlsConnector;

const CONNECTIONS: usize = 16;
const WATCHERS: usize = 1_000;
/// How many are created to measure how fast that is.
const CREATIONS: u64 = 4_000;
const SERVICES_MADE: u64 = 2_000;
/// Memory is compared at sixteen thousand objects: so many ConfigMaps, and the rest Services.
const FILLED: u64 = 14_000;
/// How long servers have to give back what they no longer need.
const CALM: Duration = Duration::from_secs(3);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let sizes = variable("ROADSTEAD_BENCH_SIZES").unwrap_or_else(|| "1000,10000,100000".into());
    let sizes: Vec<u64> = sizes.split(',').map(|size| size.parse().unwrap()).collect();
    let pids = variable("ROADSTEAD_BENCH_PEER_PIDS").unwrap_or_default();
    let pids: Vec<_> = pids.split(',').filter(|pid| !pid.is_empty()).map(Into::into).collect();
    runtime.block_on(async {
        let mut peer = match variable("ROADSTEAD_BENCH_PEER") {
            Some(kubeconfig) => Some(Bench::of("peer", Path::new(&kubeconfig), pids).await),
            None => None,
        };
        let (server, kubeconfig) = Server::start();
        let pids = vec![server.process.id().to_string()];
        let mut ours = Bench::of("roadstead", &kubeconfig, pids).await;
        let mut filled = false;
        for &size in &sizes {
            let fill = size > FILLED && !filled;
            if let Some(peer) = &mut peer {
                signal(&ours.pids, "-STOP");
                if fill {
                    peer.fill().await;
                }
                peer.around(sizes[0]).await;
                signal(&peer.pids, "-STOP");
                signal(&ours.pids, "-CONT");
                ours.peer.clone_from(&peer.figures);
            }
            if fill {
                ours.fill().await;
                filled = true;
            }
            ours.around(size).await;
            if let Some(peer) = &peer {
                signal(&peer.pids, "-CONT");
                tokio::time::sleep(CALM).await;
            }
        }
    });
}

/// Stops processes, or lets them go on; what they have written is on disk then.
fn signal(pids: &[String], signal: &str) {
    let sent = Command::new("kill").arg(signal).args(pids).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill {signal} {pids:?}");
    let _ = Command::new("sync").status();
}

/// Our own server, until this is dropped.
struct Server {
    process: Child,
    _directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start() -> (Self, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let process = Command::new(env!("CARGO_BIN_EXE_roadstead"))
            .args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(directory.path().join("data"))
            .arg("--kubeconfig-out")
            .arg(&kubeconfig)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !kubeconfig.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        (Self { process, _directory: directory }, kubeconfig)
    }
}

async fn config(kubeconfig: &Path) -> kube::Config {
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    kube::Config::from_custom_kubeconfig(config, &options).await.unwrap()
}

/// One connection of the load.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    config: kube::Config,
    host: String,
}

impl Connection {
    async fn open(config: &kube::Config) -> Self {
        let host = config.cluster_url.authority().unwrap().to_string();
        let name = config.cluster_url.host().unwrap().to_owned();
        let mut tls = config.rustls_client_config().unwrap();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let stream = tokio::net::TcpStream::connect(&host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connector = TlsConnector::from(Arc::new(tls));
        let stream = connector.connect(name.try_into().unwrap(), stream).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender, config: config.clone(), host }
    }

    async fn ask(&mut self, call: Call) {
        let Call { method, path, body } = call;
        // Servers may close a connection after some time.
        if self.sender.ready().await.is_err() {
            *self = Self::open(&self.config.clone()).await;
        }
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(&path)
            .header("host", &self.host)
            .header("content-type", media)
            .body(Full::new(body))
            .unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let code = response.status();
        let mut body = response.into_body();
        let mut first = Bytes::new();
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap_or_default();
            if first.is_empty() {
                first = data;
            }
        }
        assert!(code.is_success(), "{path}: {code} {}", String::from_utf8_lossy(&first));
    }
}

/// A request of the load.
struct Call {
    method: Method,
    path: String,
    body: Bytes,
}

impl Call {
    fn new(method: Method, path: String) -> Self {
        Self { method, path, body: Bytes::new() }
    }

    fn with(mut self, body: &Value) -> Self {
        self.body = body.to_string().into();
        self
    }
}

/// What was measured, by name.
type Figures = BTreeMap<String, f64>;

/// One server under load.
struct Bench {
    name: &'static str,
    client: Client,
    connections: Vec<Connection>,
    /// The processes of the server.
    pids: Vec<String>,
    figures: Figures,
    /// What ours are compared with.
    peer: Figures,
    /// How many ConfigMaps there are.
    made: u64,
    /// How many times everything has been measured.
    passes: u64,
}

impl Bench {
    async fn of(name: &'static str, kubeconfig: &Path, pids: Vec<String>) -> Self {
        let config = config(kubeconfig).await;
        let client = Client::try_from(config.clone()).unwrap();
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Connection::open(&config).await);
        }
        let (figures, peer) = (Figures::new(), Figures::new());
        Self { name, client, connections, pids, figures, peer, made: 0, passes: 0 }
    }

    /// Everything that clients do, around a number of objects.
    async fn around(&mut self, size: u64) {
        self.reconnect().await;
        self.head();
        self.passes += 1;
        let pass = self.passes;
        self.grow(size).await;
        let made = self.made;
        let create = move |n| Call::new(Method::POST, MAPS.into()).with(&map(made + n, "x"));
        self.row("create ConfigMap", size, CREATIONS, create).await;
        self.made += CREATIONS;
        let create = move |n| {
            Call::new(Method::POST, SERVICES.into()).with(&service(&format!("s{pass}-{n}")))
        };
        self.row("create Service", size, SERVICES_MADE, create).await;
        let some = move |n: u64| n * 7919 % size;
        let get = move |n| Call::new(Method::GET, format!("{MAPS}/m{}", some(n)));
        self.row("get", size, 10_000, get).await;
        let list = |_| Call::new(Method::GET, format!("{MAPS}?limit=500"));
        self.row("list 500 ConfigMaps", size, 500, list).await;
        let list = |_| Call::new(Method::GET, format!("{SERVICES}?limit=500"));
        self.row("list 500 Services", size, 500, list).await;
        let update = move |n: u64| {
            let body = map(some(n), &n.to_string());
            Call::new(Method::PUT, format!("{MAPS}/m{}", some(n))).with(&body)
        };
        self.row("update", size, 4_000, update).await;
        let patch = move |n: u64| {
            let body = json!({"data": {"value": format!("p{n}")}});
            Call::new(Method::PATCH, format!("{MAPS}/m{}", some(n))).with(&body)
        };
        self.row("patch (merge)", size, 4_000, patch).await;
        self.fan_out(size).await;
        let delete = move |n| Call::new(Method::DELETE, format!("{SERVICES}/s{pass}-{n}"));
        self.row("delete Service", size, SERVICES_MADE, delete).await;
        self.memory("memory", size).await;
    }

    fn head(&self) {
        println!(
            "\n{:<26} {:>8} {:>10} {:>8} {:>8} {:>8} {:>8}",
            self.name, "objects", "per s", "p50 ms", "p99 ms", "cpu µs", "x peer"
        );
    }

    /// Opens all connections anew: servers close those that were silent while another was measured.
    async fn reconnect(&mut self) {
        for connection in &mut self.connections {
            *connection = Connection::open(&connection.config.clone()).await;
        }
    }

    /// Makes ConfigMaps until there are so many.
    async fn grow(&mut self, size: u64) {
        let made = self.made;
        let create = |n| Call::new(Method::POST, MAPS.into()).with(&map(n, "x"));
        for first in (made..size).step_by(CREATIONS as usize) {
            let numbers = first..size.min(first + CREATIONS);
            load(&mut self.connections, numbers.map(create).collect()).await;
        }
        self.made = made.max(size);
    }

    /// The memory that is compared: at a fixed number of objects, after the load before.
    async fn fill(&mut self) {
        self.reconnect().await;
        self.head();
        self.grow(FILLED).await;
        let create = |n| Call::new(Method::POST, SERVICES.into()).with(&service(&format!("f{n}")));
        load(&mut self.connections, (0..SERVICES_MADE).map(create).collect()).await;
        self.memory("memory", self.made + SERVICES_MADE).await;
        let delete = |n| Call::new(Method::DELETE, format!("{SERVICES}/f{n}"));
        load(&mut self.connections, (0..SERVICES_MADE).map(delete).collect()).await;
    }

    /// Carries out `count` calls and prints rate, latencies and what they cost. The rate is the
    /// median of five parts, so that a moment in which the machine does something else, or its disk,
    /// does not decide it.
    async fn row(&mut self, name: &str, size: u64, count: u64, call: impl Fn(u64) -> Call) {
        let mut calls: Vec<_> = (0..count).map(call).collect();
        let (mut times, mut rates, cpu) = (Vec::new(), Vec::new(), self.cpu());
        let part = calls.len() / 5;
        while !calls.is_empty() {
            let rest = calls.split_off(part.min(calls.len()));
            let (begin, count) = (Instant::now(), calls.len());
            times.extend(load(&mut self.connections, calls).await);
            rates.push(count as f64 / begin.elapsed().as_secs_f64());
            calls = rest;
        }
        rates.sort_by(f64::total_cmp);
        let rate = rates[rates.len() / 2];
        let cpu = (self.cpu() - cpu) * 1e6 / count as f64;
        times.sort();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
        let peer = self.compare(name, rate);
        println!(
            "{name:<26} {size:>8} {rate:>10.0} {:>8.2} {:>8.2} {cpu:>8.0} {peer:>8}",
            at(50),
            at(99)
        );
    }

    /// Keeps a figure; returns how many times that of the peer it is.
    fn compare(&mut self, name: &str, figure: f64) -> String {
        self.figures.insert(name.to_owned(), figure);
        self.peer.get(name).map_or(String::new(), |peer| format!("{:.2}", figure / peer))
    }

    /// Prints the resident memory of the server.
    async fn memory(&mut self, name: &str, objects: u64) {
        tokio::time::sleep(CALM).await;
        let kilobytes = self.pids.iter().map(|pid| resident(pid)).sum::<u64>();
        let megabytes = kilobytes as f64 / 1024.0;
        let peer = self.compare(&format!("{name} at {objects}"), megabytes);
        println!("{name:<26} {objects:>8} {megabytes:>7.1} MB {:>26} {peer:>8}", "");
    }

    /// The time that the server's processes have spent so far, in seconds.
    fn cpu(&self) -> f64 {
        self.pids.iter().map(|pid| spent(pid)).sum()
    }

    /// One change, told to many watchers: the time until the last has it.
    async fn fan_out(&mut self, size: u64) {
        let maps = Api::<ConfigMap>::default_namespaced(self.client.clone());
        let mut watchers = Vec::new();
        let params = WatchParams::default().fields("metadata.name=m0").timeout(60);
        let version = maps.get("m0").await.unwrap().metadata.resource_version.unwrap();
        for _ in 0..WATCHERS {
            watchers.push(maps.watch(&params, &version).await.unwrap().boxed());
        }
        let mut times = Vec::new();
        for round in 0..5 {
            let begin = Instant::now();
            let patch = Patch::Merge(json!({"data": {"value": format!("fan{round}")}}));
            maps.patch("m0", &PatchParams::default(), &patch).await.unwrap();
            for watcher in &mut watchers {
                watcher.next().await.unwrap().unwrap();
            }
            times.push(begin.elapsed());
        }
        times.sort();
        let median = times[2].as_secs_f64() * 1e3;
        let name = format!("1 change to {WATCHERS} watchers");
        let peer = self.compare(&name, 1e3 / median);
        println!("{name:<26} {size:>8} {:>10} {median:>8.2} {:>17} {peer:>8}", "", "");
        let kilobytes = self.pids.iter().map(|pid| resident(pid)).sum::<u64>();
        println!("{:<26} {size:>8} {:>7} MB", "memory, with the watchers", kilobytes / 1024);
    }
}

/// The resident memory of a process, in KiB.
fn resident(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

/// The time that a process has spent, in seconds.
fn spent(pid: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything; 11 fields after it come user and system time,
    // in hundredths of a second.
    let fields: Vec<_> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|f| f.parse::<f64>().ok());
    (number(11).unwrap_or(0.0) + number(12).unwrap_or(0.0)) / 100.0
}

fn map(number: u64, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("m{number}"), "labels": {"app": "bench"}},
        "data": {"value": value, "filler": "x".repeat(600)}})
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}})
}

/// Carries out calls over all connections; returns how long each took.
async fn load(connections: &mut Vec<Connection>, calls: Vec<Call>) -> Vec<Duration> {
    let calls = Arc::new(Mutex::new(calls.into_iter()));
    let tasks: Vec<_> = connections
        .drain(..)
        .map(|mut connection| {
            let calls = calls.clone();
            let next = move || calls.lock().unwrap().next();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while let Some(call) = next() {
                    let begin = Instant::now();
                    connection.ask(call).await;
                    times.push(begin.elapsed());
                }
                (connection, times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        let (connection, these) = task.await.unwrap();
        connections.push(connection);
        times.extend(these);
    }
    times
}
