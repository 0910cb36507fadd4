//! The endpoint controllers at scale: from a pod that becomes ready to the slice that says so.
//!
//! `cargo bench -p roadstead --bench controllers` starts our API server in memory in this process
//! and the controllers of endpoints beside it. Sizes come from `ROADSTEAD_BENCH_SIZES` (Services,
//! default 100,1000,10000), each with `ROADSTEAD_BENCH_PODS` pods (default 10). Then one Service of
//! 5,000 pods, and a rolling update of 1,000: what watchers of slices and watchers of Endpoints
//! have to read. CPU and memory are those of the whole process, API server and clients included.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use kube::Client;
use roadstead_api::key::ObjectKey;
use roadstead_controllers::{Settings, endpoints::Part};
use roadstead_plan::backend::Backend;
use roadstead_server::api::{self, User};
use roadstead_server::bootstrap;
use roadstead_server::local::Local;
use roadstead_server::tokens::Tokens;
use roadstead_store::store::Store;
use roadstead_watch::write::{Collection, Write, read};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const PODS: Collection = Collection::of::<Backend>();
const CONCURRENCY: usize = 32;
const SAMPLES: usize = 400;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let sizes = std::env::var("ROADSTEAD_BENCH_SIZES").unwrap_or_else(|_| "100,1000,10000".into());
    let pods = std::env::var("ROADSTEAD_BENCH_PODS").map_or(10, |text| text.parse().unwrap());
    println!(
        "{:<44} {:>9} {:>9} {:>9} {:>9}",
        "pod ready → slice written", "services", "pods", "p50 ms", "p99 ms"
    );
    for size in sizes.split(',').map(|size| size.parse::<usize>().unwrap()) {
        let cluster = Cluster::start(&[Part::Slices, Part::Endpoints, Part::Mirror]).await;
        cluster.fill(size, pods).await;
        let cpu = cpu_seconds();
        cluster.latency("slices and Endpoints", size, pods).await;
        let busy = cpu_seconds() - cpu;
        println!(
            "{:<44} {size:>9} {:>9} {:>6.0} MiB {:>5.2} ms",
            "  memory of all; CPU of all per pod event",
            size * pods,
            memory_mib(),
            busy * 1e3 / SAMPLES as f64
        );
        let idle = cpu_seconds();
        tokio::time::sleep(Duration::from_secs(5)).await;
        println!(
            "{:<44} {size:>9} {:>9} {:>7.2} %",
            "  CPU when nothing happens",
            size * pods,
            (cpu_seconds() - idle) * 20.0
        );
    }
    let cluster = Cluster::start(&[Part::Slices]).await;
    cluster.fill(1, 5_000).await;
    cluster.latency("one big Service, slices alone", 1, 5_000).await;
    drop(cluster);
    let cluster = Cluster::start(&[Part::Slices, Part::Endpoints, Part::Mirror]).await;
    cluster.fill(1, 5_000).await;
    cluster.latency("one big Service, slices and Endpoints", 1, 5_000).await;
    drop(cluster);
    rolling_update().await;
}

