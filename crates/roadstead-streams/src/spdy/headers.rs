//! Header blocks: one zlib stream per direction, for as long as the connection lives.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary::dictionary;
use super::frame::{FrameError, Headers};

/// No Kubernetes client sends more than a few hundred bytes.
const LARGEST: usize = 64 * 1024;

pub(super) struct Compressor(Compress);

impl Compressor {
    pub(super) fn new() -> Self {
        let mut stream = Compress::new(Compression::default(), true);
        stream.set_dictionary(dictionary()).expect("a new stream takes a dictionary");
        Self(stream)
    }

    /// Ends with everything flushed, so that the peer can read this block before the next.
    pub(super) fn compress(&mut self, headers: &Headers) -> Vec<u8> {
        let plain = encode(headers);
        let mut out = Vec::with_capacity(plain.len() + 64);
        let before = self.0.total_in();
        loop {
            let done = (self.0.total_in() - before) as usize;
            if out.capacity() - out.len() < 64 {
                out.reserve(1024);
            }
            let room = out.capacity();
            self.0
                .compress_vec(&plain[done..], &mut out, FlushCompress::Sync)
                .expect("a stream that was never finished takes more");
            let all_in = (self.0.total_in() - before) as usize == plain.len();
            // Room left over means that nothing waits inside.
            if all_in && out.len() < room {
                return out;
            }
        }
    }
}

pub(super) struct Decompressor(Decompress);

impl Decompressor {
    pub(super) fn new() -> Self {
        Self(Decompress::new(true))
    }

    pub(super) fn decompress(&mut self, block: &[u8]) -> Result<Headers, FrameError> {
        let mut plain = Vec::with_capacity(1024);
        let before = self.0.total_in();
        loop {
            let done = (self.0.total_in() - before) as usize;
            if plain.capacity() == plain.len() {
                plain.reserve(plain.len());
            }
            let (had, room) = (plain.len(), plain.capacity());
            let result = self.0.decompress_vec(&block[done..], &mut plain, FlushDecompress::Sync);
            match result {
                Ok(Status::StreamEnd) => return Err(FrameError::Headers("the stream ends")),
                Ok(Status::Ok | Status::BufError) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0
                        .set_dictionary(dictionary())
                        .map_err(|_| FrameError::Headers("another dictionary is needed"))?;
                    continue;
                }
                Err(_) => return Err(FrameError::Headers("the compression is damaged")),
            }
            if plain.len() > LARGEST {
                return Err(FrameError::Headers("there are too many"));
            }
            let now = (self.0.total_in() - before) as usize;
            if now == block.len() && plain.len() < room {
                return decode(&plain);
            }
            if now == done && plain.len() == had {
                return Err(FrameError::Headers("the compression is cut short"));
            }
        }
    }
}

fn encode(headers: &Headers) -> Vec<u8> {
    let mut plain = Vec::new();
    let text = |text: &str, plain: &mut Vec<u8>| {
        plain.extend((text.len() as u32).to_be_bytes());
        plain.extend(text.as_bytes());
    };
    plain.extend((headers.len() as u32).to_be_bytes());
    for (name, value) in headers {
        text(&name.to_ascii_lowercase(), &mut plain);
        text(value, &mut plain);
    }
    plain
}

fn decode(plain: &[u8]) -> Result<Headers, FrameError> {
    let mut rest = plain;
    let count = number(&mut rest)?;
    let mut headers = Headers::new();
    for _ in 0..count {
        let name = text(&mut rest)?;
        let value = text(&mut rest)?;
        if headers.insert(name.to_ascii_lowercase(), value).is_some() {
            return Err(FrameError::Headers("one is there twice"));
        }
    }
    Ok(headers)
}

fn number(rest: &mut &[u8]) -> Result<usize, FrameError> {
    let (four, after) =
        rest.split_first_chunk::<4>().ok_or(FrameError::Headers("they are cut short"))?;
    *rest = after;
    Ok(u32::from_be_bytes(*four) as usize)
}

fn text(rest: &mut &[u8]) -> Result<String, FrameError> {
    let length = number(rest)?;
    if length > rest.len() {
        return Err(FrameError::Headers("they are cut short"));
    }
    let (bytes, after) = rest.split_at(length);
    *rest = after;
    String::from_utf8(bytes.to_vec()).map_err(|_| FrameError::Headers("one is not text"))
}
