//! Runs a command in a container that runs already.
//!
//! The agent has threads, so [`super::forker`] makes a process for this. It is told on its standard
//! input, a socket, what to run and in which container; it joins the container's groups and namespaces,
//! makes a sibling of itself there, whose parent is the agent, hands the agent a handle on it, and is gone.
//! The sibling gives up what the container must not have, and becomes the command. The socket ends with
//! that: if it ends without a complaint, the command runs.
//!
//! What is in the container may be hostile. So it never sees our executable but through a mount that is
//! read-only (`runtime::executable`), cannot look into us, and inherits nothing but its three streams.

use std::ffi::CString;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process;

use roadstead_pod::exec::{ProgramError, program_paths};
use roadstead_pod::mandatory::ProcessLabels;
use roadstead_pod::seccomp_profile::SeccompProfile;
use roadstead_pod::security::Confinement;
use rustix::fs::fchown;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{DumpableBehavior, Uid, ioctl_tiocsctty, set_dumpable_behavior, setsid};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use serde::{Deserialize, Serialize};

use super::monitor::limit_files;
use super::process::{
    Sibling, execute, keep_files_to_ourselves, leave_keyring, open_signals, sibling,
};
use super::terminal::{self, Terminal};
use super::{Failure, Trying, confine};

/// No message carries more descriptors.
const MOST_DESCRIPTORS: usize = 4;

/// What to run, as who, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) command: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) working_directory: String,
    pub(crate) confinement: Confinement,
    /// The list of system calls that the confinement names.
    #[serde(default)]
    pub(crate) calls: Option<SeccompProfile>,
    /// What AppArmor and SELinux hold the container to.
    #[serde(default)]
    pub(crate) labels: ProcessLabels,
    /// The files by which to join the container's groups.
    pub(crate) groups: Vec<PathBuf>,
    pub(crate) open_files: Option<u64>,
    pub(crate) oom_score_adj: i32,
    pub(crate) terminal: bool,
}

/// What the agent is told, one per line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// There is a process: its handle comes with this, and the outer end of its terminal if it has one.
    Made,
    /// The command does not run.
    Failed {
        /// What a shell would exit with.
        code: i32,
        message: String,
    },
}

/// Enters the container; returns our exit code, which means nothing.
pub(crate) fn main() -> i32 {
    let Ok(agent) = fcntl_dupfd_cloexec(io::stdin(), 3).map(UnixStream::from) else { return 255 };
    match enter(&agent) {
        Ok(()) => 0,
        Err(failure) => {
            complain(&agent, 126, failure.to_string());
            255
        }
    }
}

fn complain(agent: &UnixStream, code: i32, message: String) {
    let _ = send(agent, &Report::Failed { code, message }, &[]);
}

fn enter(agent: &UnixStream) -> Result<(), Failure> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).trying(|| "hide our memory".into())?;
    let (entry, mut descriptors): (Entry, _) =
        receive(agent).trying(|| "read what to run".into())?;
    if descriptors.len() != if entry.terminal { 1 } else { 4 } {
        return Err(Failure {
            action: "read what to run".into(),
            source: io::ErrorKind::InvalidData.into(),
        });
    }
    let container = descriptors.remove(0);
    limit_files(entry.open_files);
    join_groups(&entry)?;
    join_namespaces(container.as_fd())?;
    drop(container);
    let terminal = match entry.terminal {
        true => Some(terminal::open().trying(|| "make a terminal".into())?),
        false => None,
    };
    leave_keyring();
    match sibling().trying(|| "make a process".into())? {
        Sibling::Younger => {
            let (code, message) = become_command(&entry, descriptors, terminal);
            complain(agent, code, message);
            process::exit(code)
        }
        Sibling::Elder(handle) => {
            let outer = terminal.as_ref().map(|terminal| terminal.outer.as_fd());
            let handles: Vec<_> = [handle.as_fd()].into_iter().chain(outer).collect();
            send(agent, &Report::Made, &handles).trying(|| "hand the process over".into())
        }
    }
}

/// From here on what we use is counted as the container's.
fn join_groups(entry: &Entry) -> Result<(), Failure> {
    for file in &entry.groups {
        // Zero is whoever writes it.
        fs::write(file, "0").trying(|| format!("join {}", file.display()))?;
    }
    // To be spared more than we are ourselves is a privilege, which we may not have.
    let _ = fs::write("/proc/self/oom_score_adj", entry.oom_score_adj.to_string());
    Ok(())
}

fn join_namespaces(container: BorrowedFd<'_>) -> Result<(), Failure> {
    use ThreadNameSpaceType as Kind;
    let own = Kind::MOUNT | Kind::PROCESS_ID | Kind::CONTROL_GROUP;
    let of_pod =
        Kind::NETWORK | Kind::HOST_NAME_AND_NIS_DOMAIN_NAME | Kind::INTER_PROCESS_COMMUNICATION;
    move_into_thread_name_spaces(container, own | of_pod).trying(|| "enter the container".into())
}

