//! The server's end of a SPDY connection: which streams are open, and what happened to them.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use super::frame::{Decoder, Encoder, Frame, FrameError, Headers, ResetReason};

/// What the peer did.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are called as the protocol calls them")]
pub enum SessionEvent {
    /// It opened a stream: answer with [`Session::accept`] or [`Session::reset`].
    Opened { stream: u32, headers: Headers },
    /// It sent bytes on an open stream.
    Data { stream: u32, payload: Bytes },
    /// It sends no more on this stream.
    Finished { stream: u32 },
    /// It gave the stream up, both ways.
    Reset { stream: u32 },
    /// It opens no more streams.
    GoAway,
}

/// Who still sends on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    by_peer: bool,
    by_us: bool,
}

/// One connection. Feed it what the socket gives; write what [`Session::take_output`] returns.
#[derive(Default)]
pub struct Session {
    decoder: Decoder,
    encoder: Encoder,
    output: BytesMut,
    streams: BTreeMap<u32, Open>,
    newest: u32,
}

impl Session {
    /// A forwarded browser opens dozens of connections, two streams each.
    pub(crate) const MOST_STREAMS: usize = 1024;

    /// Takes bytes of the peer; returns what they say. After an error nothing more can be read.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<SessionEvent>, FrameError> {
        self.decoder.push(bytes);
        let mut events = Vec::new();
        while let Some(frame) = self.decoder.next_frame()? {
            self.observe(frame, &mut events);
        }
        Ok(events)
    }

    /// Says yes to a stream.
    pub fn accept(&mut self, stream: u32) {
        self.write(&Frame::SynReply { stream, fin: false, headers: Headers::new() });
    }

    /// Sends bytes; nothing happens once the stream is finished or reset.
    pub fn send(&mut self, stream: u32, payload: Bytes) {
        if self.streams.get(&stream).is_some_and(|open| open.by_us) && !payload.is_empty() {
            self.write(&Frame::Data { stream, fin: false, payload });
        }
    }

    /// Sends no more on this stream; the peer may go on.
    pub fn finish(&mut self, stream: u32) {
        let Some(open) = self.streams.get_mut(&stream).filter(|open| open.by_us) else { return };
        open.by_us = false;
        self.forget_if_closed(stream);
        self.write(&Frame::Data { stream, fin: true, payload: Bytes::new() });
    }

    /// Ends a stream at once, both ways.
    pub(crate) fn reset(&mut self, stream: u32, reason: ResetReason) {
        if self.streams.remove(&stream).is_some() {
            self.write(&Frame::Reset { stream, reason: reason as u32 });
        }
    }

    /// Tells the peer that the connection ends.
    pub(crate) fn go_away(&mut self) {
        self.write(&Frame::GoAway { last: self.newest });
    }

    /// How much waits to be written.
    pub fn pending(&self) -> usize {
        self.output.len()
    }

    /// Returns what must be written to the socket.
    pub fn take_output(&mut self) -> Bytes {
        self.output.split().freeze()
    }

    fn observe(&mut self, frame: Frame, events: &mut Vec<SessionEvent>) {
        match frame {
            Frame::SynStream { stream, fin, headers } => self.opened(stream, fin, headers, events),
            Frame::Data { stream, fin, payload } => {
                if !self.streams.get(&stream).is_some_and(|open| open.by_peer) {
                    return; // It was reset while the bytes were on their way.
                }
                if !payload.is_empty() {
                    events.push(SessionEvent::Data { stream, payload });
                }
                self.finished_if(fin, stream, events);
            }
            Frame::SynReply { stream, fin, .. } | Frame::Headers { stream, fin, .. } => {
                self.finished_if(fin, stream, events);
            }
            Frame::Reset { stream, .. } => {
                if self.streams.remove(&stream).is_some() {
                    events.push(SessionEvent::Reset { stream });
                }
            }
            Frame::Ping { id } => self.write(&Frame::Ping { id }),
            Frame::GoAway { .. } => events.push(SessionEvent::GoAway),
            Frame::Ignored => {}
        }
    }

    fn opened(&mut self, stream: u32, fin: bool, headers: Headers, events: &mut Vec<SessionEvent>) {
        let ours = stream.is_multiple_of(2);
        if ours || stream <= self.newest {
            self.write(&Frame::Reset { stream, reason: ResetReason::ProtocolError as u32 });
            return;
        }
        self.newest = stream;
        if self.streams.len() >= Self::MOST_STREAMS {
            self.write(&Frame::Reset { stream, reason: ResetReason::RefusedStream as u32 });
            return;
        }
        self.streams.insert(stream, Open { by_peer: true, by_us: true });
        events.push(SessionEvent::Opened { stream, headers });
        self.finished_if(fin, stream, events);
    }

    fn finished_if(&mut self, fin: bool, stream: u32, events: &mut Vec<SessionEvent>) {
        let Some(open) = self.streams.get_mut(&stream).filter(|open| fin && open.by_peer) else {
            return;
        };
        open.by_peer = false;
        self.forget_if_closed(stream);
        events.push(SessionEvent::Finished { stream });
    }

    fn forget_if_closed(&mut self, stream: u32) {
        let closed = Open { by_peer: false, by_us: false };
        if self.streams.get(&stream) == Some(&closed) {
            self.streams.remove(&stream);
        }
    }

    fn write(&mut self, frame: &Frame) {
        self.encoder.encode(frame, &mut self.output);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that writes frames, and reads ours.
    #[derive(Default)]
    struct Client {
        encoder: Encoder,
        decoder: Decoder,
        session: Session,
    }

    impl Client {
        fn sends(&mut self, frame: Frame) -> Vec<SessionEvent> {
            let mut bytes = BytesMut::new();
            self.encoder.encode(&frame, &mut bytes);
            self.session.receive(&bytes).unwrap()
        }

        fn opens(&mut self, stream: u32, kind: &str) -> Vec<SessionEvent> {
            self.sends(Frame::SynStream { stream, fin: false, headers: kind_of(kind) })
        }

        fn reads(&mut self) -> Vec<Frame> {
            self.decoder.push(&self.session.take_output());
            std::iter::from_fn(|| self.decoder.next_frame().unwrap()).collect()
        }
    }

    fn kind_of(kind: &str) -> Headers {
        Headers::from([("streamtype".to_owned(), kind.to_owned())])
    }

    fn data(stream: u32, fin: bool, text: &'static str) -> Frame {
        Frame::Data { stream, fin, payload: Bytes::from_static(text.as_bytes()) }
    }

    #[test]
    fn a_stream_from_beginning_to_end() {
        let mut client = Client::default();
        let opened = SessionEvent::Opened { stream: 1, headers: kind_of("data") };
        assert_eq!(client.opens(1, "data"), [opened]);
        client.session.accept(1);
        client.session.send(1, Bytes::from_static(b"hello"));
        let events = client.sends(data(1, true, "bye"));
        let payload = Bytes::from_static(b"bye");
        let finished = SessionEvent::Finished { stream: 1 };
        assert_eq!(events, [SessionEvent::Data { stream: 1, payload }, finished]);
        client.session.send(1, Bytes::from_static(b" still here"));
        client.session.finish(1);
        client.session.send(1, Bytes::from_static(b"too late"));
        let reply = Frame::SynReply { stream: 1, fin: false, headers: Headers::new() };
        let sent =
            [reply, data(1, false, "hello"), data(1, false, " still here"), data(1, true, "")];
        assert_eq!(client.reads(), sent);
        assert!(client.session.streams.is_empty());
    }

    #[test]
    fn pings_come_back() {
        let mut client = Client::default();
        assert_eq!(client.sends(Frame::Ping { id: 7 }), []);
        assert_eq!(client.reads(), [Frame::Ping { id: 7 }]);
    }

    #[test]
    fn streams_that_may_not_be() {
        let mut client = Client::default();
        client.opens(3, "data");
        for stream in [2, 3, 1] {
            assert_eq!(client.opens(stream, "data"), [], "{stream}");
            assert_eq!(client.reads(), [Frame::Reset { stream, reason: 1 }]);
        }
        for at in 1..Session::MOST_STREAMS as u32 {
            assert_eq!(client.opens(3 + 2 * at, "data").len(), 1);
        }
        assert_eq!(client.opens(9_999, "data"), []);
        assert_eq!(client.reads(), [Frame::Reset { stream: 9_999, reason: 3 }]);
    }

    #[test]
    fn nothing_is_heard_of_a_stream_that_was_reset() {
        let mut client = Client::default();
        client.opens(1, "data");
        client.session.reset(1, ResetReason::Cancel);
        assert_eq!(client.sends(data(1, true, "x")), []);
        assert_eq!(client.sends(Frame::Reset { stream: 1, reason: 5 }), []);
        client.session.finish(1);
        assert_eq!(client.reads(), [Frame::Reset { stream: 1, reason: 5 }]);
    }
}
