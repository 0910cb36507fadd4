//! The Jobs of a CronJob: when the next one begins, beside which others, and how long those stay that have
//! ended.
//!
//! A Job is made once for each time: its name says for which, and its annotation says it exactly. What
//! has been started is read from the Jobs that there are, so that nothing is started twice when the
//! status could not be written.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::cronjob::due::{Due, due};

mod due;
mod history;
mod job;

/// The annotation that says for which time a Job was made.
pub(crate) const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Clocks of machines are set, and machines sleep: this is the longest time to trust either.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// What to tell: whether it is a warning, reason and message.
pub(crate) type Note = (bool, &'static str, String);

/// The writes that a CronJob asks for, in this order: the status, what is deleted, what is made.
#[derive(Debug, Default)]
pub struct CronJobPlan<'a> {
    /// What is true now.
    pub status: CronJobStatus,
    /// Jobs that have to go.
    pub delete: Vec<&'a Job>,
    /// The Job whose time has come.
    pub create: Option<Job>,
    /// When to look again even if nothing happens.
    pub again_after: Option<Duration>,
    /// What to tell.
    pub notes: Vec<Note>,
}

/// What a CronJob finds around it.
pub struct Around<'a, 'b> {
    /// The Jobs that it controls.
    pub jobs: &'b [&'a Job],
    /// Its time zone, or why there is none of that name.
    pub zone: Result<TimeZone, String>,
    /// Whether there is a Job of that name in its namespace.
    pub is_taken: &'b dyn Fn(&str) -> bool,
    /// What time it is.
    pub now: Timestamp,
}

/// Plans the Jobs of a CronJob.
pub fn plan<'a>(cron: &CronJob, around: &Around<'a, '_>) -> CronJobPlan<'a> {
    let spec = &cron.spec;
    let mut plan = CronJobPlan::default();
    plan.status = observe(cron, around, &mut plan.notes);
    if cron.metadata.deletion_timestamp.is_none() {
        plan.delete = history::surplus(spec, around.jobs);
        if spec.suspend != Some(true) {
            start(cron, around, &mut plan);
        }
    }
    for job in &plan.delete {
        plan.notes.push((false, "SuccessfulDelete", format!("Deleted job {}", job::name(job))));
    }
    plan
}

/// What the Jobs that there are say about the CronJob.
fn observe(cron: &CronJob, around: &Around<'_, '_>, notes: &mut Vec<Note>) -> CronJobStatus {
    let old = cron.status.clone().unwrap_or_default();
    let mut last = old.last_schedule_time.map(|time| time.0);
    let mut succeeded = old.last_successful_time.map(|time| time.0);
    let mut active = old.active.unwrap_or_default();
    for job in around.jobs {
        let uid = job.metadata.uid.as_deref();
        let listed = active.iter().position(|own| own.uid.as_deref() == uid);
        let time = job::scheduled(cron, job).filter(|time| *time <= around.now);
        last = last.max(time);
        match (job::outcome(job), listed) {
            (Some(condition), listed) => {
                if let Some(listed) = listed {
                    active.remove(listed);
                    let name = job::name(job);
                    let text = format!("Saw completed job: {name}, condition: {condition}");
                    notes.push((false, "SawCompletedJob", text));
                }
                if condition == "Complete" {
                    succeeded = succeeded.max(job::completed(job));
                }
            }
            (None, Some(_)) => {}
            (None, None) if time.is_some() => active.push(job::reference(job)),
            (None, None) => {
                let text = "Saw a job that the controller did not create or forgot";
                notes.push((true, "UnexpectedJob", format!("{text}: {}", job::name(job))));
            }
        }
    }
    active.retain(|own| {
        let is_there = around.jobs.iter().any(|job| job.metadata.uid == own.uid);
        if !is_there {
            let name = own.name.as_deref().unwrap_or("");
            notes.push((false, "MissingJob", format!("Active job went missing: {name}")));
        }
        is_there
    });
    status(active, last, succeeded)
}

fn status(
    active: Vec<ObjectReference>,
    last: Option<Timestamp>,
    succeeded: Option<Timestamp>,
) -> CronJobStatus {
    CronJobStatus {
        active: Some(active).filter(|active| !active.is_empty()),
        last_schedule_time: last.map(Time),
        last_successful_time: succeeded.map(Time),
    }
}

/// Makes the Job whose time has come, unless something speaks against it.
fn start<'a>(cron: &CronJob, around: &Around<'a, '_>, plan: &mut CronJobPlan<'a>) {
    let spec = &cron.spec;
    let zone = match &around.zone {
        Ok(zone) => zone,
        Err(why) => {
            let name = spec.time_zone.as_deref().unwrap_or("");
            let text = format!("invalid timeZone: {name:?}: {why}");
            return plan.notes.push((true, "UnknownTimeZone", text));
        }
    };
    let last = plan.status.last_schedule_time.as_ref().map(|time| time.0);
    let Due { time, next, notes } = due(cron, last, around.now, zone);
    plan.notes.extend(notes);
    plan.again_after = next.map(|next| wait(around.now, next));
    let Some(time) = time else { return };
    let name = job::name_for(cron, time);
    if around.jobs.iter().any(|job| job::name(job) == name) {
        // It was made for an earlier second of the same minute.
        plan.status.last_schedule_time = Some(Time(time));
        return;
    }
    if (around.is_taken)(&name) {
        return;
    }
    let active = plan.status.active.as_deref().unwrap_or_default();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let text = "Not starting job because prior execution is running and concurrency \
                policy is Forbid";
            return plan.notes.push((false, "JobAlreadyActive", text.to_owned()));
        }
        Some("Replace") => {
            let is_active = |job: &&Job| active.iter().any(|own| own.uid == job.metadata.uid);
            plan.delete.extend(around.jobs.iter().copied().filter(is_active));
            plan.status.active = None;
        }
        _ => {}
    }
    plan.create = Some(job::job(cron, time, zone));
}

/// How long it is until then.
fn wait(now: Timestamp, next: Timestamp) -> Duration {
    Duration::try_from(next.duration_since(now)).unwrap_or_default().min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests;
