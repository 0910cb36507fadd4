//! The processes around a container.
//!
//! The agent runs threads, so it must not fork. It starts our own executable as a *monitor*, which
//! has one thread, reads the container's [`Recipe`], and forks the container's process 1. That one
//! makes the namespaces and the root directory, starts the command and reaps what it leaves
//! behind. The monitor stays outside: it writes the log and, at the end, how the container ended.
//! So a container outlives the agent, and the next agent finds it again by what is on the disk.

pub(crate) mod attach;
mod confine;
pub(crate) mod exec;
pub(crate) mod forker;
mod init;
mod kernel_paths;
pub(crate) mod log;
pub(crate) mod log_file;
pub(crate) mod monitor;
pub(crate) mod oci;
pub(crate) mod pause;
pub(crate) mod process;
mod root;
mod streams;
mod terminal;
pub(crate) mod volume_path;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use roadstead_pod::container_config::ContainerStreams;
use roadstead_pod::mandatory::ProcessLabels;
use roadstead_pod::seccomp_profile::SeccompProfile;
use roadstead_pod::security::Confinement;
use roadstead_pod::termination_message::TerminationMessage;
use roadstead_pod::volumes::{Access, Propagation, Trust};

use self::exec::Entry;
use self::oci::OciRecipe;

/// In a container's directory: what to run.
pub(crate) const RECIPE: &str = "recipe.json";
/// In a container's directory: the processes of the present run.
pub(crate) const RUNNING: &str = "running.json";
/// In a container's directory: how the run ended.
pub(crate) const EXITED: &str = "exited.json";
/// In a container's directory: locked for as long as a monitor lives, which writes its number into it.
pub(crate) const LOCK: &str = "monitor.lock";
/// In a container's directory: what the container writes its last words to.
pub(crate) const LAST_WORDS: &str = "termination-log";
/// In a container's directory: where its root is mounted, seen only by the container.
pub(crate) const ROOT: &str = "root";

/// Of what is written about containers, for agents that come later: raised whenever an earlier one would get
/// something wrong. Those before the first have none. Fields that are new have a default for older records.
pub(crate) const RECORD_VERSION: u32 = 1;

/// All that the processes around a container need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recipe {
    #[serde(default)]
    pub(crate) version: u32,
    /// Identifies this run.
    pub(crate) id: String,
    /// How often the container ran before.
    pub(crate) restarts: i32,
    /// What the built-in programs are, on the node.
    #[serde(default)]
    pub(crate) executable: PathBuf,
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
    /// What asks it to end, if not what its image says, or SIGTERM.
    #[serde(default)]
    pub(crate) stop_signal: Option<i32>,
    /// Which processes it sees.
    #[serde(default)]
    pub(crate) processes: ProcessSpace,
    /// The list of system calls that the confinement names.
    #[serde(default)]
    pub(crate) calls: Option<SeccompProfile>,
    /// Where its last words come from.
    #[serde(default)]
    pub(crate) termination_message: Option<TerminationMessage>,
    #[serde(default)]
    pub(crate) streams: ContainerStreams,
    /// What it shares with the other containers of its pod; if not given, it has all that for itself.
    #[serde(default)]
    pub(crate) shared: Option<SharedMemory>,
    /// What AppArmor and SELinux hold it to.
    #[serde(default)]
    pub(crate) labels: ProcessLabels,
    /// How it is run by an OCI runtime; if not given, we run it ourselves.
    #[serde(default)]
    pub(crate) oci: Option<OciRecipe>,
}

/// By what processes of a pod find each other without a network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SharedMemory {
    /// What is /dev/shm in its containers.
    pub(crate) files: PathBuf,
    /// The namespace of message queues and the like; if not given, they are the node's.
    pub(crate) messages: Option<PathBuf>,
}

/// Which processes a container sees. In a space that is not its own, they do not end with its first one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessSpace {
    /// Its own.
    #[default]
    Own,
    /// Those of a namespace that others are in, too.
    At(PathBuf),
    /// All.
    Node,
}

