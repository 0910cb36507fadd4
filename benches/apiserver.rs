//! The API server under load, over HTTPS, from a second process.
//!
//! `cargo bench -p roadstead --bench apiserver -- [KUBECONFIG]` measures the server that the
//! kubeconfig names, or starts our own release binary on a fresh data directory. Sizes come from
//! `ROADSTEAD_BENCH_SIZES` (default 1000,10000). Every row has the size in it, so growth shows;
//! for a ratio run the same command against another server on the same machine.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::fmt::Debug;
use std::future::Future;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const CONNECTIONS: u64 = 16;
const WATCHERS: usize = 1_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let kubeconfig = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    runtime.block_on(async {
        let (server, kubeconfig) = match kubeconfig {
            Some(path) => (None, path.into()),
            None => start(),
        };
        run(server.as_ref().map(|server| server.0.id()), kubeconfig).await;
        drop(server);
    });
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

async fn client(kubeconfig: &PathBuf) -> Client {
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

async fn run(pid: Option<u32>, kubeconfig: PathBuf) {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(client(&kubeconfig).await);
    }
    println!(
        "{:<34} {:>9} {:>12} {:>9} {:>9}",
        "operation", "objects", "per second", "p50 ms", "p99 ms"
    );
    let sizes = std::env::var("ROADSTEAD_BENCH_SIZES").unwrap_or_else(|_| "1000,10000".into());
    let mut made = 0;
    for size in sizes.split(',').map(|size| size.parse::<u64>().unwrap()) {
        row("create ConfigMap", size, size - made, &clients, move |client, n| {
            let map = map(made + n, "x");
            async move { create(client, map).await }
        })
        .await;
        made = size;
        let services = 500;
        row("create Service", size, services, &clients, move |client, n| {
            let service = service(&format!("s{size}-{n}"));
            async move { create(client, service).await }
        })
        .await;
        row("get", size, 4_000, &clients, move |client, n| async move {
            api::<ConfigMap>(client).get(&format!("m{}", n * 7919 % size)).await.map(drop)
        })
        .await;
        row("list 500", size, 200, &clients, |client, _| async move {
            let page = ListParams::default().limit(500);
            api::<ConfigMap>(client).list(&page).await.map(drop)
        })
        .await;
        row("update", size, 2_000, &clients, move |client, n| async move {
            let name = n * 7919 % size;
            let params = PostParams::default();
            api(client)
                .replace(&format!("m{name}"), &params, &map(name, &n.to_string()))
                .await
                .map(drop)
        })
        .await;
        row("patch (merge)", size, 2_000, &clients, move |client, n| async move {
            let patch = json!({"data": {"value": format!("p{n}")}});
            let name = format!("m{}", n * 7919 % size);
            let params = PatchParams::default();
            api::<ConfigMap>(client).patch(&name, &params, &Patch::Merge(patch)).await.map(drop)
        })
        .await;
        fan_out(&clients, size).await;
        if let Some(pid) = pid {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            println!("{:<34} {size:>9} {:>12}", "memory (RSS)", rss.unwrap_or("").trim());
        }
        row("delete Service", size, services, &clients, move |client, n| async move {
            let name = format!("s{size}-{n}");
            api::<Service>(client).delete(&name, &DeleteParams::default()).await.map(drop)
        })
        .await;
    }
}

fn api<K>(client: Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client, "default")
}

fn typed<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn map(number: u64, value: &str) -> ConfigMap {
    typed(json!({"metadata": {"name": format!("m{number}"), "labels": {"app": "bench"}},
        "data": {"value": value, "filler": "x".repeat(600)}}))
}

fn service(name: &str) -> Service {
    typed(json!({"metadata": {"name": name}, "spec": {"selector": {"app": name},
        "ports": [{"port": 80, "targetPort": 8080}]}}))
}

async fn create<K>(client: Client, object: K) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + serde::Serialize,
{
    api::<K>(client).create(&PostParams::default(), &object).await.map(drop)
}

/// Carries out `count` operations over all connections and prints rate and latencies.
async fn row<F, W>(name: &str, size: u64, count: u64, clients: &[Client], work: W)
where
    W: Fn(Client, u64) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), kube::Error>> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let tasks: Vec<_> = clients
        .iter()
        .map(|client| {
            let (client, next, work) = (client.clone(), next.clone(), work.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return times;
                    }
                    let begin = Instant::now();
                    work(client.clone(), number).await.unwrap();
                    times.push(begin.elapsed());
                }
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    times.sort();
    let at =
        |share: usize| times[(times.len() * share / 100).min(times.len() - 1)].as_secs_f64() * 1e3;
    println!("{name:<34} {size:>9} {rate:>12.0} {:>9.2} {:>9.2}", at(50), at(99));
}

/// One change, told to many watchers: the time until the last has it.
async fn fan_out(clients: &[Client], size: u64) {
    let mut watchers = Vec::new();
    let params = WatchParams::default().fields("metadata.name=m0").timeout(60);
    let now = api::<ConfigMap>(clients[0].clone()).get("m0").await.unwrap();
    let version = now.metadata.resource_version.unwrap();
    for index in 0..WATCHERS {
        let maps = api::<ConfigMap>(clients[index % clients.len()].clone());
        watchers.push(maps.watch(&params, &version).await.unwrap().boxed());
    }
    let mut times = Vec::new();
    for round in 0..5 {
        let begin = Instant::now();
        let maps = api::<ConfigMap>(clients[0].clone());
        maps.replace("m0", &PostParams::default(), &map(0, &format!("fan{round}"))).await.unwrap();
        for watcher in &mut watchers {
            watcher.next().await.unwrap().unwrap();
        }
        times.push(begin.elapsed());
    }
    times.sort();
    let median = times[2].as_secs_f64() * 1e3;
    println!(
        "{:<34} {size:>9} {:>12} {median:>9.2}",
        format!("1 change to {WATCHERS} watchers"),
        ""
    );
}
