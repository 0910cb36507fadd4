//! /proc and /sys of a container: what shows or changes the node is masked or read-only, as in the
//! OCI's default configuration.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind};

use super::root::{make_directory, make_read_only};
use super::{Failure, Trying};
use roadstead_pod::security::{KernelPaths, MASKED_PATHS, READ_ONLY_PATHS};

const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Mounts both below `root`, with a null device already in its place.
///
/// Where the machine hides parts of its own, the kernel allows no new ones; the built-in programs
/// do without.
pub(super) fn mount_below(root: &Path, paths: KernelPaths) -> Result<(), Failure> {
    for name in ["proc", "sys"] {
        make_directory(&root.join(name))?;
    }
    let _ = mount("proc", root.join("proc"), "proc", FLAGS, None);
    let sys_flags = match paths {
        KernelPaths::Masked | KernelPaths::Unmasked => FLAGS | MountFlags::RDONLY,
        KernelPaths::Open => FLAGS,
    };
    let _ = mount("sysfs", root.join("sys"), "sysfs", sys_flags, None);
    if paths != KernelPaths::Masked {
        return Ok(());
    }
    for path in MASKED_PATHS {
        mask(root, &below(root, path)).trying(|| format!("mask {path}"))?;
    }
    for path in READ_ONLY_PATHS {
        let inside = below(root, path);
        if exists(&inside).trying(|| format!("look at {path}"))? {
            mount_bind(&inside, &inside).trying(|| format!("bind {path}"))?;
            make_read_only(&inside)?;
        }
    }
    Ok(())
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// An empty directory over a directory, the null device over a file.
fn mask(root: &Path, path: &Path) -> io::Result<()> {
    if !exists(path)? {
        return Ok(());
    }
    if fs::metadata(path)?.is_dir() {
        return Ok(mount("tmpfs", path, "tmpfs", FLAGS | MountFlags::RDONLY, Some(c"size=0k"))?);
    }
    Ok(mount_bind(root.join("dev/null"), path)?)
}

/// Not every kernel has all of them.
fn exists(path: &Path) -> io::Result<bool> {
    fs::exists(path)
}
