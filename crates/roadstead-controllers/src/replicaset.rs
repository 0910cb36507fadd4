//! The ReplicaSet controller: keeps the number of pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_plan::backend::Backend;
use roadstead_plan::owner::{controlled_by, controller_of};
use roadstead_plan::replicaset as plan;
use roadstead_plan::selection::{Labelled, Owned, Selectors};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{About, Happening, Severity};
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Verb, Write};
use serde_json::json;

use crate::metrics::{Metrics, QueueMeter};
use crate::runner::{self, Controller, Inputs, Plan};

const SETS: Collection = Collection::of::<ReplicaSet>();
const PODS: Collection = Collection::of::<Backend>();

/// Runs the controller.
pub async fn run(client: Client, metrics: Metrics) {
    let all = Selection::all();
    let inputs = Inputs::new()
        .follow(informer(Api::<ReplicaSet>::all(client.clone()), all.clone()), State::set)
        .follow(informer(Api::<Backend>::all(client.clone()), all), State::pod);
    let queue = Queue::with_meter(QueueMeter::new(metrics.clone(), State::queue_name));
    let state = State { queue, ..State::default() };
    runner::run(client, metrics, state, inputs).await;
}

#[derive(Default)]
struct State {
    queue: Queue<ObjectKey>,
    sets: Cache<ReplicaSet>,
    selectors: Selectors,
    pods: Cache<Backend>,
    owned: Owned,
    /// Pods that nobody controls.
    orphans: Labelled<Arc<Backend>>,
}

impl State {
    fn set(&mut self, change: &Change<ReplicaSet>) {
        let Some((key, _)) = self.sets.observe(change) else { return };
        let set = self.sets.get(&key);
        self.selectors.set(&key, set.and_then(|set| set.spec.selector.match_labels.as_ref()));
        self.queue.add(key);
    }

    /// Wakes the owner of a pod, or those who might adopt it.
    fn pod(&mut self, change: &Change<Backend>) {
        let Some((key, before)) = self.pods.observe(change) else { return };
        let now = self.pods.get(&key).cloned();
        self.index(&key, before.as_deref());
        if let (Some(before), Some(now)) = (&before, &now)
            && !now.differs_from(before)
        {
            return;
        }
        for pod in [before, now].into_iter().flatten() {
            match controller_of(&pod.metadata) {
                Some(owner) if owner.kind == "ReplicaSet" => {
                    self.queue.add(ObjectKey::new(&key.namespace, &owner.name));
                }
                Some(_) => {}
                None => {
                    let labels = pod.metadata.labels.as_ref();
                    for name in self.selectors.selecting(&key.namespace, labels) {
                        self.queue.add(ObjectKey::new(&key.namespace, name));
                    }
                }
            }
        }
    }

