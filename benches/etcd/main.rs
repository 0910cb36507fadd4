//! What API servers make of an etcd: its own rate of transactions, and what clients of one server get of it.
//! `benches/etcd/run` starts everything, and runs this for each part:
//!
//! - `raw URL`: creations of keys of 1 kB by 64 at a time, through our client; prints the rate.
//! - `load NAME ONE OTHER RAW PID=NAME…`: clients of the server of kubeconfig ONE, and a watch of that of OTHER.
//! - `fill ONE COUNT`: so many ConfigMaps of 1 kB.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use roadstead_etcd::client::Client;
use roadstead_etcd::member_url::MemberUrl;
use roadstead_etcd::messages::{Act, Compare, PutRequest, TxnOperation, TxnRequest};
use roadstead_etcd::tls::EtcdTls;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

const CLIENTS: usize = 64;
/// Where an object of that name goes, and the object.
type MakeObject = fn(&str) -> (&'static str, Value);

/// How many write while others read.
const WRITERS: usize = 16;
const LASTS: Duration = Duration::from_secs(5);
/// How many events are waited for, one after the other.
const EVENTS: usize = 500;
/// Of two thousand seven hundred node ports.
const NODE_PORTS: u64 = 1500;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let arguments: Vec<_> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    runtime.block_on(async {
        match &arguments[..] {
            ["raw", url] => raw(url).await,
            ["load", name, one, other, raw, pids @ ..] => {
                load(name, [one, other], raw.parse().unwrap(), pids).await;
            }
            ["fill", one, count] => fill(one, count.parse().unwrap()).await,
            _ => println!("benches/etcd/run runs this"),
        }
    });
}

/// Transactions through our client.
async fn raw(url: &str) {
    let tls = EtcdTls::default().read().unwrap();
    let client = Arc::new(Client::new(&[MemberUrl::parse(url).unwrap()], tls));
    let value = Bytes::from(vec![b'x'; 1000]);
    let (begin, mut tasks) = (Instant::now(), JoinSet::new());
    for number in 0..CLIENTS {
        let (client, value) = (client.clone(), value.clone());
        tasks.spawn(async move {
            let mut times = Vec::new();
            while begin.elapsed() < LASTS {
                let key = Bytes::from(format!("/bench/{number}/{}", times.len()));
                let put = PutRequest { key: key.clone(), value: value.clone(), lease: 0 };
                let txn = TxnRequest {
                    compare: vec![Compare::at_revision(key, 0)],
                    success: vec![TxnOperation { act: Some(Act::Put(put)) }],
                    failure: Vec::new(),
                };
                let asked = Instant::now();
                assert!(client.txn(&txn).await.unwrap().succeeded);
                times.push(asked.elapsed());
            }
            times
        });
    }
    let times = tasks.join_all().await.concat();
    println!("{:.0}", times.len() as f64 / begin.elapsed().as_secs_f64());
}

/// Processes, by their names.
struct Processes(Vec<(String, String)>);

