//! Pods and who controls them, for every controller whose objects have pods of their own.
//!
//! Upstream's controllers keep expectations, to wait for what they have written to come back to
//! them. Here own writes are in the cache before the next plan, so there is nothing to expect.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Labels;
use roadstead_plan::owner::{controlled_by, controller_of};
use roadstead_plan::pod_view::PodView;
use roadstead_plan::pods::{Claim, ControlledPod};
use roadstead_plan::selection::{Labelled, Owned, Selectors};
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::key_of;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;

use crate::runner::Changed;

pub(crate) const PODS: Collection = Collection::of::<PodView>();

/// All pods, by the object that controls them or might.
#[derive(Default)]
pub(crate) struct OwnedPods<P = PodView> {
    pub(crate) cache: Cache<P>,
    owned: Owned,
    /// Pods that nobody controls.
    orphans: Labelled<Arc<P>>,
    /// What the owners select.
    selectors: Selectors,
}

impl<P: ControlledPod> OwnedPods<P> {
    /// Takes in what an owner selects; nothing, once it is gone.
    pub(crate) fn set_selector(&mut self, owner: &ObjectKey, selector: Option<&Labels>) {
        self.selectors.set(owner, selector);
    }

    /// Takes in a change of a pod.
    pub(crate) fn index(&mut self, change: &Changed<P>) {
        let controller = |pod: &P| controller_of(pod.metadata()).map(|own| own.uid.clone());
        let (key, before, now) = (&change.key, change.before.as_ref(), change.now.as_ref());
        let old = before.and_then(|pod| controller(pod));
        let new = now.and_then(|pod| controller(pod));
        self.owned.set(key, old.as_deref(), new.as_deref());
        if let Some(before) = before.filter(|_| old.is_none()) {
            self.orphans.remove(key, before.metadata().labels.as_ref());
        }
        if let Some(now) = now.filter(|_| new.is_none()) {
            self.orphans.insert(key, now.metadata().labels.as_ref(), now);
        }
    }

    /// Whom a change of a pod concerns: the object of that kind that controls it, or those who
    /// might adopt it. Nobody, if nothing changed that matters.
    pub(crate) fn concerned(&self, kind: &str, change: &Changed<P>) -> Vec<ObjectKey> {
        let mut keys = Vec::new();
        if let (Some(before), Some(now)) = (&change.before, &change.now)
            && !now.differs_from(before)
        {
            return keys;
        }
        let namespace = &change.key.namespace;
        for pod in change.states() {
            match controller_of(pod.metadata()) {
                Some(owner) if owner.kind == kind => {
                    keys.push(ObjectKey::new(namespace, &owner.name));
                }
                Some(_) => {}
                None => {
                    let names = self.selectors.selecting(namespace, pod.metadata().labels.as_ref());
                    keys.extend(names.into_iter().map(|name| ObjectKey::new(namespace, name)));
                }
            }
        }
        keys
    }

    /// The pods that an owner controls, and those that nobody controls and that have all these
    /// labels.
    pub(crate) fn candidates(&self, owner: &ObjectMeta, labels: &Labels) -> Vec<&P> {
        let own = self.owned.of(owner.uid.as_deref()).filter_map(|key| self.cache.get(key));
        let namespace = owner.namespace.as_deref().unwrap_or("");
        let orphans =
            self.orphans.selected(namespace, labels, |pod| pod.metadata().labels.as_ref());
        own.chain(orphans).map(Arc::as_ref).collect()
    }
}

/// The writes that settle whose pods they are.
pub(crate) fn settle_ownership<K, P>(owner: &K, claim: &Claim<'_, P>) -> Vec<Write>
where
    K: Resource + Metadata<Ty = ObjectMeta>,
    P: ControlledPod,
{
    settle_ownership_with(owner, claim, &[])
}

/// The same for an owner without whom its pods may not go: those that it takes get these finalizers. Of
/// those that it lets go it takes them off itself.
pub(crate) fn settle_ownership_with<K, P>(
    owner: &K,
    claim: &Claim<'_, P>,
    finalizers: &[&str],
) -> Vec<Write>
where
    K: Resource + Metadata<Ty = ObjectMeta>,
    P: ControlledPod,
{
    let gone = json!([{"$patch": "delete", "uid": owner.metadata().uid}]);
    let (mut adopted, released) =
        (json!({"ownerReferences": [controlled_by(owner)]}), json!({"ownerReferences": gone}));
    if !finalizers.is_empty() {
        adopted["finalizers"] = json!(finalizers);
    }
    let write = |pod: &P, metadata: &serde_json::Value| {
        let mut metadata = metadata.clone();
        metadata["uid"] = json!(pod.metadata().uid);
        Write::strategic(PODS, key_of(pod), &json!({"metadata": metadata}))
    };
    let adopt = claim.adopt.iter().map(|pod| write(pod, &adopted));
    adopt.chain(claim.release.iter().map(|pod| write(pod, &released))).collect()
}

/// Deletes a pod, if it still is the same.
pub(crate) fn delete(pod: &PodView) -> Write {
    Write::delete(PODS, key_of(pod), pod.metadata.uid.as_deref())
}
