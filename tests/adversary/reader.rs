//! A reader: may only look, and looks as hard as possible.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use roadstead_testkit::netns::is_left_out;
use serde_json::{Map, Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::attacks;
use crate::client::{Client, Door, Server};

/// How many lists are read at a time.
const PARALLEL: usize = 16;
/// How many short questions each of the others has meanwhile: the slowest but two are the p99.
const QUESTIONS: usize = 300;
/// What nobody waits for, on a busy machine and in a build that is not optimized. With a release, made with
/// `cargo test --release`, it is less than a person notices, and five times of what it takes in quiet counts.
const LIMIT: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1500 } else { 10 });

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
    let server = server_with(&["bob", "carol"]);
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
        assert!(beside.slowest() < quiet.bound(5), "{name}: {beside}, in quiet {quiet}");
        assert!(peak < memory + 200, "{name}: {peak} MB, {memory} MB before");
        attacks::refused(1);
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
type Took = (Duration, Duration);

/// What others wait for: a user for an object, whoever looks after the server for its health, a node for its
/// Lease, and the scheduler for the nodes.
struct Waited {
    get: Took,
    health: Took,
    lease: Took,
    component: Took,
}

impl Waited {
    /// The worst p99 of all.
    fn slowest(&self) -> Duration {
        self.get.1.max(self.health.1).max(self.lease.1).max(self.component.1)
    }

    /// What nobody may wait longer for beside others, if this is what they wait in quiet.
    fn bound(&self, times: u32) -> Duration {
        LIMIT.max(times * self.get.1)
    }
}

impl std::fmt::Display for Waited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { get, health, lease, component } = self;
        for (name, (half, most)) in
            [("get", get), ("healthz", health), ("Lease", lease), ("component", component)]
        {
            write!(f, "{name} p50 {half:.1?} p99 {most:.1?} ")?;
        }
        Ok(())
    }
}

const NODE: &str = "system:node:n1";
const SCHEDULER: &str = "system:kube-scheduler";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// A server with users of these names, and with a node and a scheduler.
fn server_with(users: &[&str]) -> Server {
    let server = Server::start(1024, &[users, &[NODE, SCHEDULER]].concat());
    Runtime::new().unwrap().block_on(async {
        let mut node = server.door().enter(NODE).await.unwrap();
        let (code, said) = node.post(LEASES, &lease(0)).await;
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
    });
    server
}

/// The Lease of the node, renewed so many microseconds later.
fn lease(microseconds: usize) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n1"},
        "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40,
            "renewTime": format!("2026-01-01T00:00:00.{microseconds:06}Z")}})
}

fn ask(server: &Server) -> Waited {
    static RENEWED: AtomicUsize = AtomicUsize::new(1);
    let renewed = || lease(RENEWED.fetch_add(1, Ordering::Relaxed)).to_string().into();
    let (door, renew) = (server.door(), format!("PATCH {LEASES}/n1"));
    Runtime::new().unwrap().block_on(async {
        let (get, health, lease, component) = tokio::join!(
            asked(&door, "carol", "GET /api/v1/namespaces/default", Bytes::new),
            asked(&door, "", "GET /healthz", Bytes::new),
            asked(&door, NODE, &renew, renewed),
            asked(&door, SCHEDULER, "GET /api/v1/nodes", Bytes::new),
        );
        Waited { get, health, lease, component }
    })
}

