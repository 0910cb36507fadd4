//! Unpacks a layer into a directory, whatever is in it.
//!
//! A layer is an archive by a stranger, unpacked by root. Every name is looked up below the layer's
//! own directory (`openat2` with `RESOLVE_IN_ROOT`), whatever links the archive made before;
//! nothing is made through a link in the last part of a name; devices are left out, because a container gets
//! its own; sizes and counts have limits, those of files with holes included, and so has what describes an
//! entry, which is read into memory. Removals (`.wh.…`) become what overlayfs understands.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use crate::error::{ImageError, OnPath};

/// Names, attributes and the like of one entry are not longer than this altogether.
const LONGEST_DESCRIPTION: u64 = 1 << 20;

/// How much a layer may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of the archive, and of the files in it.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 20 << 30, entries: 2_000_000 }
    }
}

/// What this process may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Privileges {
    /// Files get the owners that the layer says; otherwise they are ours.
    pub owners: bool,
    /// The attribute by which overlayfs hides a directory's lower part.
    opaque: &'static str,
}

impl Privileges {
    /// Those of this process: all of them if it is root, in no user namespace.
    pub(crate) fn own() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let words: Vec<_> = map.split_whitespace().collect();
        let is_root = rustix::process::geteuid().is_root() && words == ["0", "0", "4294967295"];
        match is_root {
            true => Self { owners: true, opaque: "trusted.overlay.opaque" },
            false => Self { owners: false, opaque: "user.overlay.opaque" },
        }
    }
}

/// What was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// How many entries.
    pub entries: u64,
    /// The sum of the files.
    pub bytes: u64,
    /// Devices, which were left out.
    pub devices: u64,
}

/// Unpacks `archive` into the empty directory `target`.
pub(crate) fn unpack(
    archive: impl Read,
    target: &Path,
    limits: Limits,
    privileges: Privileges,
) -> Result<Unpacked, ImageError> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let root = rustix::fs::openat(CWD, target, flags, Mode::empty()).on("cannot open", target)?;
    let (directories, done) = Default::default();
    let mut layer = Layer { root, privileges, most: limits.bytes, directories, done };
    let described = Rc::new(Cell::new(LONGEST_DESCRIPTION));
    let limited = Limited { inner: archive, left: limits.bytes, described: described.clone() };
    let mut archive = Archive::new(limited);
    let broken = |error| ImageError::Stream("the layer", error);
    let mut entries = archive.entries().map_err(broken)?;
    loop {
        described.set(LONGEST_DESCRIPTION);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(broken)?;
        described.set(u64::MAX);
        layer.done.entries += 1;
        if layer.done.entries > limits.entries {
            return Err(refused(&entry_name(&entry), "the layer has too many entries"));
        }
        layer.add(&mut entry)?;
        // What nobody wanted of it, which describes nothing.
        io::copy(&mut entry, &mut io::sink()).map_err(broken)?;
    }
    layer.date_directories();
    Ok(layer.done)
}

struct Layer {
    root: OwnedFd,
    privileges: Privileges,
    /// So many bytes may its files have.
    most: u64,
    /// Directories get their times when nothing more is put into them.
    directories: Vec<(PathBuf, Timestamps)>,
    done: Unpacked,
}

