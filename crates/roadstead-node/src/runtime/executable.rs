//! Our own executable, in a form that what runs in a container cannot change.
//!
//! A process that enters a container is made from it, and the container can get at the file of such a
//! process: it is enough to make `/bin/sh` a script whose interpreter is `/proc/self/exe`. Through the
//! mount that is made here the file cannot be opened for writing, and the mount is in nobody's tree, so
//! that nobody can change that either.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mount::{OpenTreeFlags, open_tree};

/// An executable to start processes from.
#[derive(Debug)]
pub(super) struct ReadOnlyExecutable(OwnedFd);

impl ReadOnlyExecutable {
    /// Takes hold of the file that is there now.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        mounted(path).or_else(|_| copied(path)).map(Self)
    }

    /// Its path, for as long as this lives, and for this process and what it starts.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// A read-only mount of the file alone, which is nowhere to be seen.
fn mounted(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, path, flags)?;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the kernel reads the empty path and as many bytes of the attributes as they have.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(tree) } else { Err(io::Error::last_os_error()) }
}

/// A copy in memory that is sealed, for kernels before 5.12.
fn copied(path: &Path) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::open(path)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut copy = std::fs::File::from(memfd_create("roadstead", flags)?);
    io::copy(&mut file, &mut copy)?;
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&copy, all)?;
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::process::Command;

    use roadstead_testkit::netns::laboratory;

    use super::*;

    #[test]
    fn it_runs_and_cannot_be_written() {
        laboratory(|| {
            for open in [mounted, copied] {
                let executable = ReadOnlyExecutable(open(Path::new("/bin/true")).unwrap());
                assert!(Command::new(executable.path()).status().unwrap().success());
                let write = || OpenOptions::new().write(true).open(executable.path());
                // While it runs it cannot be written anyway, so wait until it does not.
                assert!(write().is_err() || write().unwrap().set_len(0).is_err());
            }
        });
    }
}
