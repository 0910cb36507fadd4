//! The tables on disk: one redb file. Its format is described in docs/store-format.md. Writes come
//! from the log before it (`wal.rs`), many at a time.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, StorageError, TableDefinition,
    WriteTransaction,
};
use tracing::{info, warn};

use self::meta::Meta;
use crate::damage::Damage;
use crate::entry::{Key, Revision};
use crate::error::OpenError;
use crate::log::disk::committer::panic_text;
use crate::log::disk::contents::{Contents, Redo};
use crate::log::disk::holder::holder_of;
use crate::log::disk::scrub::Page;
use crate::log::disk::sums;

mod meta;
mod read;

/// The newest format that we know.
pub(crate) const FORMAT: u64 = 3;

/// Bucket and path → revision, checksum and value.
const OBJECTS: TableDefinition<(&str, &str), (u64, u64, &[u8])> =
    TableDefinition::new("objects with sums");
/// Revision → time, bucket, path, checksum, and the revision and value before (0 if there was none).
const LOG: TableDefinition<u64, UndoRow> = TableDefinition::new("log with sums");

type UndoRow = (u64, &'static str, &'static str, u64, u64, &'static [u8]);

/// Pages that redb may keep: we read from it only at the start, and the kernel caches the file.
const CACHE: usize = 4 << 20;

/// An open file.
#[derive(Debug)]
pub(crate) struct Tables {
    database: Database,
    meta: Mutex<Meta>,
}

/// What tables hold.
#[derive(Debug)]
pub(crate) struct Found {
    /// Everything that can be read.
    pub(crate) contents: Contents,
    /// The newest write in them.
    pub(crate) revision: Revision,
    /// Which use of a file of the log is the newest they know of; 0: they have had no log yet.
    pub(crate) generation: u64,
    /// Whether they are of an earlier format, and must be upgraded with what their log holds.
    pub(crate) old: bool,
    /// What is not as it was written.
    pub(crate) damage: Vec<Damage>,
}

impl Tables {
    /// Opens the file.
    pub(crate) fn open(path: &Path) -> Result<(Self, Found), OpenError> {
        let repairing = path.to_owned();
        let mut builder = builder();
        builder.set_repair_callback(move |session| {
            if session.progress() == 0.0 {
                info!(path = %repairing.display(), "the store was not closed: checking it");
            }
        });
        // redb has been seen to panic on damaged files.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let database = builder.open(path).map_err(|error| open_error(path, error))?;
            let (mut disk, found) = Self::with(database, path)?;
            // Rows that do not fit can be named; of pages redb would only say that they are wrong.
            if found.damage.is_empty() {
                disk.check(path)?;
            }
            Ok((disk, found))
        }));
        opened.unwrap_or_else(|panic| Err(corrupt(path, panic_text(&*panic))))
    }

    /// The tables in an open database.
    pub(crate) fn with(database: Database, path: &Path) -> Result<(Self, Found), OpenError> {
        let read = read::read(&database, path).map_err(|error| corrupt(path, error))?;
        let (meta, found) = match read {
            Ok(found) => found,
            Err(read::Newer(found)) => {
                let path = path.to_owned();
                return Err(OpenError::Newer { path, found, known: FORMAT });
            }
        };
        Ok((Self { database, meta: Mutex::new(meta) }, found))
    }

    /// Has redb check its own pages: a damaged list of free ones would cost us others later.
    fn check(&mut self, path: &Path) -> Result<(), OpenError> {
        match self.database.check_integrity() {
            Ok(true) => Ok(()),
            Ok(false) => {
                warn!(path = %path.display(), "the tables had damage in what they can do without: mended");
                Ok(())
            }
            Err(error) => Err(corrupt(path, error)),
        }
    }

    /// By which the log knows that it belongs to this file.
    pub(crate) fn number(&self) -> u64 {
        self.meta().number
    }

    fn meta(&self) -> Meta {
        *self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a file that holds these contents, completely or not at all.
    pub(crate) fn create(path: &Path, contents: &Contents) -> Result<(), OpenError> {
        let unfinished = path.with_extension("new");
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::File { path, source }
        };
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut make = fs::DirBuilder::new();
        make.recursive(true).mode(0o700).create(directory).map_err(file(directory))?;
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(file(&unfinished)(error));
            }
            _ => {}
        }
        let mut options = File::options();
        let new = options.read(true).write(true).create_new(true).mode(0o600).open(&unfinished);
        let database = builder().create_file(new.map_err(file(&unfinished))?);
        let database = database.map_err(|error| open_error(&unfinished, error))?;
        fill(&database, contents).map_err(|error| file(&unfinished)(io::Error::other(error)))?;
        drop(database);
        fs::rename(&unfinished, path).map_err(file(path))?;
        File::open(directory).and_then(|d| d.sync_all()).map_err(file(directory))
    }
}

