//! The connection of one `exec` or `attach`, whichever protocol it speaks.

use bytes::{Bytes, BytesMut};

use crate::channel::{self, Channel, ChannelMessage, Encoding, TerminalSize, terminal_size};
use crate::command::{Gathering, Wanted};
use crate::outcome::Outcome;
use crate::protocol::ChannelProtocol;
use crate::spdy::frame::ResetReason;
use crate::spdy::session::{Session, SessionEvent};
use crate::websocket::{MessageKind, SocketEvent, WebSocket};

/// What the client does with its command.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// It sends input.
    Input(Bytes),
    /// It sends no more input.
    InputEnd,
    /// Its window has another size now.
    Resize(TerminalSize),
    /// It goes away.
    Gone,
}

/// The client does not keep to the protocol; in words.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ConnectionError(String);

impl ConnectionError {
    pub(crate) fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// One connection. Feed it what the socket gives; write what [`CommandConnection::take_output`]
/// returns.
pub struct CommandConnection(Kind);

#[expect(clippy::large_enum_variant, reason = "there is one per connection")]
enum Kind {
    Channels { socket: WebSocket, protocol: ChannelProtocol },
    Streams { session: Session, gathering: Gathering, version: u8, sizes: BytesMut },
}

/// No size of a window is longer, in JSON.
const LONGEST_SIZE: usize = 1024;

impl CommandConnection {
    /// Messages of a WebSocket.
    pub fn channels(protocol: ChannelProtocol, wanted: &Wanted) -> Self {
        let mut socket = WebSocket::numbered();
        // Some clients wait for it before they send anything.
        let lowest = wanted.channels(protocol.version).into_iter();
        let lowest = lowest.filter(|channel| *channel != Channel::Stdin).min();
        send_message(&mut socket, protocol, lowest.unwrap_or(Channel::Error), b"");
        Self(Kind::Channels { socket, protocol })
    }

    /// Streams of SPDY, in this version of the protocol.
    pub fn streams(version: u8, wanted: &Wanted) -> Self {
        let gathering = Gathering::new(wanted, version);
        let (session, sizes) = (Session::default(), BytesMut::new());
        Self(Kind::Streams { session, gathering, version, sizes })
    }

    /// Whether all is there that the command needs to start.
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            Kind::Channels { .. } => true,
            Kind::Streams { gathering, .. } => gathering.complete().is_some(),
        }
    }

    /// Takes bytes of the client; returns what they say. After an error nothing more can be read.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<CommandEvent>, ConnectionError> {
        let mut events = Vec::new();
        match &mut self.0 {
            Kind::Channels { socket, protocol } => {
                for event in socket.receive(bytes).map_err(ConnectionError::new)? {
                    events.extend(
                        from_socket(&event, protocol.encoding).map_err(ConnectionError::new)?,
                    );
                }
            }
            Kind::Streams { session, gathering, sizes, .. } => {
                for event in session.receive(bytes).map_err(ConnectionError::new)? {
                    from_session(event, (session, gathering, sizes), &mut events)?;
                }
            }
        }
        Ok(events)
    }

    /// Sends what the command printed.
    pub fn send(&mut self, channel: Channel, payload: Bytes) {
        match &mut self.0 {
            Kind::Channels { socket, protocol } => {
                send_message(socket, *protocol, channel, &payload);
            }
            Kind::Streams { session, gathering, .. } => {
                if let Some(stream) = gathering.stream(channel) {
                    session.send(stream, payload);
                }
            }
        }
    }

    /// Says how the command ended, and that nothing more comes.
    pub fn end(&mut self, outcome: &Outcome) {
        let version = match &self.0 {
            Kind::Channels { protocol, .. } => protocol.version,
            Kind::Streams { version, .. } => *version,
        };
        if let Some(message) = outcome.message(version) {
            self.send(Channel::Error, message.into());
        }
        match &mut self.0 {
            Kind::Channels { socket, .. } => socket.close(),
            Kind::Streams { session, gathering, .. } => {
                for stream in gathering.streams() {
                    session.finish(stream);
                }
                session.go_away();
            }
        }
    }

    /// How much waits to be written.
    pub fn pending(&self) -> usize {
        match &self.0 {
            Kind::Channels { socket, .. } => socket.pending(),
            Kind::Streams { session, .. } => session.pending(),
        }
    }

    /// Returns what must be written to the socket.
    pub fn take_output(&mut self) -> Bytes {
        match &mut self.0 {
            Kind::Channels { socket, .. } => socket.take_output(),
            Kind::Streams { session, .. } => session.take_output(),
        }
    }
}

fn send_message(
    socket: &mut WebSocket,
    protocol: ChannelProtocol,
    channel: Channel,
    payload: &[u8],
) {
    let kind = match protocol.encoding {
        Encoding::Binary => MessageKind::Binary,
        Encoding::Base64 => MessageKind::Text,
    };
    socket.send(kind, &channel::encode(channel, payload, protocol.encoding));
}

fn from_socket(
    event: &SocketEvent,
    encoding: Encoding,
) -> Result<Option<CommandEvent>, channel::ChannelError> {
    let message = match event {
        SocketEvent::Message(message) => channel::decode(message, encoding)?,
        SocketEvent::Closed => return Ok(Some(CommandEvent::Gone)),
    };
    Ok(match message {
        Some(ChannelMessage::Data(Channel::Stdin, payload)) => Some(CommandEvent::Input(payload)),
        Some(ChannelMessage::Close(Channel::Stdin)) => Some(CommandEvent::InputEnd),
        Some(ChannelMessage::Data(Channel::Resize, payload)) => {
            terminal_size(&payload).map(CommandEvent::Resize)
        }
        _ => None, // Nothing that a client has to say there means anything.
    })
}

fn from_session(
    event: SessionEvent,
    (session, gathering, sizes): (&mut Session, &mut Gathering, &mut BytesMut),
    events: &mut Vec<CommandEvent>,
) -> Result<(), ConnectionError> {
    let is = |channel, stream| gathering.stream(channel) == Some(stream);
    match event {
        SessionEvent::Opened { stream, headers } => match gathering.opened(stream, &headers) {
            Ok(()) => session.accept(stream),
            Err(_) => session.reset(stream, ResetReason::RefusedStream),
        },
        SessionEvent::Data { stream, payload } if is(Channel::Stdin, stream) => {
            events.push(CommandEvent::Input(payload));
        }
        SessionEvent::Data { stream, payload } if is(Channel::Resize, stream) => {
            sizes.extend_from_slice(&payload);
            while let Some(at) = sizes.iter().position(|byte| *byte == b'\n') {
                let size = terminal_size(&sizes.split_to(at + 1));
                events.extend(size.map(CommandEvent::Resize));
            }
            if sizes.len() > LONGEST_SIZE {
                return Err(ConnectionError::new("the size of a terminal has no end"));
            }
        }
        SessionEvent::Finished { stream } | SessionEvent::Reset { stream }
            if is(Channel::Stdin, stream) =>
        {
            events.push(CommandEvent::InputEnd);
        }
        _ => {}
    }
    Ok(())
}
