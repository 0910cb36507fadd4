//! The connection of one `port-forward`, whichever protocol it speaks: it carries many connections to
//! ports of a pod.

use bytes::Bytes;

use crate::channel::{self, Encoding};
use crate::connection::ConnectionError;
use crate::forward::{Pair, Pairing};
use crate::spdy::frame::ResetReason;
use crate::spdy::session::{Session, SessionEvent};
use crate::websocket::{MessageKind, SocketEvent, WebSocket};

/// What the client does. A connection is named by the number of the stream of its data.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are called as the protocol calls them")]
pub enum ForwardEvent {
    /// It wants a connection to a port.
    Connect { connection: u32, port: u16 },
    /// It sends bytes.
    Data { connection: u32, payload: Bytes },
    /// It sends no more on this connection, but may still listen.
    Finished { connection: u32 },
    /// It gives this connection up.
    Reset { connection: u32 },
    /// It goes away.
    Gone,
}

/// One connection of a client. Feed it what the socket gives; write what
/// [`ForwardConnection::take_output`] returns.
pub struct ForwardConnection(Kind);

#[expect(clippy::large_enum_variant, reason = "there is one per connection")]
enum Kind {
    Streams {
        session: Session,
        pairing: Pairing,
        /// Those that are connected, with their error streams.
        pairs: Vec<Pair>,
        /// What the session is wrapped in, if anything.
        tunnel: Option<WebSocket>,
    },
    Channels {
        socket: WebSocket,
        encoding: Encoding,
        ports: Vec<u16>,
    },
}

impl ForwardConnection {
    /// Streams of SPDY.
    pub fn streams() -> Self {
        Self::spdy(None)
    }

    /// Streams of SPDY in binary messages of a WebSocket, whose boundaries mean nothing.
    pub fn tunnel() -> Self {
        Self::spdy(Some(WebSocket::default()))
    }

    fn spdy(tunnel: Option<WebSocket>) -> Self {
        let (session, pairing) = (Session::default(), Pairing::default());
        Self(Kind::Streams { session, pairing, pairs: Vec::new(), tunnel })
    }

    /// Messages of a WebSocket, with one connection to each of these ports, made at once. On each channel
    /// its port is said first.
    pub fn channels(encoding: Encoding, ports: Vec<u16>) -> (Self, Vec<ForwardEvent>) {
        let mut socket = WebSocket::numbered();
        let mut events = Vec::new();
        for (at, port) in (0..).zip(&ports) {
            for channel in [at * 2, at * 2 + 1] {
                send_message(&mut socket, encoding, channel, &port.to_le_bytes());
            }
            events.push(ForwardEvent::Connect { connection: u32::from(at) * 2, port: *port });
        }
        (Self(Kind::Channels { socket, encoding, ports }), events)
    }

    /// How many ports can be named when the channels are numbered by one byte.
    pub const MOST_CHANNEL_PORTS: usize = 127;

