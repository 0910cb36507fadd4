//! The files of pods that this node runs by itself: read again when one of them changes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use roadstead_pod::static_pods::static_pod;
use tokio::time::{self, Instant};
use tracing::warn;

/// How often it is looked whether a file has changed.
const LOOK: Duration = Duration::from_secs(1);
/// How often all are read again, whatever they look like.
const READ: Duration = Duration::from_secs(20);
/// A manifest is not longer.
const LONGEST: u64 = 1 << 20;

/// A directory of manifests.
pub(crate) struct Manifests {
    directory: Option<PathBuf>,
    node: String,
    /// How the files looked when they were read, and when that was.
    seen: (BTreeMap<PathBuf, (SystemTime, u64)>, Instant),
    /// By file, with the hash that they were read with.
    pods: BTreeMap<PathBuf, Arc<Pod>>,
}

impl Manifests {
    pub(crate) fn new(directory: Option<PathBuf>, node: &str) -> Self {
        let seen = (BTreeMap::new(), Instant::now());
        Self { directory, node: node.to_owned(), seen, pods: BTreeMap::new() }
    }

    /// All pods, as they are now.
    pub(crate) fn read(&mut self) -> Vec<Arc<Pod>> {
        let Some(directory) = self.directory.clone() else { return Vec::new() };
        let files = match look(&directory) {
            Ok(files) => files,
            Err(error) => {
                // What was there goes on: a disk may be away for a moment.
                warn!(directory = %directory.display(), %error, "cannot read the manifests");
                return self.pods.values().cloned().collect();
            }
        };
        let mut pods = BTreeMap::new();
        for path in files.keys() {
            match read(path, &self.node) {
                Ok((hash, value)) => {
                    let known = self.pods.get(path);
                    let same = known.filter(|pod| pod.metadata.uid.as_deref() == Some(&hash));
                    let pod = match same {
                        Some(pod) => Ok(pod.clone()),
                        None => {
                            static_pod(value, &self.node, &hash, Timestamp::now()).map(Arc::new)
                        }
                    };
                    match pod {
                        Ok(pod) => drop(pods.insert(path.clone(), pod)),
                        Err(error) => warn!(file = %path.display(), error, "cannot run a manifest"),
                    }
                }
                Err(error) => warn!(file = %path.display(), error, "cannot read a manifest"),
            }
        }
        self.seen = (files, Instant::now());
        self.pods = pods;
        self.pods.values().cloned().collect()
    }

    /// Waits until a file may have changed.
    pub(crate) async fn changed(&self) {
        let Some(directory) = &self.directory else { return std::future::pending().await };
        loop {
            time::sleep(LOOK).await;
            let changed = look(directory).is_ok_and(|files| files != self.seen.0);
            if changed || self.seen.1.elapsed() >= READ {
                return;
            }
        }
    }
}

/// The files of a directory, and how they look; hidden ones are somebody's who is still writing.
fn look(directory: &Path) -> io::Result<BTreeMap<PathBuf, (SystemTime, u64)>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let Ok(found) = fs::metadata(entry.path()) else { continue };
        if !hidden && found.is_file() {
            files.insert(entry.path(), (found.modified()?, found.len()));
        }
    }
    Ok(files)
}

/// The object in a file, and the hash of node, file and content.
fn read(path: &Path, node: &str) -> Result<(String, serde_json::Value), String> {
    let length = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > LONGEST {
        return Err(format!("it is longer than {LONGEST} bytes"));
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let value = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
    let all = format!("{node}\0{}\0{text}", path.display());
    let hash = digest(&SHA256, all.as_bytes());
    let hex: String = hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((hex, value))
}

#[test]
fn files_become_pods() {
    let directory = std::env::temp_dir().join(format!("roadstead-static-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec: {containers: [{name: a, image: x}]}";
    let mut manifests = Manifests::new(Some(directory.clone()), "n");
    let mut names = || -> Vec<_> {
        let pods = manifests.read();
        pods.iter().map(|pod| pod.metadata.name.clone().unwrap_or_default()).collect()
    };
    assert_eq!(names(), [""; 0]);
    write("a.yaml", &pod.replace("NAME", "web"));
    write(".hidden", &pod.replace("NAME", "hidden"));
    write("broken", "{");
    assert_eq!(names(), ["web-n"]);
    let first = manifests.read()[0].clone();
    assert!(Arc::ptr_eq(&first, &manifests.read()[0]), "unchanged");
    write("a.yaml", &(pod.replace("NAME", "web") + "\n"));
    assert_ne!(first.metadata.uid, manifests.read()[0].metadata.uid);
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(manifests.read().len(), 1, "a directory that is away changes nothing");
}
