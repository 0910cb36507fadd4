//! Everything in memory: objects by key, and a bounded history per bucket.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::watch;

use crate::entry::{Entry, Event, Key, Revision};
use crate::error::StoreError;
use crate::feed::{Batch, Feed};
use crate::transaction::Transaction;

/// How many events each bucket remembers for watchers that resume and readers of the past.
const HISTORY: usize = 10_000;

/// The objects, their history, and the one order of all writes.
#[derive(Debug, Default)]
pub struct Store {
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    revision: Revision,
    buckets: HashMap<Arc<str>, Bucket>,
}

#[derive(Debug)]
struct Bucket {
    entries: BTreeMap<Arc<str>, Arc<Entry>>,
    history: VecDeque<Arc<Event>>,
    /// Events up to and including this revision have been forgotten.
    forgotten: Revision,
    changed: watch::Sender<Revision>,
}

impl Default for Bucket {
    fn default() -> Self {
        let (changed, _) = watch::channel(Revision(0));
        let (entries, history) = (BTreeMap::new(), VecDeque::new());
        Self { entries, history, forgotten: Revision(0), changed }
    }
}

/// Entries as they were at one revision.
#[derive(Debug)]
pub struct Snapshot {
    /// In the order of their paths.
    pub entries: Vec<Arc<Entry>>,
    /// The revision at which all of them were true.
    pub revision: Revision,
}

impl Store {
    /// An empty store.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// The revision of the newest write.
    pub fn revision(&self) -> Revision {
        self.read().revision
    }

    /// The newest state of one entry.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.read().buckets.get(&key.bucket)?.entries.get(&key.path).cloned()
    }

    /// The entries of a bucket whose path begins with `prefix`, now or at a past revision.
    pub fn list(
        &self,
        bucket: &str,
        prefix: &str,
        at: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        let state = self.read();
        let newest = state.revision;
        let revision = at.unwrap_or(newest);
        if revision > newest {
            return Err(StoreError::Future { asked: revision, newest });
        }
        let Some(bucket) = state.buckets.get(bucket) else {
            return Ok(Snapshot { entries: Vec::new(), revision });
        };
        let matching = bucket.under(prefix).cloned();
        if revision == newest {
            return Ok(Snapshot { entries: matching.collect(), revision });
        }
        if revision < bucket.forgotten {
            return Err(StoreError::Compacted { asked: revision, oldest: bucket.forgotten });
        }
        // Undo what came later, newest first.
        let mut past: BTreeMap<_, _> = matching.map(|e| (e.key.path.clone(), e)).collect();
        let later = bucket.history.iter().rev().take_while(|event| event.revision > revision);
        for event in later.filter(|event| event.key.path.starts_with(prefix)) {
            match &event.before {
                Some(before) => past.insert(event.key.path.clone(), before.clone()),
                None => past.remove(&event.key.path),
            };
        }
        Ok(Snapshot { entries: past.into_values().collect(), revision })
    }

    /// Carries out all writes of a transaction if all its conditions hold, else none.
    ///
    /// Returns the revision of the last write; the writes have consecutive revisions.
    pub async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for (key, expected) in transaction.guards {
            let entry = state.buckets.get(&key.bucket).and_then(|b| b.entries.get(&key.path));
            let found = entry.map(|entry| entry.revision);
            if found != expected {
                return Err(StoreError::Conflict { key, expected, found });
            }
        }
        let mut touched = Vec::new();
        for (key, value) in transaction.writes {
            let revision = Revision(state.revision.0 + 1);
            let bucket = state.buckets.entry(key.bucket.clone()).or_default();
            let after = value.map(|value| Arc::new(Entry { key: key.clone(), value, revision }));
            let before = match &after {
                Some(entry) => bucket.entries.insert(key.path.clone(), entry.clone()),
                None => bucket.entries.remove(&key.path),
            };
            if before.is_none() && after.is_none() {
                continue;
            }
            touched.push(key.bucket.clone());
            bucket.remember(Event::new(revision, key, before, after));
            state.revision = revision;
        }
        let revision = state.revision;
        for bucket in touched {
            state.buckets[&bucket].changed.send_replace(revision);
        }
        Ok(revision)
    }

    /// Follows a bucket from just after a revision.
    pub fn feed(self: &Arc<Self>, bucket: &str, after: Revision) -> Result<Feed, StoreError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = bucket.into();
        let bucket = state.buckets.entry(name.clone()).or_default();
        if after < bucket.forgotten {
            return Err(StoreError::Compacted { asked: after, oldest: bucket.forgotten });
        }
        Ok(Feed::new(self.clone(), name, after, bucket.changed.subscribe()))
    }

    pub(crate) fn events_after(&self, bucket: &str, after: Revision) -> Result<Batch, StoreError> {
        let state = self.read();
        // A reader may wait for a revision that has not been reached yet.
        let revision = state.revision.max(after);
        let Some(bucket) = state.buckets.get(bucket) else {
            return Ok(Batch { events: Vec::new(), revision });
        };
        if after < bucket.forgotten {
            return Err(StoreError::Compacted { asked: after, oldest: bucket.forgotten });
        }
        let first = bucket.history.partition_point(|event| event.revision <= after);
        Ok(Batch { events: bucket.history.range(first..).cloned().collect(), revision })
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        // A writer that panicked changed nothing before its last check.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bucket {
    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        self.entries
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(path, _)| path.starts_with(prefix))
            .map(|(_, entry)| entry)
    }

    fn remember(&mut self, event: Event) {
        self.history.push_back(Arc::new(event));
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.forgotten = oldest.revision;
        }
    }
}

#[cfg(test)]
mod tests;
