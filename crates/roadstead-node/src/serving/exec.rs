//! `kubectl exec` and `attach`: a process in a container, and the connection of whoever looks at it.

use std::future::{self, Future};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use roadstead_pod::pod_name::PodName;
use roadstead_streams::channel::{Channel, TerminalSize};
use roadstead_streams::command::Wanted;
use roadstead_streams::connection::{CommandConnection, CommandEvent};
use roadstead_streams::outcome::Outcome;
use roadstead_streams::protocol::{choose_channel, choose_command, commands};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time;

use super::query::Query;
use super::upgrade::Upgrade;
use super::{Answer, GONE, PodServer, Refusal, Target};
use crate::runtime::attach::{AttachOrder, AttachSession};
use crate::runtime::exec::{
    DRAINED, ExecOrder, ExecProcess, ExecSession, ProcessInput, ProcessOutput,
};

/// A client opens the streams of a command within this time.
const GATHERED: Duration = Duration::from_secs(30);
const PIECE: usize = 32 * 1024;
/// Messages that wait for a process that does not read.
const MOST_INPUT: usize = 16;
/// Nothing is read from a client that owes us so much reading.
const MOST_PENDING: usize = 256 * 1024;

impl PodServer {
    pub(super) fn exec(
        &self,
        target: &Target,
        query: &Query,
        request: Request<Incoming>,
    ) -> Result<Answer, Refusal> {
        let wanted = wanted(query)?;
        let command: Vec<_> = query.all("command").map(str::to_owned).collect();
        if command.is_empty() {
            return Err(Refusal::bad("you must specify a command"));
        }
        let (pod, container) = (PodName::of(&target.pod), target.container.clone());
        if self.containers.log(&pod, &container).is_none_or(|log| (log.ended)()) {
            return Err(missing(&container));
        }
        let order = ExecOrder { command, stdin: wanted.stdin, tty: wanted.tty, output_only: false };
        let containers = self.containers.clone();
        let start = async move {
            let session = containers.exec(&pod, &container, order).await;
            let session = session.map(ProcessStreams::from);
            session.map_err(|error| format!("error executing command in container: {error}"))
        };
        converse(wanted, request, start)
    }

    pub(super) async fn attach(
        &self,
        target: &Target,
        query: &Query,
        request: Request<Incoming>,
    ) -> Result<Answer, Refusal> {
        let wanted = wanted(query)?;
        // What cannot be is said before there is nothing but streams.
        Upgrade::of(&request)?;
        let (pod, container) = (PodName::of(&target.pod), target.container.clone());
        if self.containers.log(&pod, &container).is_none_or(|log| (log.ended)()) {
            return Err(missing(&container));
        }
        let Wanted { stdin, stdout, stderr, .. } = wanted;
        // Who only types is there until the container has ended, too.
        let order = AttachOrder { stdin, stdout: stdout || !stderr, stderr };
        let session = self.containers.attach(&pod, &container, order).await;
        let session = session
            .map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        converse(wanted, request, async { Ok(ProcessStreams::from(session)) })
    }
}

fn missing(container: &str) -> Refusal {
    let missing = format!("container not found ({container:?})");
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, missing)
}

fn wanted(query: &Query) -> Result<Wanted, Refusal> {
    let wanted = Wanted {
        stdin: query.has("input"),
        stdout: query.has("output"),
        stderr: query.has("error"),
        tty: query.has("tty"),
    };
    match wanted.is_nothing() {
        true => Err(Refusal::bad("you must specify at least 1 of stdin, stdout, stderr")),
        false => Ok(wanted),
    }
}

/// Agrees with the client on a protocol; then the process may start.
fn converse(
    wanted: Wanted,
    request: Request<Incoming>,
    start: impl Future<Output = Result<ProcessStreams, String>> + Send + 'static,
) -> Result<Answer, Refusal> {
    let upgrade = Upgrade::of(&request)?;
    let chosen = match &upgrade {
        Upgrade::WebSocket { .. } => choose_channel(&upgrade.asked())
            .map(|(name, protocol)| (name, CommandConnection::channels(protocol, &wanted))),
        Upgrade::Spdy { .. } => choose_command(&upgrade.asked())
            .map(|(name, version)| (Some(name), CommandConnection::streams(version, &wanted))),
    };
    let Some((version, connection)) = chosen else {
        return Ok(Answer::from(upgrade.refused(commands())));
    };
    let upgraded = hyper::upgrade::on(request);
    let then = async move {
        if let Ok(io) = upgraded.await {
            Conversation::new(connection, wanted).run(TokioIo::new(io), start).await;
        }
    };
    Ok(Answer { response: upgrade.accepted(version), then: Some(Box::pin(then)) })
}