impl Layer {
    fn add(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), ImageError> {
        let shown = entry_name(entry);
        let path = inside(entry.path_bytes().as_ref(), &shown)?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            // The root itself: only its mode and owner count.
            return self.describe_root(entry, &shown);
        };
        let parent = self.directory(path.parent().unwrap_or(Path::new("")), &shown)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
            return self.hide(parent.as_fd(), hidden, &shown);
        }
        let place = Place { parent: parent.as_fd(), name: &name, shown: &shown };
        match entry.header().entry_type() {
            EntryType::Directory => self.make_directory(&place, &path, entry),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.make_file(&place, entry)
            }
            EntryType::Symlink => self.make_symlink(&place, entry),
            EntryType::Link => self.make_link(&place, entry),
            EntryType::Fifo => {
                place.clear()?;
                let made =
                    rustix::fs::mknodat(place.parent, place.name, FileType::Fifo, mode(entry)?, 0);
                place.done(made)?;
                self.describe(&place, entry)
            }
            EntryType::Char | EntryType::Block => {
                self.done.devices += 1;
                Ok(())
            }
            _ => Ok(()), // Extensions of the format that mean nothing here.
        }
    }

    /// Opens a directory of the layer, and makes it where the archive forgot to.
    fn directory(&self, path: &Path, shown: &str) -> Result<OwnedFd, ImageError> {
        let open = |path: &Path| {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)
        };
        match open(path) {
            Err(Errno::NOENT) => {}
            opened => return opened.on("cannot open", Path::new(shown)),
        }
        let mut so_far = PathBuf::new();
        for part in path.components() {
            let above = open(&so_far).on("cannot open", Path::new(shown))?;
            match rustix::fs::mkdirat(&above, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => {
                    return Err(error).on("cannot make a directory for", Path::new(shown));
                }
            }
            so_far.push(part);
        }
        open(path).on("cannot open", Path::new(shown))
    }

    fn hide(
        &mut self,
        parent: BorrowedFd<'_>,
        hidden: &[u8],
        shown: &str,
    ) -> Result<(), ImageError> {
        if hidden == b".wh..opq" {
            let attribute = self.privileges.opaque;
            let set = rustix::fs::fsetxattr(parent, attribute, b"y", XattrFlags::empty());
            return set.on("cannot hide what is below", Path::new(shown));
        }
        if hidden.starts_with(b".wh.") {
            return Ok(()); // Notes of another file system.
        }
        if hidden.is_empty() || hidden == b"." || hidden == b".." {
            return Err(refused(shown, "it hides nothing that has a name"));
        }
        let place = Place { parent, name: OsStr::from_bytes(hidden), shown };
        place.clear()?;
        let device = FileType::CharacterDevice;
        place.done(rustix::fs::mknodat(parent, place.name, device, Mode::empty(), 0))
    }

    fn make_directory(
        &mut self,
        place: &Place<'_>,
        path: &Path,
        entry: &mut Entry<'_, impl Read>,
    ) -> Result<(), ImageError> {
        match rustix::fs::mkdirat(place.parent, place.name, Mode::RWXU) {
            Err(Errno::EXIST) if place.is_directory() => {}
            Err(Errno::EXIST) => {
                place.clear()?;
                place.done(rustix::fs::mkdirat(place.parent, place.name, Mode::RWXU))?;
            }
            made => place.done(made)?,
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(place.parent, place.name, flags, Mode::empty());
        let directory = directory.on("cannot open", Path::new(place.shown))?;
        self.describe_open(directory.as_fd(), place.shown, entry)?;
        self.directories.push((path.to_owned(), times(entry)));
        Ok(())
    }

    fn make_file(
        &mut self,
        place: &Place<'_>,
        entry: &mut Entry<'_, impl Read>,
    ) -> Result<(), ImageError> {
        place.clear()?;
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(place.parent, place.name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = std::fs::File::from(file.on("cannot make", Path::new(place.shown))?);
        // A file may be larger than what the archive has of it: holes take no room there.
        let left = self.most.saturating_sub(self.done.bytes);
        let mut content = Read::by_ref(entry).take(left.saturating_add(1));
        let bytes = io::copy(&mut content, &mut file).map_err(|error| ImageError::Io {
            action: "cannot write",
            path: place.shown.into(),
            source: error,
        })?;
        if bytes > left {
            return Err(refused(place.shown, "the layer is larger than a layer may be"));
        }
        self.done.bytes += bytes;
        self.describe_open(file.as_fd(), place.shown, entry)?;
        rustix::fs::futimens(&file, &times(entry)).on("cannot date", Path::new(place.shown))
    }

    fn make_symlink(
        &mut self,
        place: &Place<'_>,
        entry: &mut Entry<'_, impl Read>,
    ) -> Result<(), ImageError> {
        let to =
            entry.link_name_bytes().ok_or_else(|| refused(place.shown, "it links to nothing"))?;
        place.clear()?;
        place.done(rustix::fs::symlinkat(OsStr::from_bytes(&to), place.parent, place.name))?;
        self.describe(place, entry)
    }

    fn make_link(
        &mut self,
        place: &Place<'_>,
        entry: &mut Entry<'_, impl Read>,
    ) -> Result<(), ImageError> {
        let to =
            entry.link_name_bytes().ok_or_else(|| refused(place.shown, "it links to nothing"))?;
        let to = inside(&to, place.shown)?;
        let name = to.file_name().ok_or_else(|| refused(place.shown, "it links to the root"))?;
        let parent = self.directory(to.parent().unwrap_or(Path::new("")), place.shown)?;
        let same = parent_is(parent.as_fd(), place.parent) && name == place.name;
        if same {
            return Err(refused(place.shown, "it links to itself"));
        }
        place.clear()?;
        place.done(rustix::fs::linkat(&parent, name, place.parent, place.name, AtFlags::empty()))
    }

    /// Owner and times of what cannot be opened: links and pipes.
    fn describe(&self, place: &Place<'_>, entry: &Entry<'_, impl Read>) -> Result<(), ImageError> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if self.privileges.owners {
            let (uid, gid) = owner(entry)?;
            let set = rustix::fs::chownat(place.parent, place.name, Some(uid), Some(gid), flags);
            place.done(set)?;
        }
        place.done(rustix::fs::utimensat(place.parent, place.name, &times(entry), flags))
    }

    fn describe_root(
        &self,
        entry: &mut Entry<'_, impl Read>,
        shown: &str,
    ) -> Result<(), ImageError> {
        if entry.header().entry_type() != EntryType::Directory {
            return Err(refused(shown, "the root is a directory"));
        }
        self.describe_open(self.root.as_fd(), shown, entry)
    }

    /// Owner, then mode (a new owner takes setuid away), then attributes.
    fn describe_open(
        &self,
        open: BorrowedFd<'_>,
        shown: &str,
        entry: &mut Entry<'_, impl Read>,
    ) -> Result<(), ImageError> {
        let path = Path::new(shown);
        if self.privileges.owners {
            let (uid, gid) = owner(entry)?;
            rustix::fs::fchown(open, Some(uid), Some(gid)).on("cannot give away", path)?;
        }
        rustix::fs::fchmod(open, mode(entry)?).on("cannot set the mode of", path)?;
        for (name, value) in attributes(entry)? {
            match rustix::fs::fsetxattr(open, name.as_str(), &value, XattrFlags::empty()) {
                // A file system without attributes, or no right to give capabilities away.
                Err(Errno::OPNOTSUPP | Errno::PERM) => {}
                set => set.on("cannot set an attribute of", path)?,
            }
        }
        Ok(())
    }

    /// Best effort: a directory may have been replaced by something else since.
    fn date_directories(&self) {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        for (path, times) in self.directories.iter().rev() {
            let opened = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve);
            if let Ok(directory) = opened {
                let _ = rustix::fs::futimens(&directory, times);
            }
        }
    }
}

