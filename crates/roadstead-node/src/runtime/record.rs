//! Where the built-in runtime keeps what on the disk.
//!
//! `netns/roadstead-<uid>` is a pod's network, `pods/<uid>/pod.json` says which pod it is,
//! `pods/<uid>/<container>/` holds what [`crate::container`] writes, `pods/<uid>/.volumes/` the
//! volumes, `logs/` the logs, and `oci/` is the OCI runtime's own.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use roadstead_pod::addresses::Addresses;
use roadstead_pod::host_ports::HostPort;
use roadstead_pod::pod_name::PodName;
use roadstead_pod::volumes::{PodVolume, VolumeContent, VolumeMount};
use serde::{Deserialize, Serialize};

use super::disk_usage::WrittenPlaces;
use super::volume;
use crate::container::oci::UPPER;
use crate::container::{Mount, read_json, write_json};

const PODS: &str = "pods";
const POD: &str = "pod.json";
const LOCK: &str = "lock";
/// No container has such a name.
const VOLUMES: &str = ".volumes";
const DIRECTORIES: [&str; 4] = ["netns", PODS, "logs", "oci"];

/// The directory of the agent's state, which is ours alone as long as this lives.
#[derive(Debug)]
pub(super) struct Disk {
    root: PathBuf,
    _lock: File,
}

/// A pod on the disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PodRecord {
    pub(super) pod: PodName,
    pub(super) network: NetworkRecord,
    /// Ports of the node that lead to it.
    #[serde(default)]
    pub(super) host_ports: Vec<HostPort>,
}

/// A pod's network on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum NetworkRecord {
    Own(Addresses),
    Host,
    /// Not made yet, or given back because the pod has finished.
    Removed,
}

/// The network of a pod that an agent with this directory has, for processes that are not the agent.
#[cfg(feature = "cri")]
pub(super) fn recorded_network(root: &Path, uid: &str) -> Option<NetworkRecord> {
    let record = read_json::<PodRecord>(&root.join(PODS).join(uid).join(POD));
    record.ok().map(|record| record.network)
}

/// Where the logs of a pod are, below the directory of the agent's state.
pub(super) fn pod_logs(root: &Path, pod: &PodName) -> PathBuf {
    root.join("logs").join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
}

/// Takes the lock. A process that an earlier agent was just starting may have it for a moment.
fn take(lock: &File) -> io::Result<()> {
    for _ in 0..50 {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other("another node agent uses it"))
}

