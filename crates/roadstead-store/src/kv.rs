//! The store on one page: keys with values, revisions, and what may be done with them.
//!
//! A **key** is a bucket and a path; the bucket is what one follows, the path orders entries within
//! it. All writes to all keys have **one order**, and each has a **revision** in it; revisions never
//! go down. An **entry** is the value of a key with the revision of the write that made it.
//!
//! - **Reading** ([`Store::get`], [`Store::list`], [`Store::page`]) answers from memory, never waits,
//!   and never slows a writer. Everything that one call returns was true at one revision, which it
//!   names. The past can be read as long as its history is kept; then it is
//!   [`Compacted`](StoreError::Compacted).
//! - **Committing** ([`Store::commit`]) carries out a [`Transaction`]: several writes that happen
//!   all or not at all, and only if the keys that it names are still at the revisions that it
//!   expects. Whoever reads, computes and commits on condition needs no lock. When it returns, the
//!   writes outlive the process (if the log does) and every reader sees them; before, nobody does.
//! - **Following** ([`Store::feed`]) tells of every write to a bucket after a revision, in order, at
//!   the reader's own pace. A reader remembers the revision up to which it has seen everything, and
//!   goes on from there whenever it likes. A revision may have several events, which are told
//!   together. A list at a revision, and the feed from there on, are everything: nothing is missing
//!   between them, nothing is told twice.
//!
//! Two things are below this page. The replica (`replica.rs`, `state.rs`) is the state in memory
//! that answers readers and followers. The log (`log.rs`) decides transactions, makes them durable
//! and then feeds the replica: in memory, on disk, or in etcd, where others write too. Callers cannot tell
//! which, but for one thing: who must see what others have written asks for it ([`Store::fresh`]).
//!
//! Times of writes only say how much of the past is kept; nothing is ordered by them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::damage::Damage;
use crate::entry::{Entry, Key, Revision};
use crate::error::{OpenError, StoreError};
use crate::feed::{Batch, Feed};
use crate::layout::KeyLayout;
use crate::log::disk::{DiskLog, open};
use crate::log::etcd::EtcdLog;
use crate::log::memory::MemoryLog;
use crate::log::{AnyLog, Log};
use crate::replica::Replica;
use crate::retention::Limits;
use crate::state::State;
use crate::transaction::Transaction;
use roadstead_etcd::client::Client;

/// Entries, their history, and the one order of all writes.
#[derive(Debug)]
pub struct Store {
    replica: Arc<Replica>,
    log: AnyLog,
}

/// What an operator can choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How much of the past is kept.
    pub history: Limits,
    /// Whether to go on without what is damaged on disk.
    pub accept_loss: bool,
    /// Whether there is a store already: if nothing of it is found, none is made in its place.
    pub expected: bool,
    /// How many bytes all entries may take together; `None`: as many as there is memory for.
    pub quota: Option<u64>,
    /// How often everything on disk is read and checked; `None`: only at the start.
    pub scrub: Option<Duration>,
}

/// What an operator can choose of a store in etcd.
#[derive(Clone, Copy, Debug)]
pub struct EtcdOptions {
    /// How much of the past is kept in memory.
    pub history: Limits,
    /// How long to wait for an answer at the start.
    pub patience: Duration,
    /// How often etcd is told to forget what is older than this; `None`: others do that.
    pub compaction: Option<Duration>,
}

/// Which entries of a bucket a page has.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    /// Paths begin with this,
    pub prefix: &'a str,
    /// come after this,
    pub after: &'a str,
    /// and are no more than that.
    pub limit: usize,
}

/// Some entries, in the order of their keys.
#[derive(Debug)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Arc<Entry>>,
    /// Whether there are others after them.
    pub more: bool,
    /// How many entries have the prefix now.
    pub total: usize,
    /// The revision at which this was so.
    pub revision: Revision,
}

/// Entries as they were at one revision.
#[derive(Debug)]
pub struct Snapshot {
    /// In the order of their paths.
    pub entries: Vec<Arc<Entry>>,
    /// The revision at which all of them were true.
    pub revision: Revision,
}

/// What the files of a store hold, every checksum of which fits.
#[derive(Debug)]
pub struct Verified {
    /// All entries.
    pub entries: Vec<Entry>,
    /// The revision of the newest write.
    pub revision: Revision,
}

/// Opening.
impl Store {
    /// An empty store in memory.
    pub fn memory() -> Arc<Self> {
        Self::memory_with(Options::default())
    }

    /// An empty store in memory.
    pub fn memory_with(options: Options) -> Arc<Self> {
        let replica = Replica::new(State::new(&options));
        let log = AnyLog::Memory(MemoryLog::new(replica.clone()));
        Self::over(replica, log)
    }

