//! The time of writes: what the wall clock said at the start, and tokio's clock since then, so that
//! it never jumps and tests can pause it.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::entry::Millis;

/// A clock that never goes back, not even behind the last write of an earlier process.
#[derive(Debug)]
pub(crate) struct Clock {
    begin: Instant,
    wall: Millis,
}

impl Clock {
    pub(crate) fn new(not_before: Millis) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { begin: Instant::now(), wall: millis(wall).max(not_before) }
    }

    pub(crate) fn now(&self) -> Millis {
        self.wall + millis(self.begin.elapsed())
    }
}

pub(crate) fn millis(duration: std::time::Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}
