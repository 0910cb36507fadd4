//! Where entries are in etcd, and in which form.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;

use crate::entry::Key;

/// Where entries are in etcd: pure, and given to the store by whoever knows what they are.
pub trait KeyLayout: Debug + Send + Sync {
    /// All entries are at keys that begin with this.
    fn prefix(&self) -> &str;

    /// Where an entry is.
    fn place(&self, key: &Key) -> String;

    /// The entry at a place; `None` if it is none of ours, and not to be touched.
    fn key(&self, place: &str) -> Option<Key>;

    /// How long an entry lasts after it was written, if not until somebody removes it.
    fn lasts(&self, _key: &Key) -> Option<Duration> {
        None
    }

    /// The value of an entry as our readers know it, made of what others may have written. What cannot be
    /// understood is given as it is.
    fn value(&self, key: &Key, stored: Bytes) -> Bytes;
}
