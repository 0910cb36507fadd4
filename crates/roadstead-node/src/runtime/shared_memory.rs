//! What the containers of a pod share besides its network: /dev/shm, and the namespace of System V memory and
//! of message queues. Both live as long as the pod's network, and go with its volumes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use roadstead_pod::sandbox::Messages;
use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount, mount_bind};
use rustix::thread::UnshareFlags;

use crate::container::SharedMemory;
use crate::container::process::unshare;

/// Among the volumes of the pod; none of them has such a name.
const FILES: &str = ".shm";
const MESSAGES: &str = ".ipc";
/// The node's own.
const NODE_FILES: &str = "/dev/shm";
/// The kind of file system that namespaces are files of.
const NAMESPACES: u64 = 0x6e73_6673;

/// Where that of a pod is, whose volumes are in this directory.
pub(super) fn of(volumes: &Path, whose: Messages) -> SharedMemory {
    match whose {
        Messages::Pod => {
            SharedMemory { files: volumes.join(FILES), messages: Some(volumes.join(MESSAGES)) }
        }
        Messages::Node => SharedMemory { files: NODE_FILES.into(), messages: None },
    }
}

/// Makes it, unless it is there.
pub(super) fn prepare(pod: &SharedMemory) -> io::Result<()> {
    let Some(path) = &pod.messages else { return Ok(()) };
    if let Some(directory) = pod.files.parent() {
        fs::create_dir_all(directory)?;
    }
    files(&pod.files)?;
    // What the last life of the machine has left is only a file.
    if is_namespace(path) { Ok(()) } else { messages(path) }
}

/// Whether a namespace is there.
pub(super) fn is_namespace(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.f_type as u64 == NAMESPACES)
}

fn files(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let Some(all) = path.parent() else { return Err(io::ErrorKind::InvalidInput.into()) };
    if fs::metadata(path)?.dev() != fs::metadata(all)?.dev() {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("tmpfs", path, "tmpfs", flags, Some(c"mode=1777,size=64m"))?)
}

/// In a thread of its own, which goes, and leaves the namespace at the path.
fn messages(path: &Path) -> io::Result<()> {
    fs::File::create(path)?;
    let path = path.to_owned();
    let made = thread::Builder::new().spawn(move || -> io::Result<()> {
        unshare(UnshareFlags::NEWIPC)?;
        Ok(mount_bind("/proc/thread-self/ns/ipc", path)?)
    })?;
    made.join().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
}
