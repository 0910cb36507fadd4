//! Gives the files of a volume that outlives pods to the group of a pod (`fsGroup`).
//!
//! What is in there was made by earlier pods, and others may write to it while we look: so nothing is named by
//! a path that could come to mean something else, and links are given away themselves.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use roadstead_pod::volumes::claimed::GroupChange;
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, chownat, fstat, openat2,
};
use rustix::io::Errno;

/// The group reads and writes, enters directories, and has what is made in them.
const OF_FILES: u32 = 0o660;
const OF_DIRECTORIES: u32 = 0o2770;
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Gives all of it to the group, if the pod wants that.
pub(super) fn give(volume: &Path, group: u32, change: GroupChange) -> io::Result<()> {
    let top = rustix::fs::open(volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&top)?;
    let is_given = found.st_gid == group && found.st_mode & OF_DIRECTORIES == OF_DIRECTORIES;
    match change {
        GroupChange::Never => Ok(()),
        GroupChange::OnRootMismatch if is_given => Ok(()),
        GroupChange::OnRootMismatch | GroupChange::Always => {
            below(&top, &found, group)?;
            // The directory itself comes last: by it is seen that all the rest has been given.
            give_one(&top, &found, group)
        }
    }
}

fn below(top: &OwnedFd, root: &Stat, group: u32) -> io::Result<()> {
    let mut left = vec![PathBuf::from(".")];
    while let Some(path) = left.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let directory = match openat2(top, &path, flags, Mode::empty(), within) {
            Ok(directory) => directory,
            // Somebody has removed it, or put something else there, or mounted it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(file) = rustix::fs::openat(&directory, name, PLACE, Mode::empty()) else {
                continue; // It has gone.
            };
            let found = fstat(&file)?;
            if found.st_dev != root.st_dev {
                continue;
            }
            if FileType::from_raw_mode(found.st_mode).is_dir() {
                left.push(path.join(std::ffi::OsStr::from_bytes(name.to_bytes())));
            }
            give_one(&file, &found, group)?;
        }
    }
    Ok(())
}

/// By what was opened: whatever its name means by now.
fn give_one(file: &OwnedFd, found: &Stat, group: u32) -> io::Result<()> {
    if found.st_gid != group {
        chownat(file.as_fd(), "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    let more = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => OF_DIRECTORIES,
        FileType::Symlink => return Ok(()),
        _ => OF_FILES,
    };
    let mode = found.st_mode & 0o7777;
    // A change of group takes such bits away.
    if mode | more != mode || found.st_gid != group {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(path, fs::Permissions::from_mode(mode | more))?;
    }
    Ok(())
}