async fn asked(door: &Door, user: &str, request: &str, body: impl Fn() -> Bytes) -> Took {
    let (mut took, mut client) = (Vec::new(), door.enter(user).await.unwrap());
    for _ in 0..QUESTIONS {
        let began = Instant::now();
        let headers = [("content-type", "application/merge-patch+json")];
        let answer = client.send(request, &headers, body()).await.unwrap();
        let code = answer.status().as_u16();
        let said = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(code, 200, "{user} {request}: {}", String::from_utf8_lossy(&said));
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
        while self.bytes.load(Ordering::Relaxed) == 0 && began.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(10));
        }
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        (self.lists.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Sixteen lists at a time, and a thousand short questions a second, of one user each; the level that both
/// belong to is the one that the other user is in, too.
#[test]
fn a_busy_user_does_not_slow_others_down() {
    if is_left_out("L5") {
        return;
    }
    let server = server_with(&["bob", "carol"]);
    Runtime::new().unwrap().block_on(fill(&server, 6));
    let quiet = ask(&server);
    let ratio = |beside: &Waited| {
        beside.get.1.as_secs_f64() / quiet.get.1.max(Duration::from_micros(100)).as_secs_f64()
    };
    let noise = Noise::begin(server.door(), MAPS, vec![]);
    let beside = ask(&server);
    let (lists, _) = noise.end();
    eprintln!("16 listers: {beside}; p99 {:.1} × quiet ({quiet}); {lists} lists", ratio(&beside));
    assert!(beside.slowest() < quiet.bound(3), "{beside}, {quiet}");
    let flood = Flood::begin(server.door(), 1000);
    let beside = ask(&server);
    let (answered, refused) = flood.end();
    let said = format!("{answered} answered, {refused} refused");
    eprintln!("1,000 requests a second: {beside}; p99 {:.1} × quiet; {said}", ratio(&beside));
    assert!(answered > 50, "{said}");
    attacks::refused(2);
    assert!(beside.slowest() < quiet.bound(3), "{beside}, {quiet}");
}

/// Documents about kinds are long, and anybody may read them. While kinds come and go they are made again and
/// again, but not by those who answer others, and not once for each who asks.
#[test]
fn a_reader_of_documents_hinders_nobody() {
    if is_left_out("L5") {
        return;
    }
    let server = server_with(&["bob", "carol"]);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(fill(&server, 1));
    let mut root = runtime.block_on(define(&server, 20));
    let quiet = ask(&server);
    for (name, request, accept) in [
        ("OpenAPI v2", "GET /openapi/v2", "application/json"),
        ("the index of v3", "GET /openapi/v3", "application/json"),
        ("a document of v3", "GET /openapi/v3/apis/many.example.com/v1", "application/json"),
        (
            "discovery",
            "GET /apis",
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        ),
    ] {
        let noise = Noise::begin(server.door(), request, vec![("accept", accept)]);
        let over = AtomicBool::new(false);
        let (beside, changes) = thread::scope(|scope| {
            let changing = scope.spawn(|| {
                let mut changes = 0;
                while !over.load(Ordering::Relaxed) {
                    changes += 1;
                    runtime.block_on(redefine(&mut root, changes));
                    thread::sleep(Duration::from_millis(100));
                }
                changes
            });
            let beside = ask(&server);
            over.store(true, Ordering::Relaxed);
            (beside, changing.join().unwrap())
        });
        let (read, bytes) = noise.end();
        eprintln!("{name}: {beside}; {read} read, {} MB, {changes} changes", bytes >> 20);
        assert!(bytes > 0 && changes > 2, "{name}: {bytes} bytes, {changes} changes");
        assert!(beside.slowest() < quiet.bound(5), "{name}: {beside}, in quiet {quiet}");
        attacks::refused(1);
    }
}

/// Defines so many kinds with hundreds of fields each; returns who did.
async fn define(server: &Server, count: usize) -> Client {
    let mut root = server.door().enter("root").await.unwrap();
    let field = |number| {
        let why = "what it is for, in more words than anybody reads";
        (format!("field{number}"), json!({"type": "string", "description": why}))
    };
    let fields: Map<_, _> = (0..300).map(field).collect();
    let spec = json!({"type": "object", "properties": fields});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}});
    for number in 0..count {
        let plural = format!("things{number}");
        let names = json!({"plural": plural, "singular": format!("thing{number}"),
            "kind": format!("Thing{number}")});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.many.example.com")},
            "spec": {"group": "many.example.com", "scope": "Namespaced", "names": names,
                "versions": [version]}});
        let (code, said) = root.post(DEFINITIONS, &definition).await;
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
    }
    root
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Changes one of them.
async fn redefine(root: &mut Client, number: usize) {
    let request = format!("PATCH {DEFINITIONS}/things0.many.example.com");
    let patch =
        json!([{"op": "add", "path": "/metadata/labels", "value": {"n": number.to_string()}}]);
    let headers = [("content-type", "application/json-patch+json")];
    let answer = root.send(&request, &headers, patch.to_string().into()).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.into_body().collect().await.unwrap();
}

