//! The seam below the store: what makes writes outlive the process. A store in memory has none.

use std::error::Error;

use bytes::Bytes;

use crate::entry::{Entry, Key, Millis, Revision};
use crate::plan::Plan;

/// Where writes go before anyone sees them.
pub(crate) trait Journal: Send {
    /// Returns when all events of the plan are durable, in one step with what it forgets. After an
    /// error nobody knows how much of the plan is: the journal is not used again.
    fn write(&mut self, plan: &Plan) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// What a journal holds when it is opened.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The present.
    pub(crate) entries: Vec<Entry>,
    /// The log reaches back to just after this revision.
    pub(crate) compacted: Revision,
    /// In order, without gaps.
    pub(crate) log: Vec<Undo>,
}

/// How to undo one write.
#[derive(Debug)]
pub(crate) struct Undo {
    pub(crate) revision: Revision,
    pub(crate) at: Millis,
    pub(crate) key: Key,
    pub(crate) before: Option<(Revision, Bytes)>,
}
