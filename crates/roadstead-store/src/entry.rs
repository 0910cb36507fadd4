//! What the store holds: entries, and the events that made them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// The position of a write in the one order of all writes. The first write has revision 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// What claims to be newer is not ours: clients count in signed numbers, and there must be room to
    /// go on after a leap.
    pub(crate) const LARGEST: Self = Self(u64::MAX >> 2);
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since 1970.
pub(crate) type Millis = u64;

/// `bucket/path`: the bucket is what a watcher follows, the path is ordered within it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// For an object, the name of its resource, such as `deployments.apps`.
    pub bucket: Arc<str>,
    /// For an object, `namespace/name`, or `/name` when it has no namespace.
    pub path: Arc<str>,
}

impl Key {
    /// Joins a bucket and a path.
    pub fn new(bucket: impl Into<Arc<str>>, path: impl Into<Arc<str>>) -> Self {
        Self { bucket: bucket.into(), path: path.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bucket, self.path.trim_start_matches('/'))
    }
}

/// A value as it was written.
#[derive(Debug)]
pub struct Entry {
    /// Where it lives.
    pub key: Key,
    /// The bytes that were written.
    pub value: Bytes,
    /// The revision of that write.
    pub revision: Revision,
}

/// One write, as followers see it.
pub struct Event {
    /// The revision of the write.
    pub revision: Revision,
    /// What was written.
    pub key: Key,
    /// The state before; `None` if this write created the entry.
    pub before: Option<Arc<Entry>>,
    /// The state after; `None` if this write deleted the entry.
    pub after: Option<Arc<Entry>>,
    /// When it was written.
    pub(crate) at: Millis,
    /// Room for what followers send to others; the store itself never looks at it.
    pub(crate) encoded: OnceLock<Bytes>,
}

impl Event {
    /// The event in the form in which its followers pass it on. The first of them makes it, all
    /// others share it, so they must all name the same function.
    pub fn encoded(&self, encode: fn(&Event) -> Bytes) -> &Bytes {
        self.encoded.get_or_init(|| encode(self))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (&self.before, &self.after) {
            (None, Some(_)) => "created",
            (_, None) => "deleted",
            _ => "changed",
        };
        write!(f, "{} {what} at {}", self.key, self.revision)
    }
}