impl Processes {
    /// How many seconds each has used of a processor.
    fn used(&self) -> Vec<f64> {
        let used = |(_, pid): &(String, String)| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
            let field = |at: usize| after.split_whitespace().nth(at)?.parse::<f64>().ok();
            (field(11).unwrap_or(0.0) + field(12).unwrap_or(0.0)) / 100.0
        };
        self.0.iter().map(used).collect()
    }

    /// How many microseconds each has used for one of so many, since then.
    fn since(&self, before: &[f64], count: usize) -> String {
        let used = self.used();
        let each = self.0.iter().zip(used.iter().zip(before));
        let each = each.map(|((name, _), (now, then))| {
            format!("{name} {:.0}", (now - then) * 1e6 / count.max(1) as f64)
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

async fn load(name: &str, [one, other]: [&str; 2], raw: f64, pids: &[&str]) {
    let pids = pids.iter().filter_map(|pair| pair.split_once('='));
    let processes = Processes(pids.map(|(pid, name)| (name.to_owned(), pid.to_owned())).collect());
    let (one, other) = (target(one).await, target(other).await);
    let stamp = std::process::id();
    println!("{name}: rate, latency, microseconds of processor time for each, by process");
    let writes: [(&str, Option<u64>, MakeObject); 3] = [
        ("create ConfigMap of 1 kB", None, |name| (MAPS, map(name, 1000))),
        ("create Service", None, |name| (SERVICES, service(name, "ClusterIP"))),
        ("create Service with node port", Some(NODE_PORTS), |name| {
            (SERVICES, service(name, "NodePort"))
        }),
    ];
    for (at, (what, most, object)) in writes.into_iter().enumerate() {
        let before = processes.used();
        let call = move |number| {
            let (path, object) = object(&format!("n{at}-{stamp}-{number}"));
            Call { method: Method::POST, path: path.into(), body: object.to_string().into() }
        };
        let (times, took) = run(&one, CLIENTS, most, call).await;
        let rate = times.len() as f64 / took.as_secs_f64();
        let used = processes.since(&before, times.len());
        println!(
            "  {what:<40} {rate:>6.0}/s  {:>3.0}% of etcd  {}  [{used}]",
            rate / raw * 100.0,
            latencies(times)
        );
    }
    reads(&one, stamp).await;
    events(&one, &other, stamp).await;
}

/// Reads of one object, from memory and not, beside those who write.
async fn reads(one: &Target, stamp: u32) {
    let body =
        move |number: u64| Bytes::from(map(&format!("r-{stamp}-{number}"), 1000).to_string());
    let object = move |number| Call { method: Method::POST, path: MAPS.into(), body: body(number) };
    run(one, 1, Some(1), object).await;
    for (what, query) in [("GET", ""), ("GET with resourceVersion=0", "?resourceVersion=0")] {
        for writers in [0, WRITERS] {
            let path = format!("{MAPS}/r-{stamp}-0{query}");
            let get = move |_| Call { method: Method::GET, path: path.clone(), body: Bytes::new() };
            let name = format!("w{}-{stamp}-{writers}", query.len());
            let write = move |number: u64| {
                let body = map(&format!("{name}-{number}"), 1000).to_string().into();
                Call { method: Method::POST, path: MAPS.into(), body }
            };
            let (read, _) = tokio::join!(run(one, 4, None, get), async {
                if writers > 0 {
                    run(one, writers, None, write).await;
                }
            });
            let rate = read.0.len() as f64 / read.1.as_secs_f64();
            let what = format!("{what}, 4 clients beside {writers} writers");
            println!("  {what:<55} {rate:>6.0}/s  {}", latencies(read.0));
        }
    }
}

/// How long it takes from a request to one server until a client of another is told.
async fn events(one: &Target, other: &Target, stamp: u32) {
    let mut writer = Connection::open(one).await;
    let mut watcher = Connection::open(other).await;
    let path = format!("{MAPS}?watch=true&labelSelector=bench={stamp}");
    let mut lines = watcher.send(Call { method: Method::GET, path, body: Bytes::new() }).await;
    let mut times = Vec::new();
    for number in 0..EVENTS {
        let name = format!("e-{stamp}-{number}");
        let mut object = map(&name, 100);
        object["metadata"]["labels"] = json!({"bench": stamp.to_string()});
        let begin = Instant::now();
        let body = object.to_string().into();
        let asked = writer.ask(Call { method: Method::POST, path: MAPS.into(), body });
        let told = until(&mut lines, format!("\"{name}\""));
        let ((), told) = tokio::join!(asked, told);
        times.push(told - begin);
    }
    println!(
        "  {:<55} {:>6}    {}",
        "request to one server, event of another",
        "",
        latencies(times)
    );
}

/// When a piece of text comes.
async fn until(lines: &mut Incoming, wanted: String) -> Instant {
    let mut text = String::new();
    while !text.contains(&wanted) {
        let frame = lines.frame().await.unwrap().unwrap();
        text.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
    Instant::now()
}

async fn fill(one: &str, count: u64) {
    let one = target(one).await;
    let stamp = std::process::id();
    let call = move |number| {
        let body = map(&format!("f-{stamp}-{number}"), 1000).to_string().into();
        Call { method: Method::POST, path: MAPS.into(), body }
    };
    let begin = Instant::now();
    let mut left = count;
    let next = AtomicU64::new(0);
    while left > 0 {
        let done = next.load(Ordering::Relaxed);
        let shifted = move |number| call(done + number);
        let (times, _) = run(&one, CLIENTS, Some(left), shifted).await;
        next.fetch_add(times.len() as u64, Ordering::Relaxed);
        left -= times.len() as u64;
    }
    println!("  {count} ConfigMaps in {:.1?}", begin.elapsed());
}

/// Has so many clients ask, one question after the other, for a time or up to a number.
async fn run(
    config: &Target,
    clients: usize,
    most: Option<u64>,
    call: impl Fn(u64) -> Call + Clone + Send + 'static,
) -> (Vec<Duration>, Duration) {
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(Connection::open(config).await);
    }
    let (begin, next, mut tasks) = (Instant::now(), Arc::new(AtomicU64::new(0)), JoinSet::new());
    for mut connection in connections {
        let (next, call) = (next.clone(), call.clone());
        tasks.spawn(async move {
            let mut times = Vec::new();
            while begin.elapsed() < LASTS {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if most.is_some_and(|most| number >= most) {
                    break;
                }
                let call = call(number);
                let asked = Instant::now();
                connection.ask(call).await;
                times.push(asked.elapsed());
            }
            times
        });
    }
    let times = tasks.join_all().await.concat();
    (times, begin.elapsed())
}

fn latencies(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    format!("p50 {:.2} ms, p99 {:.2} ms", at(0.5), at(0.99))
}

fn map(name: &str, size: usize) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "x".repeat(size)}})
}

