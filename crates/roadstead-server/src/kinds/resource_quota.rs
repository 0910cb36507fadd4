//! ResourceQuotas: what an object costs is written into them in the transaction that makes it, so that
//! no number of clients can take more than there is (`docs/adr/0110-quotas-are-charged-in-the-transaction.md`).
//!
//! What is used is counted by a controller; until it has counted, a quota limits nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use roadstead_plan::quota::{self, ObjectKind};
use roadstead_schema::json::Pointer;
use roadstead_store::entry::Entry;
use roadstead_store::transaction::Transaction;
use serde_json::Value;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::admission::{AdmissionPlugin, Occasion, Turn};
use crate::objects::delete::Removal;
use crate::objects::write::Context;
use crate::reading::object;
use crate::registry::Resource;

/// Who writes into a namespace with quotas, one after the other: otherwise all would compute the same
/// new sum, and all but one would have to begin again.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

pub(super) struct ResourceQuota;

impl AdmissionPlugin for ResourceQuota {
    /// If the namespace has quotas at all.
    fn turn<'a>(
        &self,
        api: &'a Api,
        resource: &Resource,
        namespace: &'a str,
        occasion: Occasion,
    ) -> Option<BoxFuture<'a, Turn>> {
        let is_idle = occasion == Occasion::Update && !quota::follows_changes(&kind(resource));
        match is_idle || entries(api, namespace).is_ok_and(|found| found.is_empty()) {
            true => None,
            false => Some(Box::pin(api.quota_turns.wait(namespace))),
        }
    }

    fn complete(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        let changes = quota::follows_changes(&kind(context.resource));
        match old.is_some() && context.subresource.is_empty() && !changes {
            true => Ok(transaction),
            false => charge(context, old, new, transaction),
        }
    }

    fn remove(&self, removal: &Removal<'_>, transaction: Transaction) -> Transaction {
        release(removal, transaction)
    }
}

impl Turns {
    async fn wait(&self, namespace: &str) -> Turn {
        let turn = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, turn| Arc::strong_count(turn) > 1);
            all.entry(namespace.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

/// Completes the transaction that makes or changes an object, or refuses it.
fn charge(
    context: &Context<'_>,
    old: Option<&Value>,
    new: &Value,
    mut transaction: Transaction,
) -> Result<Transaction, ApiError> {
    let Context { api, resource, namespace, .. } = *context;
    for entry in entries(api, namespace)? {
        let mut quota = object::value(&entry);
        let charged = quota::charge(&quota, &kind(resource), old, Some(new)).map_err(|why| {
            ApiError::forbidden_object(resource.info(), new.text("/metadata/name"), &why)
        })?;
        if let Some(used) = charged {
            quota["status"]["used"] = used;
            transaction = rewritten(&entry, &quota, transaction);
        }
    }
    Ok(transaction)
}

/// Completes the transaction that removes an object: what it has cost is free again.
fn release(removal: &Removal<'_>, mut transaction: Transaction) -> Transaction {
    let Removal { api, resource, object, .. } = removal;
    let Ok(entries) = entries(api, object.text("/metadata/namespace")) else { return transaction };
    // A quota that goes is not written again.
    let own = removal.key();
    for entry in entries.into_iter().filter(|entry| entry.key != own) {
        let mut quota = object::value(&entry);
        if let Ok(Some(used)) = quota::charge(&quota, &kind(resource), Some(object), None) {
            quota["status"]["used"] = used;
            transaction = rewritten(&entry, &quota, transaction);
        }
    }
    transaction
}

fn rewritten(entry: &Entry, quota: &Value, transaction: Transaction) -> Transaction {
    let transaction = transaction.expect(entry.key.clone(), Some(entry.revision));
    transaction.put(entry.key.clone(), object::encode(quota))
}

fn kind(resource: &Resource) -> ObjectKind<'_> {
    ObjectKind { group: resource.info().group, plural: resource.info().plural }
}

/// The quotas of a namespace; what has no namespace has none.
fn entries(api: &Api, namespace: &str) -> Result<Vec<Arc<Entry>>, ApiError> {
    if namespace.is_empty() {
        return Ok(Vec::new());
    }
    let registry = api.registry();
    let quotas = registry.core("resourcequotas");
    Ok(api.storage.store.list(&quotas.bucket, &quotas.prefix(namespace), None)?.entries)
}
