//! Why an image did not come.

use crate::error::ImageError;

/// Why an image did not come, by what a node does about it.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// There is no such image, or not for this machine.
    #[error("{0}")]
    NotFound(String),
    /// The registry wants to know who asks, or knows and says no.
    #[error("{0}")]
    Unauthorized(String),
    /// Nobody answers, or not as a registry does.
    #[error("{0}")]
    Unavailable(String),
    /// What came is not what was promised, or cannot be kept.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl PullError {
    /// The error with all its causes, in one line.
    pub fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }
}
