//! The monitor of one container: outside of it, with one child, the container's process 1.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process;
use std::sync::{Arc, Mutex};
use std::thread;

use jiff::Timestamp;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::log::{self, Stream};
use super::log_file::LogFile;
use super::process::{Side, block_signals, fork, supervise, unshare};
use super::{
    EXITED, Exited, Failure, Handshake, Identity, RUNNING, Recipe, Running, Trying, init,
    read_json, write_json,
};
use crate::cgroup::ran_out_of_memory;
use std::os::fd::AsFd;

/// Enough for a thread that copies a pipe, and for what the allocator keeps for each thread.
const SMALL_STACK: usize = 256 * 1024;

/// Runs a container to its end; returns its exit code.
pub(crate) fn main(recipe: &Path) -> i32 {
    match launch(recipe) {
        Ok(container) => container.watch().unwrap_or(255),
        Err(failure) => {
            answer(&Handshake::Failed(failure));
            255
        }
    }
}

/// Tells the agent, which reads our standard output.
fn answer(handshake: &Handshake) {
    let text = serde_json::to_string(handshake).expect("plain values");
    let mut stdout = io::stdout();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    // The agent reads to the end, so there has to be one.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

struct Launched {
    recipe: Recipe,
    init: Pid,
    outputs: [(Stream, OwnedFd); 2],
    log: Arc<Mutex<LogFile>>,
}

fn launch(path: &Path) -> Result<Launched, String> {
    let recipe: Recipe =
        read_json(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let (container, started) = split(recipe).map_err(|failure| failure.to_string())?;
    let mut failure = String::new();
    let _ = File::from(started).read_to_string(&mut failure);
    if !failure.is_empty() {
        return Err(failure);
    }
    let running = container.record().map_err(|failure| failure.to_string())?;
    answer(&Handshake::Started(running));
    Ok(container)
}

/// Forks process 1. What it says at its start comes out of the pipe returned: nothing if all is
/// well.
fn split(recipe: Recipe) -> Result<(Launched, OwnedFd), Failure> {
    // A terminal's Ctrl-C is for the agent, not for its containers.
    let _ = rustix::process::setsid();
    limit_files(recipe.open_files);
    let log = LogFile::open(&recipe.log, recipe.restarts)
        .trying(|| format!("open the log {}", recipe.log.display()))?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).trying(|| "make a pipe".into());
    let ((stdout, stdout_end), (stderr, stderr_end), (started, started_end)) =
        (pipe()?, pipe()?, pipe()?);
    block_signals().trying(|| "block signals".into())?;
    let own = File::open("/proc/self/ns/pid").trying(|| "open /proc/self/ns/pid".into())?;
    unshare(UnshareFlags::NEWPID).trying(|| "make a process namespace".into())?;
    match fork().trying(|| "fork".into())? {
        Side::Child => {
            drop((stdout, stderr, started, log));
            process::exit(init::main(&recipe, [stdout_end, stderr_end], started_end))
        }
        Side::Parent(init) => {
            // Threads can only be made once our children would be born beside us again.
            move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))
                .trying(|| "return to the process namespace".into())?;
            let outputs = [(Stream::Stdout, stdout), (Stream::Stderr, stderr)];
            let log = Arc::new(Mutex::new(log));
            Ok((Launched { recipe, init, outputs, log }, started))
        }
    }
}

/// The agent may have raised its own limit, which is of no concern to programs: some allocate for as
/// many files as they may open, or close them all.
fn limit_files(open_files: Option<u64>) {
    if let Some(most) = open_files {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(limit.maximum.map_or(most, |maximum| maximum.min(most)));
        // To make it lower is always allowed.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

impl Launched {
    fn record(&self) -> Result<Running, Failure> {
        let identity = |pid: i32| Identity::of(pid).trying(|| format!("look at process {pid}"));
        let running = Running {
            id: self.recipe.id.clone(),
            restarts: self.recipe.restarts,
            started_at: Timestamp::now(),
            monitor: identity(process::id().cast_signed())?,
            init: identity(self.init.as_raw_nonzero().get())?,
        };
        let path = self.recipe.directory.join(RUNNING);
        write_json(&path, &running).trying(|| format!("write {}", path.display()))?;
        Ok(running)
    }

    /// Writes the log until the container has ended, then how it ended.
    fn watch(self) -> io::Result<i32> {
        let mut copiers = Vec::new();
        for (stream, pipe) in self.outputs {
            let log = self.log.clone();
            let copy = move || log::copy(stream, File::from(pipe), &log);
            copiers.push(thread::Builder::new().stack_size(SMALL_STACK).spawn(copy)?);
        }
        let code = supervise(self.init)?;
        // With process 1 all processes of the container are gone, so the pipes end.
        for copier in copiers {
            let _ = copier.join();
        }
        let out_of_memory = self.recipe.groups.iter().any(|group| ran_out_of_memory(group));
        for group in &self.recipe.groups {
            // If it does not work now, it goes with the pod.
            let _ = fs::remove_dir(group);
        }
        let id = self.recipe.id.clone();
        let exited = Exited { id, code, finished_at: Timestamp::now(), out_of_memory };
        write_json(&self.recipe.directory.join(EXITED), &exited)?;
        Ok(code)
    }
}
