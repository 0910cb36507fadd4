//! ConfigMaps and Secrets that pods of this node use: each is watched once, for as long as somebody
//! uses it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, Resource};
use roadstead_pod::sources::SourceName;
use roadstead_watch::informer::{Change, Selection, informer};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// All that are watched.
pub(crate) struct Objects {
    client: Client,
    watched: Mutex<HashMap<(String, SourceName), Weak<WatchedObject>>>,
}

/// An object that is watched; dropping the last of these ends the watch.
pub(crate) struct WatchedObject {
    seen: watch::Receiver<Seen>,
    _task: AbortOnDropHandle<()>,
}

/// What is known about an object.
#[derive(Clone)]
pub(crate) enum Seen {
    /// Nobody has answered yet.
    Unknown,
    Absent,
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Absent => "absent",
            Self::ConfigMap(_) | Self::Secret(_) => "there",
        })
    }
}

impl WatchedObject {
    /// What it is now, and when it changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Seen> {
        self.seen.clone()
    }
}

impl Objects {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, watched: Mutex::default() }
    }

    /// Watches an object, as long as the answer is kept.
    pub(crate) fn watch(&self, namespace: &str, name: &SourceName) -> Arc<WatchedObject> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.to_owned(), name.clone());
        if let Some(known) = watched.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        watched.retain(|_, known| known.strong_count() > 0);
        let (send, seen) = watch::channel(Seen::Unknown);
        let client = self.client.clone();
        let task = match name {
            SourceName::ConfigMap(name) => {
                let api: Api<ConfigMap> = Api::namespaced(client, namespace);
                tokio::spawn(follow(api, name.clone(), send, |map: Arc<ConfigMap>| {
                    (map.immutable == Some(true), Seen::ConfigMap(map))
                }))
            }
            SourceName::Secret(name) => {
                let api: Api<Secret> = Api::namespaced(client, namespace);
                tokio::spawn(follow(api, name.clone(), send, |secret: Arc<Secret>| {
                    (secret.immutable == Some(true), Seen::Secret(secret))
                }))
            }
        };
        let object = Arc::new(WatchedObject { seen, _task: AbortOnDropHandle::new(task) });
        watched.insert(key, Arc::downgrade(&object));
        object
    }
}

/// Tells what becomes of one object. One that never changes is not watched any longer.
async fn follow<K>(
    api: Api<K>,
    name: String,
    seen: watch::Sender<Seen>,
    read: impl Fn(Arc<K>) -> (bool, Seen),
) where
    K: Resource<Scope = NamespaceResourceScope> + DeserializeOwned + Send + Sync + 'static,
{
    let mut changes = informer(api, Selection::all().fields(&format!("metadata.name={name}")));
    while let Some(change) = changes.next().await {
        match change {
            Change::Set(object) => {
                let (is_final, object) = read(object);
                seen.send_replace(object);
                if is_final {
                    drop(changes);
                    // The answer stays, for as long as somebody keeps us.
                    return std::future::pending().await;
                }
            }
            Change::Gone(..) => drop(seen.send_replace(Seen::Absent)),
            Change::Synced => drop(seen.send_if_modified(|seen| {
                let unknown = matches!(seen, Seen::Unknown);
                if unknown {
                    *seen = Seen::Absent;
                }
                unknown
            })),
        }
    }
}