    /// Takes bytes of the client; returns what they say. After an error nothing more can be read.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<ForwardEvent>, ConnectionError> {
        let mut events = Vec::new();
        match &mut self.0 {
            Kind::Streams { session, pairing, pairs, tunnel } => {
                let mut hear = |bytes: &[u8]| -> Result<(), ConnectionError> {
                    for event in session.receive(bytes).map_err(ConnectionError::new)? {
                        events.extend(from_session(event, (session, pairing, pairs)));
                    }
                    Ok(())
                };
                let Some(tunnel) = tunnel else {
                    hear(bytes)?;
                    return Ok(events);
                };
                let mut closed = false;
                for event in tunnel.receive(bytes).map_err(ConnectionError::new)? {
                    match event {
                        SocketEvent::Message(message) => hear(&message)?,
                        SocketEvent::Closed => closed = true,
                    }
                }
                events.extend(closed.then_some(ForwardEvent::Gone));
            }
            Kind::Channels { socket, encoding, ports } => {
                for event in socket.receive(bytes).map_err(ConnectionError::new)? {
                    events.extend(from_socket(&event, *encoding, ports.len())?);
                }
            }
        }
        Ok(events)
    }

    /// Sends what the port says.
    pub fn send(&mut self, connection: u32, payload: Bytes) {
        match &mut self.0 {
            Kind::Streams { session, .. } => session.send(connection, payload),
            Kind::Channels { socket, encoding, .. } => {
                send_message(socket, *encoding, connection as u8, &payload);
            }
        }
    }

    /// The port says no more; the client may go on.
    pub fn finish(&mut self, connection: u32) {
        if let Kind::Streams { session, .. } = &mut self.0 {
            session.finish(connection);
        }
    }

    /// Both ends have said all.
    pub fn end(&mut self, connection: u32) {
        if let Kind::Streams { session, pairs, .. } = &mut self.0
            && let Some(pair) = taken(pairs, connection)
        {
            session.finish(pair.data);
            session.finish(pair.error);
        }
    }

    /// The port was closed in the middle of something.
    pub fn reset(&mut self, connection: u32) {
        if let Kind::Streams { session, pairs, .. } = &mut self.0
            && let Some(pair) = taken(pairs, connection)
        {
            session.reset(pair.data, ResetReason::Cancel);
            session.finish(pair.error);
        }
    }

    /// The connection cannot be made, for this reason.
    pub fn fail(&mut self, connection: u32, why: &str) {
        match &mut self.0 {
            Kind::Streams { session, pairs, .. } => {
                let Some(pair) = taken(pairs, connection) else { return };
                session.send(pair.error, Bytes::copy_from_slice(why.as_bytes()));
                session.finish(pair.error);
                session.reset(pair.data, ResetReason::InternalError);
            }
            Kind::Channels { socket, encoding, .. } => {
                send_message(socket, *encoding, connection as u8 + 1, why.as_bytes());
            }
        }
    }

    /// How much waits to be written.
    pub fn pending(&self) -> usize {
        match &self.0 {
            Kind::Streams { session, tunnel, .. } => {
                session.pending() + tunnel.as_ref().map_or(0, WebSocket::pending)
            }
            Kind::Channels { socket, .. } => socket.pending(),
        }
    }

    /// Returns what must be written to the socket.
    pub fn take_output(&mut self) -> Bytes {
        match &mut self.0 {
            Kind::Streams { session, tunnel: None, .. } => session.take_output(),
            Kind::Streams { session, tunnel: Some(tunnel), .. } => {
                let inner = session.take_output();
                if !inner.is_empty() {
                    tunnel.send(MessageKind::Binary, &inner);
                }
                tunnel.take_output()
            }
            Kind::Channels { socket, .. } => socket.take_output(),
        }
    }
}

fn taken(pairs: &mut Vec<Pair>, connection: u32) -> Option<Pair> {
    let at = pairs.iter().position(|pair| pair.data == connection)?;
    Some(pairs.swap_remove(at))
}

fn from_session(
    event: SessionEvent,
    (session, pairing, pairs): (&mut Session, &mut Pairing, &mut Vec<Pair>),
) -> Option<ForwardEvent> {
    let data = |stream: u32, pairs: &[Pair]| pairs.iter().any(|pair| pair.data == stream);
    match event {
        SessionEvent::Opened { stream, headers } => match pairing.opened(stream, &headers) {
            Ok(pair) => {
                session.accept(stream);
                let pair = pair?;
                pairs.push(pair);
                Some(ForwardEvent::Connect { connection: pair.data, port: pair.port })
            }
            Err(_) => {
                session.reset(stream, ResetReason::ProtocolError);
                None
            }
        },
        SessionEvent::Data { stream, payload } if data(stream, pairs) => {
            Some(ForwardEvent::Data { connection: stream, payload })
        }
        SessionEvent::Finished { stream } if data(stream, pairs) => {
            Some(ForwardEvent::Finished { connection: stream })
        }
        SessionEvent::Reset { stream } => {
            pairing.gone(stream);
            let pair = taken(pairs, stream)?;
            session.finish(pair.error);
            Some(ForwardEvent::Reset { connection: stream })
        }
        SessionEvent::GoAway => None, // What is open may end.
        _ => None,
    }
}

fn from_socket(
    event: &SocketEvent,
    encoding: Encoding,
    ports: usize,
) -> Result<Option<ForwardEvent>, ConnectionError> {
    let SocketEvent::Message(message) = event else { return Ok(Some(ForwardEvent::Gone)) };
    let Some((channel, payload)) =
        channel::decode_numbered(message, encoding).map_err(ConnectionError::new)?
    else {
        return Ok(None);
    };
    // What a client says about errors means nothing.
    let is_data = channel.is_multiple_of(2) && usize::from(channel / 2) < ports;
    let connection = u32::from(channel);
    Ok((is_data && !payload.is_empty()).then_some(ForwardEvent::Data { connection, payload }))
}

fn send_message(socket: &mut WebSocket, encoding: Encoding, channel: u8, payload: &[u8]) {
    let kind = match encoding {
        Encoding::Binary => MessageKind::Binary,
        Encoding::Base64 => MessageKind::Text,
    };
    socket.send(kind, &channel::encode_numbered(channel, payload, encoding));
}

#[cfg(test)]
mod tests;
