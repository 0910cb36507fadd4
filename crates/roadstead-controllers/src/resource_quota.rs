//! The quota controller: counts what each ResourceQuota limits.
//!
//! The API server charges quotas itself for what comes and goes. This counts everything once when a
//! quota is new or changed, when a pod has ended (it then takes nothing more), and every few minutes. A
//! sum is written only if the quota has not changed since before the counting began: whatever was charged
//! meanwhile is counted again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::verbs;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_api::quantity::exact::{Amounts, Quantity, amounts};
use roadstead_plan::pod_view::PodView;
use roadstead_plan::quota::{self, ObjectKind};
use roadstead_watch::cache::Cache;
use roadstead_watch::discovery::discover;
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::{Value, json};

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

/// How often everything is counted again, whatever happens (upstream's period).
const COUNT_EVERY: Duration = Duration::from_secs(5 * 60);
const QUOTAS: Collection = Collection::of::<ResourceQuota>();
/// So many objects are asked for at a time.
const PAGE: u32 = 500;

pub(crate) async fn run(context: Context) {
    let client = context.client.clone();
    let inputs =
        Inputs::new().watch(every::<ResourceQuota>(&client)).watch(every::<PodView>(&client));
    let state =
        State { client, quotas: Cache::default(), pods: Cache::default(), keys: BTreeSet::new() };
    runner::run(context, state, inputs).await;
}

struct State {
    client: Client,
    quotas: Cache<ResourceQuota>,
    pods: Cache<PodView>,
    /// All quotas, in the order of their namespaces.
    keys: BTreeSet<ObjectKey>,
}

impl Watches<ResourceQuota> for State {
    fn cache(&mut self) -> &mut Cache<ResourceQuota> {
        &mut self.quotas
    }

    fn index(&mut self, change: &Changed<ResourceQuota>, _: &mut Queue<ObjectKey>) {
        match change.now {
            Some(_) => drop(self.keys.insert(change.key.clone())),
            None => drop(self.keys.remove(&change.key)),
        }
    }

    /// What the server has charged needs no counting.
    fn wake(&mut self, change: &Changed<ResourceQuota>, queue: &mut Queue<ObjectKey>) {
        let known = change.before.is_some();
        if change.now.as_ref().is_some_and(|quota| !known || is_unknown(quota)) {
            queue.add(change.key.clone());
        }
    }
}

impl Watches<PodView> for State {
    fn cache(&mut self) -> &mut Cache<PodView> {
        &mut self.pods
    }

    fn wake(&mut self, change: &Changed<PodView>, queue: &mut Queue<ObjectKey>) {
        let finished = |pod: &Option<Arc<PodView>>| pod.as_ref().map(|pod| pod.is_finished());
        if finished(&change.before) == Some(false) && finished(&change.now) == Some(true) {
            let namespace = &change.key.namespace;
            let from = ObjectKey::new(namespace, "");
            let own = self.keys.range(from..).take_while(|key| key.namespace == *namespace);
            own.for_each(|key| queue.add(key.clone()));
        }
    }
}

/// Whether somebody has changed what is limited, or nobody has counted yet.
fn is_unknown(quota: &ResourceQuota) -> bool {
    let wanted = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let wanted = amounts(&json!(wanted));
    let status = quota.status.as_ref();
    let hard = amounts(&json!(status.and_then(|status| status.hard.as_ref())));
    let used = amounts(&json!(status.and_then(|status| status.used.as_ref())));
    wanted != hard || !wanted.keys().eq(used.keys())
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "resourcequota-controller";
    const QUEUE: &'static str = "resourcequota";

    fn plan(&mut self, key: &ObjectKey, _: Timestamp) -> WritePlan {
        let Some(quota) = self.quotas.get(key).cloned() else { return WritePlan::none() };
        let survey = Some(count(self.client.clone(), key.clone(), quota).boxed());
        WritePlan { survey, again_after: Some(COUNT_EVERY), ..WritePlan::none() }
    }
}

/// Counts what a quota limits, and says so in its status.
async fn count(
    client: Client,
    key: ObjectKey,
    quota: Arc<ResourceQuota>,
) -> Result<WritePlan, kube::Error> {
    let object = json!(*quota);
    let hard = amounts(&object["spec"]["hard"]);
    let mut contents = Vec::new();
    for kind in quota::looked_into(&hard) {
        contents.push((kind, all(&client, &key.namespace, &kind).await?));
    }
    let counted = numbers(&client, &key.namespace, &hard).await?;
    let status = quota::status(&object, &contents, &counted);
    if status == object["status"] {
        return Ok(WritePlan::none());
    }
    // Names that are no longer limited go: a merge would keep them.
    let mut patch = json!({"metadata": {"resourceVersion": object["metadata"]["resourceVersion"]}});
    for field in ["hard", "used"] {
        let old = object["status"][field].as_object().into_iter().flatten();
        let gone = old.filter(|(name, _)| status[field].get(name).is_none());
        patch["status"][field] = status[field].clone();
        for (name, _) in gone {
            patch["status"][field][name] = Value::Null;
        }
    }
    let write = Write::merge(QUOTAS, key, &patch).to("status").only_if_unchanged();
    Ok(WritePlan::writes(vec![write]))
}

/// All objects of a core kind.
async fn all(
    client: &Client,
    namespace: &str,
    kind: &ObjectKind<'_>,
) -> Result<Vec<Value>, kube::Error> {
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(kind.group, "v1", ""),
        kind.plural,
    );
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let mut found = Vec::new();
    let mut next = Some(String::new());
    while let Some(token) = next {
        let page = ListParams {
            continue_token: (!token.is_empty()).then_some(token),
            ..Default::default()
        };
        let list = api.list(&page.limit(PAGE)).await?;
        found.extend(list.items.iter().map(|object| json!(object)));
        next = list.metadata.continue_.filter(|next| !next.is_empty());
    }
    Ok(found)
}

/// How many objects there are of the kinds that are only counted.
async fn numbers(client: &Client, namespace: &str, hard: &Amounts) -> Result<Amounts, kube::Error> {
    let wanted = quota::counted(hard);
    if wanted.is_empty() {
        return Ok(Amounts::new());
    }
    let kinds = discover(client, &[verbs::LIST]).await?;
    let mut numbers = Amounts::new();
    for (limit, plural, group) in wanted {
        let kind = kinds.iter().filter(|kind| kind.namespaced).map(|kind| &kind.resource);
        let mut kind = kind.filter(|kind| kind.plural == plural && kind.group == group);
        // There is nothing of what nobody knows.
        let Some(resource) = kind.next() else { continue };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
        let first = api.list_metadata(&ListParams::default().limit(1)).await?;
        let more = first.metadata.remaining_item_count.and_then(|more| usize::try_from(more).ok());
        numbers.insert(limit, Quantity::count(first.items.len() + more.unwrap_or(0)));
    }
    Ok(numbers)
}
