//! The endpoint controllers at scale: from a pod that becomes ready to the slice that says so.
//!
//! `cargo bench -p roadstead-controllers` starts our API server in memory in this process and the
//! controllers of endpoints beside it. Sizes come from `ROADSTEAD_BENCH_SIZES` (Services, default
//! 100,1000,10000), each with `ROADSTEAD_BENCH_PODS` pods (default 10). Then one Service of
//! `ROADSTEAD_BENCH_BIG` pods (default 5,000), and a rolling update of `ROADSTEAD_BENCH_ROLL` pods
//! (default 1,000): what watchers of slices and watchers of Endpoints have to read. 0 leaves a part
//! out. CPU and memory are those of the whole process, API server, clients and this program
//! included.

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

/// What the binary uses, too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const PODS: Collection = Collection::of::<Backend>();
const ALL: [Part; 3] = [Part::Slices, Part::Endpoints, Part::Mirror];
const CONCURRENCY: usize = 32;
const SAMPLES: usize = 400;
const QUIET: Duration = Duration::from_secs(3);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let sizes = std::env::var("ROADSTEAD_BENCH_SIZES").unwrap_or_else(|_| "100,1000,10000".into());
    let (pods, big) = (number("ROADSTEAD_BENCH_PODS", 10), number("ROADSTEAD_BENCH_BIG", 5_000));
    println!(
        "{:<44} {:>9} {:>9} {:>9} {:>9}",
        "pod ready → slice written", "services", "pods", "p50 ms", "p99 ms"
    );
    for size in sizes.split(',').map(|size| size.parse::<usize>().unwrap()).filter(|&n| n > 0) {
        at_size(size, pods).await;
    }
    for (what, parts) in [
        ("one big Service, slices alone", &ALL[..1]),
        ("one big Service, slices and Endpoints", &ALL[..]),
    ] {
        if big > 0 {
            let cluster = Cluster::filled(1, big).await;
            cluster.control(parts, big).await;
            cluster.latency(what, 1, big).await;
        }
    }
    let pods = number("ROADSTEAD_BENCH_ROLL", 1_000);
    if pods > 0 {
        rolling_update(pods).await;
    }
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Many Services of the same size.
async fn at_size(size: usize, pods: usize) {
    let cluster = Cluster::filled(size, pods).await;
    let without = memory_mib();
    let began = Instant::now();
    cluster.control(&ALL, size * pods).await;
    let synced = began.elapsed().as_secs_f64();
    tokio::time::sleep(QUIET).await;
    let cpu = cpu_seconds();
    cluster.latency("slices and Endpoints", size, pods).await;
    let busy = cpu_seconds() - cpu;
    let idle = cpu_seconds();
    tokio::time::sleep(QUIET).await;
    let idle = (cpu_seconds() - idle) * 100.0 / QUIET.as_secs_f64();
    println!(
        "  first sync {synced:.1} s; CPU of all per pod event {:.2} ms, when nothing happens \
         {idle:.2} %; memory {:.0} MiB, before the controllers {without:.0} MiB",
        // Each sample is two changes of a pod.
        busy * 1e3 / (2 * SAMPLES) as f64,
        memory_mib(),
    );
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
    /// An API server with Services and their ready pods.
    async fn filled(services: usize, pods: usize) -> Self {
        let config = api::Config {
            service_range: "10.96.0.0/12".parse().unwrap(),
            advertise: None,
            audit: None,
        };
        let api = api::Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
        bootstrap::run(&api).await.unwrap();
        let client = Client::new(Local::new(api, User::component()), "default");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}});
        let nodes = Collection { api_version: "v1", kind: "Node", plural: "nodes" };
        Write::create_value(nodes, "", &node).send(&client).await.unwrap();
        let collection = Collection { api_version: "v1", kind: "Service", plural: "services" };
        let all = (0..services).map(|service| {
            let object = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("s{service}")},
                "spec": {"selector": {"app": format!("s{service}"), "env": "prod"},
                    "ports": [{"port": 80, "targetPort": 8080}]}});
            vec![Write::create_value(collection, "default", &object)]
        });
        send_all(&client, all).await;
        send_all(&client, (0..services * pods).map(|number| pod(number / pods, number))).await;
        Self { client, stop: CancellationToken::new() }
    }

    /// Starts the controllers, and waits until the slices have so many ready endpoints.
    async fn control(&self, parts: &[Part], endpoints: usize) {
        let mut settings = Settings::default();
        settings.endpoints.parts = parts.iter().copied().collect();
        let (client, metrics) = (self.client.clone(), settings.metrics.clone());
        let work = roadstead_controllers::endpoints::run(client, settings.endpoints, metrics);
        let stopped = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! { () = stopped.cancelled() => {}, () = work => {} }
        });
        while self.endpoints().await < endpoints {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// How many endpoints are ready, read in pages.
    async fn endpoints(&self) -> usize {
        let (mut count, mut token) = (0, String::new());
        loop {
            let path =
                format!("/apis/discovery.k8s.io/v1/endpointslices?limit=500&continue={token}");
            let list: Value = read(&self.client, &path).await.unwrap();
            let slices = list["items"].as_array().unwrap().iter();
            let held = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
            count += held.filter(|endpoint| endpoint["conditions"]["ready"] == true).count();
            match list["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() => token = next.to_owned(),
                _ => return count,
            }
        }
    }

    /// Flips pods one after the other and measures until the slice follows.
    async fn latency(&self, what: &str, services: usize, pods: usize) {
        let (send, mut seen) = mpsc::unbounded_channel();
        let watcher =
            tokio::spawn(watch(self.client.clone(), "endpointslices", move |at, event| {
                let endpoints = event["object"]["endpoints"].as_array().into_iter().flatten();
                let waiting = endpoints.filter(|e| e["conditions"]["ready"] == false);
                let names =
                    waiting.filter_map(|e| e["targetRef"]["name"].as_str().map(str::to_owned));
                let _ = send.send((at, names.collect::<BTreeSet<_>>()));
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

/// All pods of one Service are replaced, ten at a time.
async fn rolling_update(pods: usize) {
    let cluster = Cluster::filled(1, pods).await;
    cluster.control(&ALL, pods).await;
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
    for first in (0..pods).step_by(10) {
        send_all(&cluster.client, (first..first + 10).map(|n| pod(0, 2 * pods + n))).await;
        let old = (first..first + 10).map(|n| ObjectKey::new("default", format!("p{n}")));
        let old = old.map(|key| vec![Write::delete_now(PODS, key, None)]);
        send_all(&cluster.client, old).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(QUIET).await;
    println!(
        "\nrolling update of {pods} pods, 10 at a time, {:.1} s",
        (began.elapsed() - QUIET).as_secs_f64()
    );
    for (kind, counter) in ["EndpointSlices", "Endpoints"].into_iter().zip(&counters) {
        let (events, bytes) = *counter.lock().unwrap();
        println!(
            "  {kind:<16} {events:>6} writes, {:>9.2} MiB to every watcher",
            bytes as f64 / 1048576.0
        );
    }
}

/// The writes that make a pod and make it ready.
fn pod(service: usize, number: usize) -> Vec<Write> {
    let name = format!("p{number}");
    let object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": format!("s{service}"), "env": "prod"}},
        "spec": {"nodeName": "node", "containers": [{"name": "c", "image": "x"}]}});
    vec![Write::create_value(PODS, "default", &object), ready(&name, true)]
}

fn ready(name: &str, is_ready: bool) -> Write {
    let number: u32 = name[1..].parse().unwrap();
    let address = std::net::Ipv4Addr::from(0x0af4_0000 + number);
    let status = if is_ready { "True" } else { "False" };
    let patch = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": status}]}});
    Write::merge(PODS, ObjectKey::new("default", name), &patch).to("status")
}

/// Sends writes, several at a time; those of one lane stay in order.
async fn send_all(client: &Client, lanes: impl Iterator<Item = Vec<Write>>) {
    futures::stream::iter(lanes)
        .for_each_concurrent(CONCURRENCY, |lane| async move {
            for write in lane {
                write.send(client).await.unwrap();
            }
        })
        .await;
}

async fn watch(client: Client, plural: &str, mut take: impl FnMut(Instant, Value)) {
    lines(client, plural, |line| take(Instant::now(), serde_json::from_str(line).unwrap())).await;
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
