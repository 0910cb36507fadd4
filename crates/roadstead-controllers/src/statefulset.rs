//! The StatefulSet controller: pods with names and claims of their own, in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::pod_view::PodView;
use roadstead_plan::pods::claim;
use roadstead_plan::statefulset::{self as plan, Belongings, StatefulSetPlan, ordinal};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::{Selection, informer, key_of};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Verb, Write};
use serde_json::json;

use crate::Context;
use crate::pods::{self, OwnedPods, PODS, settle_ownership};
use crate::revisions::{self, OwnedRevisions};
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

const CLAIMS: Collection = Collection::of::<PersistentVolumeClaim>();

pub(crate) async fn run(context: Context) {
    let client = &context.client;
    // Whatever was once the pod of a StatefulSet has this label, and nothing else does.
    let pods = Selection::all().labels("statefulset.kubernetes.io/pod-name");
    let inputs = Inputs::new()
        .watch(every::<StatefulSet>(client))
        .watch(every::<ControllerRevision>(client))
        .watch(every::<PersistentVolumeClaim>(client))
        .watch(informer(Api::<PodView>::all(client.clone()), pods));
    runner::run(context, State::default(), inputs).await;
}

#[derive(Default)]
struct State {
    sets: Cache<StatefulSet>,
    pods: OwnedPods,
    claims: Cache<PersistentVolumeClaim>,
    revisions: OwnedRevisions,
}

impl Watches<StatefulSet> for State {
    fn cache(&mut self) -> &mut Cache<StatefulSet> {
        &mut self.sets
    }

    fn wake(&mut self, change: &Changed<StatefulSet>, queue: &mut Queue<ObjectKey>) {
        let selector = change.now.as_ref().and_then(|set| set.spec.selector.match_labels.as_ref());
        self.pods.set_selector(&change.key, selector);
        queue.add(change.key.clone());
    }
}

impl Watches<ControllerRevision> for State {
    fn cache(&mut self) -> &mut Cache<ControllerRevision> {
        &mut self.revisions.cache
    }

    fn index(&mut self, change: &Changed<ControllerRevision>, _: &mut Queue<ObjectKey>) {
        self.revisions.index(change);
    }

    fn wake(&mut self, change: &Changed<ControllerRevision>, queue: &mut Queue<ObjectKey>) {
        self.revisions.concerned("StatefulSet", change).into_iter().for_each(|key| queue.add(key));
    }
}

impl Watches<PersistentVolumeClaim> for State {
    fn cache(&mut self) -> &mut Cache<PersistentVolumeClaim> {
        &mut self.claims
    }

    /// A claim that goes may be one that a pod waits for.
    fn wake(&mut self, change: &Changed<PersistentVolumeClaim>, queue: &mut Queue<ObjectKey>) {
        if change.now.is_some() && change.before.is_some() {
            return;
        }
        for set in self.sets.in_namespace(&change.key.namespace) {
            let templates = set.spec.volume_claim_templates.iter().flatten();
            let mut prefixes =
                templates.map(|own| format!("{}-{}-", own.name_any(), set.name_any()));
            if prefixes.any(|prefix| change.key.name.starts_with(&prefix)) {
                queue.add(key_of(set.as_ref()));
            }
        }
    }
}

impl Watches<PodView> for State {
    fn cache(&mut self) -> &mut Cache<PodView> {
        &mut self.pods.cache
    }

    fn index(&mut self, change: &Changed<PodView>, _: &mut Queue<ObjectKey>) {
        self.pods.index(change);
    }

    fn wake(&mut self, change: &Changed<PodView>, queue: &mut Queue<ObjectKey>) {
        self.pods.concerned("StatefulSet", change).into_iter().for_each(|key| queue.add(key));
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "statefulset-controller";
    const QUEUE: &'static str = "statefulset";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(set) = self.sets.get(key) else { return WritePlan::none() };
        let none = BTreeMap::new();
        let labels = set.spec.selector.match_labels.as_ref().unwrap_or(&none);
        let mut candidates = self.pods.candidates(&set.metadata, labels);
        candidates.retain(|pod| ordinal(set, pod.name()).is_some());
        let claim = claim(&set.metadata, &set.spec.selector, candidates);
        let writes = settle_ownership(set.as_ref(), &claim);
        if !writes.is_empty() {
            return WritePlan { writes, again_after: Some(Duration::ZERO), ..WritePlan::none() };
        }
        let has = Belongings {
            pods: claim.own,
            claims: self.claims.in_namespace(&key.namespace).map(Arc::as_ref).collect(),
            revisions: self.revisions.of(&set.metadata),
        };
        let plan = plan::plan(set, &has, now);
        carry_out(key, set, &plan)
    }

