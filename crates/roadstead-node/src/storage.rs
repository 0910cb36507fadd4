//! Directories of this node that were volumes: removed when nobody has a claim to them any more.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use roadstead_pod::volumes::claimed::left_behind;
use roadstead_watch::informer::{Change, Selection, informer};
use tokio::time;
use tracing::{info, warn};

/// After a failure.
const RETRY: Duration = Duration::from_secs(10);

/// Removes what is left behind on this node, for ever. One that cannot be removed holds up no other; and
/// it may be gone meanwhile, which a node is told by the watch only: it may not ask for what is not
/// there.
pub(crate) async fn run(client: Client, node: String) {
    let volumes: Api<PersistentVolume> = Api::all(client);
    let own = Selection::all().labels(&format!("roadstead.dev/node={node}"));
    let mut changes = informer(volumes.clone(), own);
    let mut failed = BTreeMap::new();
    let mut again = time::interval(RETRY);
    loop {
        let due: Vec<Arc<PersistentVolume>> = tokio::select! {
            change = changes.next() => match change {
                Some(Change::Set(volume)) => vec![volume],
                Some(Change::Gone(key, _)) => {
                    failed.remove(&key.name);
                    continue;
                }
                Some(Change::Synced) => continue,
                None => return,
            },
            _ = again.tick(), if !failed.is_empty() => failed.values().cloned().collect(),
        };
        for volume in due {
            let name = volume.name_any();
            match reclaim(&volumes, &volume).await {
                Ok(()) => drop(failed.remove(&name)),
                Err(error) => {
                    warn!(volume = name, error, "cannot remove a volume, will retry");
                    failed.insert(name, volume);
                }
            }
        }
    }
}

/// First the files, then the object: what has no object any more is found by nobody.
async fn reclaim(
    volumes: &Api<PersistentVolume>,
    volume: &Arc<PersistentVolume>,
) -> Result<(), String> {
    let Some(path) = left_behind(volume).map(str::to_owned) else { return Ok(()) };
    let removed = tokio::task::spawn_blocking(move || match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{path}: {error}")),
        _ => Ok(()),
    });
    removed.await.map_err(|error| error.to_string())??;
    let conditions = Preconditions { uid: volume.uid(), resource_version: None };
    let same = DeleteParams { preconditions: Some(conditions), ..DeleteParams::default() };
    match volumes.delete(&volume.name_any(), &same).await {
        Ok(_) => info!(volume = volume.name_any(), "removed a volume that nobody claims"),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => return Err(error.to_string()),
    }
    Ok(())
}
