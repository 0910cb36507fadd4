//! Digests: the names that content gives itself.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use aws_lc_rs::digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::ImageError;

/// The SHA-256 of some bytes, written as `sha256:<64 hexadecimal digits>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digits alone: a file name.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl FromStr for Digest {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let wrong = |why| ImageError::Malformed { what: format!("digest {text:?}"), why };
        let digits =
            text.strip_prefix("sha256:").ok_or_else(|| wrong("it is not of sha256".into()))?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != 64 || !digits.bytes().all(is_digit) {
            return Err(wrong("it is not 64 lower-case hexadecimal digits".into()));
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let value = |digit: u8| if digit <= b'9' { digit - b'0' } else { digit - b'a' + 10 };
            *byte = (value(pair[0]) << 4) | value(pair[1]);
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Computes a digest piece by piece.
pub struct Hasher {
    context: digest::Context,
    bytes: u64,
}

impl Default for Hasher {
    fn default() -> Self {
        Self { context: digest::Context::new(&digest::SHA256), bytes: 0 }
    }
}

impl Hasher {
    /// Takes the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.context.update(piece);
        self.bytes += piece.len() as u64;
    }

    /// How many bytes there were.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The digest of all of them.
    pub fn finish(self) -> Digest {
        let digest = self.context.finish();
        Digest(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// Hashes whatever is read through it.
pub(crate) struct Hashed<R> {
    inner: R,
    pub(crate) hasher: Hasher,
}

impl<R: Read> Hashed<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hasher: Hasher::default() }
    }

    /// Reads what is left, so that all of it is counted.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(drop)
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// Hashes whatever is written through it.
pub(crate) struct HashedWriter<W> {
    inner: W,
    hasher: Hasher,
}

impl<W: Write> HashedWriter<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, hasher: Hasher::default() }
    }

    pub(crate) fn finish(self) -> (W, u64, Digest) {
        let bytes = self.hasher.bytes();
        (self.inner, bytes, self.hasher.finish())
    }
}

impl<W: Write> Write for HashedWriter<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(piece)?;
        self.hasher.update(&piece[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
        for wrong in
            ["", "sha256:", "sha512:00", &empty[..70], &empty.to_uppercase(), "sha256:../../x"]
        {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
