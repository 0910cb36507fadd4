//! What the API shows of pods that this node runs by itself: a mirror of each, made again when somebody
//! deletes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_pod::pod_name::PodName;
use roadstead_pod::static_pods::{MirrorStep, mirror_of, mirror_step};
use roadstead_watch::informer::key_of;
use tracing::{info, warn};

use crate::pod_api;
use crate::worker::PodUpdate;

/// Static pods and their mirrors.
pub(crate) struct Mirrors {
    client: Client,
    node: String,
    pods: BTreeMap<ObjectKey, Arc<Pod>>,
    shown: BTreeMap<ObjectKey, Arc<Pod>>,
    /// About which somebody talks to the API just now.
    busy: Arc<Mutex<BTreeSet<ObjectKey>>>,
    /// Nothing is done before all mirrors are known.
    synced: bool,
}

impl Mirrors {
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self {
            client,
            node: node.to_owned(),
            pods: BTreeMap::new(),
            shown: BTreeMap::new(),
            busy: Arc::default(),
            synced: false,
        }
    }

    pub(crate) fn is_static(&self, key: &ObjectKey) -> bool {
        self.pods.contains_key(key)
    }

    /// Takes in all static pods; returns the keys of those that are gone, or are other pods now, and of
    /// those that are new.
    pub(crate) fn replace(&mut self, pods: Vec<Arc<Pod>>) -> (Vec<ObjectKey>, Vec<ObjectKey>) {
        let pods: BTreeMap<_, _> = pods.into_iter().map(|pod| (key_of(&*pod), pod)).collect();
        let differ = |one: &BTreeMap<ObjectKey, Arc<Pod>>, other: &BTreeMap<_, Arc<Pod>>| {
            let keys = one.iter().filter(|(key, pod)| {
                other.get(*key).is_none_or(|found: &Arc<Pod>| found.uid() != pod.uid())
            });
            keys.map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        let both = (differ(&self.pods, &pods), differ(&pods, &self.pods));
        self.pods = pods;
        both
    }

    /// The API shows this.
    pub(crate) fn show(&mut self, mirror: Arc<Pod>) {
        self.shown.insert(key_of(&*mirror), mirror);
    }

    /// The API does not show it any more; whether it did.
    pub(crate) fn hide(&mut self, key: &ObjectKey) -> bool {
        self.shown.remove(key).is_some()
    }

    /// A static pod with what its mirror says of it.
    pub(crate) fn update(&self, key: &ObjectKey) -> Option<PodUpdate> {
        let mut pod = (**self.pods.get(key)?).clone();
        let mirror =
            self.shown.get(key).filter(|mirror| mirror_step(Some(&pod), Some(mirror)).is_none());
        pod.status = mirror.and_then(|mirror| mirror.status.clone());
        let mirror = mirror.and_then(|mirror| mirror.uid());
        Some(PodUpdate { mirror, ..PodUpdate::of(Arc::new(pod)) })
    }

    /// From now on all mirrors are known.
    pub(crate) fn begin(&mut self) {
        self.synced = true;
        self.reconcile_all();
    }

    /// Makes or removes what is missing or too much.
    pub(crate) fn reconcile_all(&self) {
        let keys: BTreeSet<_> = self.pods.keys().chain(self.shown.keys()).cloned().collect();
        for key in keys {
            self.reconcile(&key);
        }
    }

    /// Makes or removes one mirror, if it has to be; not twice at the same time.
    pub(crate) fn reconcile(&self, key: &ObjectKey) {
        let (pod, mirror) = (self.pods.get(key), self.shown.get(key));
        let step = mirror_step(pod.map(|pod| &**pod), mirror.map(|mirror| &**mirror));
        let Some(step) = step.filter(|_| self.synced) else { return };
        if !lock(&self.busy).insert(key.clone()) {
            return;
        }
        let (client, node) = (self.client.clone(), self.node.clone());
        let (pod, mirror, key) = (pod.cloned(), mirror.cloned(), key.clone());
        let busy = self.busy.clone();
        tokio::spawn(async move {
            let done = match (step, pod, mirror) {
                (MirrorStep::Create, Some(pod), _) => create(client, &node, &pod).await,
                (MirrorStep::Delete, _, Some(mirror)) => {
                    pod_api::delete(&client, &PodName::of(&mirror)).await
                }
                _ => Ok(()),
            };
            match done {
                Ok(()) => info!(pod = %key, ?step, "the mirror of a static pod"),
                Err(error) => warn!(pod = %key, ?step, error, "a mirror cannot be had, will retry"),
            }
            lock(&busy).remove(&key);
        });
    }
}

fn lock(busy: &Mutex<BTreeSet<ObjectKey>>) -> std::sync::MutexGuard<'_, BTreeSet<ObjectKey>> {
    busy.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn create(client: Client, node: &str, pod: &Pod) -> Result<(), String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let owner = nodes.get(node).await.map_err(|error| error.to_string())?;
    let mirror = mirror_of(pod, &owner.uid().unwrap_or_default());
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(client, &namespace);
    let made = api.create(&PostParams::default(), &mirror).await;
    made.map(drop).map_err(|error| error.to_string())
}