/// Our ends of what a process reads and prints.
struct ProcessStreams {
    stdin: Option<ProcessInput>,
    stdout: Option<ProcessOutput>,
    stderr: Option<ProcessOutput>,
    /// If it has a terminal.
    resize: Option<Box<dyn Fn(TerminalSize) + Send>>,
    /// If its end is the end of the conversation, whoever else has its outputs.
    process: Option<ExecProcess>,
}

impl From<ExecSession> for ProcessStreams {
    fn from(session: ExecSession) -> Self {
        let ExecSession { stdin, stdout, stderr, window, process } = session;
        let resize = window.map(|window| {
            let resize = move |size: TerminalSize| window.resize(size.width, size.height);
            Box::new(resize) as Box<dyn Fn(TerminalSize) + Send>
        });
        Self { stdin, stdout: Some(stdout), stderr, resize, process: Some(process) }
    }
}

impl From<AttachSession> for ProcessStreams {
    fn from(session: AttachSession) -> Self {
        let AttachSession { stdin, stdout, stderr, window } = session;
        let resize = window.map(|window| {
            let resize = move |size: TerminalSize| window.resize(size.width, size.height);
            Box::new(resize) as Box<dyn Fn(TerminalSize) + Send>
        });
        Self { stdin, stdout, stderr, resize, process: None }
    }
}

/// What the command has for its client.
enum Output {
    Data(Channel, Bytes),
    End(Outcome),
}

/// The client's ends of a command's streams.
struct Client {
    input: mpsc::Receiver<Bytes>,
    sizes: watch::Receiver<Option<TerminalSize>>,
    output: mpsc::Sender<Output>,
}

/// A command and its client.
struct Conversation {
    connection: Mutex<CommandConnection>,
    wanted: Wanted,
    /// There is something to write.
    changed: Notify,
    /// Something was written.
    written: Notify,
    /// The client says that it goes; it hears what there is to say.
    leaving: AtomicBool,
    /// All streams are there.
    ready: Notify,
}

impl Conversation {
    fn new(connection: CommandConnection, wanted: Wanted) -> Self {
        let (changed, written, ready) = (Notify::new(), Notify::new(), Notify::new());
        let leaving = AtomicBool::new(false);
        Self { connection: Mutex::new(connection), wanted, changed, written, leaving, ready }
    }

    fn connection(&self) -> MutexGuard<'_, CommandConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the command has ended and the client knows it, or the client is gone. Then nothing of the
    /// command is held any more.
    async fn run(
        &self,
        io: impl AsyncRead + AsyncWrite,
        start: impl Future<Output = Result<ProcessStreams, String>>,
    ) {
        let (reader, writer) = tokio::io::split(io);
        let (to_input, input) = mpsc::channel(MOST_INPUT);
        let (to_sizes, sizes) = watch::channel(None);
        let (output, from_output) = mpsc::channel(4);
        let client = Client { input, sizes, output };
        self.ready_if_all_there();
        let listen = self.listen(reader, to_input, to_sizes);
        tokio::pin!(listen);
        let command = async {
            self.command(start, client).await;
            future::pending::<()>().await;
        };
        let ended = tokio::select! {
            () = &mut listen => false,
            ended = self.write(writer, from_output) => ended,
            () = command => false,
        };
        if ended {
            self.leaving.store(true, Ordering::Relaxed);
            // Whoever ends first may cut off what is still on its way.
            let _ = time::timeout(GONE, listen).await;
        }
    }

    fn ready_if_all_there(&self) {
        if self.connection().is_ready() {
            self.ready.notify_one();
        }
    }

