//! The agent's side of [`crate::container::forker`]: asks for processes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::executable::ReadOnlyExecutable;
use crate::applet::{FORKER, SELECT};
use crate::container::exec::{receive_some, send};
use crate::container::forker::{Forked, Job};

/// Room for what processes made by it are called.
const TITLE: usize = 256;

/// How our allocator (see `.cargo/config.toml`) keeps the memory of these processes, which do little: each
/// of their threads would else have an arena of its own, and a store of what it has freed.
const MEMORY: (&str, &str) = ("_RJEM_MALLOC_CONF", "narenas:1,tcache:false");

/// Makes processes from an executable, which is looked at when the first one is wanted.
#[derive(Debug)]
pub(super) struct Forker {
    executable: PathBuf,
    process: Mutex<Option<Process>>,
}

/// The process that forks; it ends with our end of the socket.
#[derive(Debug)]
struct Process {
    socket: UnixStream,
    child: Child,
}

impl Forker {
    pub(super) fn new(executable: PathBuf) -> Self {
        Self { executable, process: Mutex::new(None) }
    }

    /// What the processes are made from.
    pub(super) fn executable(&self) -> &Path {
        &self.executable
    }

    /// Makes a process, our child; returns a handle on it.
    pub(super) fn fork(&self, job: &Job, with: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // One that somebody has killed has done nothing with what it did not get.
        let sent = process.as_ref().is_some_and(|known| send(&known.socket, job, with).is_ok());
        if !sent {
            if let Some(lost) = process.take() {
                lost.end();
            }
            send(&process.insert(self.start()?).socket, job, with)?;
        }
        let gone = || io::Error::other("the process that makes others has ended");
        let known = process.as_ref().ok_or_else(gone)?;
        let mut buffer = vec![0; 4096];
        let (count, mut descriptors) = receive_some(&known.socket, &mut buffer)?;
        if count == 0 {
            return Err(gone());
        }
        match serde_json::from_slice(&buffer[..count])? {
            Forked::Made => descriptors.pop().ok_or_else(gone),
            Forked::Failed(why) => Err(io::Error::other(why)),
        }
    }

    fn start(&self) -> io::Result<Process> {
        let executable = ReadOnlyExecutable::open(&self.executable)
            .map_err(|error| named("open", &self.executable, &error))?;
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let child = Command::new(executable.path())
            .arg0("roadstead")
            .args([SELECT, FORKER, &" ".repeat(TITLE)])
            .env_clear()
            .envs([MEMORY])
            .current_dir("/")
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| named("run", &self.executable, &error))?;
        Ok(Process { socket: ours.into(), child })
    }
}

impl Drop for Forker {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        process.into_iter().for_each(Process::end);
    }
}

impl Process {
    fn end(mut self) {
        drop(self.socket);
        let _ = self.child.wait();
    }
}

fn named(action: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {action} {}: {error}", path.display()))
}

/// Waits for a child that is ending; returns its exit code, 128 plus the signal if one ended it.
pub(super) fn reap(process: &OwnedFd) -> io::Result<i32> {
    let status = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED)?;
    let status = status.ok_or(io::ErrorKind::NotFound)?;
    let killed = || status.terminating_signal().map(|signal| 128 + signal);
    Ok(status.exit_status().or_else(killed).unwrap_or(255))
}
