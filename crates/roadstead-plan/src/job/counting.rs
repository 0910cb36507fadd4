//! How the ends of pods are counted, each once.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;

use super::{Work, indexes, pod, policy};

/// The numbers after this look.
#[derive(Debug, Default)]
pub(super) struct Count<'a> {
    /// Pods that ended well and are counted; of Jobs with indexes, the indexes.
    pub succeeded: i32,
    /// The same, with those in the list.
    pub all_succeeded: i32,
    /// Pods that failed and are counted.
    pub failed: i32,
    /// The same, with those in the list.
    pub all_failed: i32,
    pub completed: BTreeSet<i32>,
    pub failed_indexes: BTreeSet<i32>,
    /// Pods that have ended and may still have their finalizer.
    pub uncounted: UncountedTerminatedPods,
    /// Those that may lose it.
    pub release: Vec<&'a Pod>,
    /// Why the Job fails because of one of them.
    pub fatal: Option<String>,
}

impl<'a> Count<'a> {
    pub(super) fn take(job: Work<'_>, pods: &[&'a Pod], old: &JobStatus) -> Self {
        let end = job.spec.completions.unwrap_or(0);
        let set = |text: &Option<String>| indexes::read(text.as_deref().unwrap_or(""), end);
        let listed = old.uncounted_terminated_pods.clone().unwrap_or_default();
        let (was_good, was_bad) =
            (listed.succeeded.unwrap_or_default(), listed.failed.unwrap_or_default());
        let mut count = Self {
            succeeded: old.succeeded.unwrap_or(0),
            failed: old.failed.unwrap_or(0),
            completed: set(&old.completed_indexes),
            failed_indexes: set(&old.failed_indexes),
            ..Self::default()
        };
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let tracked: BTreeSet<_> =
            pods.iter().filter(|pod| pod::is_tracked(pod)).map(|pod| uid(pod)).collect();
        // What has lost its finalizer is in the numbers for good.
        let (good, counted): (Vec<_>, Vec<_>) =
            was_good.into_iter().partition(|uid| tracked.contains(uid));
        count.succeeded += i32::try_from(counted.len()).unwrap_or(0);
        let (bad, counted): (Vec<_>, Vec<_>) =
            was_bad.into_iter().partition(|uid| tracked.contains(uid));
        count.failed += i32::try_from(counted.len()).unwrap_or(0);
        let (mut good, mut bad) = (good, bad);
        for pod in pods.iter().filter(|pod| pod::is_tracked(pod)) {
            let uid = uid(pod);
            if good.contains(&uid) || bad.contains(&uid) {
                count.release.push(pod);
            } else if pod::has_succeeded(pod) {
                count.release.push(pod);
                count.note_success(job, pod, uid, &mut good);
            } else if has_failed(job, pod) {
                count.release.push(pod);
                count.note_failure(job, pod, uid, &mut bad);
            }
        }
        if job.spec.completion_mode.as_deref() == Some("Indexed") {
            count.succeeded = i32::try_from(count.completed.len()).unwrap_or(i32::MAX);
            good.clear();
        }
        count.all_failed = count.failed.saturating_add(i32::try_from(bad.len()).unwrap_or(0));
        let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
        count.all_succeeded =
            count.succeeded.saturating_add(i32::try_from(good.len()).unwrap_or(0));
        count.uncounted = UncountedTerminatedPods { succeeded: some(good), failed: some(bad) };
        count
    }

    fn note_success(&mut self, job: Work<'_>, pod: &Pod, uid: String, good: &mut Vec<String>) {
        match (job.spec.completion_mode.as_deref(), pod::index(pod)) {
            (Some("Indexed"), Some(index)) if index < job.spec.completions.unwrap_or(0) => {
                self.completed.insert(index);
            }
            (Some("Indexed"), _) => {}
            _ => good.push(uid),
        }
    }

    fn note_failure(&mut self, job: Work<'_>, pod: &Pod, uid: String, bad: &mut Vec<String>) {
        let action = policy::action(job, pod);
        if let policy::Action::FailJob(why) = &action {
            self.fatal.get_or_insert(why.clone());
        }
        if action == policy::Action::Ignore {
            return;
        }
        bad.push(uid);
        let Some((limit, index)) = job.spec.backoff_limit_per_index.zip(pod::index(pod)) else {
            return;
        };
        let is_last = pod::earlier_failures(pod) >= limit || action == policy::Action::FailIndex;
        if is_last && !self.completed.contains(&index) {
            self.failed_indexes.insert(index);
        }
    }

    /// How often an index has failed, as its pods say.
    pub(super) fn failures_of(&self, index: i32, pods: &[&Pod]) -> i32 {
        let own = pods.iter().filter(|pod| pod::index(pod) == Some(index));
        own.map(|pod| pod::earlier_failures(pod).saturating_add(1)).max().unwrap_or(0)
    }

    /// Whether nothing waits to be counted.
    pub(super) fn is_settled(&self) -> bool {
        self.release.is_empty() && self.uncounted == UncountedTerminatedPods::default()
    }
}

/// A pod that somebody has asked to go counts as failed at once, unless its end is waited for.
fn has_failed(job: Work<'_>, pod: &Pod) -> bool {
    let waits = job.spec.pod_replacement_policy.as_deref() == Some("Failed");
    pod::is_terminal(pod) || (pod::is_leaving(pod) && !waits)
}
