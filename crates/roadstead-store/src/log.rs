//! Below the store: where the one order of all writes is made, and what makes them last.
//!
//! A log decides transactions one after the other, gives their writes revisions, and hands each
//! [`Group`] to the [replica](crate::replica) when it is committed. The replica changes in no other
//! way, so it never shows what may still be lost, and cannot tell one log from another.
//!
//! | log | who decides | committed when | revisions |
//! |---|---|---|---|
//! | `memory` | the writer, in its turn | at once | one for each write |
//! | `disk` | one thread, many writers at a time | synced to the write-ahead log | one for each write |
//! | `etcd` | etcd, whoever asks it | its watch tells of it | one for a whole transaction |
//!
//! A pretended remote log in the tests (`log/remote.rs`) keeps this seam honest without an etcd: others
//! write to it too, and its revisions have several events. Adding a log is a file here, a variant of
//! [`AnyLog`] and a way to open it in `kv.rs`.

use std::sync::Arc;

use crate::damage::Damage;
use crate::entry::{Event, Revision};
use crate::error::StoreError;
use crate::log::disk::DiskLog;
use crate::log::etcd::EtcdLog;
use crate::log::memory::MemoryLog;
use crate::transaction::Transaction;

pub(crate) mod disk;
pub(crate) mod etcd;
pub(crate) mod memory;
#[cfg(test)]
mod remote;

/// Where transactions are decided.
pub(crate) trait Log {
    /// Carries out all writes of a transaction if all its conditions hold, else none.
    ///
    /// Returns the revision of the last write, when all of them are durable and the replica shows
    /// them; after a conflict, when the replica shows what it was refused for. The writes happen
    /// even if nobody waits for the answer.
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError>;

    /// Returns when the replica shows everything that anybody had been told was written when this was
    /// asked. Where all writes go through this process, that is always so.
    async fn fresh(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Why nothing can be written any more, if that is so.
    fn failure(&self) -> Option<StoreError> {
        None
    }

    /// What is damaged where the log keeps what was written.
    fn damage(&self) -> Vec<Damage> {
        Vec::new()
    }
}

/// Writes that were committed together: a replica takes in all of them or none.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// In order. Several may have the same revision, each for a key of its own; then they are all
    /// in this group.
    pub(crate) events: Vec<Arc<Event>>,
    /// Events up to and including this revision are forgotten in the same step.
    pub(crate) compact: Option<Revision>,
    /// The log has reached this revision, even if the events are none or older: it may have revisions
    /// that are about nothing of ours.
    pub(crate) reached: Revision,
}

/// Any of the logs. Not a `dyn Log`, so that a commit needs no allocation for its future.
#[derive(Debug)]
pub(crate) enum AnyLog {
    Memory(MemoryLog),
    Disk(DiskLog),
    Etcd(EtcdLog),
    #[cfg(test)]
    Remote(remote::RemoteLog),
}

impl Log for AnyLog {
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        match self {
            Self::Memory(log) => log.commit(transaction).await,
            Self::Disk(log) => log.commit(transaction).await,
            Self::Etcd(log) => log.commit(transaction).await,
            #[cfg(test)]
            Self::Remote(log) => log.commit(transaction).await,
        }
    }

    async fn fresh(&self) -> Result<(), StoreError> {
        match self {
            Self::Etcd(log) => log.fresh().await,
            _ => Ok(()),
        }
    }

    fn failure(&self) -> Option<StoreError> {
        match self {
            Self::Memory(log) => log.failure(),
            Self::Disk(log) => log.failure(),
            Self::Etcd(log) => log.failure(),
            #[cfg(test)]
            Self::Remote(log) => log.failure(),
        }
    }

    fn damage(&self) -> Vec<Damage> {
        match self {
            Self::Memory(log) => log.damage(),
            Self::Disk(log) => log.damage(),
            Self::Etcd(log) => log.damage(),
            #[cfg(test)]
            Self::Remote(log) => log.damage(),
        }
    }
}
