//! Which directories a pod's volumes are, and where its containers see them: pure.
//!
//! A pod whose volumes we cannot provide does not start; it says which one, and why.

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, Pod, PodSpec, Volume};
use roadstead_api::quantity;
use serde::{Deserialize, Serialize};

/// A directory of the pod, empty at first, that lives as long as the pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmptyDirectory {
    /// The volume's name.
    pub name: String,
    /// Where its files are.
    pub medium: Medium,
    /// The group that owns it, if the pod names one.
    pub group: Option<u32>,
}

/// Where the files of a volume are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Medium {
    /// On the node's disk.
    Disk,
    /// In memory, at most this many bytes.
    Memory {
        /// Half of the node's memory if not given.
        size: Option<u64>,
    },
}

/// A volume in a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Which one.
    pub volume: EmptyDirectory,
    /// Where the container sees it.
    pub path: String,
    /// Whether the container may not write to it.
    pub read_only: bool,
}

/// Returns the volumes that a container sees, or which of them it cannot have and why.
pub(crate) fn mounts(pod: &Pod, container: &Container) -> Result<Vec<VolumeMount>, String> {
    let Some(spec) = &pod.spec else { return Ok(vec![]) };
    if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
        return Err(format!("container {:?}: volumeDevices are not supported", container.name));
    }
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volumes = spec.volumes.iter().flatten();
        let Some(volume) = volumes.into_iter().find(|volume| volume.name == mount.name) else {
            return Err(failed(&mount.name, "the pod has no such volume"));
        };
        if is_token(volume) {
            continue;
        }
        let given = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
        if given(&mount.sub_path) || given(&mount.sub_path_expr) {
            return Err(failed(&mount.name, "subPath is not supported by this node yet"));
        }
        if mount.mount_propagation.as_deref() == Some("Bidirectional") {
            return Err(failed(&mount.name, "mountPropagation Bidirectional is not supported"));
        }
        mounts.push(VolumeMount {
            volume: directory(spec, volume)?,
            path: target(&mount.mount_path).map_err(|why| failed(&mount.name, &why))?,
            read_only: mount.read_only.unwrap_or(false),
        });
    }
    // What is mounted further down comes later.
    mounts.sort_by_key(|mount| mount.path.matches('/').count());
    Ok(mounts)
}

/// Returns why the pod cannot start, if one of its containers wants a volume that we do not have.
pub(crate) fn missing(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find_map(|container| mounts(pod, container).err())
}

/// The names of volumes that containers ask for and run without: the token that an API server puts
/// into every pod. Few programs look at it, and those say that it is missing.
pub(crate) fn left_out(pod: &Pod) -> Vec<&str> {
    let Some(spec) = &pod.spec else { return vec![] };
    let tokens = spec.volumes.iter().flatten().filter(|volume| is_token(volume));
    tokens.map(|volume| volume.name.as_str()).collect()
}

fn is_token(volume: &Volume) -> bool {
    volume.name.starts_with("kube-api-access-") && volume.projected.is_some()
}

fn failed(volume: &str, why: &str) -> String {
    format!("MountVolume.SetUp failed for volume {volume:?} : {why}")
}

fn directory(spec: &PodSpec, volume: &Volume) -> Result<EmptyDirectory, String> {
    let Some(source) = &volume.empty_dir else {
        let why = format!(
            "{} volumes are not supported by this node yet, only emptyDir ones are",
            kind(volume)
        );
        return Err(failed(&volume.name, &why));
    };
    let group = spec.security_context.as_ref().and_then(|context| context.fs_group);
    Ok(EmptyDirectory {
        name: volume.name.clone(),
        medium: medium(source).map_err(|why| failed(&volume.name, &why))?,
        group: group.and_then(|group| u32::try_from(group).ok()),
    })
}

fn medium(source: &EmptyDirVolumeSource) -> Result<Medium, String> {
    match source.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => {
            let size = source.size_limit.as_ref().map(|size| {
                let parsed = quantity::read(&size.0).filter(|size| *size >= 0.0);
                parsed
                    .map(|size| size as u64)
                    .ok_or_else(|| format!("sizeLimit {:?} is no size", size.0))
            });
            // Zero means no limit, here and in Kubernetes, but to the kernel it is its own default.
            Ok(Medium::Memory { size: size.transpose()?.filter(|size| *size > 0) })
        }
        other => Err(format!("the medium {other} is not supported by this node yet")),
    }
}

