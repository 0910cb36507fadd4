//! Who is next, and when it is worth trying a pod again that has found no place.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use roadstead_api::key::ObjectKey;
use roadstead_plan::scheduler::{Occasion, Wakeups};
use roadstead_watch::queue::{Backoff, Queue};
use tokio::time::Instant;

/// However often something changes, a pod is not tried more often than this.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
/// Even if nothing changes.
const ANYWAY: Backoff =
    Backoff { first: Duration::from_secs(30), longest: Duration::from_secs(300) };

/// A pod in line: the most important first, among them the oldest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    priority: Reverse<i32>,
    since: Option<Timestamp>,
    pub(super) key: ObjectKey,
}

impl Turn {
    pub(super) fn of(key: &ObjectKey, pod: &Pod) -> Self {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        let since = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Self { priority: Reverse(priority), since, key: key.clone() }
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

/// Pods that have found no place.
#[derive(Debug, Default)]
pub(super) struct Line {
    attempts: BTreeMap<ObjectKey, Attempt>,
    /// What the last change may mean for them.
    pub(super) occasions: Vec<Occasion>,
}

#[derive(Debug)]
struct Attempt {
    turn: Turn,
    failures: u32,
    not_before: Instant,
    wakeups: Wakeups,
}

impl Line {
    /// Notes that a pod has found no place; returns when it is tried again even if nothing happens.
    pub(super) fn failed(&mut self, turn: &Turn, wakeups: Wakeups) -> Duration {
        let failures = self.attempts.get(&turn.key).map_or(0, |known| known.failures);
        let not_before = Instant::now() + BACKOFF.after(failures);
        let attempt = Attempt {
            turn: turn.clone(),
            failures: failures.saturating_add(1),
            not_before,
            wakeups,
        };
        self.attempts.insert(turn.key.clone(), attempt);
        ANYWAY.after(failures)
    }

    /// The pod waits no more, or is another one.
    pub(super) fn leave(&mut self, key: &ObjectKey) {
        self.attempts.remove(key);
    }

    /// Queues all whom the last change may help.
    pub(super) fn wake_for_change(&self, queue: &mut Queue<Turn>) {
        self.wake(&self.occasions, queue);
    }

    /// Queues all whom this may help, each as soon as it may be tried again.
    pub(super) fn wake(&self, occasions: &[Occasion], queue: &mut Queue<Turn>) {
        for (turn, delay) in self.helped_by(occasions) {
            match delay {
                Duration::ZERO => queue.add(turn),
                delay => queue.add_after(turn, delay),
            }
        }
    }

    /// All whom this may help, and how long each has to wait at least.
    pub(super) fn helped_by(&self, occasions: &[Occasion]) -> Vec<(Turn, Duration)> {
        if occasions.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let is_helped = |attempt: &&Attempt| {
            occasions.iter().any(|occasion| attempt.wakeups.include(*occasion))
        };
        let helped = self.attempts.values().filter(is_helped).map(|attempt| {
            (attempt.turn.clone(), attempt.not_before.saturating_duration_since(now))
        });
        helped.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use roadstead_plan::scheduler::volumes::VolumeNeeds;
    use roadstead_plan::scheduler::{Decision, Occupancy, decide};
    use serde_json::json;

    fn pod(name: &str, priority: i32, second: i64) -> (ObjectKey, Pod) {
        let created = Timestamp::from_second(second).unwrap().to_string();
        let pod = json!({"metadata": {"name": name, "creationTimestamp": created},
            "spec": {"priority": priority, "containers": []}});
        (ObjectKey::new("", name), serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn the_most_important_then_the_oldest() {
        let pods = [pod("young", 0, 9), pod("old", 0, 1), pod("high", 7, 20), pod("low", -1, 0)];
        let mut turns: Vec<_> = pods.iter().map(|(key, pod)| Turn::of(key, pod)).collect();
        turns.sort();
        let names: Vec<_> = turns.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["high", "old", "young", "low"]);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_matter_wake_but_not_too_often() {
        let mut cluster = Occupancy::default();
        let node = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}});
        cluster.observe_node("n", Some(&serde_json::from_value::<Node>(node).unwrap()));
        let (key, pod) = pod("p", 0, 0);
        let found = decide(&pod, &mut cluster, &VolumeNeeds::default());
        let Decision::Wait(refusal) = found else { panic!("{found:?}") };
        let (mut line, mut queue) = (Line::default(), Queue::default());
        let turn = Turn::of(&key, &pod);
        let anyway: Vec<_> =
            (0..5).map(|_| line.failed(&turn, refusal.wakeups).as_secs()).collect();
        assert_eq!(anyway, [30, 60, 120, 240, 300]);
        line.wake(&[Occasion::PodGone], &mut queue);
        assert_eq!(queue.counts().later, 0, "the node is cordoned");
        line.wake(&[Occasion::NodeChanged], &mut queue);
        assert_eq!((queue.counts().due, queue.counts().later), (0, 1), "it was tried just now");
        let before = Instant::now();
        queue.ready().await;
        assert_eq!(before.elapsed(), Duration::from_millis(1600));
        line.leave(&key);
        queue.pop();
        line.wake(&[Occasion::NodeChanged], &mut queue);
        assert_eq!(queue.counts().due, 0);
    }
}
