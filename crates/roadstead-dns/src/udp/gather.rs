//! When to wait for more queries before looking again, though some may be there already.
//!
//! Replies to one client cost much less if they leave together. So in a crowd a short pause pays, if
//! the crowd is made of few clients with many queries each; if it is made of many clients with one
//! query each, it does not. Which it is shows when the replies to those who were waited for leave.

use std::time::Duration;

use super::batch::SLOTS;

/// How long the pause is. The system makes it some 50 µs longer.
pub(super) const PAUSE: Duration = Duration::from_micros(150);
/// So many queries at a time are a crowd.
const CROWD: usize = 4;
/// After so many times that it did not pay, one after the other,
const PATIENCE: u32 = 8;
/// we do not wait so many times.
const RESTS: u32 = 1000;

/// What is known about the last batch.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    received: usize,
    waited: bool,
    /// How many times it has not paid by now.
    failures: u32,
    rests: u32,
}

impl Gathering {
    /// Whether to wait now. Whoever asks alone, or for two families at once, never has to.
    pub(super) fn waits(&mut self) -> bool {
        // Nobody waits when more are there already than we can take at a time.
        let crowd = (CROWD..SLOTS).contains(&self.received);
        self.waited = crowd && self.rests == 0;
        if crowd {
            self.rests = self.rests.saturating_sub(1);
        }
        self.waited
    }

    /// Takes in how many queries came.
    pub(super) fn received(&mut self, count: usize) {
        self.received = count;
    }

    /// How many came the last time.
    pub(super) fn last(&self) -> usize {
        self.received
    }

    /// Takes in how many messages so many replies took.
    pub(super) fn sent(&mut self, messages: usize, replies: usize) {
        if !self.waited {
            return;
        }
        let failed = messages * 3 > replies * 2;
        self.failures = if failed { self.failures + 1 } else { 0 };
        if self.failures == PATIENCE {
            (self.failures, self.rests) = (0, RESTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_to_wait() {
        // How many came, in how many messages the replies left; then, whether to wait.
        type Batches = &'static [(usize, usize)];
        let cases: [(&str, Batches, bool); 9] = [
            ("at first", &[], false),
            ("alone", &[(1, 1), (1, 1)], false),
            ("both families", &[(2, 1), (2, 2)], false),
            ("a crowd", &[(9, 9)], true),
            ("a crowd of few clients", &[(9, 9), (50, 20), (50, 20)], true),
            ("not enough of them", &[(9, 9), (5, 5), (6, 6)], true),
            ("a crowd of strangers", &[(50, 45); 9], false),
            ("more than we can take", &[(9, 9), (SLOTS, 20)], false),
            ("the crowd is gone", &[(9, 9), (50, 20), (1, 1)], false),
        ];
        for (name, batches, want) in cases {
            let mut gathering = Gathering::default();
            for (received, messages) in batches {
                gathering.waits();
                gathering.received(*received);
                gathering.sent(*messages, *received);
            }
            assert_eq!(gathering.waits(), want, "{name}");
        }
    }

    #[test]
    fn it_tries_again() {
        let mut gathering = Gathering::default();
        let mut waits = 0;
        for _ in 0..10_000 {
            waits += usize::from(gathering.waits());
            gathering.received(30);
            gathering.sent(29, 30);
        }
        assert!((40..120).contains(&waits), "{waits}");
    }
}
