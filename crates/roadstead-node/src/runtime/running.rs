//! A container of the built-in runtime: its monitor, its process 1, and what its directory says of it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use roadstead_pod::facts::{Exit, StartedContainer};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{task, time};
use tracing::warn;

use super::forker::{Forker, reap};
use super::{last_words, pidfd};
use crate::cgroup::end_members;
use crate::container::exec::Entry;
use crate::container::forker::Job;
use crate::container::oci;
use crate::container::{
    EXITED, Exited, Handshake, LOCK, ProcessSpace, RECIPE, RUNNING, Recipe, Running, read_json,
    write_json,
};

/// The monitor of a run that has ended goes within this time.
const GOES: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A container whose monitor runs, or ran until a moment ago.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) directory: PathBuf,
    pub(super) running: Running,
    pub(super) monitor: OwnedFd,
    /// `None` if it has ended before we could look.
    pub(super) init: Option<OwnedFd>,
    /// To be reaped if it is our own child, and not adopted from an earlier agent.
    child: Mutex<Option<OwnedFd>>,
    /// What commands that join it need to know, from the moment of the first one.
    pub(super) entry: OnceLock<Entry>,
}

impl Container {
    fn new(directory: &Path, running: Running, child: Option<OwnedFd>) -> io::Result<Self> {
        let open = |pid: i32| {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
            pidfd_open(pid, PidfdFlags::NONBLOCK).map_err(io::Error::from)
        };
        Ok(Self {
            directory: directory.to_owned(),
            monitor: open(running.monitor.pid)?,
            init: open(running.init.pid).ok(),
            running,
            child: Mutex::new(child),
            entry: OnceLock::new(),
        })
    }

    /// Takes over a container that an earlier agent started, if it still runs.
    pub(super) fn adopt(directory: &Path, running: &Running) -> Option<Self> {
        let container = Self::new(directory, running.clone(), None).ok()?;
        // Looked at after opening: so it was not another process that we opened.
        (running.monitor.is_alive() && running.init.is_alive()).then_some(container)
    }

    pub(super) fn started(&self) -> StartedContainer {
        StartedContainer { id: self.running.id.clone(), since: self.running.started_at }
    }

    /// Ends process 1, and with it the kernel ends the container.
    pub(super) fn kill(&self) {
        if let Some(init) = &self.init {
            let _ = pidfd_send_signal(init, Signal::KILL);
        }
    }

    pub(super) async fn ended(&self) -> Exit {
        let waited = match self.monitor.try_clone() {
            Ok(monitor) => pidfd::ended(monitor).await,
            Err(error) => Err(error),
        };
        if let Err(error) = waited {
            warn!(%error, "cannot wait for a container, will look now and then");
            while self.running.monitor.is_alive() {
                time::sleep(Duration::from_millis(100)).await;
            }
        }
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(child) = child {
            let _ = reap(&child);
        }
        if !has_ended(&self.directory, &self.running) {
            let (directory, running) = (self.directory.clone(), self.running.clone());
            let _ = task::spawn_blocking(move || end_remains(&directory, &running)).await;
        }
        read_exit(&self.directory, &self.running)
    }
}

/// Whether the monitor has said how the run ended.
fn has_ended(directory: &Path, running: &Running) -> bool {
    let exited = read_json::<Exited>(&directory.join(EXITED));
    exited.is_ok_and(|exited| exited.id == running.id)
}

/// Ends a container whose monitor was killed. One that we run ourselves ends with it; of one that an OCI
/// runtime runs, there may be something left.
pub(super) fn end_remains(directory: &Path, running: &Running) {
    let Ok(recipe) = read_json::<Recipe>(&directory.join(RECIPE)) else { return };
    if recipe.id != running.id || has_ended(directory, running) {
        return;
    }
    match &recipe.oci {
        Some(runtime) => oci::delete(&recipe, runtime),
        None if recipe.processes != ProcessSpace::Own => end_members(&recipe.groups),
        None => {}
    }
}

