//! When to write again, after the kernel refused something and after it took something.

use std::time::Duration;

use roadstead_component::pacer::RetryPacer;
use roadstead_forwarding::service::IpFamily;
use tokio::time;
use tracing::{info, warn};

use crate::data_plane::CommitError;

/// The first retry after a failed commit; each further one waits twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// No retry waits longer than this.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Paces the commits of one address family.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// What the operator wants between the beginnings of two commits (`minSyncPeriod`).
    shortest_pause: Duration,
    retries: RetryPacer,
    /// Until then others have their turn with the kernel.
    pause_until: Option<time::Instant>,
    /// Whether something waits for the end of the pause.
    waiting: bool,
}

impl Pacer {
    /// The first commit may come at once.
    pub(crate) fn new(shortest_pause: Duration) -> Self {
        let retries = RetryPacer::new(FIRST_RETRY, LAST_RETRY);
        Self { shortest_pause, retries, pause_until: None, waiting: false }
    }

    /// Everything was written in a commit that began then; the next one begins so much later.
    pub(crate) fn pause(&mut self, began: time::Instant, pause: Duration) {
        let pause = pause.max(self.shortest_pause);
        self.pause_until = (!pause.is_zero()).then(|| began + pause);
        self.waiting = false;
    }

    /// Something has to wait.
    pub(crate) fn note_waiting(&mut self) {
        self.waiting = true;
    }

    /// The kernel took it.
    pub(crate) fn note_success(&mut self, family: IpFamily) {
        let failures = self.retries.note_success();
        if failures > 0 {
            info!(?family, failures, "rules written again");
        }
    }

    /// The kernel refused it.
    pub(crate) fn note_failure(&mut self, family: IpFamily, error: &CommitError) {
        let (error, delay) = (error.full_text(), self.retries.note_failure());
        warn!(?family, error, ?delay, "the kernel keeps its old rules, will retry");
    }

    /// Whether it was refused twice in a row or more often.
    pub(crate) fn has_failed_again(&self) -> bool {
        self.retries.failures() > 1
    }

    /// Whether to commit now. Changes that arrive meanwhile wait for the retry, or for the end of
    /// the pause.
    pub(crate) fn is_due(&self) -> bool {
        self.retries.is_due() && self.pause_until.is_none_or(|at| at <= time::Instant::now())
    }

    /// When to commit what failed, or what waits.
    pub(crate) fn next_time(&self) -> Option<time::Instant> {
        self.retries.next_time().or(self.pause_until.filter(|_| self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_only_for_those_who_wait() {
        let now = time::Instant::now();
        let (long, short) = (Duration::from_secs(60), Duration::ZERO);
        let mut pacer = Pacer::new(Duration::ZERO);
        assert!(pacer.is_due(), "nothing was written yet");
        pacer.pause(now, short);
        assert!(pacer.is_due() && pacer.next_time().is_none(), "no pause is wanted");
        pacer.pause(now, long);
        assert!(!pacer.is_due() && pacer.next_time().is_none(), "nothing to write");
        pacer.note_waiting();
        assert_eq!(pacer.next_time(), Some(now + long));
        pacer.pause(now, long);
        assert_eq!(pacer.next_time(), None, "everything is written");
    }
}
