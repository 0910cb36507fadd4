//! How much of the past is kept, for watchers that resume and readers of a past revision.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::millis;
use crate::entry::{Event, Millis, Revision};

/// What an event costs besides its bytes: itself, two entries, their keys.
const OVERHEAD: usize = 320;
/// How heavy the events are together that are kept whole, for the many who follow closely.
const RECENT: usize = 2 << 20;

/// Bounds of the history. An event is forgotten when it is both older than `age` and not among the
/// newest `events`, or when the history is larger than `bytes`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Younger events are kept.
    pub age: Duration,
    /// At least as many events are kept.
    pub events: usize,
    /// Whatever the others say, the states before and after of all events are no larger together.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { age: Duration::from_secs(600), events: 10_000, bytes: 64 << 20 }
    }
}

/// When events happened and how heavy they are, for all buckets together, in order.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    limits: Limits,
    kept: VecDeque<Kept>,
    bytes: usize,
    /// How many of the newest events are kept whole,
    recent: usize,
    /// and how heavy they are.
    recent_bytes: usize,
}

/// Where an event is, and what it weighs.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) revision: Revision,
    pub(crate) bucket: Arc<str>,
    at: Millis,
    weight: usize,
}

impl Retention {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(crate) fn push(&mut self, event: &Event) {
        let (revision, bucket, at) = (event.revision, event.key.bucket.clone(), event.at);
        let weight = weight(event);
        self.kept.push_back(Kept { revision, bucket, at, weight });
        self.bytes += weight;
        self.recent += 1;
        self.recent_bytes += weight;
    }

    /// The bucket whose oldest whole event is to be compressed, if there are too many of them.
    pub(crate) fn compress(&mut self) -> Option<Arc<str>> {
        if self.recent_bytes <= RECENT {
            return None;
        }
        let kept = &self.kept[self.kept.len() - self.recent];
        self.recent -= 1;
        self.recent_bytes -= kept.weight;
        Some(kept.bucket.clone())
    }

    /// Forgets the oldest event if its revision is not after the horizon.
    pub(crate) fn compact(&mut self, horizon: Option<Revision>) -> Option<Kept> {
        let kept = self.kept.pop_front_if(|kept| Some(kept.revision) <= horizon)?;
        self.bytes -= kept.weight;
        if self.recent > self.kept.len() {
            self.recent -= 1;
            self.recent_bytes -= kept.weight;
        }
        Some(kept)
    }

    /// The newest event to forget, with all before it, when some are about to be added.
    ///
    /// Many are forgotten at once, since each time costs the journal a write of its own.
    pub(crate) fn compactable(&self, coming: &[Arc<Event>], now: Millis) -> Option<Revision> {
        let count = self.too_heavy(coming).max(self.too_old(coming, now));
        Some(self.kept.get(count.checked_sub(1)?)?.revision)
    }

    fn too_old(&self, coming: &[Arc<Event>], now: Millis) -> usize {
        let least = (self.limits.events / 16).max(1);
        let spare = (self.kept.len() + coming.len()).saturating_sub(self.limits.events);
        let oldest = now.saturating_sub(millis(self.limits.age));
        let is_old = |index: usize| self.kept.get(index).is_some_and(|kept| kept.at < oldest);
        if spare < least || !is_old(least - 1) {
            return 0;
        }
        (least..).take_while(|&index| index < spare && is_old(index)).count() + least
    }

    fn too_heavy(&self, coming: &[Arc<Event>]) -> usize {
        let limit = self.limits.bytes;
        let mut bytes = self.bytes + coming.iter().map(|event| weight(event)).sum::<usize>();
        if bytes <= limit {
            return 0;
        }
        let enough = limit - limit / 8;
        let heavy = self.kept.iter().take_while(|kept| {
            let heavy = bytes > enough;
            bytes -= kept.weight;
            heavy
        });
        heavy.count()
    }
}

/// The state after is shared with the next event about the same key, but so is the room for what
/// readers make of the event: counted twice, they are about right.
fn weight(event: &Event) -> usize {
    let states = [&event.before, &event.after].into_iter().flatten();
    OVERHEAD + states.map(|entry| entry.value.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::entry::{Entry, Key};

    fn event(revision: u64, at: Millis, size: usize) -> Arc<Event> {
        let (key, revision) = (Key::new("things", "a"), Revision(revision));
        let entry = Entry { key: key.clone(), value: vec![0; size].into(), revision };
        let (after, encoded) = (Some(Arc::new(entry)), OnceLock::new());
        Arc::new(Event { revision, key, before: None, after, at, encoded })
    }

    #[test]
    fn what_is_forgotten() {
        // Limits: younger than 1 s, at least 4 events, no more than 8,000 bytes.
        let limits = Limits { age: Duration::from_secs(1), events: 4, bytes: 8000 };
        let cases = [
            ("old, but few", 3, 0, 9000, 0),
            ("old, one more than needed", 4, 0, 9000, 1),
            ("old and many", 10, 0, 9000, 7),
            ("many, but young", 10, 0, 900, 0),
            ("too heavy, though young and few", 3, 3000, 0, 1),
            ("much too heavy", 3, 9000, 0, 3),
        ];
        for (name, count, size, now, want) in cases {
            let mut history = Retention::new(limits);
            (1..=count).for_each(|revision| history.push(&event(revision, 0, size)));
            let found = history.compactable(&[event(count + 1, now, 0)], now);
            let found = found.map_or(0, |last| last.0);
            assert_eq!(found, want, "{name}");
        }
    }

    #[test]
    fn the_old_go_many_at_a_time() {
        let mut history = Retention::new(Limits { events: 160, ..Limits::default() });
        let now = 700_000;
        for count in 0..169 {
            assert!(history.compactable(&[], now).is_none(), "{count}");
            history.push(&event(count, 0, 10));
        }
        assert!(history.compactable(&[], now).is_none());
        history.push(&event(170, 0, 10));
        assert!(history.compactable(&[], now).is_some(), "ten more than needed");
    }

    #[test]
    fn only_the_newest_stay_whole() {
        let mut history = Retention::new(Limits::default());
        let mut whole = Vec::new();
        for revision in 1..=10 {
            history.push(&event(revision, 0, 1 << 19));
            while history.compress().is_some() {}
            whole.push(history.recent);
        }
        assert_eq!(whole, [1, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
        for revision in 1..=10 {
            assert!(history.compact(Some(Revision(revision))).is_some());
            assert_eq!(history.recent, 3.min(10 - revision as usize), "{revision}");
        }
        assert_eq!((history.bytes, history.recent_bytes), (0, 0));
    }
}
