//! The scheduler: gives every pod a node.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_plan::backend::Backend;
use roadstead_plan::{pod, schedule};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{About, Happening, Severity};
use roadstead_watch::informer::{Change, Selection, informer};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;

use crate::metrics::{Metrics, QueueMeter};
use crate::runner::{self, Controller, Inputs, Plan};

/// A pod that fits nowhere is looked at again after this, or when a node changes.
const UNSCHEDULABLE_RETRY: Duration = Duration::from_secs(30);
/// Pods that name another scheduler are none of our business.
const NAME: &str = "default-scheduler";
const PODS: Collection = Collection::of::<Pod>();

/// Runs the scheduler.
pub async fn run(client: Client, metrics: Metrics) {
    let all = Selection::all();
    // Only pods that wait for a node are read as a whole.
    let homeless = all.clone().fields("spec.nodeName=");
    let inputs = Inputs::new()
        .follow(informer(Api::<Node>::all(client.clone()), all.clone()), State::node)
        .follow(informer(Api::<Pod>::all(client.clone()), homeless), State::waiting)
        .follow(informer(Api::<Backend>::all(client.clone()), all), State::pod);
    let queue = Queue::with_meter(QueueMeter::new(metrics.clone(), State::queue_name));
    let state = State { queue, ..State::default() };
    runner::run(client, metrics, state, inputs).await;
}

#[derive(Default)]
struct State {
    queue: Queue<ObjectKey>,
    nodes: Cache<Node>,
    waiting: Cache<Pod>,
    pods: Cache<Backend>,
    pods_on: BTreeMap<String, usize>,
    /// Pods that we have bound and not yet seen on their node.
    assumed: BTreeMap<ObjectKey, String>,
}

impl State {
    fn waiting(&mut self, change: &Change<Pod>) {
        let Some((key, _)) = self.waiting.observe(change) else { return };
        if self.waiting.get(&key).is_some_and(|pod| is_waiting(pod)) {
            self.queue.add(key);
        }
    }

    fn pod(&mut self, change: &Change<Backend>) {
        let Some((key, before)) = self.pods.observe(change) else { return };
        let now = self.pods.get(&key).cloned();
        let is_seen = now.as_ref().is_none_or(|pod| !pod.node.is_empty());
        if is_seen && let Some(node) = self.assumed.remove(&key) {
            self.count(&node, -1);
        }
        for (pod, change) in [(before, -1), (now, 1)] {
            if let Some(pod) = pod.filter(|pod| !pod.is_finished() && !pod.node.is_empty()) {
                self.count(&pod.node, change);
            }
        }
    }

    fn count(&mut self, node: &str, change: isize) {
        let count = self.pods_on.entry(node.to_owned()).or_default();
        *count = count.saturating_add_signed(change);
    }

    fn node(&mut self, change: &Change<Node>) {
        if self.nodes.observe(change).is_some() {
            let waiting = self.waiting.iter().filter(|(_, pod)| is_waiting(pod));
            waiting.for_each(|(key, _)| self.queue.add(key.clone()));
        }
    }

    fn bind(&self, key: &ObjectKey, pod: &Pod, node: &str) -> Plan {
        let binding = json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": pod.metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        let event = Happening {
            about: About::object(pod),
            severity: Severity::Normal,
            reason: "Scheduled".into(),
            message: format!("Successfully assigned {key} to {node}"),
        };
        let writes = vec![Write::create_part(PODS, key.clone(), "binding", &binding)];
        Plan { writes, events: vec![event], ..Plan::none() }
    }

    fn explain(&self, key: &ObjectKey, pod: &Pod, why: &str) -> Plan {
        let again_after = Some(UNSCHEDULABLE_RETRY);
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut told = conditions.into_iter().flatten().filter(|c| c.type_ == "PodScheduled");
        if told.any(|condition| condition.message.as_deref() == Some(why)) {
            return Plan { again_after, ..Plan::none() };
        }
        let patch = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": why}]}});
        let event = Happening {
            about: About::object(pod),
            severity: Severity::Warning,
            reason: "FailedScheduling".into(),
            message: why.to_owned(),
        };
        let writes = vec![Write::strategic(PODS, key.clone(), &patch).to("status")];
        Plan { writes, events: vec![event], again_after, ..Plan::none() }
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = NAME;
    // Where one pod goes depends on where the one before went.
    const WORKERS: usize = 1;

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    fn queue_mut(&mut self) -> &mut Queue<ObjectKey> {
        &mut self.queue
    }

    fn synced(&self) -> bool {
        self.nodes.synced() && self.waiting.synced() && self.pods.synced()
    }

    fn plan(&mut self, key: &ObjectKey, _: Timestamp) -> Plan {
        let waiting = self.waiting.get(key).filter(|pod| is_waiting(pod)).cloned();
        let Some(pod) = waiting.filter(|_| !self.assumed.contains_key(key)) else {
            return Plan::none();
        };
        let nodes: Vec<_> = self.nodes.iter().map(|(_, node)| node.as_ref()).collect();
        let placed = || {
            let alive = self.pods.iter().filter(|(_, pod)| !pod.is_finished());
            let known = alive.filter_map(|(key, pod)| {
                let assumed = self.assumed.get(key).map(String::as_str);
                let node = Some(pod.node.as_str()).filter(|node| !node.is_empty()).or(assumed)?;
                Some((pod.as_ref(), node))
            });
            known.collect()
        };
        match schedule::place(&pod, &nodes, &self.pods_on, placed) {
            Ok(node) => self.bind(key, &pod, node),
            Err(why) => self.explain(key, &pod, &why),
        }
    }

    fn record(&mut self, write: &Write, answer: &str) {
        if write.subresource != "binding" {
            self.waiting.take_in(write, answer);
            return;
        }
        let target: Option<serde_json::Value> = serde_json::from_slice(write.body()).ok();
        let node = target.as_ref().and_then(|binding| binding["target"]["name"].as_str());
        let is_seen = self.pods.get(&write.key).is_none_or(|pod| !pod.node.is_empty());
        if let Some(node) = node.filter(|_| !is_seen) {
            self.assumed.insert(write.key.clone(), node.to_owned());
            self.count(node, 1);
        }
    }

    fn queue_name(_: &ObjectKey) -> &'static str {
        "scheduler"
    }
}

fn is_waiting(pod: &Pod) -> bool {
    let scheduler = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    pod::node(pod).is_empty()
        && !pod::is_finished(pod)
        && !pod::is_terminating(pod)
        && scheduler.is_none_or(|name| name == NAME)
}
