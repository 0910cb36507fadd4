//! The watched objects, as they pass by: the tracker keeps small views of its own, so nothing else
//! keeps whole objects.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Resource};
use roadstead_watch::informer::{Change, Selection};
use roadstead_watch::lean::{LeanChange, lean};
use serde::de::DeserializeOwned;

/// Follows one kind forever. Of an object that is gone, only name and version are known.
pub(crate) fn watched<K>(api: Api<K>, selection: Selection) -> BoxStream<'static, Change<K>>
where
    K: Resource + Metadata<Ty = ObjectMeta> + Default + DeserializeOwned + Send + Sync + 'static,
{
    let change = |change| match change {
        LeanChange::Set(object) => Change::Set(Arc::new(object)),
        LeanChange::Gone(key, version) => {
            let mut object = K::default();
            *object.metadata_mut() = ObjectMeta {
                namespace: Some(key.namespace),
                name: Some(key.name),
                resource_version: (version > 0).then(|| version.to_string()),
                ..ObjectMeta::default()
            };
            Change::Gone(Arc::new(object))
        }
        LeanChange::Synced => Change::Synced,
    };
    lean(api, selection).map(change).boxed()
}
