//! Several writes that happen together or not at all.

use std::time::Duration;

use bytes::Bytes;

use crate::entry::{Key, Revision};

/// Writes with the conditions under which they may happen.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    pub(crate) guards: Vec<(Key, Option<Revision>)>,
    pub(crate) writes: Vec<(Key, Option<Bytes>)>,
    /// Whether it leads to more room in the end.
    pub(crate) frees: bool,
    /// How long what is put lasts, where the log can end it by itself.
    pub(crate) lasts: Option<Duration>,
}

impl Transaction {
    /// Starts with nothing to do.
    pub fn new() -> Self {
        Self::default()
    }

    /// The key must be at this revision, or absent if `None`.
    pub fn expect(mut self, key: Key, revision: Option<Revision>) -> Self {
        self.guards.push((key, revision));
        self
    }

    /// Writes a value.
    pub fn put(mut self, key: Key, value: Bytes) -> Self {
        self.writes.push((key, Some(value)));
        self
    }

    /// It is part of a deletion: it may happen even if there is no room.
    pub fn freeing(mut self) -> Self {
        self.frees = true;
        self
    }

    /// What is put ends after this time, unless it is put again: by itself, where others may depend on
    /// it ([`is_shared`](crate::kv::Store::is_shared)); elsewhere it stays.
    pub fn lasting(mut self, time: Duration) -> Self {
        self.lasts = Some(time);
        self
    }

    /// Whether it writes or removes anything in a bucket.
    pub fn writes_to(&self, bucket: &str) -> bool {
        self.writes.iter().any(|(key, _)| *key.bucket == *bucket)
    }

    /// Of a deletion that removes something and writes something besides: the removal alone, which takes no room.
    pub fn removal_alone(&self) -> Option<Self> {
        let is_put = |(_, value): &(Key, Option<Bytes>)| value.is_some();
        let puts = self.writes.iter().filter(|write| is_put(write)).count();
        let is_mixed = puts > 0 && puts < self.writes.len();
        (self.frees && is_mixed).then(|| {
            let mut alone = self.clone();
            alone.writes.retain(|write| !is_put(write));
            alone
        })
    }

    /// Removes an entry; if there is none, nothing happens.
    pub fn delete(mut self, key: Key) -> Self {
        self.writes.push((key, None));
        self
    }
}
