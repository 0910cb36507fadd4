//! Carries out what `roadstead_pod::volumes::atomic` plans for the files of a volume.
//!
//! Nobody else writes to the directory: containers see it read-only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;

use jiff::Timestamp;
use roadstead_pod::volumes::atomic::{DATA, Found, NEW_DATA, VolumeStep, plan};
use roadstead_pod::volumes::payload::{Payload, PayloadFile};
use roadstead_pod::volumes::{PodVolume, VolumeContent};
use tokio::task;

use super::record::Disk;
use super::{ownership, volume};

/// Makes a volume of a pod, and gives it its files.
pub(super) async fn prepare_volume(
    disk: &Disk,
    uid: &str,
    volume: PodVolume,
    files: Option<Payload>,
) -> Result<(), String> {
    let (path, own) = (disk.volume(uid, &volume), disk.root().to_owned());
    let given = disk.volumes(uid).join(format!(".given-{}", volume.name));
    let prepared = task::spawn_blocking(move || {
        volume::prepare(&volume, &path, &own)?;
        give_once(&volume, &path, &given)
            .map_err(|error| format!("cannot give its files to the pod's group: {error}"))?;
        let Some(files) = files else { return Ok(()) };
        write(&path, &files, volume.group)
            .map_err(|error| format!("cannot write its files: {error}"))
    });
    prepared.await.expect("it does not panic")
}

/// Gives a volume that outlives the pod to the pod's group, once in the life of the pod: its containers may
/// have other plans for what they make.
fn give_once(volume: &PodVolume, path: &Path, given: &Path) -> io::Result<()> {
    let (VolumeContent::Claimed(claimed), Some(group)) = (&volume.content, volume.group) else {
        return Ok(());
    };
    if claimed.read_only || given.exists() {
        return Ok(());
    }
    ownership::give(path, group, claimed.group_change)?;
    if let Some(directory) = given.parent() {
        fs::create_dir_all(directory)?;
    }
    File::create(given).map(drop)
}

/// Gives the volume these files and no others.
fn write(volume: &Path, payload: &Payload, group: Option<u32>) -> io::Result<()> {
    let time = Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S");
    let chance = uuid::Uuid::new_v4().as_u128() % 1_000_000_000;
    let steps = plan(&look(volume)?, payload, &format!("..{time}.{chance}"));
    steps.iter().try_for_each(|step| take(volume, step, group))
}

/// What is in the directory now.
fn look(volume: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let target = fs::read_link(entry.path()).ok();
        let target = target.map(|target| target.to_string_lossy().into_owned());
        match name.as_str() {
            DATA => found.current = target,
            _ => drop(found.names.insert(name, target)),
        }
    }
    // A link to nowhere is as good as none.
    found.current = found.current.filter(|current| found.names.contains_key(current));
    if let Some(current) = &found.current {
        read(&volume.join(current), "", &mut found.content)?;
    }
    Ok(found)
}

fn read(directory: &Path, prefix: &str, into: &mut Payload) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let about = entry.metadata()?;
        if about.is_dir() {
            read(&entry.path(), &format!("{path}/"), into)?;
            continue;
        }
        let file = PayloadFile {
            data: fs::read(entry.path())?,
            mode: about.mode() & 0o777,
            owner: Some(about.uid()).filter(|uid| *uid != 0),
        };
        into.files.insert(path, file);
    }
    Ok(())
}

fn take(volume: &Path, step: &VolumeStep, group: Option<u32>) -> io::Result<()> {
    match step {
        VolumeStep::Fill { directory, payload } => {
            let directory = volume.join(directory);
            make_directory(&directory, group)?;
            for (path, file) in &payload.files {
                fill(&directory, path, file, group)?;
            }
            // What the link will lead to must survive a power cut if the link does.
            File::open(&directory)?.sync_all()
        }
        VolumeStep::Switch(directory) => {
            let new = volume.join(NEW_DATA);
            remove(&new)?;
            symlink(directory, &new)?;
            fs::rename(&new, volume.join(DATA))
        }
        VolumeStep::Link(name) => symlink(Path::new(DATA).join(name), volume.join(name)),
        VolumeStep::Remove(name) => remove(&volume.join(name)),
    }
}

fn make_directory(path: &Path, group: Option<u32>) -> io::Result<()> {
    fs::create_dir(path)?;
    let mode = if group.is_some() { 0o2755 } else { 0o755 };
    if group.is_some() {
        chown(path, None, group)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn fill(directory: &Path, path: &str, file: &PayloadFile, group: Option<u32>) -> io::Result<()> {
    let mut place = directory.to_owned();
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        place.push(part);
        if parts.peek().is_some() && !place.is_dir() {
            make_directory(&place, group)?;
        }
    }
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place)?;
    out.write_all(&file.data)?;
    if file.owner.is_some() || group.is_some() {
        chown(&place, file.owner, group)?;
    }
    out.set_permissions(fs::Permissions::from_mode(file.mode))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &str) -> Payload {
        let files = text.split_whitespace().map(|word| {
            let (path, data) = word.split_once('=').unwrap();
            let file = PayloadFile { data: data.as_bytes().to_vec(), mode: 0o640, owner: None };
            (path.to_owned(), file)
        });
        Payload { files: files.collect() }
    }

    #[test]
    fn files_change_all_at_once_and_leave_nothing() {
        let volume = std::env::temp_dir().join(format!("roadstead-files-{}", std::process::id()));
        fs::create_dir_all(&volume).unwrap();
        for text in ["a=1 b/c=2", "a=1 b/c=2", "a=2", "", "x/y/z=1 a=3"] {
            // A power cut has left these.
            fs::create_dir_all(volume.join("..old/x")).unwrap();
            let _ = symlink("nowhere", volume.join(NEW_DATA));
            write(&volume, &payload(text), None).unwrap();
            for (path, file) in payload(text).files {
                assert_eq!(fs::read(volume.join(&path)).unwrap(), file.data, "{path}");
                let mode = fs::metadata(volume.join(&path)).unwrap().mode() & 0o7777;
                assert_eq!(mode, 0o640, "{path}");
            }
            let found = look(&volume).unwrap();
            assert_eq!(found.content, payload(text));
            let tops = found.names.keys().filter(|name| !name.starts_with("..")).count();
            assert_eq!(tops, found.names.len() - 1, "one directory: {:?}", found.names);
        }
        fs::remove_dir_all(&volume).unwrap();
    }
}
