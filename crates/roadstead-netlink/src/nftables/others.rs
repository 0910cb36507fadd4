//! Telling our own commits to nftables from those of others, who may destroy what is ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often this process has committed to nftables. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct OwnCommits(Arc<AtomicU32>);

impl OwnCommits {
    /// How often, since it was made.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// So many more.
    pub fn note_commits(&self, count: u32) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// Checking takes at most one part in so many of our time,
const SHARE: u32 = 10;
/// but what somebody destroys is to be healed within a second.
const LONGEST: Duration = Duration::from_millis(600);
const SHORTEST: Duration = Duration::from_millis(250);

/// Spaces out the checks whether our rules are still there, while somebody else keeps changing
/// theirs: when the last one ended, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckPacer {
    last: Option<(Instant, Duration)>,
}

impl CheckPacer {
    /// Whether enough time has passed since the last check.
    pub fn may_check(&self, now: Instant) -> bool {
        self.last.is_none_or(|(ended, took)| {
            now.saturating_duration_since(ended) >= (took * SHARE).clamp(SHORTEST, LONGEST)
        })
    }

    /// A check began and ended then. Where something was amiss, the next one need not wait.
    pub fn note_check(&mut self, began: Instant, ended: Instant, intact: bool) {
        self.last = intact.then(|| (ended, ended.saturating_duration_since(began)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_spaced_by_what_they_cost() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(CheckPacer::default().may_check(start), "the first");
        let cases = [(1, 200, false), (1, 260, true), (40, 300, false), (40, 450, true)];
        let long = [(500, 900, false), (500, 1_110, true), (5_000, 5_700, true)];
        for (took, at, want) in cases.into_iter().chain(long) {
            let mut pacer = CheckPacer::default();
            pacer.note_check(start, after(took), true);
            assert_eq!(pacer.may_check(after(at)), want, "{took} ms, checking after {at} ms");
            pacer.note_check(start, after(took), false);
            assert!(pacer.may_check(after(at)), "after damage");
        }
    }
}