impl Tables {
    /// Returns when all these writes are in the tables, and synced. From now on they know of a use
    /// of a file of the log.
    pub(crate) fn checkpoint(&self, groups: &[Redo], generation: u64) -> Result<(), redb::Error> {
        let mut meta = Meta { generation, ..self.meta() };
        let transaction = self.database.begin_write()?;
        checkpoint(&transaction, &mut meta, groups)?;
        meta.write(&transaction)?;
        // Returns after the file has been synced.
        transaction.commit()?;
        *self.meta.lock().unwrap_or_else(PoisonError::into_inner) = meta;
        Ok(())
    }

    /// From now on the tables insist on a log.
    pub(crate) fn note_use(&self, generation: u64) -> Result<(), redb::Error> {
        self.checkpoint(&[], generation)
    }

    /// Checks some objects that come after a key, or the first ones.
    pub(crate) fn check_page(
        &self,
        after: Option<&Key>,
        limit: usize,
        path: &Path,
    ) -> Result<Page, redb::Error> {
        read::check_page(&self.database.begin_read()?, after, limit, path)
    }

    /// Makes tables of an earlier format ones of ours, which hold these contents and need no log.
    pub(crate) fn upgrade(&self, contents: &Contents) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        let meta = write_all(&transaction, contents, self.number())?;
        read::remove_old(&transaction)?;
        meta.write(&transaction)?;
        transaction.commit()?;
        *self.meta.lock().unwrap_or_else(PoisonError::into_inner) = meta;
        Ok(())
    }
}

fn checkpoint(
    transaction: &WriteTransaction,
    meta: &mut Meta,
    groups: &[Redo],
) -> Result<(), redb::Error> {
    let mut objects = transaction.open_table(OBJECTS)?;
    let mut log = transaction.open_table(LOG)?;
    for change in groups.iter().flat_map(|group| &group.changes) {
        let row = (&*change.key.bucket, &*change.key.path);
        let before = match &change.value {
            Some(value) => {
                let sum = sums::object(&change.key, change.revision, value);
                meta.add(sum);
                objects.insert(row, (change.revision.0, sum, &**value))?
            }
            None => objects.remove(row)?,
        };
        let before = before.as_ref().map(|before| before.value());
        if let Some((_, sum, _)) = before {
            meta.remove(sum);
        }
        let sum = before.map(|(_, sum, _)| sum);
        let sum = sums::undo(change.revision, change.at, &change.key, sum);
        let (revision, _, value) = before.unwrap_or_default();
        log.insert(change.revision.0, (change.at, row.0, row.1, sum, revision, value))?;
        meta.revision = change.revision;
    }
    if let Some(horizon) = groups.iter().filter_map(|group| group.compact).max() {
        log.retain_in(..=horizon.0, |_, _| false)?;
        meta.compacted = horizon;
    }
    Ok(())
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// Fills a new database.
pub(crate) fn fill(database: &Database, contents: &Contents) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    write_all(&transaction, contents, meta::some_number()?)?.write(&transaction)?;
    Ok(transaction.commit()?)
}

/// Writes contents into tables that are empty.
fn write_all(
    transaction: &WriteTransaction,
    contents: &Contents,
    number: u64,
) -> Result<Meta, redb::Error> {
    let (revision, compacted) = (contents.revision(), contents.compacted);
    let mut meta = Meta { number, revision, compacted, ..Meta::default() };
    let mut objects = transaction.open_table(OBJECTS)?;
    for entry in &contents.entries {
        let sum = sums::object(&entry.key, entry.revision, &entry.value);
        meta.add(sum);
        let row = (&*entry.key.bucket, &*entry.key.path);
        objects.insert(row, (entry.revision.0, sum, &*entry.value))?;
    }
    let mut log = transaction.open_table(LOG)?;
    for undo in &contents.log {
        let before = undo.before.as_ref();
        let sum = before.map(|(revision, value)| sums::object(&undo.key, *revision, value));
        let sum = sums::undo(undo.revision, undo.at, &undo.key, sum);
        let (revision, value) = before.map_or((0, &[][..]), |(r, value)| (r.0, &**value));
        let row = (undo.at, &*undo.key.bucket, &*undo.key.path, sum, revision, value);
        log.insert(undo.revision.0, row)?;
    }
    Ok(meta)
}

fn open_error(path: &Path, error: DatabaseError) -> OpenError {
    let path: PathBuf = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => {
            let holder = holder_of(&path).unwrap_or_else(|| "another process".into());
            OpenError::InUse { path, holder }
        }
        DatabaseError::Storage(StorageError::Io(source))
            if source.kind() != io::ErrorKind::InvalidData
                && source.kind() != io::ErrorKind::UnexpectedEof =>
        {
            OpenError::File { path, source }
        }
        other => corrupt(&path, other),
    }
}

pub(crate) fn corrupt(path: &Path, why: impl ToString) -> OpenError {
    OpenError::Corrupt { path: path.to_owned(), why: why.to_string() }
}

#[cfg(test)]
pub(crate) mod tests;
