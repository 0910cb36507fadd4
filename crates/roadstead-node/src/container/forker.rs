//! Makes the processes around containers, for the agent.
//!
//! The agent has threads, so it must not fork. And to execute our whole program anew for every monitor and
//! every command costs each of them a millisecond and two megabytes of memory, for addresses that are the
//! same in all of them. So the agent starts our executable once, as this process, which has one thread and
//! no secrets; it makes processes like itself, whose parent is the agent, and hands their handles over. It
//! goes when the agent goes; what it has made stays.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::setsid;
use serde::{Deserialize, Serialize};

use super::exec::{receive_some, send};
use super::process::{Sibling, set_title, sibling};
use super::{exec, monitor, pause};

/// What a new process is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Job {
    /// To be the monitor of a container. With it come its lock, and the pipe for its [`super::Handshake`].
    Monitor { recipe: PathBuf },
    /// To run a command in a container. With it comes the socket that says which.
    Exec,
    /// To keep the processes of a pod together. With it comes the socket that says how it went.
    Pause,
}

/// What became of a [`Job`]; with a process, its handle comes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Forked {
    Made,
    Failed(String),
}

/// Takes jobs from our standard input, a socket that keeps messages apart, until the agent is gone.
pub(crate) fn main() -> i32 {
    let Ok(agent) = fcntl_dupfd_cloexec(io::stdin(), 3).map(UnixStream::from) else { return 255 };
    let Ok(null) = File::open("/dev/null") else { return 255 };
    if rustix::stdio::dup2_stdin(null).is_err() {
        return 255;
    }
    // A terminal's Ctrl-C is for the agent.
    let _ = setsid();
    let _ = rustix::thread::set_name(c"roadstead");
    set_title("roadstead pod-forker");
    let mut buffer = vec![0; 16 * 1024];
    while let Ok((count @ 1.., descriptors)) = receive_some(&agent, &mut buffer) {
        let job = serde_json::from_slice(&buffer[..count]).map_err(io::Error::from);
        match job.and_then(|job| Ok((job, sibling()?))) {
            Ok((job, Sibling::Younger)) => {
                drop(agent);
                process::exit(run(job, descriptors));
            }
            Ok((_, Sibling::Elder(handle))) => drop(send(&agent, &Forked::Made, &[handle.as_fd()])),
            Err(error) => drop(send(&agent, &Forked::Failed(error.to_string()), &[])),
        }
    }
    0
}

/// In the new process.
fn run(job: Job, descriptors: Vec<OwnedFd>) -> i32 {
    let mut descriptors = descriptors.into_iter();
    let (first, second) = (descriptors.next(), descriptors.next());
    let placed = first.map(rustix::stdio::dup2_stdin);
    match (job, placed, second) {
        (Job::Exec, Some(Ok(())), None) => exec::main(),
        (Job::Pause, Some(Ok(())), None) => pause::main(),
        (Job::Monitor { recipe }, Some(Ok(())), Some(answer)) => {
            if rustix::stdio::dup2_stdout(&answer).is_err() {
                return 255;
            }
            drop(answer);
            set_title(&format!("roadstead pod-monitor {}", recipe.display()));
            monitor::main(&recipe)
        }
        _ => 255,
    }
}
