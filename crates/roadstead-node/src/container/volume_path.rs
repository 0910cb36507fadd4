//! Places among files that belong to containers: parts of volumes, and where volumes go. They are opened
//! without leaving the volume or the root, and mounted by what was opened, so that nobody can put a link in
//! the way.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::{Failure, Mount, Trying};
use roadstead_pod::volumes::Propagation;

/// Links within the volume may be followed; those that lead out of it are mistakes, or worse.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// Neither to the outside nor within.
const NO_LINKS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens a volume, or the part of it.
pub(crate) fn open(volume: &Path, part: Option<&str>) -> io::Result<OwnedFd> {
    let whole = rustix::fs::open(volume, PLACE, Mode::empty())?;
    match part {
        None => Ok(whole),
        Some(part) => Ok(openat2(&whole, part, PLACE, Mode::empty(), WITHIN)?),
    }
}

/// Makes the directories that a part of a volume needs, as open as the volume itself.
pub(crate) fn make(volume: &Path, part: &str) -> io::Result<()> {
    let found = fs::metadata(volume)?;
    let mode = Mode::from_raw_mode(found.mode() & 0o7777);
    let mut place = open(volume, None)?;
    for name in part.split('/') {
        let next = match openat2(&place, name, PLACE, Mode::empty(), WITHIN) {
            Err(Errno::NOENT) => {
                match mkdirat(&place, name, mode) {
                    Ok(()) => {
                        let made = openat2(
                            &place,
                            name,
                            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                            Mode::empty(),
                            WITHIN | ResolveFlags::NO_SYMLINKS,
                        )?;
                        // Without the mask that directories are made with.
                        let made = File::from(made);
                        made.set_permissions(fs::Permissions::from_mode(mode.bits()))?;
                        std::os::unix::fs::fchown(&made, None, Some(found.gid()))?;
                    }
                    // Somebody was faster.
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                None
            }
            Ok(next) => Some(next),
            // A link may go up and down again within the volume: then all of it is looked at at once.
            Err(Errno::XDEV) => return open(volume, Some(part)).map(drop),
            Err(error) => return Err(error.into()),
        };
        place = match next {
            Some(next) => next,
            None => openat2(&place, name, PLACE, Mode::empty(), WITHIN)?,
        };
    }
    Ok(())
}

/// Opens a directory below a new root, and makes it where it is missing. No link is followed: before we are
/// in there, it would lead somewhere else.
pub(super) fn directory_below(root: &Path, path: &str) -> io::Result<OwnedFd> {
    let mut place = open(root, None)?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let next = || openat2(&place, name, PLACE | OFlags::DIRECTORY, Mode::empty(), NO_LINKS);
        let found = match next() {
            Err(Errno::NOENT) => {
                match mkdirat(&place, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                next()?
            }
            found => found?,
        };
        place = found;
    }
    Ok(place)
}

/// The same for a file, which is empty if it was missing.
pub(super) fn file_below(root: &Path, path: &str) -> io::Result<OwnedFd> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let directory = directory_below(root, directory)?;
    let make = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat2(&directory, name, make, Mode::from_raw_mode(0o644), NO_LINKS) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let file = openat2(&directory, name, PLACE, Mode::empty(), NO_LINKS)?;
    let found = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(io::Error::other("there is something else")),
    }
}

/// Opens a directory of an image in which nothing runs yet, and makes it where it is missing. Links lead to
/// other places of the image.
pub(super) fn directory_of_image(root: &Path, path: &str) -> io::Result<OwnedFd> {
    let root = open(root, None)?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let find = |path: &Path| openat2(&root, path, PLACE, Mode::empty(), within);
    let mut so_far = PathBuf::from(".");
    for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
        match mkdirat(find(&so_far)?, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        so_far.push(name);
    }
    Ok(openat2(&root, &so_far, PLACE | OFlags::DIRECTORY, Mode::empty(), within)?)
}

/// What was opened, with what is mounted below it, as a tree of mounts that is nowhere yet.
pub(super) fn tree_of(opened: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(opened, "", flags)?)
}

