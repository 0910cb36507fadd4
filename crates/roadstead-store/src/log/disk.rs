//! The log on this machine's disk: a write-ahead log in front of tables (docs/store-format.md).
//!
//! One thread decides what many writers want and syncs it once for all of them. When the disk
//! fails, nothing can be written any more, and reads go on.

use std::path::Path;
use std::sync::Arc;

use crate::clock::Clock;
use crate::damage::Damage;
use crate::entry::Revision;
use crate::error::{OpenError, StoreError};
use crate::kv::Options;
use crate::log::Log;
use crate::log::disk::committer::{Committer, Journal};
use crate::log::disk::contents::Contents;
use crate::log::disk::linked::Linked;
use crate::log::disk::scrub::Scrubber;
use crate::replica::Replica;
use crate::state::State;
use crate::transaction::Transaction;

mod committer;
pub(crate) mod contents;
mod holder;
mod linked;
pub(crate) mod open;
mod scrub;
mod sums;
pub(crate) mod tables;
pub(crate) mod wal;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod rot;

/// The committer, and those who look after its files.
#[derive(Debug)]
pub(crate) struct DiskLog {
    clock: Clock,
    linked: Option<Arc<Linked>>,
    /// Must be gone before the journal is closed.
    scrubber: Option<Scrubber>,
    committer: Committer,
}

impl DiskLog {
    /// Opens the files of a log, or makes them; the replica shows what they hold.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<(Arc<Replica>, Self), OpenError> {
        let (journal, contents) = open::open(path, options)?;
        let (tables, linked) = (journal.tables(), journal.linked());
        let corrupt = |why| OpenError::Corrupt { path: path.to_owned(), why };
        let (replica, mut log) = Self::over(journal, contents, options).map_err(corrupt)?;
        let scrubber = options.scrub.map(|every| Scrubber::start(tables, path.to_owned(), every));
        let failed = |source| OpenError::File { path: path.to_owned(), source };
        log.scrubber = scrubber.transpose().map_err(failed)?;
        log.linked = linked;
        Ok((replica, log))
    }

    /// A log over a journal that holds these contents.
    pub(crate) fn over(
        journal: impl Journal + 'static,
        contents: Contents,
        options: &Options,
    ) -> Result<(Arc<Replica>, Self), String> {
        let clock = Clock::new(contents.log.last().map_or(0, |undo| undo.at));
        contents.check_gapless()?;
        let replica = Replica::new(State::load(contents, options)?);
        let committer = Committer::start(replica.clone(), journal).map_err(|e| e.to_string())?;
        Ok((replica, Self { clock, linked: None, scrubber: None, committer }))
    }
}

impl Log for DiskLog {
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        self.committer.commit(transaction, self.clock.now()).await
    }

    fn failure(&self) -> Option<StoreError> {
        let removed =
            || self.linked.as_ref()?.check().err().map(|cause| self.committer.fail(&cause));
        self.committer.failure().or_else(removed)
    }

    fn damage(&self) -> Vec<Damage> {
        self.scrubber.as_ref().map(Scrubber::found).unwrap_or_default()
    }
}
