//! `kubectl port-forward`: one connection of a client, and many to the ports of a pod.
//!
//! The protocols have no flow control of their own. So what a connection does not take, or what a client
//! does not read, is held up to a limit, and then nothing more is read for all connections of that client.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use roadstead_pod::pod_name::PodName;
use roadstead_streams::forward_connection::{ForwardConnection, ForwardEvent};
use roadstead_streams::protocol::{FORWARD, ForwardProtocol, choose_forward};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time;

use super::query::Query;
use super::upgrade::Upgrade;
use super::{Answer, GONE, PodServer, Refusal};
use crate::runtime::ContainerRuntime;
use crate::runtime::dial::DialError;

const PIECE: usize = 32 * 1024;
/// Pieces that wait for a port that does not read.
const MOST_INPUT: usize = 16;
/// Pieces that wait for a client that does not read.
const MOST_OUTPUT: usize = 8;
/// How many connections are carried for all clients: each has a descriptor, of which the node needs others.
pub(super) const MOST_CONNECTIONS: usize = 8192;
/// Nothing is read from a client that owes us so much reading.
const MOST_PENDING: usize = 256 * 1024;

impl PodServer {
    pub(super) fn port_forward(
        &self,
        pod: &Pod,
        query: &Query,
        request: Request<Incoming>,
    ) -> Result<Answer, Refusal> {
        let upgrade = Upgrade::of(&request)?;
        let chosen = match &upgrade {
            Upgrade::WebSocket { .. } => choose_forward(&upgrade.asked()),
            Upgrade::Spdy { .. } => {
                let known = upgrade.asked().contains(&FORWARD);
                known.then_some((Some(FORWARD), ForwardProtocol::Tunnel))
            }
        };
        let Some((version, protocol)) = chosen else {
            return Ok(Answer::from(upgrade.refused([FORWARD].into_iter())));
        };
        let (connection, first) = match (&upgrade, protocol) {
            (Upgrade::Spdy { .. }, _) => (ForwardConnection::streams(), vec![]),
            (_, ForwardProtocol::Tunnel) => (ForwardConnection::tunnel(), vec![]),
            (_, ForwardProtocol::Channels(encoding)) => {
                ForwardConnection::channels(encoding, ports(query)?)
            }
        };
        let (containers, room) = (self.containers.clone(), self.forwards.clone());
        let ports = Ports { pod: PodName::of(pod), containers, room };
        let upgraded = hyper::upgrade::on(request);
        let then = async move {
            if let Ok(io) = upgraded.await {
                Forwarding::new(connection).run(TokioIo::new(io), ports, first).await;
            }
        };
        Ok(Answer { response: upgrade.accepted(version), then: Some(Box::pin(then)) })
    }
}

/// Those that the query names, one by one or with commas between them.
fn ports(query: &Query) -> Result<Vec<u16>, Refusal> {
    let texts: Vec<_> = query.all("port").flat_map(|text| text.split(',')).collect();
    if texts.is_empty() {
        return Err(Refusal::bad("query parameter \"port\" is required"));
    }
    if texts.len() > ForwardConnection::MOST_CHANNEL_PORTS {
        return Err(Refusal::bad("too many ports for one connection"));
    }
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
    let wrong = |text| Refusal::bad(format!("unable to parse {text:?} as a port"));
    texts.into_iter().map(|text| port(text).ok_or_else(|| wrong(text))).collect()
}

/// The ports of a pod.
#[derive(Clone)]
struct Ports {
    pod: PodName,
    containers: Arc<dyn ContainerRuntime>,
    room: Arc<Semaphore>,
}

impl Ports {
    async fn dial(&self, port: u16) -> Result<(TcpStream, OwnedSemaphorePermit), DialError> {
        let room = self.room.clone().try_acquire_owned();
        let room =
            room.map_err(|_| DialError::new("too many connections are forwarded already"))?;
        Ok((self.containers.dial(&self.pod, port).await?, room))
    }
}

/// What a port has for its client.
enum Output {
    Data(Bytes),
    /// It says no more.
    Finish,
    /// Nobody says anything more.
    End,
    /// It is gone without a word.
    Reset,
    Fail(String),
}

type Outputs = mpsc::Sender<(u32, Output)>;

/// A client and its connections.
struct Forwarding {
    connection: Mutex<ForwardConnection>,
    /// There is something to write.
    changed: Notify,
    /// Something was written.
    written: Notify,
    /// The client says that it goes; it hears what there is to say.
    leaving: AtomicBool,
}

impl Forwarding {
    fn new(connection: ForwardConnection) -> Self {
        let (changed, written) = (Notify::new(), Notify::new());
        let leaving = AtomicBool::new(false);
        Self { connection: Mutex::new(connection), changed, written, leaving }
    }

    fn connection(&self) -> MutexGuard<'_, ForwardConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the client is gone; its connections go with it.
    async fn run(&self, io: impl AsyncRead + AsyncWrite, ports: Ports, first: Vec<ForwardEvent>) {
        let (reader, writer) = tokio::io::split(io);
        let (output, from_output) = mpsc::channel(MOST_OUTPUT);
        let mut connections =
            Connections { ports, output, inputs: HashMap::new(), tasks: JoinSet::new() };
        for event in first {
            connections.observe(event).await;
        }
        tokio::select! {
            () = self.listen(reader, connections) => {}
            () = self.write(writer, from_output) => {}
        }
    }

