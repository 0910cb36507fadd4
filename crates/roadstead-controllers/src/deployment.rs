//! The Deployment controller: moves pods from one version of a template to the next.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::deployment::{self as plan, DeploymentPlan};
use roadstead_plan::owner::controller_of;
use roadstead_plan::selection::Owned;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{About, Happening, Severity};
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;

use crate::metrics::{Metrics, QueueMeter};
use crate::runner::{self, Controller, Inputs, Plan};

const DEPLOYMENTS: Collection = Collection::of::<Deployment>();
const SETS: Collection = Collection::of::<ReplicaSet>();

/// Runs the controller.
pub async fn run(client: Client, metrics: Metrics) {
    let all = Selection::all();
    let inputs = Inputs::new()
        .follow(informer(Api::<Deployment>::all(client.clone()), all.clone()), State::deployment)
        .follow(informer(Api::<ReplicaSet>::all(client.clone()), all), State::set);
    let queue = Queue::with_meter(QueueMeter::new(metrics.clone(), State::queue_name));
    let state = State { queue, ..State::default() };
    runner::run(client, metrics, state, inputs).await;
}

#[derive(Default)]
struct State {
    queue: Queue<ObjectKey>,
    deployments: Cache<Deployment>,
    sets: Cache<ReplicaSet>,
    owned: Owned,
}

impl State {
    fn deployment(&mut self, change: &Change<Deployment>) {
        if let Some((key, _)) = self.deployments.observe(change) {
            self.queue.add(key);
        }
    }

    fn set(&mut self, change: &Change<ReplicaSet>) {
        let Some((key, before)) = self.sets.observe(change) else { return };
        self.index(&key, before.as_deref());
        for set in [before, self.sets.get(&key).cloned()].into_iter().flatten() {
            if let Some(owner) = controller_of(&set.metadata) {
                self.queue.add(ObjectKey::new(&key.namespace, &owner.name));
            }
        }
    }

    fn index(&mut self, key: &ObjectKey, before: Option<&ReplicaSet>) {
        let owner = |set: &ReplicaSet| controller_of(&set.metadata).map(|owner| owner.uid.clone());
        let now = self.sets.get(key).map(Arc::as_ref).and_then(owner);
        self.owned.set(key, before.and_then(owner).as_deref(), now.as_deref());
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "deployment-controller";

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    fn queue_mut(&mut self) -> &mut Queue<ObjectKey> {
        &mut self.queue
    }

    fn synced(&self) -> bool {
        self.deployments.synced() && self.sets.synced()
    }

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> Plan {
        let Some(deployment) = self.deployments.get(key) else { return Plan::none() };
        let sets = self.owned.of(deployment.metadata.uid.as_deref());
        let sets: Vec<_> = sets.filter_map(|key| self.sets.get(key)).map(Arc::as_ref).collect();
        let plan = plan::plan(deployment, &sets, now);
        let events = plan.notes.iter().map(|(reason, message)| Happening {
            about: About::object(deployment.as_ref()),
            severity: Severity::Normal,
            reason: reason.to_string(),
            message: message.clone(),
        });
        Plan { events: events.collect(), writes: writes(key, deployment, plan), ..Plan::none() }
    }

    fn record(&mut self, write: &Write, answer: &str) {
        if write.collection == DEPLOYMENTS {
            self.deployments.take_in(write, answer);
        } else if let Some((key, before)) = self.sets.take_in(write, answer) {
            self.index(&key, before.as_deref());
        }
    }

    fn queue_name(_: &ObjectKey) -> &'static str {
        "deployment"
    }
}

fn writes(key: &ObjectKey, deployment: &Deployment, plan: DeploymentPlan) -> Vec<Write> {
    let mut writes = Vec::new();
    writes.extend(plan.create.iter().map(|set| Write::create(&key.namespace, set)));
    writes.extend(plan.update.iter().map(|set| Write::replace(key_of(set), set)));
    let uid = |set: &ReplicaSet| set.metadata.uid.clone();
    writes.extend(plan.delete.iter().map(|s| Write::delete(SETS, key_of(s), uid(s).as_deref())));
    let revision = plan.revision.as_ref();
    if revision.is_some() && deployment.annotations().get(plan::REVISION) != revision {
        let uid = &deployment.metadata.uid;
        let patch = json!({"metadata": {"uid": uid, "annotations": {plan::REVISION: revision}}});
        writes.push(Write::merge(DEPLOYMENTS, key.clone(), &patch));
    }
    if deployment.status.as_ref() != Some(&plan.status) {
        // Its version is left out: the annotation may just have changed it.
        // The annotation itself goes along, since a write of the status may take it away again.
        let mut newest = deployment.clone();
        newest.metadata.resource_version = None;
        if let Some(revision) = revision {
            let annotations = newest.metadata.annotations.get_or_insert_default();
            annotations.insert(plan::REVISION.into(), revision.clone());
        }
        newest.status = Some(plan.status);
        writes.push(Write::replace_status(key.clone(), &newest));
    }
    writes
}
