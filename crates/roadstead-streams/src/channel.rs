//! Messages of a WebSocket that carry several streams: the first byte names the channel.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};

/// How a message is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Binary messages: the channel's number, then the bytes.
    Binary,
    /// Text messages for clients that cannot do better: the channel as a digit, then base64.
    Base64,
}

/// The streams of `exec` and `attach`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// To the process.
    Stdin = 0,
    /// From it.
    Stdout = 1,
    /// From it, unless there is a terminal.
    Stderr = 2,
    /// How it ended.
    Error = 3,
    /// The size of the client's window, in JSON.
    Resize = 4,
}

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub enum ChannelMessage {
    /// Bytes for a channel.
    Data(Channel, Bytes),
    /// It sends no more on this channel (version 5).
    Close(Channel),
}

/// A message that is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChannelError {
    /// There is no such channel.
    #[error("there is no channel {0}")]
    Unknown(u8),
    /// A text message must be base64.
    #[error("a message is not base64")]
    Base64,
}

/// The number by which version 5 closes a channel.
const CLOSE: u8 = 255;

impl Channel {
    fn of(number: u8) -> Result<Self, ChannelError> {
        let all = [Self::Stdin, Self::Stdout, Self::Stderr, Self::Error, Self::Resize];
        all.get(usize::from(number)).copied().ok_or(ChannelError::Unknown(number))
    }
}

/// Reads a message. An empty one says nothing.
pub fn decode(message: &Bytes, encoding: Encoding) -> Result<Option<ChannelMessage>, ChannelError> {
    let Some((number, payload)) = decode_numbered(message, encoding)? else { return Ok(None) };
    if number == CLOSE && encoding == Encoding::Binary {
        let closed = payload.first().copied().ok_or(ChannelError::Unknown(CLOSE))?;
        return Ok(Some(ChannelMessage::Close(Channel::of(closed)?)));
    }
    Ok(Some(ChannelMessage::Data(Channel::of(number)?, payload)))
}

/// Reads a message of a protocol whose channels have numbers and no names.
pub(crate) fn decode_numbered(
    message: &Bytes,
    encoding: Encoding,
) -> Result<Option<(u8, Bytes)>, ChannelError> {
    let Some((&first, rest)) = message.split_first() else { return Ok(None) };
    Ok(Some(match encoding {
        Encoding::Binary => (first, message.slice(1..)),
        Encoding::Base64 => {
            let payload = STANDARD.decode(rest).map_err(|_| ChannelError::Base64)?;
            (first.wrapping_sub(b'0'), payload.into())
        }
    }))
}

/// Writes a message.
pub fn encode(channel: Channel, payload: &[u8], encoding: Encoding) -> Bytes {
    encode_numbered(channel as u8, payload, encoding)
}

/// Writes a message of a protocol whose channels have numbers and no names.
pub(crate) fn encode_numbered(channel: u8, payload: &[u8], encoding: Encoding) -> Bytes {
    let mut message = BytesMut::with_capacity(payload.len() + 1);
    match encoding {
        Encoding::Binary => {
            message.put_u8(channel);
            message.extend_from_slice(payload);
        }
        Encoding::Base64 => {
            message.put_u8(b'0'.wrapping_add(channel));
            message.extend_from_slice(STANDARD.encode(payload).as_bytes());
        }
    }
    message.freeze()
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// Reads what clients send when their window changes: `{"Width":132,"Height":50}`. A size of
/// nothing, which some send when they have no terminal, is none.
pub(crate) fn terminal_size(payload: &[u8]) -> Option<TerminalSize> {
    let value: serde_json::Value = serde_json::from_slice(payload).ok()?;
    let side = |name: &str| u16::try_from(value.get(name)?.as_u64()?).ok().filter(|side| *side > 0);
    Some(TerminalSize { width: side("Width")?, height: side("Height")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChannelMessage::{Close, Data};

    type Decoded = Result<Option<ChannelMessage>, ChannelError>;

    #[test]
    fn messages() {
        let cases: [(&str, &[u8], Encoding, Decoded); 9] = [
            ("input", b"\x00ls\n", Encoding::Binary, data(Channel::Stdin, "ls\n")),
            ("nothing of stdout", b"\x01", Encoding::Binary, data(Channel::Stdout, "")),
            ("nothing at all", b"", Encoding::Binary, Ok(None)),
            ("end of input", b"\xff\x00", Encoding::Binary, Ok(Some(Close(Channel::Stdin)))),
            ("an end of what", b"\xff", Encoding::Binary, Err(ChannelError::Unknown(255))),
            ("unknown", b"\x05x", Encoding::Binary, Err(ChannelError::Unknown(5))),
            ("base64", b"0bHM=", Encoding::Base64, data(Channel::Stdin, "ls")),
            ("no base64", b"0*", Encoding::Base64, Err(ChannelError::Base64)),
            ("no digit", b"", Encoding::Base64, Ok(None)),
        ];
        for (name, bytes, encoding, want) in cases {
            assert_eq!(decode(&Bytes::copy_from_slice(bytes), encoding), want, "{name}");
        }
    }

    fn data(channel: Channel, text: &'static str) -> Result<Option<ChannelMessage>, ChannelError> {
        Ok(Some(Data(channel, Bytes::from_static(text.as_bytes()))))
    }

    #[test]
    fn what_is_written_is_read() {
        for encoding in [Encoding::Binary, Encoding::Base64] {
            let message = encode(Channel::Stderr, b"\x00\xffno", encoding);
            let want = Data(Channel::Stderr, Bytes::from_static(b"\x00\xffno"));
            assert_eq!(decode(&message, encoding), Ok(Some(want)));
        }
    }

    #[test]
    fn sizes() {
        let cases = [
            (r#"{"Width":132,"Height":50}"#, Some(TerminalSize { width: 132, height: 50 })),
            (r#"{"Width":0,"Height":50}"#, None),
            (r#"{"Width":99999,"Height":50}"#, None),
            ("{}", None),
            ("no json", None),
        ];
        for (text, want) in cases {
            assert_eq!(terminal_size(text.as_bytes()), want, "{text}");
        }
    }
}