    /// Takes in what the client sends, until it is gone.
    async fn listen(&self, mut reader: impl AsyncRead + Unpin, mut connections: Connections) {
        let mut buffer = vec![0; PIECE];
        loop {
            while self.connection().pending() > MOST_PENDING {
                self.written.notified().await;
            }
            let count = tokio::select! {
                count = reader.read(&mut buffer) => count,
                Some(ended) = connections.tasks.join_next() => {
                    if let Ok(ended) = ended {
                        connections.inputs.remove(&ended);
                    }
                    continue;
                }
            };
            let Ok(count @ 1..) = count else { return };
            let received = self.connection().receive(&buffer[..count]);
            self.changed.notify_one();
            let Ok(events) = received else { return };
            for event in events {
                if event == ForwardEvent::Gone {
                    return self.leave().await;
                }
                connections.observe(event).await;
            }
        }
    }

    /// Lets the client hear that we know that it goes, if it does not take long.
    async fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.changed.notify_one();
        time::sleep(GONE).await;
    }

    /// Writes what there is for the client, until it is gone.
    async fn write(
        &self,
        mut writer: impl AsyncWrite + Unpin,
        mut output: mpsc::Receiver<(u32, Output)>,
    ) {
        loop {
            let bytes = self.connection().take_output();
            if !bytes.is_empty() {
                if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
                    return;
                }
                self.written.notify_one();
                continue;
            }
            if self.leaving.load(Ordering::Relaxed) {
                return;
            }
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                next = output.recv() => match next {
                    Some((connection, output)) => self.say(connection, output),
                    None => return,
                }
            }
        }
    }

    fn say(&self, number: u32, output: Output) {
        let mut connection = self.connection();
        match output {
            Output::Data(bytes) => connection.send(number, bytes),
            Output::Finish => connection.finish(number),
            Output::End => connection.end(number),
            Output::Reset => connection.reset(number),
            Output::Fail(why) => connection.fail(number, &why),
        }
    }
}

/// The connections of a client to ports, by their numbers.
struct Connections {
    ports: Ports,
    output: Outputs,
    /// Where what the client sends goes, and what ends it.
    inputs: HashMap<u32, (Option<mpsc::Sender<Bytes>>, AbortHandle)>,
    tasks: JoinSet<u32>,
}

impl Connections {
    async fn observe(&mut self, event: ForwardEvent) {
        match event {
            ForwardEvent::Connect { connection, port } => {
                let (input, from_input) = mpsc::channel(MOST_INPUT);
                let carried = carry(
                    (self.ports.clone(), port),
                    from_input,
                    Port { connection, output: self.output.clone() },
                );
                let task = self.tasks.spawn(async move { (carried.await, connection).1 });
                self.inputs.insert(connection, (Some(input), task));
            }
            ForwardEvent::Data { connection, payload } => {
                let input = self.inputs.get_mut(&connection).map(|(input, _)| input);
                if let Some(known) = input
                    && let Some(open) = known
                    && open.send(payload).await.is_err()
                {
                    *known = None; // The port takes no more.
                }
            }
            ForwardEvent::Finished { connection } => {
                if let Some((input, _)) = self.inputs.get_mut(&connection) {
                    *input = None;
                }
            }
            ForwardEvent::Reset { connection } => {
                if let Some((_, task)) = self.inputs.remove(&connection) {
                    task.abort();
                }
            }
            ForwardEvent::Gone => {}
        }
    }
}

/// The way back from a port.
struct Port {
    connection: u32,
    output: Outputs,
}

impl Port {
    async fn say(&self, output: Output) {
        // If nobody listens, this task ends as well.
        let _ = self.output.send((self.connection, output)).await;
    }
}

/// Connects to the port, and carries bytes until both ends have said all.
async fn carry((ports, port): (Ports, u16), input: mpsc::Receiver<Bytes>, back: Port) {
    let (stream, _room) = match ports.dial(port).await {
        Ok(dialed) => dialed,
        Err(error) => {
            let (name, uid) = (&ports.pod.name, &ports.pod.uid);
            let why = format!("error forwarding port {port} to pod {name}, uid {uid}: {error}");
            return back.say(Output::Fail(why)).await;
        }
    };
    let (from, to) = TcpStream::into_split(stream);
    let (result, ()) = tokio::join!(down(from, &back), up(input, to));
    match result {
        Ok(()) => back.say(Output::End).await,
        Err(_) => back.say(Output::Reset).await,
    }
}

async fn up(mut input: mpsc::Receiver<Bytes>, mut to: OwnedWriteHalf) {
    while let Some(bytes) = input.recv().await {
        if to.write_all(&bytes).await.is_err() {
            return; // It listens no more; what it says is another matter.
        }
    }
    let _ = to.shutdown().await;
}

async fn down(mut from: OwnedReadHalf, back: &Port) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer).await? {
            0 => break,
            count => back.say(Output::Data(Bytes::copy_from_slice(&buffer[..count]))).await,
        }
    }
    back.say(Output::Finish).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_a_query() {
        let cases = [
            ("port=80", Ok(vec![80])),
            ("port=80,81&port=82", Ok(vec![80, 81, 82])),
            ("", Err("query parameter \"port\" is required")),
            ("port=0", Err("unable to parse \"0\" as a port")),
            ("port=http", Err("unable to parse \"http\" as a port")),
        ];
        for (text, want) in cases {
            let uri = format!("/?{text}").parse().unwrap();
            let found = ports(&Query::of(&uri)).map_err(|refusal| refusal.1);
            assert_eq!(found, want.map_err(str::to_owned), "{text}");
        }
    }
}
