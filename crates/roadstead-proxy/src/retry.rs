//! When to write again: after the kernel refused something, and after it took something.

use std::future;
use std::time::Duration;

use roadstead_forwarding::service::IpFamily;
use tokio::time;
use tracing::{info, warn};

use crate::plane::CommitError;

/// The first retry after a failed commit; each further one waits twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// No retry waits longer than this.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// When to try again after a failure.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    at: Option<time::Instant>,
    failures: u32,
}

impl Retry {
    /// The kernel took it.
    pub(crate) fn note_success(&mut self, family: IpFamily) {
        if self.failures > 0 {
            info!(?family, failures = self.failures, "rules written again");
            *self = Self::default();
        }
    }

    /// The kernel refused it.
    pub(crate) fn note_failure(&mut self, family: IpFamily, error: &CommitError) {
        let delay = FIRST_RETRY.saturating_mul(1 << self.failures.min(16)).min(LAST_RETRY);
        let error = error.full_text();
        warn!(?family, error, ?delay, "the kernel keeps its old rules, will retry");
        self.at = Some(time::Instant::now() + delay);
        self.failures += 1;
    }

    /// When to try again, if something failed.
    pub(crate) fn at(&self) -> Option<time::Instant> {
        self.at
    }

    /// Changes that arrive meanwhile wait for the retry.
    pub(crate) fn too_early(&self) -> bool {
        self.at.is_some_and(|at| time::Instant::now() < at)
    }
}

/// A pause after a write, so that others get their turn with the kernel.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    until: Option<time::Instant>,
    waiting: bool,
}

impl Rest {
    /// Everything is written; the next write comes so much after the beginning of this one.
    pub(crate) fn begin(&mut self, from: time::Instant, pause: Duration) {
        let until = (!pause.is_zero()).then(|| from + pause);
        *self = Self { until, waiting: false };
    }

    /// Something has to wait.
    pub(crate) fn note_waiting(&mut self) {
        self.waiting = true;
    }

    /// Whether it is too early to write.
    pub(crate) fn is_on(&self) -> bool {
        self.until.is_some_and(|until| time::Instant::now() < until)
    }

    /// When it is over, if somebody waits for that.
    pub(crate) fn end(&self) -> Option<time::Instant> {
        self.until.filter(|_| self.waiting)
    }
}

/// Waits until then; forever if there is nothing to wait for.
pub(crate) async fn until(at: Option<time::Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_ends_only_for_those_who_wait() {
        let now = time::Instant::now();
        let (long, short) = (Duration::from_secs(60), Duration::ZERO);
        let mut rest = Rest::default();
        assert!(!rest.is_on(), "nothing was written yet");
        rest.begin(now, short);
        assert!(!rest.is_on() && rest.end().is_none(), "no pause is wanted");
        rest.begin(now, long);
        assert!(rest.is_on() && rest.end().is_none(), "nothing to write");
        rest.note_waiting();
        assert_eq!(rest.end(), Some(now + long));
        rest.begin(now, long);
        assert_eq!(rest.end(), None, "everything is written");
    }
}
