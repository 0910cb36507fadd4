//! What an autoscaler has recommended and done lately.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscaler};

/// No window is longer, and no period; older things do not matter.
const LONGEST: SignedDuration = SignedDuration::from_secs(3600);
/// Who looks more often than once a second forgets earlier.
const MOST: usize = 3600;

/// Recommendations and changes of the last hour.
#[derive(Debug, Default)]
pub struct History {
    recommended: VecDeque<(Timestamp, i32)>,
    /// By how much it was changed, up or down.
    changes: VecDeque<(Timestamp, i32)>,
}

impl History {
    /// The number that was there before anybody recommended one counts as recommended.
    pub(super) fn begin(&mut self, now: Timestamp, replicas: i32) {
        if self.recommended.is_empty() {
            self.recommended.push_back((now, replicas));
        }
    }

    /// Takes in a recommendation.
    pub(super) fn recommend(&mut self, now: Timestamp, replicas: i32) {
        self.recommended.push_back((now, replicas));
        forget(&mut self.recommended, now);
    }

    /// What was recommended within so many seconds.
    pub(super) fn within(&self, seconds: i32, now: Timestamp) -> impl Iterator<Item = i32> {
        let since = before(now, seconds);
        let young = self.recommended.iter().filter(move |(time, _)| *time > since);
        young.map(|(_, replicas)| *replicas)
    }

    /// Takes in that the number was changed. Only rules ask for it.
    pub(super) fn scaled(&mut self, scaler: &HorizontalPodAutoscaler, by: i32, now: Timestamp) {
        if scaler.spec.behavior.is_some() {
            self.changes.push_back((now, by));
            forget(&mut self.changes, now);
        }
    }

    /// How many replicas there were when a period began, if there are so many now.
    pub(super) fn at_begin(&self, current: i32, seconds: i32, now: Timestamp) -> i32 {
        let since = before(now, seconds);
        let young = self.changes.iter().filter(|(time, _)| *time > since);
        young.fold(current, |replicas, (_, by)| replicas.saturating_sub(*by))
    }
}

fn before(now: Timestamp, seconds: i32) -> Timestamp {
    now.checked_sub(SignedDuration::from_secs(seconds.into())).unwrap_or(Timestamp::MIN)
}

fn forget(entries: &mut VecDeque<(Timestamp, i32)>, now: Timestamp) {
    let oldest = now.checked_sub(LONGEST).unwrap_or(Timestamp::MIN);
    while entries.len() > MOST || entries.front().is_some_and(|(time, _)| *time < oldest) {
        entries.pop_front();
    }
}

/// How long recommendations of the past hold back the present one.
pub(super) fn window(rules: Option<&HPAScalingRules>, default: i32) -> i32 {
    rules.and_then(|rules| rules.stabilization_window_seconds).unwrap_or(default).max(0)
}