/// Where an entry goes: a name in an open directory.
struct Place<'a> {
    parent: BorrowedFd<'a>,
    name: &'a OsStr,
    shown: &'a str,
}

impl Place<'_> {
    fn is_directory(&self) -> bool {
        let stat = rustix::fs::statat(self.parent, self.name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Removes what an earlier entry of the same layer put here.
    fn clear(&self) -> Result<(), ImageError> {
        remove(self.parent, self.name).on("cannot replace", Path::new(self.shown))
    }

    fn done(&self, result: Result<(), Errno>) -> Result<(), ImageError> {
        result.on("cannot make", Path::new(self.shown))
    }
}

fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    for entry in rustix::fs::Dir::read_from(&directory)? {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        if bytes != b"." && bytes != b".." {
            remove(directory.as_fd(), OsStr::from_bytes(bytes))?;
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn parent_is(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// A name without its `/` and `.`; one that goes up is refused.
fn inside(bytes: &[u8], shown: &str) -> Result<PathBuf, ImageError> {
    let mut path = PathBuf::new();
    if bytes.contains(&0) {
        return Err(refused(shown, "its name has a zero byte"));
    }
    for part in Path::new(OsStr::from_bytes(bytes)).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(refused(shown, "its name goes up"));
            }
        }
    }
    Ok(path)
}

fn entry_name(entry: &Entry<'_, impl Read>) -> String {
    String::from_utf8_lossy(&entry.path_bytes()).into_owned()
}

fn refused(name: &str, why: &'static str) -> ImageError {
    ImageError::Entry { name: name.chars().take(200).collect(), why }
}

fn mode(entry: &Entry<'_, impl Read>) -> Result<Mode, ImageError> {
    let mode = entry.header().mode().map_err(|error| ImageError::Stream("the layer", error))?;
    Ok(Mode::from_raw_mode(mode & 0o7777))
}

fn owner(entry: &Entry<'_, impl Read>) -> Result<(Uid, Gid), ImageError> {
    // A field that was left empty is root's.
    let number = |value: io::Result<u64>| {
        let value = u32::try_from(value.unwrap_or(0)).ok().filter(|value| *value != u32::MAX);
        value.ok_or_else(|| refused(&entry_name(entry), "its owner is no number of 32 bits"))
    };
    let uid = number(entry.header().uid())?;
    let gid = number(entry.header().gid())?;
    Ok((Uid::from_raw(uid), Gid::from_raw(gid)))
}

fn times(entry: &Entry<'_, impl Read>) -> Timestamps {
    let seconds = entry.header().mtime().unwrap_or(0);
    let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// The attributes that mean something to programs. Those of overlayfs are ours alone to set.
fn attributes(entry: &mut Entry<'_, impl Read>) -> Result<Vec<(String, Vec<u8>)>, ImageError> {
    let broken = |error| ImageError::Stream("the layer", error);
    let mut found = Vec::new();
    let Some(extensions) = entry.pax_extensions().map_err(broken)? else { return Ok(found) };
    for extension in extensions {
        let extension = extension.map_err(broken)?;
        let name = extension.key().ok().and_then(|key| key.strip_prefix("SCHILY.xattr."));
        let Some(name) = name else { continue };
        let is_ours = name.starts_with("user.overlay.");
        if name == "security.capability" || (name.starts_with("user.") && !is_ours) {
            found.push((name.to_owned(), extension.value_bytes().to_vec()));
        }
    }
    Ok(found)
}

/// Reads so much and no more.
struct Limited<R> {
    inner: R,
    left: u64,
    /// How much of that may be read now.
    described: Rc<Cell<u64>>,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| io::Error::other("it is larger than a layer may be"))?;
        let described = self.described.get().checked_sub(count as u64);
        let too_long = || io::Error::other("an entry is described at too great a length");
        self.described.set(described.ok_or_else(too_long)?);
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
