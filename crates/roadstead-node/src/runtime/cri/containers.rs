//! How a container is made from what is known of it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::facts::StartedContainer;
use roadstead_pod::pod_name::PodName;
use roadstead_pod::resources::Resources;
use roadstead_pod::sandbox::Processes;
use roadstead_pod::volumes::{Access, Propagation, VolumeContent, VolumeMount};
use tokio::task;
use tracing::warn;

use super::CriRuntime;
use super::messages::{
    ContainerId, CreateContainerRequest, Empty, UpdateContainerResourcesRequest,
};
use super::order::{self, Bind, CriContext};
use super::run::Run;
use crate::container::oci::{file_path, mount_part};
use crate::container::{LAST_WORDS, Mount, PARTS};
use crate::runtime::record::forget_old_logs;
use crate::runtime::{StartError, last_words, seccomp_profiles, volume};

impl CriRuntime {
    pub(super) async fn start_container(
        &self,
        config: ContainerConfig,
    ) -> Result<StartedContainer, StartError> {
        let pod = self.pods().get(&config.pod.uid).cloned();
        let pod = pod.ok_or_else(|| StartError::Failed("the pod has no sandbox".into()))?;
        let refused = |reason, message| StartError::Waiting { reason, message };
        if let Some(what) = unsupported(&config) {
            let message = format!("{what} is not supported by this runtime");
            return Err(refused("CreateContainerConfigError", message));
        }
        let processes = match &config.processes {
            Processes::Beside(other) => {
                let run = self.run(&config.pod, other).filter(|run| !run.has_ended());
                let missing = || format!("container {other:?} does not run");
                let run = run.ok_or_else(|| refused("CreateContainerError", missing()))?;
                Processes::Beside(run.id.clone())
            }
            others => others.clone(),
        };
        let context = CriContext {
            owner: &self.owner,
            network: pod.network(),
            binds: self.binds(&config).await?,
            processes,
            profiles: seccomp_profiles::directory(self.disk.root()),
        };
        // Read here, too, so that what is wrong with it is told in the same words.
        seccomp_profiles::load(self.disk.root(), &config.confinement)
            .map_err(|why| refused("CreateContainerError", why))?;
        let question = CreateContainerRequest {
            pod_sandbox_id: pod.sandbox,
            config: Some(order::container_config(&config, config.image.id.clone(), context)),
            sandbox_config: Some(pod.config),
        };
        let created = self.client.ask::<ContainerId>("CreateContainer", &question).await;
        let created = created.map_err(|why| refused("CreateContainerError", why.message))?;
        if let Err(why) = self.client.ask::<Empty>("StartContainer", &created).await {
            let _ = self.client.ask::<Empty>("RemoveContainer", &created).await;
            return Err(StartError::Failed(why.message));
        }
        let run = Run::new(&self.client, created.container_id, &config).await;
        let directory = self.disk.container(&config.pod.uid, &config.container);
        if let Err(error) = run.save(&directory) {
            warn!(%error, "a container's last words may get lost");
        }
        if let Some(previous) = pod.runs.get(&config.container) {
            let old = ContainerId { container_id: previous.id.clone() };
            let _ = self.client.ask::<Empty>("RemoveContainer", &old).await;
        }
        let log = self.disk.log(&config.pod, &config.container, config.restarts);
        forget_old_logs(&log, config.restarts);
        let started = run.started();
        if let Some(pod) = self.pods().get_mut(&config.pod.uid) {
            pod.runs.insert(config.container, Arc::new(run));
        }
        Ok(started)
    }

    /// Holds a container that runs, and its pod, to other limits.
    pub(super) async fn resize_container(
        &self,
        pod: &PodName,
        container: &str,
        resources: Resources,
    ) -> Result<(), String> {
        let run = self.run(pod, container).ok_or("it does not run")?;
        let (groups, uid) = (self.groups.clone(), pod.uid.clone());
        let question = UpdateContainerResourcesRequest {
            container_id: run.id.clone(),
            linux: Some(order::resources(&resources)),
        };
        let limits = resources.of_pod;
        let of_pod = || {
            let (groups, uid) = (groups.clone(), uid.clone());
            task::spawn_blocking(move || groups.prepare_pod(&uid, &limits).map(drop))
        };
        // Where the pod gets less, that cannot be before its containers do.
        let _ = of_pod().await.expect("it does not panic");
        let asked = self.client.ask::<Empty>("UpdateContainerResources", &question).await;
        asked.map_err(|why| why.message)?;
        of_pod().await.expect("it does not panic").map_err(|error| error.to_string())
    }

