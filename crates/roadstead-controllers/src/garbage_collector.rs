//! The garbage collector: deletes what has lost its owner.
//!
//! It follows every kind that the server has, and keeps of each object its names and ties.

use std::collections::{BTreeMap, HashMap};

use futures::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    DeleteOptions, ObjectMeta, OwnerReference, Preconditions,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_plan::garbage_collector::{Graph, Policy, Verdict};
use roadstead_watch::discovery::DiscoveredKind;
use roadstead_watch::every_kind::{KindChange, Metadata, every_kind};
use roadstead_watch::informer::{Change, key_of};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::{Value, json};
use tracing::debug;

use crate::Context;
use crate::runner::{self, Controller, Inputs, WritePlan};

pub(crate) async fn run(context: Context) {
    let client = context.client.clone();
    let inputs = Inputs::new().follow(every_kind(client.clone()), State::observe);
    let state = State { client, kinds: BTreeMap::new(), graph: Graph::default() };
    runner::run(context, state, inputs).await;
}

struct State {
    client: Client,
    kinds: BTreeMap<usize, FollowedKind>,
    graph: Graph<usize>,
}

struct FollowedKind {
    kind: DiscoveredKind,
    synced: bool,
    /// The uids of its objects, by their keys in one text each.
    uids: HashMap<Box<str>, String>,
}

impl State {
    fn observe(&mut self, change: KindChange, queue: &mut Queue<String>) {
        match change {
            KindChange::Added(number, kind) => {
                let followed = FollowedKind { kind, synced: false, uids: HashMap::new() };
                self.kinds.insert(number, followed);
            }
            KindChange::Removed(number) => {
                let gone = self.kinds.remove(&number).into_iter();
                for uid in gone.flat_map(|followed| followed.uids.into_values()) {
                    self.graph.forget(&uid);
                }
            }
            KindChange::Objects(number, change) => {
                self.observe_object(number, change).into_iter().for_each(|uid| queue.add(uid));
            }
        }
    }

    /// Takes in a change of an object; returns the uids that need a verdict.
    fn observe_object(&mut self, number: usize, change: Change<Metadata>) -> Vec<String> {
        let Some(followed) = self.kinds.get_mut(&number) else { return Vec::new() };
        match change {
            Change::Set(object) => {
                let uid = object.metadata.uid.clone().unwrap_or_default();
                let before = followed.uids.insert(key_of(&object).packed(), uid.clone());
                // Another object had the name before, and we have not heard how it went.
                let gone = before.filter(|before| *before != uid);
                let mut suspects = gone.map_or(Vec::new(), |gone| self.graph.forget(&gone));
                suspects.extend(self.graph.observe(number, trim(object.metadata)));
                suspects
            }
            Change::Gone(key, _) => {
                let uid = followed.uids.remove(&key.packed());
                uid.map_or(Vec::new(), |uid| self.graph.forget(&uid))
            }
            Change::Synced => {
                followed.synced = true;
                // Owners of this kind that nobody has told us of do not exist.
                self.graph.with_unknown_owners()
            }
        }
    }
}

/// Every object of the cluster is in the graph: it keeps its names and ties, and nothing else.
fn trim(all: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: all.name,
        namespace: all.namespace,
        uid: all.uid,
        resource_version: all.resource_version,
        deletion_timestamp: all.deletion_timestamp,
        finalizers: all.finalizers,
        owner_references: all.owner_references,
        ..ObjectMeta::default()
    }
}

impl Controller for State {
    type Key = String;
    const COMPONENT: &'static str = "garbage-collector-controller";
    const QUEUE: &'static str = "garbage_collector_attempt_to_delete";

    /// Nobody is judged before all kinds have been seen.
    fn is_complete(&self) -> bool {
        !self.kinds.is_empty() && self.kinds.values().all(|followed| followed.synced)
    }

    fn plan(&mut self, uid: &String, _: Timestamp) -> WritePlan<String> {
        match self.graph.verdict(uid) {
            Verdict::Keep => WritePlan::none(),
            Verdict::Delete { unless, policy } => self.delete(uid, &unless, policy),
            Verdict::RemoveOwners { waiting, unknown } => {
                self.remove_owners(uid, waiting, &unknown)
            }
            Verdict::Orphan(dependents) => {
                let objects = dependents.iter().filter_map(|uid| self.find(uid)).collect();
                let owner = uid.clone();
                let without =
                    move |all: &ObjectMeta| without_owners(all, std::slice::from_ref(&owner));
                let survey = change_all(objects, without).boxed();
                WritePlan { survey: Some(survey), ..WritePlan::none() }
            }
            Verdict::RemoveFinalizer(finalizer) => {
                let without = move |all: &ObjectMeta| {
                    let finalizers = all.finalizers.iter().flatten();
                    let left: Vec<_> = finalizers.filter(|own| *own != finalizer).collect();
                    json!({"finalizers": left})
                };
                let survey = change_all(self.find(uid).into_iter().collect(), without).boxed();
                WritePlan { survey: Some(survey), ..WritePlan::none() }
            }
        }
    }
}

/// An object that is to be changed, and how to ask for it.
struct Found {
    api: Api<DynamicObject>,
    collection: Collection,
    key: ObjectKey,
    uid: String,
}

impl Found {
    /// Changes the metadata: a merge patch, which every kind understands, on condition that nobody
    /// else changes it meanwhile.
    fn patch(&self, known: &ObjectMeta, mut metadata: Value) -> Write {
        metadata["uid"] = self.uid.as_str().into();
        metadata["resourceVersion"] = json!(known.resource_version);
        let patch = json!({"metadata": metadata});
        Write::merge(self.collection.clone(), self.key.clone(), &patch)
    }
}

