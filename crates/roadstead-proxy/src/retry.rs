//! When to try again after the kernel refused something.

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

/// Waits until then; forever if there is nothing to wait for.
pub(crate) async fn until(at: Option<time::Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => future::pending().await,
    }
}
