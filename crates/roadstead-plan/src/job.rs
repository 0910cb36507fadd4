//! The pods of a Job: how many run, how their ends are counted, and when the Job is over.
//!
//! Every end is counted once, whatever fails in between: a pod keeps a finalizer until its uid is in the
//! Job's list of uncounted ones, and moves from that list to the numbers once the finalizer is gone
//! (KEP-2307).

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pods::{count, some};

mod conditions;
mod counting;
mod indexes;
mod pod;
mod policy;

pub use conditions::is_finished;
pub use pod::FINALIZER;

use conditions::verdict;
use counting::Count;

/// After a failure the next pod waits this long, and twice as long after the next one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// How many pods one plan creates or deletes at most.
const BURST: usize = 500;

/// The writes that bring a Job closer to its end.
#[derive(Debug, Default)]
pub struct JobPlan<'a> {
    /// What is true now, before the writes below; written before finalizers are removed.
    pub status: JobStatus,
    /// Pods that may go: they are in the status.
    pub release: Vec<&'a Pod>,
    /// Pods to make.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<&'a Pod>,
    /// Whether the Job itself is to go.
    pub expired: bool,
    /// When to look again even if nothing happens.
    pub again_after: Option<Duration>,
    /// What to tell: whether it is a warning, reason and message.
    pub notes: Vec<(bool, &'static str, String)>,
}

/// A Job that says what it is.
#[derive(Clone, Copy)]
struct Work<'b> {
    job: &'b Job,
    spec: &'b JobSpec,
}

/// Plans the pods of a Job, given those that it controls.
pub fn plan<'a>(job: &Job, pods: &[&'a Pod], now: Timestamp) -> JobPlan<'a> {
    match &job.spec {
        Some(spec) => plan_work(Work { job, spec }, pods, now),
        None => JobPlan::default(),
    }
}