    fn index(&mut self, key: &ObjectKey, before: Option<&Backend>) {
        let owner = |pod: &Backend| controller_of(&pod.metadata).map(|owner| owner.uid.clone());
        let now = self.pods.get(key);
        let (old, new) = (before.and_then(owner), now.and_then(|pod| owner(pod)));
        self.owned.set(key, old.as_deref(), new.as_deref());
        if let Some(before) = before.filter(|_| old.is_none()) {
            self.orphans.remove(key, before.metadata.labels.as_ref());
        }
        if let Some(now) = now.filter(|_| new.is_none()) {
            self.orphans.insert(key, now.metadata.labels.as_ref(), now);
        }
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "replicaset-controller";

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    fn queue_mut(&mut self) -> &mut Queue<ObjectKey> {
        &mut self.queue
    }

    fn synced(&self) -> bool {
        self.sets.synced() && self.pods.synced()
    }

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> Plan {
        let Some(set) = self.sets.get(key) else { return Plan::none() };
        let own = self.owned.of(set.metadata.uid.as_deref());
        let own = own.filter_map(|key| self.pods.get(key)).map(Arc::as_ref);
        let none = BTreeMap::new();
        let labels = set.spec.selector.match_labels.as_ref().unwrap_or(&none);
        let orphans = &self.orphans;
        let orphans = orphans.selected(&key.namespace, labels, |pod| pod.metadata.labels.as_ref());
        let orphans = orphans.into_iter().map(Arc::as_ref);
        let claim = plan::claim(set, own.chain(orphans));
        let plan = plan::plan(set, &claim.own, now);
        let mut writes: Vec<_> = claim.adopt.iter().map(|pod| adopt(set, pod)).collect();
        writes.extend(claim.release.iter().map(|pod| release(set, pod)));
        if !writes.is_empty() {
            // Who belongs to the set is settled first; the number of pods comes after that.
            let again_after = Some(Duration::ZERO);
            return Plan { writes, again_after, ..Plan::none() };
        }
        writes.extend(plan.create.iter().map(|pod| Write::create(&key.namespace, pod)));
        let uid = |pod: &Backend| pod.metadata.uid.clone();
        writes
            .extend(plan.delete.iter().map(|p| Write::delete(PODS, key_of(*p), uid(p).as_deref())));
        let tell = |reason: &str, message: String| Happening {
            about: About::object(set.as_ref()),
            severity: Severity::Normal,
            reason: reason.to_owned(),
            message,
        };
        let events = plan
            .delete
            .iter()
            .map(|pod| tell("SuccessfulDelete", format!("Deleted pod: {}", pod.name())));
        let events = events.collect();
        if !writes.is_empty() {
            // Report what these writes have made of it.
            let failure =
                Some((About::object(set.as_ref()), "FailedCreate", "Error creating".to_owned()));
            return Plan {
                writes,
                events,
                failure,
                again_after: Some(Duration::ZERO),
                ..Plan::none()
            };
        }
        let patience = set.spec.min_ready_seconds.unwrap_or(0);
        let waits = plan.status.ready_replicas != plan.status.available_replicas;
        let again_after = (waits && patience > 0).then(|| Duration::from_secs(1));
        if set.status.as_ref() != Some(&plan.status) {
            let mut newest = set.as_ref().clone();
            newest.status = Some(plan.status);
            writes.push(Write::replace_status(key.clone(), &newest));
        }
        Plan { writes, again_after, ..Plan::none() }
    }

    fn record(&mut self, write: &Write, answer: &str) {
        if write.collection == SETS {
            self.sets.take_in(write, answer);
        } else if let Some((key, before)) = self.pods.take_in(write, answer) {
            self.index(&key, before.as_deref());
        }
    }

    fn tell(&self, write: &Write, answer: &str) -> Option<Happening> {
        if write.collection != PODS || write.verb != Verb::Create {
            return None;
        }
        let pod: Backend = serde_json::from_str(answer).ok()?;
        let owner = controller_of(&pod.metadata)?;
        let namespace = write.key.namespace.as_str();
        let set = self.sets.get(&ObjectKey::new(namespace, owner.name.as_str()))?;
        Some(Happening {
            about: About::object(set.as_ref()),
            severity: Severity::Normal,
            reason: "SuccessfulCreate".to_owned(),
            message: format!("Created pod: {}", pod.name()),
        })
    }

    fn queue_name(_: &ObjectKey) -> &'static str {
        "replicaset"
    }
}

fn adopt(set: &ReplicaSet, pod: &Backend) -> Write {
    let patch = json!({"metadata": {"uid": pod.metadata.uid,
        "ownerReferences": [controlled_by(set)]}});
    Write::strategic(PODS, key_of(pod), &patch)
}

fn release(set: &ReplicaSet, pod: &Backend) -> Write {
    let patch = json!({"metadata": {"uid": pod.metadata.uid,
        "ownerReferences": [{"$patch": "delete", "uid": set.metadata.uid}]}});
    Write::strategic(PODS, key_of(pod), &patch)
}
