//! How much of the past is kept, for watchers that resume and readers of a past revision.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::millis;
use crate::entry::{Event, Millis};

/// What an event costs besides its bytes: itself, two entries, their keys.
const OVERHEAD: usize = 320;

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

/// The newest events of all buckets, in order.
#[derive(Debug, Default)]
pub(crate) struct History {
    limits: Limits,
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

impl History {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, events: VecDeque::new(), bytes: 0 }
    }

    pub(crate) fn push(&mut self, event: Arc<Event>) {
        self.bytes += weight(&event);
        self.events.push_back(event);
    }

    pub(crate) fn pop(&mut self) -> Option<Arc<Event>> {
        let event = self.events.pop_front()?;
        self.bytes -= weight(&event);
        Some(event)
    }

    pub(crate) fn oldest(&self) -> Option<&Arc<Event>> {
        self.events.front()
    }

    /// The newest event to forget, with all before it, when some are about to be added.
    ///
    /// Many are forgotten at once, since each time costs the journal a write of its own.
    pub(crate) fn forgettable(&self, coming: &[Arc<Event>], now: Millis) -> Option<&Arc<Event>> {
        let count = self.too_heavy(coming).max(self.too_old(coming, now));
        self.events.get(count.checked_sub(1)?)
    }

    fn too_old(&self, coming: &[Arc<Event>], now: Millis) -> usize {
        let least = (self.limits.events / 16).max(1);
        let spare = (self.events.len() + coming.len()).saturating_sub(self.limits.events);
        let oldest = now.saturating_sub(millis(self.limits.age));
        let is_old = |index: usize| self.events.get(index).is_some_and(|e| e.at < oldest);
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
        let heavy = self.events.iter().take_while(|event| {
            let heavy = bytes > enough;
            bytes -= weight(event);
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
    use super::*;
    use crate::entry::{Entry, Key, Revision};

    fn event(at: Millis, size: usize) -> Arc<Event> {
        let key = Key::new("things", "a");
        let value = vec![0; size].into();
        let entry = Entry { key: key.clone(), value, revision: Revision(1) };
        Arc::new(Event::new(Revision(1), at, key, None, Some(Arc::new(entry))))
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
            let mut history = History::new(limits);
            (0..count).for_each(|_| history.push(event(0, size)));
            let forgettable = history.forgettable(&[event(now, 0)], now);
            let found = forgettable.map_or(0, |last| {
                1 + history.events.iter().position(|event| Arc::ptr_eq(event, last)).unwrap()
            });
            assert_eq!(found, want, "{name}");
        }
    }

    #[test]
    fn the_old_go_many_at_a_time() {
        let mut history = History::new(Limits { events: 160, ..Limits::default() });
        let now = 700_000;
        for count in 0..169 {
            assert!(history.forgettable(&[], now).is_none(), "{count}");
            history.push(event(0, 10));
        }
        assert!(history.forgettable(&[], now).is_none());
        history.push(event(0, 10));
        assert!(history.forgettable(&[], now).is_some(), "ten more than needed");
    }
}
