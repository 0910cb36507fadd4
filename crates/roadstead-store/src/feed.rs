//! Reading the history of a bucket at one's own pace.

use std::sync::Arc;

use tokio::sync::watch;

use crate::entry::{Event, Revision};
use crate::error::StoreError;
use crate::kv::Store;

/// About how many events are handed out at a time: a reader that comes back from far behind does not
/// need room for everything that happened.
const AT_ONCE: usize = 1024;

/// What happened in a bucket since the last look.
#[derive(Debug)]
pub struct Batch {
    /// In order; may be empty. All events of a revision are in one batch.
    pub events: Vec<Arc<Event>>,
    /// The bucket has no further events up to and including this revision.
    pub revision: Revision,
}

/// A reader's place in the history of one bucket.
#[derive(Debug)]
pub struct Feed {
    store: Arc<Store>,
    bucket: Arc<str>,
    after: Revision,
    changed: watch::Receiver<Revision>,
}

impl Feed {
    pub(crate) fn new(
        store: Arc<Store>,
        bucket: Arc<str>,
        after: Revision,
        changed: watch::Receiver<Revision>,
    ) -> Self {
        Self { store, bucket, after, changed }
    }

    /// What has happened since the last look, without waiting.
    pub fn now(&mut self) -> Result<Batch, StoreError> {
        self.read(usize::MAX)
    }

    /// Waits until something happens. Safe to drop at any moment: nothing is skipped.
    pub async fn next(&mut self) -> Result<Batch, StoreError> {
        loop {
            let batch = self.read(AT_ONCE)?;
            if !batch.events.is_empty() {
                return Ok(batch);
            }
            #[cfg(test)]
            crate::turns::point();
            // If this fails, so does the next look.
            let _ = self.changed.changed().await;
        }
    }

    fn read(&mut self, limit: usize) -> Result<Batch, StoreError> {
        if self.changed.has_changed().is_err() {
            // The sender is in the state that we follow: there is another state, which has gone back.
            let oldest = self.store.revision();
            return Err(StoreError::Compacted { asked: self.after, oldest });
        }
        self.changed.mark_unchanged();
        let batch = self.store.events_after(&self.bucket, self.after, limit)?;
        self.after = batch.revision;
        Ok(batch)
    }
}
