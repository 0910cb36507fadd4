//! Taking a custom kind away: first its objects, then its definition.
//!
//! A definition that is deleted waits for its objects, and its objects may wait for finalizers of
//! their own. Whoever removes the last of them removes the definition.

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use roadstead_schema::json::Pointer;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::{Afterwards, Strategy};
use crate::objects::delete::{Deletion, Options};
use crate::objects::write::{self, commit, seconds};
use crate::reading::object;
use crate::registry::{KindRef, Resource};

/// Where the store keeps the definitions.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// What a definition waits for.
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// How many objects are deleted at the same time.
const AT_ONCE: usize = 64;

/// The group in which definitions live.
const GROUP: &str = "apiextensions.k8s.io";

pub(super) struct Definitions;

impl Strategy for Definitions {
    fn finalizer(&self) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn terminate(&self, definition: &mut Value) {
        let mut conditions = definition.list("/status/conditions").to_vec();
        conditions.push(json!({"type": "Terminating", "status": "True",
            "reason": "InstanceDeletionInProgress",
            "message": "CustomResource deletion is in progress",
            "lastTransitionTime": seconds(jiff::Timestamp::now())}));
        definition["status"]["conditions"] = conditions.into();
    }

    /// The objects of a custom kind go with its definition.
    fn deleted<'a>(&self, api: &'a Api, name: &'a str) -> Option<Afterwards<'a>> {
        Some(objects(api, name).boxed())
    }
}

/// Goes on with what an earlier process did not finish.
pub(crate) async fn resume(api: &Api) -> Result<(), ApiError> {
    for entry in api.storage.store.list(DEFINITIONS, "", None)?.entries {
        let definition = object::value(&entry);
        if definition.has("/metadata/deletionTimestamp") {
            objects(api, definition.text("/metadata/name")).await?;
        }
    }
    Ok(())
}

/// Deletes all objects of a definition that is going, and the definition with the last of them.
async fn objects(api: &Api, name: &str) -> Result<(), ApiError> {
    let registry = api.registry();
    let options = &Options::default();
    // Without a version that is served nobody can have a finalizer removed.
    if let Some(resource) = registry.iter().find(|resource| resource.bucket == name) {
        let found = api.storage.store.list(name, "", None)?.entries;
        for some in found.chunks(AT_ONCE) {
            let mut deletions = FuturesUnordered::new();
            for entry in some {
                let path = &entry.key.path;
                let (namespace, name) = path.split_once('/').unwrap_or(("", path));
                let deletion = Deletion { api, resource, namespace, name };
                deletions.push(async move { deletion.run(options).await });
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
pub(super) fn after_removal<'a>(api: &'a Api, resource: &'a Resource) -> Option<Afterwards<'a>> {
    let going = |known: &Resource| {
        known.bucket == resource.bucket
            && matches!(&known.kind, KindRef::Custom(custom) if custom.terminating)
    };
    let waits = api.registry().iter().any(|known| going(known));
    waits.then(|| definition(api, &resource.bucket).boxed())
}

/// Removes the definition if nothing is left of its kind.
async fn definition(api: &Api, name: &str) -> Result<(), ApiError> {
    let registry = api.registry();
    let definitions = registry.find(GROUP, "v1", "customresourcedefinitions");
    let definitions = definitions.expect("definitions are always served");
    let key = definitions.key("", name);
    loop {
        let Some(entry) = api.storage.store.get(&key) else { return Ok(()) };
        let mut definition = object::value(&entry);
        let held = !api.storage.store.list(name, "", None)?.entries.is_empty();
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
