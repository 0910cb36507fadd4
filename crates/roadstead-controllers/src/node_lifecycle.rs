//! The node lifecycle controller: notices when a node is lost, says so, and looks after its pods.
//!
//! It watches nodes and their leases. Pods are only asked for when a node is in trouble, so a
//! healthy cluster pays nothing for them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PodCondition, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::disruption_target::{Disruption, condition};
use roadstead_plan::node_lifecycle::{self as plan, Heartbeats};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::{Selection, informer};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write, read};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use crate::Context;
use crate::pods::PODS;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

const NODES: Collection = Collection::of::<Node>();
/// How often the pods of a lost node are looked at.
const LOOK_AT_LOST_EVERY: Duration = Duration::from_secs(1);
const LEASES: &str = "kube-node-lease";

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// A node that shows no sign of life for this long is lost.
    pub grace_period: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { grace_period: Duration::from_secs(40) }
    }
}

pub(crate) async fn run(context: Context) {
    let client = context.client.clone();
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let inputs =
        Inputs::new().watch(every::<Node>(&client)).watch(informer(leases, Selection::all()));
    let state = State {
        config: context.settings.node_lifecycle.clone(),
        client,
        nodes: Cache::default(),
        leases: Cache::default(),
        heartbeats: Heartbeats::default(),
        began: (Timestamp::now(), Instant::now()),
    };
    runner::run(context, state, inputs).await;
}

struct State {
    config: Config,
    client: Client,
    nodes: Cache<Node>,
    leases: Cache<Lease>,
    heartbeats: Heartbeats,
    began: (Timestamp, Instant),
}

impl Watches<Node> for State {
    fn cache(&mut self) -> &mut Cache<Node> {
        &mut self.nodes
    }

    fn wake(&mut self, change: &Changed<Node>, queue: &mut Queue<ObjectKey>) {
        match &change.now {
            Some(node) => self.heard(&change.key.name, node),
            None => self.heartbeats.forget(&change.key.name),
        }
        queue.add(change.key.clone());
    }
}

impl Watches<Lease> for State {
    fn cache(&mut self) -> &mut Cache<Lease> {
        &mut self.leases
    }

    fn wake(&mut self, change: &Changed<Lease>, _: &mut Queue<ObjectKey>) {
        if let Some(node) = self.nodes.get(&ObjectKey::new("", &change.key.name)).cloned() {
            self.heard(&change.key.name, &node);
        }
    }
}

impl State {
    /// The time, on a clock that nobody sets: silence must not be mistaken for a correction.
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.began.1.elapsed());
        self.began.0.saturating_add(passed.unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
    }

    /// A renewed lease and a new heartbeat are signs of life; our own writes are not.
    fn heard(&mut self, name: &str, node: &Node) {
        let lease = self.leases.get(&ObjectKey::new(LEASES, name));
        let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
        let renewed = renewed.map(|time| time.0.to_string()).unwrap_or_default();
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
        let beat = ready.and_then(|ready| ready.last_heartbeat_time.as_ref());
        let beat = beat.map(|time| time.0.to_string()).unwrap_or_default();
        self.heartbeats.observe(name, format!("{renewed} {beat}"), self.now());
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "node-controller";
    const QUEUE: &'static str = "node_lifecycle_controller";

    fn plan(&mut self, key: &ObjectKey, _: Timestamp) -> WritePlan {
        let now = self.now();
        let Some(node) = self.nodes.get(key).cloned() else { return WritePlan::none() };
        let grace =
            SignedDuration::try_from(self.config.grace_period).unwrap_or(SignedDuration::MAX);
        let last = self.heartbeats.last(&key.name).unwrap_or(now);
        let silent = plan::silenced(&node, last, grace, now);
        if let Some(conditions) = silent {
            let patch = json!({"status": {"conditions": conditions}});
            let event = EventDraft {
                about: InvolvedObject::of(node.as_ref()),
                severity: Severity::Normal,
                reason: "NodeNotReady".into(),
                message: format!("Node {} status is now: NodeNotReady", key.name),
            };
            return WritePlan {
                writes: vec![Write::strategic(NODES, key.clone(), &patch).to("status")],
                events: vec![event],
                again_after: Some(Duration::ZERO),
                ..WritePlan::none()
            };
        }
        if let Some(taints) = plan::taints(&node, now) {
            let patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints}});
            return WritePlan {
                writes: vec![Write::merge(NODES, key.clone(), &patch)],
                again_after: Some(Duration::ZERO),
                ..WritePlan::none()
            };
        }
        let deadline = last.saturating_add(grace).unwrap_or(Timestamp::MAX);
        let left = Duration::try_from(deadline.duration_since(now)).unwrap_or(Duration::ZERO);
        let is_lost = plan::health(&node).is_lost();
        let pause = match is_lost {
            true => LOOK_AT_LOST_EVERY,
            false => left.max(Duration::from_millis(100)),
        };
        let is_tainted = node.spec.as_ref().is_some_and(|spec| {
            spec.taints.iter().flatten().any(|taint| taint.effect == "NoExecute")
        });
        let survey =
            (is_lost || is_tainted).then(|| survey(self.client.clone(), node, now).boxed());
        WritePlan { survey, again_after: Some(pause), ..WritePlan::none() }
    }
}

