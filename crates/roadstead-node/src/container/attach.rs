//! Who looks at a container while it runs, and types: the monitor's side of `kubectl attach`.
//!
//! The agent connects to a socket in the container's directory, says what it wants, and passes a socket for
//! each stream. It gets the terminal itself, if there is one, to tell it a size. Then that connection ends;
//! the agent leaves by closing its sockets, also when it dies. What was printed before is not repeated, but
//! where a container waits for its one client (`stdinOnce`): that one sees it from its beginning.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use roadstead_pod::container_config::ContainerStreams;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::exec::{receive_all, send};
use super::log::Stream;
use super::streams::OuterStreams;

/// In a container's directory.
pub(crate) const SOCKET: &str = "attach.sock";

/// The only way to ask, so far.
pub(crate) const VERSION: u32 = 1;

/// Who takes nothing for so long is let go, so that the container can go on.
const PATIENCE: Duration = Duration::from_secs(30);
/// An agent says what it wants at once.
const ASKED_WITHIN: Duration = Duration::from_secs(5);
/// How many streams are passed on at the same time, each way.
const MOST: usize = 64;
/// How much of each stream is kept for the one client of a container.
const KEPT: usize = 64 * 1024;

/// What an agent wants; a socket comes with it for each, in this order.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) version: u32,
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// What it is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The terminal comes with it, if there is one.
    Attached,
    Refused(String),
}

/// Whoever looks on.
pub(super) struct Audience {
    streams: ContainerStreams,
    terminal: Option<OwnedFd>,
    state: Mutex<State>,
    typing: AtomicUsize,
    over: AtomicBool,
    patience: Duration,
}

struct State {
    /// `None` if it has none, or none any more.
    stdin: Option<Arc<File>>,
    shown: Vec<(Stream, Arc<UnixStream>)>,
    ended: Vec<Stream>,
    /// What the one client has not seen yet; `None` if there is none, or when it came.
    unseen: Option<Vec<(Stream, Vec<u8>)>>,
}

impl State {
    /// Keeps what is printed before the one client is there: the last of it, so that nothing is missing
    /// between that and what follows.
    fn keep(&mut self, stream: Stream, bytes: &[u8]) {
        let Some(unseen) = &mut self.unseen else { return };
        let at = unseen.iter().position(|(of, _)| *of == stream).unwrap_or_else(|| {
            unseen.push((stream, Vec::new()));
            unseen.len() - 1
        });
        let kept = &mut unseen[at].1;
        kept.extend_from_slice(bytes);
        kept.drain(..kept.len().saturating_sub(KEPT));
    }

    fn unseen_of(&self, stream: Stream) -> &[u8] {
        let kept = self.unseen.iter().flatten().find(|(of, _)| *of == stream);
        kept.map_or(&[], |(_, bytes)| bytes)
    }
}

impl Audience {
    /// Of a container with these streams; what it prints is for others to read.
    pub(super) fn new(
        wanted: ContainerStreams,
        outer: OuterStreams,
    ) -> (Self, Vec<(Stream, OwnedFd)>) {
        let stdin = outer.stdin.map(|stdin| Arc::new(File::from(stdin)));
        let audience = Self {
            streams: wanted,
            terminal: outer.terminal,
            state: Mutex::new(State {
                stdin,
                shown: Vec::new(),
                ended: Vec::new(),
                unseen: wanted.stdin_once.then(Vec::new),
            }),
            typing: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            patience: PATIENCE,
        };
        (audience, outer.outputs)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers agents, for ever.
    pub(super) fn serve(self: Arc<Self>, listener: &UnixListener, stack: usize) {
        loop {
            let answered = listener.accept().and_then(|(agent, _)| self.answer(&agent, stack));
            if answered.is_err() {
                // There may be too few descriptors just now.
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Shows what was printed.
    pub(super) fn show(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.state();
        state.keep(stream, bytes);
        let shown: Vec<_> = state.shown.iter().filter(|(of, _)| *of == stream).cloned().collect();
        drop(state);
        for (_, socket) in shown {
            if (&*socket).write_all(bytes).is_err() {
                self.state().shown.retain(|(_, known)| !Arc::ptr_eq(known, &socket));
            }
        }
    }

    /// Nothing more is printed on this stream.
    pub(super) fn end(&self, stream: Stream) {
        let mut state = self.state();
        state.ended.push(stream);
        state.shown.retain(|(of, _)| *of != stream);
    }

    /// All processes have ended.
    pub(super) fn set_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn answer(self: &Arc<Self>, agent: &UnixStream, stack: usize) -> io::Result<()> {
        agent.set_read_timeout(Some(ASKED_WITHIN))?;
        agent.set_write_timeout(Some(ASKED_WITHIN))?;
        let (text, sockets) = receive_all(agent)?;
        let reply = match serde_json::from_slice(&text) {
            Ok(request) => self.admit(&request, sockets, stack),
            Err(error) => Err(io::Error::other(error)),
        };
        match reply {
            Ok(()) => {
                let terminal: Vec<_> = self.terminal.iter().map(AsFd::as_fd).collect();
                send(agent, &Reply::Attached, &terminal)
            }
            Err(error) => send(agent, &Reply::Refused(error.to_string()), &[]),
        }
    }

    fn admit(
        self: &Arc<Self>,
        request: &Request,
        sockets: Vec<OwnedFd>,
        stack: usize,
    ) -> io::Result<()> {
        if request.version != VERSION {
            return Err(io::Error::other("it was started by another version of the agent"));
        }
        let mut sockets = sockets.into_iter().map(UnixStream::from);
        let mut next = |wanted: bool| {
            let missing = || io::Error::other("a socket is missing");
            wanted.then(|| sockets.next().ok_or_else(missing)).transpose()
        };
        let (stdin, stdout, stderr) =
            (next(request.stdin)?, next(request.stdout)?, next(request.stderr)?);
        for (stream, socket) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
            if let Some(socket) = socket {
                self.admit_to(stream, socket)?;
            }
        }
        self.state().unseen = None;
        stdin.map_or(Ok(()), |stdin| self.clone().listen_to(stdin, stack))
    }

    fn admit_to(&self, stream: Stream, socket: UnixStream) -> io::Result<()> {
        socket.set_write_timeout(Some(self.patience))?;
        let mut state = self.state();
        // Of those who have left, we hear only when there is something to show.
        state.shown.retain(|(_, socket)| !has_left(socket));
        if state.shown.len() >= MOST {
            return Err(io::Error::other("too many look on already"));
        }
        // A terminal has one output.
        let exists = stream == Stream::Stdout || !self.streams.terminal;
        // There is room for it in a socket that nothing was written to.
        (&socket).write_all(state.unseen_of(stream))?;
        if exists && !state.ended.contains(&stream) {
            state.shown.push((stream, Arc::new(socket)));
        }
        Ok(())
    }

    fn listen_to(self: Arc<Self>, from: UnixStream, stack: usize) -> io::Result<()> {
        if self.typing.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.typing.fetch_sub(1, Ordering::Relaxed);
            return Err(io::Error::other("too many type already"));
        }
        let listen = move || {
            self.pass_on(from);
            self.typing.fetch_sub(1, Ordering::Relaxed);
        };
        thread::Builder::new().stack_size(stack).spawn(listen).map(drop)
    }

    /// Passes on what is typed, until it ends.
    fn pass_on(&self, mut from: UnixStream) {
        let Some(stdin) = self.state().stdin.clone() else { return };
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if (&*stdin).write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        if self.streams.stdin_once && self.terminal.is_none() {
            self.state().stdin = None;
        }
    }
}

/// An agent never writes to what it reads from.
fn has_left(socket: &UnixStream) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    recv(socket, &mut [0; 1][..], flags) != Err(rustix::io::Errno::AGAIN)
}

/// Sockets in directories whose paths are longer than a socket's may be.
pub(crate) mod socket {
    use std::fs;
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};

