//! The server's end of a WebSocket (RFC 6455), after the handshake.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// What the client did. Pings are answered without being mentioned.
#[derive(Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// A message, from all its fragments; a long one comes as several.
    Message(Bytes),
    /// It ends the connection; we have said goodbye as well.
    Closed,
}

/// How a message is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// UTF-8.
    Text = 1,
    /// Anything.
    Binary = 2,
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SocketError {
    /// Against the rules of RFC 6455.
    #[error("a WebSocket frame is wrong: {0}")]
    Protocol(&'static str),
    /// More than we keep.
    #[error("a WebSocket message in text is longer than {LONGEST_TEXT} bytes")]
    TooLong,
}

/// Clients of Kubernetes send a few KiB at a time, some all that they have: so much of it is kept.
const PIECE: usize = 64 << 10;
/// What is written in text cannot be cut.
const LONGEST_TEXT: usize = 1 << 20;
const LONGEST_CONTROL: usize = 125;
const CONTINUATION: u8 = 0;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
const NORMAL: u16 = 1000;

/// One connection. Feed it what the socket gives; write what [`WebSocket::take_output`] returns.
#[derive(Debug, Default)]
pub struct WebSocket {
    /// Whether the first byte of a message says what it is about, and so belongs to each of its pieces.
    numbered: bool,
    arrived: BytesMut,
    frame: Option<FrameHead>,
    message: Option<Message>,
    output: BytesMut,
    closed: bool,
}

/// The frame in the middle of which we are.
#[derive(Debug, Clone, Copy)]
struct FrameHead {
    first: u8,
    /// Turned so that it begins with what comes next.
    mask: [u8; 4],
    left: u64,
}

/// A message that goes on: what of it was not handed out yet.
#[derive(Debug)]
struct Message {
    is_text: bool,
    bytes: BytesMut,
}

impl WebSocket {
    /// One whose messages begin with the number of a channel. Pieces of long ones do as well.
    pub fn numbered() -> Self {
        Self { numbered: true, ..Self::default() }
    }

    /// Takes bytes of the client; returns what they say. After an error nothing more can be read.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<SocketEvent>, SocketError> {
        self.arrived.extend_from_slice(bytes);
        let mut events = Vec::new();
        while !self.closed {
            let head = match self.frame {
                Some(head) => head,
                None => match self.next_head()? {
                    Some(head) => head,
                    None => break,
                },
            };
            let goes_on = match head.first & 0x0f {
                CLOSE.. => self.control(head, &mut events),
                _ => self.data(head, &mut events)?,
            };
            if !goes_on {
                break;
            }
        }
        Ok(events)
    }

    /// Sends a message.
    pub fn send(&mut self, kind: MessageKind, payload: &[u8]) {
        self.write(kind as u8, payload);
    }

    /// Says that all went well and nothing more comes.
    pub fn close(&mut self) {
        self.write(CLOSE, &NORMAL.to_be_bytes());
        self.closed = true;
    }

    /// How much waits to be written.
    pub fn pending(&self) -> usize {
        self.output.len()
    }

    /// Returns what must be written to the socket.
    pub fn take_output(&mut self) -> Bytes {
        self.output.split().freeze()
    }

    /// The beginning of the next frame, when it is there and as it should be.
    fn next_head(&mut self) -> Result<Option<FrameHead>, SocketError> {
        let Some(&[first, second]) = self.arrived.first_chunk::<2>() else { return Ok(None) };
        if second & MASKED == 0 {
            return Err(SocketError::Protocol("a client must mask its frames"));
        }
        let (left, extra) = match second & !MASKED {
            126 => {
                (self.arrived[2..].first_chunk().map(|bytes| u16::from_be_bytes(*bytes).into()), 2)
            }
            127 => (self.arrived[2..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes)), 8),
            length => (Some(u64::from(length)), 0),
        };
        let Some(left) = left.filter(|_| self.arrived.len() >= 2 + extra + 4) else {
            return Ok(None);
        };
        self.check(first, left)?;
        self.arrived.advance(2 + extra);
        let head = FrameHead { first, mask: self.arrived.get_u32().to_be_bytes(), left };
        self.frame = Some(head);
        Ok(Some(head))
    }

    fn check(&self, first: u8, length: u64) -> Result<(), SocketError> {
        let (is_last, kind) = (first & FIN != 0, first & 0x0f);
        let wrong = match kind {
            _ if first & 0x70 != 0 => "there are no extensions",
            _ if length >> 63 != 0 => "no frame is so long",
            CLOSE | PING | PONG if !is_last || length > LONGEST_CONTROL as u64 => {
                "a control frame is short and whole"
            }
            CLOSE | PING | PONG => return Ok(()),
            CONTINUATION if self.message.is_none() => "there is nothing to go on with",
            1 | 2 if self.message.is_some() => "the message before has not ended",
            CONTINUATION..=2 => return Ok(()),
            _ => "a frame of no known kind",
        };
        Err(SocketError::Protocol(wrong))
    }

    /// Takes in a control frame, when all of it is there; whether it was.
    fn control(&mut self, head: FrameHead, events: &mut Vec<SocketEvent>) -> bool {
        let length = head.left as usize;
        if self.arrived.len() < length {
            return false;
        }
        let mut payload = self.arrived.split_to(length);
        unmask(&mut payload, head.mask);
        self.frame = None;
        match head.first & 0x0f {
            PING => self.write(PONG, &payload),
            CLOSE => {
                // Its reason, if any, goes back.
                self.write(CLOSE, &payload[..payload.len().min(2)]);
                self.closed = true;
                events.push(SocketEvent::Closed);
            }
            _ => {}
        }
        true
    }

    /// Takes in what is there of a frame of data; whether there may be more.
    fn data(
        &mut self,
        head: FrameHead,
        events: &mut Vec<SocketEvent>,
    ) -> Result<bool, SocketError> {
        let is_text = head.first & 0x0f == MessageKind::Text as u8;
        let message =
            self.message.get_or_insert_with(|| Message { is_text, bytes: BytesMut::new() });
        let here = usize::try_from(head.left).unwrap_or(usize::MAX).min(self.arrived.len());
        if here == 0 && head.left > 0 {
            return Ok(false);
        }
        // Pieces are of equal size, however the bytes arrive.
        let room = PIECE.saturating_sub(message.bytes.len()).max(1);
        let here = if message.is_text { here } else { here.min(room) };
        let mut payload = self.arrived.split_to(here);
        unmask(&mut payload, head.mask);
        message.bytes.extend_from_slice(&payload);
        if message.is_text && message.bytes.len() > LONGEST_TEXT {
            return Err(SocketError::TooLong);
        }
        let left = head.left - here as u64;
        let mut mask = head.mask;
        mask.rotate_left(here % 4);
        self.frame = (left > 0).then_some(FrameHead { mask, left, ..head });
        if left == 0 && head.first & FIN != 0 {
            let whole = self.message.take().map(|message| message.bytes.freeze());
            events.extend(whole.map(SocketEvent::Message));
        } else if !message.is_text && message.bytes.len() >= PIECE {
            let piece = message.bytes.split();
            if self.numbered {
                message.bytes.extend_from_slice(&piece[..1]);
            }
            events.push(SocketEvent::Message(piece.freeze()));
        }
        Ok(true)
    }

    fn write(&mut self, kind: u8, payload: &[u8]) {
        if self.closed {
            return;
        }
        self.output.put_u8(FIN | kind);
        match payload.len() {
            length @ 0..126 => self.output.put_u8(length as u8),
            length @ 126..0x1_0000 => {
                self.output.put_u8(126);
                self.output.put_u16(length as u16);
            }
            length => {
                self.output.put_u8(127);
                self.output.put_u64(length as u64);
            }
        }
        self.output.extend_from_slice(payload);
    }
}

fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    for four in payload.chunks_mut(4) {
        for (byte, mask) in four.iter_mut().zip(mask) {
            *byte ^= mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's frame.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut bytes = vec![first];
        match payload.len() {
            length @ 0..126 => bytes.push(MASKED | length as u8),
            length @ 126..0x1_0000 => {
                bytes.push(MASKED | 126);
                bytes.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                bytes.push(MASKED | 127);
                bytes.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        bytes.extend_from_slice(&mask);
        bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        bytes
    }

    fn message(text: &'static str) -> SocketEvent {
        SocketEvent::Message(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn frames_in_pieces_of_any_size() {
        let long = "x".repeat(300);
        let sent = [
            frame(FIN | 2, b"whole"),
            frame(1, b"fr"),
            frame(FIN | PING, b"are you there"),
            frame(0, b"ag"),
            frame(FIN, b"ment"),
            frame(FIN | 2, long.as_bytes()),
            frame(FIN | CLOSE, &[3, 232, b'b']),
            frame(FIN | 2, b"too late"),
        ]
        .concat();
        for size in [1, 2, 7, sent.len()] {
            let mut socket = WebSocket::default();
            let events: Vec<_> =
                sent.chunks(size).flat_map(|piece| socket.receive(piece).unwrap()).collect();
            let long = SocketEvent::Message(Bytes::from(long.clone()));
            let want = [message("whole"), message("fragment"), long, SocketEvent::Closed];
            assert_eq!(events, want, "{size}");
            socket.send(MessageKind::Binary, b"nobody reads this");
            let answer = [&[FIN | PONG, 13], &b"are you there"[..], &[FIN | CLOSE, 2, 3, 232]];
            assert_eq!(socket.take_output(), answer.concat(), "{size}");
        }
    }

    #[test]
    fn long_messages_come_in_pieces() {
        let long: Vec<u8> = (0..150_000_u32).map(|at| at as u8).collect();
        let sent = [frame(2, &long[..100_000]), frame(FIN, &long[100_000..]), frame(FIN | 2, b"x")];
        for (numbered, size) in [(true, 1), (true, 7_777), (false, 1_000_000)] {
            let mut socket = WebSocket { numbered, ..WebSocket::default() };
            let mut heard = Vec::new();
            for bytes in sent.concat().chunks(size) {
                heard.extend(socket.receive(bytes).unwrap());
                let kept = socket.message.as_ref().map_or(0, |message| message.bytes.len());
                assert!(kept < PIECE, "{kept}");
            }
            let heard: Vec<_> = heard
                .into_iter()
                .map(|event| match event {
                    SocketEvent::Message(bytes) => bytes,
                    SocketEvent::Closed => panic!("it goes on"),
                })
                .collect();
            assert_eq!(heard.iter().map(|piece| piece.len()).max(), Some(PIECE));
            let again = if numbered { 1 } else { 0 };
            let whole = heard[1..heard.len() - 1].iter().flat_map(|piece| &piece[again..]);
            let whole: Vec<u8> = heard[0].iter().chain(whole).copied().collect();
            assert!(whole == long, "{numbered} {size}");
            assert_eq!(&heard[heard.len() - 1][..], b"x");
        }
    }

    #[test]
    fn lengths_that_are_written() {
        for (length, head) in [
            (5, vec![FIN | 2, 5]),
            (300, vec![FIN | 2, 126, 1, 44]),
            (70_000, vec![FIN | 2, 127, 0, 0, 0, 0, 0, 1, 17, 112]),
        ] {
            let mut socket = WebSocket::default();
            socket.send(MessageKind::Binary, &vec![7; length]);
            let output = socket.take_output();
            assert_eq!((&output[..head.len()], output.len()), (&head[..], head.len() + length));
        }
        let mut socket = WebSocket::default();
        socket.close();
        assert_eq!(&socket.take_output()[..], [FIN | CLOSE, 2, 3, 232]);
    }

    #[test]
    fn frames_that_may_not_be() {
        let mut huge = vec![FIN | 2, MASKED | 127];
        huge.extend_from_slice(&[0xff; 12]);
        let cases = [
            ("not masked", vec![FIN | 2, 1, b'x']),
            ("extensions", frame(FIN | 0x40 | 2, b"x")),
            ("nothing to go on with", frame(FIN, b"x")),
            ("two at once", [frame(2, b"x"), frame(FIN | 2, b"y")].concat()),
            ("a ping in parts", frame(PING, b"x")),
            ("a long ping", frame(FIN | PING, &[0; 126])),
            ("unknown", frame(FIN | 3, b"x")),
            ("huge", huge),
            ("a long text", frame(FIN | 1, &vec![b'x'; LONGEST_TEXT + 1])),
        ];
        for (name, bytes) in cases {
            assert!(WebSocket::default().receive(&bytes).is_err(), "{name}");
        }
    }
}
