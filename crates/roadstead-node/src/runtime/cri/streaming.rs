//! The streams of commands and containers, which a runtime serves at an address of its own.
//!
//! It is the kubelet's side of the protocol that our own agent serves: SPDY/3.1, a stream for each of the
//! process's, and one on which it says how it ended.

use std::io;

use bytes::{Bytes, BytesMut};
use roadstead_streams::spdy::frame::{Decoder, Encoder, Frame, Headers};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::runtime::attach::{AttachSession, Window};
use crate::runtime::exec::{ExecError, ExecProcess, ExecSession, ProcessInput, ProcessOutput};

/// What is on its way between a process and whoever looks at it.
const UNDERWAY: usize = 64 * 1024;
/// No answer to an upgrade is longer, and no word about the end.
const LONGEST_ANSWER: usize = 16 * 1024;

/// Which streams are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedStreams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// A connection whose streams are carried by a task.
struct Connected {
    stdin: Option<DuplexStream>,
    stdout: Option<DuplexStream>,
    stderr: Option<DuplexStream>,
    window: Option<Window>,
    exit: watch::Receiver<Option<i32>>,
    stop: CancellationToken,
}

/// The streams of a command that the runtime starts when it is asked for them.
pub(super) async fn exec(url: &str, wanted: WantedStreams) -> Result<ExecSession, ExecError> {
    let connected = connect(url, wanted).await?;
    let stop = connected.stop;
    Ok(ExecSession {
        stdin: connected.stdin.map(|stream| Box::pin(stream) as ProcessInput),
        stdout: Box::pin(connected.stdout.unwrap_or_else(|| duplex(1).0)),
        stderr: connected.stderr.map(|stream| Box::pin(stream) as ProcessOutput),
        window: connected.window,
        // A runtime ends no command that it has started; what reads from us or writes to us notices.
        process: ExecProcess::new(connected.exit, move || stop.cancel()),
    })
}

/// The streams of a container.
pub(super) async fn attach(url: &str, wanted: WantedStreams) -> Result<AttachSession, ExecError> {
    let connected = connect(url, wanted).await?;
    Ok(AttachSession {
        stdin: connected.stdin.map(|stream| Box::pin(stream) as ProcessInput),
        stdout: connected.stdout.map(|stream| Box::pin(stream) as ProcessOutput),
        stderr: connected.stderr.map(|stream| Box::pin(stream) as ProcessOutput),
        window: connected.window,
    })
}

async fn connect(url: &str, wanted: WantedStreams) -> Result<Connected, ExecError> {
    let failed = |error: io::Error| ExecError::new(format!("the runtime's streams: {error}"));
    let (socket, early) = upgrade(url).await.map_err(failed)?;
    let (exit, followed) = watch::channel(None);
    let (resize, sizes) = mpsc::channel(4);
    let stop = CancellationToken::new();
    let pair = |wanted: bool| match wanted {
        true => {
            let (ours, theirs) = duplex(UNDERWAY);
            (Some(ours), Some(theirs))
        }
        false => (None, None),
    };
    let (stdin, stdin_end) = pair(wanted.stdin);
    let (stdout, stdout_end) = pair(wanted.stdout);
    let (stderr, stderr_end) = pair(wanted.stderr && !wanted.tty);
    let mut carrier = Carrier {
        socket,
        decoder: Decoder::default(),
        encoder: Encoder::default(),
        output: BytesMut::new(),
        streams: Streams::default(),
        stdin: stdin_end,
        stdout: stdout_end,
        stderr: stderr_end,
        verdict: Vec::new(),
    };
    carrier.open(wanted);
    carrier.decoder.push(&early);
    let ended = stop.clone();
    tokio::spawn(async move {
        let carried = tokio::select! {
            carried = carrier.carry(sizes) => carried,
            () = ended.cancelled() => Ok(()),
        };
        let code = match carried {
            Ok(()) => exit_code(&carrier.verdict),
            Err(_) => 137,
        };
        exit.send_replace(Some(code));
    });
    let window = wanted.tty.then(|| {
        Window::new(move |columns, rows| {
            // Only the last of many matters, and that one is sent again by whoever moves a window.
            let _ = resize.try_send((columns, rows));
        })
    });
    Ok(Connected { stdin, stdout, stderr, window, exit: followed, stop })
}

