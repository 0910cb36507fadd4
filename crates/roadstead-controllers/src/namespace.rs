//! The namespace controller: empties a namespace that is being deleted, then lets it go.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::ApiResource;
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Selection, informer};
use roadstead_watch::queue::Queue;
use tracing::{info, warn};

/// How soon a namespace that is not empty yet is looked at again: pods take time to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Runs the controller.
pub async fn run(client: Client) {
    let mut changes = informer(Api::<Namespace>::all(client.clone()), Selection::all());
    let mut namespaces = Cache::default();
    let mut queue: Queue<ObjectKey> = Queue::default();
    loop {
        tokio::select! {
            biased;
            Some(change) = changes.next() => {
                if let Some((key, _)) = namespaces.observe(&change)
                    && namespaces.get(&key).is_some_and(|namespace| is_leaving(namespace))
                {
                    queue.add(key);
                }
            }
            () = queue.ready() => {
                let Some(key) = queue.pop() else { continue };
                let Some(namespace) = namespaces.get(&key).cloned() else { continue };
                match empty(&client, &key.name).await {
                    Ok(false) => queue.add_after(key, LOOK_AGAIN),
                    Ok(true) => release(&client, &namespace).await,
                    Err(error) => {
                        let again_in = queue.retry(key.clone());
                        warn!(namespace = %key, %error, ?again_in, "namespace not emptied");
                    }
                }
            }
        }
    }
}

fn is_leaving(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
    namespace.metadata.deletion_timestamp.is_some() && finalizers.is_some_and(|f| !f.is_empty())
}

/// Deletes what is left; true if nothing was.
async fn empty(client: &Client, namespace: &str) -> Result<bool, kube::Error> {
    let mut left = 0;
    for resource in &kinds(client).await? {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
        let found = api.list_metadata(&ListParams::default().limit(500)).await?.items.len();
        if found > 0 {
            left += found;
            api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        }
    }
    Ok(left == 0)
}

/// Every kind that can be in a namespace, custom ones included.
async fn kinds(client: &Client) -> Result<Vec<ApiResource>, kube::Error> {
    let found = Discovery::new(client.clone()).run().await?;
    let all = found.groups().flat_map(|group| group.recommended_resources());
    let here = all.filter(|(_, capabilities)| {
        capabilities.scope == Scope::Namespaced
            && capabilities.supports_operation(verbs::DELETE_COLLECTION)
    });
    Ok(here.map(|(resource, _)| resource).collect())
}

async fn release(client: &Client, namespace: &Namespace) {
    let mut released = namespace.clone();
    let name = released.metadata.name.clone().unwrap_or_default();
    if let Some(spec) = &mut released.spec {
        spec.finalizers = Some(Vec::new());
    }
    let api: Api<Namespace> = Api::all(client.clone());
    match api.replace_subresource("finalize", &name, &PostParams::default(), &released).await {
        Ok(_) => info!(namespace = name, "namespace deleted"),
        Err(error) if crate::is_gone(&error) => {}
        Err(error) => warn!(namespace = name, %error, "namespace not released"),
    }
}
