//! The write-ahead log: a write is durable when it is at the end of a file, which costs one write
//! and one sync; the tables, which cost many, follow in the background.
//!
//! There are two files. One is written to until it is long enough and the tables hold everything
//! that is in the other; then they change places. After a crash, what the tables lack is in them.
//! A third file, the mark, says how far writes were acknowledged.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redb::StorageBackend;
use redb::backends::FileBackend;
use tracing::warn;

use self::checkpoint::{Begin, Checkpointer};
use self::examine::{Evidence, file_of};
use self::file::{LogFile, Reading};
use self::mark::{Mark, MarkFile};
use crate::damage::Damage;
use crate::entry::Revision;
use crate::log::Group;
use crate::log::disk::committer::Journal;
use crate::log::disk::contents::Redo;
use crate::log::disk::linked::Linked;
use crate::log::disk::tables::Tables;

mod checkpoint;
mod examine;
mod file;
mod mark;
mod record;

pub(crate) use self::checkpoint::Pace;

/// How long files that vanish may go unnoticed.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Room for a group that is kept for the next one.
const LARGE: usize = 1 << 20;

/// Where the files of the log before some tables are: two of the log, and the mark.
pub(crate) fn paths(tables: &Path) -> [PathBuf; 3] {
    ["ahead0", "ahead1", "mark"].map(|extension| tables.with_extension(extension))
}

/// The files of a log, opened; `None` stands for one that is not there.
pub(crate) struct Files {
    pub(crate) paths: [PathBuf; 3],
    pub(crate) backends: [Option<Box<dyn StorageBackend>>; 3],
}

impl Files {
    /// Opens what there is.
    pub(crate) fn open(tables: &Path) -> io::Result<Self> {
        let paths = paths(tables);
        let open = |path: &Path| match backend(path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        };
        let [one, other, mark] = &paths;
        let backends = [open(one)?, open(other)?, open(mark)?];
        Ok(Self { paths, backends })
    }

    /// Makes what is not there yet.
    fn complete(self) -> io::Result<[Box<dyn StorageBackend>; 3]> {
        let [one, other, mark] = self.backends;
        let [first, second, third] = &self.paths;
        let make = |there: Option<Box<dyn StorageBackend>>, path: &Path| match there {
            Some(there) => Ok(there),
            None => backend(path, true),
        };
        Ok([make(one, first)?, make(other, second)?, make(mark, third)?])
    }
}

/// What the log of some tables holds.
pub(crate) struct Found {
    /// `None` if one of the files is missing.
    logs: Option<([Reading; 2], MarkFile)>,
    /// What is not as it was written.
    pub(crate) damage: Vec<Damage>,
    /// What the tables lack.
    pub(crate) rest: Vec<Redo>,
    /// Everything up to and including this revision was acknowledged.
    pub(crate) proven: Revision,
}

/// Reads the log of tables that know of its use `generation`, and hold everything up to `checkpointed`.
pub(crate) fn read(
    files: Files,
    store: u64,
    generation: u64,
    checkpointed: Revision,
) -> io::Result<Found> {
    let Files { paths, backends: [one, other, mark] } = files;
    let read = |backend: Option<Box<dyn StorageBackend>>| {
        backend.map(|backend| Reading::new(backend, store)).transpose()
    };
    let (one, other) = (read(one)?, read(other)?);
    let mark = match mark {
        Some(backend) => MarkFile::read(backend, store)?,
        None => Err("it is missing"),
    };
    let evidence = Evidence {
        paths: &paths,
        logs: [one.as_ref(), other.as_ref()],
        mark: mark.as_ref().map(|file| file.mark).map_err(|why| *why),
        generation,
        checkpointed,
    };
    let verdict = evidence.examine();
    if verdict.damage.is_empty() {
        for (path, at) in &verdict.torn {
            let path = path.display();
            warn!(%path, at, "the last write was not complete when the server ended, and never acknowledged: dropped");
        }
    }
    let logs = match (one, other, mark) {
        (Some(one), Some(other), Ok(mark)) => Some(([one, other], mark)),
        _ => None,
    };
    let (damage, rest, proven) = (verdict.damage, verdict.rest, verdict.proven);
    Ok(Found { logs, damage, rest, proven })
}

/// What a log of the time before marks holds that its tables lack. In words what is missing.
pub(crate) fn read_old(
    files: Files,
    store: u64,
    checkpointed: Revision,
) -> io::Result<Result<Vec<Redo>, String>> {
    let Files { paths, backends: [one, other, _] } = files;
    let mut rest = Vec::new();
    for (path, backend) in paths.iter().zip([one, other]) {
        let Some(backend) = backend else { continue };
        let reading = Reading::new(backend, store)?;
        match reading.header {
            Err(why) if why != "it is empty" => {
                let path = path.display();
                warn!(%path, "this log is not read: {why}");
            }
            _ if reading.is_old() => {
                let records = reading.scan.records.into_iter().map(|record| record.group);
                rest.extend(records.filter(|group| group.last() > checkpointed));
            }
            _ => {}
        }
    }
    rest.sort_by_key(Redo::last);
    let changes = rest.iter().flat_map(|group| &group.changes);
    for (next, change) in (checkpointed.0 + 1..).zip(changes) {
        if change.revision.0 != next {
            let found = change.revision;
            return Ok(Err(format!("the write-ahead log lacks revision {next}, but has {found}")));
        }
    }
    Ok(Ok(rest))
}

/// The log in front of the tables.
#[derive(Debug)]
pub(crate) struct WriteAheadLog {
    files: [LogFile; 2],
    mark: MarkFile,
    active: usize,
    buffer: Vec<u8>,
    checkpointer: Checkpointer,
    rotate_at: u64,
    tables: Arc<Tables>,
    linked: Option<Arc<Linked>>,
    /// When the files were last seen where they belong.
    seen: Instant,
}

