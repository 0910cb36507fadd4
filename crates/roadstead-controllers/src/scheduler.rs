//! The scheduler: gives every pod a node.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::{pod, schedule};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{Recorder, Severity};
use roadstead_watch::informer::{Change, Selection, informer};
use roadstead_watch::queue::Queue;
use serde_json::json;
use tracing::warn;

/// A pod that fits nowhere is looked at again after this, or when a node changes.
const UNSCHEDULABLE_RETRY: Duration = Duration::from_secs(30);
/// Pods that name another scheduler are none of our business.
const NAME: &str = "default-scheduler";

/// Runs the scheduler.
pub async fn run(client: Client) {
    let mut pods = informer(Api::<Pod>::all(client.clone()), Selection::all());
    let mut nodes = informer(Api::<Node>::all(client.clone()), Selection::all());
    let recorder = Recorder::new(client.clone(), NAME);
    let (caches, queue) = ((Cache::default(), Cache::default()), Queue::default());
    let mut state = State { client, recorder, pods: caches.0, nodes: caches.1, queue };
    loop {
        tokio::select! {
            biased;
            Some(change) = nodes.next() => state.node(&change),
            Some(change) = pods.next() => state.pod(&change),
            () = state.queue.ready(), if state.pods.synced() && state.nodes.synced() => {
                state.work().await;
            }
        }
    }
}

struct State {
    client: Client,
    recorder: Recorder,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    queue: Queue<ObjectKey>,
}

impl State {
    fn pod(&mut self, change: &Change<Pod>) {
        let Some((key, _)) = self.pods.observe(change) else { return };
        if self.pods.get(&key).is_some_and(|pod| is_waiting(pod)) {
            self.queue.add(key);
        }
    }

    fn node(&mut self, change: &Change<Node>) {
        if self.nodes.observe(change).is_some() {
            let waiting = self.pods.iter().filter(|(_, pod)| is_waiting(pod));
            waiting.for_each(|(key, _)| self.queue.add(key.clone()));
        }
    }

    async fn work(&mut self) {
        let Some(key) = self.queue.pop() else { return };
        match self.place(&key).await {
            Ok(()) => self.queue.succeeded(&key),
            Err(error) => {
                let again_in = self.queue.retry(key.clone());
                warn!(pod = %key, %error, ?again_in, "pod not placed");
            }
        }
    }

    async fn place(&mut self, key: &ObjectKey) -> Result<(), kube::Error> {
        let Some(pod) = self.pods.get(key).filter(|pod| is_waiting(pod)).cloned() else {
            return Ok(());
        };
        let mut pods_on: BTreeMap<String, usize> = BTreeMap::new();
        for (_, other) in self.pods.iter().filter(|(_, pod)| !pod::is_finished(pod)) {
            *pods_on.entry(pod::node(other).to_owned()).or_default() += 1;
        }
        let nodes: Vec<_> = self.nodes.iter().map(|(_, node)| node.as_ref()).collect();
        let chosen = schedule::place(&pod, &nodes, &pods_on).map(str::to_owned);
        match chosen {
            Ok(node) => self.bind(key, &pod, &node).await,
            Err(why) => self.explain(key, &pod, &why).await,
        }
    }

    async fn bind(&mut self, key: &ObjectKey, pod: &Pod, node: &str) -> Result<(), kube::Error> {
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(key.name.clone()),
                uid: pod.uid(),
                ..Default::default()
            },
            target: ObjectReference {
                kind: Some("Node".into()),
                name: Some(node.to_owned()),
                ..Default::default()
            },
        };
        let api: Api<Pod> = crate::within(&self.client, &key.namespace);
        let params = PostParams::default();
        let bound: Result<Status, _> =
            api.create_subresource("binding", &key.name, &params, &binding).await;
        match bound {
            Err(error) if !crate::is_gone(&error) => return Err(error),
            _ => {}
        }
        let text = format!("Successfully assigned {key} to {node}");
        self.recorder.tell(pod, Severity::Normal, "Scheduled", &text).await;
        Ok(())
    }

    async fn explain(&mut self, key: &ObjectKey, pod: &Pod, why: &str) -> Result<(), kube::Error> {
        self.queue.add_after(key.clone(), UNSCHEDULABLE_RETRY);
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut told = conditions.into_iter().flatten().filter(|c| c.type_ == "PodScheduled");
        if told.any(|condition| condition.message.as_deref() == Some(why)) {
            return Ok(());
        }
        self.recorder.tell(pod, Severity::Warning, "FailedScheduling", why).await;
        let patch = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": why}]}});
        let api: Api<Pod> = crate::within(&self.client, &key.namespace);
        let params = PatchParams::default();
        let written = api.patch_status(&key.name, &params, &Patch::Strategic(&patch)).await?;
        self.pods.record(written);
        Ok(())
    }
}

fn is_waiting(pod: &Pod) -> bool {
    let scheduler = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    pod::node(pod).is_empty()
        && !pod::is_finished(pod)
        && !pod::is_terminating(pod)
        && scheduler.is_none_or(|name| name == NAME)
}