impl State {
    /// Deletes an object, if it still is as we know it: somebody may be about to adopt it. If it is
    /// not, we hear of the change, and judge it again.
    fn delete(&self, uid: &str, unless: &[OwnerReference], policy: Policy) -> WritePlan<String> {
        let (Some(found), Some((_, known))) = (self.find(uid), self.graph.get(uid)) else {
            return WritePlan::none();
        };
        let policy = match policy {
            Policy::Background => "Background",
            Policy::Foreground => "Foreground",
            Policy::Orphan => "Orphan",
        };
        let resource_version = known.resource_version.clone();
        let options = DeleteOptions {
            propagation_policy: Some(policy.to_owned()),
            preconditions: Some(Preconditions { resource_version, uid: None }),
            ..DeleteOptions::default()
        };
        debug!(name = %found.key, uid, policy, "its owners are gone");
        let delete = Write::delete_with(found.collection, found.key, Some(uid), options);
        if unless.is_empty() {
            return WritePlan::writes(vec![delete]);
        }
        let (questions, asked) = (self.questions(known, unless), unless.len());
        let survey = async move {
            let answers = ask(questions).await?;
            let is_sure = answers.absent.len() == asked;
            let writes = is_sure.then_some(delete).into_iter().collect();
            Ok(WritePlan { writes, incomplete: answers.too_early(), ..WritePlan::none() })
        };
        WritePlan { survey: Some(survey.boxed()), ..WritePlan::none() }
    }

    /// Takes owners off an object, because of another that it has: so only if it still is as we know
    /// it. If it is not, we hear of the change, and judge it again.
    fn remove_owners(
        &self,
        uid: &str,
        mut owners: Vec<String>,
        unknown: &[OwnerReference],
    ) -> WritePlan<String> {
        let (Some(found), Some((_, known))) = (self.find(uid), self.graph.get(uid)) else {
            return WritePlan::none();
        };
        let (questions, known) = (self.questions(known, unknown), known.clone());
        let survey = async move {
            let answers = ask(questions).await?;
            owners.extend(answers.absent.iter().cloned());
            let write = || found.patch(&known, without_owners(&known, &owners)).only_if_unchanged();
            let writes = (!owners.is_empty()).then(write).into_iter().collect();
            Ok(WritePlan { writes, incomplete: answers.too_early(), ..WritePlan::none() })
        };
        WritePlan { survey: Some(survey.boxed()), ..WritePlan::none() }
    }

    /// Where to ask for owners that we have not heard of. Nothing can be known of an owner of a kind
    /// that does not exist, or in a namespace that nobody says: it is given the benefit of the doubt.
    fn questions(&self, of: &ObjectMeta, owners: &[OwnerReference]) -> Vec<Question> {
        let question = |owner: &OwnerReference| {
            let mut kinds = self.kinds.values().map(|followed| &followed.kind);
            let kind = kinds.find(|kind| {
                kind.resource.kind == owner.kind && kind.resource.group == group(&owner.api_version)
            })?;
            let namespace = match kind.namespaced {
                true => Some(of.namespace.as_deref()?),
                false => None,
            };
            Some(Question { api: self.api(&kind.resource, namespace), owner: owner.clone() })
        };
        owners.iter().filter_map(question).collect()
    }

    fn find(&self, uid: &str) -> Option<Found> {
        let (kind, metadata) = self.graph.get(uid)?;
        let resource = &self.kinds.get(kind)?.kind.resource;
        let namespace = metadata.namespace.as_deref();
        Some(Found {
            api: self.api(resource, namespace),
            collection: Collection::of_resource(resource),
            key: ObjectKey::new(namespace.unwrap_or(""), metadata.name.clone()?),
            uid: uid.to_owned(),
        })
    }

    fn api(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }
}

/// Does this owner exist?
struct Question {
    api: Api<DynamicObject>,
    owner: OwnerReference,
}

/// What the API server says about owners that we have not heard of.
#[derive(Default)]
struct Answers {
    /// The uids of those who do not exist.
    absent: Vec<String>,
    /// Whether one of them exists.
    on_their_way: bool,
}

impl Answers {
    fn too_early(&self) -> Option<String> {
        self.on_their_way.then(|| "its owner is on its way".to_owned())
    }
}

/// Asks the API server itself: what we have not heard of may be on its way.
async fn ask(questions: Vec<Question>) -> Result<Answers, kube::Error> {
    let mut answers = Answers::default();
    for Question { api, owner } in questions {
        let found = api.get_metadata_opt(&owner.name).await?;
        match found.is_some_and(|found| found.metadata.uid.as_deref() == Some(&*owner.uid)) {
            true => answers.on_their_way = true,
            false => answers.absent.push(owner.uid),
        }
    }
    Ok(answers)
}

/// Changes the metadata of objects, whatever else has changed about them.
async fn change_all(
    objects: Vec<Found>,
    change: impl Fn(&ObjectMeta) -> Value,
) -> Result<WritePlan<String>, kube::Error> {
    let mut writes = Vec::new();
    for found in objects {
        let newest = found.api.get_metadata_opt(&found.key.name).await?;
        let newest = newest.filter(|newest| newest.metadata.uid.as_ref() == Some(&found.uid));
        writes.extend(newest.map(|own| found.patch(&own.metadata, change(&own.metadata))));
    }
    Ok(WritePlan::writes(writes))
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
