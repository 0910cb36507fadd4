//! The store: reads from memory, writes through the committer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::committer::{Committer, View};
use crate::damage::Damage;
use crate::entry::{Entry, Key, Revision};
use crate::error::{OpenError, StoreError};
use crate::feed::{Batch, Feed};
use crate::history::Limits;
use crate::journal::{Contents, Journal};
use crate::linked::Linked;
use crate::open;
use crate::scrub::Scrubber;
use crate::state::State;
use crate::transaction::Transaction;

/// What an operator can choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How much of the past is kept.
    pub history: Limits,
    /// Whether to go on without what is damaged on disk.
    pub accept_loss: bool,
    /// How many bytes all entries may take together; `None`: as many as there is memory for.
    pub quota: Option<u64>,
    /// How often everything on disk is read and checked; `None`: only at the start.
    pub scrub: Option<Duration>,
}

/// The objects, their history, and the one order of all writes.
#[derive(Debug)]
pub struct Store {
    view: Arc<View>,
    clock: Clock,
    linked: Option<Arc<Linked>>,
    /// Must be gone before the journal is closed.
    scrubber: Option<Scrubber>,
    /// `None`: writes are gone when the process ends.
    committer: Option<Committer>,
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

impl Store {
    /// An empty store in memory.
    pub fn memory() -> Arc<Self> {
        Self::memory_with(Options::default())
    }

    /// An empty store in memory.
    pub fn memory_with(options: Options) -> Arc<Self> {
        let mut state = State::new(options.history);
        state.quota = options.quota;
        let (view, clock) = (View::new(state), Clock::new(0));
        Arc::new(Self { view, clock, linked: None, scrubber: None, committer: None })
    }

    /// The store in a file, which is made on first use. Blocks while it is read.
    ///
    /// A write is acknowledged when it is on disk. When the disk fails, all writes from then on
    /// fail with [`StoreError::ReadOnly`], and reads go on. Files that do not hold everything that
    /// was acknowledged are not opened, unless their operator accepts the loss.
    pub fn open(path: &Path, options: Options) -> Result<Arc<Self>, OpenError> {
        let (journal, contents) = open::open(path, options.accept_loss)?;
        let (disk, linked) = (journal.disk(), journal.linked());
        let corrupt = |why| OpenError::Corrupt { path: path.to_owned(), why };
        let mut store = Self::made(journal, contents, options).map_err(corrupt)?;
        let scrubber = options.scrub.map(|every| Scrubber::start(disk, path.to_owned(), every));
        let failed = |source| OpenError::File { path: path.to_owned(), source };
        store.scrubber = scrubber.transpose().map_err(failed)?;
        store.linked = linked;
        Ok(Arc::new(store))
    }

    /// Reads and checks everything that the files of a store hold. Nothing may have them open.
    pub fn verify(path: &Path) -> Result<Verified, OpenError> {
        let contents = open::verify(path)?;
        let revision = contents.revision();
        Ok(Verified { entries: contents.entries, revision })
    }

    /// A store over a journal that holds these contents.
    #[cfg(test)]
    pub(crate) fn over(
        journal: impl Journal + 'static,
        contents: Contents,
        options: Options,
    ) -> Result<Arc<Self>, String> {
        Self::made(journal, contents, options).map(Arc::new)
    }

    fn made(
        journal: impl Journal + 'static,
        contents: Contents,
        options: Options,
    ) -> Result<Self, String> {
        let clock = Clock::new(contents.log.last().map_or(0, |undo| undo.at));
        let mut state = State::load(contents, options.history)?;
        state.quota = options.quota;
        let view = View::new(state);
        let committer = Committer::start(view.clone(), journal).map_err(|e| e.to_string())?;
        Ok(Self { view, clock, linked: None, scrubber: None, committer: Some(committer) })
    }

    /// The revision of the newest write.
    pub fn revision(&self) -> Revision {
        self.view.read().revision
    }

    /// Why nothing can be written any more, if that is so.
    pub fn failure(&self) -> Option<StoreError> {
        let failure = self.view.failure();
        let removed = || self.linked.as_ref()?.check().err().map(|cause| self.view.fail(&cause));
        failure.or_else(removed)
    }

    /// What is damaged on disk, as far as it has been looked at since the start.
    pub fn damage(&self) -> Vec<Damage> {
        self.scrubber.as_ref().map(Scrubber::found).unwrap_or_default()
    }

    /// How many bytes all entries take of the quota, and how many they may take.
    pub fn usage(&self) -> (u64, Option<u64>) {
        let state = self.view.read();
        (state.bytes(), state.quota)
    }

    /// The newest state of one entry.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.view.read().get(key).cloned()
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
        self.view.read().page(bucket, range, at)
    }

    /// The entries of all buckets, in the order of their keys.
    pub fn all(&self) -> Snapshot {
        let state = self.view.read();
        Snapshot { entries: state.all(), revision: state.revision }
    }

    /// Carries out all writes of a transaction if all its conditions hold, else none.
    ///
    /// Returns the revision of the last write; the writes have consecutive revisions. They happen
    /// even if nobody waits for the answer.
    pub async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        let now = self.clock.now();
        match &self.committer {
            None => self.view.commit(transaction, now),
            Some(committer) => committer.commit(transaction, now).await,
        }
    }

    /// Follows a bucket from just after a revision.
    pub fn feed(self: &Arc<Self>, bucket: &str, after: Revision) -> Result<Feed, StoreError> {
        let bucket: Arc<str> = bucket.into();
        let changed = self.view.write().subscribe(&bucket, after)?;
        Ok(Feed::new(self.clone(), bucket, after, changed))
    }

    pub(crate) fn events_after(
        &self,
        bucket: &str,
        after: Revision,
        limit: usize,
    ) -> Result<Batch, StoreError> {
        self.view.read().events_after(bucket, after, limit)
    }
}

#[cfg(test)]
mod tests;
