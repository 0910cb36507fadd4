//! The CronJob controller: Jobs by the clock.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use roadstead_api::key::ObjectKey;
use roadstead_plan::cronjob::{self as plan, Around, CronJobPlan};
use roadstead_plan::owner::controller_of;
use roadstead_plan::selection::Owned;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::key_of;
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Verb, Write};

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};
use crate::zones::Zones;

const JOBS: Collection = Collection::of::<Job>();

pub(crate) async fn run(context: Context) {
    let client = &context.client;
    let inputs = Inputs::new().watch(every::<CronJob>(client)).watch(every::<Job>(client));
    runner::run(context, State::default(), inputs).await;
}

#[derive(Default)]
struct State {
    crons: Cache<CronJob>,
    jobs: Cache<Job>,
    owned: Owned,
    zones: Zones,
}

impl Watches<CronJob> for State {
    fn cache(&mut self) -> &mut Cache<CronJob> {
        &mut self.crons
    }

    fn wake(&mut self, change: &Changed<CronJob>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
    }
}

impl Watches<Job> for State {
    fn cache(&mut self) -> &mut Cache<Job> {
        &mut self.jobs
    }

    fn index(&mut self, change: &Changed<Job>, _: &mut Queue<ObjectKey>) {
        let owner = |job: &Arc<Job>| Some(controller_of(&job.metadata)?.uid.clone());
        let (before, now) = (change.before.as_ref(), change.now.as_ref());
        let (before, now) = (before.and_then(owner), now.and_then(owner));
        self.owned.set(&change.key, before.as_deref(), now.as_deref());
    }

    fn wake(&mut self, change: &Changed<Job>, queue: &mut Queue<ObjectKey>) {
        let owners = change.states().filter_map(|job| controller_of(&job.metadata));
        for owner in owners.filter(|owner| owner.kind == "CronJob") {
            queue.add(ObjectKey::new(&change.key.namespace, &owner.name));
        }
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "cronjob-controller";
    const QUEUE: &'static str = "cronjob";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(cron) = self.crons.get(key) else { return WritePlan::none() };
        let zone = self.zones.find(cron.spec.time_zone.as_deref().unwrap_or(""));
        let own = self.owned.of(cron.metadata.uid.as_deref());
        let jobs: Vec<_> = own.filter_map(|key| self.jobs.get(key)).map(Arc::as_ref).collect();
        let is_taken = |name: &str| self.jobs.get(&ObjectKey::new(&key.namespace, name)).is_some();
        let plan = plan::plan(cron, &Around { jobs: &jobs, zone, is_taken: &is_taken, now });
        carry_out(key, cron, plan)
    }

    fn written(&mut self, write: &Write, answer: &str) -> Option<EventDraft> {
        if write.collection != JOBS || write.verb != Verb::Create {
            return None;
        }
        let job: Job = serde_json::from_str(answer).ok()?;
        let owner = controller_of(&job.metadata)?;
        let cron = self.crons.get(&ObjectKey::new(&write.key.namespace, &owner.name))?;
        Some(tell(cron, false, "SuccessfulCreate", format!("Created job {}", job.name_any())))
    }
}

fn carry_out(key: &ObjectKey, cron: &CronJob, plan: CronJobPlan<'_>) -> WritePlan {
    let mut writes = Vec::new();
    // What is known of Jobs that have ended is there before they go, and before others begin.
    if cron.status.as_ref().unwrap_or(&Default::default()) != &plan.status {
        let mut newest = cron.clone();
        newest.status = Some(plan.status);
        writes.push(Write::replace_status(key.clone(), &newest));
    }
    writes.extend(plan.delete.iter().map(|job| {
        let background =
            DeleteOptions { propagation_policy: Some("Background".into()), ..Default::default() };
        Write::delete_with(JOBS, key_of(*job), job.metadata.uid.as_deref(), background)
    }));
    writes.extend(plan.create.iter().map(|job| Write::create(&key.namespace, job)));
    let notes = plan.notes.into_iter();
    WritePlan {
        events: notes.map(|(warning, reason, text)| tell(cron, warning, reason, text)).collect(),
        again_after: if writes.is_empty() { plan.again_after } else { Some(Duration::ZERO) },
        failure: Some((InvolvedObject::of(cron), "FailedCreate", "Error creating job".to_owned())),
        writes,
        ..WritePlan::none()
    }
}

fn tell(cron: &CronJob, warning: bool, reason: &str, message: String) -> EventDraft {
    let severity = if warning { Severity::Warning } else { Severity::Normal };
    EventDraft { about: InvolvedObject::of(cron), severity, reason: reason.to_owned(), message }
}
