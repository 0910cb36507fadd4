//! The controller of claims and volumes: binds them, makes directories of nodes for claims of the class
//! `local-path`, and keeps what is in use. The directories themselves are made and removed by the nodes.
//!
//! Keys of claims have a namespace, those of volumes have none. The empty key is the storage class of
//! directories; a name that begins with `/` stands for all claims of a class that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use roadstead_api::key::ObjectKey;
use roadstead_plan::persistentvolume::shelf::Shelf;
use roadstead_plan::persistentvolume::{
    self as plan, BIND_COMPLETED, BOUND_BY, ClaimStep, PROTECTED_CLAIM, PROTECTED_VOLUME,
    PROVISIONER, Storage,
};
use roadstead_plan::pod_view::PodView;
use roadstead_typed::Typed;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::key_of;
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::{Value, json};

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

const CLAIMS: Collection = Collection::of::<PersistentVolumeClaim>();
const VOLUMES: Collection = Collection::of::<PersistentVolume>();

pub(crate) async fn run(context: Context) {
    let client = &context.client;
    let directory = context.settings.local_storage.as_ref();
    let state =
        State { directory: directory.map(|path| path.display().to_string()), ..State::default() };
    let inputs = Inputs::new()
        .watch(every::<PersistentVolumeClaim>(client))
        .watch(every::<PersistentVolume>(client))
        .watch(every::<StorageClass>(client))
        .watch(every::<PodView>(client))
        .begin_with(ObjectKey::new("", ""), Duration::ZERO);
    runner::run(context, state, inputs).await;
}

#[derive(Default)]
struct State {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    pods: Cache<PodView>,
    /// The pods that use a claim.
    users: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    shelf: Shelf,
    /// The claims that have no volume, by their class.
    waiting: BTreeMap<String, BTreeSet<ObjectKey>>,
    directory: Option<String>,
}

impl Watches<PersistentVolumeClaim> for State {
    fn cache(&mut self) -> &mut Cache<PersistentVolumeClaim> {
        &mut self.claims
    }

    fn index(&mut self, change: &Changed<PersistentVolumeClaim>, _: &mut Queue<ObjectKey>) {
        if let Some(class) = change.before.as_deref().and_then(waits_for)
            && let Some(waiting) = self.waiting.get_mut(class)
        {
            waiting.remove(&change.key);
            if waiting.is_empty() {
                self.waiting.remove(class);
            }
        }
        if let Some(class) = change.now.as_deref().and_then(waits_for) {
            self.waiting.entry(class.to_owned()).or_default().insert(change.key.clone());
        }
    }

    fn wake(&mut self, change: &Changed<PersistentVolumeClaim>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
        for claim in change.states() {
            let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
            name.into_iter().for_each(|name| queue.add(ObjectKey::new("", name)));
        }
    }
}

impl Watches<PersistentVolume> for State {
    fn cache(&mut self) -> &mut Cache<PersistentVolume> {
        &mut self.volumes
    }

    fn index(&mut self, change: &Changed<PersistentVolume>, _: &mut Queue<ObjectKey>) {
        self.shelf.observe(&change.key.name, change.now.clone());
    }

    fn wake(&mut self, change: &Changed<PersistentVolume>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
        for volume in change.states() {
            match plan::claim_of(volume) {
                Some(claim) => queue.add(ObjectKey::new(
                    claim.namespace.clone().unwrap_or_default(),
                    claim.name.clone().unwrap_or_default(),
                )),
                // It may be what somebody waits for.
                None => {
                    let spec = volume.spec.as_ref();
                    queue.add(all_of(spec.and_then(|spec| spec.storage_class_name.as_deref())));
                }
            }
        }
    }
}

impl Watches<StorageClass> for State {
    fn cache(&mut self) -> &mut Cache<StorageClass> {
        &mut self.classes
    }

    fn wake(&mut self, change: &Changed<StorageClass>, queue: &mut Queue<ObjectKey>) {
        queue.add(all_of(Some(&change.key.name)));
        // It may be the one of those that name none.
        queue.add(all_of(None));
    }
}

impl Watches<PodView> for State {
    fn cache(&mut self) -> &mut Cache<PodView> {
        &mut self.pods
    }

