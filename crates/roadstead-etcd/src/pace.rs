//! How long an attempt may take: many short ones find a member that answers sooner than a long one. Pure.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(2);
/// How much longer than slow answers an attempt may take.
const PATIENCE: u32 = 5;

/// What is known of how long answers take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Nearly all answers were faster.
    slow: Duration,
}

impl Pace {
    pub(crate) fn limit(self) -> Duration {
        (self.slow * PATIENCE).clamp(SHORTEST, LONGEST)
    }

    /// An answer took that long, or did not come within that time.
    pub(crate) fn took(self, time: Duration) -> Self {
        // Slower ones count at once, and are forgotten over a few hundred faster ones.
        Self { slow: time.max(self.slow - self.slow / 128) }
    }
}

#[test]
fn attempts_are_as_long_as_they_need_to_be() {
    let mut pace = Pace::default();
    assert_eq!(pace.limit(), SHORTEST);
    pace = pace.took(Duration::from_millis(2));
    assert_eq!(pace.limit(), SHORTEST);
    pace = pace.took(SHORTEST);
    assert_eq!(pace.limit(), SHORTEST * PATIENCE, "none came: the next one may take longer");
    pace = pace.took(pace.limit());
    assert_eq!(pace.limit(), LONGEST);
    for _ in 0..1000 {
        pace = pace.took(Duration::from_millis(3));
    }
    assert_eq!(pace.limit(), SHORTEST, "it is as fast as before");
}
