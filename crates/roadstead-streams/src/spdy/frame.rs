//! Frames and their bytes.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::headers::{Compressor, Decompressor};

/// The headers of a stream; names are lower case.
pub type Headers = BTreeMap<String, String>;

/// Why bytes are no SPDY. The connection cannot go on after any of them.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// The peer speaks something else.
    #[error("SPDY version {0} is not 3")]
    Version(u16),
    /// More than a control frame may have.
    #[error("a control frame of {0} bytes is too long")]
    TooLong(usize),
    /// Fewer bytes than its kind needs.
    #[error("a frame of type {0} is too short")]
    TooShort(u16),
    /// The header block cannot be read.
    #[error("the headers of a stream cannot be read: {0}")]
    Headers(&'static str),
}

/// What is wrong with a stream that is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ResetReason {
    /// The peer broke the rules.
    ProtocolError = 1,
    /// We do not want it.
    RefusedStream = 3,
    /// It is no longer needed.
    Cancel = 5,
    /// We failed.
    InternalError = 6,
}

/// One frame, of those that mean anything to Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are called as the protocol calls them")]
pub enum Frame {
    /// A stream begins.
    SynStream { stream: u32, fin: bool, headers: Headers },
    /// The stream is accepted.
    SynReply { stream: u32, fin: bool, headers: Headers },
    /// The stream ends at once, both ways.
    Reset { stream: u32, reason: u32 },
    /// Must be sent back as it is.
    Ping { id: u32 },
    /// The peer opens no more streams.
    GoAway { last: u32 },
    /// More headers of a stream.
    Headers { stream: u32, fin: bool, headers: Headers },
    /// Bytes. A long frame is handed out in the pieces in which it arrives; only the last has `fin`.
    Data { stream: u32, fin: bool, payload: Bytes },
    /// Settings, window updates and what nobody knows.
    Ignored,
}

const CONTROL: u16 = 0x8000;
const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const FIN: u8 = 1;
const HEAD: usize = 8;
const LONGEST_CONTROL: usize = 64 * 1024;
const LONGEST_DATA: usize = 0xff_ffff;

/// Turns bytes as they arrive into frames.
pub struct Decoder {
    arrived: BytesMut,
    headers: Decompressor,
    /// The data frame in the middle of which we are: stream, bytes to come, ends the stream.
    open: Option<(u32, usize, bool)>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { arrived: BytesMut::new(), headers: Decompressor::new(), open: None }
    }
}

impl Decoder {
    /// Takes what the socket gave.
    pub fn push(&mut self, bytes: &[u8]) {
        self.arrived.extend_from_slice(bytes);
    }

    /// Returns the next frame, or `None` until more has arrived.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some((stream, left, fin)) = self.open {
            return Ok(self.data(stream, left, fin));
        }
        let Some(head) = self.arrived.first_chunk::<HEAD>() else { return Ok(None) };
        let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let flags = head[4];
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
        if word >> 31 == 0 {
            self.arrived.advance(HEAD);
            return Ok(self.data(word, length, flags & FIN != 0));
        }
        let version = (word >> 16) as u16 & !CONTROL;
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        if length > LONGEST_CONTROL {
            return Err(FrameError::TooLong(length));
        }
        if self.arrived.len() < HEAD + length {
            return Ok(None);
        }
        self.arrived.advance(HEAD);
        let body = self.arrived.split_to(length).freeze();
        self.control(word as u16, flags & FIN != 0, body).map(Some)
    }

    fn data(&mut self, stream: u32, left: usize, fin: bool) -> Option<Frame> {
        let here = left.min(self.arrived.len());
        if here == 0 && left > 0 {
            self.open = Some((stream, left, fin));
            return None;
        }
        let payload = self.arrived.split_to(here).freeze();
        self.open = (here < left).then_some((stream, left - here, fin));
        Some(Frame::Data { stream, fin: fin && self.open.is_none(), payload })
    }

    fn control(&mut self, kind: u16, fin: bool, mut body: Bytes) -> Result<Frame, FrameError> {
        let needed = match kind {
            SYN_STREAM => 10,
            RST_STREAM | GOAWAY => 8,
            SYN_REPLY | PING | HEADERS => 4,
            _ => return Ok(Frame::Ignored),
        };
        if body.len() < needed {
            return Err(FrameError::TooShort(kind));
        }
        let stream = body.get_u32() & !(1 << 31);
        Ok(match kind {
            SYN_STREAM => {
                body.advance(6); // The stream it belongs to, and its priority.
                Frame::SynStream { stream, fin, headers: self.headers.decompress(&body)? }
            }
            SYN_REPLY => Frame::SynReply { stream, fin, headers: self.headers.decompress(&body)? },
            HEADERS => Frame::Headers { stream, fin, headers: self.headers.decompress(&body)? },
            RST_STREAM => Frame::Reset { stream, reason: body.get_u32() },
            PING => Frame::Ping { id: stream },
            _ => Frame::GoAway { last: stream },
        })
    }
}

/// Turns frames into bytes. One per connection: headers are compressed with what went before.
pub struct Encoder(Compressor);

impl Default for Encoder {
    fn default() -> Self {
        Self(Compressor::new())
    }
}

impl Encoder {
    /// Appends `frame` to `out`; data longer than a frame can be goes into several.
    pub fn encode(&mut self, frame: &Frame, out: &mut BytesMut) {
        match frame {
            Frame::SynStream { stream, fin, headers } => {
                let block = self.0.compress(headers);
                control(SYN_STREAM, *fin, 10 + block.len(), out);
                out.put_u32(*stream);
                out.put_bytes(0, 6);
                out.extend_from_slice(&block);
            }
            Frame::SynReply { stream, fin, headers } => {
                self.block(SYN_REPLY, (*stream, *fin), headers, out)
            }
            Frame::Headers { stream, fin, headers } => {
                self.block(HEADERS, (*stream, *fin), headers, out)
            }
            Frame::Reset { stream, reason } => {
                control(RST_STREAM, false, 8, out);
                out.put_u32(*stream);
                out.put_u32(*reason);
            }
            Frame::Ping { id } => {
                control(PING, false, 4, out);
                out.put_u32(*id);
            }
            Frame::GoAway { last } => {
                control(GOAWAY, false, 8, out);
                out.put_u32(*last);
                out.put_u32(0);
            }
            Frame::Data { stream, fin, payload } => data(*stream, *fin, payload, out),
            Frame::Ignored => {}
        }
    }

    fn block(
        &mut self,
        kind: u16,
        (stream, fin): (u32, bool),
        headers: &Headers,
        out: &mut BytesMut,
    ) {
        let block = self.0.compress(headers);
        control(kind, fin, 4 + block.len(), out);
        out.put_u32(stream);
        out.extend_from_slice(&block);
    }
}

fn control(kind: u16, fin: bool, length: usize, out: &mut BytesMut) {
    out.put_u16(CONTROL | VERSION);
    out.put_u16(kind);
    out.put_u32((u32::from(fin) << 24) | length as u32);
}

fn data(stream: u32, fin: bool, payload: &[u8], out: &mut BytesMut) {
    let mut rest = payload;
    loop {
        let (piece, after) = rest.split_at(rest.len().min(LONGEST_DATA));
        let last = after.is_empty();
        out.put_u32(stream);
        out.put_u32((u32::from(fin && last) << 24) | piece.len() as u32);
        out.extend_from_slice(piece);
        if last {
            return;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests;