/// The pods of a node, as far as they matter here.
#[derive(Deserialize)]
struct Residents {
    items: Vec<Resident>,
}

#[derive(Deserialize)]
struct Resident {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ResidentSpec,
    #[serde(default)]
    status: ResidentStatus,
}

#[derive(Default, Deserialize)]
struct ResidentSpec {
    #[serde(default)]
    tolerations: Vec<Toleration>,
}

#[derive(Default, Deserialize)]
struct ResidentStatus {
    #[serde(default)]
    conditions: Vec<PodCondition>,
}

impl Resident {
    fn key(&self) -> ObjectKey {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        ObjectKey::new(text(&self.metadata.namespace), text(&self.metadata.name))
    }

    fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    }

    fn tell(&self, severity: Severity, reason: &str, message: String) -> EventDraft {
        let ObjectKey { namespace, name } = self.key();
        let uid = self.metadata.uid.clone().unwrap_or_default();
        let (api_version, kind) = (PODS.api_version.into_owned(), PODS.kind.into_owned());
        let about =
            InvolvedObject { api_version, kind, namespace, name, uid, field: String::new() };
        EventDraft { about, severity, reason: reason.to_owned(), message }
    }
}

/// The writes that the pods of a node in trouble need.
async fn survey(client: Client, node: Arc<Node>, now: Timestamp) -> Result<WritePlan, kube::Error> {
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", node.name_any());
    let found: Residents = read(&client, &path).await?;
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_lost = plan::health(&node).is_lost();
    let (mut writes, mut events) = (Vec::new(), Vec::new());
    for pod in &found.items {
        if is_lost && pod.is_ready() {
            writes.push(unready(pod, now));
            let text = "Node is not ready".to_owned();
            events.push(pod.tell(Severity::Warning, "NodeNotReady", text));
        }
        let leaves = plan::leaves_at(&taints, &pod.spec.tolerations, now);
        let is_going = pod.metadata.deletion_timestamp.is_some();
        if leaves.is_some_and(|at| at <= now) && !is_going {
            writes.push(disrupted(pod, now));
            writes.push(Write::delete(PODS, pod.key(), pod.metadata.uid.as_deref()));
            let text = format!("Marking for deletion Pod {}", pod.key());
            events.push(pod.tell(Severity::Normal, "TaintManagerEviction", text));
        }
    }
    Ok(WritePlan { writes, events, ..WritePlan::none() })
}

/// It is no failure of the pod.
fn disrupted(pod: &Resident, now: Timestamp) -> Write {
    let patch = json!({"metadata": {"uid": pod.metadata.uid},
        "status": {"conditions": [condition(Disruption::Taint, now)]}});
    Write::strategic(PODS, pod.key(), &patch).to("status").only_if_unchanged()
}

fn unready(pod: &Resident, now: Timestamp) -> Write {
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [
        {"type": "Ready", "status": "False",
            "lastTransitionTime": Time(now)}]}});
    Write::strategic(PODS, pod.key(), &patch).to("status")
}
