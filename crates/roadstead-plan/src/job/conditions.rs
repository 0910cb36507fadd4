//! When a Job is over, and what it says about it.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Round, Work, indexes, pod};

/// How a Job ends.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    pub succeeded: bool,
    pub reason: String,
    pub message: String,
}

impl Verdict {
    fn new(succeeded: bool, reason: &str, message: &str) -> Self {
        Self { succeeded, reason: reason.to_owned(), message: message.to_owned() }
    }
}

/// Whether a status says that its Job is over.
pub fn is_finished(status: &JobStatus) -> bool {
    let mut all = status.conditions.iter().flatten();
    all.any(|own| matches!(own.type_.as_str(), "Complete" | "Failed") && own.status == "True")
}

/// How the Job ends, if that is decided. What was decided stays so.
pub(super) fn verdict(job: Work<'_>, status: &JobStatus, round: &Round<'_, '_>) -> Option<Verdict> {
    let mut told = status.conditions.iter().flatten().filter(|own| own.status == "True");
    let target =
        told.find(|own| matches!(own.type_.as_str(), "FailureTarget" | "SuccessCriteriaMet"));
    if let Some(target) = target {
        let succeeded = target.type_ == "SuccessCriteriaMet";
        let text = |own: &Option<String>| own.clone().unwrap_or_default();
        return Some(Verdict {
            succeeded,
            reason: text(&target.reason),
            message: text(&target.message),
        });
    }
    if job.spec.suspend == Some(true) {
        return None;
    }
    failure(job, status, round).or_else(|| success(job, round))
}

fn failure(job: Work<'_>, status: &JobStatus, round: &Round<'_, '_>) -> Option<Verdict> {
    if let Some(why) = &round.count.fatal {
        return Some(Verdict::new(false, "PodFailurePolicy", why));
    }
    let limit = job.spec.backoff_limit.unwrap_or(6);
    let policy = job.spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    let restarts = round.active().into_iter().map(pod::restarts).fold(0, i32::saturating_add);
    let often = policy == Some("OnFailure") && restarts > 0 && restarts >= limit;
    if round.count.all_failed > limit || often {
        let text = "Job has reached the specified backoff limit";
        return Some(Verdict::new(false, "BackoffLimitExceeded", text));
    }
    let start = status.start_time.as_ref().map(|time| time.0.as_second());
    let lasted = start.map(|start| round.now.as_second() - start);
    if job.spec.active_deadline_seconds.zip(lasted).is_some_and(|(most, lasted)| lasted >= most) {
        let text = "Job was active longer than specified deadline";
        return Some(Verdict::new(false, "DeadlineExceeded", text));
    }
    let failed = round.count.failed_indexes.len();
    let most = job.spec.max_failed_indexes.and_then(|most| usize::try_from(most).ok());
    if most.is_some_and(|most| failed > most) {
        let text = "Job has exceeded the specified maximal number of failed indexes";
        return Some(Verdict::new(false, "MaxFailedIndexesExceeded", text));
    }
    let all = usize::try_from(job.spec.completions.unwrap_or(0)).unwrap_or(0);
    (failed > 0 && failed + round.count.completed.len() >= all)
        .then(|| Verdict::new(false, "FailedIndexes", "Job has failed indexes"))
}

fn success(job: Work<'_>, round: &Round<'_, '_>) -> Option<Verdict> {
    let done = round.count.all_succeeded;
    let enough = match job.spec.completions {
        Some(all) => done >= all,
        None => done > 0 && round.active().is_empty(),
    };
    if enough {
        let text = "Reached expected number of succeeded pods";
        return Some(Verdict::new(true, "CompletionsReached", text));
    }
    let rules = job.spec.success_policy.iter().flat_map(|policy| &policy.rules);
    let end = job.spec.completions.unwrap_or(0);
    let completed = &round.count.completed;
    let matched = (0..).zip(rules).find(|(_, rule)| {
        let named = rule.succeeded_indexes.as_deref().map(|text| indexes::read(text, end));
        let good = match &named {
            Some(named) => named.intersection(completed).count(),
            None => completed.len(),
        };
        let most = rule.succeeded_count.and_then(|most| usize::try_from(most).ok());
        let needs = most.or(named.map(|named| named.len())).unwrap_or(usize::MAX);
        good >= needs
    });
    matched.map(|(number, _)| {
        Verdict::new(true, "SuccessPolicy", &format!("Matched rules at index {number}"))
    })
}

/// Says how the Job ends, and, once all its pods have ended, that it has.
pub(super) fn tell(
    status: &mut JobStatus,
    verdict: &Verdict,
    (is_over, now): (bool, Timestamp),
    notes: &mut Vec<(bool, &'static str, String)>,
) {
    let (target, end) = match verdict.succeeded {
        true => ("SuccessCriteriaMet", "Complete"),
        false => ("FailureTarget", "Failed"),
    };
    set(status, condition(target, "True", (&verdict.reason, &verdict.message)), now);
    if !is_over {
        return;
    }
    set(status, condition(end, "True", (&verdict.reason, &verdict.message)), now);
    if verdict.succeeded {
        status.completion_time = Some(second(now));
        notes.push((false, "Completed", "Job completed".to_owned()));
        return;
    }
    let reasons = ["BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy", "FailedIndexes"];
    let reason = reasons.into_iter().find(|own| *own == verdict.reason);
    notes.push((true, reason.unwrap_or("MaxFailedIndexesExceeded"), verdict.message.clone()));
}

/// Says whether the Job rests.
pub(super) fn suspension(
    status: &mut JobStatus,
    suspended: bool,
    now: Timestamp,
    notes: &mut Vec<(bool, &'static str, String)>,
) {
    let old = status.conditions.iter().flatten().find(|own| own.type_ == "Suspended");
    let was = old.is_some_and(|own| own.status == "True");
    if suspended == was {
        return;
    }
    let (value, reason, message) = match suspended {
        true => ("True", "JobSuspended", "Job suspended"),
        false => ("False", "JobResumed", "Job resumed"),
    };
    set(status, condition("Suspended", value, (reason, message)), now);
    notes.push((false, if suspended { "Suspended" } else { "Resumed" }, message.to_owned()));
}

fn condition(kind: &str, value: &str, (reason, message): (&str, &str)) -> JobCondition {
    JobCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..JobCondition::default()
    }
}

fn set(status: &mut JobStatus, mut new: JobCondition, now: Timestamp) {
    new.last_probe_time = Some(second(now));
    new.last_transition_time = Some(second(now));
    let all = status.conditions.get_or_insert_default();
    match all.iter_mut().find(|own| own.type_ == new.type_) {
        Some(old) if old.status == new.status => {}
        Some(old) => *old = new,
        None => all.push(new),
    }
}

fn second(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
