//! Looking at a container that runs, and typing: the agent's side. The other one is the monitor's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::termios::{Winsize, tcsetwinsize};
use tokio::{net, task};

use super::exec::{ExecError, ProcessInput, ProcessOutput};
use crate::container::attach::{Reply, Request, SOCKET, VERSION, socket};
use crate::container::exec::{receive_all, send};

/// A monitor answers at once, unless its machine is in trouble.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Which streams of a container are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOrder {
    /// Its input, if it has one.
    pub stdin: bool,
    /// What it prints from now on.
    pub stdout: bool,
    /// The same; nothing with a terminal.
    pub stderr: bool,
}

/// The streams of a container that runs. It goes on when this is dropped.
#[derive(Default)]
pub struct AttachSession {
    /// If it was asked for. Dropping it is the end of the input if the container has it once.
    pub stdin: Option<ProcessInput>,
    /// If it was asked for; it ends with the container.
    pub stdout: Option<ProcessOutput>,
    /// If it was asked for; it ends with the container.
    pub stderr: Option<ProcessOutput>,
    /// If the container has a terminal.
    pub window: Option<Window>,
}

/// What a terminal is shown in.
#[derive(Clone)]
pub struct Window(Arc<dyn Fn(u16, u16) + Send + Sync>);

impl Window {
    /// One whose columns and rows are told by this.
    pub(super) fn new(resize: impl Fn(u16, u16) + Send + Sync + 'static) -> Self {
        Self(Arc::new(resize))
    }

    /// That of a terminal.
    fn of(terminal: OwnedFd) -> Self {
        Self::new(move |columns, rows| {
            let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
            // Nobody may be there any more.
            let _ = tcsetwinsize(&terminal, size);
        })
    }

    /// Tells the programs how large it is.
    pub fn resize(&self, columns: u16, rows: u16) {
        (self.0)(columns, rows);
    }
}

/// Joins the audience of the container in this directory.
pub(super) async fn attach(
    directory: PathBuf,
    order: AttachOrder,
) -> Result<AttachSession, ExecError> {
    let asked = task::spawn_blocking(move || ask(&directory, order));
    let failed = |error: io::Error| ExecError::new(format!("cannot attach: {error}"));
    asked.await.map_err(|error| ExecError::new(error.to_string()))?.map_err(failed)
}

fn ask(directory: &Path, order: AttachOrder) -> io::Result<AttachSession> {
    let monitor = socket::connect(directory, SOCKET)?;
    monitor.set_read_timeout(Some(ANSWERED_WITHIN))?;
    monitor.set_write_timeout(Some(ANSWERED_WITHIN))?;
    let AttachOrder { stdin, stdout, stderr } = order;
    let pairs = [stdin, stdout, stderr]
        .map(|wanted| if wanted { UnixStream::pair().map(Some) } else { Ok(None) });
    let [stdin_pair, stdout_pair, stderr_pair] = pairs;
    let pairs = [stdin_pair?, stdout_pair?, stderr_pair?];
    let theirs: Vec<_> = pairs.iter().flatten().map(|(_, theirs)| theirs.as_fd()).collect();
    send(&monitor, &Request { version: VERSION, stdin, stdout, stderr }, &theirs)?;
    monitor.shutdown(std::net::Shutdown::Write)?;
    let (text, mut descriptors) = receive_all(&monitor)?;
    if let Reply::Refused(why) = serde_json::from_slice(&text)? {
        return Err(io::Error::other(why));
    }
    let [stdin, stdout, stderr] = pairs.map(|pair| pair.map(|(ours, _)| ours));
    let output = |ours| -> io::Result<ProcessOutput> { Ok(Box::pin(followed(ours)?)) };
    let input = |ours| -> io::Result<ProcessInput> { Ok(Box::pin(followed(ours)?)) };
    Ok(AttachSession {
        stdin: stdin.map(input).transpose()?,
        stdout: stdout.map(output).transpose()?,
        stderr: stderr.map(output).transpose()?,
        window: descriptors.pop().map(Window::of),
    })
}

fn followed(ours: UnixStream) -> io::Result<net::UnixStream> {
    ours.set_nonblocking(true)?;
    net::UnixStream::from_std(ours)
}
