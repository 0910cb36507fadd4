//! Why the store refused.

use crate::entry::{Key, Revision};

/// Why the store refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote first.
    #[error("{key} is at revision {found:?}, the write expected {expected:?}")]
    Conflict {
        /// The key that is not as expected.
        key: Key,
        /// `None`: the write expected no entry.
        expected: Option<Revision>,
        /// `None`: there is no entry.
        found: Option<Revision>,
    },
    /// The history reaches back only so far.
    #[error("revision {asked} is gone, history begins after {oldest}")]
    Compacted {
        /// What the reader asked for.
        asked: Revision,
        /// Reading can resume after this revision.
        oldest: Revision,
    },
    /// Nobody has written that much yet.
    #[error("revision {asked} is in the future, the store is at {newest}")]
    Future {
        /// What the reader asked for.
        asked: Revision,
        /// The revision of the newest write.
        newest: Revision,
    },
}