impl Recipe {
    /// What a command needs to join the container, whose groups are joined by these files.
    pub(crate) fn entry(&self, groups: Vec<PathBuf>) -> Entry {
        let of_image = self.oci.as_ref().and_then(|oci| oci.config["process"]["cwd"].as_str());
        let given = self.working_directory.as_deref();
        Entry {
            command: vec![],
            environment: self.environment.clone(),
            working_directory: of_image.or(given).unwrap_or("/").to_owned(),
            confinement: self.confinement.clone(),
            calls: self.calls.clone(),
            labels: self.labels.clone(),
            groups,
            open_files: self.open_files,
            oom_score_adj: self.oom_score_adj,
            terminal: false,
        }
    }
}

/// A directory or file of the node in a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mount {
    pub(crate) source: PathBuf,
    /// The part of it that is mounted, which may have links: never opened but by `volume_path`.
    #[serde(default)]
    pub(crate) sub_path: Option<String>,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) access: Access,
    /// What its files can do.
    #[serde(default)]
    pub(crate) trust: Trust,
    /// Who sees what is mounted there later.
    #[serde(default)]
    pub(crate) propagation: Propagation,
}

/// In a container's directory: where parts of volumes are mounted for the OCI runtime, seen only by it.
pub(crate) const PARTS: &str = "parts";

impl Mount {
    /// Where an OCI runtime finds it: the number is its place among the container's.
    pub(crate) fn source_for_oci(&self, directory: &Path, number: usize) -> PathBuf {
        match self.is_whole() {
            true => self.source.clone(),
            false => directory.join(PARTS).join(number.to_string()),
        }
    }

    /// Whether it can be mounted by its path: no part of a volume that others write to, and nothing that is
    /// mounted there later concerns anybody else.
    pub(crate) fn is_whole(&self) -> bool {
        self.sub_path.is_none() && self.propagation == Propagation::None
    }
}

/// The processes of a container that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Running {
    #[serde(default)]
    pub(crate) version: u32,
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

    /// Whether that process is the one with its number, even if it only waits to be reaped.
    pub(crate) fn is_same(&self) -> bool {
        Self::of(self.pid).is_ok_and(|now| now == *self)
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

/// The same, and a power cut does not take it back.
pub(crate) fn write_json_for_good(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    let Some(directory) = path.parent() else { return Ok(()) };
    fs::File::open(directory)?.sync_all()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Containers outlive the agent that made them, and are joined and ended by the next one.
    #[test]
    fn records_of_earlier_agents_are_read() {
        let recipe: Recipe =
            serde_json::from_str(include_str!("container/golden/recipe-0.json")).unwrap();
        let running: Running =
            serde_json::from_str(include_str!("container/golden/running-0.json")).unwrap();
        assert_eq!((recipe.version, running.version), (0, 0));
        assert_eq!((&recipe.id, recipe.restarts), (&running.id, running.restarts));
        assert_eq!((running.monitor.pid, running.init.pid), (41, 42));
        let entry = recipe.entry(vec!["/x/cgroup.procs".into()]);
        assert_eq!(entry.working_directory, "/srv");
        assert_eq!(entry.environment.len(), 2);
        let confinement = &entry.confinement;
        assert_eq!((confinement.user, confinement.group), (101, 33));
        assert_eq!(confinement.seccomp, roadstead_pod::security::Seccomp::RuntimeDefault);
        let oci = recipe.oci.as_ref().unwrap();
        assert_eq!((oci.runtime.to_str(), oci.stop_signal), (Some("/usr/sbin/runc"), Some(3)));
        assert_eq!(recipe.mounts[0].access, Access::ReadOnly);
        let messages = recipe.shared.as_ref().unwrap().messages.as_ref().unwrap();
        assert!(messages.ends_with(".ipc"));
        // What this agent writes, it reads, too.
        let again: Recipe = serde_json::from_value(serde_json::to_value(&recipe).unwrap()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{recipe:?}"));
    }
}