    fn index(&mut self, change: &Changed<PodView>, queue: &mut Queue<ObjectKey>) {
        let claims = |pod: &Arc<PodView>| {
            let names = pod.claims.iter().filter(|_| !pod.is_finished());
            let namespace = &change.key.namespace;
            names.map(|name| ObjectKey::new(namespace, name)).collect::<BTreeSet<_>>()
        };
        let before = change.before.as_ref().map(claims).unwrap_or_default();
        let now = change.now.as_ref().map(claims).unwrap_or_default();
        for claim in before.difference(&now) {
            if let Some(users) = self.users.get_mut(claim) {
                users.remove(&change.key);
                if users.is_empty() {
                    self.users.remove(claim);
                    queue.add(claim.clone());
                }
            }
        }
        for claim in now {
            self.users.entry(claim).or_default().insert(change.key.clone());
        }
    }

    fn wake(&mut self, _: &Changed<PodView>, _: &mut Queue<ObjectKey>) {}
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "persistentvolume-controller";
    const QUEUE: &'static str = "persistentvolume";
    // Which volume one claim gets depends on what the one before got.
    const WORKERS: usize = 1;

    fn plan(&mut self, key: &ObjectKey, _: Timestamp) -> WritePlan {
        match (key.namespace.as_str(), key.name.as_str()) {
            ("", "") => self.plan_class(),
            ("", name) if name.starts_with('/') => self.plan_waiting(&name[1..]),
            ("", _) => self.plan_volume(key),
            _ => self.plan_claim(key),
        }
    }
}

impl State {
    /// However many volumes have come, everybody who waits looks once.
    fn plan_waiting(&self, class: &str) -> WritePlan {
        let waiting = self.waiting.get(class).into_iter().flatten();
        let wake = waiting.map(|key| (key.clone(), Duration::ZERO)).collect();
        WritePlan { wake, ..WritePlan::none() }
    }

    /// The class of directories on nodes, unless there is one of that kind.
    fn plan_class(&self) -> WritePlan {
        let has = self.classes.iter().any(|(_, class)| class.provisioner == PROVISIONER);
        let wanted = self.directory.is_some() && !has;
        let class = wanted.then(|| Write::create("", &plan::local_class()));
        WritePlan::writes(class.into_iter().collect())
    }

    fn plan_volume(&self, key: &ObjectKey) -> WritePlan {
        let Some(volume) = self.volumes.get(key) else { return WritePlan::none() };
        let named = plan::claim_of(volume).map(|claim| {
            ObjectKey::new(
                claim.namespace.clone().unwrap_or_default(),
                claim.name.clone().unwrap_or_default(),
            )
        });
        let claim = named.as_ref().and_then(|key| self.claims.get(key)).map(Arc::as_ref);
        let phase = plan::phase(volume, claim);
        let is_bound = phase == "Bound";
        if volume.metadata.deletion_timestamp.is_some() {
            let protected =
                (!is_bound).then(|| unprotect(VOLUMES, &volume.metadata, PROTECTED_VOLUME));
            return WritePlan::writes(protected.flatten().into_iter().collect());
        }
        let old = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if old == Some(phase) {
            return WritePlan::none();
        }
        let patch = json!({"metadata": {"uid": volume.metadata.uid}, "status": {"phase": phase}});
        WritePlan::writes(vec![Write::merge(VOLUMES, key.clone(), &patch).to("status")])
    }

    fn plan_claim(&self, key: &ObjectKey) -> WritePlan {
        let Some(claim) = self.claims.get(key) else { return WritePlan::none() };
        if claim.metadata.deletion_timestamp.is_some() {
            let is_used = self.users.contains_key(key);
            let write = (!is_used).then(|| unprotect(CLAIMS, &claim.metadata, PROTECTED_CLAIM));
            return WritePlan::writes(write.flatten().into_iter().collect());
        }
        let storage = Storage {
            volumes: &self.shelf,
            classes: self.classes.iter().map(|(_, class)| class.as_ref()).collect(),
            directory: self.directory.as_deref(),
        };
        match plan::plan(claim, &storage) {
            ClaimStep::Rest => WritePlan::none(),
            ClaimStep::Class(name) => {
                let patch = json!({"metadata": {"uid": claim.metadata.uid},
                    "spec": {"storageClassName": name}});
                let writes = vec![Write::merge(CLAIMS, key.clone(), &patch)];
                WritePlan { writes, again_after: Some(Duration::ZERO), ..WritePlan::none() }
            }
            ClaimStep::Make(volume) => WritePlan {
                writes: vec![Write::create("", volume.as_ref())],
                events: vec![tell(
                    claim,
                    Severity::Normal,
                    "ProvisioningSucceeded",
                    format!(
                        "Successfully provisioned volume {}",
                        volume.metadata.name.as_deref().unwrap_or("")
                    ),
                )],
                again_after: Some(Duration::ZERO),
                ..WritePlan::none()
            },
            ClaimStep::Bind(volume) => WritePlan::writes(bind(claim, volume)),
            ClaimStep::Lost => WritePlan::writes(set_status(claim, json!({"phase": "Lost"}))),
            ClaimStep::Wait(reason, message) => {
                let severity = match reason {
                    "ProvisioningFailed" => Severity::Warning,
                    _ => Severity::Normal,
                };
                let events = vec![tell(claim, severity, reason, message)];
                WritePlan {
                    events,
                    ..WritePlan::writes(set_status(claim, json!({"phase": "Pending"})))
                }
            }
        }
    }
}