    fn written(&mut self, write: &Write, answer: &str) -> Option<EventDraft> {
        let deed = match write.verb {
            Verb::Create => "create",
            _ => return None,
        };
        if write.collection != PODS && write.collection != CLAIMS {
            return None;
        }
        let made: serde_json::Value = serde_json::from_str(answer).ok()?;
        let name = made["metadata"]["name"].as_str()?;
        let mut sets = self.sets.in_namespace(&write.key.namespace);
        let message = |set: &StatefulSet| match write.collection == PODS {
            true => format!("{deed} Pod {name} in StatefulSet {} successful", set.name_any()),
            false => {
                let index = name.rsplit('-').next().unwrap_or("");
                let set = set.name_any();
                format!("{deed} Claim {name} Pod {set}-{index} in StatefulSet {set} success")
            }
        };
        let set = sets.find(|set| match write.collection == PODS {
            true => ordinal(set, name).is_some(),
            false => {
                let mut templates = set.spec.volume_claim_templates.iter().flatten();
                templates
                    .any(|own| name.starts_with(&format!("{}-{}-", own.name_any(), set.name_any())))
            }
        })?;
        Some(tell(set, Severity::Normal, "SuccessfulCreate", message(set)))
    }
}

fn carry_out(key: &ObjectKey, set: &StatefulSet, plan: &StatefulSetPlan<'_>) -> WritePlan {
    let mut writes = revisions::writes(&plan.revisions);
    writes.extend(plan.claims.iter().map(|claim| Write::create(&key.namespace, claim)));
    for (claim, owners) in &plan.owners {
        let patch = json!({"metadata": {"uid": claim.metadata.uid, "ownerReferences": owners}});
        writes.push(Write::merge(CLAIMS, key_of(*claim), &patch));
    }
    writes.extend(plan.create.iter().map(|pod| Write::create(&key.namespace, pod)));
    writes.extend(plan.delete.iter().map(|pod| pods::delete(pod)));
    let is_settled = writes.is_empty();
    if set.status.as_ref() != Some(&plan.status) {
        let mut newest = set.clone();
        newest.status = Some(plan.status.clone());
        writes.push(Write::replace_status(key.clone(), &newest));
    }
    let waits =
        plan.status.ready_replicas.unwrap_or(0) != plan.status.available_replicas.unwrap_or(0);
    let pod = plan.create.first().and_then(|pod| pod.metadata.name.as_deref()).unwrap_or("");
    WritePlan {
        events: events(set, plan),
        failure: Some((
            InvolvedObject::of(set),
            "FailedCreate",
            format!("create Pod {pod} in StatefulSet {} failed error", set.name_any()),
        )),
        again_after: match is_settled {
            false => Some(Duration::ZERO),
            true => waits.then(|| Duration::from_secs(1)),
        },
        writes,
        ..WritePlan::none()
    }
}

fn events(set: &StatefulSet, plan: &StatefulSetPlan<'_>) -> Vec<EventDraft> {
    let (own, namespace) = (set.name_any(), set.namespace().unwrap_or_default());
    let tell_of = |pod: &&PodView| match pod.is_finished() {
        true => tell(
            set,
            Severity::Warning,
            "RecreatingFailedPod",
            format!("StatefulSet {namespace}/{own} is recreating failed Pod {}", pod.name()),
        ),
        false => tell(
            set,
            Severity::Normal,
            "SuccessfulDelete",
            format!("delete Pod {} in StatefulSet {own} successful", pod.name()),
        ),
    };
    plan.delete.iter().map(tell_of).collect()
}

fn tell(set: &StatefulSet, severity: Severity, reason: &str, message: String) -> EventDraft {
    EventDraft { about: InvolvedObject::of(set), severity, reason: reason.to_owned(), message }
}