    /// The store in a file, which is made on first use. Blocks while it is read.
    ///
    /// A write is acknowledged when it is on disk. When the disk fails, all writes from then on
    /// fail with [`StoreError::ReadOnly`], and reads go on. Files that do not hold everything that
    /// was acknowledged are not opened, unless their operator accepts the loss.
    pub fn open(path: &Path, options: Options) -> Result<Arc<Self>, OpenError> {
        let (replica, log) = DiskLog::open(path, &options)?;
        Ok(Self::over(replica, AnyLog::Disk(log)))
    }

    /// The store in etcd, which others may use at the same time; returns when everything is in memory. It
    /// waits for an etcd that does not answer yet, up to the deadline.
    pub async fn etcd(
        client: Client,
        layout: Arc<dyn KeyLayout>,
        options: EtcdOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let (replica, log) = EtcdLog::open(client, layout, options).await?;
        Ok(Self::over(replica, AnyLog::Etcd(log)))
    }

    /// A store over a log and the replica that it feeds.
    pub(crate) fn over(replica: Arc<Replica>, log: AnyLog) -> Arc<Self> {
        Arc::new(Self { replica, log })
    }

    /// Reads and checks everything that the files of a store hold. Nothing may have them open.
    pub fn verify(path: &Path) -> Result<Verified, OpenError> {
        let contents = open::verify(path)?;
        let revision = contents.revision();
        Ok(Verified { entries: contents.entries, revision })
    }
}

/// Reading: from memory, without waiting.
impl Store {
    /// The revision of the newest write.
    pub fn revision(&self) -> Revision {
        self.replica.read().revision
    }

    /// The newest state of one entry.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.replica.read().get(key).cloned()
    }

    /// The entries of a bucket whose path begins with `prefix`, now or at a past revision.
    pub fn list(
        &self,
        bucket: &str,
        prefix: &str,
        at: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        let range = Range { prefix, after: "", limit: usize::MAX };
        let Page { entries, revision, .. } = self.page(bucket, &range, at)?;
        Ok(Snapshot { entries, revision })
    }

    /// The first entries of a range, now or at a past revision. However many there are, this costs
    /// only what the page costs.
    pub fn page(
        &self,
        bucket: &str,
        range: &Range<'_>,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.replica.read().page(bucket, range, at)
    }

    /// The entries of all buckets, in the order of their keys.
    pub fn all(&self) -> Snapshot {
        let state = self.replica.read();
        Snapshot { entries: state.all(), revision: state.revision }
    }
}

/// Reading what others have written, where others write.
impl Store {
    /// Whether others write to the same log: then what was just read from memory may be behind it.
    pub fn is_shared(&self) -> bool {
        matches!(self.log, AnyLog::Etcd(_))
    }

    /// Returns when readers see everything that anybody had been told was written before this was asked.
    /// At once, where nobody else writes.
    pub async fn fresh(&self) -> Result<(), StoreError> {
        self.log.fresh().await
    }
}

/// Committing.
impl Store {
    /// Carries out all writes of a transaction if all its conditions hold, else none.
    ///
    /// Returns the revision of the last write; the writes before it have the same or smaller ones.
    /// They happen even if nobody waits for the answer. After a conflict, reading shows the newer
    /// state that was in the way.
    pub async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        self.log.commit(transaction).await
    }
}

/// Following.
impl Store {
    /// Follows a bucket from just after a revision.
    pub fn feed(self: &Arc<Self>, bucket: &str, after: Revision) -> Result<Feed, StoreError> {
        let bucket: Arc<str> = bucket.into();
        let changed = self.replica.write().subscribe(&bucket, after)?;
        Ok(Feed::new(self.clone(), bucket, after, changed))
    }

    /// About `limit` events of a bucket after a revision, and always all of a revision.
    pub(crate) fn events_after(
        &self,
        bucket: &str,
        after: Revision,
        limit: usize,
    ) -> Result<Batch, StoreError> {
        self.replica.read().events_after(bucket, after, limit)
    }
}

/// How the store is.
impl Store {
    /// Why nothing can be written any more, if that is so.
    pub fn failure(&self) -> Option<StoreError> {
        self.log.failure()
    }

    /// What is damaged on disk, as far as it has been looked at since the start.
    pub fn damage(&self) -> Vec<Damage> {
        self.log.damage()
    }

    /// How many bytes all entries take of the quota, and how many they may take.
    pub fn usage(&self) -> (u64, Option<u64>) {
        let state = self.replica.read();
        (state.bytes(), state.quota)
    }
}

#[cfg(test)]
mod tests;
