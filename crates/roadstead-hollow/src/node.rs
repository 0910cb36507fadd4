//! A hollow node: its Lease, its status, and its pods, which it says that they run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use tokio::time::Instant;

use crate::connection::Call;
use crate::latencies::{Row, Scope};
use crate::objects;
use crate::schedule::{beats, stage};
use crate::watch::{Line, Watcher};
use crate::world::{World, lock, now, now_exactly, pod_number};

const LEASE: Duration = Duration::from_secs(10);
const STATUS: Duration = Duration::from_secs(300);
/// How long a pod takes to end.
const ENDING: Duration = Duration::from_millis(500);

/// Makes the Node, its first status and its Lease.
pub(crate) async fn register(world: &World, node: u32) -> anyhow::Result<()> {
    let (name, connection) = (objects::node_name(node), world.of_node(node));
    let body = objects::node(&name).to_string();
    connection.must(&Call::new(Method::POST, "/api/v1/nodes").with(body)).await?;
    connection.must(&status(node)).await?;
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let body = objects::lease(&name, &now_exactly()).to_string();
    connection.must(&Call::new(Method::POST, path).with(body)).await?;
    Ok(())
}

fn status(node: u32) -> Call {
    let body = objects::node_status(node, &now()).to_string();
    let path = format!("/api/v1/nodes/{}/status", objects::node_name(node));
    Call::new(Method::PATCH, path).with(body)
}

fn lease(node: u32) -> Call {
    let name = objects::node_name(node);
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}");
    let body = format!(r#"{{"spec":{{"renewTime":"{}"}}}}"#, now_exactly());
    Call::new(Method::PATCH, path).with(body)
}

/// Begins to renew the Lease and to write the status, each at its own moments.
pub(crate) fn beat(world: &Arc<World>, node: u32) {
    let begin = Instant::now();
    let all = world.options.nodes;
    let row = Row { verb: "PATCH", resource: "leases", scope: Scope::Object };
    next(world.clone(), begin, beats(node, all, LEASE), row, move || lease(node), node);
    let row = Row { verb: "PATCH", resource: "nodes/status", scope: Scope::Object };
    next(world.clone(), begin, beats(node, all, STATUS), row, move || status(node), node);
}

/// Hands in the next beat, which hands in the one after it.
fn next(
    world: Arc<World>,
    begin: Instant,
    mut beats: impl Iterator<Item = Duration> + Send + 'static,
    row: Row,
    call: impl Fn() -> Call + Send + 'static,
    node: u32,
) {
    let Some(at) = beats.next() else { return };
    let timeline = world.timeline.clone();
    timeline.at(begin + at, move |due| async move {
        if world.is_over.load(Ordering::Relaxed) {
            return;
        }
        let (connection, asked) = (world.of_node(node), call());
        next(world.clone(), begin, beats, row, call, node);
        world.call(row, due, &connection, asked).await;
    });
}

/// What a node does when it hears of its pods.
pub(crate) struct Pods {
    pub(crate) world: Arc<World>,
    pub(crate) node: u32,
    pub(crate) version: u64,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(rename = "resourceVersion")]
    version: String,
    #[serde(rename = "deletionTimestamp")]
    deleted: Option<String>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

impl Watcher for Pods {
    fn tell(&mut self, line: &Line<'_>) {
        let Ok(Pod { metadata, status }) = serde_json::from_str(line.object.get()) else {
            return self.fault(format!("node {} was told {}", self.node, line.object));
        };
        let version = metadata.version.parse().unwrap_or(0);
        if version < self.version {
            return self.fault(format!("node {}: {version} after {}", self.node, self.version));
        }
        self.version = version;
        match line.kind {
            "ADDED" if status.phase != "Running" => self.start(metadata),
            "MODIFIED" if metadata.deleted.is_some() => self.end(metadata),
            "MODIFIED" => self.heard(&metadata.name, &status),
            _ => {}
        }
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn lost(&mut self, why: &str) {
        let mut meters = lock(&self.world.meters);
        meters.resumed += 1;
        if why.contains("410") || why.contains("Expired") {
            meters.faults.push(format!("node {} cannot go on: {why}", self.node));
        }
    }
}

impl Pods {
    fn fault(&self, what: String) {
        lock(&self.world.meters).faults.push(what);
    }

    /// After a while the pod runs.
    fn start(&self, pod: Metadata) {
        let Some(number) = pod_number(&pod.name) else { return };
        let (world, node) = (self.world.clone(), self.node);
        let at = Instant::now() + stage(number.into());
        self.world.timeline.at(at, move |due| async move {
            let sent = world.micros();
            if world.is_measured(due) {
                let address = objects::pod_address(number);
                lock(&world.awaited).insert(address, Instant::now());
            }
            let body = objects::running(number, node, &now(), sent).to_string();
            let path = format!("{}/status", objects::pod_path(&pod.namespace, &pod.name));
            let row = Row { verb: "PATCH", resource: "pods/status", scope: Scope::Object };
            let call = Call::new(Method::PATCH, path).with(body);
            world.call(row, due, &world.of_node(node), call).await;
        });
    }

    /// After a while nothing is left of the pod.
    fn end(&self, pod: Metadata) {
        let (world, node) = (self.world.clone(), self.node);
        self.world.timeline.at(Instant::now() + ENDING, move |due| async move {
            let path = objects::pod_path(&pod.namespace, &pod.name);
            let row = Row { verb: "DELETE", resource: "pods, at once", scope: Scope::Object };
            let call = Call::new(Method::DELETE, format!("{path}?gracePeriodSeconds=0"));
            world.call(row, due, &world.of_node(node), call).await;
        });
    }

    /// The pod runs, as everybody knows now.
    fn heard(&self, name: &str, status: &Status) {
        let (Ok(sent), Some(number)) = (status.message.parse::<u128>(), pod_number(name)) else {
            return;
        };
        let Some(since) = self.world.runs(name) else { return };
        if !self.world.is_measured(since) {
            return;
        }
        let micros = self.world.micros().saturating_sub(sent);
        let mut meters = lock(&self.world.meters);
        meters.own_event.add(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)));
        meters.pod_start.add(since.elapsed());
        meters.pod_start_alone.add(since.elapsed().saturating_sub(stage(number.into())));
    }
}
