//! Which object belongs to which.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::{Metadata, Resource};

/// The owner that controls an object, if there is one.
pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Whether `owner` controls the object.
pub(crate) fn is_controlled_by(metadata: &ObjectMeta, owner: &ObjectMeta) -> bool {
    let uid = owner.uid.as_deref();
    uid.is_some() && controller_of(metadata).map(|owner| owner.uid.as_str()) == uid
}

/// A reference by which `owner` controls another object.
pub fn controlled_by<K>(owner: &K) -> OwnerReference
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    let metadata = owner.metadata();
    OwnerReference {
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