/// Removes the logs of all runs but this one and the one before it.
pub(super) fn forget_old_logs(log: &Path, restarts: i32) {
    let logs = log.parent().and_then(|directory| fs::read_dir(directory).ok());
    for entry in logs.into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // `3.log`, and `3.log.20260102-030405` when it has been rotated.
        let run = name.split_once(".log").and_then(|(run, _)| run.parse::<i32>().ok());
        if run.is_some_and(|run| run < restarts - 1) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Disk {
    /// Makes the directory and takes hold of it; fails if another agent has it.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        for name in DIRECTORIES {
            fs::create_dir_all(root.join(name))?;
        }
        // Recipes have what pods are told in confidence.
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))?;
        let lock = File::create(root.join(LOCK))?;
        take(&lock)?;
        Ok(Self { root: root.to_owned(), _lock: lock })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the pods' network namespaces are.
    pub(super) fn networks(&self) -> PathBuf {
        self.root.join("netns")
    }

    /// Where the OCI runtime keeps its own state.
    pub(super) fn oci_state(&self) -> PathBuf {
        self.root.join("oci")
    }

    fn pods(&self) -> PathBuf {
        self.root.join(PODS)
    }

    pub(super) fn container(&self, uid: &str, container: &str) -> PathBuf {
        self.pods().join(uid).join(container)
    }

    /// Where a volume is.
    pub(super) fn volume(&self, uid: &str, volume: &PodVolume) -> PathBuf {
        match &volume.content {
            VolumeContent::HostPath { path, .. } => PathBuf::from(path),
            VolumeContent::Claimed(claimed) => PathBuf::from(&claimed.path),
            _ => self.volumes(uid).join(&volume.name),
        }
    }

    /// Where the volumes of a pod are.
    pub(super) fn volumes(&self, uid: &str) -> PathBuf {
        self.pods().join(uid).join(VOLUMES)
    }

    /// Where a volume is, and where it goes.
    pub(super) fn mount(&self, uid: &str, mount: &VolumeMount) -> Mount {
        Mount {
            source: self.volume(uid, &mount.volume),
            sub_path: mount.sub_path.clone(),
            path: mount.path.clone(),
            access: mount.access,
            trust: mount.volume.content.trust(),
            propagation: mount.propagation,
        }
    }

    /// Whether a pod is known here.
    pub(super) fn knows(&self, uid: &str) -> bool {
        self.pods().join(uid).join(POD).exists()
    }

    /// The network that a pod has.
    pub(super) fn network(&self, uid: &str) -> Option<NetworkRecord> {
        let record = read_json::<PodRecord>(&self.pods().join(uid).join(POD));
        record.ok().map(|record| record.network)
    }

    /// Where a runtime's own notes about a pod are kept.
    #[cfg(feature = "cri")]
    pub(super) fn notes(&self, uid: &str) -> PathBuf {
        self.pods().join(uid).join("sandbox")
    }

    /// Where the logs of a pod are.
    pub(super) fn pod_logs(&self, pod: &PodName) -> PathBuf {
        pod_logs(&self.root, pod)
    }

    pub(super) fn log(&self, pod: &PodName, container: &str, restarts: i32) -> PathBuf {
        self.pod_logs(pod).join(container).join(format!("{restarts}.log"))
    }

    /// Where a pod writes.
    pub(super) fn written(&self, pod: &PodName) -> WrittenPlaces {
        let containers = self.containers(&pod.uid).into_iter().filter(|name| name != VOLUMES);
        let containers = containers.map(|name| {
            let places =
                [self.container(&pod.uid, &name).join(UPPER), self.pod_logs(pod).join(&name)];
            (name, places)
        });
        WrittenPlaces { containers: containers.collect(), volumes: self.volumes(&pod.uid) }
    }

    pub(super) fn save(&self, record: &PodRecord) -> io::Result<()> {
        let directory = self.pods().join(&record.pod.uid);
        fs::create_dir_all(&directory)?;
        write_json(&directory.join(POD), record)
    }

    /// All pods on the disk. A directory that cannot be read is removed: nothing runs from it.
    pub(super) fn load(&self) -> Vec<PodRecord> {
        let directories = fs::read_dir(self.pods()).into_iter().flatten().flatten();
        directories
            .filter_map(|entry| {
                let record = read_json(&entry.path().join(POD)).ok();
                if record.is_none() {
                    let _ = fs::remove_dir_all(entry.path());
                }
                record
            })
            .collect()
    }

    /// The names of the pod's containers on the disk.
    pub(super) fn containers(&self, uid: &str) -> Vec<String> {
        let entries = fs::read_dir(self.pods().join(uid)).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    pub(super) fn remove(&self, pod: &PodName) -> io::Result<()> {
        volume::remove_all(&self.volumes(&pod.uid))?;
        for directory in [self.pod_logs(pod), self.pods().join(&pod.uid)] {
            match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes everything; the pods must be gone.
    pub(super) fn remove_all(&self) -> io::Result<()> {
        for name in DIRECTORIES {
            fs::remove_dir_all(self.root.join(name))?;
        }
        fs::remove_file(self.root.join(LOCK))
    }
}

#[test]
fn logs_of_one_run_before_are_kept() {
    let directory = std::env::temp_dir().join(format!("roadstead-runs-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    for name in ["0.log", "1.log", "1.log.20260102-030405.000000", "2.log", "3.log", "other"] {
        fs::write(directory.join(name), "").unwrap();
    }
    forget_old_logs(&directory.join("3.log"), 3);
    let mut left: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(left, ["2.log", "3.log", "other"]);
}