struct Cluster {
    client: Client,
    stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Cluster {
    async fn start(parts: &[Part]) -> Self {
        let config = api::Config {
            service_range: "10.96.0.0/12".parse().unwrap(),
            advertise: None,
            audit: None,
        };
        let api = api::Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
        bootstrap::run(&api).await.unwrap();
        let client = Client::new(Local::new(api, User::component()), "default");
        let stop = CancellationToken::new();
        let mut settings = Settings::default();
        settings.endpoints.parts = parts.iter().copied().collect();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}});
        let nodes = Collection { api_version: "v1", kind: "Node", plural: "nodes" };
        Write::create_value(nodes, "", &node).send(&client).await.unwrap();
        let (cloned, metrics) = (client.clone(), settings.metrics.clone());
        let work = roadstead_controllers::endpoints::run(cloned, settings.endpoints, metrics);
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! { () = stopped.cancelled() => {}, () = work => {} }
        });
        Self { client, stop }
    }

    /// Makes Services with ready pods, and waits until the slices say so.
    async fn fill(&self, services: usize, pods: usize) {
        let collection = Collection { api_version: "v1", kind: "Service", plural: "services" };
        let all = (0..services).map(|service| {
            let object = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("s{service}")},
                "spec": {"selector": {"app": format!("s{service}"), "env": "prod"},
                    "ports": [{"port": 80, "targetPort": 8080}]}});
            Write::create_value(collection, "default", &object)
        });
        let all: Vec<_> =
            all.chain((0..services * pods).flat_map(|number| pod(number / pods, number))).collect();
        send_all(&self.client, all).await;
        loop {
            let ready = self.endpoints().await;
            if ready == services * pods {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn endpoints(&self) -> usize {
        let list: Value =
            read(&self.client, "/apis/discovery.k8s.io/v1/endpointslices").await.unwrap();
        let slices = list["items"].as_array().unwrap().iter();
        let held = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        held.filter(|endpoint| endpoint["conditions"]["ready"] == true).count()
    }

    /// Flips pods one after the other and measures until the slice follows.
    async fn latency(&self, what: &str, services: usize, pods: usize) {
        let (send, mut seen) = mpsc::unbounded_channel();
        let watcher = tokio::spawn(watch(self.client.clone(), "endpointslices", move |event| {
            let endpoints = event["object"]["endpoints"].as_array().into_iter().flatten();
            let waiting = endpoints.filter(|e| e["conditions"]["ready"] == false);
            let names = waiting.filter_map(|e| e["targetRef"]["name"].as_str().map(str::to_owned));
            let _ = send.send((Instant::now(), names.collect::<BTreeSet<_>>()));
        }));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut times = Vec::new();
        for sample in 0..SAMPLES {
            let number = sample * 7919 % (services * pods);
            let name = format!("p{number}");
            while seen.try_recv().is_ok() {}
            ready(&name, false).send(&self.client).await.unwrap();
            let began = Instant::now();
            loop {
                let (at, waiting) = seen.recv().await.unwrap();
                if waiting.contains(&name) {
                    times.push(at.saturating_duration_since(began).as_secs_f64() * 1e3);
                    break;
                }
            }
            ready(&name, true).send(&self.client).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        watcher.abort();
        times.sort_by(f64::total_cmp);
        let percentile = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        println!(
            "{what:<44} {services:>9} {:>9} {:>9.2} {:>9.2}",
            services * pods,
            percentile(0.5),
            percentile(0.99)
        );
    }
}

/// A thousand pods of one Service are replaced, ten at a time.
async fn rolling_update() {
    let cluster = Cluster::start(&[Part::Slices, Part::Endpoints, Part::Mirror]).await;
    cluster.fill(1, 1_000).await;
    let counters: Vec<Arc<std::sync::Mutex<(usize, usize)>>> =
        (0..2).map(|_| Arc::default()).collect();
    for (kind, counter) in ["endpointslices", "endpoints"].into_iter().zip(&counters) {
        let counter = counter.clone();
        tokio::spawn(watch_sizes(cluster.client.clone(), kind, move |bytes| {
            let mut counter = counter.lock().unwrap();
            *counter = (counter.0 + 1, counter.1 + bytes);
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = Instant::now();
    for step in 0..100 {
        let new: Vec<_> = (0..10).flat_map(|n| pod(0, 10_000 + step * 10 + n)).collect();
        send_all(&cluster.client, new).await;
        let old = (0..10).map(|n| format!("p{}", step * 10 + n));
        let old = old.map(|name| Write::delete_now(PODS, ObjectKey::new("default", name), None));
        send_all(&cluster.client, old.collect()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!(
        "\nrolling update of 1,000 pods, 10 at a time, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    for (kind, counter) in ["EndpointSlices", "Endpoints"].into_iter().zip(&counters) {
        let (events, bytes) = *counter.lock().unwrap();
        println!(
            "  {kind:<16} {events:>6} events, {:>9.2} MiB to every watcher",
            bytes as f64 / 1048576.0
        );
    }
}

/// The writes that make a pod and make it ready.
fn pod(service: usize, number: usize) -> [Write; 2] {
    let name = format!("p{number}");
    let object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": format!("s{service}"), "env": "prod"}},
        "spec": {"nodeName": "node", "containers": [{"name": "c", "image": "x"}]}});
    [Write::create_value(PODS, "default", &object), ready(&name, true)]
}

fn ready(name: &str, is_ready: bool) -> Write {
    let number: u32 = name[1..].parse().unwrap();
    let address = std::net::Ipv4Addr::from(0x0af4_0000 + number);
    let status = if is_ready { "True" } else { "False" };
    let patch = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": status}]}});
    Write::merge(PODS, ObjectKey::new("default", name), &patch).to("status")
}

/// Sends pairs of writes, several at a time; writes of one object stay in order.
async fn send_all(client: &Client, writes: Vec<Write>) {
    let lanes: Vec<Vec<Write>> = writes.chunks(2).map(<[Write]>::to_vec).collect();
    futures::stream::iter(lanes)
        .for_each_concurrent(CONCURRENCY, |lane| async move {
            for write in lane {
                write.send(client).await.unwrap();
            }
        })
        .await;
}

async fn watch(client: Client, plural: &str, mut take: impl FnMut(Value)) {
    lines(client, plural, |line| take(serde_json::from_str(line).unwrap())).await;
}

async fn watch_sizes(client: Client, plural: &'static str, mut take: impl FnMut(usize)) {
    lines(client, plural, |line| take(line.len())).await;
}

/// The lines of a watch that starts now.
async fn lines(client: Client, plural: &str, mut take: impl FnMut(&str)) {
    let group = if plural == "endpoints" { "/api/v1" } else { "/apis/discovery.k8s.io/v1" };
    let list: Value = read(&client, &format!("{group}/{plural}?limit=1")).await.unwrap();
    let from = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{group}/{plural}?watch=true&resourceVersion={from}");
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let stream = client.request_stream(request).await.unwrap();
    let mut lines = stream.lines();
    while let Ok(Some(line)) = lines.try_next().await {
        take(&line);
    }
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