/// The trees of those volumes whose mounts the container follows, or adds to. They are taken while mounts of
/// the node still reach us.
pub(super) fn followed(mounts: &[Mount]) -> Result<Vec<Option<OwnedFd>>, Failure> {
    let tree = |mount: &Mount| match mount.propagation {
        Propagation::None => Ok(None),
        Propagation::HostToContainer | Propagation::Bidirectional => {
            let opened = open(&mount.source, mount.sub_path.as_deref());
            let tree = opened.and_then(tree_of).trying(|| format!("follow {}", mount.path))?;
            Ok(Some(tree))
        }
    };
    mounts.iter().map(tree).collect()
}

/// Mounts such a tree over what was opened.
pub(super) fn put(tree: impl AsFd, place: impl AsFd) -> io::Result<()> {
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", place, "", both)?)
}

/// Mounts such a tree at a path of ours.
pub(super) fn put_at(tree: impl AsFd, target: &Path) -> io::Result<()> {
    move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

/// Whether that is a directory.
pub(super) fn is_directory(opened: impl AsFd) -> io::Result<bool> {
    let found = rustix::fs::fstat(opened)?;
    Ok(FileType::from_raw_mode(found.st_mode).is_dir())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn volumes_go_where_no_link_leads() {
        let place = std::env::temp_dir().join(format!("roadstead-places-{}", std::process::id()));
        let root = place.join("root");
        fs::create_dir_all(root.join("there")).unwrap();
        fs::write(root.join("file"), "kept").unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("there", root.join("inside")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        for (path, as_directory, as_file) in [
            ("/there", true, false),
            ("/there/new", true, false),
            ("/a/b/c", true, false),
            ("/there/one", false, true),
            ("/file", false, true),
            ("/up", false, false),
            ("/up/outside", false, false),
            ("/inside/x", false, false),
            ("/there/../../outside", false, false),
            ("/magic/tmp/outside", false, false),
            ("/file/x", false, false),
        ] {
            if !as_file {
                assert_eq!(directory_below(&root, path).is_ok(), as_directory, "{path}");
            }
            assert_eq!(file_below(&root, path).is_ok(), as_file, "{path} as a file");
        }
        // In an image, links mean other places of the image.
        for (path, found) in
            [("/up/var", true), ("inside/var", true), ("/magic/x", false), ("/file", false)]
        {
            assert_eq!(directory_of_image(&root, path).is_ok(), found, "{path} of an image");
        }
        assert!(root.join("var").is_dir() && root.join("there/var").is_dir());
        assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "kept");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "nothing was made outside");
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn parts_stay_in_their_volume() {
        let place = std::env::temp_dir().join(format!("roadstead-parts-{}", std::process::id()));
        let volume = place.join("volume");
        fs::create_dir_all(volume.join("real/deep")).unwrap();
        fs::write(place.join("secret"), "x").unwrap();
        fs::write(volume.join("file"), "x").unwrap();
        symlink("/etc", volume.join("absolute")).unwrap();
        symlink("..", volume.join("up")).unwrap();
        symlink("../secret", volume.join("file-outside")).unwrap();
        symlink("real", volume.join("inside")).unwrap();
        symlink("../deep", volume.join("real/around")).unwrap();
        symlink("../real/deep", volume.join("real/back")).unwrap();
        for (part, made, opened) in [
            ("real/deep", true, true),
            ("inside/deep", true, true),
            ("real/back", true, true),
            ("file", true, true),
            ("fresh/one", true, true),
            ("inside/new", true, true),
            ("absolute", false, false),
            ("absolute/passwd", false, false),
            ("up", false, false),
            ("up/secret", false, false),
            ("up/new", false, false),
            ("file-outside", false, false),
            ("file/x", false, false),
        ] {
            assert_eq!(make(&volume, part).is_ok(), made, "make {part}");
            assert_eq!(open(&volume, Some(part)).is_ok(), opened, "open {part}");
        }
        let names = fs::read_dir(&place).unwrap().count();
        assert_eq!(names, 2, "nothing was made outside");
        fs::remove_dir_all(&place).unwrap();
    }
}
