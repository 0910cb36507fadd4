//! What can go wrong with an image.

use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ImageError {
    /// The name makes no sense.
    #[error("invalid reference format: {0:?}{1}")]
    Reference(String, &'static str),
    /// The bytes are not those that their name promises.
    #[error("{what} has digest {found}, not {expected}")]
    Digest { what: String, found: Digest, expected: Digest },
    /// There are more or fewer bytes than promised.
    #[error("{what} has {found} bytes, not {expected}")]
    Size { what: String, found: u64, expected: u64 },
    /// A document that cannot be understood.
    #[error("{what} cannot be read: {why}")]
    Malformed { what: String, why: String },
    /// A layer that would do harm.
    #[error("layer entry {name:?} is refused: {why}")]
    Entry { name: String, why: &'static str },
    /// Nothing for this machine.
    #[error("no matching manifest for {0} in the manifest list entries")]
    Platform(String),
    /// It is not here.
    #[error("{0} is not here")]
    NotFound(String),
    /// The file system said no.
    #[error("{action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// A stream ended or broke.
    #[error("{0} breaks off")]
    Stream(&'static str, #[source] io::Error),
}

impl ImageError {
    /// Whether what came is not what its name promises, so that another server may have better.
    pub(crate) fn is_server_to_blame(&self) -> bool {
        matches!(self, Self::Digest { .. } | Self::Size { .. } | Self::Malformed { .. })
    }
}

/// Turns errors of the file system into ours, with what was tried on what.
pub(crate) trait OnPath<T> {
    fn on(self, action: &'static str, path: &Path) -> Result<T, ImageError>;
}

impl<T, E: Into<io::Error>> OnPath<T> for Result<T, E> {
    fn on(self, action: &'static str, path: &Path) -> Result<T, ImageError> {
        self.map_err(|source| ImageError::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        })
    }
}
