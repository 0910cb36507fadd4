//! One Job of a CronJob.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::SCHEDULED;
use crate::owner::controlled_by;

pub(super) fn name(job: &Job) -> &str {
    job.metadata.name.as_deref().unwrap_or("")
}

/// How the Job of that time is called: by the minutes since 1970.
pub(super) fn name_for(cron: &CronJob, time: Timestamp) -> String {
    let own = cron.metadata.name.as_deref().unwrap_or("");
    format!("{own}-{}", time.as_second().div_euclid(60))
}

/// For which time the controller has made it; `None` if somebody else did.
pub(super) fn scheduled(cron: &CronJob, job: &Job) -> Option<Timestamp> {
    let annotation = job.metadata.annotations.as_ref()?.get(SCHEDULED)?;
    let time: Timestamp = annotation.parse().ok()?;
    (name_for(cron, time) == name(job)).then_some(time)
}

/// `Complete` or `Failed`, once it is over.
pub(super) fn outcome(job: &Job) -> Option<&'static str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let holds =
        |kind: &&str| conditions.iter().any(|own| own.type_ == *kind && own.status == "True");
    ["Complete", "Failed"].into_iter().find(holds)
}

pub(super) fn completed(job: &Job) -> Option<Timestamp> {
    job.status.as_ref()?.completion_time.as_ref().map(|time| time.0)
}

/// How the status of its CronJob names it.
pub(super) fn reference(job: &Job) -> ObjectReference {
    let metadata = &job.metadata;
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        field_path: None,
    }
}

/// The Job of that time.
pub(super) fn job(cron: &CronJob, time: Timestamp, zone: &TimeZone) -> Job {
    let template = cron.spec.job_template.clone();
    let metadata = template.metadata.unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), shown(time, zone));
    Job {
        metadata: ObjectMeta {
            name: Some(name_for(cron, time)),
            namespace: cron.metadata.namespace.clone(),
            labels: metadata.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controlled_by(cron)]),
            ..Default::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// RFC 3339, as the clocks of the zone show it.
fn shown(time: Timestamp, zone: &TimeZone) -> String {
    let offset = zone.to_offset(time);
    match offset.is_zero() {
        true => time.to_string(),
        false => time.display_with_offset(offset).to_string(),
    }
}
