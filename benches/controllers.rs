//! Controllers at scale: from a pod that becomes ready to the slice that says so, and from a pod that
//! waits to the node that it is put on.
//!
//! `cargo bench -p roadstead-controllers` starts our API server in memory in this process and the
//! controllers of endpoints beside it. Sizes come from `ROADSTEAD_BENCH_SIZES` (Services, default
//! 100,1000,10000), each with `ROADSTEAD_BENCH_PODS` pods (default 10). Then one Service of
//! `ROADSTEAD_BENCH_BIG` pods (default 5,000), and a rolling update of `ROADSTEAD_BENCH_ROLL` pods
//! (default 1,000): what watchers of slices and watchers of Endpoints have to read. Last,
//! `ROADSTEAD_BENCH_SCHEDULE` pods (default 10,000) that all wait for one of `ROADSTEAD_BENCH_NODES` nodes
//! (default 5,000), and `ROADSTEAD_BENCH_WORKLOADS` StatefulSets, then Jobs, of three pods each (default 1,000),
//! whose pods are ready, or end, as soon as they are made. 0 leaves a part out. CPU and memory are those of the whole process, API server, clients and this program
//! included.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Client;
use roadstead_api::key::ObjectKey;
use roadstead_controllers::Settings;
use roadstead_plan::pod_view::PodView;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::identity::user::User;
use roadstead_server::transport::local::Local;
use roadstead_server::{api, bootstrap, config};
use roadstead_store::kv::Store;
use roadstead_watch::write::{Collection, Write, read};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// What the binary uses, too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const PODS: Collection = Collection::of::<PodView>();
const ALL: [&str; 3] = ["endpointslice", "endpoints", "endpointslice-mirroring"];
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
    let (pods, nodes) =
        (number("ROADSTEAD_BENCH_SCHEDULE", 10_000), number("ROADSTEAD_BENCH_NODES", 5_000));
    if pods > 0 && nodes > 0 {
        scheduling(pods, nodes).await;
    }
    let count = number("ROADSTEAD_BENCH_WORKLOADS", 1_000);
    if count > 0 {
        workloads(count).await;
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
    /// An API server.
    async fn empty() -> Self {
        let config = config::Config {
            service_range: "10.96.0.0/12".parse().unwrap(),
            advertise: None,
            audit: None,
        };
        let api = api::Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
        bootstrap::run(&api).await.unwrap();
        let client = Client::new(Local::new(api, User::component()), "default");
        Self { client, stop: CancellationToken::new() }
    }

    /// An API server with Services and their ready pods.
    async fn filled(services: usize, pods: usize) -> Self {
        let cluster = Self::empty().await;
        let client = cluster.client.clone();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}});
        let nodes = Collection::of::<Node>();
        Write::create_value(nodes, "", &node).send(&client).await.unwrap();
        let collection = Collection::of::<Service>();
        let all = (0..services).map(|service| {
            let object = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("s{service}")},
                "spec": {"selector": {"app": format!("s{service}"), "env": "prod"},
                    "ports": [{"port": 80, "targetPort": 8080}]}});
            vec![Write::create_value(collection.clone(), "default", &object)]
        });
        send_all(&client, all).await;
        send_all(&client, (0..services * pods).map(|number| pod(number / pods, number))).await;
        cluster
    }

    /// Starts the controllers, and waits until the slices have so many ready endpoints.
    async fn control(&self, names: &[&'static str], endpoints: usize) {
        let (client, stop) = (self.client.clone(), self.stop.clone());
        let settings = Settings::default();
        tokio::spawn(roadstead_controllers::run(names.to_vec(), client, settings, stop));
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

/// Pods that all wait for a node when the scheduler starts.
async fn scheduling(pods: usize, nodes: usize) {
    println!("\n{pods} pods wait for {nodes} nodes");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    for (what, is_particular) in
        [("they ask for processors", false), ("apart, even over zones", true)]
    {
        let cluster = Cluster::empty().await;
        send_all(&cluster.client, (0..nodes).map(node_with_room)).await;
        let all = (0..pods).map(|number| {
            let app = format!("g{}", number / 10);
            let group = json!({"matchLabels": {"app": app}});
            let mut spec = json!({"containers": [{"name": "c", "image": "x",
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]});
            if is_particular {
                let term = json!({"labelSelector": group, "topologyKey": "kubernetes.io/hostname"});
                spec["affinity"] = json!({"podAntiAffinity": {required: [term]}});
                spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "labelSelector": group,
                    "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "DoNotSchedule"}]);
            }
            let object = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
                "metadata": {"name": format!("p{number}"), "labels": {"app": app}}});
            vec![Write::create_value(PODS, "default", &object)]
        });
        send_all(&cluster.client, all).await;
        let (cpu, began) = (cpu_seconds(), Instant::now());
        let (client, stop) = (cluster.client.clone(), cluster.stop.clone());
        tokio::spawn(roadstead_controllers::run(
            vec!["scheduler"],
            client,
            Settings::default(),
            stop,
        ));
        while is_somebody_waiting(&cluster.client).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (seconds, busy) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        println!(
            "  {what:<26} {:>8.0} pods/s, CPU of all {:.2} ms per pod",
            pods as f64 / seconds,
            busy * 1e3 / pods as f64,
        );
    }
}

/// A kind that makes pods.
struct Workload {
    controller: &'static str,
    collection: Collection,
    spec: Value,
    /// What becomes of its pods.
    phase: &'static str,
    is_done: fn(&Value) -> bool,
}

/// Workloads of three pods each that are there when their controller starts.
async fn workloads(count: usize) {
    println!("\n{count} workloads of 3 pods each");
    let template = |policy: &str| {
        json!({"metadata": {"labels": {"app": "x"}},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "x"}]}})
    };
    let all = [
        Workload {
            controller: "statefulset",
            collection: Collection::of::<StatefulSet>(),
            spec: json!({"replicas": 3, "serviceName": "x", "template": template("Always"),
                "selector": {"matchLabels": {"app": "x"}}}),
            phase: "Running",
            is_done: |set| set["status"]["readyReplicas"] == 3,
        },
        Workload {
            controller: "job",
            collection: Collection::of::<Job>(),
            spec: json!({"completions": 3, "parallelism": 3, "template": template("Never")}),
            phase: "Succeeded",
            is_done: |job| {
                let conditions = job["status"]["conditions"].as_array().into_iter().flatten();
                conditions.into_iter().any(|own| own["type"] == "Complete")
            },
        },
    ];
    for workload in all {
        let (seconds, busy) = workload.run(count).await;
        println!(
            "  {:<26} {:>8.0} pods/s, CPU of all {:.2} ms per pod",
            workload.collection.plural,
            3.0 * count as f64 / seconds,
            busy * 1e3 / (3 * count) as f64,
        );
    }
}

