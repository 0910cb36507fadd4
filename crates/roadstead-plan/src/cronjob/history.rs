//! How many Jobs stay that have ended.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJobSpec, Job};

use super::job;

/// Those that ended well and those that did not are counted apart; the oldest go.
pub(super) fn surplus<'a>(spec: &CronJobSpec, jobs: &[&'a Job]) -> Vec<&'a Job> {
    let limits = [
        ("Complete", spec.successful_jobs_history_limit),
        ("Failed", spec.failed_jobs_history_limit),
    ];
    let mut surplus = Vec::new();
    for (outcome, limit) in limits {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { continue };
        let ended = jobs.iter().copied().filter(|job| job::outcome(job) == Some(outcome));
        let mut ended: Vec<_> = ended.collect();
        ended.sort_by_cached_key(|job| (begun(job), job::name(job).to_owned()));
        ended.truncate(ended.len().saturating_sub(limit));
        surplus.extend(ended.into_iter().filter(|job| job.metadata.deletion_timestamp.is_none()));
    }
    surplus
}

fn begun(job: &Job) -> Option<Timestamp> {
    let status = job.status.as_ref().and_then(|status| status.start_time.as_ref());
    status.or(job.metadata.creation_timestamp.as_ref()).map(|time| time.0)
}