    use rustix::fs::{Mode, OFlags, open};

    fn short(directory: &Path, name: &str) -> io::Result<(OwnedFd, PathBuf)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(directory, flags, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()));
        Ok((directory, path))
    }

    /// Makes a socket that only we may connect to, in the place of an older one.
    pub(crate) fn listen(directory: &Path, name: &str) -> io::Result<UnixListener> {
        let (_open, path) = short(directory, name)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Connects to it.
    pub(crate) fn connect(directory: &Path, name: &str) -> io::Result<UnixStream> {
        let (_open, path) = short(directory, name)?;
        UnixStream::connect(path)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_reads_nothing_is_let_go() {
        let (audience, _) = Audience::new(ContainerStreams::default(), OuterStreams::default());
        let audience = Audience { patience: Duration::from_millis(50), ..audience };
        let join = |stream| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            audience.admit_to(stream, ours).unwrap();
            theirs
        };
        let (_silent, mut eager) = (join(Stream::Stdout), join(Stream::Stdout));
        let (_other, gone) = (join(Stream::Stderr), join(Stream::Stderr));
        let piece = vec![b'x'; 1 << 16];
        thread::scope(|scope| {
            let read = scope.spawn(move || {
                let mut all = Vec::new();
                eager.read_to_end(&mut all).map(|_| all.len())
            });
            let begin = Instant::now();
            for _ in 0..100 {
                audience.show(Stream::Stdout, &piece);
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "it goes on");
            audience.end(Stream::Stdout);
            assert_eq!(read.join().unwrap().unwrap(), 100 << 16, "others hear everything");
        });
        // Who has left makes room when the next one comes.
        drop(gone);
        let _next = join(Stream::Stderr);
        assert_eq!(audience.state().shown.len(), 2);
        // After the end there is nothing to see.
        let mut late = join(Stream::Stdout);
        assert_eq!(late.read(&mut [0]).unwrap(), 0);
    }
    #[test]
    fn the_one_client_sees_the_beginning() {
        let once = ContainerStreams { stdin: true, stdin_once: true, terminal: false };
        let (audience, _) = Audience::new(once, OuterStreams::default());
        let audience = Arc::new(audience);
        let join = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let request = Request { version: VERSION, stdin: false, stdout: true, stderr: false };
            audience.admit(&request, vec![ours.into()], 1 << 16).unwrap();
            theirs
        };
        audience.show(Stream::Stdout, &vec![b'a'; 2 * KEPT]);
        audience.show(Stream::Stdout, b"before,");
        let mut first = join();
        audience.show(Stream::Stdout, b" after");
        let mut second = join();
        audience.end(Stream::Stdout);
        let (mut all, mut rest) = (String::new(), String::new());
        first.read_to_string(&mut all).unwrap();
        second.read_to_string(&mut rest).unwrap();
        assert!(all.ends_with("aabefore, after"), "{}", &all[all.len() - 30..]);
        assert_eq!((all.len(), rest.as_str()), (KEPT + " after".len(), ""));
        // Also if it has ended.
        let (ended, _) = Audience::new(once, OuterStreams::default());
        ended.show(Stream::Stdout, b"all");
        ended.end(Stream::Stdout);
        let (ours, mut late) = UnixStream::pair().unwrap();
        ended.admit_to(Stream::Stdout, ours).unwrap();
        let mut all = String::new();
        late.read_to_string(&mut all).unwrap();
        assert_eq!(all, "all");
    }
}
