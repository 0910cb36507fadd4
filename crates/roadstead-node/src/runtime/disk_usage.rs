//! How much pods have written to the disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use roadstead_pod::eviction::Consumption;

/// Where a pod writes.
pub(super) struct WrittenPlaces {
    /// By the names of its containers.
    pub(super) containers: BTreeMap<String, [PathBuf; 2]>,
    /// Where its volumes are.
    pub(super) volumes: PathBuf,
}

/// Adds up what is there.
pub(super) fn measure(places: WrittenPlaces) -> Consumption {
    let containers = places
        .containers
        .into_iter()
        .map(|(name, places)| (name, places.iter().map(|place| size(place)).sum()));
    let device = fs::symlink_metadata(&places.volumes).map(|found| found.dev());
    let volumes = fs::read_dir(&places.volumes).into_iter().flatten().flatten();
    // Those in memory are another device.
    let on_disk = volumes.filter(|volume| {
        let found = volume.metadata().map(|found| found.dev());
        found.ok() == device.as_ref().ok().copied()
    });
    let volumes = on_disk
        .map(|volume| (volume.file_name().to_string_lossy().into_owned(), size(&volume.path())));
    Consumption { containers: containers.collect(), volumes: volumes.collect() }
}

/// What a directory takes, without what is mounted in it. Links lead nowhere.
fn size(top: &Path) -> u64 {
    /// As the kernel counts them.
    const BLOCK: u64 = 512;
    let Ok(found) = fs::symlink_metadata(top) else { return 0 };
    let mut total = found.blocks() * BLOCK;
    let mut left = vec![top.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(inside) = entry.metadata() else { continue };
            if inside.dev() != found.dev() {
                continue;
            }
            total += inside.blocks() * BLOCK;
            if inside.is_dir() {
                left.push(entry.path());
            }
        }
    }
    total
}

#[test]
fn what_is_written_is_counted() {
    let directory = std::env::temp_dir().join(format!("roadstead-du-{}", std::process::id()));
    let place = |name: &str| directory.join(name);
    fs::create_dir_all(place("upper/a/b")).unwrap();
    fs::create_dir_all(place("volumes/v")).unwrap();
    fs::write(place("upper/a/b/file"), vec![7; 1 << 20]).unwrap();
    fs::write(place("volumes/v/file"), vec![7; 1 << 19]).unwrap();
    std::os::unix::fs::symlink("/", place("volumes/v/link")).unwrap();
    let containers = [("c".to_owned(), [place("upper"), place("logs")])].into();
    let found = measure(WrittenPlaces { containers, volumes: place("volumes") });
    fs::remove_dir_all(&directory).unwrap();
    assert!((1 << 20..=(1 << 20) + (1 << 16)).contains(&found.containers["c"]), "{found:?}");
    assert!((1 << 19..=(1 << 19) + (1 << 16)).contains(&found.volumes["v"]), "{found:?}");
}