impl WriteAheadLog {
    /// Puts a new log in front of tables that have none.
    pub(crate) fn create(
        files: Files,
        tables: Arc<Tables>,
        checkpointed: Revision,
        pace: Pace,
    ) -> io::Result<Self> {
        let directory = files.paths[0].parent().map(Path::to_owned);
        let [one, other, mark] = files.complete()?;
        let store = tables.number();
        let mut files =
            [Reading::new(one, store)?.unused(store), Reading::new(other, store)?.unused(store)];
        // The first use is of the second file, which stays empty; then both have a header.
        files[file_of(1)].begin(1, checkpointed)?;
        files[file_of(2)].begin(2, checkpointed)?;
        let mark = MarkFile::create(
            mark,
            store,
            Mark { generation: 2, rotating: false, acknowledged: checkpointed },
        )?;
        if let Some(directory) = directory.filter(|directory| directory.exists()) {
            File::open(directory)?.sync_all()?;
        }
        // Only now may the tables insist on it.
        tables.note_use(2).map_err(io::Error::other)?;
        let rest = Vec::new();
        Self::start(files, mark, Begin { tables, checkpointed, generation: 2, rest }, pace)
    }

    /// Goes on with a log that is not damaged, in front of tables that hold everything up to
    /// `checkpointed`.
    pub(crate) fn resume(
        found: Found,
        tables: Arc<Tables>,
        checkpointed: Revision,
        pace: Pace,
    ) -> io::Result<Self> {
        let Some((readings, mut mark)) = found.logs else {
            return Err(io::Error::other("a log that is damaged cannot be used"));
        };
        let store = tables.number();
        let resume = |reading: Reading| match reading.header {
            Ok(header) => reading.resume(header),
            Err(_) => Ok(reading.unused(store)),
        };
        let [one, other] = readings;
        let files = [resume(one)?, resume(other)?];
        if !found.rest.is_empty() {
            // The process may have ended before they were synced, and from now on they can be seen.
            files.iter().try_for_each(LogFile::sync)?;
        }
        let acknowledged = found.rest.last().map_or(checkpointed, Redo::last);
        let generation = files.iter().map(LogFile::generation).max().unwrap_or_default();
        mark.note(Mark { generation, rotating: false, acknowledged })?;
        mark.sync()?;
        let rest = found.rest;
        Self::start(files, mark, Begin { tables, checkpointed, generation, rest }, pace)
    }

    fn start(files: [LogFile; 2], mark: MarkFile, begin: Begin, pace: Pace) -> io::Result<Self> {
        let active = file_of(begin.generation);
        let tables = begin.tables.clone();
        let checkpointer = Checkpointer::start(begin, pace)?;
        let (buffer, rotate_at) = (Vec::new(), pace.rotate_at);
        Ok(Self {
            files,
            mark,
            active,
            buffer,
            checkpointer,
            rotate_at,
            tables,
            linked: None,
            seen: Instant::now(),
        })
    }

    /// From now on nothing is acknowledged when the files are not where they were.
    pub(crate) fn watch_over(&mut self, tables: &Path) -> io::Result<()> {
        let all = paths(tables).into_iter().chain([tables.to_owned()]);
        self.linked = Some(Arc::new(Linked::new(all)?));
        Ok(())
    }

    /// Not for every group: a look costs a tenth of a sync, and has the kernel note the time of the
    /// next write exactly, which costs more.
    fn check_linked(&mut self) -> Result<(), String> {
        let Some(linked) = &self.linked else { return Ok(()) };
        if self.seen.elapsed() >= CHECK_EVERY {
            linked.check()?;
            self.seen = Instant::now();
        }
        Ok(())
    }

    pub(crate) fn linked(&self) -> Option<Arc<Linked>> {
        self.linked.clone()
    }

    /// The tables behind it.
    pub(crate) fn tables(&self) -> Arc<Tables> {
        self.tables.clone()
    }

    /// Goes on in the other file. Nothing is written to it before the mark says so.
    fn rotate(&mut self) -> io::Result<()> {
        let Mark { generation, acknowledged, .. } = self.mark.mark;
        let generation = generation + 1;
        self.mark.note(Mark { generation, rotating: true, acknowledged })?;
        self.mark.sync()?;
        self.active = file_of(generation);
        self.files[self.active].begin(generation, acknowledged)?;
        self.mark.note(Mark { generation, rotating: false, acknowledged })?;
        self.mark.sync()?;
        self.checkpointer.use_log(generation);
        Ok(())
    }
}

impl Journal for WriteAheadLog {
    fn write(&mut self, group: &Group) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.checkpointer.check()?;
        let long = self.files[self.active].size() >= self.rotate_at;
        if long && self.files[1 - self.active].last() <= self.checkpointer.checkpointed() {
            self.rotate()?;
        }
        let redo = Redo::of(group);
        self.files[self.active].append(&mut self.buffer, &redo)?;
        self.check_linked()?;
        self.mark.note(Mark { acknowledged: redo.last(), ..self.mark.mark })?;
        self.buffer.shrink_to(LARGE);
        self.checkpointer.hand_over(redo);
        Ok(())
    }
}

impl Drop for WriteAheadLog {
    fn drop(&mut self) {
        // Whoever opens the store next knows that nothing is missing, even after a power cut.
        let _ = self.mark.sync();
    }
}

/// Opens a file of a log, or makes it.
fn backend(path: &Path, create: bool) -> io::Result<Box<dyn StorageBackend>> {
    let mut options = File::options();
    let file =
        options.read(true).write(true).create(create).truncate(false).mode(0o600).open(path)?;
    Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
}

#[cfg(test)]
mod tests;
