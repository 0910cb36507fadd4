//! When to try again what failed.

use std::future;
use std::time::Duration;

use tokio::time::{self, Instant};

/// Paces the retries of something that is refused: each waits twice as long as the one before.
#[derive(Clone, Debug)]
pub struct RetryPacer {
    first: Duration,
    longest: Duration,
    failures: u32,
    retry_at: Option<Instant>,
}

impl RetryPacer {
    /// The first retry waits for so long, and none for longer than that. The first try may come at once.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0, retry_at: None }
    }

    /// It was refused; returns for how long it has to wait now.
    pub fn note_failure(&mut self) -> Duration {
        let delay = self.first.saturating_mul(1 << self.failures.min(16)).min(self.longest);
        self.retry_at = Some(Instant::now() + delay);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// It worked; returns how often it had been refused before.
    pub fn note_success(&mut self) -> u32 {
        self.retry_at = None;
        std::mem::take(&mut self.failures)
    }

    /// How often it was refused since it last worked.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether it may be tried now.
    pub fn is_due(&self) -> bool {
        self.retry_at.is_none_or(|at| at <= Instant::now())
    }

    /// When to try again, if it was refused.
    pub fn next_time(&self) -> Option<Instant> {
        self.retry_at
    }
}

/// Waits until then; forever if there is nothing to wait for.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => future::pending().await,
    }
}

#[tokio::test(start_paused = true)]
async fn retries_wait_longer_and_longer() {
    let millis = Duration::from_millis;
    let mut pacer = RetryPacer::new(millis(50), millis(300));
    assert!(pacer.is_due() && pacer.next_time().is_none(), "nothing has failed yet");
    let mut waits = Vec::new();
    for failures in 1..=5 {
        waits.push(pacer.note_failure().as_millis());
        assert!(!pacer.is_due());
        assert_eq!(pacer.failures(), failures);
        until(pacer.next_time()).await;
        assert!(pacer.is_due());
    }
    assert_eq!(waits, [50, 100, 200, 300, 300]);
    assert_eq!(pacer.note_success(), 5);
    assert_eq!((pacer.note_success(), pacer.note_failure()), (0, millis(50)), "it begins anew");
    for _ in 0..100 {
        assert!(pacer.note_failure() <= millis(300), "however often");
    }
}
