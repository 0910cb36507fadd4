//! The processes around a container.
//!
//! The agent runs threads, so it must not fork. It starts our own executable as a *monitor*, which
//! has one thread, reads the container's [`Recipe`], and forks the container's process 1. That one
//! makes the namespaces and the root directory, starts the command and reaps what it leaves
//! behind. The monitor stays outside: it writes the log and, at the end, how the container ended.
//! So a container outlives the agent, and the next agent finds it again by what is on the disk.

mod confine;
mod init;
mod kernel_paths;
mod log;
mod log_file;
pub(crate) mod monitor;
mod process;
mod root;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::security::Confinement;

/// In a container's directory: what to run.
pub(crate) const RECIPE: &str = "recipe.json";
/// In a container's directory: the processes of the present run.
pub(crate) const RUNNING: &str = "running.json";
/// In a container's directory: how the run ended.
pub(crate) const EXITED: &str = "exited.json";
/// In a container's directory: where its root is mounted, seen only by the container.
const ROOT: &str = "root";

/// All that the processes around a container need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recipe {
    /// Identifies this run.
    pub(crate) id: String,
    /// How often the container ran before.
    pub(crate) restarts: i32,
    /// The program's path within the container, and its arguments.
    pub(crate) command: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) working_directory: Option<String>,
    pub(crate) hostname: String,
    /// The pod's network; `None` is the node's own.
    pub(crate) network: Option<PathBuf>,
    /// Files to write into the container, by path.
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) directory: PathBuf,
    pub(crate) log: PathBuf,
    /// How many files its processes may open at first; `None` is as many as the agent.
    #[serde(default)]
    pub(crate) open_files: Option<u64>,
    #[serde(default)]
    pub(crate) confinement: Confinement,
    #[serde(default)]
    pub(crate) mounts: Vec<Mount>,
    /// The directories of the groups that hold it to its limits.
    #[serde(default)]
    pub(crate) groups: Vec<PathBuf>,
    #[serde(default)]
    pub(crate) oom_score_adj: i32,
}

/// A directory of the node in a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mount {
    pub(crate) source: PathBuf,
    pub(crate) path: String,
    pub(crate) read_only: bool,
}

/// The processes of a container that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) id: String,
    pub(crate) restarts: i32,
    pub(crate) started_at: Timestamp,
    pub(crate) monitor: Identity,
    pub(crate) init: Identity,
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// The kernel's clock ticks at which it began.
    started: u64,
    boot: String,
}

impl Identity {
    /// The process that has this number now, even if it only waits to be reaped.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        Self::look(pid).map(|(identity, _)| identity)
    }

    /// Whether that process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Self::look(self.pid).is_ok_and(|(now, state)| now == *self && !matches!(state, b'Z' | b'X'))
    }

    /// The process and its state, a letter.
    fn look(pid: i32) -> io::Result<(Self, u8)> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // The command's name comes second and may contain anything; then the state, and as the
        // 22nd the start time.
        let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        let mut fields = after_name.split_whitespace();
        let state = fields.next().and_then(|state| state.bytes().next());
        let started = fields.nth(18).and_then(|text| text.parse().ok());
        match (state, started) {
            (Some(state), Some(started)) => {
                Ok((Self { pid, started, boot: boot.trim().into() }, state))
            }
            _ => Err(io::Error::other("cannot read the process's state")),
        }
    }
}

/// How a container's run ended, as its monitor saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exited {
    pub(crate) id: String,
    pub(crate) code: i32,
    pub(crate) finished_at: Timestamp,
    /// The kernel ended a process of it because its memory was used up.
    #[serde(default)]
    pub(crate) out_of_memory: bool,
}

/// What the monitor says to the agent about the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Handshake {
    Started(Running),
    Failed(String),
}

/// Writes a file so that it is there in full or not at all.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, serde_json::to_vec(value)?)?;
    fs::rename(&temporary, path)
}

/// Reads a file written by [`write_json`].
pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// What could not be done while a container was made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}")]
struct Failure {
    action: String,
    source: io::Error,
}

/// Says what was tried, should it fail.
trait Trying<T> {
    fn trying(self, action: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Trying<T> for Result<T, E> {
    fn trying(self, action: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|source| Failure { action: action(), source: source.into() })
    }
}
