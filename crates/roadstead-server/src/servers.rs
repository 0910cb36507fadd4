//! The servers of a cluster: each says every few seconds, in a place of its own that ends by itself, that it
//! is there; the Service `kubernetes` leads to all who do. The places are kube-apiserver's
//! (`masterleases`), so that servers of both kinds see each other.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use roadstead_schema::json::Pointer;
use roadstead_store::entry::Key;
use roadstead_store::error::StoreError;
use roadstead_store::kv::Store;
use roadstead_store::transaction::Transaction;
use serde_json::json;

use crate::api::Api;
use crate::error::ApiError;
use crate::reading::object;

/// Where the store keeps them.
pub(crate) const BUCKET: &str = "masterleases";
/// How long a server counts that says nothing.
const LASTS: Duration = Duration::from_secs(15);
/// Nobody else writes it but etcd, when it ends.
const ATTEMPTS: usize = 3;

/// Says that a server is there; returns the addresses of all that are, in order.
pub(crate) async fn announce(store: &Store, own: IpAddr) -> Result<BTreeSet<IpAddr>, ApiError> {
    if !store.is_shared() {
        return Ok([own].into());
    }
    let key = Key::new(BUCKET, format!("/{own}"));
    let lease = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": own.to_string()},
        "subsets": [{"addresses": [{"ip": own.to_string()}]}]});
    for _ in 0..ATTEMPTS {
        let found = store.get(&key).map(|entry| entry.revision);
        let transaction = Transaction::new().expect(key.clone(), found).lasting(LASTS);
        match store.commit(transaction.put(key.clone(), object::encode(&lease))).await {
            // The old one has just ended.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let mut all = present(store)?;
    all.insert(own);
    Ok(all)
}

/// The addresses of the servers that say that they are there, as far as this one knows.
pub(crate) fn present(store: &Store) -> Result<BTreeSet<IpAddr>, ApiError> {
    let all = store.list(BUCKET, "", None)?.entries;
    Ok(all.iter().flat_map(|entry| addresses(&entry.value)).collect())
}

/// Whether clients of this server have somewhere else to go.
pub(crate) fn are_others(api: &Api) -> bool {
    let own = api.advertise.map(|(own, _)| own);
    let found = present(&api.storage.store).unwrap_or_default();
    found.into_iter().any(|address| Some(address) != own)
}

/// A server stops: clients need not find out by themselves.
pub(crate) async fn leave(store: &Store, own: IpAddr) {
    let key = Key::new(BUCKET, format!("/{own}"));
    if store.is_shared()
        && let Some(entry) = store.get(&key)
    {
        let transaction = Transaction::new().expect(key.clone(), Some(entry.revision));
        // If this fails, it ends by itself.
        let _ = store.commit(transaction.delete(key)).await;
    }
}

fn addresses(value: &[u8]) -> Vec<IpAddr> {
    let lease = object::parse(value);
    let all = lease.list("/subsets").iter().flat_map(|subset| subset.list("/addresses"));
    all.filter_map(|address| address.text("/ip").parse().ok()).collect()
}

#[test]
fn what_servers_say() {
    let theirs = br#"{"metadata":{},"subsets":[{"addresses":[{"ip":"10.0.0.5"},{"ip":"x"}]},
        {"addresses":[{"ip":"fd00::5"}]}]}"#;
    let found: Vec<_> = addresses(theirs).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["10.0.0.5", "fd00::5"]);
    assert!(addresses(b"nonsense").is_empty());
}
