//! The terminal of a process in a container.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, major, minor, openat2,
};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};

/// Of a file system that has terminals.
const DEVPTS: rustix::fs::FsWord = 0x1cd1;

/// The device that makes terminals.
const PTMX: (u32, u32) = (5, 2);

/// A terminal: the end for whoever looks at it, and the end for programs.
pub(super) struct Terminal {
    pub(super) outer: OwnedFd,
    pub(super) inner: OwnedFd,
}

/// Makes a terminal of the container whose files we see.
///
/// The container may have put anything at that place, so what we open is looked at before it is used, and
/// the other end comes from the kernel and not from a path.
pub(super) fn open() -> io::Result<Terminal> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let outer = openat2(CWD, "/dev/pts/ptmx", flags, Mode::empty(), resolve)?;
    if !is_terminal_maker(outer.as_fd())? {
        return Err(io::Error::other("/dev/pts/ptmx makes no terminals"));
    }
    unlockpt(&outer)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let inner = ioctl_tiocgptpeer(&outer, flags)?;
    Ok(Terminal { outer, inner })
}

fn is_terminal_maker(file: impl AsFd) -> io::Result<bool> {
    let found = fstat(&file)?;
    let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
    let number = (major(found.st_rdev), minor(found.st_rdev));
    Ok(is_device && number == PTMX && fstatfs(&file)?.f_type == DEVPTS)
}