/// Whether a monitor lives that an earlier agent has started and that has not said yet what became of it.
pub(super) fn is_launching(directory: &Path) -> bool {
    let lock = File::options().read(true).write(true).open(directory.join(LOCK));
    let held = lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
    let recipe = read_json::<Recipe>(&directory.join(RECIPE)).ok();
    let running = read_json::<Running>(&directory.join(RUNNING)).ok();
    held && recipe.map(|recipe| recipe.id) != running.map(|running| running.id)
}

/// Kills a monitor that does not say what became of it.
pub(super) fn end_launching(directory: &Path) {
    let pid = fs::read_to_string(directory.join(LOCK)).ok();
    let pid = pid.and_then(|text| Pid::from_raw(text.trim().parse().ok()?));
    let monitor = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // Looked at after opening: whoever holds the lock has that number.
    if let Some(monitor) = monitor.filter(|_| is_launching(directory)) {
        let _ = pidfd_send_signal(&monitor, Signal::KILL);
    }
}

/// Takes the lock of a container, for its next monitor.
fn lock(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK);
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break file.set_len(0).map(|()| file),
            Err(TryLockError::Error(error)) => break Err(error),
            Err(TryLockError::WouldBlock) if begin.elapsed() > GOES => {
                break Err(io::Error::other("the monitor of the last run does not end"));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Removes a container that an OCI runtime has made and that was never let go.
pub(super) fn remove_unrecorded(directory: &Path, running: Option<&Running>) {
    let Ok(recipe) = read_json::<Recipe>(&directory.join(RECIPE)) else { return };
    if let Some(runtime) =
        recipe.oci.as_ref().filter(|_| running.is_none_or(|running| running.id != recipe.id))
    {
        oci::delete(&recipe, runtime);
    }
}

/// How a run ended, according to its monitor; killed, if the monitor had no time to say.
pub(super) fn read_exit(directory: &Path, running: &Running) -> Exit {
    let written = read_json::<Exited>(&directory.join(EXITED)).ok();
    let written = written.filter(|exited| exited.id == running.id);
    let out_of_memory = written.as_ref().is_some_and(|exited| exited.out_of_memory);
    let (code, finished_at, message) = match written {
        Some(exited) => {
            let message = last_words::read(directory, &exited.id, exited.code);
            (exited.code, exited.finished_at, message)
        }
        None => (137, Timestamp::now(), Some("the container's monitor was killed".into())),
    };
    let reason = match code {
        _ if out_of_memory => "OOMKilled",
        0 => "Completed",
        _ => "Error",
    };
    Exit {
        id: running.id.clone(),
        code,
        reason: reason.into(),
        message,
        started_at: running.started_at,
        finished_at,
    }
}

/// Starts a monitor and hears from it how the start went.
pub(super) fn launch(forker: &Forker, recipe: &Recipe) -> Result<Container, String> {
    let directory = &recipe.directory;
    let path = directory.join(RECIPE);
    let lock = fs::create_dir_all(directory)
        .and_then(|()| lock(directory))
        .and_then(|lock| last_words::prepare(recipe).map(|()| lock))
        .and_then(|lock| write_json(&path, recipe).map(|()| lock))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    let made = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
    let forked = made.and_then(|(heard, said)| {
        let job = Job::Monitor { recipe: path.clone() };
        let monitor = forker.fork(&job, &[lock.as_fd(), said.as_fd()])?;
        Ok((heard, monitor))
    });
    let (answer, monitor) = forked.map_err(|error| format!("cannot start a monitor: {error}"))?;
    // From here on the lock is its own.
    drop(lock);
    let mut text = String::new();
    let heard = File::from(answer).read_to_string(&mut text).map_err(|error| error.to_string());
    let parsed = heard.and_then(|_| {
        serde_json::from_str(&text).map_err(|_| format!("the monitor answered {text:?}"))
    });
    match parsed {
        Ok(Handshake::Started(running)) => Container::new(directory, running, Some(monitor))
            .map_err(|error| format!("cannot follow the container: {error}")),
        Ok(Handshake::Failed(message)) | Err(message) => {
            // One that we did not understand may still run.
            let _ = pidfd_send_signal(&monitor, Signal::KILL);
            let _ = reap(&monitor);
            Err(message)
        }
    }
}
