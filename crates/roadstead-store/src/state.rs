//! What readers see: objects by key, and the recent history of each bucket. It holds only what is
//! durable.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;

use crate::entry::{Entry, Event, Key, Millis, Revision};
use crate::error::StoreError;
use crate::feed::Batch;
use crate::history::{History, Limits};
use crate::journal::Contents;
use crate::past::{Entries, Past};
use crate::plan::Plan;
use crate::store::{Page, Range};

/// The objects, their history, and the one order of all writes.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) revision: Revision,
    /// What any bucket had forgotten when the store was opened.
    floor: Revision,
    buckets: HashMap<Arc<str>, Bucket>,
    history: History,
    /// How much all entries may weigh together.
    pub(crate) quota: Option<u64>,
}

/// What an entry costs besides its bytes: itself, its key, its place.
const OVERHEAD: usize = 200;

/// What an entry takes of the quota.
pub(crate) fn weight(key: &Key, value: &[u8]) -> u64 {
    (key.path.len() + value.len() + OVERHEAD) as u64
}

#[derive(Debug)]
struct Bucket {
    entries: Entries,
    /// How many entries there are under each first part of a path (`namespace/`).
    counts: HashMap<Box<str>, usize>,
    /// What all entries weigh.
    bytes: u64,
    past: Past,
    /// Events up to and including this revision have been forgotten.
    forgotten: Revision,
    changed: watch::Sender<Revision>,
}

impl Bucket {
    fn new(name: Arc<str>, forgotten: Revision) -> Self {
        let (changed, _) = watch::channel(Revision(0));
        let (entries, counts, past) = (Entries::new(), HashMap::new(), Past::new(name));
        Self { entries, counts, bytes: 0, past, forgotten, changed }
    }

    fn insert(&mut self, path: Arc<str>, entry: Arc<Entry>) {
        self.bytes += weight(&entry.key, &entry.value);
        match (self.entries.insert(path.clone(), entry), group(&path)) {
            (Some(before), _) => self.bytes -= weight(&before.key, &before.value),
            (None, Some(group)) => *self.counts.entry(group.into()).or_default() += 1,
            (None, None) => {}
        }
    }

    fn remove(&mut self, path: &str) {
        let Some(before) = self.entries.remove(path) else { return };
        self.bytes -= weight(&before.key, &before.value);
        if let Some(group) = group(path)
            && let Some(count) = self.counts.get_mut(group)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(group);
            }
        }
    }

    /// How many entries have this prefix: at once for all, and for a first part of their paths.
    fn count(&self, prefix: &str) -> usize {
        match group(prefix) {
            None if prefix.is_empty() => self.entries.len(),
            Some(whole) if whole == prefix => self.counts.get(prefix).copied().unwrap_or(0),
            _ => self.under(prefix).count(),
        }
    }
}

impl State {
    /// An empty state.
    pub(crate) fn new(limits: Limits) -> Self {
        Self { history: History::new(limits), ..Self::default() }
    }

    /// The state that a journal holds: the present, from which the past follows by undoing one
    /// write after the other. Fails if they do not fit.
    pub(crate) fn load(contents: Contents, limits: Limits) -> Result<Self, String> {
        let mut state = Self { floor: contents.compacted, ..Self::new(limits) };
        let last = contents.log.last().map_or(contents.compacted, |undo| undo.revision);
        state.revision = last;
        for entry in contents.entries {
            if entry.revision > last {
                return Err(format!("{} is newer than the log, which ends at {last}", entry.key));
            }
            let key = state.shared_key(entry.key);
            let entry = Arc::new(Entry { key: key.clone(), ..entry });
            state.bucket(&key.bucket).insert(key.path.clone(), entry);
        }
        let mut events = Vec::with_capacity(contents.log.len());
        let mut past: HashMap<Key, Option<Arc<Entry>>> = HashMap::new();
        let mut expected = last;
        for undo in contents.log.into_iter().rev() {
            let (key, revision) = (state.shared_key(undo.key), undo.revision);
            let after = past.remove(&key).unwrap_or_else(|| state.get(&key).cloned());
            let fits = after.as_ref().is_none_or(|entry| entry.revision == revision);
            if !fits || revision != expected {
                return Err(format!("the log does not explain {key} at revision {revision}"));
            }
            expected = Revision(revision.0 - 1);
            let before = undo
                .before
                .map(|(revision, value)| Arc::new(Entry { key: key.clone(), value, revision }));
            past.insert(key.clone(), before.clone());
            events.push(Arc::new(Event::new(revision, undo.at, key, before, after)));
        }
        if expected != state.floor {
            return Err(format!("the log begins after {expected}, not after {}", state.floor));
        }
        events.into_iter().rev().for_each(|event| state.remember(event));
        Ok(state)
    }

    /// What all entries weigh together.
    pub(crate) fn bytes(&self) -> u64 {
        self.buckets.values().map(|bucket| bucket.bytes).sum()
    }

    /// Decides how much of the past the plan forgets.
    pub(crate) fn age(&self, plan: &mut Plan, now: Millis) {
        plan.forget = self.history.forgettable(&plan.events, now);
    }

