//! Removes images that nobody uses when their disk is nearly full, those that were used longest ago first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use roadstead_watch::events::Severity;
use tracing::{info, warn};

use crate::config::{Config, Housekeeping};
use crate::events::Recorder;
use crate::measure::FilesystemUsage;
use crate::runtime::{ImageError, Images, StoredImage};
use crate::serving::KnownPods;

/// One that was seen for the first time less than this ago may be about to be used.
const YOUNG: SignedDuration = SignedDuration::from_mins(2);

/// Looks after the images of this node.
pub(crate) struct ImageCollector {
    images: Arc<dyn Images>,
    pods: KnownPods,
    events: Recorder,
    node: String,
    directory: PathBuf,
    limits: Housekeeping,
    seen: BTreeMap<String, Seen>,
}

/// When an image was seen first, and when in use last.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    first: Timestamp,
    used: Timestamp,
}

/// How far images are to go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Extent {
    /// Until their disk is less full than configured, if it is too full.
    AsConfigured,
    /// All that nobody uses: pods would have to go otherwise.
    All,
}

impl ImageCollector {
    pub(crate) fn new(
        config: &Config,
        images: Arc<dyn Images>,
        pods: KnownPods,
        events: Recorder,
    ) -> Self {
        Self {
            images,
            pods,
            events,
            node: config.node_name.clone(),
            directory: config.image_dir.clone(),
            limits: config.housekeeping.clone(),
            seen: BTreeMap::new(),
        }
    }

    /// Looks at all images, and removes as many as have to go.
    pub(crate) async fn collect(&mut self, extent: Extent) -> Result<(), ImageError> {
        let now = Timestamp::now();
        let all = self.images.list().await?;
        let used = used(&self.pods.all(), &all);
        self.observe(&all, &used, now);
        let (high, low) = match extent {
            Extent::AsConfigured => (self.limits.image_high, self.limits.image_low),
            Extent::All => (0, 0),
        };
        let disk = FilesystemUsage::read(&self.directory);
        let excess = excess(&disk, low);
        if fullness(&disk) < high.max(1) || high == 100 {
            return Ok(());
        }
        let candidates = order(&all, &used, &self.seen, now);
        let eligible: u64 = candidates.iter().map(|image| image.size).sum();
        for image in candidates {
            if fullness(&FilesystemUsage::read(&self.directory)) <= low && extent != Extent::All {
                return Ok(());
            }
            info!(image = ?image.names, size = image.size, "removing an image that nobody uses");
            if let Err(error) = self.images.remove(image, &used).await {
                warn!(image = ?image.names, %error, "cannot remove an image");
            }
        }
        let left = fullness(&FilesystemUsage::read(&self.directory)) > low;
        if left && extent == Extent::AsConfigured {
            self.failed(excess, eligible);
        }
        Ok(())
    }

    fn failed(&self, wanted: u64, found: u64) {
        let message = format!(
            "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, \
             but only found {found} bytes eligible to free."
        );
        self.events.of_node(Severity::Warning, &self.node, "FreeDiskSpaceFailed", message);
    }

    fn observe(&mut self, all: &[StoredImage], used: &BTreeSet<String>, now: Timestamp) {
        let known = std::mem::take(&mut self.seen);
        self.seen = all
            .iter()
            .map(|image| {
                let mut seen =
                    known.get(&image.digest).copied().unwrap_or(Seen { first: now, used: now });
                if used.contains(&image.digest) {
                    seen.used = now;
                }
                (image.digest.clone(), seen)
            })
            .collect();
    }
}

/// How full a disk is, in percent.
fn fullness(disk: &FilesystemUsage) -> u64 {
    let used = disk.capacity.saturating_sub(disk.available);
    // What is not known is not full.
    (u128::from(used) * 100).checked_div(disk.capacity.into()).map_or(0, |percent| percent as u64)
}

/// How many bytes there are too many.
fn excess(disk: &FilesystemUsage, low: u64) -> u64 {
    let may = u128::from(disk.capacity) * u128::from(low) / 100;
    let used = u128::from(disk.capacity.saturating_sub(disk.available));
    u64::try_from(used.saturating_sub(may)).unwrap_or(u64::MAX)
}