/// Asks for the protocol; returns the connection and what came with the answer.
async fn upgrade(url: &str) -> io::Result<(TcpStream, Vec<u8>)> {
    let Some((authority, path)) = url
        .strip_prefix("http://")
        .and_then(|rest| Some((rest.split('/').next()?, &rest[rest.find('/')?..])))
    else {
        return Err(io::Error::other(format!("{url} is no address that we can use")));
    };
    let mut socket = TcpStream::connect(authority).await?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    loop {
        if let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            let early = answer.split_off(end + 4);
            let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or("").to_owned();
            return match line.split(' ').nth(1) {
                Some("101") => Ok((socket, early)),
                _ => Err(io::Error::other(format!("it answered {line:?}"))),
            };
        }
        if answer.len() > LONGEST_ANSWER || socket.read_buf(&mut answer).await? == 0 {
            return Err(io::Error::other("it did not answer"));
        }
    }
}

/// The numbers of the streams; those that are not wanted have none.
#[derive(Default)]
struct Streams {
    error: u32,
    stdin: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    resize: Option<u32>,
}

/// Carries bytes between a connection and the process's streams.
struct Carrier {
    socket: TcpStream,
    decoder: Decoder,
    encoder: Encoder,
    output: BytesMut,
    streams: Streams,
    stdin: Option<DuplexStream>,
    stdout: Option<DuplexStream>,
    stderr: Option<DuplexStream>,
    /// What was said about the end.
    verdict: Vec<u8>,
}

impl Carrier {
    fn open(&mut self, wanted: WantedStreams) {
        let mut next = 1;
        let mut open = |kind: &str| {
            let stream = next;
            next += 2;
            let headers = Headers::from([("streamtype".to_owned(), kind.to_owned())]);
            let frame = Frame::SynStream { stream, fin: false, headers };
            self.encoder.encode(&frame, &mut self.output);
            stream
        };
        self.streams = Streams {
            error: open("error"),
            stdin: wanted.stdin.then(|| open("stdin")),
            stdout: wanted.stdout.then(|| open("stdout")),
            stderr: (wanted.stderr && !wanted.tty).then(|| open("stderr")),
            resize: wanted.tty.then(|| open("resize")),
        };
    }

    /// Until the peer has said how it ended and all has been printed.
    async fn carry(&mut self, mut sizes: mpsc::Receiver<(u16, u16)>) -> io::Result<()> {
        let mut typed = vec![0; 16 * 1024];
        let mut arrived = BytesMut::with_capacity(32 * 1024);
        let mut said = false;
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                said |= self.take(frame).await;
            }
            let output = self.output.split();
            self.socket.write_all(&output).await?;
            if said && self.stdout.is_none() && self.stderr.is_none() {
                return Ok(());
            }
            tokio::select! {
                count = self.socket.read_buf(&mut arrived) => {
                    if count? == 0 {
                        return if said { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
                    }
                    self.decoder.push(&arrived.split());
                }
                count = read(&mut self.stdin, &mut typed) => {
                    self.typed(&typed[..count]);
                }
                Some((columns, rows)) = sizes.recv() => {
                    let size = json!({"Width": columns, "Height": rows}).to_string();
                    self.send(self.streams.resize, false, Bytes::from(size));
                }
            }
        }
    }

    fn typed(&mut self, bytes: &[u8]) {
        let fin = bytes.is_empty();
        self.send(self.streams.stdin, fin, Bytes::copy_from_slice(bytes));
        if fin {
            self.stdin = None;
        }
    }

    fn send(&mut self, stream: Option<u32>, fin: bool, payload: Bytes) {
        if let Some(stream) = stream {
            self.encoder.encode(&Frame::Data { stream, fin, payload }, &mut self.output);
        }
    }

    /// Takes a frame; returns whether it was the last word about the end.
    async fn take(&mut self, frame: Frame) -> bool {
        let (stream, fin, payload) = match frame {
            Frame::Data { stream, fin, payload } => (stream, fin, payload),
            Frame::Reset { stream, .. } => (stream, true, Bytes::new()),
            Frame::SynReply { stream, fin: true, .. } => (stream, true, Bytes::new()),
            Frame::Ping { id } => {
                self.encoder.encode(&Frame::Ping { id }, &mut self.output);
                return false;
            }
            _ => return false,
        };
        if stream == self.streams.error {
            let room = LONGEST_ANSWER.saturating_sub(self.verdict.len());
            self.verdict.extend_from_slice(&payload[..payload.len().min(room)]);
            return fin;
        }
        let end = match Some(stream) {
            stream if stream == self.streams.stdout => &mut self.stdout,
            stream if stream == self.streams.stderr => &mut self.stderr,
            _ => return false,
        };
        let wrote = match end {
            Some(end) => end.write_all(&payload).await,
            None => Ok(()),
        };
        // Whoever does not look any more misses nothing; the process goes on.
        if fin || wrote.is_err() {
            *end = None;
        }
        false
    }
}

