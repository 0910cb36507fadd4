//! The claims of a StatefulSet's pods, and whom they go with.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::owner;

pub(super) fn name(set: &StatefulSet, volume: &str, ordinal: i32) -> String {
    format!("{volume}-{}-{ordinal}", set.metadata.name.as_deref().unwrap_or(""))
}

/// The claims of one pod as they should be. `heir` is the pod, if it is about to go for good.
pub(super) fn of_pod(
    set: &StatefulSet,
    ordinal: i32,
    heir: Option<&ObjectMeta>,
) -> Vec<PersistentVolumeClaim> {
    let templates = set.spec.volume_claim_templates.iter().flatten();
    let make = |template: &PersistentVolumeClaim| {
        let mut claim = template.clone();
        let volume = claim.metadata.name.take().unwrap_or_default();
        claim.metadata.name = Some(name(set, &volume, ordinal));
        claim.metadata.namespace = set.metadata.namespace.clone();
        if let Some(labels) = &set.spec.selector.match_labels {
            claim.metadata.labels.get_or_insert_default().extend(labels.clone());
        }
        claim.metadata.owner_references = owner_of(set, heir).map(|owner| vec![owner]);
        claim.status = None;
        claim
    };
    templates.map(make).collect()
}

/// Whom a claim is to go with: the set, its pod when that is scaled away, or nobody.
fn owner_of(set: &StatefulSet, heir: Option<&ObjectMeta>) -> Option<OwnerReference> {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    let goes =
        |when: Option<&Option<String>>| when.is_some_and(|own| own.as_deref() == Some("Delete"));
    let with_pod = goes(policy.map(|policy| &policy.when_scaled));
    let with_set = goes(policy.map(|policy| &policy.when_deleted));
    match heir.filter(|_| with_pod) {
        Some(pod) => Some(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pod.name.clone().unwrap_or_default(),
            uid: pod.uid.clone().unwrap_or_default(),
            controller: None,
            block_owner_deletion: None,
        }),
        None if with_set => Some(OwnerReference {
            controller: None,
            block_owner_deletion: None,
            ..owner::controlled_by(set)
        }),
        None => None,
    }
}

/// The owners that a claim should have, if it has others. Whoever else owns it stays.
pub(super) fn owners(
    claim: &PersistentVolumeClaim,
    wanted: &PersistentVolumeClaim,
    set: &StatefulSet,
) -> Option<Vec<OwnerReference>> {
    let own = claim.metadata.owner_references.as_deref().unwrap_or_default();
    let index = wanted.metadata.name.as_deref().and_then(|name| name.rsplit('-').next());
    let pod = format!("{}-{}", set.metadata.name.as_deref()?, index?);
    let is_ours = |owner: &OwnerReference| {
        Some(owner.uid.as_str()) == set.metadata.uid.as_deref()
            || (owner.kind == "Pod" && owner.name == pod)
    };
    let (ours, others): (Vec<_>, Vec<_>) = own.iter().cloned().partition(is_ours);
    let wanted = wanted.metadata.owner_references.as_deref().unwrap_or_default();
    let uids = |owners: &[OwnerReference]| {
        owners.iter().map(|owner| owner.uid.clone()).collect::<Vec<_>>()
    };
    (uids(&ours) != uids(wanted))
        .then(|| others.into_iter().chain(wanted.iter().cloned()).collect())
}

/// Whether a claim is about to go, with a pod of that name or by itself.
pub(super) fn goes_with(claim: &PersistentVolumeClaim, pod: &str) -> bool {
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    claim.metadata.deletion_timestamp.is_some()
        || owners.iter().any(|owner| owner.kind == "Pod" && owner.name == pod)
}
