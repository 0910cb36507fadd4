//! Why the store refused, or could not be opened.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::damage::{self, Damage};
use crate::entry::{Key, Revision};

/// Why the store refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote first.
    #[error("{key} is at revision {found:?}, the write expected {expected:?}")]
    Conflict {
        /// The key that is not as expected.
        key: Key,
        /// `None`: the write expected no entry.
        expected: Option<Revision>,
        /// `None`: there is no entry.
        found: Option<Revision>,
    },
    /// The history reaches back only so far.
    #[error("revision {asked} is gone, history begins after {oldest}")]
    Compacted {
        /// What the reader asked for.
        asked: Revision,
        /// Reading can resume after this revision.
        oldest: Revision,
    },
    /// Nobody has written that much yet.
    #[error("revision {asked} is in the future, the store is at {newest}")]
    Future {
        /// What the reader asked for.
        asked: Revision,
        /// The revision of the newest write.
        newest: Revision,
    },
    /// All objects together are as large as they may be. Deletions make room.
    #[error(
        "etcdserver: mvcc: database space exceeded: all objects take {used} bytes of {quota}; delete \
         some, or raise --quota-backend-bytes"
    )]
    Full {
        /// How much they take.
        used: u64,
        /// How much they may take.
        quota: u64,
    },
    /// A write did not reach the disk: none is accepted any more, reads go on.
    #[error("the store is read-only since {since:.0}: {cause}")]
    ReadOnly {
        /// When the first write failed.
        since: Timestamp,
        /// Why it did.
        cause: Arc<str>,
    },
    /// The log elsewhere does not answer. Nothing has happened.
    #[error("etcd is not available: {cause}")]
    Unavailable {
        /// What was found instead of an answer.
        cause: Arc<str>,
    },
    /// The log elsewhere was asked to write, and no answer came: it may have been written, or may still be.
    #[error("no answer from etcd, the write may have been carried out: {cause}")]
    Unknown {
        /// What was found instead of an answer.
        cause: Arc<str>,
    },
    /// The log elsewhere is full. Deletions pass.
    #[error(
        "{cause}: nothing can be created or changed, only deleted; delete what is not needed or give etcd a \
         larger --quota-backend-bytes, then `roadstead etcd heal` makes room and ends the alarm"
    )]
    NoSpace {
        /// In its words.
        cause: Arc<str>,
    },
    /// More than the log elsewhere takes at once.
    #[error("{cause}")]
    TooLarge {
        /// What is, and how much is taken.
        cause: Arc<str>,
    },
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file or its directory cannot be used.
    #[error("cannot use {path}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("the store {path} is in use by {holder}")]
    InUse {
        /// The file.
        path: PathBuf,
        /// The process, if we may see it.
        holder: String,
    },
    /// A later version of Roadstead has written it.
    #[error(
        "the store {path} has format {found}, this version of roadstead knows up to {known}\nstart the \
         version that wrote it\nor {}",
        restore(path)
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format that we know.
        known: u64,
    },
    /// What is in the files is not all that was acknowledged. They were left as they are.
    #[error(
        "the store {path} is damaged, and was left as it is:\n{}\n{}\nor go on without what is \
         named above: start with --accept-loss (the damaged files are kept beside the new ones)",
        damage::lines(damage),
        restore(path)
    )]
    Damaged {
        /// The file of tables.
        path: PathBuf,
        /// What is damaged.
        damage: Vec<Damage>,
    },
    /// There was a store, and nothing of it is left.
    #[error(
        "the store {path} is gone: it has been used before, and none of its files is there\nbring them \
         back, if they are on a disk that is not mounted\n{}\nor begin with an empty cluster: start with \
         --accept-loss",
        restore(path)
    )]
    Vanished {
        /// The file of tables.
        path: PathBuf,
    },
    /// The log elsewhere cannot be read.
    #[error("cannot load from etcd ({endpoints}): {why}")]
    Etcd {
        /// Where it was looked for.
        endpoints: String,
        /// What was found.
        why: String,
    },
    /// The file is not a store, or it is damaged.
    #[error(
        "the store {path} cannot be read, and was left as it is: {why}\n{}\nor begin with an empty \
         cluster: move {} away",
        restore(path),
        directory(path)
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
}

/// How to restore a store.
fn restore(path: &Path) -> String {
    let data = path.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    let data = data.display();
    format!("restore it from a snapshot: roadstead snapshot restore FILE --force --data-dir {data}")
}

/// Where all files of a store are.
fn directory(path: &Path) -> std::path::Display<'_> {
    path.parent().unwrap_or(Path::new(".")).display()
}

/// Why a snapshot was refused.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It is something else.
    #[error("this is not a snapshot")]
    Foreign,
    /// A later version of Roadstead has written it.
    #[error("the snapshot has format {found}, this version of roadstead knows up to {known}")]
    Newer {
        /// Its format.
        found: u64,
        /// The newest format that we know.
        known: u64,
    },
    /// It is not as it was written.
    #[error("the snapshot is damaged: its content does not fit its checksum")]
    Damaged,
}
