//! Volumes that pods have through claims: directories of the node that outlive them. Pure.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod,
};
use serde::{Deserialize, Serialize};

use crate::image::{ImageContent, ImageFacts};
use crate::security::Policy;

/// A directory of the node that outlives the pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimedVolume {
    /// Where it is on the node.
    pub path: String,
    /// Whether it is made if it is not there.
    pub create: bool,
    /// Whether nobody in the pod may write to it.
    pub read_only: bool,
    /// When its files are given to the pod's group.
    #[serde(default)]
    pub group_change: GroupChange,
}

/// When the files of a volume are given to the pod's group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupChange {
    /// Never: they are the node's.
    #[default]
    Never,
    /// For every pod.
    Always,
    /// If the directory itself is not that group's.
    OnRootMismatch,
}

impl GroupChange {
    /// What the pod says.
    pub(super) fn of(pod: &Pod) -> Self {
        let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        match of_pod.and_then(|of_pod| of_pod.fs_group_change_policy.as_deref()) {
            Some("OnRootMismatch") => Self::OnRootMismatch,
            _ => Self::Always,
        }
    }
}

/// What the pods of this node may have for volumes.
#[derive(Clone, Copy, Debug)]
pub struct VolumeGrants<'a> {
    /// Whether they may have the node's own files.
    pub policy: Policy,
    /// What their claims stand for, by the name of the claim.
    pub claims: &'a BTreeMap<String, ClaimedVolume>,
    /// The images that are volumes, by the name of the volume.
    pub images: &'a BTreeMap<String, ImageFacts>,
}

static NO_IMAGES: BTreeMap<String, ImageFacts> = BTreeMap::new();
static NO_CLAIMS: BTreeMap<String, ClaimedVolume> = BTreeMap::new();

impl From<Policy> for VolumeGrants<'static> {
    fn from(policy: Policy) -> Self {
        Self { policy, claims: &NO_CLAIMS, images: &NO_IMAGES }
    }
}

impl VolumeGrants<'_> {
    pub(super) fn image(&self, volume: &str) -> Result<Vec<PathBuf>, String> {
        match self.images.get(volume).map(|image| &image.content) {
            Some(ImageContent::Layers(image)) => Ok(image.layers.clone()),
            Some(ImageContent::BuiltIn(_)) => Err("a built-in image has no files".into()),
            None => Err("its image is not here".into()),
        }
    }

    pub(super) fn claimed(
        &self,
        source: &PersistentVolumeClaimVolumeSource,
    ) -> Result<ClaimedVolume, String> {
        let name = &source.claim_name;
        let found = self.claims.get(name).cloned();
        let found = found.ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
        Ok(ClaimedVolume { read_only: source.read_only == Some(true), ..found })
    }
}

/// The names of a pod's claims.
pub fn names(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.map(|source| source.claim_name.clone()).collect()
}

/// The name of the volume that a claim has, or why it has none.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Result<String, String> {
    let name = claim.metadata.name.as_deref().unwrap_or("");
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    let bound = volume.filter(|volume| !volume.is_empty() && phase == Some("Bound"));
    bound.ok_or_else(|| format!("persistentvolumeclaim {name:?} is not bound"))
}

/// The directory that a claim stands for. The volume must name this very claim: what the claim says can
/// be changed by whoever may write to its namespace.
pub fn claimed(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<ClaimedVolume, String> {
    let name = volume.metadata.name.as_deref().unwrap_or("");
    let spec = volume.spec.clone().unwrap_or_default();
    let uid = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_ref());
    if uid.is_none() || uid != claim.metadata.uid.as_ref() {
        return Err(format!("persistentvolume {name:?} is bound to another claim"));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err("block volumes are not supported by this node".into());
    }
    let is_ours = volume.metadata.annotations.as_ref().is_some_and(|annotations| {
        annotations.get("pv.kubernetes.io/provisioned-by").map(String::as_str)
            == Some("rancher.io/local-path")
    });
    let (path, create, group_change) = match (&spec.local, &spec.host_path) {
        (Some(local), _) => (local.path.clone(), is_ours, GroupChange::Always),
        (None, Some(own)) => {
            let may = matches!(own.type_.as_deref(), Some("DirectoryOrCreate"));
            (own.path.clone(), is_ours || may, GroupChange::Never)
        }
        (None, None) => return Err("no volume plugin matched".into()),
    };
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(format!("path {path:?} must be absolute, without '..'"));
    }
    Ok(ClaimedVolume { path, create, read_only: false, group_change })
}

