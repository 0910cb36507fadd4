//! The objects of a cluster, and the kinds that they are of.

use std::sync::Arc;

use roadstead_store::entry::Key;
use roadstead_store::kv::Store;
use serde_json::Value;

use crate::error::ApiError;
use crate::objects::unreadable::Unreadable;
use crate::reading::object;
use crate::registry::{Catalog, Registry, Resource};

/// What is stored.
pub(crate) struct Storage {
    pub(crate) store: Arc<Store>,
    catalog: Catalog,
    unreadable: Unreadable,
}

impl Storage {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let unreadable = Unreadable::find(&store);
        Self { catalog: Catalog::new(store.clone()), unreadable, store }
    }

    /// From now on the kinds of what is measured are served, too.
    pub(crate) fn serve_measured(&self) {
        self.catalog.serve_measured();
    }

    /// The kinds served now.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.catalog.now()
    }

    /// One object in the form in which it is stored.
    pub(crate) fn object(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Value> {
        let entry = self.store.get(&resource.key(namespace, name))?;
        Some(object::value(&entry))
    }

    /// Fails if one of these objects cannot be read; `prefix` is how their paths begin.
    pub(crate) fn check_readable(&self, resource: &Resource, prefix: &str) -> Result<(), ApiError> {
        let found = self.unreadable.under(&self.store, &resource.bucket, prefix);
        if found.is_empty() { Ok(()) } else { Err(ApiError::unreadable(resource.info(), &found)) }
    }

    /// Whether one object cannot be read, and why.
    pub(crate) fn is_unreadable(&self, key: &Key) -> Option<String> {
        let found = self.unreadable.under(&self.store, &key.bucket, &key.path);
        found.into_iter().find(|(found, _)| found == key).map(|(_, why)| why)
    }

    /// Fails if an object cannot be read.
    pub(crate) fn check_one(&self, resource: &Resource, key: &Key) -> Result<(), ApiError> {
        match self.is_unreadable(key) {
            None => Ok(()),
            Some(why) => Err(ApiError::unreadable(resource.info(), &[(key.clone(), why)])),
        }
    }
}
