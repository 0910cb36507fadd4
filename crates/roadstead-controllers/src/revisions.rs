//! The versions of templates, for the controllers that keep them as ControllerRevisions.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use roadstead_api::key::ObjectKey;
use roadstead_plan::owner::controller_of;
use roadstead_plan::revisions::RevisionPlan;
use roadstead_plan::selection::Owned;
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::key_of;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;

use crate::runner::Changed;

const REVISIONS: Collection = Collection::of::<ControllerRevision>();

/// All versions, by the object that controls them.
#[derive(Default)]
pub(crate) struct OwnedRevisions {
    pub(crate) cache: Cache<ControllerRevision>,
    owned: Owned,
}

impl OwnedRevisions {
    /// Takes in a change of a version.
    pub(crate) fn index(&mut self, change: &Changed<ControllerRevision>) {
        let owner = |own: &Arc<ControllerRevision>| Some(controller_of(&own.metadata)?.uid.clone());
        let (before, now) = (change.before.as_ref(), change.now.as_ref());
        let (before, now) = (before.and_then(owner), now.and_then(owner));
        self.owned.set(&change.key, before.as_deref(), now.as_deref());
    }

    /// Whom a change concerns.
    pub(crate) fn concerned(
        &self,
        kind: &str,
        change: &Changed<ControllerRevision>,
    ) -> Vec<ObjectKey> {
        let owners = change.states().filter_map(|own| controller_of(&own.metadata));
        let owners = owners.filter(|owner| owner.kind == kind);
        owners.map(|owner| ObjectKey::new(&change.key.namespace, &owner.name)).collect()
    }

    /// The versions of an owner.
    pub(crate) fn of(&self, owner: &ObjectMeta) -> Vec<&ControllerRevision> {
        let own = self.owned.of(owner.uid.as_deref());
        own.filter_map(|key| self.cache.get(key)).map(Arc::as_ref).collect()
    }
}

/// The writes that a plan of versions comes to.
pub(crate) fn writes(plan: &RevisionPlan) -> Vec<Write> {
    let namespace = |own: &ControllerRevision| own.metadata.namespace.clone().unwrap_or_default();
    let create = plan.create.iter().map(|own| Write::create(&namespace(own), own));
    let renumber = plan.renumber.iter().map(|own| {
        let patch = json!({"metadata": {"uid": own.metadata.uid}, "revision": own.revision});
        Write::merge(REVISIONS, key_of(own), &patch)
    });
    let delete = plan.delete.iter().map(|own| {
        let uid = own.metadata.uid.as_deref();
        Write::delete(REVISIONS, key_of(own), uid)
    });
    create.chain(renumber).chain(delete).collect()
}
