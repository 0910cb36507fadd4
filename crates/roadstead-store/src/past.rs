//! The past of one bucket: its newest events as they were told, and of older ones what is needed to
//! find out what they were.
//!
//! Most readers follow closely and share the newest events with each other. Whoever comes back
//! after a while, or asks for a past revision, is given older ones that are made anew by undoing
//! one write after the other, from the present backwards: that takes time, but between now and then
//! an event needs only the room for what it changed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::delta;
use crate::entry::{Entry, Event, Key, Revision};

/// The entries of a bucket by their paths.
pub(crate) type Entries = BTreeMap<Arc<str>, Arc<Entry>>;

/// The states of some paths at one moment; `None` if there was nothing.
pub(crate) type States = BTreeMap<Arc<str>, Option<Arc<Entry>>>;

/// The history of one bucket, in order.
#[derive(Debug)]
pub(crate) struct Past {
    bucket: Arc<str>,
    faded: VecDeque<Faded>,
    recent: VecDeque<Arc<Event>>,
}

/// What is kept of an older event.
#[derive(Debug)]
struct Faded {
    revision: Revision,
    path: Arc<str>,
    before: Option<Box<Before>>,
}

/// The state before an event, as the difference from the state after it.
#[derive(Debug)]
struct Before {
    revision: Revision,
    delta: Box<[u8]>,
}

impl Faded {
    fn of(event: &Event) -> Self {
        let after = event.after.as_ref().map_or(&[][..], |entry| &entry.value[..]);
        let before = event.before.as_ref().map(|before| {
            let delta = delta::encode(after, &before.value);
            Box::new(Before { revision: before.revision, delta })
        });
        Self { revision: event.revision, path: event.key.path.clone(), before }
    }

    /// The state before, found from the state after.
    fn undo(&self, bucket: &Arc<str>, after: Option<&Arc<Entry>>) -> Option<Arc<Entry>> {
        let Before { revision, delta } = self.before.as_deref()?;
        let after = after.map_or(&[][..], |entry| &entry.value[..]);
        let key = Key { bucket: bucket.clone(), path: self.path.clone() };
        let value = delta::decode(after, delta);
        Some(Arc::new(Entry { key, value, revision: *revision }))
    }
}

impl Past {
    pub(crate) fn new(bucket: Arc<str>) -> Self {
        Self { bucket, faded: VecDeque::new(), recent: VecDeque::new() }
    }

    pub(crate) fn push(&mut self, event: Arc<Event>) {
        self.recent.push_back(event);
    }

    /// Keeps only what is needed of the oldest event that is still whole.
    pub(crate) fn fade(&mut self) {
        if let Some(event) = self.recent.pop_front() {
            self.faded.push_back(Faded::of(&event));
        }
    }

    /// Forgets the oldest event.
    pub(crate) fn forget(&mut self) {
        if self.faded.pop_front().is_none() {
            self.recent.pop_front();
        }
    }

    /// What was different at a past revision: the states then of all paths written since.
    pub(crate) fn different_at(&self, revision: Revision, now: &Entries) -> States {
        self.undo(revision, now, |_, _, _| {})
    }

    /// The first events after a revision, no more than `limit`.
    pub(crate) fn after(&self, revision: Revision, limit: usize, now: &Entries) -> Vec<Arc<Event>> {
        let begin = self.faded.partition_point(|event| event.revision <= revision);
        let mut found = VecDeque::new();
        if begin < self.faded.len() {
            let end = self.faded.len().min(begin.saturating_add(limit));
            let last = self.faded[end - 1].revision;
            self.undo(revision, now, |event, before, after| {
                if event.revision <= last {
                    let key = Key { bucket: self.bucket.clone(), path: event.path.clone() };
                    let (before, after) = (before.cloned(), after.cloned());
                    let event = Event::new(event.revision, 0, key, before, after);
                    found.push_front(Arc::new(event));
                }
            });
        }
        let recent = self.recent.partition_point(|event| event.revision <= revision);
        let rest = limit - found.len();
        found.extend(self.recent.range(recent..).take(rest).cloned());
        found.into()
    }

