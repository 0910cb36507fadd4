//! One pod of a StatefulSet: what it is called, and what it is made from.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};

use super::claims;
use crate::pods::from_template;
use crate::revisions::POD_REVISION;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The ordinal that a pod of this name has in a set; none, if it is not a name of its pods.
pub fn ordinal(set: &StatefulSet, pod: &str) -> Option<i32> {
    let own = set.metadata.name.as_deref()?;
    let digits = pod.strip_prefix(own)?.strip_prefix('-')?;
    let number: i32 = digits.parse().ok()?;
    (number >= 0 && number.to_string() == digits).then_some(number)
}

/// The first ordinal.
pub(super) fn start(set: &StatefulSet) -> i32 {
    set.spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0)
}

pub(super) fn name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.metadata.name.as_deref().unwrap_or(""))
}

/// The pod of an ordinal, of a version.
pub(super) fn pod(
    set: &StatefulSet,
    ordinal: i32,
    template: &PodTemplateSpec,
    revision: &str,
) -> Pod {
    let mut pod = from_template(set, Some(template));
    let name = name(set, ordinal);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(POD_REVISION.to_owned(), revision.to_owned());
    pod.metadata.generate_name = None;
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name.clone());
    spec.subdomain = set.spec.service_name.clone();
    let templates = set.spec.volume_claim_templates.as_deref().unwrap_or_default();
    let volumes = spec.volumes.get_or_insert_default();
    for template in templates {
        let volume = template.metadata.name.clone().unwrap_or_default();
        volumes.retain(|other| other.name != volume);
        volumes.push(Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claims::name(set, &volume, ordinal),
                ..PersistentVolumeClaimVolumeSource::default()
            }),
            name: volume,
            ..Volume::default()
        });
    }
    if volumes.is_empty() {
        spec.volumes = None;
    }
    pod.metadata.name = Some(name);
    pod
}