/// The digests of images that pods of this node use, or will.
fn used(pods: &[Arc<Pod>], all: &[StoredImage]) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for pod in pods {
        let spec = pod.spec.iter();
        let named = spec.flat_map(|spec| {
            let init = spec.init_containers.iter().flatten();
            let own = init.chain(&spec.containers);
            let volumes = spec.volumes.iter().flatten().filter_map(|volume| volume.image.as_ref());
            let volumes = volumes.filter_map(|source| source.reference.as_deref());
            own.filter_map(|container| container.image.as_deref()).chain(volumes)
        });
        for name in named {
            let digest = name.rsplit_once('@').map(|(_, digest)| digest.to_owned());
            used.extend(digest);
            let has = |image: &&StoredImage| image.names.iter().any(|own| is_named(own, name));
            used.extend(all.iter().filter(has).map(|image| image.digest.clone()));
        }
        let statuses = pod.status.iter().flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            let later = status.ephemeral_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten()).chain(later)
        });
        let ids = statuses.filter_map(|status| status.image_id.rsplit_once('@'));
        used.extend(ids.map(|(_, digest)| digest.to_owned()));
    }
    used
}

/// Whether a name in a spec stands for this full name.
fn is_named(own: &str, name: &str) -> bool {
    let full: Result<roadstead_images::reference::Reference, _> = name.parse();
    full.ok().and_then(|full| full.name()).is_some_and(|full| full == own)
}

/// Those that may go, in the order in which they go.
fn order<'a>(
    all: &'a [StoredImage],
    used: &BTreeSet<String>,
    seen: &BTreeMap<String, Seen>,
    now: Timestamp,
) -> Vec<&'a StoredImage> {
    let mut candidates: Vec<_> = all
        .iter()
        .filter(|image| !used.contains(&image.digest) && !image.loaded)
        .filter_map(|image| Some((seen.get(&image.digest)?, image)))
        .filter(|(seen, _)| now.duration_since(seen.first) >= YOUNG)
        .collect();
    candidates.sort_by_key(|(seen, _)| (seen.used, seen.first));
    candidates.into_iter().map(|(_, image)| image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn image(digest: &str, name: &str) -> StoredImage {
        StoredImage {
            digest: digest.into(),
            names: vec![name.into()],
            size: 1,
            loaded: digest == "loaded",
        }
    }

    #[test]
    fn how_full_a_disk_is() {
        let disk = |capacity, available| FilesystemUsage {
            capacity,
            available,
            ..FilesystemUsage::default()
        };
        assert_eq!((fullness(&disk(1000, 149)), fullness(&disk(0, 0))), (85, 0));
        assert_eq!((excess(&disk(1000, 100), 80), excess(&disk(1000, 300), 80)), (100, 0));
    }

    #[test]
    fn which_images_go_first() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let all = ["used", "old", "older", "young", "loaded"].map(|name| image(name, name));
        let seen = |first, used| Seen { first: at(first), used: at(used) };
        let known = BTreeMap::from([
            ("used".to_owned(), seen(0, 500)),
            ("old".to_owned(), seen(0, 400)),
            ("older".to_owned(), seen(100, 300)),
            ("loaded".to_owned(), seen(0, 100)),
            ("young".to_owned(), seen(450, 450)),
        ]);
        let used = BTreeSet::from(["used".to_owned()]);
        let order = order(&all, &used, &known, at(500));
        let names: Vec<_> = order.iter().map(|image| image.digest.as_str()).collect();
        assert_eq!(names, ["older", "old"]);
    }

    #[test]
    fn what_pods_use() {
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": [
                {"name": "a", "image": "nginx:1"}, {"name": "b", "image": "r.io/x@sha256:22"}],
                "volumes": [{"name": "v", "image": {"reference": "r.io/files@sha256:55"}}]},
            "status": {"containerStatuses": [{"name": "a", "image": "nginx:1", "ready": true,
                "restartCount": 0, "imageID": "docker.io/library/nginx@sha256:33"}]},
        }))
        .unwrap();
        let all = [
            image("sha256:11", "docker.io/library/nginx:1"),
            image("sha256:44", "docker.io/library/nginx:2"),
        ];
        let used: Vec<_> = used(&[Arc::new(pod)], &all).into_iter().collect();
        assert_eq!(used, ["sha256:11", "sha256:22", "sha256:33", "sha256:55"]);
    }
}
