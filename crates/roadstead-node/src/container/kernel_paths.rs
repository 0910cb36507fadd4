//! /proc and /sys of a container: what shows or changes the node is masked or read-only, as in the
//! OCI's default configuration.

use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, mount, mount_bind};

use super::root::{make_directory, make_read_only};
use super::{Failure, Trying};
use crate::security::KernelPaths;

/// Nobody in a container sees what is behind these.
const MASKED: [&str; 12] = [
    "proc/acpi",
    "proc/asound",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/scsi",
    "proc/timer_list",
    "proc/timer_stats",
    "sys/devices/virtual/powercap",
    "sys/firmware",
];

/// Nobody in a container changes these.
const READ_ONLY: [&str; 5] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];

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
        KernelPaths::Masked => FLAGS | MountFlags::RDONLY,
        KernelPaths::Open => FLAGS,
    };
    let _ = mount("sysfs", root.join("sys"), "sysfs", sys_flags, None);
    if paths == KernelPaths::Open {
        return Ok(());
    }
    for path in MASKED {
        mask(root, &root.join(path)).trying(|| format!("mask /{path}"))?;
    }
    for path in READ_ONLY {
        let inside = root.join(path);
        if exists(&inside).trying(|| format!("look at /{path}"))? {
            mount_bind(&inside, &inside).trying(|| format!("bind /{path}"))?;
            make_read_only(&inside)?;
        }
    }
    Ok(())
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
