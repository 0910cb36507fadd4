//! Node ports that were kept otherwise: by an earlier version, by a kube-apiserver with another range, or
//! in a store that has become one of the other sort. Before the first Service is written, they are kept
//! as [`node_ports`] has them.

use roadstead_plan::port_bitmap::PortBitmap;
use roadstead_store::error::StoreError;
use roadstead_store::transaction::Transaction;
use tracing::{info, warn};

use super::node_ports::{self, RANGES, ROWS, bitmap_key, encode, row};
use super::{held_ports, holder};
use crate::api::Api;
use crate::error::ApiError;
use crate::reading::object;

/// How many rows go in one transaction: etcd takes no more than 128 keys.
const ROWS_AT_ONCE: usize = 100;

/// Takes over what there is.
pub(crate) async fn run(api: &Api) -> Result<(), ApiError> {
    let store = &api.storage.store;
    store.fresh().await?;
    loop {
        let transaction = match store.is_shared() {
            true => into_bitmap(api)?,
            false => into_rows(api)?,
        };
        let Some(transaction) = transaction else { return Ok(()) };
        match store.commit(transaction).await {
            // Another server does the same.
            Ok(_) | Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The next step on the way to one key for all ports: it is made of what Services hold, counted from the first
/// port of this server's range, and takes in the rows of an earlier version.
fn into_bitmap(api: &Api) -> Result<Option<Transaction>, ApiError> {
    let (store, range) = (&api.storage.store, &api.network.services.node_ports);
    let stored = store.get(&bitmap_key());
    let rows = store.list(ROWS, "", None)?.entries;
    let before = match &stored {
        Some(entry) => Some(node_ports::read(entry)?),
        None => None,
    };
    if rows.is_empty() && before.as_ref().is_some_and(|before| before.range() == range) {
        return Ok(None);
    }
    let mut bitmap = match &before {
        Some(before) => before.within(range),
        None => held(api)?,
    };
    if let Some(before) = before.filter(|before| before.range() != range) {
        let (theirs, ours) = (before.range_text(), bitmap.range_text());
        warn!(theirs, ours, "node ports in etcd had another range");
    }
    let revision = stored.map(|entry| entry.revision);
    let mut transaction = Transaction::new().expect(bitmap_key(), revision);
    for entry in rows.iter().take(ROWS_AT_ONCE) {
        entry.key.path.parse().into_iter().for_each(|port| bitmap.take(port));
        let key = entry.key.clone();
        transaction = transaction.expect(key.clone(), Some(entry.revision)).delete(key);
    }
    info!(taken = bitmap.taken().count(), "node ports are kept as kube-apiserver keeps them");
    Ok(Some(transaction.put(bitmap_key(), encode(&bitmap))))
}

/// What all Services hold.
fn held(api: &Api) -> Result<PortBitmap, ApiError> {
    let mut bitmap = PortBitmap::new(api.network.services.node_ports.clone());
    for entry in api.storage.store.list("services", "", None)?.entries {
        held_ports(&object::value(&entry)).into_iter().for_each(|port| bitmap.take(port));
    }
    Ok(bitmap)
}

/// The other way round, for a store that was restored from a snapshot of one in etcd.
fn into_rows(api: &Api) -> Result<Option<Transaction>, ApiError> {
    let store = &api.storage.store;
    let keys: Vec<_> = store.list(RANGES, "", None)?.entries;
    if keys.is_empty() {
        return Ok(None);
    }
    let mut transaction = Transaction::new();
    for entry in store.list("services", "", None)?.entries {
        let service = object::value(&entry);
        for port in held_ports(&service) {
            transaction = transaction.put(row(port), holder(&service));
        }
    }
    for entry in keys {
        let key = entry.key.clone();
        transaction = transaction.expect(key.clone(), Some(entry.revision)).delete(key);
    }
    Ok(Some(transaction))
}
