//! Commands that run in containers that run already: what is asked for, and what comes of it.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use roadstead_pod::exec::exec_environment;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::{task, time};
use tracing::warn;

use super::attach::Window;
use super::forker::{Forker, reap};
use super::pidfd;
use super::terminal::Terminal;
use crate::cgroup::joined_by;
use crate::container::exec::{Entry, Report, receive_all, send};
use crate::container::forker::Job;
use crate::container::{RECIPE, Recipe, Running, read_json};

/// What to run in a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecOrder {
    /// The program, looked for in the container's `$PATH`, and its arguments.
    pub command: Vec<String>,
    /// Whether it gets input; without, it reads the null device.
    pub stdin: bool,
    /// Whether it gets a terminal.
    pub tty: bool,
    /// Only what it printed is wanted, and how it ended, after its end.
    pub output_only: bool,
}

/// What goes to a process.
pub type ProcessInput = Pin<Box<dyn AsyncWrite + Send>>;
/// What comes from a process.
pub type ProcessOutput = Pin<Box<dyn AsyncRead + Send>>;

/// A command that runs. Its streams end when this is dropped; it itself goes on, and ends with its
/// container at the latest.
pub struct ExecSession {
    /// If it was asked for. Dropping it is the end of the input, unless there is a terminal.
    pub stdin: Option<ProcessInput>,
    /// What it prints, on both outputs if it has a terminal.
    pub stdout: ProcessOutput,
    /// `None` with a terminal.
    pub stderr: Option<ProcessOutput>,
    /// If it has a terminal.
    pub window: Option<Window>,
    /// The process.
    pub process: ExecProcess,
}

/// Why a command does not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ExecError {
    /// What a shell would exit with: 127 if there is no such program, otherwise 126.
    pub code: i32,
    /// In the words that people search for.
    pub message: String,
}

impl ExecError {
    /// Not the program's fault.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: 126, message: message.into() }
    }
}

/// Follows the process of a command, and can end it.
#[derive(Clone)]
pub struct ExecProcess {
    exit: watch::Receiver<Option<i32>>,
    kill: Arc<dyn Fn() + Send + Sync>,
}

impl ExecProcess {
    /// A process that is followed by others: `exit` becomes its exit code, and `kill` ends it.
    pub fn new(
        exit: watch::Receiver<Option<i32>>,
        kill: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { exit, kill: Arc::new(kill) }
    }

    /// Waits until it has ended; returns its exit code, 128 plus the signal if one ended it.
    pub fn wait(&self) -> impl Future<Output = i32> + Send + 'static {
        let mut exit = self.exit.clone();
        async move { exit.wait_for(Option::is_some).await.ok().and_then(|code| *code).unwrap_or(137) }
    }

    /// Ends it, and what it has started, at once.
    pub fn kill(&self) {
        (self.kill)();
    }
}

impl ExecSession {
    /// Runs the command to its end; returns its exit code and at most `longest` bytes of what it printed.
    /// Whoever gives up waiting should have cloned [`ExecSession::process`], and kill it.
    pub async fn output(mut self, longest: usize) -> (i32, Vec<u8>) {
        drop(self.stdin.take());
        let mut text = Vec::new();
        let mut stderr: ProcessOutput =
            self.stderr.take().unwrap_or_else(|| Box::pin(tokio::io::empty()));
        let mut buffers = [vec![0; 4096], vec![0; 4096]];
        let [from_stdout, from_stderr] = &mut buffers;
        let mut open = [true; 2];
        let wait = self.process.wait();
        tokio::pin!(wait);
        let mut code = None;
        while open != [false; 2] {
            let (at, count) = tokio::select! {
                biased;
                count = self.stdout.read(from_stdout), if open[0] => (0, count),
                count = stderr.read(from_stderr), if open[1] => (1, count),
                exit = &mut wait, if code.is_none() => { code = Some(exit); continue }
                // What it wrote itself is there when it has ended; others may hold the pipe for long.
                () = time::sleep(DRAINED), if code.is_some() => break,
            };
            match count {
                Ok(0) | Err(_) => open[at] = false,
                Ok(count) => {
                    let room = longest.saturating_sub(text.len()).min(count);
                    text.extend_from_slice(if at == 0 {
                        &from_stdout[..room]
                    } else {
                        &from_stderr[..room]
                    });
                }
            }
        }
        (
            match code {
                Some(code) => code,
                None => wait.await,
            },
            text,
        )
    }
}