    /// Carries out a plan that was made from this state, and tells those who wait.
    pub(crate) fn apply(&mut self, plan: Plan) {
        while let Some(oldest) = self.history.forget(plan.forget) {
            let bucket = self.bucket(&oldest.bucket);
            bucket.past.forget();
            bucket.forgotten = oldest.revision;
        }
        let mut touched = Vec::new();
        for event in plan.events {
            self.revision = event.revision;
            let bucket = self.bucket(&event.key.bucket);
            match &event.after {
                Some(entry) => bucket.insert(event.key.path.clone(), entry.clone()),
                None => bucket.remove(&event.key.path),
            }
            if !touched.contains(&event.key.bucket) {
                touched.push(event.key.bucket.clone());
            }
            self.remember(event);
        }
        for bucket in touched {
            self.buckets[&bucket].changed.send_replace(self.revision);
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.buckets.get(&key.bucket)?.entries.get(&key.path)
    }

    /// The same key, sharing the name of the bucket with all others.
    pub(crate) fn shared_key(&self, key: Key) -> Key {
        match self.buckets.get_key_value(&key.bucket) {
            Some((bucket, _)) => Key { bucket: bucket.clone(), path: key.path },
            None => key,
        }
    }

    /// All entries, in the order of their keys.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        let buckets: BTreeMap<_, _> = self.buckets.iter().collect();
        buckets.into_values().flat_map(|bucket| bucket.entries.values().cloned()).collect()
    }

    /// Some entries of a bucket, now or at a past revision. The cost depends on the size of the
    /// page and, for a past revision, on how much has happened since.
    pub(crate) fn page(
        &self,
        bucket: &str,
        range: &Range<'_>,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        let newest = self.revision;
        let revision = at.unwrap_or(newest);
        if revision > newest {
            return Err(StoreError::Future { asked: revision, newest });
        }
        let Some(bucket) = self.buckets.get(bucket) else {
            check_kept(revision, self.floor)?;
            return Ok(Page { entries: Vec::new(), more: false, total: 0, revision });
        };
        check_kept(revision, bucket.forgotten)?;
        let past = bucket.past.different_at(revision, &bucket.entries);
        let wanted = range.limit.saturating_add(1);
        let is_wanted = |path: &str| path > range.after && path.starts_with(range.prefix);
        let start = range.after.max(range.prefix);
        let unchanged = bucket
            .entries
            .range::<str, _>((Bound::Included(start), Bound::Unbounded))
            .take_while(|(path, _)| path.starts_with(range.prefix))
            .filter(|(path, _)| is_wanted(path) && !past.contains_key(*path))
            .map(|(_, entry)| entry);
        let mut entries: Vec<_> = unchanged.take(wanted).cloned().collect();
        let changed = past.iter().filter(|(path, _)| is_wanted(path));
        let before = entries.len();
        entries.extend(changed.filter_map(|(_, before)| before.clone()).take(wanted));
        if entries.len() > before {
            entries.sort_by(|one, other| one.key.path.cmp(&other.key.path));
        }
        let more = entries.len() > range.limit;
        entries.truncate(range.limit);
        Ok(Page { entries, more, total: bucket.count(range.prefix), revision })
    }

    /// A reader of a bucket's events after a revision, if they are all still there.
    pub(crate) fn subscribe(
        &mut self,
        bucket: &Arc<str>,
        after: Revision,
    ) -> Result<watch::Receiver<Revision>, StoreError> {
        let bucket = self.bucket(bucket);
        check_kept(after, bucket.forgotten)?;
        Ok(bucket.changed.subscribe())
    }

    /// The first events of a bucket after a revision, no more than `limit`.
    pub(crate) fn events_after(
        &self,
        bucket: &str,
        after: Revision,
        limit: usize,
    ) -> Result<Batch, StoreError> {
        // A reader may wait for a revision that has not been reached yet.
        let revision = self.revision.max(after);
        let Some(bucket) = self.buckets.get(bucket) else {
            return Ok(Batch { events: Vec::new(), revision });
        };
        check_kept(after, bucket.forgotten)?;
        let events = bucket.past.after(after, limit, &bucket.entries);
        let last = events.last().filter(|_| events.len() == limit);
        Ok(Batch { revision: last.map_or(revision, |event| event.revision), events })
    }

    fn bucket(&mut self, name: &Arc<str>) -> &mut Bucket {
        let floor = self.floor;
        self.buckets.entry(name.clone()).or_insert_with(|| Bucket::new(name.clone(), floor))
    }

    fn remember(&mut self, event: Arc<Event>) {
        self.history.push(&event);
        self.bucket(&event.key.bucket.clone()).past.push(event);
        while let Some(bucket) = self.history.fade() {
            self.bucket(&bucket).past.fade();
        }
    }
}

impl Bucket {
    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        self.entries
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(path, _)| path.starts_with(prefix))
            .map(|(_, entry)| entry)
    }
}

/// The part of a path up to its first slash.
fn group(path: &str) -> Option<&str> {
    path.find('/').map(|slash| &path[..=slash])
}

fn check_kept(asked: Revision, oldest: Revision) -> Result<(), StoreError> {
    if asked < oldest { Err(StoreError::Compacted { asked, oldest }) } else { Ok(()) }
}
