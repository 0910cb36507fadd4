//! How often to look whether our rules are still there, while somebody else keeps changing theirs.

use std::time::{Duration, Instant};

/// Looking takes at most one part in so many of our time,
const SHARE: u32 = 10;
/// but what somebody destroys is to be healed within a second.
const LONGEST: Duration = Duration::from_millis(600);
const SHORTEST: Duration = Duration::from_millis(250);

/// When we last looked, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// Whether enough time has passed since the last look.
    pub(crate) fn may_look(&self, now: Instant) -> bool {
        self.last.is_none_or(|(ended, took)| {
            now.saturating_duration_since(ended) >= (took * SHARE).clamp(SHORTEST, LONGEST)
        })
    }

    /// A look began and ended then. Where something was amiss, the next one need not wait.
    pub(crate) fn note(&mut self, began: Instant, ended: Instant, intact: bool) {
        self.last = intact.then(|| (ended, ended.saturating_duration_since(began)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_spaced_by_what_they_cost() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(Pace::default().may_look(start), "the first");
        let cases = [(1, 200, false), (1, 260, true), (40, 300, false), (40, 450, true)];
        let long = [(500, 900, false), (500, 1_110, true), (5_000, 5_700, true)];
        for (took, at, want) in cases.into_iter().chain(long) {
            let mut pace = Pace::default();
            pace.note(start, after(took), true);
            assert_eq!(pace.may_look(after(at)), want, "{took} ms, looking after {at} ms");
            pace.note(start, after(took), false);
            assert!(pace.may_look(after(at)), "after damage");
        }
    }
}
