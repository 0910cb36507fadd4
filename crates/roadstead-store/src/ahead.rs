//! The write-ahead log: a write is durable when it is at the end of a file, which costs one write
//! and one sync; the tables, which cost many, follow in the background.
//!
//! There are two files. One is written to until it is long enough and the tables hold everything
//! that is in the other; then they change places. After a crash, what the tables lack is in them.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use redb::StorageBackend;
use redb::backends::FileBackend;

use self::file::LogFile;
use self::settle::Settler;
use crate::disk::Disk;
use crate::entry::Revision;
use crate::error::OpenError;
use crate::journal::{Contents, Group, Journal};
use crate::plan::Plan;

mod file;
mod record;
mod settle;

pub(crate) use self::settle::Pace;

/// Room for a group that is kept for the next one.
const LARGE: usize = 1 << 20;

/// The log in front of the tables.
#[derive(Debug)]
pub(crate) struct Ahead {
    files: [LogFile; 2],
    active: usize,
    buffer: Vec<u8>,
    settler: Settler,
    turn: u64,
}

impl Ahead {
    /// Opens the log beside the tables at `path`, or makes it, and adds to `contents` what only the
    /// log holds.
    pub(crate) fn open(
        disk: Disk,
        contents: &mut Contents,
        path: &Path,
    ) -> Result<Self, OpenError> {
        let paths = ["ahead0", "ahead1"].map(|extension| path.with_extension(extension));
        let open = || {
            let backends = [backend(&paths[0])?, backend(&paths[1])?];
            let directory = path.parent().unwrap_or(Path::new("."));
            File::open(directory)?.sync_all()?;
            Self::over(disk, contents, backends, Pace::default())
        };
        open().map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => {
                OpenError::Corrupt { path: path.to_owned(), why: source.to_string() }
            }
            _ => OpenError::File { path: path.with_extension("ahead*"), source },
        })
    }

    /// Puts a log in front of tables that hold `contents`.
    pub(crate) fn over(
        disk: Disk,
        contents: &mut Contents,
        backends: [Box<dyn StorageBackend>; 2],
        pace: Pace,
    ) -> io::Result<Self> {
        let settled = contents.revision();
        let [one, other] = backends;
        let (one, first) = LogFile::open(one, disk.number())?;
        let (other, second) = LogFile::open(other, disk.number())?;
        let files = [one, other];
        let rest = unsettled(settled, first.into_iter().chain(second))?;
        if !rest.is_empty() {
            // The process may have ended before they were synced, and from now on they can be seen.
            files.iter().try_for_each(LogFile::sync)?;
        }
        contents.redo(&rest);
        let active = usize::from(files[1].last() > files[0].last());
        let settler = Settler::start(disk, settled, rest, pace)?;
        Ok(Self { files, active, buffer: Vec::new(), settler, turn: pace.turn })
    }
}

impl Journal for Ahead {
    fn write(&mut self, plan: &Plan) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.settler.check()?;
        let other = 1 - self.active;
        let long = self.files[self.active].size() >= self.turn;
        if long && self.files[other].last() <= self.settler.settled() {
            self.files[other].begin()?;
            self.active = other;
        }
        let group = Group::of(plan);
        self.files[self.active].append(&mut self.buffer, &group)?;
        self.buffer.shrink_to(LARGE);
        self.settler.hand_over(group);
        Ok(())
    }
}

/// What the tables do not hold yet. Later writes without the ones before them are damage.
fn unsettled(settled: Revision, groups: impl Iterator<Item = Group>) -> io::Result<Vec<Group>> {
    let mut rest: Vec<_> = groups.filter(|group| group.last() > settled).collect();
    rest.sort_by_key(Group::last);
    let changes = rest.iter().flat_map(|group| &group.changes);
    for (next, change) in (settled.0 + 1..).zip(changes) {
        if change.revision.0 != next {
            let found = change.revision;
            let why = format!("the write-ahead log lacks revision {next}, but has {found}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
    Ok(rest)
}

/// Opens the file of a log, or makes it.
fn backend(path: &Path) -> io::Result<Box<dyn StorageBackend>> {
    let mut options = File::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
}

#[cfg(test)]
mod tests;
