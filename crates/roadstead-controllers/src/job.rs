//! The Job controller: pods that end, counted once each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, LabelSelector};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::job::{self as plan, FINALIZER, JobPlan};
use roadstead_plan::owner::controller_of;
use roadstead_plan::pods::claim;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::{Selection, informer, key_of};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Verb, Write};
use serde_json::json;

use crate::Context;
use crate::pods::{OwnedPods, PODS, settle_ownership_with};
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

const JOBS: Collection = Collection::of::<Job>();
/// Whose Jobs are ours: those that name nobody, and these.
const MANAGER: &str = "kubernetes.io/job-controller";

pub(crate) async fn run(context: Context) {
    let client = &context.client;
    // Every pod of a Job has this label; whole pods are read, as it matters how they ended.
    let pods = Selection::all().labels("batch.kubernetes.io/job-name");
    let inputs = Inputs::new()
        .watch(every::<Job>(client))
        .watch(informer(Api::<Pod>::all(client.clone()), pods));
    runner::run(context, State::default(), inputs).await;
}

#[derive(Default)]
struct State {
    jobs: Cache<Job>,
    pods: OwnedPods<Pod>,
}

impl Watches<Job> for State {
    fn cache(&mut self) -> &mut Cache<Job> {
        &mut self.jobs
    }

    fn wake(&mut self, change: &Changed<Job>, queue: &mut Queue<ObjectKey>) {
        let selector = change.now.as_ref().and_then(|job| selector(job)?.match_labels.as_ref());
        self.pods.set_selector(&change.key, selector);
        queue.add(change.key.clone());
    }
}

impl Watches<Pod> for State {
    fn cache(&mut self) -> &mut Cache<Pod> {
        &mut self.pods.cache
    }

    fn index(&mut self, change: &Changed<Pod>, _: &mut Queue<ObjectKey>) {
        self.pods.index(change);
    }

    fn wake(&mut self, change: &Changed<Pod>, queue: &mut Queue<ObjectKey>) {
        self.pods.concerned("Job", change).into_iter().for_each(|key| queue.add(key));
        // A pod whose Job is gone is kept by nobody; its key is its own.
        if change.now.as_ref().is_some_and(|pod| self.is_orphan(pod)) {
            queue.add(change.key.clone());
        }
    }
}

impl State {
    fn is_orphan(&self, pod: &Pod) -> bool {
        let is_tracked = pod.metadata.finalizers.iter().flatten().any(|own| own == FINALIZER);
        let job = controller_of(&pod.metadata).map(|owner| {
            let key = ObjectKey::new(pod.namespace().unwrap_or_default(), &owner.name);
            self.jobs.get(&key).is_some_and(|job| job.uid().as_deref() == Some(&*owner.uid))
        });
        is_tracked && !job.unwrap_or(false)
    }

    /// Pods of a Job that was deleted without them: nobody will count them.
    fn free_orphans(&self, key: &ObjectKey) -> WritePlan {
        let named = |pod: &&Arc<Pod>| {
            pod.name_any() == key.name
                || controller_of(&pod.metadata).is_some_and(|owner| owner.name == key.name)
        };
        let own = self.pods.cache.in_namespace(&key.namespace).filter(named);
        let own = own.filter(|pod| self.is_orphan(pod));
        WritePlan::writes(own.map(|pod| release(pod)).collect())
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "job-controller";
    const QUEUE: &'static str = "job";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(job) = self.jobs.get(key) else { return self.free_orphans(key) };
        let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        if manager.is_some_and(|own| own != MANAGER) {
            return WritePlan::none();
        }
        let Some(selector) = selector(job) else { return WritePlan::none() };
        let none = BTreeMap::new();
        let labels = selector.match_labels.as_ref().unwrap_or(&none);
        let claim = claim(&job.metadata, selector, self.pods.candidates(&job.metadata, labels));
        let writes = settle_ownership_with(job.as_ref(), &claim, &[FINALIZER]);
        if !writes.is_empty() {
            // Whose pods they are is settled first.
            return WritePlan { writes, again_after: Some(Duration::ZERO), ..WritePlan::none() };
        }
        let plan = plan::plan(job, &claim.own, now);
        carry_out(key, job, plan)
    }

    fn written(&mut self, write: &Write, answer: &str) -> Option<EventDraft> {
        if write.collection != PODS || write.verb != Verb::Create {
            return None;
        }
        let pod: Pod = serde_json::from_str(answer).ok()?;
        let owner = controller_of(&pod.metadata)?;
        let job = self.jobs.get(&ObjectKey::new(&write.key.namespace, &owner.name))?;
        Some(tell(job, false, "SuccessfulCreate", format!("Created pod: {}", pod.name_any())))
    }
}

/// Which pods are a Job's; the API server gives one to those that do not say.
fn selector(job: &Job) -> Option<&LabelSelector> {
    job.spec.as_ref()?.selector.as_ref()
}

fn carry_out(key: &ObjectKey, job: &Job, plan: JobPlan<'_>) -> WritePlan {
    if plan.expired {
        let background =
            DeleteOptions { propagation_policy: Some("Background".into()), ..Default::default() };
        let uid = job.metadata.uid.as_deref();
        return WritePlan::writes(vec![Write::delete_with(JOBS, key.clone(), uid, background)]);
    }
    let mut writes = Vec::new();
    // What the status says of a pod's end must be there before the pod may go.
    if job.status.as_ref() != Some(&plan.status) {
        let mut newest = job.clone();
        newest.status = Some(plan.status);
        writes.push(Write::replace_status(key.clone(), &newest));
    }
    writes.extend(plan.release.iter().map(|pod| release(pod)));
    writes.extend(plan.create.iter().map(|pod| Write::create(&key.namespace, pod)));
    let delete = |pod: &&Pod| Write::delete(PODS, key_of(*pod), pod.metadata.uid.as_deref());
    writes.extend(plan.delete.iter().map(delete));
    let deleted = plan.delete.iter().map(|pod| {
        tell(job, false, "SuccessfulDelete", format!("Deleted pod: {}", pod.name_any()))
    });
    let notes = plan.notes.into_iter();
    let told = notes.map(|(warning, reason, message)| tell(job, warning, reason, message));
    let is_settled = writes.is_empty();
    WritePlan {
        events: deleted.chain(told).collect(),
        again_after: if is_settled { plan.again_after } else { Some(Duration::ZERO) },
        failure: Some((InvolvedObject::of(job), "FailedCreate", "Error creating".to_owned())),
        writes,
        ..WritePlan::none()
    }
}

/// Takes our finalizer off a pod.
fn release(pod: &Pod) -> Write {
    let all = pod.metadata.finalizers.iter().flatten();
    let rest: Vec<_> = all.filter(|own| *own != FINALIZER).collect();
    let patch = json!({"metadata": {"uid": pod.metadata.uid, "finalizers": rest,
        "resourceVersion": pod.metadata.resource_version}});
    Write::merge(PODS, key_of(pod), &patch).only_if_unchanged()
}

fn tell(job: &Job, warning: bool, reason: &str, message: String) -> EventDraft {
    let severity = if warning { Severity::Warning } else { Severity::Normal };
    EventDraft { about: InvolvedObject::of(job), severity, reason: reason.to_owned(), message }
}
