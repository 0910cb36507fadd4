//! Whose ReplicaSets they are.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use roadstead_api::selector::Selector;

use crate::owner::{controller_of, is_controlled_by};

/// Which ReplicaSets belong to a Deployment.
#[derive(Debug, Default)]
pub struct SetClaim<'a> {
    /// It controls these.
    pub own: Vec<&'a ReplicaSet>,
    /// These match and belong to nobody: it takes them, as after `kubectl delete --cascade=orphan`.
    pub adopt: Vec<&'a ReplicaSet>,
    /// It controls these, but they no longer match: it lets them go.
    pub release: Vec<&'a ReplicaSet>,
}

/// Sorts ReplicaSets by whether a Deployment controls them or should.
pub fn claim<'a>(
    deployment: &Deployment,
    sets: impl Iterator<Item = &'a ReplicaSet>,
) -> SetClaim<'a> {
    let selector = Selector::from_object(&deployment.spec.selector);
    let stays = deployment.metadata.deletion_timestamp.is_none();
    let mut claim = SetClaim::default();
    for set in sets {
        let labels = set.metadata.labels.as_ref();
        let matches = !selector.is_empty() && selector.matches_labels(labels);
        if is_controlled_by(&set.metadata, &deployment.metadata) {
            if matches || !stays { &mut claim.own } else { &mut claim.release }.push(set);
        } else if matches
            && stays
            && controller_of(&set.metadata).is_none()
            && set.metadata.deletion_timestamp.is_none()
        {
            claim.adopt.push(set);
        }
    }
    claim
}
