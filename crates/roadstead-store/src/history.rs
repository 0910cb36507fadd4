//! The history of one bucket: its newest events as they were told, and of older ones what is needed to
//! find out what they were.
//!
//! Most readers follow closely and share the newest events with each other. Whoever comes back
//! after a while, or asks for a past revision, is given older ones that are made anew by undoing
//! one write after the other, from the present backwards: that takes time, but between now and then
//! an event needs only the room for what it changed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use crate::delta;
use crate::entry::{Entry, Event, Key, Revision};
use crate::mutation::{self, Mutation};

/// The entries of a bucket by their paths.
pub(crate) type Entries = BTreeMap<Arc<str>, Arc<Entry>>;

/// The states of some paths at one moment; `None` if there was nothing.
pub(crate) type States = BTreeMap<Arc<str>, Option<Arc<Entry>>>;

/// The history of one bucket, in order.
#[derive(Debug)]
pub(crate) struct History {
    bucket: Arc<str>,
    compressed: VecDeque<Compressed>,
    recent: VecDeque<Arc<Event>>,
}

/// What is kept of an older event.
#[derive(Debug)]
struct Compressed {
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

impl Compressed {
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

impl History {
    pub(crate) fn new(bucket: Arc<str>) -> Self {
        Self { bucket, compressed: VecDeque::new(), recent: VecDeque::new() }
    }

    pub(crate) fn push(&mut self, event: Arc<Event>) {
        self.recent.push_back(event);
    }

    /// Keeps only what is needed of the oldest event that is still whole.
    pub(crate) fn compress(&mut self) {
        if let Some(event) = self.recent.pop_front() {
            self.compressed.push_back(Compressed::of(&event));
        }
    }

    /// Forgets the oldest event.
    pub(crate) fn forget(&mut self) {
        if self.compressed.pop_front().is_none() {
            self.recent.pop_front();
        }
    }

    /// What was different at a history revision: the states then of all paths written since.
    pub(crate) fn different_at(&self, revision: Revision, now: &Entries) -> States {
        self.undo(revision, now, |_, _, _| {})
    }

    /// The first events after a revision: as many as `limit`, and the rest of the last one's
    /// revision, since that is where a reader goes on.
    pub(crate) fn after(&self, revision: Revision, limit: usize, now: &Entries) -> Vec<Arc<Event>> {
        let begin = self.compressed.partition_point(|event| event.revision <= revision);
        let mut found = VecDeque::new();
        if begin < self.compressed.len() {
            let end = self.compressed.len().min(begin.saturating_add(limit));
            let last = self.compressed[end - 1].revision;
            self.undo(revision, now, |event, before, after| {
                if event.revision <= last {
                    let key = Key { bucket: self.bucket.clone(), path: event.path.clone() };
                    let (before, after) = (before.cloned(), after.cloned());
                    let (revision, encoded) = (event.revision, OnceLock::new());
                    found.push_front(Arc::new(Event {
                        revision,
                        key,
                        before,
                        after,
                        at: 0,
                        encoded,
                    }));
                }
            });
        }
        let begin = self.recent.partition_point(|event| event.revision <= revision);
        let rest = limit.saturating_sub(found.len());
        let mut end = self.recent.len().min(begin.saturating_add(rest));
        let last = match end > begin {
            true => Some(self.recent[end - 1].revision),
            false => found.back().map(|event| event.revision),
        };
        let by_count = mutation::is(Mutation::BatchesByCount);
        while !by_count && self.recent.get(end).is_some_and(|event| Some(event.revision) == last) {
            end += 1;
        }
        found.extend(self.recent.range(begin..end).cloned());
        found.into()
    }

    /// Undoes everything that happened after a revision, newest first, and shows what becomes of
    /// older events on the way: the states before and after them.
    fn undo(
        &self,
        revision: Revision,
        now: &Entries,
        mut see: impl FnMut(&Compressed, Option<&Arc<Entry>>, Option<&Arc<Entry>>),
    ) -> States {
        let recent = self.recent.iter().rev().take_while(|event| event.revision > revision);
        let mut states: States =
            recent.map(|event| (event.key.path.clone(), event.before.clone())).collect();
        for event in self.compressed.iter().rev().take_while(|event| event.revision > revision) {
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

    type Operation = (u8, Option<String>);

    /// Writes values to keys (`None` deletes), some together in one revision, each to a key of its
    /// own; the last `whole` events are not compressed.
    fn write(revisions: &[&[Operation]], whole: usize) -> (History, Entries, Vec<Arc<Event>>) {
        let bucket: Arc<str> = "things".into();
        let (mut history, mut entries) = (History::new(bucket.clone()), Entries::new());
        let mut events = Vec::new();
        let operations = (1..).zip(revisions).flat_map(|(revision, operations)| {
            let earlier = |at: usize, name| operations[..at].iter().any(|(other, _)| other == name);
            let own =
                operations.iter().enumerate().filter(move |(at, (name, _))| !earlier(*at, name));
            own.map(move |(_, (name, value))| (name, value, revision))
        });
        for (name, value, revision) in operations {
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
            let (at, encoded) = (0, OnceLock::new());
            events.push(Arc::new(Event { revision, key, before, after, at, encoded }));
            history.push(events[events.len() - 1].clone());
            if history.recent.len() > whole {
                history.compress();
            }
        }
        (history, entries, events)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// However much is compressed, readers see what happened, from wherever and in whatever steps
        /// they read, and all of a revision at once.
        #[test]
        fn compressed_events_come_back(
            operations in proptest::collection::vec(
                (0u8..5, proptest::option::weighted(0.8, "[a-c]{0,30}")), 1..60),
            whole in 0usize..60,
            limit in 1usize..20,
            together in 1usize..4,
        ) {
            let revisions: Vec<_> = operations.chunks(together).collect();
            let (history, entries, events) = write(&revisions, whole);
            let mut seen = Vec::new();
            let mut reached = Revision(0);
            loop {
                let batch = history.after(reached, limit, &entries);
                prop_assert!(batch.len() < limit + together);
                let Some(last) = batch.last() else { break };
                reached = last.revision;
                seen.extend(batch.iter().map(|event| text(event)));
            }
            let told: Vec<_> = events.iter().map(|event| text(event)).collect();
            prop_assert_eq!(seen, told);
            for revision in 0..=revisions.len() {
                let mut then = entries.clone();
                for (path, state) in history.different_at(Revision(revision as u64), &entries) {
                    match state {
                        Some(entry) => then.insert(path, entry),
                        None => then.remove(&path),
                    };
                }
                let (_, want, _) = write(&revisions[..revision], 0);
                let states = |entries: &Entries| -> Vec<_> {
                    entries.values().map(|e| (e.key.clone(), e.revision, e.value.clone())).collect()
                };
                prop_assert_eq!(states(&then), states(&want));
            }
        }
    }
}
