//! Taking a custom kind away: first its objects, then its definition.
//!
//! A definition that is deleted waits for its objects, and its objects may wait for finalizers of
//! their own. Whoever removes the last of them removes the definition.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use roadstead_api::look::Look;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};

use crate::api::Api;
use crate::custom::DEFINITIONS;
use crate::delete::{self, Options};
use crate::error::ApiError;
use crate::registry::{KindRef, Resource};
use crate::write::{commit, seconds};
use crate::{object, write};

/// What a definition waits for.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// How many objects are deleted at the same time.
const AT_ONCE: usize = 64;

/// The group in which definitions live.
const GROUP: &str = "apiextensions.k8s.io";

/// The condition of a definition that is going.
pub fn terminating() -> Value {
    json!({"type": "Terminating", "status": "True", "reason": "InstanceDeletionInProgress",
        "message": "CustomResource deletion is in progress",
        "lastTransitionTime": seconds(jiff::Timestamp::now())})
}

/// Goes on with what an earlier process did not finish.
pub async fn resume(api: &Api) -> Result<(), ApiError> {
    for entry in api.store.list(DEFINITIONS, "", None)?.entries {
        let definition = object::value(&entry);
        if definition.has("/metadata/deletionTimestamp") {
            objects(api, definition.text("/metadata/name")).await?;
        }
    }
    Ok(())
}

/// Deletes all objects of a definition that is going, and the definition with the last of them.
pub async fn objects(api: &Api, name: &str) -> Result<(), ApiError> {
    let registry = api.registry();
    let options = Options::default();
    // Without a version that is served nobody can have a finalizer removed.
    if let Some(resource) = registry.iter().find(|resource| resource.bucket == name) {
        let found = api.store.list(name, "", None)?.entries;
        for some in found.chunks(AT_ONCE) {
            let mut deletions = FuturesUnordered::new();
            for entry in some {
                let path = &entry.key.path;
                let (namespace, name) = path.split_once('/').unwrap_or(("", path));
                deletions.push(delete::delete(api, resource, namespace, name, &options));
            }
            while let Some(deleted) = deletions.next().await {
                match deleted {
                    Err(error) if error.reason != "NotFound" => return Err(error),
                    _ => {}
                }
            }
        }
    }
    definition(api, name).await
}

/// Called when an object is gone: perhaps its definition waited for that.
pub async fn after_removal(api: &Api, resource: &Resource) -> Result<(), ApiError> {
    let going = |resource: &Resource| matches!(&resource.kind, KindRef::Custom(c) if c.terminating);
    let registry = api.registry();
    match registry.iter().any(|known| known.bucket == resource.bucket && going(known)) {
        true => definition(api, &resource.bucket).await,
        false => Ok(()),
    }
}

/// Removes the definition if nothing is left of its kind.
async fn definition(api: &Api, name: &str) -> Result<(), ApiError> {
    let registry = api.registry();
    let definitions = registry.find(GROUP, "v1", "customresourcedefinitions");
    let definitions = definitions.expect("definitions are always served");
    let key = definitions.key("", name);
    loop {
        let Some(entry) = api.store.get(&key) else { return Ok(()) };
        let mut definition = object::value(&entry);
        let held = !api.store.list(name, "", None)?.entries.is_empty();
        let finalizers = definition.list("/metadata/finalizers").to_vec();
        if held || !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            return Ok(());
        }
        let others: Vec<_> = finalizers.into_iter().filter(|name| name != FINALIZER).collect();
        let transaction = Transaction::new().expect(key.clone(), Some(entry.revision));
        let transaction = match others.is_empty() {
            true => transaction.delete(key.clone()),
            false => {
                definition["metadata"]["finalizers"] = others.into();
                transaction.put(key.clone(), object::encode(&definition))
            }
        };
        if commit(api, definitions, transaction, write::REALLY).await?.is_some() {
            return Ok(());
        }
    }
}
