//! The lists of system calls that the operator keeps on this node, for pods to name.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use roadstead_pod::seccomp_profile::SeccompProfile;
use roadstead_pod::security::{Confinement, Seccomp};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// A profile is not longer.
const LONGEST: u64 = 1 << 20;

/// Where they are, below the directory of the agent's state.
pub(super) fn directory(state: &Path) -> PathBuf {
    state.join("seccomp")
}

/// The profile that a container is to have, if it is one of these.
pub(super) fn load(
    state: &Path,
    confinement: &Confinement,
) -> Result<Option<SeccompProfile>, String> {
    let Seccomp::Localhost(path) = &confinement.seccomp else { return Ok(None) };
    let directory = directory(state);
    let text = read(&directory, path).map_err(|error| error.to_string());
    let profile = text.and_then(|text| SeccompProfile::parse(&text));
    let shown = directory.join(path);
    profile.map(Some).map_err(|why| format!("cannot load seccomp profile {shown:?}: {why}"))
}

/// Links lead nowhere else: a file that pods can name without seeing it is to be a profile.
fn read(directory: &Path, path: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let top = rustix::fs::open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(openat2(&top, path, flags, Mode::empty(), within)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    match file.take(LONGEST + 1).read_to_end(&mut text)? as u64 {
        length if length > LONGEST => Err(io::Error::other("it is too long")),
        _ => Ok(text),
    }
}
