//! The DaemonSet controller: a pod on every node that suits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use roadstead_api::key::ObjectKey;
use roadstead_plan::daemonset::backoff::Backoffs;
use roadstead_plan::daemonset::{self as plan, Belongings, DaemonSetPlan};
use roadstead_plan::owner::controller_of;
use roadstead_plan::pod_view::{Phase, PodView};
use roadstead_plan::pods::claim;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::{Selection, informer, trimmed};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Verb, Write};

use crate::Context;
use crate::pods::{self, OwnedPods, PODS, settle_ownership};
use crate::revisions::{self, OwnedRevisions};
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

pub(crate) async fn run(context: Context) {
    let client = &context.client;
    // All pods that a DaemonSet has made say which version they are of.
    let pods = Selection::all().labels("controller-revision-hash");
    // A node's status changes every few seconds, and is nothing to us.
    let nodes = trimmed(Api::<Node>::all(client.clone()), Selection::all(), |node| {
        node.status = None;
    });
    let inputs = Inputs::new()
        .watch(every::<DaemonSet>(client))
        .watch(every::<ControllerRevision>(client))
        .watch(nodes)
        .watch(informer(Api::<PodView>::all(client.clone()), pods));
    runner::run(context, State::default(), inputs).await;
}

#[derive(Default)]
struct State {
    sets: Cache<DaemonSet>,
    pods: OwnedPods,
    nodes: Cache<Node>,
    revisions: OwnedRevisions,
    backoffs: Backoffs,
}

impl Watches<DaemonSet> for State {
    fn cache(&mut self) -> &mut Cache<DaemonSet> {
        &mut self.sets
    }

    fn wake(&mut self, change: &Changed<DaemonSet>, queue: &mut Queue<ObjectKey>) {
        let selector = change.now.as_ref().and_then(|set| set.spec.selector.match_labels.as_ref());
        self.pods.set_selector(&change.key, selector);
        if change.now.is_none() {
            let gone = change.before.as_ref().and_then(|set| set.metadata.uid.as_deref());
            gone.into_iter().for_each(|uid| self.backoffs.forget(uid));
        }
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
        self.revisions.concerned("DaemonSet", change).into_iter().for_each(|key| queue.add(key));
    }
}

impl Watches<Node> for State {
    fn cache(&mut self) -> &mut Cache<Node> {
        &mut self.nodes
    }

    fn wake(&mut self, change: &Changed<Node>, queue: &mut Queue<ObjectKey>) {
        let traits = |node: &Arc<Node>| (node.metadata.labels.clone(), node.spec.clone());
        if change.before.as_ref().map(traits) != change.now.as_ref().map(traits) {
            self.sets.iter().for_each(|(key, _)| queue.add(key.clone()));
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
        self.pods.concerned("DaemonSet", change).into_iter().for_each(|key| queue.add(key));
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "daemonset-controller";
    const QUEUE: &'static str = "daemonset";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(set) = self.sets.get(key) else { return WritePlan::none() };
        let none = BTreeMap::new();
        let labels = set.spec.selector.match_labels.as_ref().unwrap_or(&none);
        let candidates = self.pods.candidates(&set.metadata, labels);
        let claim = claim(&set.metadata, &set.spec.selector, candidates);
        let writes = settle_ownership(set.as_ref(), &claim);
        if !writes.is_empty() {
            return WritePlan { writes, again_after: Some(Duration::ZERO), ..WritePlan::none() };
        }
        let has = Belongings {
            pods: claim.own,
            nodes: self.nodes.iter().map(|(_, node)| node.as_ref()).collect(),
            revisions: self.revisions.of(&set.metadata),
            held: self.backoffs.held(set.metadata.uid.as_deref().unwrap_or(""), now),
        };
        let plan = plan::plan(set, &has, now);
        for pod in plan.delete.iter().filter(|pod| pod.phase == Phase::Failed) {
            self.backoffs.note(set.metadata.uid.as_deref().unwrap_or(""), pod.aim(), now);
        }
        carry_out(key, set, plan)
    }

    fn written(&mut self, write: &Write, answer: &str) -> Option<EventDraft> {
        if write.collection != PODS || write.verb != Verb::Create {
            return None;
        }
        let pod: PodView = serde_json::from_str(answer).ok()?;
        let owner = controller_of(&pod.metadata)?;
        let set = self.sets.get(&ObjectKey::new(&write.key.namespace, &owner.name))?;
        let message = format!("Created pod: {}", pod.name());
        Some(tell(set, Severity::Normal, "SuccessfulCreate", message))
    }
}

fn carry_out(key: &ObjectKey, set: &DaemonSet, plan: DaemonSetPlan<'_>) -> WritePlan {
    let mut writes = revisions::writes(&plan.revisions);
    writes.extend(plan.create.iter().map(|pod| Write::create(&key.namespace, pod)));
    writes.extend(plan.delete.iter().map(|pod| pods::delete(pod)));
    let waits = plan.status.number_ready != plan.status.number_available.unwrap_or(0);
    let again_after = match writes.is_empty() {
        false => Some(Duration::ZERO),
        true => waits.then(|| Duration::from_secs(1)).into_iter().chain(plan.again_after).min(),
    };
    let events = plan.delete.iter().map(|pod| farewell(key, set, pod)).collect();
    if set.status.as_ref() != Some(&plan.status) {
        let mut newest = set.clone();
        newest.status = Some(plan.status);
        writes.push(Write::replace_status(key.clone(), &newest));
    }
    let failure = Some((InvolvedObject::of(set), "FailedCreate", "Error creating".to_owned()));
    WritePlan { writes, events, failure, again_after, ..WritePlan::none() }
}

/// What is told of a pod that is deleted.
fn farewell(key: &ObjectKey, set: &DaemonSet, pod: &PodView) -> EventDraft {
    let (namespace, name, node) = (&key.namespace, pod.name(), &pod.node);
    match pod.phase {
        Phase::Failed => {
            let message = format!(
                "Found failed daemon pod {namespace}/{name} on node {node}, will try to kill it"
            );
            tell(set, Severity::Warning, "FailedDaemonPod", message)
        }
        Phase::Succeeded => {
            let message = format!(
                "Found succeeded daemon pod {namespace}/{name} on node {node}, will try to delete it"
            );
            tell(set, Severity::Normal, "SucceededDaemonPod", message)
        }
        _ => tell(set, Severity::Normal, "SuccessfulDelete", format!("Deleted pod: {name}")),
    }
}

fn tell(set: &DaemonSet, severity: Severity, reason: &str, message: String) -> EventDraft {
    EventDraft { about: InvolvedObject::of(set), severity, reason: reason.to_owned(), message }
}
