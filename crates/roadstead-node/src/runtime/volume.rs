//! Makes and removes the directories of volumes.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::volumes::{EmptyDirectory, Medium};

/// Makes the volume unless it is there; the error says what could not be done.
pub(super) fn prepare(volume: &EmptyDirectory, path: &Path) -> Result<(), String> {
    make(volume, path).map_err(|error| format!("cannot make the volume {}: {error}", volume.name))
}

fn make(volume: &EmptyDirectory, path: &Path) -> io::Result<()> {
    // The pod's own directory is made with its sandbox, and root's alone.
    if let Some(all) = path.parent() {
        fs::create_dir_all(all)?;
        fs::set_permissions(all, fs::Permissions::from_mode(0o700))?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    if let Medium::Memory { size } = volume.medium {
        let size = size.map(|size| format!(",size={size}")).unwrap_or_default();
        let options = std::ffi::CString::new(format!("mode=777{size}"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        if let Err(error) = mount("tmpfs", path, "tmpfs", flags, Some(options.as_c_str())) {
            // It must not pass for one on the disk the next time.
            fs::remove_dir(path)?;
            return Err(error.into());
        }
    }
    // Without the mask that files are made with.
    let mode = if volume.group.is_some() { 0o2777 } else { 0o777 };
    if volume.group.is_some() {
        chown(path, None, volume.group)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Removes all volumes in a directory, and it.
pub(super) fn remove_all(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        match unmount(entry?.path(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fs::remove_dir_all(directory)
}
