//! What was written of the objects of one kind.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use roadstead_api::key::ObjectKey;

use super::family::{Measured, Written, header};

/// How many objects there are, and what they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) objects: usize,
    pub(super) bytes: usize,
    /// Objects that there was no room for.
    pub(super) left_out: usize,
}

/// The objects of one kind, as they were written down.
#[derive(Debug)]
pub(super) struct Book<K> {
    written: BTreeMap<Box<str>, Written>,
    left_out: BTreeSet<Box<str>>,
    bytes: usize,
    kind: PhantomData<fn(K)>,
}

impl<K> Default for Book<K> {
    fn default() -> Self {
        let (written, left_out) = (BTreeMap::new(), BTreeSet::new());
        Self { written, left_out, bytes: 0, kind: PhantomData }
    }
}

impl<K: Measured> Book<K> {
    /// Writes down an object, if there is so much room.
    pub(super) fn set(&mut self, key: &ObjectKey, object: &K, room: usize) {
        let (written, key) = (Written::of(object), key.packed());
        let before = self.written.remove(&key).map_or(0, |before| before.bytes());
        self.bytes -= before;
        if written.bytes() > room + before {
            self.left_out.insert(key);
            return;
        }
        self.left_out.remove(&key);
        self.bytes += written.bytes();
        self.written.insert(key, written);
    }

    /// Forgets an object.
    pub(super) fn remove(&mut self, key: &ObjectKey) {
        let key = key.packed();
        self.left_out.remove(&key);
        self.bytes -= self.written.remove(&key).map_or(0, |written| written.bytes());
    }

    pub(super) fn count(&self) -> Count {
        let (objects, left_out) = (self.written.len(), self.left_out.len());
        Count { objects, bytes: self.bytes, left_out }
    }

    /// Writes a part of the page: metric by metric, and of each all objects.
    pub(super) fn write(&self, page: &mut String) {
        for (index, family) in K::FAMILIES.iter().enumerate() {
            header(page, family.name, family.help, family.kind());
            self.written.values().for_each(|written| page.push_str(written.samples(index)));
        }
    }
}
