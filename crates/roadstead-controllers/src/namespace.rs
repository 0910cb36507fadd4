//! The namespace controller: empties a namespace that is being deleted, then lets it go.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_plan::namespace::{Content, plan_conditions};
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Selection, informer};
use roadstead_watch::queue::Queue;
use serde_json::json;
use tracing::{info, warn};

use crate::kinds;

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
                match empty(&client, &namespace).await {
                    Ok(Emptied::Released) => queue.succeeded(&key),
                    Ok(Emptied::Waits) => queue.add_after(key, LOOK_AGAIN),
                    Ok(Emptied::Failed) => drop(queue.retry(key)),
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
    let held =
        finalizers.is_some_and(|finalizers| finalizers.iter().any(|own| own == "kubernetes"));
    namespace.metadata.deletion_timestamp.is_some() && held
}

/// What became of a namespace.
enum Emptied {
    /// It was empty, and has been let go.
    Released,
    /// Something takes its time to go.
    Waits,
    /// Something could not be deleted.
    Failed,
}

/// Deletes what is left, tells what that was, and lets the namespace go if it was nothing.
async fn empty(client: &Client, namespace: &Namespace) -> Result<Emptied, kube::Error> {
    let name = namespace.metadata.name.as_deref().unwrap_or("");
    let content = content(client, name).await;
    if content.is_empty() {
        return release(client, namespace).await.map(|()| Emptied::Released);
    }
    tell(client, namespace, &content).await?;
    let failed = content.undiscovered.is_some() || !content.failures.is_empty();
    Ok(if failed { Emptied::Failed } else { Emptied::Waits })
}

/// Deletes what is left of every kind, whatever happens to the others. Pods go first, and nothing
/// else before they have gone: they may need it until then, and what guards them is not to go before
/// them (KEP-5080).
async fn content(client: &Client, namespace: &str) -> Content {
    let mut content = Content::default();
    let kinds = kinds::in_namespaces(client).await.unwrap_or_else(|error| {
        content.undiscovered = Some(error.to_string());
        Vec::new()
    });
    let is_pods = |kind: &&ApiResource| kind.plural == "pods" && kind.group.is_empty();
    let (pods, others): (Vec<_>, Vec<_>) = kinds.iter().partition(is_pods);
    for resource in pods {
        match delete(client, namespace, resource, &mut content).await {
            Ok(0) => {}
            Ok(_) => return content,
            Err(error) => {
                content.failures.push(format!(
                    "failed to delete pods for namespace: {namespace}, err: {error}"
                ));
                return content;
            }
        }
    }
    for resource in others {
        if let Err(error) = delete(client, namespace, resource, &mut content).await {
            let kind = format!("{}.{}", resource.plural, resource.group);
            content.failures.push(format!("{kind}: {error}"));
        }
    }
    content
}

/// Deletes what is left of one kind; says how many that leaves.
async fn delete(
    client: &Client,
    namespace: &str,
    resource: &ApiResource,
    content: &mut Content,
) -> Result<usize, kube::Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    let some = |limit| ListParams::default().limit(limit);
    if api.list_metadata(&some(1)).await?.items.is_empty() {
        return Ok(0);
    }
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    let left = api.list_metadata(&some(500)).await?;
    let more = left.metadata.remaining_item_count.and_then(|count| usize::try_from(count).ok());
    let count = left.items.len() + more.unwrap_or(0);
    // What was there a moment ago counts: nobody is told that a namespace is empty too early.
    content.left.insert(format!("{}.{}", resource.plural, resource.group), count.max(1));
    let finalizers = left.items.iter().filter_map(|object| object.metadata.finalizers.as_ref());
    for finalizer in finalizers.flatten() {
        *content.finalizers.entry(finalizer.clone()).or_default() += 1;
    }
    Ok(count)
}

/// Writes the conditions, if they changed.
async fn tell(
    client: &Client,
    namespace: &Namespace,
    content: &Content,
) -> Result<(), kube::Error> {
    let present = namespace.status.as_ref().and_then(|status| status.conditions.clone());
    let present = present.unwrap_or_default();
    let conditions = plan_conditions(content, &present, Timestamp::now());
    if conditions == present {
        return Ok(());
    }
    let api: Api<Namespace> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    let name = namespace.metadata.name.as_deref().unwrap_or("");
    let told = api.patch_status(name, &PatchParams::default(), &patch).await;
    told.map(drop).or_else(|error| if crate::is_gone(&error) { Ok(()) } else { Err(error) })
}

async fn release(client: &Client, namespace: &Namespace) -> Result<(), kube::Error> {
    let mut released = namespace.clone();
    let name = released.metadata.name.clone().unwrap_or_default();
    // The conditions have changed it since: the emptiness is what counts.
    released.metadata.resource_version = None;
    if let Some(spec) = &mut released.spec {
        let finalizers = spec.finalizers.iter().flatten();
        spec.finalizers = Some(finalizers.filter(|own| *own != "kubernetes").cloned().collect());
    }
    let api: Api<Namespace> = Api::all(client.clone());
    match api.replace_subresource("finalize", &name, &PostParams::default(), &released).await {
        Ok(_) => info!(namespace = name, "namespace deleted"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
