//! Opening the files of a store: they are used only if they hold everything that was acknowledged,
//! or if the operator accepts the loss of what they do not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use tracing::{error, info, warn};

use crate::ahead::{self, Ahead, Files, Pace};
use crate::damage::Damage;
use crate::disk::{self, Disk, corrupt};
use crate::entry::Revision;
use crate::error::OpenError;
use crate::journal::{Contents, Group};
use crate::snapshot::LEAP;

/// Opens a store, or makes one where there is none.
pub(crate) fn open(path: &Path, accept_loss: bool) -> Result<(Ahead, Contents), OpenError> {
    let (mut ahead, contents) = open_files(path, accept_loss)?;
    ahead.watch_over(path).map_err(file_error(path))?;
    Ok((ahead, contents))
}

fn open_files(path: &Path, accept_loss: bool) -> Result<(Ahead, Contents), OpenError> {
    if !path.exists() {
        check_nothing_there(path)?;
        Disk::create(path, &Contents::default())?;
        info!(path = %path.display(), "made a new, empty store");
    }
    let (disk, tables) = Disk::open(path)?;
    let disk = Arc::new(disk);
    if tables.old {
        return upgrade(path, disk, tables.contents);
    }
    let mut found = Opened::read(path, &disk, tables)?;
    let damage = std::mem::take(&mut found.damage);
    if damage.is_empty() {
        return found.start(path, disk);
    }
    if !accept_loss {
        return Err(OpenError::Damaged { path: path.to_owned(), damage });
    }
    for lost in &damage {
        error!("accepted the loss: {lost}");
    }
    let contents = found.salvage();
    drop(disk);
    let aside = set_aside(path).map_err(file_error(path))?;
    warn!(path = %aside.display(), "the damaged files are kept there");
    Disk::create(path, &contents)?;
    open_files(path, false)
}

/// Reads and checks everything, and changes nothing but what a crash has left redb to do.
pub(crate) fn verify(path: &Path) -> Result<Contents, OpenError> {
    if !path.exists() {
        check_nothing_there(path)?;
    }
    let (disk, tables) = Disk::open(path)?;
    if tables.old {
        return Ok(tables.contents);
    }
    let found = Opened::read(path, &disk, tables)?;
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
    let files = ahead::paths(path);
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
    let left: Vec<_> = ahead::paths(path).into_iter().filter(|file| file.exists()).collect();
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
    settled: Revision,
    /// `None`: the tables have had no log yet.
    log: Option<ahead::Found>,
    damage: Vec<Damage>,
}

impl Opened {
    fn read(path: &Path, disk: &Disk, tables: disk::Found) -> Result<Self, OpenError> {
        let disk::Found { contents, revision: settled, using, mut damage, .. } = tables;
        let log = match using {
            0 => None,
            using => {
                let files = Files::open(path).map_err(file_error(path))?;
                let found = ahead::read(files, disk.number(), using, settled);
                Some(found.map_err(file_error(path))?)
            }
        };
        damage.extend(log.iter().flat_map(|log| log.damage.iter().cloned()));
        Ok(Self { contents, settled, log, damage })
    }

    fn start(self, path: &Path, disk: Arc<Disk>) -> Result<(Ahead, Contents), OpenError> {
        let mut contents = self.contents;
        let ahead = match self.log {
            None => {
                let files = Files::open(path).map_err(file_error(path))?;
                Ahead::create(files, disk, self.settled, Pace::default())
            }
            Some(log) => {
                contents.redo(&log.rest);
                Ahead::go_on(log, disk, self.settled, Pace::default())
            }
        };
        Ok((ahead.map_err(file_error(path))?, contents))
    }

    /// Everything that can be read, without a past, and so far ahead that no revision which was
    /// acknowledged is used for something else.
    fn salvage(self) -> Contents {
        let mut contents = self.contents;
        let newest = contents.entries.iter().map(|entry| entry.revision);
        let newest = newest.max().unwrap_or_default().max(self.settled).max(contents.revision());
        let mut last = newest;
        if let Some(log) = self.log {
            contents.redo(&log.rest);
            last = last.max(log.proven).max(log.rest.last().map_or(Revision(0), Group::last));
        }
        let compacted = Revision(last.0.saturating_add(LEAP));
        Contents { entries: contents.entries, compacted, log: Vec::new() }
    }
}

/// Takes a store of an earlier format over, in one step.
fn upgrade(
    path: &Path,
    disk: Arc<Disk>,
    mut contents: Contents,
) -> Result<(Ahead, Contents), OpenError> {
    let settled = contents.revision();
    let files = Files::open(path).map_err(file_error(path))?;
    let rest = ahead::read_old(files, disk.number(), settled).map_err(file_error(path))?;
    contents.redo(&rest.map_err(|why| corrupt(path, why))?);
    disk.upgrade(&contents).map_err(|error| corrupt(path, error))?;
    info!(path = %path.display(), "the store is of an earlier version, and has been taken over");
    let files = Files::open(path).map_err(file_error(path))?;
    let ahead = Ahead::create(files, disk, contents.revision(), Pace::default());
    Ok((ahead.map_err(file_error(path))?, contents))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.with_extension("ahead*");
    move |source| OpenError::File { path, source }
}