/// The directory of a volume that is to go with it, if it is one of those that were made for claims:
/// these have the name of their volume.
pub fn left_behind(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let annotations = volume.metadata.annotations.as_ref()?;
    let made_by = annotations.get("pv.kubernetes.io/provisioned-by").map(String::as_str);
    let path = spec.local.as_ref().map(|local| local.path.as_str())?;
    let (_, last) = path.rsplit_once('/')?;
    let name = volume.metadata.name.as_deref()?;
    let is_its_own = name.starts_with("pvc-") && last.strip_prefix(name)?.starts_with('_');
    let goes = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    let is_ours = made_by == Some("rancher.io/local-path") && is_its_own && !path.contains("/../");
    (phase == Some("Released") && goes && is_ours).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(uid: &str, spec: Value) -> PersistentVolume {
        let mut spec = spec;
        spec["claimRef"] = json!({"uid": uid, "name": "c"});
        serde_json::from_value(json!({"metadata": {"name": "pvc-u"}, "spec": spec})).unwrap()
    }

    #[test]
    fn what_a_claim_stands_for() {
        let claim: PersistentVolumeClaim = serde_json::from_value(
            json!({"metadata": {"name": "c", "uid": "u"}, "spec": {"volumeName": "pvc-u"}}),
        )
        .unwrap();
        let local = |path: &str| json!({"local": {"path": path}});
        for (uid, spec, want) in [
            ("u", local("/s/x"), Ok("/s/x")),
            ("u", json!({"hostPath": {"path": "/h"}}), Ok("/h")),
            ("another", local("/s/x"), Err("persistentvolume \"pvc-u\" is bound to another claim")),
            ("u", local("/s/../x"), Err("path \"/s/../x\" must be absolute, without '..'")),
            ("u", json!({"nfs": {"path": "/", "server": "s"}}), Err("no volume plugin matched")),
        ] {
            let found = claimed(&claim, &volume(uid, spec)).map(|found| found.path);
            assert_eq!(found.as_deref().map_err(String::as_str), want);
        }
        assert!(volume_name(&claim).is_err(), "it is not said to be bound");
    }

    #[test]
    fn only_what_was_made_for_a_claim_goes() {
        let of = |path: &str, phase: &str, policy: &str| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": {"name": "pvc-u", "annotations":
                    {"pv.kubernetes.io/provisioned-by": "rancher.io/local-path"}},
                "spec": {"local": {"path": path}, "persistentVolumeReclaimPolicy": policy},
                "status": {"phase": phase}}))
            .unwrap()
        };
        for (path, phase, policy, goes) in [
            ("/s/pvc-u_ns_c", "Released", "Delete", true),
            ("/s/pvc-u_ns_c", "Bound", "Delete", false),
            ("/s/pvc-u_ns_c", "Released", "Retain", false),
            ("/etc", "Released", "Delete", false),
            ("/s/pvc-u2_ns_c", "Released", "Delete", false),
            ("/s/../pvc-u_ns_c", "Released", "Delete", false),
        ] {
            let volume = of(path, phase, policy);
            assert_eq!(left_behind(&volume).is_some(), goes, "{path} {phase} {policy}");
        }
    }

    #[test]
    fn when_files_are_given_away() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "c", "uid": "u"}})).unwrap();
        for (source, policy, want) in [
            (json!({"local": {"path": "/x"}}), json!(null), GroupChange::Always),
            (json!({"local": {"path": "/x"}}), json!("Always"), GroupChange::Always),
            (
                json!({"local": {"path": "/x"}}),
                json!("OnRootMismatch"),
                GroupChange::OnRootMismatch,
            ),
            (json!({"hostPath": {"path": "/x"}}), json!("Always"), GroupChange::Never),
        ] {
            let found = claimed(&claim, &volume("u", source.clone())).unwrap();
            let claims = BTreeMap::from([("c".to_owned(), found)]);
            let pod = json!({"spec": {"securityContext": {"fsGroup": 7, "fsGroupChangePolicy": policy},
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
                "containers": [{"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let grants = VolumeGrants { claims: &claims, ..Policy::Baseline.into() };
            let made = crate::volumes::pod_volumes(&pod, grants).remove(0).unwrap();
            let crate::volumes::VolumeContent::Claimed(made) = made.content else { panic!() };
            assert_eq!(made.group_change, want, "{source} {policy}");
        }
    }
}