fn service(name: &str, kind: &str) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"type": kind, "selector": {"app": name}, "ports": [{"port": 80}]}})
}

/// A server, and who asks it.
struct Target {
    config: kube::Config,
    token: Option<String>,
}

async fn target(kubeconfig: &str) -> Target {
    let read = Kubeconfig::read_from(Path::new(kubeconfig)).unwrap();
    let text = std::fs::read_to_string(kubeconfig).unwrap();
    let token = text.split_once("token: ").and_then(|(_, rest)| rest.split(['}', '\n']).next());
    let token = token.map(|token| format!("Bearer {}", token.trim()));
    let options = KubeConfigOptions::default();
    Target { config: kube::Config::from_custom_kubeconfig(read, &options).await.unwrap(), token }
}

/// One client.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    token: Option<String>,
}

struct Call {
    method: Method,
    path: String,
    body: Bytes,
}

impl Connection {
    async fn open(Target { config, token }: &Target) -> Self {
        let host = config.cluster_url.authority().unwrap().to_string();
        let name = config.tls_server_name.clone();
        let name = name.unwrap_or_else(|| config.cluster_url.host().unwrap().to_owned());
        let mut tls = config.rustls_client_config().unwrap();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let stream = tokio::net::TcpStream::connect(&host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connector = TlsConnector::from(Arc::new(tls));
        let stream = connector.connect(name.try_into().unwrap(), stream).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let token = token.clone();
        Self { sender, host, token }
    }

    async fn ask(&mut self, call: Call) {
        let mut body = self.send(call).await;
        while let Some(frame) = body.frame().await {
            frame.unwrap();
        }
    }

    async fn send(&mut self, Call { method, path, body }: Call) -> Incoming {
        self.sender.ready().await.unwrap();
        let mut request = Request::builder().method(method).uri(&path).header("host", &self.host);
        request = request.header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", token);
        }
        let request = request.body(Full::new(body)).unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let code = response.status();
        match code.is_success() {
            true => response.into_body(),
            false => {
                let text = response.into_body().collect().await.unwrap().to_bytes();
                panic!("{path}: {code} {}", String::from_utf8_lossy(&text));
            }
        }
    }
}
