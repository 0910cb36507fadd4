//! A namespace of a process, held so that its path cannot come to mean another one.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process;

use crate::container::Identity;

/// As long as this lives, the path leads to the namespace, whatever becomes of the process.
#[derive(Debug)]
pub(super) struct HeldNamespace(File);

impl HeldNamespace {
    /// That which the process's own children are born in.
    pub(super) fn of_processes(process: &Identity) -> Option<Self> {
        let file = File::open(format!("/proc/{}/ns/pid", process.pid)).ok()?;
        // Looked at after opening: so it was not another process that we opened.
        process.is_alive().then_some(Self(file))
    }

    /// For programs that take a path.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd()).into()
    }
}
