//! The garbage collector: deletes what has lost its owner.

use futures::StreamExt;
use futures::stream::select_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{
    DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy,
};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::{Api, Client};
use roadstead_plan::gc::{Graph, Verdict};
use roadstead_watch::informer::{Change, Selection, trimmed};
use roadstead_watch::queue::Queue;
use serde_json::json;
use tracing::{debug, warn};

use crate::kinds::{Watched, watched};

type Metadata = PartialObjectMeta<DynamicObject>;

/// Runs the collector.
pub async fn run(client: Client) {
    let kinds = watched();
    let streams = kinds.iter().enumerate().map(|(index, kind)| {
        let api: Api<Metadata> = Api::all_with(client.clone(), &kind.resource);
        trimmed(api, Selection::all(), trim).map(move |change| (index, change)).boxed()
    });
    let mut changes = select_all(streams.collect::<Vec<_>>());
    let mut state = State {
        client,
        unsynced: kinds.len(),
        synced: vec![false; kinds.len()],
        kinds,
        graph: Graph::default(),
        queue: Queue::default(),
    };
    loop {
        tokio::select! {
            biased;
            Some((kind, change)) = changes.next() => state.observe(kind, &change),
            () = state.queue.ready(), if state.unsynced == 0 => state.work().await,
        }
    }
}

/// Every object of the cluster is in the graph: it keeps its names and ties, and nothing else.
fn trim(object: &mut Metadata) {
    let all = std::mem::take(&mut object.metadata);
    object.metadata = ObjectMeta {
        name: all.name,
        namespace: all.namespace,
        uid: all.uid,
        resource_version: all.resource_version,
        deletion_timestamp: all.deletion_timestamp,
        finalizers: all.finalizers,
        owner_references: all.owner_references,
        ..ObjectMeta::default()
    };
}

struct State {
    client: Client,
    kinds: Vec<Watched>,
    synced: Vec<bool>,
    /// Nobody is judged before all kinds have been seen.
    unsynced: usize,
    graph: Graph<usize>,
    queue: Queue<String>,
}

impl State {
    fn observe(&mut self, kind: usize, change: &Change<Metadata>) {
        let suspects = match change {
            Change::Set(object) => self.graph.observe(kind, object.metadata.clone()),
            Change::Gone(object) => self.graph.forget(object.metadata.uid.as_deref().unwrap_or("")),
            Change::Synced => {
                if !std::mem::replace(&mut self.synced[kind], true) {
                    self.unsynced -= 1;
                }
                Vec::new()
            }
        };
        suspects.into_iter().for_each(|uid| self.queue.add(uid));
    }

    async fn work(&mut self) {
        let Some(uid) = self.queue.pop() else { return };
        match self.judge(&uid).await {
            Ok(()) => self.queue.succeeded(&uid),
            Err(error) => {
                let again_in = self.queue.retry(uid.clone());
                warn!(uid, %error, ?again_in, "garbage not collected");
            }
        }
    }

    async fn judge(&self, uid: &str) -> Result<(), kube::Error> {
        match self.graph.verdict(uid) {
            Verdict::Keep => Ok(()),
            Verdict::DeleteUnless(owners) => {
                let Some((_, metadata)) = self.graph.get(uid) else { return Ok(()) };
                for owner in &owners {
                    if self.exists(owner, metadata).await? {
                        return Ok(());
                    }
                }
                self.delete(uid, PropagationPolicy::Background).await
            }
            Verdict::DeleteFirst(dependents) => {
                for dependent in dependents {
                    self.delete(&dependent, PropagationPolicy::Foreground).await?;
                }
                Ok(())
            }
            Verdict::Release(dependents) => {
                for dependent in dependents {
                    self.release(&dependent, uid).await?;
                }
                Ok(())
            }
            Verdict::LetGo(finalizer) => self.let_go(uid, finalizer).await,
        }
    }

    /// Asks the API server itself: what we have not heard of may be on its way.
    async fn exists(&self, owner: &OwnerReference, of: &ObjectMeta) -> Result<bool, kube::Error> {
        let kind = self.kinds.iter().find(|kind| {
            kind.resource.kind == owner.kind && kind.resource.api_version == owner.api_version
        });
        // An owner of a kind that we do not look after is given the benefit of the doubt.
        let Some(kind) = kind else { return Ok(true) };
        let namespace = of.namespace.as_deref().filter(|_| kind.namespaced);
        let api = self.api(&kind.resource, namespace);
        let found = api.get_metadata_opt(&owner.name).await?;
        Ok(found.is_some_and(|found| found.metadata.uid.as_deref() == Some(&*owner.uid)))
    }

    async fn delete(&self, uid: &str, policy: PropagationPolicy) -> Result<(), kube::Error> {
        let Some((api, name)) = self.find(uid) else { return Ok(()) };
        let only_this = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let mut options = DeleteParams::default().preconditions(only_this);
        options.propagation_policy = Some(policy);
        match api.delete(&name, &options).await {
            Err(error) if !crate::is_gone(&error) => Err(error),
            _ => {
                debug!(name, uid, "deleted with its owner");
                Ok(())
            }
        }
    }

    async fn release(&self, uid: &str, owner: &str) -> Result<(), kube::Error> {
        let Some((api, name)) = self.find(uid) else { return Ok(()) };
        let patch = json!({"metadata": {"uid": uid,
            "ownerReferences": [{"$patch": "delete", "uid": owner}]}});
        let patched = api.patch(&name, &PatchParams::default(), &Patch::Strategic(&patch)).await;
        patched.map(drop).or_else(|error| if crate::is_gone(&error) { Ok(()) } else { Err(error) })
    }

    async fn let_go(&self, uid: &str, finalizer: &str) -> Result<(), kube::Error> {
        let Some((api, name)) = self.find(uid) else { return Ok(()) };
        let patch = json!({"metadata": {"uid": uid,
            "$deleteFromPrimitiveList/finalizers": [finalizer]}});
        let patched = api.patch(&name, &PatchParams::default(), &Patch::Strategic(&patch)).await;
        patched.map(drop).or_else(|error| if crate::is_gone(&error) { Ok(()) } else { Err(error) })
    }

    fn find(&self, uid: &str) -> Option<(Api<DynamicObject>, String)> {
        let (&kind, metadata) = self.graph.get(uid)?;
        let api = self.api(&self.kinds[kind].resource, metadata.namespace.as_deref());
        Some((api, metadata.name.clone()?))
    }

    fn api(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }
}
