//! Where the built-in runtime keeps what on the disk.
//!
//! `netns/roadstead-<uid>` is a pod's network, `pods/<uid>/pod.json` says which pod it is,
//! `pods/<uid>/<container>/` holds what [`crate::container`] writes, `pods/<uid>/.volumes/` the
//! volumes, and `logs/` the logs.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{PodName, VolumeMount, volume};
use crate::container::{Mount, read_json, write_json};

const POD: &str = "pod.json";
const LOCK: &str = "lock";
/// No container has such a name.
const VOLUMES: &str = ".volumes";
const DIRECTORIES: [&str; 3] = ["netns", "pods", "logs"];

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
}

/// A pod's network on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum NetworkRecord {
    Own(Ipv4Addr),
    Host,
    /// Given back, because the pod has finished.
    Removed,
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
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another node agent uses it"),
            TryLockError::Error(error) => error,
        })?;
        Ok(Self { root: root.to_owned(), _lock: lock })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn network(&self, uid: &str) -> PathBuf {
        self.root.join("netns").join(format!("roadstead-{uid}"))
    }

    fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    pub(super) fn container(&self, uid: &str, container: &str) -> PathBuf {
        self.pods().join(uid).join(container)
    }

    /// Where a volume is, and where it goes.
    pub(super) fn mount(&self, uid: &str, mount: &VolumeMount) -> Mount {
        Mount {
            source: self.pods().join(uid).join(VOLUMES).join(&mount.volume.name),
            path: mount.path.clone(),
            read_only: mount.read_only,
        }
    }

    fn pod_logs(&self, pod: &PodName) -> PathBuf {
        self.root.join("logs").join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
    }

    pub(super) fn log(&self, pod: &PodName, container: &str, restarts: i32) -> PathBuf {
        self.pod_logs(pod).join(container).join(format!("{restarts}.log"))
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

    /// Network namespaces that belong to no pod on the disk, by uid.
    pub(super) fn stray_networks(&self, known: &[PodRecord]) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("netns")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .filter_map(|name| name.strip_prefix("roadstead-").map(str::to_owned))
            .filter(|uid| !known.iter().any(|record| record.pod.uid == *uid))
            .collect()
    }

    pub(super) fn remove(&self, pod: &PodName) -> io::Result<()> {
        volume::remove_all(&self.pods().join(&pod.uid).join(VOLUMES))?;
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
