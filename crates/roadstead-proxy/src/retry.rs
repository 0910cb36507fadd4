//! When to try again after the kernel refused something.

use std::future;
use std::time::Duration;

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
    /// Takes in how an attempt went.
    pub(crate) fn note(&mut self, outcome: Result<(), CommitError>) {
        match outcome {
            Ok(()) if self.failures > 0 => {
                info!(failures = self.failures, "rules written again");
                *self = Self::default();
            }
            Ok(()) => {}
            Err(error) => {
                let delay = FIRST_RETRY.saturating_mul(1 << self.failures.min(16)).min(LAST_RETRY);
                let error = error.full_text();
                warn!(error, ?delay, "the kernel keeps its old rules, will retry");
                self.at = Some(time::Instant::now() + delay);
                self.failures += 1;
            }
        }
    }

    /// Waits until it is time; forever if nothing failed.
    pub(crate) async fn due(&self) {
        match self.at {
            Some(at) => time::sleep_until(at).await,
            None => future::pending().await,
        }
    }

    /// Changes that arrive meanwhile wait for the retry.
    pub(crate) fn too_early(&self) -> bool {
        self.at.is_some_and(|at| time::Instant::now() < at)
    }
}