/// Nothing comes for so long after a process has ended: then nothing will.
pub(crate) const DRAINED: Duration = Duration::from_millis(100);

/// The run of a container that commands join.
pub(super) struct Run<'a> {
    pub(super) directory: &'a Path,
    pub(super) running: &'a Running,
    /// What is known of it since the first one.
    pub(super) entry: &'a OnceLock<Entry>,
}

impl Run<'_> {
    /// What this command needs to join it.
    pub(super) fn entry(&self, order: &ExecOrder) -> io::Result<Entry> {
        let known = match self.entry.get() {
            Some(known) => known,
            None => {
                let recipe = read_json::<Recipe>(&self.directory.join(RECIPE))?;
                let groups = joined_by(self.running.init.pid)?;
                // Looked at last: so it was not another process whose groups we read.
                if recipe.id != self.running.id || !self.running.init.is_alive() {
                    return Err(io::Error::other("the container has ended"));
                }
                self.entry.get_or_init(|| recipe.entry(groups))
            }
        };
        Ok(Entry {
            command: order.command.clone(),
            environment: exec_environment(&known.environment, order.tty),
            terminal: order.tty,
            ..known.clone()
        })
    }
}

/// Starts the command in the container whose process 1 is `init`.
pub(super) async fn start(
    forker: Arc<Forker>,
    init: OwnedFd,
    entry: Entry,
    stdin: bool,
) -> Result<ExecSession, ExecError> {
    // It is followed before anybody is told: who asked may have gone, and a process that nobody reaps
    // would keep its container from ending.
    let started = task::spawn_blocking(move || {
        let started = spawn(&forker, &init, &entry, stdin)?;
        started
            .session()
            .map_err(|error| ExecError::new(format!("cannot follow the command: {error}")))
    });
    started.await.map_err(|error| ExecError::new(error.to_string()))?
}

/// Our ends of what a command has.
struct Started {
    process: OwnedFd,
    streams: Streams,
}

enum Streams {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal { outer: OwnedFd, stdin: bool },
}

fn spawn(
    forker: &Forker,
    init: &OwnedFd,
    entry: &Entry,
    stdin: bool,
) -> Result<Started, ExecError> {
    let failed = |error: io::Error| ExecError::new(format!("cannot enter the container: {error}"));
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let helper = forker.fork(&Job::Exec, &[theirs.as_fd()]).map_err(failed)?;
    drop(theirs);
    let heard = converse(&ours, init, entry, stdin);
    drop(ours);
    let _ = reap(&helper);
    heard.map_err(failed)?
}