/// What the volume is called in the spec.
fn kind(volume: &Volume) -> String {
    let fields = serde_json::to_value(volume).unwrap_or_default();
    let names = fields.as_object().into_iter().flat_map(|fields| fields.keys());
    names.into_iter().find(|name| *name != "name").cloned().unwrap_or_else(|| "emptyDir".into())
}

/// A path below the root of a container, without detours, that is not the kernel's.
fn target(path: &str) -> Result<String, String> {
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    match parts.first() {
        None => Err("it cannot be mounted on /".into()),
        Some(&("proc" | "sys")) => Err(format!("it cannot be mounted on {path}")),
        _ if parts.contains(&"..") => Err(format!("mountPath {path:?} must not contain '..'")),
        _ => Ok(format!("/{}", parts.join("/"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(volume: Value, mount: Value) -> Pod {
        let with_name = |mut value: Value| {
            value["name"] = value.get("name").cloned().unwrap_or(json!("v"));
            value
        };
        serde_json::from_value(json!({"spec": {
            "securityContext": {"fsGroup": 7},
            "volumes": [with_name(volume), {"name": "unused", "nfs": {"path": "/", "server": "x"}}],
            "containers": [{"name": "a", "volumeMounts": [with_name(mount)]}],
        }}))
        .unwrap()
    }

    #[test]
    fn directories() {
        let memory = |size| Medium::Memory { size };
        for (source, want) in [
            (json!({}), Medium::Disk),
            (json!({"sizeLimit": "1Mi"}), Medium::Disk),
            (json!({"medium": "Memory"}), memory(None)),
            (json!({"medium": "Memory", "sizeLimit": "1Mi"}), memory(Some(1 << 20))),
            (json!({"medium": "Memory", "sizeLimit": "0"}), memory(None)),
        ] {
            let pod = pod(json!({"emptyDir": source}), json!({"mountPath": "/a//b/"}));
            let mounts = mounts(&pod, &pod.spec.as_ref().unwrap().containers[0]).unwrap();
            let volume = EmptyDirectory { name: "v".into(), medium: want, group: Some(7) };
            let want = VolumeMount { volume, path: "/a/b".into(), read_only: false };
            assert_eq!(mounts, [want], "{source}");
        }
    }

    #[test]
    fn what_is_missing() {
        let empty = || json!({"emptyDir": {}});
        for (volume, mount, want) in [
            (
                json!({"configMap": {"name": "c"}}),
                json!({"mountPath": "/c"}),
                "configMap volumes are not supported by this node yet, only emptyDir ones are",
            ),
            (
                json!({"hostPath": {"path": "/"}}),
                json!({"mountPath": "/c"}),
                "hostPath volumes are not supported by this node yet, only emptyDir ones are",
            ),
            (
                json!({"emptyDir": {"medium": "HugePages"}}),
                json!({"mountPath": "/c"}),
                "the medium HugePages is not supported by this node yet",
            ),
            (
                empty(),
                json!({"mountPath": "/c", "subPath": "x"}),
                "subPath is not supported by this node yet",
            ),
            (empty(), json!({"mountPath": "/"}), "it cannot be mounted on /"),
            (empty(), json!({"mountPath": "/./proc/1"}), "it cannot be mounted on /./proc/1"),
            (
                empty(),
                json!({"mountPath": "/a/../b"}),
                "mountPath \"/a/../b\" must not contain '..'",
            ),
            (empty(), json!({"mountPath": "/a", "name": "w"}), "the pod has no such volume"),
        ] {
            let why = missing(&pod(volume, mount)).unwrap();
            assert!(why.starts_with("MountVolume.SetUp failed for volume \""), "{why}");
            assert!(why.ends_with(&format!("\" : {want}")), "{why}");
        }
        assert_eq!(missing(&pod(empty(), json!({"mountPath": "/a"}))), None);
    }

    #[test]
    fn the_token_of_an_api_server_is_left_out() {
        let token = json!({"name": "kube-api-access-x7k2p", "projected": {"sources": []}});
        let mount = json!({"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets"});
        let pod = pod(token, mount);
        assert_eq!((missing(&pod), left_out(&pod)), (None, vec!["kube-api-access-x7k2p"]));
    }
}
