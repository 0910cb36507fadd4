use bytes::BytesMut;

use super::*;
use crate::spdy::frame::{Decoder, Encoder, Frame, Headers};

/// A client of `port-forward` over SPDY, and what it hears.
struct Client {
    encoder: Encoder,
    decoder: Decoder,
    connection: ForwardConnection,
}

impl Client {
    fn new() -> Self {
        let connection = ForwardConnection::streams();
        Self { encoder: Encoder::default(), decoder: Decoder::default(), connection }
    }

    fn sends(&mut self, frame: Frame) -> Vec<ForwardEvent> {
        let mut bytes = BytesMut::new();
        self.encoder.encode(&frame, &mut bytes);
        self.connection.receive(&bytes).unwrap()
    }

    fn opens(&mut self, stream: u32, kind: &str, port: &str) -> Vec<ForwardEvent> {
        let rows = [("streamtype", kind), ("port", port), ("requestid", "0")];
        let headers = rows.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.sends(Frame::SynStream { stream, fin: false, headers: Headers::from(headers) })
    }

    /// What it hears, such as `3=text`, `3.` for an end and `3!5` for a reset.
    fn hears(&mut self) -> String {
        self.decoder.push(&self.connection.take_output());
        let frames = std::iter::from_fn(|| self.decoder.next_frame().unwrap());
        let words = frames.filter_map(|frame| match frame {
            Frame::Data { stream, fin: true, .. } => Some(format!("{stream}.")),
            Frame::Data { stream, payload, .. } => {
                Some(format!("{stream}={}", String::from_utf8_lossy(&payload)))
            }
            Frame::Reset { stream, reason } => Some(format!("{stream}!{reason}")),
            _ => None,
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// With a connection to port 80: stream 1 for errors, 3 for data.
    fn connected() -> Self {
        let mut client = Self::new();
        assert_eq!(client.opens(1, "error", "80"), []);
        let connect = ForwardEvent::Connect { connection: 3, port: 80 };
        assert_eq!(client.opens(3, "data", "80"), [connect]);
        client
    }
}

fn data(stream: u32, fin: bool, text: &'static str) -> Frame {
    Frame::Data { stream, fin, payload: Bytes::from_static(text.as_bytes()) }
}

#[test]
fn each_end_can_end_first() {
    for client_first in [true, false] {
        let mut client = Client::connected();
        let payload = Bytes::from_static(b"ask");
        assert_eq!(
            client.sends(data(3, false, "ask")),
            [ForwardEvent::Data { connection: 3, payload }]
        );
        let finished = [ForwardEvent::Finished { connection: 3 }];
        if client_first {
            assert_eq!(client.sends(data(3, true, "")), finished);
        }
        client.connection.send(3, Bytes::from_static(b"answer"));
        client.connection.finish(3);
        assert_eq!(client.hears(), "3=answer 3.");
        if !client_first {
            assert_eq!(client.sends(data(3, true, "")), finished);
        }
        client.connection.end(3);
        assert_eq!(client.hears(), "1.", "all went well");
    }
}

#[test]
fn what_fails() {
    let mut client = Client::connected();
    client.connection.fail(3, "refused");
    assert_eq!(client.hears(), "1=refused 1. 3!6");
    assert_eq!(client.sends(data(3, false, "late")), []);
    client.connection.send(3, Bytes::from_static(b"late"));
    assert_eq!(client.hears(), "");

    let mut client = Client::connected();
    client.connection.reset(3);
    assert_eq!(client.hears(), "3!5 1.");

    let mut client = Client::connected();
    let reset = Frame::Reset { stream: 3, reason: 5 };
    assert_eq!(client.sends(reset), [ForwardEvent::Reset { connection: 3 }]);
    assert_eq!(client.hears(), "1.");

    let mut client = Client::new();
    for (stream, port) in [(1, "0"), (3, "70000"), (5, "http")] {
        assert_eq!(client.opens(stream, "data", port), [], "{port}");
        assert_eq!(client.hears(), format!("{stream}!1"));
    }
}

#[test]
fn a_tunnel_has_no_boundaries() {
    let (mut encoder, mut bytes) = (Encoder::default(), BytesMut::new());
    for (stream, kind) in [(1, "error"), (3, "data")] {
        let rows = [("streamtype", kind), ("port", "80")];
        let headers = rows.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        encoder.encode(&Frame::SynStream { stream, fin: false, headers }, &mut bytes);
    }
    let mut connection = ForwardConnection::tunnel();
    let mut events = Vec::new();
    for piece in bytes.chunks(7) {
        let frame = [&[0x82, 0x80 | piece.len() as u8, 0, 0, 0, 0], piece].concat();
        events.extend(connection.receive(&frame).unwrap());
    }
    assert_eq!(events, [ForwardEvent::Connect { connection: 3, port: 80 }]);
    connection.send(3, Bytes::from_static(b"hello"));
    let output = connection.take_output();
    assert_eq!(output[0], 0x82, "one binary message");
    assert!(output.ends_with(b"hello"));
}

#[test]
fn channels_begin_with_their_ports() {
    let (mut connection, events) = ForwardConnection::channels(Encoding::Binary, vec![80, 8080]);
    assert_eq!(
        events,
        [
            ForwardEvent::Connect { connection: 0, port: 80 },
            ForwardEvent::Connect { connection: 2, port: 8080 }
        ]
    );
    let ports: &[u8] = &[0x82, 3, 0, 80, 0, 0x82, 3, 1, 80, 0, 0x82, 3, 2, 0x90, 0x1f];
    assert!(connection.take_output().starts_with(ports));
    let say = |channel: u8| [0x82, 0x82, 0, 0, 0, 0, channel, b'x'];
    let payload = Bytes::from_static(b"x");
    let said = connection.receive(&say(2)).unwrap();
    assert_eq!(said, [ForwardEvent::Data { connection: 2, payload }]);
    for nothing in [1, 4, 255] {
        assert_eq!(connection.receive(&say(nothing)).unwrap(), [], "{nothing}");
    }
    connection.fail(2, "no");
    assert_eq!(&connection.take_output()[..], [0x82, 3, 3, b'n', b'o']);
}
