//! Whether the time of a Job has come, and which others have passed.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::CronJob;
use roadstead_api::schedule::CronSchedule;

use super::Note;

/// Who has missed more times than this hears of it.
const MANY: usize = 100;

#[derive(Default)]
pub(super) struct Due {
    /// The time whose Job is to be made now.
    pub time: Option<Timestamp>,
    /// When the next one comes.
    pub next: Option<Timestamp>,
    pub notes: Vec<Note>,
}

/// Of the times since the last Job only the latest counts, and that only for a while, if it says so.
pub(super) fn due(cron: &CronJob, last: Option<Timestamp>, now: Timestamp, zone: &TimeZone) -> Due {
    let spec = &cron.spec;
    let mut notes = Vec::new();
    let text = &spec.schedule;
    if text.contains("TZ") {
        let says = format!(
            "CRON_TZ or TZ used in schedule {text:?} is not officially supported, see \
             https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
        );
        notes.push((true, "UnsupportedSchedule", says));
    }
    let schedule = match CronSchedule::parse(text) {
        Ok(schedule) => schedule,
        Err(why) => {
            let says = format!("unparseable schedule: {text:?} : {why}");
            notes.push((true, "UnparseableSchedule", says));
            return Due { notes, ..Due::default() };
        }
    };
    let created = cron.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let since = last.or(created).unwrap_or(now);
    let next = schedule.next(now, since, zone);
    let time = schedule.latest(since, now, zone);
    if next.is_none() && time.is_none() {
        let says = format!(
            "invalid schedule: {text} : time difference between two schedules is less than 1 second"
        );
        notes.push((true, "InvalidSchedule", says));
    }
    let patience = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let deadline = patience.and_then(|patience| now.checked_sub(patience).ok());
    let late = |time: &Timestamp| deadline.is_some_and(|deadline| *time < deadline);
    if let Some(missed) = time.filter(late) {
        let says = missed.strftime("%a, %d %b %Y %H:%M:%S +0000");
        let says = format!("Missed scheduled time to start a job: {says}");
        notes.push((true, "MissSchedule", says));
        return Due { time: None, next, notes };
    }
    if time.is_some() {
        let from = deadline.map_or(since, |deadline| since.max(deadline));
        let mut passed = from;
        let following = std::iter::from_fn(|| {
            passed = schedule.next(passed, since, zone).filter(|next| *next <= now)?;
            Some(passed)
        });
        if following.take(MANY + 1).count() > MANY {
            let says = "too many missed start times. Set or decrease \
                .spec.startingDeadlineSeconds or check clock skew";
            notes.push((true, "TooManyMissedTimes", says.to_owned()));
        }
    }
    Due { time, next, notes }
}
