//! The monitor of one container: outside of it, with one child, the container's process 1.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process;
use std::sync::{Arc, Mutex};
use std::thread;

use jiff::Timestamp;
use rustix::process::{
    DumpableBehavior, Pid, Resource, getpid, getrlimit, set_child_subreaper, set_dumpable_behavior,
    setrlimit,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde_json::Value;

use super::attach::{self, Audience};
use super::exec::receive_all;
use super::log;
use super::log_file::LogFile;
use super::oci::{self, OciRecipe};
use super::process::{Side, block_signals, fork, supervise, unshare};
use super::streams::{self, InnerStreams, OuterStreams};
use super::{
    EXITED, Exited, Failure, Handshake, Identity, ProcessSpace, RECORD_VERSION, RUNNING, Recipe,
    Running, Trying, init, read_json, write_json, write_json_for_good,
};
use crate::cgroup::{end_members, ran_out_of_memory};
use std::os::fd::AsFd;

/// Enough for a thread that copies a pipe, and for what the allocator keeps for each thread.
const SMALL_STACK: usize = 256 * 1024;

/// Runs a container to its end; returns its exit code.
pub(crate) fn main(recipe: &Path) -> i32 {
    // Our standard input is the lock that says that we live.
    let _ = rustix::io::write(rustix::stdio::stdin(), process::id().to_string().as_bytes());
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
    streams: OuterStreams,
    log: Arc<Mutex<LogFile>>,
    /// Where agents ask to look on.
    attach: UnixListener,
}

fn launch(path: &Path) -> Result<Launched, String> {
    let mut recipe: Recipe =
        read_json(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if let Some(oci) = recipe.oci.take() {
        return launch_oci(recipe, oci);
    }
    let told = |failure: Failure| failure.to_string();
    let (mut container, started) = split(recipe).map_err(told)?;
    let heard = receive_all(&started).trying(|| "hear from process 1".into());
    let (text, mut descriptors) = heard.map_err(told)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    // A terminal comes with a word that means nothing.
    let failure = text.strip_prefix("null\n").unwrap_or(&text);
    if !failure.is_empty() {
        return Err(failure.to_owned());
    }
    container.take_terminal(descriptors.pop()).map_err(told)?;
    let running = container.record().map_err(|failure| failure.to_string())?;
    answer(&Handshake::Started(running));
    Ok(container)
}

/// Lets an OCI runtime make the container, writes down that it runs, and lets it.
fn launch_oci(mut recipe: Recipe, mut oci: OciRecipe) -> Result<Launched, String> {
    let told = |failure: Failure| failure.to_string();
    let Begun { log, attach, outer, inner } = begin(&recipe).map_err(told)?;
    // The runtime goes when it has made the container, and leaves us its process 1.
    set_child_subreaper(Some(getpid())).trying(|| "adopt orphans".into()).map_err(told)?;
    let (init, terminal) = match oci::create(&recipe, &oci, inner) {
        Ok(made) => made,
        Err(why) => {
            oci::delete(&recipe, &oci);
            return Err(why);
        }
    };
    // The runtime has read it; the system calls alone that it names are more than all else that we keep.
    oci.config = Value::Null;
    recipe.oci = Some(oci.clone());
    let log = Arc::new(Mutex::new(log));
    let mut container = Launched { recipe, init, streams: outer, log, attach };
    let taken = container.take_terminal(terminal);
    let running = taken.and_then(|()| container.record()).map_err(told);
    let started = running.and_then(|running| {
        oci::start(&container.recipe, &oci)?;
        Ok(running)
    });
    match started {
        Ok(running) => {
            answer(&Handshake::Started(running));
            Ok(container)
        }
        Err(why) => {
            oci::delete(&container.recipe, &oci);
            Err(why)
        }
    }
}

/// What comes before any container.
struct Begun {
    log: LogFile,
    attach: UnixListener,
    outer: OuterStreams,
    inner: InnerStreams,
}

fn begin(recipe: &Recipe) -> Result<Begun, Failure> {
    // A terminal's Ctrl-C is for the agent, not for its containers.
    let _ = rustix::process::setsid();
    limit_files(recipe.open_files);
    let log = LogFile::open(&recipe.log, recipe.restarts)
        .trying(|| format!("open the log {}", recipe.log.display()))?;
    let (outer, inner) = streams::make(recipe.streams).trying(|| "make pipes".into())?;
    let attach = attach::socket::listen(&recipe.directory, attach::SOCKET)
        .trying(|| format!("make {}", attach::SOCKET))?;
    block_signals().trying(|| "block signals".into())?;
    Ok(Begun { log, attach, outer, inner })
}

/// In a child: only the monitor itself holds it.
fn forget_lock() {
    if let Ok(null) = File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(null);
    }
}

/// Forks process 1. What it says at its start comes out of the socket returned: nothing if all is
/// well, but for its terminal.
fn split(recipe: Recipe) -> Result<(Launched, UnixStream), Failure> {
    let Begun { log, attach, outer, inner } = begin(&recipe)?;
    let (started, started_end) = UnixStream::pair().trying(|| "make a socket".into())?;
    let own = File::open("/proc/self/ns/pid").trying(|| "open /proc/self/ns/pid".into())?;
    enter_processes(&recipe.processes)?;
    match fork().trying(|| "fork".into())? {
        Side::Child => {
            drop((outer, started, log, attach));
            forget_lock();
            process::exit(init::main(&recipe, inner, started_end))
        }
        Side::Parent(init) => {
            // Threads can only be made once our children would be born beside us again.
            move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))
                .trying(|| "return to the process namespace".into())?;
            let log = Arc::new(Mutex::new(log));
            Ok((Launched { recipe, init, streams: outer, log, attach }, started))
        }
    }
}