/// A user who has a level of one seat, and may not wait for it, is refused what comes at the same time;
/// nobody else is.
#[test]
fn who_has_one_seat_is_served_one_by_one() {
    if is_left_out("L5") {
        return;
    }
    let server = Server::start(1024, &["bob", "carol"]);
    Runtime::new().unwrap().block_on(async {
        fill(&server, 4).await;
        let mut root = server.door().enter("root").await.unwrap();
        let group = "/apis/flowcontrol.apiserver.k8s.io/v1";
        let level = json!({"metadata": {"name": "one"}, "spec": {"type": "Limited", "limited":
            {"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"}}}});
        let everything = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
            "namespaces": ["*"], "clusterScope": true}]);
        let schema = json!({"metadata": {"name": "bob"}, "spec": {"matchingPrecedence": 20,
            "priorityLevelConfiguration": {"name": "one"},
            "rules": [{"subjects": [{"kind": "User", "user": {"name": "bob"}}],
                "resourceRules": everything}]}});
        for (plural, object) in [("prioritylevelconfigurations", level), ("flowschemas", schema)] {
            let (code, said) = root.post(&format!("{group}/{plural}"), &object).await;
            assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
        }
        // What has to be read takes long enough for them to meet.
        let look = async |user: &str| {
            let mut codes = Vec::new();
            let mut client = server.door().enter(user).await.unwrap();
            for _ in 0..8 {
                let search = "GET /api/v1/configmaps?labelSelector=none%3Dsuch";
                let answer = client.send(search, &[], Bytes::new()).await.unwrap();
                let code = answer.status().as_u16();
                let later = answer.headers().get("retry-after").cloned();
                let said = answer.into_body().collect().await.unwrap().to_bytes();
                if code == 429 {
                    assert_eq!(later.unwrap(), "1");
                    assert_eq!(said, "Too many requests, please try again later.\n");
                }
                codes.push(code);
            }
            codes
        };
        let bobs = futures::future::join_all((0..8).map(|_| look("bob")));
        let carols = futures::future::join_all((0..8).map(|_| look("carol")));
        let (bobs, carols) = tokio::join!(bobs, carols);
        let count = |all: &[Vec<u16>], code| all.iter().flatten().filter(|c| **c == code).count();
        assert_eq!(count(&carols, 200), 64, "{carols:?}");
        let (served, refused) = (count(&bobs, 200), count(&bobs, 429));
        eprintln!("of 64 requests {served} were served, and {refused} refused");
        assert!(served >= 1 && refused >= 1 && served + refused == 64, "{bobs:?}");
        assert_eq!(look("bob").await, [200; 8], "one after the other is as it should be");
    });
}

/// Bob, who asks for something small a certain number of times each second, on connections of his own.
struct Flood {
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    thread: thread::JoinHandle<()>,
}

impl Flood {
    fn begin(door: Door, each_second: u32) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (answered, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (own, served, not) = (over.clone(), answered.clone(), refused.clone());
        let thread = thread::spawn(move || {
            let _ = rustix::process::nice(15);
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                const CLIENTS: u32 = 20;
                let flood = (0..CLIENTS).map(async |_| {
                    let mut bob = door.enter("bob").await.unwrap();
                    let pause = Duration::from_secs(1) * CLIENTS / each_second;
                    let mut ticks = tokio::time::interval(pause);
                    while !own.load(Ordering::Relaxed) {
                        ticks.tick().await;
                        let request = "GET /api/v1/namespaces/kube-system";
                        match bob.read(request, &[]).await.unwrap().0.as_u16() {
                            200 => served.fetch_add(1, Ordering::Relaxed),
                            429 => not.fetch_add(1, Ordering::Relaxed),
                            code => panic!("{code}"),
                        };
                    }
                });
                futures::future::join_all(flood).await;
            });
        });
        thread::sleep(Duration::from_millis(300));
        Self { over, answered, refused, thread }
    }

    fn end(self) -> (usize, usize) {
        // Something is answered, however slow the machine is.
        let began = Instant::now();
        let answered = || self.answered.load(Ordering::Relaxed);
        while answered() <= 50 && began.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(10));
        }
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        (self.answered.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

/// Who may only look runs no commands, types nothing and reaches no ports, by whichever method.
#[test]
fn a_reader_does_not_reach_into_pods() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = crate::process::Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    kubectl.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: only-get}
rules:
- {apiGroups: [''], resources: [pods/exec, pods/attach, pods/portforward, nodes/proxy], verbs: [get]}
",
    );
    kubectl.run("create clusterrolebinding view --clusterrole=view --user=viewer --user=getter");
    kubectl.run("create clusterrolebinding get --clusterrole=only-get --user=getter");
    // Both look, and neither does more.
    for user in ["viewer", "getter"] {
        kubectl.run(&format!("get pod p --as={user}"));
        kubectl.run(&format!(
            "patch pod p --subresource=status --type=merge -p {}",
            r#"'{"status":{"phase":"Running"}}'"#
        ));
        for (command, resource) in [
            ("exec p", "pods/exec"),
            ("attach p", "pods/attach"),
            ("port-forward p 12345:80", "pods/portforward"),
        ] {
            let end = if command == "exec p" { "-- true" } else { "" };
            let said = kubectl.fails(&format!("{command} --as={user} {end}"));
            assert!(
                said.contains("orbidden") && said.contains(resource),
                "{user} {command}: {said}"
            );
        }
    }
    let said = kubectl.fails("get --raw /api/v1/nodes/n1/proxy/pods --as=viewer");
    assert!(said.contains("orbidden"), "{said}");
    attacks::refused(7);
}
