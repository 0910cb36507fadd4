//! The namespace controller: empties a namespace that is being deleted, then lets it go.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::discovery::verbs;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_plan::namespace::{Content, plan_conditions};
use roadstead_watch::cache::Cache;
use roadstead_watch::discovery::discover;
use roadstead_watch::events::EventDraft;
use roadstead_watch::informer::key_of;
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;
use tracing::info;

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

/// How soon a namespace that is not empty yet is looked at again: pods take time to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const FINALIZE: &str = "finalize";
const NAMESPACES: Collection = Collection::of::<Namespace>();

pub(crate) async fn run(context: Context) {
    let client = context.client.clone();
    let inputs = Inputs::new().watch(every::<Namespace>(&client));
    runner::run(context, State { client, namespaces: Cache::default() }, inputs).await;
}

struct State {
    client: Client,
    namespaces: Cache<Namespace>,
}

impl Watches<Namespace> for State {
    fn cache(&mut self) -> &mut Cache<Namespace> {
        &mut self.namespaces
    }

    fn wake(&mut self, change: &Changed<Namespace>, queue: &mut Queue<ObjectKey>) {
        if change.now.as_ref().is_some_and(|namespace| is_leaving(namespace)) {
            queue.add(change.key.clone());
        }
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "namespace-controller";
    const QUEUE: &'static str = "namespace";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let namespace = self.namespaces.get(key).filter(|namespace| is_leaving(namespace));
        let Some(namespace) = namespace.cloned() else { return WritePlan::none() };
        let survey = empty(self.client.clone(), namespace, now).boxed();
        WritePlan { survey: Some(survey), ..WritePlan::none() }
    }

    fn written(&mut self, write: &Write, _: &str) -> Option<EventDraft> {
        if write.subresource == FINALIZE {
            info!(namespace = write.key.name, "namespace deleted");
        }
        None
    }
}

fn is_leaving(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
    let held =
        finalizers.is_some_and(|finalizers| finalizers.iter().any(|own| own == "kubernetes"));
    namespace.metadata.deletion_timestamp.is_some() && held
}

/// Deletes what is left, tells what that was, and lets the namespace go if it was nothing.
async fn empty(
    client: Client,
    namespace: Arc<Namespace>,
    now: Timestamp,
) -> Result<WritePlan, kube::Error> {
    let content = content(&client, namespace.metadata.name.as_deref().unwrap_or("")).await;
    if content.is_empty() {
        return Ok(WritePlan::writes(vec![release(&namespace)]));
    }
    let failed = content.undiscovered.is_some() || !content.failures.is_empty();
    Ok(WritePlan {
        writes: conditions(&namespace, &content, now).into_iter().collect(),
        again_after: (!failed).then_some(LOOK_AGAIN),
        incomplete: failed.then(|| "something could not be deleted".to_owned()),
        ..WritePlan::none()
    })
}

/// Deletes what is left of every kind, whatever happens to the others. Pods go first, and nothing
/// else before they have gone: they may need it until then, and what guards them is not to go before
/// them (KEP-5080).
async fn content(client: &Client, namespace: &str) -> Content {
    let mut content = Content::default();
    let kinds = discover(client, &[verbs::LIST, verbs::DELETE_COLLECTION]).await;
    let kinds = kinds.unwrap_or_else(|error| {
        content.undiscovered = Some(error.to_string());
        Vec::new()
    });
    let kinds = kinds.iter().filter(|kind| kind.namespaced).map(|kind| &kind.resource);
    let is_pods = |kind: &&ApiResource| kind.plural == "pods" && kind.group.is_empty();
    let (pods, others): (Vec<_>, Vec<_>) = kinds.partition(is_pods);
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

/// The write of the conditions, if they changed.
fn conditions(namespace: &Namespace, content: &Content, now: Timestamp) -> Option<Write> {
    let present = namespace.status.as_ref().and_then(|status| status.conditions.clone());
    let present = present.unwrap_or_default();
    let conditions = plan_conditions(content, &present, now);
    let patch = json!({"status": {"conditions": conditions}});
    let write = || Write::merge(NAMESPACES, key_of(namespace), &patch).to("status");
    (conditions != present).then(|| write().only_if_unchanged())
}

fn release(namespace: &Namespace) -> Write {
    let mut released = namespace.clone();
    // The conditions have changed it since: the emptiness is what counts.
    released.metadata.resource_version = None;
    if let Some(spec) = &mut released.spec {
        let finalizers = spec.finalizers.iter().flatten();
        spec.finalizers = Some(finalizers.filter(|own| *own != "kubernetes").cloned().collect());
    }
    Write::replace(key_of(namespace), &released).to(FINALIZE)
}