/// The class of a claim that has no volume; `None` if it has one.
fn waits_for(claim: &PersistentVolumeClaim) -> Option<&str> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    (phase != Some("Bound")).then_some(class.unwrap_or(""))
}

/// The key of all claims of a class that wait.
fn all_of(class: Option<&str>) -> ObjectKey {
    ObjectKey::new("", format!("/{}", class.unwrap_or("")))
}

/// What is missing of the bond between the two, the volume's half first: a claim that believes to have a
/// volume that another one has would never get one.
fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Vec<Write> {
    let mut writes = Vec::new();
    let named = plan::claim_of(volume);
    if named.is_none_or(|own| own.uid != claim.metadata.uid) {
        let patch = json!({
            "metadata": {"uid": volume.metadata.uid, "annotations": {BOUND_BY: "yes"},
                "resourceVersion": volume.metadata.resource_version,
                "finalizers": protected(&volume.metadata, PROTECTED_VOLUME)},
            "spec": {"claimRef": plan::reference(claim)}});
        writes.push(Write::merge(VOLUMES, key_of(volume), &patch));
    }
    let spec = volume.spec.clone().unwrap_or_default();
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
    let is_protected = claim.metadata.finalizers.iter().flatten().any(|own| own == PROTECTED_CLAIM);
    let is_complete = plan::annotation(&claim.metadata, BIND_COMPLETED).is_some();
    if name != volume.metadata.name.as_ref() || !is_protected || !is_complete {
        let patch = json!({
            "metadata": {"uid": claim.metadata.uid, "annotations": {BIND_COMPLETED: "yes", BOUND_BY: "yes"},
                "resourceVersion": claim.metadata.resource_version,
                "finalizers": protected(&claim.metadata, PROTECTED_CLAIM)},
            "spec": {"volumeName": volume.metadata.name}});
        writes.push(Write::merge(CLAIMS, key_of(claim), &patch));
    }
    writes.extend(set_status(
        claim,
        json!({"phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity}),
    ));
    writes
}

/// All finalizers of an object, this one too.
fn protected(metadata: &ObjectMeta, finalizer: &str) -> Vec<String> {
    let mut all = metadata.finalizers.clone().unwrap_or_default();
    if !all.iter().any(|own| own == finalizer) {
        all.push(finalizer.to_owned());
    }
    all
}

/// Lets an object go that nobody uses.
fn unprotect(collection: Collection, metadata: &ObjectMeta, finalizer: &str) -> Option<Write> {
    let all = metadata.finalizers.as_deref().unwrap_or_default();
    let rest: Vec<_> = all.iter().filter(|own| *own != finalizer).collect();
    let key = ObjectKey::new(
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    );
    let patch = json!({"metadata": {"uid": metadata.uid, "finalizers": rest,
        "resourceVersion": metadata.resource_version}});
    (rest.len() < all.len()).then(|| Write::merge(collection, key, &patch).only_if_unchanged())
}

fn set_status(claim: &PersistentVolumeClaim, wanted: Value) -> Vec<Write> {
    let status =
        claim.status.as_ref().and_then(|status| status.to_value().ok()).unwrap_or_default();
    let fields = wanted.as_object().cloned().unwrap_or_default();
    if fields.iter().all(|(key, value)| status.get(key).unwrap_or(&Value::Null) == value) {
        return Vec::new();
    }
    let patch = json!({"metadata": {"uid": claim.metadata.uid}, "status": wanted});
    vec![Write::merge(CLAIMS, key_of(claim), &patch).to("status")]
}

fn tell(
    claim: &PersistentVolumeClaim,
    severity: Severity,
    reason: &str,
    message: String,
) -> EventDraft {
    EventDraft { about: InvolvedObject::of(claim), severity, reason: reason.to_owned(), message }
}
