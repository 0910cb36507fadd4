//! Which directories a pod's volumes are, and where its containers see them: pure.
//!
//! A pod whose volumes we cannot provide does not start; it says which one, and why. [`payload`] is what
//! is in those that have their files from API objects, [`atomic`] how these files change.

pub mod atomic;
pub mod claimed;
pub mod payload;

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, HostPathVolumeSource, Pod, PodSpec, Volume,
    VolumeMount as WishedMount,
};
use roadstead_api::quantity;
use serde::{Deserialize, Serialize};

use crate::resources::of_pod;
use crate::security::{Policy, disallowed};
use crate::volumes::claimed::{ClaimedVolume, GroupChange, VolumeGrants};

/// A directory or file that containers of a pod share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodVolume {
    /// The volume's name.
    pub name: String,
    /// What it is.
    pub content: VolumeContent,
    /// The group that owns it, if the pod names one.
    pub group: Option<u32>,
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum VolumeContent {
    /// A directory, empty at first, that lives as long as the pod.
    EmptyDirectory(Medium),
    /// Files that the agent writes, and nobody else.
    Files(Medium),
    /// A file or directory of the node.
    HostPath {
        /// Where it is on the node.
        path: String,
        /// What it has to be.
        check: HostPathCheck,
    },
    /// A directory of the node that outlives the pod.
    Claimed(ClaimedVolume),
    /// The files of an image, by its layers, the lowest first. Nobody writes to them.
    Image(Vec<PathBuf>),
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

/// What a path of the node has to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the API")]
pub enum HostPathCheck {
    Anything,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

/// A volume in a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Which one.
    pub volume: PodVolume,
    /// Which part of it, without detours; all if not given.
    pub sub_path: Option<String>,
    /// Where the container sees it.
    pub path: String,
    /// Whether the container may write to it.
    pub access: Access,
    /// Who sees what is mounted there later.
    pub propagation: Propagation,
}

/// Who sees what is mounted in a volume after the container has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// Whoever mounts it, and nobody else.
    #[default]
    None,
    /// The container sees what the node mounts.
    HostToContainer,
    /// That, and the node sees what the container mounts.
    Bidirectional,
}

/// What files of a mount can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trust {
    /// All but be devices.
    #[default]
    Data,
    /// All that files of the node can.
    Node,
    /// Be read.
    Image,
}

impl VolumeContent {
    /// What its files can do in a container.
    pub fn trust(&self) -> Trust {
        match self {
            Self::HostPath { .. } => Trust::Node,
            Self::Image(_) => Trust::Image,
            Self::EmptyDirectory(_) | Self::Files(_) | Self::Claimed(_) => Trust::Data,
        }
    }
}

/// Whether a container may write to a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Access {
    /// It may.
    #[default]
    ReadWrite,
    /// It may not; to what is mounted below, it may.
    ReadOnly,
    /// It may not, wherever.
    RecursiveReadOnly,
}

