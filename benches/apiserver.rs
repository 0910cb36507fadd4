//! The API server under load, over HTTPS, from a second process.
//!
//! `cargo bench -p roadstead --bench apiserver -- [KUBECONFIG]` measures the server that the
//! kubeconfig names, or starts our own release binary on a fresh data directory. Sizes come from
//! `ROADSTEAD_BENCH_SIZES` (default 1000,10000). Every row has the size in it, so growth shows;
//! for a ratio run the same command against another server on the same machine, with the ids of
//! its processes in `ROADSTEAD_BENCH_PIDS` (its memory is the sum of theirs).
//!
//! The load comes from sixteen connections that each wait for an answer before they ask again.
//! They speak plain HTTP/1.1 and do not look into the answers, so that the server is what is
//! measured.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let kubeconfig = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    runtime.block_on(async {
        let (server, kubeconfig) = match kubeconfig {
            Some(path) => (None, path.into()),
            None => start(),
        };
        let pids = match &server {
            Some(server) => vec![server.0.id().to_string()],
            None => named_pids(),
        };
        run(&pids, &kubeconfig).await;
        drop(server);
    });
}

fn named_pids() -> Vec<String> {
    let text = std::env::var("ROADSTEAD_BENCH_PIDS").unwrap_or_default();
    text.split(',').filter(|pid| !pid.is_empty()).map(str::to_owned).collect()
}

struct Server(Child, #[allow(dead_code)] tempfile::TempDir);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> (Option<Server>, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let child = Command::new(env!("CARGO_BIN_EXE_roadstead"))
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
    (Some(Server(child, directory)), kubeconfig)
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

async fn run(pids: &[String], kubeconfig: &Path) {
    let config = config(kubeconfig).await;
    let client = Client::try_from(config.clone()).unwrap();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(&config).await);
    }
    println!(
        "{:<34} {:>9} {:>12} {:>9} {:>9}",
        "operation", "objects", "per second", "p50 ms", "p99 ms"
    );
    let sizes = std::env::var("ROADSTEAD_BENCH_SIZES").unwrap_or_else(|_| "1000,10000".into());
    let mut made = 0;
    for size in sizes.split(',').map(|size| size.parse::<u64>().unwrap()) {
        let load = &mut connections;
        let create = move |n| Call::new(Method::POST, MAPS.into()).with(&map(made + n, "x"));
        row("create ConfigMap", size, size - made, load, create).await;
        made = size;
        let services = 2_000;
        let create = move |n| {
            Call::new(Method::POST, SERVICES.into()).with(&service(&format!("s{size}-{n}")))
        };
        row("create Service", size, services, load, create).await;
        memory("memory, objects created", size, pids);
        let some = move |n: u64| n * 7919 % size;
        let get = move |n| Call::new(Method::GET, format!("{MAPS}/m{}", some(n)));
        row("get", size, 20_000, load, get).await;
        let list = |_| Call::new(Method::GET, format!("{MAPS}?limit=500"));
        row("list 500 ConfigMaps", size, 500, load, list).await;
        let list = |_| Call::new(Method::GET, format!("{SERVICES}?limit=500"));
        row("list 500 Services", size, 500, load, list).await;
        let update = move |n: u64| {
            let body = map(some(n), &n.to_string());
            Call::new(Method::PUT, format!("{MAPS}/m{}", some(n))).with(&body)
        };
        row("update", size, 5_000, load, update).await;
        let patch = move |n: u64| {
            let body = json!({"data": {"value": format!("p{n}")}});
            Call::new(Method::PATCH, format!("{MAPS}/m{}", some(n))).with(&body)
        };
        row("patch (merge)", size, 5_000, load, patch).await;
        fan_out(&client, size).await;
        memory("memory, with all that history", size, pids);
        let delete = move |n| Call::new(Method::DELETE, format!("{SERVICES}/s{size}-{n}"));
        row("delete Service", size, services, load, delete).await;
    }
}

/// Prints the resident memory of the server.
fn memory(name: &str, size: u64, pids: &[String]) {
    let memory = pids.iter().map(|pid| resident(pid)).sum::<u64>();
    println!("{name:<34} {size:>9} {:>9} MB", memory / 1024);
}

/// The resident memory of a process, in KiB.
fn resident(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
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

/// Carries out `count` calls over all connections and prints rate and latencies.
async fn row<W>(name: &str, size: u64, count: u64, connections: &mut Vec<Connection>, call: W)
where
    W: Fn(u64) -> Call + Clone + Send + 'static,
{
    let next = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let tasks: Vec<_> = connections
        .drain(..)
        .map(|mut connection| {
            let (next, call) = (next.clone(), call.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return (connection, times);
                    }
                    let call = call(number);
                    let begin = Instant::now();
                    connection.ask(call).await;
                    times.push(begin.elapsed());
                }
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        let (connection, these) = task.await.unwrap();
        connections.push(connection);
        times.extend(these);
    }
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    times.sort();
    let at =
        |share: usize| times[(times.len() * share / 100).min(times.len() - 1)].as_secs_f64() * 1e3;
    println!("{name:<34} {size:>9} {rate:>12.0} {:>9.2} {:>9.2}", at(50), at(99));
}

/// One change, told to many watchers: the time until the last has it.
async fn fan_out(client: &Client, size: u64) {
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
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
    println!("{name:<34} {size:>9} {:>12} {median:>9.2}", "");
}
