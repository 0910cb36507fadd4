//! The tables on disk: one redb file. Its format is described in docs/store-format.md. Writes come
//! from the log before it (`ahead.rs`), many at a time.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError,
};
use tracing::info;

use crate::committer::panic_text;
use crate::entry::{Entry, Key, Revision};
use crate::error::OpenError;
use crate::holder::holder_of;
use crate::journal::{Contents, Group, Undo};

/// The newest format that we know.
pub(crate) const FORMAT: u64 = 2;

/// `format`, `compacted` and `number`. This table stays as it is in all formats to come.
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Bucket and path → revision and value.
const OBJECTS: TableDefinition<(&str, &str), (u64, &[u8])> = TableDefinition::new("objects");
/// Revision → time, bucket, path, and the revision and value before (0 if there was none).
const LOG: TableDefinition<u64, (u64, &str, &str, u64, &[u8])> = TableDefinition::new("log");

/// Pages that redb may keep: we read from it only at the start, and the kernel caches the file.
const CACHE: usize = 4 << 20;

/// An open file.
#[derive(Debug)]
pub(crate) struct Disk {
    database: Database,
    /// Chosen by chance when the file was made: which log belongs to it.
    number: u64,
}

impl Disk {
    /// Opens the file, or makes it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Contents), OpenError> {
        if !path.exists() {
            Self::create(path, &Contents::default())?;
        }
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
            Self::with(database, path)
        }));
        opened.unwrap_or_else(|panic| Err(corrupt(path, panic_text(&*panic))))
    }

    /// The tables in an open database.
    pub(crate) fn with(database: Database, path: &Path) -> Result<(Self, Contents), OpenError> {
        let (number, contents) = match read(&database) {
            Ok(Ok(found)) => found,
            Ok(Err(Newer(found))) => {
                let path = path.to_owned();
                return Err(OpenError::Newer { path, found, known: FORMAT });
            }
            Err(error) => return Err(corrupt(path, error)),
        };
        let number = match number {
            0 => upgrade(&database).map_err(|error| corrupt(path, error))?,
            number => number,
        };
        Ok((Self { database, number }, contents))
    }

    /// By which the log knows that it belongs to this file.
    pub(crate) fn number(&self) -> u64 {
        self.number
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

impl Disk {
    /// Returns when all these writes are in the tables, and synced.
    pub(crate) fn settle(&self, groups: &[Group]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut log = transaction.open_table(LOG)?;
            for change in groups.iter().flat_map(|group| &group.changes) {
                let (bucket, path) = (&*change.key.bucket, &*change.key.path);
                let revision = change.revision.0;
                let before = match &change.value {
                    Some(value) => objects.insert((bucket, path), (revision, &**value))?,
                    None => objects.remove((bucket, path))?,
                };
                let before = before.as_ref().map_or((0, &[][..]), |before| before.value());
                log.insert(revision, (change.at, bucket, path, before.0, before.1))?;
            }
            if let Some(horizon) = groups.iter().filter_map(|group| group.forget).max() {
                log.retain_in(..=horizon.0, |_, _| false)?;
                transaction.open_table(META)?.insert("compacted", horizon.0)?;
            }
        }
        // Returns after the file has been synced.
        Ok(transaction.commit()?)
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// Fills a new database.
pub(crate) fn fill(database: &Database, contents: &Contents) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT)?;
        meta.insert("number", some_number()?)?;
        meta.insert("compacted", contents.compacted.0)?;
        transaction.open_table(LOG)?;
        let mut objects = transaction.open_table(OBJECTS)?;
        for entry in &contents.entries {
            let key = (&*entry.key.bucket, &*entry.key.path);
            objects.insert(key, (entry.revision.0, &*entry.value))?;
        }
    }
    Ok(transaction.commit()?)
}

/// Makes a file of format 1, which had no log before it, one of ours. Returns its number.
fn upgrade(database: &Database) -> Result<u64, redb::Error> {
    let number = some_number()?;
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT)?;
        meta.insert("number", number)?;
    }
    transaction.commit()?;
    Ok(number)
}

fn some_number() -> Result<u64, redb::Error> {
    let mut bytes = [0; 8];
    let filled = aws_lc_rs::rand::fill(&mut bytes);
    filled.map_err(|_| redb::Error::Io(io::Error::other("no random numbers")))?;
    // Nought stands for none.
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// The format is one that we do not know.
struct Newer(u64);

fn read(database: &Database) -> Result<Result<(u64, Contents), Newer>, redb::Error> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        // A database of somebody else's.
        Err(TableError::TableDoesNotExist(_)) => {
            return Err(redb::Error::Corrupted("it holds something else".into()));
        }
        meta => meta?,
    };
    let number = |name| Ok::<_, StorageError>(meta.get(name)?.map_or(0, |value| value.value()));
    let format = number("format")?;
    if format > FORMAT {
        return Ok(Err(Newer(format)));
    }
    let mut contents =
        Contents { compacted: Revision(number("compacted")?), ..Contents::default() };
    for row in transaction.open_table(OBJECTS)?.iter()? {
        let (key, value) = row?;
        let ((bucket, path), (revision, value)) = (key.value(), value.value());
        let (key, value) = (Key::new(bucket, path), Bytes::copy_from_slice(value));
        contents.entries.push(Entry { key, value, revision: Revision(revision) });
    }
    for row in transaction.open_table(LOG)?.iter()? {
        let (revision, row) = row?;
        let (at, bucket, path, before, value) = row.value();
        let before = (before > 0).then(|| (Revision(before), Bytes::copy_from_slice(value)));
        let (revision, key) = (Revision(revision.value()), Key::new(bucket, path));
        contents.log.push(Undo { revision, at, key, before });
    }
    Ok(Ok((number("number")?, contents)))
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

fn corrupt(path: &Path, why: impl ToString) -> OpenError {
    OpenError::Corrupt { path: path.to_owned(), why: why.to_string() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a store of another format.
    pub(crate) fn of_format(path: &Path, format: u64) {
        let database = builder().create(path).unwrap();
        fill(&database, &Contents::default()).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("format", format).unwrap();
        transaction.commit().unwrap();
    }

    /// Makes a redb file that is not a store.
    pub(crate) fn of_somebody_else(path: &Path) {
        let database = builder().create(path).unwrap();
        let transaction = database.begin_write().unwrap();
        let table: TableDefinition<&str, &str> = TableDefinition::new("songs");
        transaction.open_table(table).unwrap().insert("a", "b").unwrap();
        transaction.commit().unwrap();
    }
}
