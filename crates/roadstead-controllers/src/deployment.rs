//! The Deployment controller: moves pods from one version of a template to the next.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Selector;
use roadstead_plan::deployment::{self as plan, DeploymentPlan, SetClaim};
use roadstead_plan::owner::{controlled_by, controller_of};
use roadstead_plan::selection::Owned;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::key_of;
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

const DEPLOYMENTS: Collection = Collection::of::<Deployment>();
const SETS: Collection = Collection::of::<ReplicaSet>();

pub(crate) async fn run(context: Context) {
    let client = &context.client;
    let inputs =
        Inputs::new().watch(every::<Deployment>(client)).watch(every::<ReplicaSet>(client));
    runner::run(context, State::default(), inputs).await;
}

#[derive(Default)]
struct State {
    deployments: Cache<Deployment>,
    sets: Cache<ReplicaSet>,
    owned: Owned,
    /// Sets that nobody controls.
    orphans: BTreeSet<ObjectKey>,
}

impl Watches<Deployment> for State {
    fn cache(&mut self) -> &mut Cache<Deployment> {
        &mut self.deployments
    }

    fn wake(&mut self, change: &Changed<Deployment>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
    }
}

impl Watches<ReplicaSet> for State {
    fn cache(&mut self) -> &mut Cache<ReplicaSet> {
        &mut self.sets
    }

    fn index(&mut self, change: &Changed<ReplicaSet>, _: &mut Queue<ObjectKey>) {
        let owner = |set: &Arc<ReplicaSet>| Some(controller_of(&set.metadata)?.uid.clone());
        let (before, now) = (change.before.as_ref(), change.now.as_ref());
        let (before, now) = (before.and_then(owner), now.and_then(owner));
        self.owned.set(&change.key, before.as_deref(), now.as_deref());
        match change.now.is_some() && now.is_none() {
            true => drop(self.orphans.insert(change.key.clone())),
            false => drop(self.orphans.remove(&change.key)),
        }
    }

    fn wake(&mut self, change: &Changed<ReplicaSet>, queue: &mut Queue<ObjectKey>) {
        for owner in change.states().filter_map(|set| controller_of(&set.metadata)) {
            queue.add(ObjectKey::new(&change.key.namespace, &owner.name));
        }
        let orphan = change.now.as_ref().filter(|_| self.orphans.contains(&change.key));
        let Some(orphan) = orphan else { return };
        for deployment in self.deployments.in_namespace(&change.key.namespace) {
            let selector = Selector::from_object(&deployment.spec.selector);
            if selector.matches_labels(orphan.metadata.labels.as_ref()) {
                queue.add(key_of(deployment.as_ref()));
            }
        }
    }
}

impl State {
    /// The sets that a Deployment controls, and those that it might.
    fn claim(&self, key: &ObjectKey, deployment: &Deployment) -> SetClaim<'_> {
        let own = self.owned.of(deployment.metadata.uid.as_deref());
        let near = self.orphans.range(ObjectKey::new(&key.namespace, "")..);
        let orphans = near.take_while(|orphan| orphan.namespace == key.namespace);
        let all = own.chain(orphans).filter_map(|key| self.sets.get(key)).map(Arc::as_ref);
        plan::claim(deployment, all)
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "deployment-controller";
    const QUEUE: &'static str = "deployment";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(deployment) = self.deployments.get(key) else { return WritePlan::none() };
        let claim = self.claim(key, deployment);
        let settling = settle_ownership(deployment, &claim);
        if !settling.is_empty() {
            let again_after = Some(Duration::ZERO);
            return WritePlan { writes: settling, again_after, ..WritePlan::none() };
        }
        let is_taken = |name: &str| self.sets.get(&ObjectKey::new(&key.namespace, name)).is_some();
        let plan = plan::plan(deployment, &claim.own, &is_taken, now);
        let events = plan.notes.iter().map(|(reason, message)| EventDraft {
            about: InvolvedObject::of(deployment.as_ref()),
            severity: Severity::Normal,
            reason: reason.to_string(),
            message: message.clone(),
        });
        WritePlan {
            events: events.collect(),
            again_after: plan.again_after.map(|left| left.max(Duration::from_secs(1))),
            writes: writes(key, deployment, plan),
            ..WritePlan::none()
        }
    }
}

/// The writes that settle whose sets they are.
fn settle_ownership(deployment: &Deployment, claim: &SetClaim<'_>) -> Vec<Write> {
    let adopted = json!([controlled_by(deployment)]);
    let released = json!([{"$patch": "delete", "uid": deployment.metadata.uid}]);
    let write = |set: &ReplicaSet, owners: &serde_json::Value| {
        let metadata = json!({"uid": set.metadata.uid, "ownerReferences": owners});
        Write::strategic(SETS, key_of(set), &json!({"metadata": metadata}))
    };
    let adopt = claim.adopt.iter().map(|set| write(set, &adopted));
    adopt.chain(claim.release.iter().map(|set| write(set, &released))).collect()
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