/// What was typed; nothing is the end of it.
async fn read(stdin: &mut Option<DuplexStream>, buffer: &mut [u8]) -> usize {
    match stdin {
        Some(stdin) => stdin.read(buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}

/// The exit code in a Status, as version 4 of the protocol sends it.
fn exit_code(verdict: &[u8]) -> i32 {
    let status: Value = serde_json::from_slice(verdict).unwrap_or_default();
    if status["status"] == "Success" {
        return 0;
    }
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let mut codes = causes.filter(|cause| cause["reason"] == "ExitCode");
    let code = codes.next().and_then(|cause| cause["message"].as_str()?.parse().ok());
    // It did not run at all.
    code.unwrap_or(126)
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_streams::outcome::Outcome;
    use roadstead_streams::spdy::session::{Session, SessionEvent};
    use tokio::net::TcpListener;

    #[test]
    fn codes_of_statuses() {
        for (outcome, want) in
            [(Outcome::Exited(0), 0), (Outcome::Exited(7), 7), (Outcome::Failed("x".into()), 126)]
        {
            assert_eq!(exit_code(outcome.status().as_bytes()), want, "{outcome:?}");
        }
        assert_eq!(exit_code(b""), 126);
    }

    /// A runtime that says what it is told, in capitals, and exits with 3 when that ends.
    async fn serve(listener: TcpListener) {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"POST /exec/token HTTP/1.1\r\n"));
        socket.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await.unwrap();
        let mut session = Session::default();
        let mut kinds = std::collections::BTreeMap::new();
        let mut buffer = vec![0; 1024];
        loop {
            let count = socket.read(&mut buffer).await.unwrap();
            if count == 0 {
                return;
            }
            for event in session.receive(&buffer[..count]).unwrap() {
                match event {
                    SessionEvent::Opened { stream, headers } => {
                        session.accept(stream);
                        kinds.insert(headers["streamtype"].clone(), stream);
                    }
                    SessionEvent::Data { stream, payload } if stream == kinds["stdin"] => {
                        session.send(kinds["stdout"], payload.to_ascii_uppercase().into());
                    }
                    SessionEvent::Finished { stream } if stream == kinds["stdin"] => {
                        session.send(kinds["stderr"], Bytes::from_static(b"bye"));
                        session.finish(kinds["stdout"]);
                        session.finish(kinds["stderr"]);
                        session.send(kinds["error"], Outcome::Exited(3).status().into());
                        session.finish(kinds["error"]);
                    }
                    _ => {}
                }
            }
            socket.write_all(&session.take_output()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_command_from_beginning_to_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/exec/token", listener.local_addr().unwrap());
        tokio::spawn(serve(listener));
        let wanted = WantedStreams { stdin: true, stdout: true, stderr: true, tty: false };
        let mut session = exec(&url, wanted).await.unwrap();
        let mut stdin = session.stdin.take().unwrap();
        stdin.write_all(b"hello").await.unwrap();
        drop(stdin);
        let (mut out, mut err) = (String::new(), String::new());
        session.stdout.read_to_string(&mut out).await.unwrap();
        session.stderr.take().unwrap().read_to_string(&mut err).await.unwrap();
        assert_eq!((out.as_str(), err.as_str()), ("HELLO", "bye"));
        assert_eq!(session.process.wait().await, 3);
        let refused = exec("https://localhost/exec", wanted).await.err().unwrap();
        assert!(refused.message.contains("no address that we can use"), "{refused}");
    }
}
