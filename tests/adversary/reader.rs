//! A reader: may only look, and looks as hard as possible.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use roadstead_testkit::netns::is_left_out;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use crate::client::{Client, Door, Server};

/// How many lists are read at a time.
const PARALLEL: usize = 16;
/// How many short questions another user has meanwhile.
const QUESTIONS: usize = 100;
/// What nobody waits for, on a busy machine and in a build that is not optimized. The bound that is
/// measured with a release is five times of what it takes in quiet.
const LIMIT: Duration = Duration::from_millis(750);

const MAPS: &str = "GET /api/v1/configmaps";

/// What a form is called, the request, and its headers.
type Form = (&'static str, &'static str, Vec<(&'static str, &'static str)>);

fn forms() -> Vec<Form> {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    vec![
        ("JSON", MAPS, vec![]),
        ("JSON, compressed", MAPS, vec![("accept-encoding", "gzip")]),
        ("table", MAPS, vec![("accept", table)]),
        (
            "table with objects",
            "GET /api/v1/configmaps?includeObject=Object",
            vec![("accept", table)],
        ),
        ("metadata", MAPS, vec![("accept", metadata)]),
        ("YAML", MAPS, vec![("accept", "application/yaml")]),
        (
            "YAML, compressed",
            MAPS,
            vec![("accept", "application/yaml"), ("accept-encoding", "gzip")],
        ),
        (
            "one object as YAML",
            "GET /api/v1/namespaces/default/configmaps/m0",
            vec![("accept", "application/yaml")],
        ),
        (
            "one object as a table",
            "GET /api/v1/namespaces/default/configmaps/m0",
            vec![("accept", table)],
        ),
        ("selected by labels", "GET /api/v1/configmaps?labelSelector=none%3Dsuch", vec![]),
        (
            "the beginning of a watch",
            "GET /api/v1/configmaps?watch=true&timeoutSeconds=1",
            vec![("accept", table)],
        ),
    ]
}

#[test]
fn a_reader_of_much_hinders_nobody() {
    if is_left_out("L5") {
        return;
    }
    let server = Server::start(1024, &["bob", "carol"]);
    // How many megabytes of objects there are.
    let size = std::env::var("MEGABYTES").map_or(12, |text| text.parse().unwrap());
    Runtime::new().unwrap().block_on(fill(&server, size));
    let memory = server.memory();
    let quiet = ask(&server);
    eprintln!("{size} MB of objects, {memory} MB; in quiet {quiet}");
    for (name, request, headers) in forms() {
        let noise = Noise::begin(server.door(), request, headers);
        let beside = ask(&server);
        let peak = server.memory();
        let (lists, bytes) = noise.end();
        eprintln!(
            "{name}: {beside}; {lists} lists and {} MB read meanwhile, {peak} MB",
            bytes >> 20
        );
        assert!(bytes > 0, "{name}: nothing was read");
        let slowest = beside.get.1.max(beside.health.1);
        assert!(slowest < LIMIT.max(5 * quiet.get.1), "{name}: {beside}, in quiet {quiet}");
        assert!(peak < memory + 200, "{name}: {peak} MB, {memory} MB before");
    }
}

async fn fill(server: &Server, size: usize) {
    let mut root = server.door().enter("root").await.unwrap();
    root.bind("view", "", &["bob", "carol"]).await;
    // Two keys make a third and two thirds of it: texts with what has to be escaped.
    let text = "all work and no \"play\"\n".repeat((1_000_000 / 24) / 3);
    for number in 0..size {
        let data = json!({"a": text, "b": text.repeat(2)});
        let map =
            json!({"metadata": {"name": format!("m{number}"), "labels": {"a": "b"}}, "data": data});
        let (code, said) = root.post("/api/v1/namespaces/default/configmaps", &map).await;
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
    }
}

/// How long short questions took: half of them, and all but one in a hundred.
struct Waited {
    get: (Duration, Duration),
    health: (Duration, Duration),
}

impl std::fmt::Display for Waited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { get, health } = self;
        write!(
            f,
            "get p50 {:?} p99 {:?}, healthz p50 {:?} p99 {:?}",
            get.0, get.1, health.0, health.1
        )
    }
}

fn ask(server: &Server) -> Waited {
    let door = server.door();
    Runtime::new().unwrap().block_on(async {
        let mut carol = door.enter("carol").await.unwrap();
        let mut stranger = door.enter("").await.unwrap();
        let get = asked(&mut carol, "GET /api/v1/namespaces/default").await;
        Waited { get, health: asked(&mut stranger, "GET /healthz").await }
    })
}

async fn asked(client: &mut Client, request: &str) -> (Duration, Duration) {
    let mut took = Vec::new();
    for _ in 0..QUESTIONS {
        let began = Instant::now();
        let code = client.read(request, &[]).await.unwrap().0;
        assert!(code == 200 || code == 401, "{code}");
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    took.sort();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

/// Bob, who reads the same again and again, on threads that leave the processors to everybody else:
/// he could as well be on another machine.
struct Noise {
    over: Arc<AtomicBool>,
    lists: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
    thread: thread::JoinHandle<()>,
}

impl Noise {
    fn begin(
        door: Door,
        request: &'static str,
        headers: Vec<(&'static str, &'static str)>,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (lists, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (own, count, sum) = (over.clone(), lists.clone(), bytes.clone());
        let thread = thread::spawn(move || {
            let mut runtime = Builder::new_multi_thread();
            let nice = || {
                let _ = rustix::process::nice(15);
            };
            let runtime = runtime.worker_threads(2).on_thread_start(nice).enable_all().build();
            runtime.unwrap().block_on(async {
                let tasks: Vec<_> = (0..PARALLEL)
                    .map(|_| {
                        let (door, headers) = (door.clone(), headers.clone());
                        let (count, sum) = (count.clone(), sum.clone());
                        tokio::spawn(async move {
                            let mut bob = door.enter("bob").await.unwrap();
                            loop {
                                let answer =
                                    bob.send(request, &headers, Bytes::new()).await.unwrap();
                                assert_eq!(answer.status(), 200);
                                let mut body = answer.into_body();
                                while let Some(Ok(frame)) = body.frame().await {
                                    let size = frame.data_ref().map_or(0, Bytes::len);
                                    sum.fetch_add(size, Ordering::Relaxed);
                                }
                                count.fetch_add(1, Ordering::Relaxed);
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    // What has been begun is not finished.
                    while !task.is_finished() && !own.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    task.abort();
                }
            });
        });
        thread::sleep(Duration::from_millis(300));
        Self { over, lists, bytes, thread }
    }

    fn end(self) -> (usize, usize) {
        // Something is read, however slowly.
        let began = Instant::now();
        while self.bytes.load(Ordering::Relaxed) == 0 && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(10));
        }
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        (self.lists.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}