/// Returns the volumes that the pod's containers use, each as it is or why it cannot be had; not those of
/// images, which come when a container starts that has them.
pub fn pod_volumes<'a>(
    pod: &Pod,
    grants: impl Into<VolumeGrants<'a>>,
) -> Vec<Result<PodVolume, String>> {
    let grants = grants.into();
    let Some(spec) = &pod.spec else { return vec![] };
    let is_used = |volume: &&Volume| {
        all_containers(spec).any(|container| {
            container.volume_mounts.iter().flatten().any(|mount| mount.name == volume.name)
        })
    };
    let used = spec.volumes.iter().flatten().filter(is_used);
    let used = used.filter(|volume| volume.image.is_none());
    used.map(|volume| pod_volume(pod, volume, grants)).collect()
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// In the words of a kubelet.
pub fn mount_failure(volume: &str, why: &str) -> String {
    format!("MountVolume.SetUp failed for volume {volume:?} : {why}")
}

fn pod_volume(pod: &Pod, volume: &Volume, grants: VolumeGrants<'_>) -> Result<PodVolume, String> {
    let content = content(volume, grants).map_err(|why| mount_failure(&volume.name, &why))?;
    let mut content = within_limits(content, pod);
    if let VolumeContent::Claimed(claimed) = &mut content
        && claimed.group_change != GroupChange::Never
    {
        claimed.group_change = GroupChange::of(pod);
    }
    let group = match content {
        // What is the node's, or an image's, stays as it is.
        VolumeContent::HostPath { .. } | VolumeContent::Image(_) => None,
        _ => payload::group(pod),
    };
    Ok(PodVolume { name: volume.name.clone(), content, group })
}

fn content(volume: &Volume, grants: VolumeGrants<'_>) -> Result<VolumeContent, String> {
    let has_token = || {
        let parts = volume.projected.iter().flat_map(|all| all.sources.iter().flatten());
        parts.into_iter().any(|part| part.service_account_token.is_some() || part.secret.is_some())
    };
    let memory = Medium::Memory { size: None };
    if let Some(source) = &volume.empty_dir {
        Ok(VolumeContent::EmptyDirectory(medium(source)?))
    } else if volume.secret.is_some() || has_token() {
        // What is secret is never on a disk.
        Ok(VolumeContent::Files(memory))
    } else if volume.config_map.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
    {
        Ok(VolumeContent::Files(Medium::Disk))
    } else if let Some(source) = &volume.host_path {
        host_path(source, grants.policy)
    } else if let Some(source) = &volume.persistent_volume_claim {
        Ok(VolumeContent::Claimed(grants.claimed(source)?))
    } else if volume.image.is_some() {
        Ok(VolumeContent::Image(grants.image(&volume.name)?))
    } else if volume == &(Volume { name: volume.name.clone(), ..Volume::default() }) {
        // As the API server would have said.
        Ok(VolumeContent::EmptyDirectory(Medium::Disk))
    } else {
        Err("no volume plugin matched".into())
    }
}

/// A directory in memory is not larger than the memory that the pod may use, whatever else is said.
fn within_limits(content: VolumeContent, pod: &Pod) -> VolumeContent {
    let most = pod.spec.as_ref().and_then(|spec| of_pod(spec).memory);
    match content {
        VolumeContent::EmptyDirectory(Medium::Memory { size }) => {
            let size = size.into_iter().chain(most).min();
            VolumeContent::EmptyDirectory(Medium::Memory { size })
        }
        other => other,
    }
}

fn host_path(source: &HostPathVolumeSource, policy: Policy) -> Result<VolumeContent, String> {
    if policy == Policy::Baseline {
        return Err(disallowed("a hostPath volume"));
    }
    if !source.path.starts_with('/') || source.path.split('/').any(|part| part == "..") {
        return Err(format!("hostPath {:?} must be absolute, without '..'", source.path));
    }
    let check = match source.type_.as_deref().unwrap_or_default() {
        "" => HostPathCheck::Anything,
        "DirectoryOrCreate" => HostPathCheck::DirectoryOrCreate,
        "Directory" => HostPathCheck::Directory,
        "FileOrCreate" => HostPathCheck::FileOrCreate,
        "File" => HostPathCheck::File,
        "Socket" => HostPathCheck::Socket,
        "CharDevice" => HostPathCheck::CharDevice,
        "BlockDevice" => HostPathCheck::BlockDevice,
        other => return Err(format!("{other} is an invalid volume type")),
    };
    Ok(VolumeContent::HostPath { path: source.path.clone(), check })
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

/// Returns the volumes that a container sees, or which of them it cannot have and why. `expand` resolves
/// the variables of a subPathExpr.
pub(crate) fn mounts<'a>(
    pod: &Pod,
    container: &Container,
    grants: impl Into<VolumeGrants<'a>>,
    expand: impl Fn(&str) -> Result<String, String>,
) -> Result<Vec<VolumeMount>, String> {
    let grants = grants.into();
    let Some(spec) = &pod.spec else { return Ok(vec![]) };
    if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
        return Err(format!("container {:?}: volumeDevices are not supported", container.name));
    }
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let mut volumes = spec.volumes.iter().flatten();
        let Some(volume) = volumes.find(|volume| volume.name == mount.name) else {
            return Err(mount_failure(&mount.name, "the pod has no such volume"));
        };
        let volume = pod_volume(pod, volume, grants)?;
        let propagation = propagation(container, mount)
            .map_err(|why| format!("volumeMount {:?}: {why}", mount.name))?;
        mounts.push(VolumeMount {
            propagation,
            sub_path: sub_path(mount, &expand)?,
            path: target(&mount.mount_path)
                .map_err(|why| format!("volumeMount {:?}: {why}", mount.name))?,
            access: access(&volume, mount),
            volume,
        });
    }
    // What is mounted further down comes later.
    mounts.sort_by_key(|mount| mount.path.matches('/').count());
    Ok(mounts)
}

/// Who mounts something for others has the node: only the privileged do.
fn propagation(container: &Container, mount: &WishedMount) -> Result<Propagation, String> {
    let own = container.security_context.as_ref();
    let privileged = own.and_then(|own| own.privileged) == Some(true);
    match (mount.mount_propagation.as_deref().unwrap_or_default(), privileged) {
        ("" | "None", _) => Ok(Propagation::None),
        ("HostToContainer", _) => Ok(Propagation::HostToContainer),
        ("Bidirectional", true) => Ok(Propagation::Bidirectional),
        ("Bidirectional", false) => {
            Err("Bidirectional mount propagation is available only to privileged containers".into())
        }
        (other, _) => Err(format!("mountPropagation {other} is not supported by this node")),
    }
}

/// What the agent writes, nobody else does: else the next change would follow somebody's links.
fn access(volume: &PodVolume, mount: &WishedMount) -> Access {
    let recursive = mount.recursive_read_only.as_deref().unwrap_or_default();
    match (&volume.content, mount.read_only.unwrap_or(false)) {
        (VolumeContent::HostPath { .. }, true) if matches!(recursive, "Enabled" | "IfPossible") => {
            Access::RecursiveReadOnly
        }
        (VolumeContent::Claimed(claimed), _) if claimed.read_only => Access::ReadOnly,
        (VolumeContent::Files(_) | VolumeContent::Image(_), _) | (_, true) => Access::ReadOnly,
        (_, false) => Access::ReadWrite,
    }
}

fn sub_path(
    mount: &WishedMount,
    expand: &impl Fn(&str) -> Result<String, String>,
) -> Result<Option<String>, String> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let path = match (given(&mount.sub_path), given(&mount.sub_path_expr)) {
        (Some(path), _) => path,
        (None, Some(expression)) => expand(&expression)?,
        (None, None) => return Ok(None),
    };
    if path.starts_with('/') {
        return Err(format!("error SubPath `{path}` must not be an absolute path"));
    }
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") || path.contains('\0') {
        return Err(format!("unable to provision SubPath `{path}`: must not contain '..'"));
    }
    Ok(Some(parts.join("/")).filter(|path| !path.is_empty()))
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
mod tests;