/// Returns only if the command cannot be run: what a shell would exit with, and why.
fn become_command(
    entry: &Entry,
    streams: Vec<OwnedFd>,
    terminal: Option<Terminal>,
) -> (i32, String) {
    if let Err(failure) = prepare(entry, streams, terminal) {
        return (126, failure.to_string());
    }
    run(&entry.command, &entry.environment)
}

fn prepare(
    entry: &Entry,
    streams: Vec<OwnedFd>,
    terminal: Option<Terminal>,
) -> Result<(), Failure> {
    setsid().trying(|| "begin a session".into())?;
    if let Some(terminal) = &terminal {
        ioctl_tiocsctty(&terminal.inner).trying(|| "take the terminal".into())?;
    }
    let inner = terminal.as_ref().map(|terminal| &terminal.inner);
    let user = Uid::from_raw(entry.confinement.user);
    for stream in streams.iter().chain(inner) {
        // So that /dev/stdout can be opened by whoever the command runs as. The null device is everybody's.
        if !is_null(stream) {
            fchown(stream, Some(user), None).trying(|| "hand the streams over".into())?;
        }
    }
    let [stdin, stdout, stderr] = match (&streams[..], inner) {
        (_, Some(inner)) => [inner; 3],
        ([stdin, stdout, stderr], None) => [stdin, stdout, stderr],
        _ => {
            return Err(Failure {
                action: "find the streams".into(),
                source: io::ErrorKind::InvalidData.into(),
            });
        }
    };
    let put = || -> rustix::io::Result<()> {
        rustix::stdio::dup2_stdin(stdin)?;
        rustix::stdio::dup2_stdout(stdout)?;
        rustix::stdio::dup2_stderr(stderr)
    };
    put().trying(|| "set the streams".into())?;
    drop((streams, terminal));
    keep_files_to_ourselves().trying(|| "keep our files to ourselves".into())?;
    enter_directory(&entry.working_directory)?;
    confine::enter_beside(&entry.confinement, entry.calls.as_ref(), &entry.labels)?;
    open_signals().trying(|| "open signals".into())
}

fn is_null(stream: &OwnedFd) -> bool {
    let found = rustix::fs::fstat(stream);
    found.is_ok_and(|found| {
        rustix::fs::FileType::from_raw_mode(found.st_mode).is_char_device()
            && found.st_rdev == rustix::fs::makedev(1, 3)
    })
}

/// A link in the container may lead anywhere, so where we have come to is looked at.
fn enter_directory(path: &str) -> Result<(), Failure> {
    let action = || format!("chdir to cwd ({path:?}) set in config.json");
    std::env::set_current_dir(path).trying(action)?;
    let here = rustix::process::getcwd(Vec::new()).trying(action)?;
    match here.as_bytes().first() {
        Some(b'/') => Ok(()),
        _ => Err(Failure {
            action: action(),
            source: io::Error::other("it is outside of the container"),
        }),
    }
}

fn run(command: &[String], environment: &[(String, String)]) -> (i32, String) {
    let program = command.first().map_or("", String::as_str);
    let text = |text: String| CString::new(text).ok();
    let arguments: Option<Vec<_>> = command.iter().cloned().map(text).collect();
    let variables = environment.iter().map(|(name, value)| text(format!("{name}={value}")));
    let variables: Option<Vec<_>> = variables.collect();
    let (Some(arguments), Some(variables)) = (arguments, variables) else {
        return (126, format!("exec: {program:?}: invalid argument"));
    };
    let mut worst = ProgramError::Missing;
    for path in program_paths(program, environment).into_iter().filter_map(text) {
        let error = execute(&path, &arguments, &variables);
        worst = match error.raw_os_error().unwrap_or_default() {
            libc::ENOENT | libc::ENOTDIR => continue,
            libc::EACCES => ProgramError::Forbidden,
            libc::ENOEXEC => ProgramError::Format,
            number => ProgramError::Other(number),
        };
        if worst != ProgramError::Forbidden {
            break;
        }
    }
    (worst.code(), worst.words(program))
}

/// Sends a message and descriptors. A message is one line, or all there is.
pub(crate) fn send(
    socket: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut text = serde_json::to_vec(message)?;
    text.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
    io::Write::write_all(&mut &*socket, &text[sent..])
}

/// Receives one message and its descriptors, until whoever sends it sends no more.
fn receive<T: for<'de> Deserialize<'de>>(socket: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let (text, descriptors) = receive_all(socket)?;
    Ok((serde_json::from_slice(&text)?, descriptors))
}

/// Receives everything, until the other side is closed.
pub(crate) fn receive_all(socket: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut text = Vec::new();
    let mut descriptors = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let (count, more) = receive_some(socket, &mut buffer)?;
        descriptors.extend(more);
        if count == 0 {
            return Ok((text, descriptors));
        }
        text.extend_from_slice(&buffer[..count]);
    }
}

/// Receives what has come, and its descriptors; nothing, if the other side is closed.
pub(crate) fn receive_some(
    socket: &UnixStream,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(buffer)];
    let received = loop {
        match recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let messages = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((received.bytes, messages.flatten().collect()))
}