fn plan_work<'a>(work: Work<'_>, pods: &[&'a Pod], now: Timestamp) -> JobPlan<'a> {
    let Work { job, spec } = work;
    let old = job.status.clone().unwrap_or_default();
    if is_finished(&old) {
        return finished(work, pods, now);
    }
    let mut plan = JobPlan::default();
    let suspended = spec.suspend == Some(true);
    let count = Count::take(work, pods, &old);
    let round = Round { job: work, now, pods, count: &count };
    let mut status = round.status(&old, suspended);
    let verdict = verdict(work, &status, &round);
    conditions::suspension(&mut status, suspended, now, &mut plan.notes);
    let going = job.metadata.deletion_timestamp.is_some();
    match &verdict {
        Some(verdict) => {
            plan.delete = round.active();
            let is_over = plan.delete.is_empty() && round.leaving() == 0 && count.is_settled();
            conditions::tell(&mut status, verdict, (is_over, now), &mut plan.notes);
        }
        None if suspended => round.let_go(round.active(), &mut plan),
        None if going => {}
        None => round.manage(&mut plan),
    }
    plan.delete.truncate(BURST);
    plan.release.extend(&count.release);
    plan.again_after = plan.again_after.or(round.deadline(&status));
    plan.status = status;
    plan
}

/// A Job that is over: what is left of its pods is let go, and some day it goes itself.
fn finished<'a>(work: Work<'_>, pods: &[&'a Pod], now: Timestamp) -> JobPlan<'a> {
    let Work { job, spec } = work;
    let status = job.status.clone().unwrap_or_default();
    let ended = status.completion_time.clone().map(|time| time.0).or_else(|| {
        let mut all = status.conditions.iter().flatten();
        let over = all.find(|own| own.type_ == "Failed" && own.status == "True")?;
        over.last_transition_time.as_ref().map(|time| time.0)
    });
    let left = spec
        .ttl_seconds_after_finished
        .zip(ended)
        .map(|(patience, ended)| i64::from(patience) - (now.as_second() - ended.as_second()));
    let going = job.metadata.deletion_timestamp.is_some();
    JobPlan {
        status,
        release: pods.iter().copied().filter(|pod| pod::is_tracked(pod)).collect(),
        expired: !going && left.is_some_and(|left| left <= 0),
        again_after: left.filter(|left| *left > 0).map(|left| Duration::from_secs(left as u64)),
        ..JobPlan::default()
    }
}

/// One look at a Job that is not over.
struct Round<'a, 'b> {
    job: Work<'b>,
    now: Timestamp,
    pods: &'b [&'a Pod],
    count: &'b Count<'a>,
}

impl<'a> Round<'a, '_> {
    /// Pods that may still end well.
    fn active(&self) -> Vec<&'a Pod> {
        let all = self.pods.iter().copied();
        all.filter(|pod| !pod::is_terminal(pod) && !pod::is_leaving(pod)).collect()
    }

    /// How many pods were asked to go and have not ended.
    fn leaving(&self) -> usize {
        let all = self.pods.iter();
        all.filter(|pod| !pod::is_terminal(pod) && pod::is_leaving(pod)).count()
    }

    fn status(&self, old: &JobStatus, suspended: bool) -> JobStatus {
        let active = self.active();
        let start = old.start_time.clone().filter(|_| !suspended);
        let second = Time(Timestamp::from_second(self.now.as_second()).unwrap_or(self.now));
        JobStatus {
            active: some(active.len()),
            ready: Some(count(active.iter().filter(|pod| pod::is_ready(pod)).count())),
            terminating: Some(count(self.leaving())),
            start_time: if suspended { None } else { start.or(Some(second)) },
            succeeded: Some(self.count.succeeded).filter(|number| *number > 0),
            failed: Some(self.count.failed).filter(|number| *number > 0),
            completed_indexes: self.is_indexed().then(|| indexes::text(&self.count.completed)),
            failed_indexes: self
                .limit_per_index()
                .map(|_| indexes::text(&self.count.failed_indexes)),
            uncounted_terminated_pods: Some(self.count.uncounted.clone()),
            conditions: old.conditions.clone(),
            completion_time: None,
        }
    }

    /// Makes pods or takes some away, so that as many run as should.
    fn manage(&self, plan: &mut JobPlan<'a>) {
        let active = self.active();
        let wanted = self.wanted(active.len());
        if active.len() > wanted {
            self.let_go(pod::least_useful(active, wanted), plan);
            return;
        }
        let waits_for_ends = self.job.spec.pod_replacement_policy.as_deref() == Some("Failed");
        let leaving = if waits_for_ends { self.leaving() } else { 0 };
        let room = wanted.saturating_sub(active.len() + leaving).min(BURST);
        if room == 0 {
            return;
        }
        if self.is_indexed() {
            self.fill_indexes(room, plan);
            return;
        }
        match self.pause(None) {
            Some(pause) => plan.again_after = Some(pause),
            None => plan.create = vec![pod::pod(self.job, None, 0); room],
        }
    }

    /// Takes pods away that have not failed. They are nobody's failures, so nobody counts them: they lose
    /// their finalizer first, and go once that is seen.
    fn let_go(&self, pods: Vec<&'a Pod>, plan: &mut JobPlan<'a>) {
        (plan.release, plan.delete) = pods.into_iter().partition(|pod| pod::is_tracked(pod));
    }

    fn fill_indexes(&self, room: usize, plan: &mut JobPlan<'a>) {
        let waits_for_ends = self.job.spec.pod_replacement_policy.as_deref() == Some("Failed");
        let here = self
            .pods
            .iter()
            .filter(|pod| !pod::is_terminal(pod) && (waits_for_ends || !pod::is_leaving(pod)));
        let taken: BTreeSet<_> = here.filter_map(|pod| pod::index(pod)).collect();
        for index in 0..self.job.spec.completions.unwrap_or(0) {
            let is_done = self.count.completed.contains(&index)
                || self.count.failed_indexes.contains(&index)
                || taken.contains(&index);
            if is_done || plan.create.len() == room {
                continue;
            }
            let own = self.limit_per_index().map(|_| index);
            match self.pause(own) {
                Some(pause) => {
                    plan.again_after =
                        Some(plan.again_after.map_or(pause, |other| other.min(pause)));
                }
                None => {
                    let failures = self.count.failures_of(index, self.pods);
                    plan.create.push(pod::pod(self.job, Some(index), failures));
                }
            }
        }
    }

    /// How many pods should run.
    fn wanted(&self, active: usize) -> usize {
        let most = usize::try_from(self.job.spec.parallelism.unwrap_or(1)).unwrap_or(0);
        let done = usize::try_from(self.count.all_succeeded).unwrap_or(0);
        match self.job.spec.completions.and_then(|all| usize::try_from(all).ok()) {
            Some(all) => most.min(all.saturating_sub(done + self.count.failed_indexes.len())),
            // Who takes from a queue ends when it is empty: then nobody else begins.
            None if done > 0 => most.min(active),
            None => most,
        }
    }

    /// How long the next pod has to wait because of those before it, of an index or of all.
    fn pause(&self, index: Option<i32>) -> Option<Duration> {
        let own = self.pods.iter().filter(|pod| index.is_none() || pod::index(pod) == index);
        // Those that were let go say nothing about how it went.
        let ended = own
            .filter(|pod| pod::is_terminal(pod) && (pod::is_tracked(pod) || !pod::is_leaving(pod)));
        let mut ends: Vec<_> =
            ended.map(|pod| (pod::ended(pod), pod::has_succeeded(pod))).collect();
        ends.sort();
        let failures = ends.iter().rev().take_while(|(_, succeeded)| !succeeded).count();
        let last = ends.last().filter(|_| failures > 0)?.0?;
        let doubled = 1_u32.checked_shl(u32::try_from(failures - 1).ok()?).unwrap_or(u32::MAX);
        let pause = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
        let waited = u64::try_from(self.now.as_second() - last.as_second()).unwrap_or(0);
        pause.checked_sub(Duration::from_secs(waited)).filter(|rest| !rest.is_zero())
    }

    /// When the Job has had its time.
    fn deadline(&self, status: &JobStatus) -> Option<Duration> {
        let start = status.start_time.as_ref()?.0;
        let left =
            self.job.spec.active_deadline_seconds? - (self.now.as_second() - start.as_second());
        u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_secs)
    }

    fn is_indexed(&self) -> bool {
        self.job.spec.completion_mode.as_deref() == Some("Indexed")
    }

    fn limit_per_index(&self) -> Option<i32> {
        self.job.spec.backoff_limit_per_index.filter(|_| self.is_indexed())
    }
}

#[cfg(test)]
mod tests;
