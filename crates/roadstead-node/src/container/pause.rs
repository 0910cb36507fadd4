//! The first process of a pod whose containers see each other's (`shareProcessNamespace`): it keeps the
//! namespace and reaps what its containers leave behind. Scripts know it as `/pause`.
//!
//! The containers see it, and it is ours: so it has a root of its own without a single file, no capability, no
//! file open, and cannot be looked into.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;

use roadstead_pod::capabilities::Capabilities;
use roadstead_pod::mandatory::ProcessLabels;
use roadstead_pod::security::Confinement;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{DumpableBehavior, set_dumpable_behavior, setsid};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use super::exec::send;
use super::process::{
    Sibling, block_signals, close_files, reap_for_ever, set_title, sibling, unshare,
};
use super::{Failure, Trying, confine, root};

/// What the agent is told, one per line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// There is a process: its handle comes with this.
    Made,
    /// It has become what it is to be, and waits for a word. Without one, nobody knows of it, and it ends.
    Ready,
    Failed(String),
}

/// Makes the process, whose parent is the agent; returns our exit code, which means nothing.
pub(crate) fn main() -> i32 {
    let Ok(agent) = fcntl_dupfd_cloexec(io::stdin(), 3).map(UnixStream::from) else { return 255 };
    match make() {
        Ok(Sibling::Elder(handle)) => {
            let _ = send(&agent, &Report::Made, &[handle.as_fd()]);
            0
        }
        Ok(Sibling::Younger) => match become_pause(&agent) {
            Ok(()) => keep(agent),
            Err(failure) => complain(&agent, &failure),
        },
        Err(failure) => complain(&agent, &failure),
    }
}

fn complain(agent: &UnixStream, failure: &Failure) -> i32 {
    let _ = send(agent, &Report::Failed(failure.to_string()), &[]);
    255
}

fn make() -> Result<Sibling, Failure> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).trying(|| "hide our memory".into())?;
    unshare(UnshareFlags::NEWPID).trying(|| "make a process namespace".into())?;
    sibling().trying(|| "make a process".into())
}

fn become_pause(agent: &UnixStream) -> Result<(), Failure> {
    setsid().trying(|| "begin a session".into())?;
    let _ = rustix::thread::set_name(c"pause");
    set_title("/pause");
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.trying(|| "open /dev/null".into())?;
    let put = || -> rustix::io::Result<()> {
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)
    };
    put().trying(|| "leave our streams".into())?;
    drop(null);
    block_signals().trying(|| "block signals".into())?;
    enter_empty_root()?;
    let nothing = Capabilities::from_bits(0);
    let nobody = Confinement { capabilities: nothing, ..Confinement::default() };
    confine::enter_beside(&nobody, None, &ProcessLabels::default())?;
    send(agent, &Report::Ready, &[]).trying(|| "say that we are ready".into())
}

/// Not even the machine's own directories are there.
fn enter_empty_root() -> Result<(), Failure> {
    unshare(UnshareFlags::NEWNS).trying(|| "make a mount namespace".into())?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .trying(|| "keep mounts to ourselves".into())?;
    let place = Path::new("/proc");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("tmpfs", place, "tmpfs", flags, Some(c"size=0k,mode=755"))
        .trying(|| "mount an empty root".into())?;
    root::switch(place).trying(|| "change the root".into())
}

/// Waits until somebody knows of us, and then for ever.
fn keep(mut agent: UnixStream) -> i32 {
    let mut word = [0];
    if !agent.read(&mut word).is_ok_and(|count| count > 0) {
        return 255;
    }
    drop(agent);
    if close_files().is_err() {
        return 255;
    }
    drop(reap_for_ever());
    process::exit(255)
}
