//! Opening the files of a store: they are used only if they hold everything that was acknowledged,
//! or if the operator accepts the loss of what they do not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use tracing::{error, info, warn};

use crate::damage::Damage;
use crate::entry::Revision;
use crate::error::OpenError;
use crate::kv::Options;
use crate::log::disk::contents::{Contents, Redo};
use crate::log::disk::tables::{self, Tables, corrupt};
use crate::log::disk::wal::{self, Files, Pace, WriteAheadLog};
use crate::snapshot::LEAP;

/// Opens a store, or makes one where there is none.
pub(crate) fn open(path: &Path, options: &Options) -> Result<(WriteAheadLog, Contents), OpenError> {
    if options.expected && !path.exists() {
        check_nothing_there(path)?;
        if !options.accept_loss {
            return Err(OpenError::Vanished { path: path.to_owned() });
        }
        error!(path = %path.display(), "accepted the loss: the whole store, which is gone");
    }
    let (mut wal, contents) = open_files(path, options.accept_loss)?;
    wal.watch_over(path).map_err(file_error(path))?;
    Ok((wal, contents))
}

fn open_files(path: &Path, accept_loss: bool) -> Result<(WriteAheadLog, Contents), OpenError> {
    if !path.exists() {
        check_nothing_there(path)?;
        Tables::create(path, &Contents::default())?;
        info!(path = %path.display(), "made a new, empty store");
    }
    let (tables, found) = Tables::open(path)?;
    let tables = Arc::new(tables);
    if found.old {
        return upgrade(path, tables, found.contents);
    }
    let mut found = Opened::read(path, &tables, found)?;
    let damage = std::mem::take(&mut found.damage);
    if damage.is_empty() {
        return found.start(path, tables);
    }
    if !accept_loss {
        return Err(OpenError::Damaged { path: path.to_owned(), damage });
    }
    for lost in &damage {
        error!("accepted the loss: {lost}");
    }
    let contents = found.salvage();
    drop(tables);
    let aside = set_aside(path).map_err(file_error(path))?;
    warn!(path = %aside.display(), "the damaged files are kept there");
    Tables::create(path, &contents)?;
    open_files(path, false)
}

/// Reads and checks everything, and changes nothing but what a crash has left redb to do.
pub(crate) fn verify(path: &Path) -> Result<Contents, OpenError> {
    if !path.exists() {
        check_nothing_there(path)?;
    }
    let (tables, found) = Tables::open(path)?;
    if found.old {
        return Ok(found.contents);
    }
    let found = Opened::read(path, &tables, found)?;
    if !found.damage.is_empty() {
        return Err(OpenError::Damaged { path: path.to_owned(), damage: found.damage });
    }
    let mut contents = found.contents;
    contents.redo(&found.log.map(|log| log.rest).unwrap_or_default());
    Ok(contents)
}

/// Moves all files of a store into a directory of their own beside them, which is returned.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let aside = directory.join(format!("before-{}", Timestamp::now().as_millisecond()));
    fs::create_dir(&aside)?;
    let files = wal::paths(path);
    for file in files.iter().map(PathBuf::as_path).chain([path]) {
        let name = file.file_name().unwrap_or_default();
        match fs::rename(file, aside.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            moved => moved?,
        }
    }
    fs::File::open(&aside)?.sync_all()?;
    fs::File::open(directory)?.sync_all()?;
    Ok(aside)
}

/// A log without tables is what is left of a store, not a place for a new one.
fn check_nothing_there(path: &Path) -> Result<(), OpenError> {
    let left: Vec<_> = wal::paths(path).into_iter().filter(|file| file.exists()).collect();
    match left.first() {
        None => Ok(()),
        Some(log) => {
            let why = format!("it is missing, but {} of the same store is there", log.display());
            Err(corrupt(path, why))
        }
    }
}

/// Everything that was found.
struct Opened {
    contents: Contents,
    checkpointed: Revision,
    /// `None`: the tables have had no log yet.
    log: Option<wal::Found>,
    damage: Vec<Damage>,
}

impl Opened {
    fn read(path: &Path, tables: &Tables, found: tables::Found) -> Result<Self, OpenError> {
        let tables::Found { contents, revision: checkpointed, generation, mut damage, .. } = found;
        let log = match generation {
            0 => None,
            generation => {
                let files = Files::open(path).map_err(file_error(path))?;
                let found = wal::read(files, tables.number(), generation, checkpointed);
                Some(found.map_err(file_error(path))?)
            }
        };
        damage.extend(log.iter().flat_map(|log| log.damage.iter().cloned()));
        Ok(Self { contents, checkpointed, log, damage })
    }

    fn start(
        self,
        path: &Path,
        tables: Arc<Tables>,
    ) -> Result<(WriteAheadLog, Contents), OpenError> {
        let mut contents = self.contents;
        let wal = match self.log {
            None => {
                let files = Files::open(path).map_err(file_error(path))?;
                WriteAheadLog::create(files, tables, self.checkpointed, Pace::default())
            }
            Some(log) => {
                contents.redo(&log.rest);
                WriteAheadLog::resume(log, tables, self.checkpointed, Pace::default())
            }
        };
        Ok((wal.map_err(file_error(path))?, contents))
    }

    /// Everything that can be read, without a past, and so far ahead that no revision which was
    /// acknowledged is used for something else.
    fn salvage(self) -> Contents {
        let mut contents = self.contents;
        let newest = contents.entries.iter().map(|entry| entry.revision);
        let newest =
            newest.max().unwrap_or_default().max(self.checkpointed).max(contents.revision());
        let mut last = newest;
        if let Some(log) = self.log {
            contents.redo(&log.rest);
            last = last.max(log.proven).max(log.rest.last().map_or(Revision(0), Redo::last));
        }
        let compacted = Revision(last.0.saturating_add(LEAP));
        Contents { entries: contents.entries, compacted, log: Vec::new() }
    }
}

/// Takes a store of an earlier format over, in one step.
fn upgrade(
    path: &Path,
    tables: Arc<Tables>,
    mut contents: Contents,
) -> Result<(WriteAheadLog, Contents), OpenError> {
    let checkpointed = contents.revision();
    let files = Files::open(path).map_err(file_error(path))?;
    let rest = wal::read_old(files, tables.number(), checkpointed).map_err(file_error(path))?;
    contents.redo(&rest.map_err(|why| corrupt(path, why))?);
    tables.upgrade(&contents).map_err(|error| corrupt(path, error))?;
    info!(path = %path.display(), "the store is of an earlier version, and has been taken over");
    let files = Files::open(path).map_err(file_error(path))?;
    let wal = WriteAheadLog::create(files, tables, contents.revision(), Pace::default());
    Ok((wal.map_err(file_error(path))?, contents))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.with_extension("ahead*");
    move |source| OpenError::File { path, source }
}