/// From here on our children are born there.
fn enter_processes(space: &ProcessSpace) -> Result<(), Failure> {
    match space {
        ProcessSpace::Own => {
            unshare(UnshareFlags::NEWPID).trying(|| "make a process namespace".into())
        }
        ProcessSpace::At(path) => {
            // Others are there already, and would look into what we make before it is confined.
            set_dumpable_behavior(DumpableBehavior::NotDumpable)
                .trying(|| "hide our memory".into())?;
            let space = File::open(path).trying(|| format!("open {}", path.display()))?;
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::ProcessID))
                .trying(|| "enter the pod's processes".into())
        }
        ProcessSpace::Node => Ok(()),
    }
}

/// The agent may have raised its own limit, which is of no concern to programs: some allocate for as
/// many files as they may open, or close them all.
pub(super) fn limit_files(open_files: Option<u64>) {
    if let Some(most) = open_files {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(limit.maximum.map_or(most, |maximum| maximum.min(most)));
        // To make it lower is always allowed.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

impl Launched {
    /// If it has one, that is where all of its streams go.
    fn take_terminal(&mut self, terminal: Option<OwnedFd>) -> Result<(), Failure> {
        if let Some(terminal) = terminal {
            let streams = OuterStreams::of_terminal(terminal, self.recipe.streams.stdin);
            self.streams = streams.trying(|| "take over the terminal".into())?;
        }
        Ok(())
    }

    fn record(&self) -> Result<Running, Failure> {
        let identity = |pid: i32| Identity::of(pid).trying(|| format!("look at process {pid}"));
        let running = Running {
            version: RECORD_VERSION,
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
        let (audience, outputs) = Audience::new(self.recipe.streams, self.streams);
        let audience = Arc::new(audience);
        let small = || thread::Builder::new().stack_size(SMALL_STACK);
        let mut copiers = Vec::new();
        for (stream, pipe) in outputs {
            let (log, audience) = (self.log.clone(), audience.clone());
            let copy = move || log::copy(stream, File::from(pipe), &log, &audience);
            copiers.push(small().spawn(copy)?);
        }
        let (attach, host) = (self.attach, audience.clone());
        small().spawn(move || host.serve(&attach, SMALL_STACK))?;
        let stop = self.recipe.oci.as_ref().and_then(|oci| oci.stop_signal);
        let code = supervise(self.init, stop.unwrap_or(libc::SIGTERM))?;
        if self.recipe.processes != ProcessSpace::Own {
            // There, the others of its processes go on, and hold the pipes: they end with its groups.
            match &self.recipe.oci {
                Some(oci) => oci::delete(&self.recipe, oci),
                None => end_members(&self.recipe.groups),
            }
        }
        audience.set_over();
        // With process 1 all processes of the container are gone, so the pipes end.
        for copier in copiers {
            let _ = copier.join();
        }
        let out_of_memory = self.recipe.groups.iter().any(|group| ran_out_of_memory(group));
        if let Some(oci) = &self.recipe.oci {
            oci::delete(&self.recipe, oci);
        }
        for group in &self.recipe.groups {
            // If it does not work now, it goes with the pod.
            let _ = fs::remove_dir(group);
        }
        let id = self.recipe.id.clone();
        let exited = Exited { id, code, finished_at: Timestamp::now(), out_of_memory };
        // Else a container that had done its work would seem to have been killed.
        write_json_for_good(&self.recipe.directory.join(EXITED), &exited)?;
        Ok(code)
    }
}
