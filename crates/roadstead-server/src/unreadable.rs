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
use roadstead_store::store::Store;
use roadstead_store::transaction::Transaction;
use serde_json::json;
use tracing::error;

use crate::api::Api;
use crate::error::ApiError;
use crate::object;
use crate::registry::Resource;

/// What cannot be read, and why. An entry that is written or deleted is none any more.
#[derive(Debug, Default)]
pub struct Unreadable {
    found: Mutex<BTreeMap<Key, (Revision, String)>>,
    some: AtomicBool,
}

impl Unreadable {
    /// Looks at everything in a store.
    pub fn find(store: &Store) -> Self {
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
    fn under(&self, store: &Store, bucket: &str, prefix: &str) -> Vec<(Key, String)> {
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

/// Fails if one of these objects cannot be read; `prefix` is how their paths begin.
pub fn check(api: &Api, resource: &Resource, prefix: &str) -> Result<(), ApiError> {
    let found = api.unreadable.under(&api.store, &resource.bucket, prefix);
    if found.is_empty() { Ok(()) } else { Err(ApiError::unreadable(resource.info(), &found)) }
}

/// Whether one object cannot be read, and why.
pub fn is_unreadable(api: &Api, key: &Key) -> Option<String> {
    let found = api.unreadable.under(&api.store, &key.bucket, &key.path);
    found.into_iter().find(|(found, _)| found == key).map(|(_, why)| why)
}

/// Fails if an object cannot be read.
pub fn check_one(api: &Api, resource: &Resource, key: &Key) -> Result<(), ApiError> {
    match is_unreadable(api, key) {
        None => Ok(()),
        Some(why) => Err(ApiError::unreadable(resource.info(), &[(key.clone(), why)])),
    }
}

/// The deletion of an object that cannot be read. Watchers are told of an object that has nothing
/// but its name, and then of its end.
pub fn removal(resource: &Resource, key: &Key, revision: Revision) -> Transaction {
    let (namespace, name) = key.path.split_once('/').unwrap_or(("", &key.path));
    let info = resource.info();
    let mut object = json!({"apiVersion": info.stored_api_version(), "kind": info.kind,
        "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    let outline = object::encode(&object);
    let transaction = Transaction::new().expect(key.clone(), Some(revision)).freeing();
    transaction.put(key.clone(), outline).delete(key.clone())
}