    /// Undoes everything that happened after a revision, newest first, and shows what becomes of
    /// older events on the way: the states before and after them.
    fn undo(
        &self,
        revision: Revision,
        now: &Entries,
        mut see: impl FnMut(&Faded, Option<&Arc<Entry>>, Option<&Arc<Entry>>),
    ) -> States {
        let recent = self.recent.iter().rev().take_while(|event| event.revision > revision);
        let mut states: States =
            recent.map(|event| (event.key.path.clone(), event.before.clone())).collect();
        for event in self.faded.iter().rev().take_while(|event| event.revision > revision) {
            let state =
                states.entry(event.path.clone()).or_insert_with(|| now.get(&event.path).cloned());
            let before = event.undo(&self.bucket, state.as_ref());
            see(event, before.as_ref(), state.as_ref());
            *state = before;
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything about an event that readers see.
    fn text(event: &Event) -> String {
        let state = |entry: &Option<Arc<Entry>>| {
            entry.as_ref().map(|entry| (entry.key.clone(), entry.revision, entry.value.clone()))
        };
        let (before, after) = (state(&event.before), state(&event.after));
        format!("{} {} {before:?} {after:?}", event.revision, event.key)
    }

    /// Writes values to keys (`None` deletes); the last `whole` events do not fade.
    fn write(
        operations: &[(u8, Option<String>)],
        whole: usize,
    ) -> (Past, Entries, Vec<Arc<Event>>) {
        let bucket: Arc<str> = "things".into();
        let (mut past, mut entries) = (Past::new(bucket.clone()), Entries::new());
        let mut events = Vec::new();
        for ((name, value), revision) in operations.iter().zip(1..) {
            let path: Arc<str> = format!("default/{name}").into();
            let (key, revision) = (Key { bucket: bucket.clone(), path }, Revision(revision));
            let before = entries.get(&key.path).cloned();
            let after = value.as_ref().map(|value| {
                let value = format!("{{\"metadata\":\"{}\",{value}}}", "m".repeat(40)).into();
                Arc::new(Entry { key: key.clone(), value, revision })
            });
            match &after {
                Some(entry) => entries.insert(key.path.clone(), entry.clone()),
                None => entries.remove(&key.path),
            };
            events.push(Arc::new(Event::new(revision, 0, key, before, after)));
            past.push(events[events.len() - 1].clone());
            if past.recent.len() > whole {
                past.fade();
            }
        }
        (past, entries, events)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// However much has faded, readers see what happened, from wherever and in whatever steps
        /// they read.
        #[test]
        fn faded_events_come_back(
            operations in proptest::collection::vec(
                (0u8..5, proptest::option::weighted(0.8, "[a-c]{0,30}")), 1..60),
            whole in 0usize..60,
            limit in 1usize..20,
        ) {
            let (past, entries, events) = write(&operations, whole);
            let mut seen = Vec::new();
            let mut reached = Revision(0);
            loop {
                let batch = past.after(reached, limit, &entries);
                prop_assert!(batch.len() <= limit);
                let Some(last) = batch.last() else { break };
                reached = last.revision;
                seen.extend(batch.iter().map(|event| text(event)));
            }
            let told: Vec<_> = events.iter().map(|event| text(event)).collect();
            prop_assert_eq!(seen, told);
            for revision in 0..=operations.len() {
                let mut then = entries.clone();
                for (path, state) in past.different_at(Revision(revision as u64), &entries) {
                    match state {
                        Some(entry) => then.insert(path, entry),
                        None => then.remove(&path),
                    };
                }
                let (_, want, _) = write(&operations[..revision], 0);
                let states = |entries: &Entries| -> Vec<_> {
                    entries.values().map(|e| (e.key.clone(), e.revision, e.value.clone())).collect()
                };
                prop_assert_eq!(states(&then), states(&want));
            }
        }
    }
}
