//! Objects in the store that are no objects: what was written is not what we can read.
//!
//! They are looked for once, at the start, since we write none ourselves. Reading one, or a list that
//! it belongs to, is an error that names it, as upstream answers about corrupt objects: a list
//! without it would tell controllers that it is gone, and they would act on that. Whoever may
//! `unsafe-delete-ignore-read-errors` it can delete it like any other
//! (`docs/adr/0025-unreadable-objects.md`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use roadstead_store::entry::{Key, Revision};
use roadstead_store::kv::Store;
use serde_json::{Value, json};
use tracing::error;

use crate::etcd_layout;
use crate::reading::object;
use crate::registry::Resource;

/// What cannot be read, and why. An entry that is written or deleted is none any more.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    found: Mutex<BTreeMap<Key, (Revision, String)>>,
    some: AtomicBool,
}

impl Unreadable {
    /// Looks at everything in a store.
    pub(crate) fn find(store: &Store) -> Self {
        let entries = store.all().entries;
        // What is no object has no namespace in its path.
        let objects = entries.iter().filter(|entry| entry.key.path.contains('/'));
        let wrong = objects.filter_map(|entry| {
            let why = object::check(&entry.value).err()?;
            let (key, revision) = (entry.key.clone(), entry.revision);
            error!(object = %key, %revision, "a stored object cannot be read: {why}; an administrator can delete it");
            Some((key, (revision, why)))
        });
        let found: BTreeMap<_, _> = wrong.collect();
        Self { some: AtomicBool::new(!found.is_empty()), found: Mutex::new(found) }
    }

    /// Those of a bucket whose paths begin with a prefix.
    pub(crate) fn under(&self, store: &Store, bucket: &str, prefix: &str) -> Vec<(Key, String)> {
        if store.is_shared() {
            return written_by_others(store, bucket, prefix);
        }
        if !self.some.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |key: &Key, revision| store.get(key).is_some_and(|e| e.revision == revision);
        found.retain(|key, (revision, _)| is_same(key, *revision));
        self.some.store(!found.is_empty(), Ordering::Relaxed);
        let wanted = |key: &Key| *key.bucket == *bucket && key.path.starts_with(prefix);
        let wanted = found.iter().filter(|(key, _)| wanted(key));
        wanted.map(|(key, (_, why))| (key.clone(), why.clone())).collect()
    }
}

/// What others write may come at any time; what can be read of it has come in our own form.
fn written_by_others(store: &Store, bucket: &str, prefix: &str) -> Vec<(Key, String)> {
    let Ok(found) = store.list(bucket, prefix, None) else { return Vec::new() };
    let wrong = found
        .entries
        .iter()
        .filter_map(|entry| Some((entry.key.clone(), etcd_layout::unreadable(&entry.value)?)));
    wrong.collect()
}

/// What takes the place of an object that cannot be read before it goes: watchers are told of an object
/// that has nothing but its name, and then of its end.
pub(crate) fn outline(resource: &Resource, key: &Key) -> Value {
    let (namespace, name) = key.path.split_once('/').unwrap_or(("", &key.path));
    let info = resource.info();
    let mut object = json!({"apiVersion": info.stored_api_version(), "kind": info.kind,
        "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}
