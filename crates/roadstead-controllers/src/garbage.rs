//! The garbage collector: deletes what has lost its owner.
//!
//! It follows every kind that the server has, and looks again which there are when a definition
//! changes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{
    DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy,
};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::{Api, Client};
use roadstead_plan::gc::{Graph, Policy, Verdict};
use roadstead_watch::informer::{Change, Selection, trimmed};
use roadstead_watch::queue::Queue;
use serde_json::{Value, json};
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::kinds::{self, Found};

type Metadata = PartialObjectMeta<DynamicObject>;
/// What happens to all kinds that are followed, each with its number.
type Changes = SelectAll<BoxStream<'static, (usize, Change<Metadata>)>>;

/// How long after a definition has changed we look which kinds there are: they come in groups, and
/// a server may need a moment.
const SETTLE: Duration = Duration::from_secs(1);
/// How soon we look again if that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Runs the collector.
pub async fn run(client: Client) {
    let mut state = State::new(client);
    let mut changes = SelectAll::new();
    loop {
        tokio::select! {
            biased;
            Some((kind, change)) = changes.next(), if !changes.is_empty() => {
                state.observe(kind, &change);
            }
            () = time::sleep_until(state.look_at.unwrap_or_else(Instant::now)),
                if state.look_at.is_some() => state.look(&mut changes).await,
            () = state.queue.ready(), if state.is_synced() => state.work().await,
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

/// A kind that is followed.
struct Followed {
    kind: Found,
    synced: bool,
    stop: CancellationToken,
}

struct State {
    client: Client,
    /// By the order in which we learnt of them.
    kinds: BTreeMap<usize, Followed>,
    next: usize,
    /// When to look which kinds there are.
    look_at: Option<Instant>,
    graph: Graph<usize>,
    queue: Queue<String>,
}

/// What became of a suspect.
enum Judged {
    /// All that can be done.
    Done,
    /// An owner exists that we have not heard of.
    TooEarly,
}

/// What the API server says about owners that we have not heard of.
#[derive(Default)]
struct Asked {
    /// The uids of those who do not exist.
    absent: Vec<String>,
    /// Whether one of them exists.
    on_their_way: bool,
}

impl State {
    fn new(client: Client) -> Self {
        Self {
            client,
            kinds: BTreeMap::new(),
            next: 0,
            look_at: Some(Instant::now()),
            graph: Graph::default(),
            queue: Queue::default(),
        }
    }

    /// Nobody is judged before all kinds have been seen.
    fn is_synced(&self) -> bool {
        !self.kinds.is_empty() && self.kinds.values().all(|followed| followed.synced)
    }

    async fn look(&mut self, changes: &mut Changes) {
        match kinds::with_owners(&self.client).await {
            Ok(found) => {
                self.look_at = None;
                self.follow(found, changes);
            }
            Err(error) => {
                warn!(%error, "cannot find out which kinds there are");
                self.look_at = Some(Instant::now() + LOOK_AGAIN);
            }
        }
    }

    /// Follows these kinds and no others.
    fn follow(&mut self, found: Vec<Found>, changes: &mut Changes) {
        let gone = self.kinds.extract_if(.., |_, followed| !found.contains(&followed.kind));
        let gone: Vec<_> = gone.collect();
        for (index, followed) in gone {
            followed.stop.cancel();
            for uid in self.graph.found_by(|kind| *kind == index) {
                self.graph.forget(&uid);
            }
        }
        for kind in found {
            if !self.kinds.values().any(|followed| followed.kind == kind) {
                changes.push(self.begin(kind));
            }
        }
    }

    fn begin(&mut self, kind: Found) -> BoxStream<'static, (usize, Change<Metadata>)> {
        let (index, stop) = (self.next, CancellationToken::new());
        self.next += 1;
        let api: Api<Metadata> = Api::all_with(self.client.clone(), &kind.resource);
        let changes = trimmed(api, Selection::all(), trim).map(move |change| (index, change));
        self.kinds.insert(index, Followed { kind, synced: false, stop: stop.clone() });
        changes.take_until(stop.cancelled_owned()).boxed()
    }

    fn observe(&mut self, index: usize, change: &Change<Metadata>) {
        // What was on its way when we stopped to follow a kind.
        let Some(followed) = self.kinds.get_mut(&index) else { return };
        let told = followed.synced || matches!(change, Change::Synced);
        if followed.kind.resource.plural == "customresourcedefinitions" && told {
            self.look_at = Some(Instant::now() + SETTLE);
        }
        let suspects = match change {
            Change::Set(object) => self.graph.observe(index, object.metadata.clone()),
            Change::Gone(object) => self.graph.forget(object.metadata.uid.as_deref().unwrap_or("")),
            Change::Synced => {
                followed.synced = true;
                // Owners of this kind that nobody has told us of do not exist.
                self.graph.with_unknown_owners()
            }
        };
        suspects.into_iter().for_each(|uid| self.queue.add(uid));
    }

    async fn work(&mut self) {
        let Some(uid) = self.queue.pop() else { return };
        match self.judge(&uid).await {
            Ok(Judged::Done) => self.queue.succeeded(&uid),
            Ok(Judged::TooEarly) => {
                let again_in = self.queue.retry(uid.clone());
                debug!(uid, ?again_in, "its owner is on its way");
            }
            Err(error) => {
                let again_in = self.queue.retry(uid.clone());
                warn!(uid, %error, ?again_in, "garbage not collected");
            }
        }
    }

    async fn judge(&self, uid: &str) -> Result<Judged, kube::Error> {
        match self.graph.verdict(uid) {
            Verdict::Keep => {}
            Verdict::Delete { unless, policy } => {
                let Asked { absent, on_their_way } = self.ask(uid, &unless).await?;
                if absent.len() == unless.len() {
                    self.delete(uid, policy).await?;
                }
                return Ok(if on_their_way { Judged::TooEarly } else { Judged::Done });
            }
            Verdict::Shed { mut waiting, unknown } => {
                let Asked { absent, on_their_way } = self.ask(uid, &unknown).await?;
                waiting.extend(absent);
                if !waiting.is_empty() {
                    self.shed(uid, &waiting).await?;
                }
                return Ok(if on_their_way { Judged::TooEarly } else { Judged::Done });
            }
            Verdict::Release(dependents) => {
                for dependent in dependents {
                    self.release(&dependent, &[uid.to_owned()]).await?;
                }
            }
            Verdict::LetGo(finalizer) => self.let_go(uid, finalizer).await?,
        }
        Ok(Judged::Done)
    }

    /// Which of these owners do not exist.
    async fn ask(&self, uid: &str, owners: &[OwnerReference]) -> Result<Asked, kube::Error> {
        let mut asked = Asked::default();
        let Some((_, metadata)) = self.graph.get(uid) else { return Ok(asked) };
        for owner in owners {
            match self.exists(owner, metadata).await? {
                Some(true) => asked.on_their_way = true,
                Some(false) => asked.absent.push(owner.uid.clone()),
                None => {}
            }
        }
        Ok(asked)
    }

    /// Asks the API server itself: what we have not heard of may be on its way. Nothing is known of
    /// an owner of a kind that does not exist, or in a namespace that nobody says: it is given the
    /// benefit of the doubt.
    async fn exists(
        &self,
        owner: &OwnerReference,
        of: &ObjectMeta,
    ) -> Result<Option<bool>, kube::Error> {
        let mut kinds = self.kinds.values().map(|followed| &followed.kind);
        let kind = kinds.find(|kind| {
            kind.resource.kind == owner.kind && kind.resource.group == group(&owner.api_version)
        });
        let Some(kind) = kind.filter(|kind| !kind.namespaced || of.namespace.is_some()) else {
            return Ok(None);
        };
        let namespace = of.namespace.as_deref().filter(|_| kind.namespaced);
        let api = self.api(&kind.resource, namespace);
        let found = api.get_metadata_opt(&owner.name).await?;
        Ok(Some(found.is_some_and(|found| found.metadata.uid.as_deref() == Some(&*owner.uid))))
    }

    /// Deletes an object, if it still is as we know it: somebody may be about to adopt it. If it is
    /// not, we hear of the change, and judge it again.
    async fn delete(&self, uid: &str, policy: Policy) -> Result<(), kube::Error> {
        let Some((api, name)) = self.find(uid) else { return Ok(()) };
        let resource_version =
            self.graph.get(uid).and_then(|(_, metadata)| metadata.resource_version.clone());
        let only_this = Preconditions { uid: Some(uid.to_owned()), resource_version };
        let mut options = DeleteParams::default().preconditions(only_this);
        options.propagation_policy = Some(match policy {
            Policy::Background => PropagationPolicy::Background,
            Policy::Foreground => PropagationPolicy::Foreground,
            Policy::Orphan => PropagationPolicy::Orphan,
        });
        match api.delete(&name, &options).await {
            Err(error) if !crate::is_gone(&error) => Err(error),
            _ => {
                debug!(name, uid, ?policy, "deleted with its owner");
                Ok(())
            }
        }
    }

    /// Takes owners off an object, because of another that it has: so only if it still is as we know
    /// it. If it is not, we hear of the change, and judge it again.
    async fn shed(&self, uid: &str, owners: &[String]) -> Result<(), kube::Error> {
        let Some((_, known)) = self.graph.get(uid) else { return Ok(()) };
        match self.write(uid, known, without_owners(known, owners)).await {
            Err(error) if crate::is_gone(&error) => Ok(()),
            result => result,
        }
    }

    /// Takes an owner off an object, whatever else it has.
    async fn release(&self, uid: &str, owners: &[String]) -> Result<(), kube::Error> {
        self.change(uid, |metadata| without_owners(metadata, owners)).await
    }

    async fn let_go(&self, uid: &str, finalizer: &str) -> Result<(), kube::Error> {
        let without = |metadata: &ObjectMeta| {
            let finalizers = metadata.finalizers.iter().flatten();
            let finalizers: Vec<_> = finalizers.filter(|own| *own != finalizer).collect();
            json!({"finalizers": finalizers})
        };
        self.change(uid, without).await
    }

    /// Changes the metadata of an object: a merge patch, which every kind understands, on condition
    /// that nobody else changes it meanwhile.
    async fn change(
        &self,
        uid: &str,
        change: impl Fn(&ObjectMeta) -> Value,
    ) -> Result<(), kube::Error> {
        let Some((api, name)) = self.find(uid) else { return Ok(()) };
        let found = api.get_metadata_opt(&name).await?;
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(uid));
        let Some(found) = found else { return Ok(()) };
        match self.write(uid, &found.metadata, change(&found.metadata)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            result => result,
        }
    }

    async fn write(
        &self,
        uid: &str,
        known: &ObjectMeta,
        mut metadata: Value,
    ) -> Result<(), kube::Error> {
        let Some((api, name)) = self.find(uid) else { return Ok(()) };
        metadata["uid"] = uid.into();
        metadata["resourceVersion"] = json!(known.resource_version);
        let patch = Patch::Merge(json!({"metadata": metadata}));
        api.patch_metadata(&name, &PatchParams::default(), &patch).await.map(drop)
    }

    fn find(&self, uid: &str) -> Option<(Api<DynamicObject>, String)> {
        let (kind, metadata) = self.graph.get(uid)?;
        let resource = &self.kinds.get(kind)?.kind.resource;
        Some((self.api(resource, metadata.namespace.as_deref()), metadata.name.clone()?))
    }

    fn api(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }
}

fn without_owners(metadata: &ObjectMeta, owners: &[String]) -> Value {
    let own = metadata.owner_references.iter().flatten();
    let own: Vec<_> = own.filter(|owner| !owners.contains(&owner.uid)).collect();
    json!({"ownerReferences": own})
}

/// The group of an `apiVersion`: a kind is the same in all its versions.
fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}
