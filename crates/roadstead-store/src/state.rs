//! What readers see: objects by key, and the recent history of each bucket. Pure: what is durable
//! comes in as groups of events, and what is true at a revision follows from them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use crate::entry::{Entry, Event, Key, Millis, Revision};
use crate::error::StoreError;
use crate::feed::Batch;
use crate::history::{Entries, History};
use crate::kv::{Options, Page, Range};
use crate::log::Group;
use crate::log::disk::contents::Contents;
use crate::retention::Retention;

/// The objects, their history, and the one order of all writes.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) revision: Revision,
    /// What any bucket had forgotten when the store was opened.
    compacted: Revision,
    buckets: HashMap<Arc<str>, Bucket>,
    retention: Retention,
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
    history: History,
    /// Events up to and including this revision have been forgotten.
    compacted: Revision,
    changed: watch::Sender<Revision>,
}

impl Bucket {
    fn new(name: Arc<str>, compacted: Revision) -> Self {
        let (changed, _) = watch::channel(Revision(0));
        let (entries, counts, history) = (Entries::new(), HashMap::new(), History::new(name));
        Self { entries, counts, bytes: 0, history, compacted, changed }
    }

    fn insert(&mut self, path: Arc<str>, entry: Arc<Entry>) {
        self.bytes += weight(&entry.key, &entry.value);
        match (self.entries.insert(path.clone(), entry), first_part(&path)) {
            (Some(before), _) => self.bytes -= weight(&before.key, &before.value),
            (None, Some(group)) => *self.counts.entry(group.into()).or_default() += 1,
            (None, None) => {}
        }
    }

    fn remove(&mut self, path: &str) {
        let Some(before) = self.entries.remove(path) else { return };
        self.bytes -= weight(&before.key, &before.value);
        if let Some(group) = first_part(path)
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
        match first_part(prefix) {
            None if prefix.is_empty() => self.entries.len(),
            Some(whole) if whole == prefix => self.counts.get(prefix).copied().unwrap_or(0),
            _ => self.under(prefix).count(),
        }
    }
}

impl State {
    /// An empty state.
    pub(crate) fn new(options: &Options) -> Self {
        let (retention, quota) = (Retention::new(options.history), options.quota);
        Self { retention, quota, ..Self::default() }
    }

    /// The state that a log holds: the present, from which the past follows by undoing one write
    /// after the other. Fails if they do not fit.
    pub(crate) fn load(contents: Contents, options: &Options) -> Result<Self, String> {
        let mut state = Self { compacted: contents.compacted, ..Self::new(options) };
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
        let mut later = last;
        for undo in contents.log.into_iter().rev() {
            let (key, revision) = (state.shared_key(undo.key), undo.revision);
            let after = past.remove(&key).unwrap_or_else(|| state.get(&key).cloned());
            let fits = after.as_ref().is_none_or(|entry| entry.revision == revision);
            if !fits || revision > later || revision <= state.compacted {
                return Err(format!("the log does not explain {key} at revision {revision}"));
            }
            later = revision;
            let before = undo
                .before
                .map(|(revision, value)| Arc::new(Entry { key: key.clone(), value, revision }));
            past.insert(key.clone(), before.clone());
            let (at, encoded) = (undo.at, OnceLock::new());
            events.push(Arc::new(Event { revision, key, before, after, at, encoded }));
        }
        events.into_iter().rev().for_each(|event| state.remember(event));
        Ok(state)
    }

    /// What all entries weigh together.
    pub(crate) fn bytes(&self) -> u64 {
        self.buckets.values().map(|bucket| bucket.bytes).sum()
    }

    /// How much of the past is to be forgotten when some events are about to be added.
    pub(crate) fn compactable(&self, coming: &[Arc<Event>], now: Millis) -> Option<Revision> {
        self.retention.compactable(coming, now)
    }

    /// Takes in a group that follows on this state, and tells those who wait.
    pub(crate) fn apply(&mut self, group: Group) {
        while let Some(oldest) = self.retention.compact(group.compact) {
            let bucket = self.bucket(&oldest.bucket);
            bucket.history.forget();
            bucket.compacted = oldest.revision;
        }
        let mut touched = Vec::new();
        for event in group.events {
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
        self.revision = self.revision.max(group.reached);
        for bucket in touched {
            self.buckets[&bucket].changed.send_replace(self.revision);
        }
    }

    /// Becomes another state of the same log, to which no events lead from this one. Who has seen all of
    /// the other's past goes on; to others it is compacted. If the log itself has gone back, what was seen
    /// means nothing, and everybody begins again.
    pub(crate) fn replace(&mut self, mut new: Self) {
        let goes_on = new.revision >= self.revision;
        for (name, old) in self.buckets.drain().filter(|_| goes_on) {
            new.bucket(&name).changed = old.changed;
        }
        for bucket in new.buckets.values() {
            bucket.changed.send_replace(new.revision);
        }
        *self = new;
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
            check_kept(revision, self.compacted)?;
            return Ok(Page { entries: Vec::new(), more: false, total: 0, revision });
        };
        check_kept(revision, bucket.compacted)?;
        let past = bucket.history.different_at(revision, &bucket.entries);
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
        check_kept(after, bucket.compacted)?;
        Ok(bucket.changed.subscribe())
    }

    /// The first events of a bucket after a revision: about `limit` of them, and always all of a
    /// revision, since that is where a reader goes on.
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
        check_kept(after, bucket.compacted)?;
        let events = bucket.history.after(after, limit, &bucket.entries);
        let last = events.last().filter(|_| events.len() >= limit);
        Ok(Batch { revision: last.map_or(revision, |event| event.revision), events })
    }

    fn bucket(&mut self, name: &Arc<str>) -> &mut Bucket {
        let compacted = self.compacted;
        self.buckets.entry(name.clone()).or_insert_with(|| Bucket::new(name.clone(), compacted))
    }

    fn remember(&mut self, event: Arc<Event>) {
        self.retention.push(&event);
        self.bucket(&event.key.bucket.clone()).history.push(event);
        while let Some(bucket) = self.retention.compress() {
            self.bucket(&bucket).history.compress();
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
fn first_part(path: &str) -> Option<&str> {
    path.find('/').map(|slash| &path[..=slash])
}

fn check_kept(asked: Revision, oldest: Revision) -> Result<(), StoreError> {
    if asked < oldest { Err(StoreError::Compacted { asked, oldest }) } else { Ok(()) }
}
