//! The ReplicaSet controller, and that of ReplicationControllers: each keeps a number of pods.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use roadstead_api::key::ObjectKey;
use roadstead_plan::owner::controller_of;
use roadstead_plan::pod_view::PodView;
use roadstead_plan::pods::claim;
use roadstead_plan::replicaset::{self as plan, ReplicaSetPlan, Replicas};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Verb, Write};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Context;
use crate::pods::{self, OwnedPods, PODS, settle_ownership};
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

/// ReplicaSets.
pub(crate) async fn run(context: Context) {
    run_for::<ReplicaSet>(context).await;
}

/// ReplicationControllers: the same, but for the names.
pub(crate) async fn run_replication_controllers(context: Context) {
    run_for::<ReplicationController>(context).await;
}

async fn run_for<K: Kept>(context: Context) {
    let client = &context.client;
    let inputs = Inputs::new().watch(every::<K>(client)).watch(every::<PodView>(client));
    let (sets, pods, failures) = Default::default();
    runner::run(context, State::<K> { sets, pods, failures }, inputs).await;
}

/// A kind whose objects keep a number of pods.
trait Kept:
    Replicas
    + Resource<DynamicType = ()>
    + k8s_openapi::Metadata<Ty = ObjectMeta>
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    const COMPONENT: &'static str;
    const QUEUE: &'static str;
}

impl Kept for ReplicaSet {
    const COMPONENT: &'static str = "replicaset-controller";
    const QUEUE: &'static str = "replicaset";
}

impl Kept for ReplicationController {
    const COMPONENT: &'static str = "replication-controller";
    const QUEUE: &'static str = "replicationmanager";
}

struct State<K> {
    sets: Cache<K>,
    pods: OwnedPods,
    /// Why pods of these could not be made, the last time.
    failures: BTreeMap<ObjectKey, String>,
}

impl<K: Kept> Watches<K> for State<K> {
    fn cache(&mut self) -> &mut Cache<K> {
        &mut self.sets
    }

    fn wake(&mut self, change: &Changed<K>, queue: &mut Queue<ObjectKey>) {
        let selector = change.now.as_ref().and_then(|set| set.selector().match_labels);
        self.pods.set_selector(&change.key, selector.as_ref());
        if change.now.is_none() {
            self.failures.remove(&change.key);
        }
        queue.add(change.key.clone());
    }
}

impl<K: Kept> Watches<PodView> for State<K> {
    fn cache(&mut self) -> &mut Cache<PodView> {
        &mut self.pods.cache
    }

    fn index(&mut self, change: &Changed<PodView>, _: &mut Queue<ObjectKey>) {
        self.pods.index(change);
    }

    fn wake(&mut self, change: &Changed<PodView>, queue: &mut Queue<ObjectKey>) {
        let kind = <K as k8s_openapi::Resource>::KIND;
        self.pods.concerned(kind, change).into_iter().for_each(|key| queue.add(key));
    }
}

impl<K: Kept> Controller for State<K> {
    type Key = ObjectKey;
    const COMPONENT: &'static str = K::COMPONENT;
    const QUEUE: &'static str = K::QUEUE;

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(set) = self.sets.get(key) else { return WritePlan::none() };
        let selector = set.selector();
        let none = BTreeMap::new();
        let labels = selector.match_labels.as_ref().unwrap_or(&none);
        let metadata = k8s_openapi::Metadata::metadata(set.as_ref());
        let candidates = self.pods.candidates(metadata, labels);
        let claim = claim(metadata, &selector, candidates);
        let writes = settle_ownership(set.as_ref(), &claim);
        if !writes.is_empty() {
            // Who belongs to the set is settled first; the number of pods comes after that.
            let again_after = Some(Duration::ZERO);
            return WritePlan { writes, again_after, ..WritePlan::none() };
        }
        let plan = plan::plan(set.as_ref(), &claim.own, now);
        let failure = self.failures.get(key).filter(|_| !plan.create.is_empty());
        let newest = set.reporting(&plan.counts, failure.map(String::as_str), now);
        let status = newest.map(|newest| Write::replace_status(key.clone(), &newest));
        if plan.create.is_empty() && plan.delete.is_empty() {
            return report(set.as_ref(), &plan, status);
        }
        // Why no pod can be made is said before the next attempt.
        let status = status.filter(|_| failure.is_some());
        change_pods(key, set.as_ref(), plan, status)
    }

    fn written(&mut self, write: &Write, answer: &str) -> Option<EventDraft> {
        if write.collection != PODS || write.verb != Verb::Create {
            return None;
        }
        let pod: PodView = serde_json::from_str(answer).ok()?;
        let owner = controller_of(&pod.metadata)?;
        let namespace = write.key.namespace.as_str();
        let set = self.sets.get(&ObjectKey::new(namespace, owner.name.as_str()))?;
        let message = format!("Created pod: {}", pod.name());
        Some(tell(set.as_ref(), "SuccessfulCreate", message))
    }

    fn failed(&mut self, key: &ObjectKey, why: &str) {
        self.failures.insert(key.clone(), why.to_owned());
    }

    fn finished(&mut self, key: &ObjectKey, failed: bool) {
        if !failed {
            self.failures.remove(key);
        }
    }
}

/// Pods come or go; what these writes have made of it is reported after them.
fn change_pods<K: Kept>(
    key: &ObjectKey,
    set: &K,
    plan: ReplicaSetPlan<'_>,
    status: Option<Write>,
) -> WritePlan {
    let create = plan.create.iter().map(|pod| Write::create(&key.namespace, pod));
    let delete = plan.delete.iter().map(|pod| pods::delete(pod));
    let deleted = plan.delete.iter().map(|pod| format!("Deleted pod: {}", pod.name()));
    WritePlan {
        writes: status.into_iter().chain(create).chain(delete).collect(),
        events: deleted.map(|message| tell(set, "SuccessfulDelete", message)).collect(),
        failure: Some((InvolvedObject::of(set), "FailedCreate", "Error creating".to_owned())),
        again_after: Some(Duration::ZERO),
        ..WritePlan::none()
    }
}

fn report<K: Kept>(set: &K, plan: &ReplicaSetPlan<'_>, status: Option<Write>) -> WritePlan {
    let waits = plan.counts.ready != plan.counts.available;
    let again_after = (waits && set.min_ready_seconds() > 0).then(|| Duration::from_secs(1));
    WritePlan { writes: status.into_iter().collect(), again_after, ..WritePlan::none() }
}

fn tell<K: Kept>(set: &K, reason: &str, message: String) -> EventDraft {
    let (severity, reason) = (Severity::Normal, reason.to_owned());
    EventDraft { about: InvolvedObject::of(set), severity, reason, message }
}