/// Tells the process what to run, and hears how it went.
fn converse(
    socket: &UnixStream,
    init: &OwnedFd,
    entry: &Entry,
    stdin: bool,
) -> io::Result<Result<Started, ExecError>> {
    let pipes = if entry.terminal { None } else { Some(Pipes::new(stdin)?) };
    let theirs = pipes.as_ref().map(|pipes| pipes.theirs.each_ref().map(AsFd::as_fd));
    let descriptors: Vec<_> =
        [init.as_fd()].into_iter().chain(theirs.into_iter().flatten()).collect();
    let sent = send(socket, entry, &descriptors);
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let ours = pipes.map(|pipes| pipes.ours);
    // If it is gone, it may have said why.
    let (text, descriptors) = receive_all(socket)?;
    let reports = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let reports: Vec<Report> = reports.map(serde_json::from_slice).collect::<Result<_, _>>()?;
    let mut descriptors = descriptors.into_iter();
    let process = descriptors.next();
    let gone = || io::Error::other("it ended before it ran the command");
    let streams = || {
        sent?;
        Ok(match ours {
            Some([stdout, stderr, stdin]) => Streams::Pipes {
                stdin,
                stdout: stdout.ok_or_else(gone)?,
                stderr: stderr.ok_or_else(gone)?,
            },
            None => Streams::Terminal { outer: descriptors.next().ok_or_else(gone)?, stdin },
        })
    };
    let failed = reports.into_iter().find_map(|report| match report {
        Report::Made => None,
        Report::Failed { code, message } => Some(ExecError { code, message }),
    });
    let streams = match failed {
        Some(failed) => Ok(Err(failed)),
        None => streams().map(Ok),
    };
    match (process, streams) {
        (Some(process), Ok(Ok(streams))) => Ok(Ok(Started { process, streams })),
        (process, streams) => {
            if let Some(process) = &process {
                pidfd::kill_group(process);
                let _ = reap(process);
            }
            streams.and_then(|streams| match streams {
                Ok(_) => Err(gone()),
                Err(failed) => Ok(Err(failed)),
            })
        }
    }
}

struct Pipes {
    theirs: [OwnedFd; 3],
    /// Of stdout, stderr and stdin.
    ours: [Option<OwnedFd>; 3],
}

impl Pipes {
    fn new(stdin: bool) -> io::Result<Self> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        let (stdout, stdout_end) = pipe()?;
        let (stderr, stderr_end) = pipe()?;
        let (stdin_end, stdin) = match stdin {
            true => pipe().map(|(end, stdin)| (end, Some(stdin)))?,
            false => (std::fs::File::open("/dev/null")?.into(), None),
        };
        Ok(Self {
            theirs: [stdin_end, stdout_end, stderr_end],
            ours: [Some(stdout), Some(stderr), stdin],
        })
    }
}

impl Started {
    fn session(self) -> io::Result<ExecSession> {
        let process = follow(self.process)?;
        Ok(match self.streams {
            Streams::Pipes { stdin, stdout, stderr } => ExecSession {
                stdin: stdin.map(sender).transpose()?,
                stdout: receiver(stdout)?,
                stderr: Some(receiver(stderr)?),
                window: None,
                process,
            },
            Streams::Terminal { outer, stdin } => {
                let terminal = Terminal::new(outer)?;
                ExecSession {
                    stdin: stdin.then(|| Box::pin(terminal.clone()) as ProcessInput),
                    stdout: Box::pin(terminal.clone()),
                    stderr: None,
                    window: Some(Window::new(move |columns, rows| terminal.resize(columns, rows))),
                    process,
                }
            }
        })
    }
}

fn receiver(end: OwnedFd) -> io::Result<ProcessOutput> {
    set_nonblocking(&end)?;
    Ok(Box::pin(pipe::Receiver::from_owned_fd_unchecked(end)?))
}

fn sender(end: OwnedFd) -> io::Result<ProcessInput> {
    set_nonblocking(&end)?;
    Ok(Box::pin(pipe::Sender::from_owned_fd_unchecked(end)?))
}

/// Only our end: the other one is a description of its own.
fn set_nonblocking(end: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(end, true)?)
}

/// Reaps the process when it ends, whoever waits for it.
fn follow(process: OwnedFd) -> io::Result<ExecProcess> {
    let (said, exit) = watch::channel(None);
    let to_kill = process.try_clone()?;
    task::spawn(async move {
        let waited = match process.try_clone() {
            Ok(handle) => pidfd::ended(handle).await,
            Err(error) => Err(error),
        };
        let code = match waited {
            Ok(()) => reap(&process),
            // Without a descriptor to wait for, a thread waits: it must be reaped.
            Err(_) => task::spawn_blocking(move || reap(&process))
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error))),
        };
        if let Err(error) = &code {
            warn!(%error, "cannot wait for a command in a container");
        }
        said.send_replace(Some(code.unwrap_or(255)));
    });
    Ok(ExecProcess::new(exit, move || pidfd::kill_group(&to_kill)))
}