    /// Takes in what the client sends, until it is gone.
    async fn listen(
        &self,
        mut reader: impl AsyncRead + Unpin,
        input: mpsc::Sender<Bytes>,
        sizes: watch::Sender<Option<TerminalSize>>,
    ) {
        let mut input = Some(input);
        let mut buffer = vec![0; PIECE];
        loop {
            while self.connection().pending() > MOST_PENDING {
                self.written.notified().await;
            }
            let count = match reader.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(count) => count,
            };
            let received = self.connection().receive(&buffer[..count]);
            self.changed.notify_one();
            self.ready_if_all_there();
            let Ok(events) = received else { return };
            for event in events {
                match event {
                    CommandEvent::Input(bytes) => {
                        if let Some(to) = &input
                            && to.send(bytes).await.is_err()
                        {
                            input = None; // Nobody reads it any more.
                        }
                    }
                    CommandEvent::InputEnd => input = None,
                    CommandEvent::Resize(size) => drop(sizes.send_replace(Some(size))),
                    CommandEvent::Gone => return self.leave().await,
                }
            }
        }
    }

    /// Lets the client hear that we know that it goes, if it does not take long.
    async fn leave(&self) {
        if self.leaving.swap(true, Ordering::Relaxed) {
            return; // We were first.
        }
        self.changed.notify_one();
        time::sleep(GONE).await;
    }

    /// Writes what there is for the client; returns whether it was told the end.
    async fn write(
        &self,
        mut writer: impl AsyncWrite + Unpin,
        mut output: mpsc::Receiver<Output>,
    ) -> bool {
        loop {
            let bytes = self.connection().take_output();
            if !bytes.is_empty() {
                if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
                    return false;
                }
                self.written.notify_one();
                continue;
            }
            if self.leaving.load(Ordering::Relaxed) {
                return false;
            }
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                next = output.recv() => match next {
                    Some(Output::Data(channel, bytes)) => self.connection().send(channel, bytes),
                    Some(Output::End(outcome)) => self.connection().end(&outcome),
                    None => return true,
                }
            }
        }
    }

    /// Runs the command when all streams are there.
    async fn command(
        &self,
        start: impl Future<Output = Result<ProcessStreams, String>>,
        client: Client,
    ) {
        let output = client.output.clone();
        let outcome = match time::timeout(GATHERED, self.ready.notified()).await {
            Err(_) => Outcome::Failed("timed out waiting for client to create streams".to_owned()),
            Ok(()) => match start.await {
                Ok(streams) => Outcome::Exited(attend(streams, self.wanted, client).await),
                Err(why) => Outcome::Failed(why),
            },
        };
        let _ = output.send(Output::End(outcome)).await;
    }
}

/// Passes on what goes in and out; returns the exit code when all that was printed has been passed on. If
/// only somebody looked on, all went well.
async fn attend(streams: ProcessStreams, wanted: Wanted, client: Client) -> i32 {
    let ProcessStreams { stdin, stdout, stderr, resize: size_of, process } = streams;
    let Client { mut input, mut sizes, output } = client;
    let feed = async move {
        if let Some(mut stdin) = stdin {
            while let Some(bytes) = input.recv().await {
                if stdin.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        }
        drop(input);
        future::pending::<()>().await;
    };
    let resize = async move {
        while sizes.changed().await.is_ok() {
            if let (Some(resize), Some(size)) = (&size_of, *sizes.borrow_and_update()) {
                resize(size);
            }
        }
        future::pending::<()>().await;
    };
    let to = |channel, wanted: bool| wanted.then(|| (output.clone(), channel));
    let drained = async {
        tokio::join!(
            copy(stdout, process.as_ref(), to(Channel::Stdout, wanted.stdout)),
            copy(stderr, process.as_ref(), to(Channel::Stderr, wanted.stderr)),
        );
        match &process {
            Some(process) => process.wait().await,
            None => 0,
        }
    };
    tokio::select! {
        code = drained => code,
        () = feed => unreachable!("it waits for ever"),
        () = resize => unreachable!("it waits for ever"),
    }
}

/// Passes output on until it ends, or until its process has ended and nothing more comes. If nobody wants
/// it, it is thrown away.
async fn copy(
    from: Option<ProcessOutput>,
    process: Option<&ExecProcess>,
    to: Option<(mpsc::Sender<Output>, Channel)>,
) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; PIECE];
    loop {
        let over = async {
            match process {
                Some(process) => process.wait().await,
                None => future::pending().await,
            };
            time::sleep(DRAINED).await;
        };
        let count = tokio::select! {
            biased;
            count = from.read(&mut buffer) => count,
            () = over => return,
        };
        let Ok(count @ 1..) = count else { return };
        if let Some((to, channel)) = &to {
            let bytes = Bytes::copy_from_slice(&buffer[..count]);
            if to.send(Output::Data(*channel, bytes)).await.is_err() {
                return;
            }
        }
    }
}