    /// Makes the files and directories that the container sees; returns where they are.
    async fn binds(&self, config: &ContainerConfig) -> Result<Vec<Bind>, StartError> {
        let uid = config.pod.uid.clone();
        let mounts: Vec<_> =
            config.mounts.iter().map(|mount| by_path(self.disk.mount(&uid, mount))).collect();
        let directory = self.disk.container(&uid, &config.container);
        let (own, groups) = (self.disk.root().to_owned(), self.groups.clone());
        let config = config.clone();
        let prepared = task::spawn_blocking(move || {
            let refused =
                |reason: &'static str, message: String| StartError::Waiting { reason, message };
            for (wished, mount) in config.mounts.iter().zip(&mounts) {
                let prepared = volume::prepare(&wished.volume, &mount.source, &own)
                    .and_then(|()| volume::prepare_part(wished, mount, &config.container));
                prepared.map_err(|why| refused("CreateContainerConfigError", why))?;
            }
            let made = prepare_files(&config, &directory, &mounts)
                .and_then(|()| groups.prepare_pod(&uid, &config.resources.of_pod));
            made.map_err(|error| refused("CreateContainerError", error.to_string()))?;
            Ok(binds(&config, &directory, mounts))
        });
        prepared.await.expect("it does not panic")
    }
}

/// The runtime follows mounts by itself, at the path that it is told.
fn by_path(mount: Mount) -> Mount {
    Mount { propagation: Propagation::None, ..mount }
}

/// What CRI has no words for, or not in the versions that are about.
fn unsupported(config: &ContainerConfig) -> Option<&'static str> {
    let recursive = |mount: &VolumeMount| mount.access == Access::RecursiveReadOnly;
    // The files of its images are its own.
    let image = |mount: &VolumeMount| matches!(mount.volume.content, VolumeContent::Image(_));
    match (config.mounts.iter().any(recursive), config.mounts.iter().any(image)) {
        (true, _) => Some("recursiveReadOnly"),
        (_, true) => Some("a volume of an image"),
        (false, false) => config.stop_signal.as_ref().map(|_| "lifecycle.stopSignal"),
    }
}

/// Writes the files that the container sees, and mounts the parts of volumes.
fn prepare_files(
    config: &ContainerConfig,
    directory: &Path,
    mounts: &[Mount],
) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    // Those of the run before, which has ended.
    volume::remove_all(&directory.join(PARTS))?;
    fs::create_dir(directory.join(PARTS))?;
    for (number, mount) in mounts.iter().enumerate() {
        mount_part(mount, &mount.source_for_oci(directory, number))?;
    }
    for (path, text) in &config.files {
        let file = file_path(directory, path);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&file, text)?;
    }
    config.termination_message.as_ref().map_or(Ok(()), |_| last_words::make(directory))
}

/// What of the node a container sees, and where.
fn binds(config: &ContainerConfig, directory: &Path, mounts: Vec<Mount>) -> Vec<Bind> {
    let is_mounted = |path: &String| mounts.iter().any(|mount| mount.path == *path);
    let files = config.files.keys().filter(|path| !is_mounted(path)).map(|path| Bind {
        source: file_path(directory, path),
        path: path.clone(),
        readonly: false,
        propagation: Propagation::None,
    });
    let last_words = config.termination_message.iter().map(|message| Bind {
        source: directory.join(LAST_WORDS),
        path: message.path.clone(),
        readonly: false,
        propagation: Propagation::None,
    });
    let wished = mounts.iter().zip(&config.mounts).enumerate();
    let volumes = wished.map(|(number, (mount, wished))| Bind {
        source: mount.source_for_oci(directory, number),
        path: mount.path.clone(),
        readonly: mount.access != Access::ReadWrite,
        propagation: wished.propagation,
    });
    files.chain(volumes).chain(last_words).collect()
}
