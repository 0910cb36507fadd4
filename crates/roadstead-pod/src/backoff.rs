//! How long a container that ended waits before it starts again.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(10);
const LAST: Duration = Duration::from_secs(300);
/// A container that ran this long has recovered: its next failure counts as the first.
const RECOVERED: Duration = Duration::from_secs(600);

/// Returns the delay after a container ended, given the delay it had before that run.
///
/// As in the kubelet the first restart comes at once; then 10 s, doubling up to 5 minutes.
pub fn after_exit(before: Option<Duration>, ran_for: Duration) -> Duration {
    match before {
        Some(before) if ran_for < RECOVERED => after_failed_start(Some(before)),
        _ => Duration::ZERO,
    }
}

/// Returns the delay that a run had before it, if all runs before it were short: what an agent that
/// was not there makes of the count.
pub(crate) fn before_run(restarts: i32) -> Option<Duration> {
    // More of them change nothing.
    let ended = restarts.clamp(0, 10);
    (0..ended).fold(None, |delay, _| Some(after_exit(delay, Duration::ZERO)))
}

/// Returns the delay after a start that failed before anything ran, such as for a missing image.
pub fn after_failed_start(before: Option<Duration>) -> Duration {
    match before {
        None => FIRST,
        Some(Duration::ZERO) => FIRST,
        Some(before) => before.saturating_mul(2).min(LAST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_of_a_crashing_container() {
        let mut delay = None;
        let mut delays = Vec::new();
        for ran_for in [1, 1, 1, 1, 1, 1, 1, 1, 700, 1] {
            delay = Some(after_exit(delay, Duration::from_secs(ran_for)));
            delays.push(delay.unwrap().as_secs());
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300, 0, 10]);
    }

    #[test]
    fn delays_by_the_count() {
        let delays = [0, 1, 2, 3, 6, 7, 1000].map(before_run);
        let seconds = delays.map(|delay| delay.map(|delay| delay.as_secs()));
        assert_eq!(seconds, [None, Some(0), Some(10), Some(20), Some(160), Some(300), Some(300)]);
    }

    #[test]
    fn a_failed_start_never_retries_at_once() {
        assert_eq!(after_failed_start(None).as_secs(), 10);
        assert_eq!(after_failed_start(Some(Duration::from_secs(10))).as_secs(), 20);
    }
}