impl Workload {
    /// How long it takes until all are done, and the time of the processors.
    async fn run(&self, count: usize) -> (f64, f64) {
        let cluster = Cluster::empty().await;
        let client = &cluster.client;
        let made = (0..count).map(|number| {
            let (api, kind) = (&self.collection.api_version, &self.collection.kind);
            let mut object = json!({"apiVersion": api, "kind": kind, "spec": self.spec,
                "metadata": {"name": format!("w{number}")}});
            // A Job chooses its own labels.
            if kind != "Job" {
                let app = json!({"app": format!("w{number}")});
                object["spec"]["selector"]["matchLabels"] = app.clone();
                object["spec"]["template"]["metadata"]["labels"] = app;
            }
            vec![Write::create_value(self.collection.clone(), "default", &object)]
        });
        send_all(client, made).await;
        let pods = tokio::spawn(run_pods(client.clone(), self.phase));
        let (send, mut seen) = mpsc::unbounded_channel();
        let is_done = self.is_done;
        let plural = self.collection.plural.clone().into_owned();
        let follower = client.clone();
        let watcher = tokio::spawn(async move {
            let tell = move |_, event: Value| {
                if is_done(&event["object"]) {
                    let _ = send.send(event["object"]["metadata"]["name"].to_string());
                }
            };
            watch(follower, &plural, tell).await;
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (cpu, began) = (cpu_seconds(), Instant::now());
        let (client, stop) = (client.clone(), cluster.stop.clone());
        let names = vec![self.controller];
        tokio::spawn(roadstead_controllers::run(names, client, Settings::default(), stop));
        let mut done = BTreeSet::new();
        while done.len() < count {
            done.insert(seen.recv().await.unwrap());
        }
        let took = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        watcher.abort();
        pods.abort();
        took
    }
}

/// Stands for all nodes: new pods are in this phase at once.
async fn run_pods(client: Client, phase: &'static str) {
    let (send, mut made) = mpsc::unbounded_channel::<String>();
    let tell = move |_, event: Value| {
        if event["type"] == "ADDED" {
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
            let _ = send.send(name.to_owned());
        }
    };
    tokio::spawn(watch(client.clone(), "pods", tell));
    let turns = Arc::new(Semaphore::new(CONCURRENCY));
    while let Some(name) = made.recv().await {
        let turn = turns.clone().acquire_owned().await.unwrap();
        let is_ready = if phase == "Running" { "True" } else { "False" };
        let patch = json!({"status": {"phase": phase,
            "conditions": [{"type": "Ready", "status": is_ready}]}});
        let write = Write::merge(PODS, ObjectKey::new("default", name), &patch).to("status");
        let client = client.clone();
        tokio::spawn(async move {
            write.send(&client).await.unwrap();
            drop(turn);
        });
    }
}

async fn is_somebody_waiting(client: &Client) -> bool {
    let path = "/api/v1/pods?limit=1&fieldSelector=spec.nodeName%3D";
    let list: Value = read(client, path).await.unwrap();
    !list["items"].as_array().unwrap().is_empty()
}

/// The writes that make a node of one of ten zones, and make it ready.
fn node_with_room(number: usize) -> Vec<Write> {
    let (name, nodes) = (format!("n{number}"), Collection::of::<Node>());
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("z{}", number % 10)}}});
    let status = json!({"status": {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let ready = Write::merge(nodes.clone(), ObjectKey::new("", &name), &status).to("status");
    vec![Write::create_value(nodes, "", &node), ready]
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
    let group = match plural {
        "endpoints" | "pods" => "/api/v1",
        "statefulsets" => "/apis/apps/v1",
        "jobs" => "/apis/batch/v1",
        _ => "/apis/discovery.k8s.io/v1",
    };
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
