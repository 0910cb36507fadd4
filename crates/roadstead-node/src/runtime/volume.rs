//! Makes and removes the directories of volumes.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use roadstead_pod::volumes::{HostPathCheck, Medium, PodVolume, VolumeContent, VolumeMount};

use crate::container::oci::{LAYERS, in_user_namespace};
use crate::container::{Mount, volume_path};

/// Makes the volume unless it is there; the error says what could not be done. `own` is a directory whose
/// files are no volumes: ours.
pub(super) fn prepare(volume: &PodVolume, path: &Path, own: &Path) -> Result<(), String> {
    let told = |error: io::Error| format!("cannot make the volume {}: {error}", volume.name);
    match volume.content {
        VolumeContent::Claimed(ref claimed) => {
            if claimed.create && !path.exists() {
                make_claimed(path).map_err(told)?;
            }
            host_path(path, HostPathCheck::Directory, own)
        }
        VolumeContent::Image(ref layers) => image(path, layers).map_err(told),
        VolumeContent::EmptyDirectory(medium) => {
            let mode = if volume.group.is_some() { 0o2777 } else { 0o777 };
            make(path, medium, mode, volume.group).map_err(told)
        }
        VolumeContent::Files(medium) => {
            let mode = if volume.group.is_some() { 0o2755 } else { 0o755 };
            make(path, medium, mode, volume.group).map_err(told)
        }
        VolumeContent::HostPath { check, .. } => host_path(path, check, own),
    }
}

/// Everybody in the pod may write to it, nobody else on the node comes near it.
fn make_claimed(path: &Path) -> io::Result<()> {
    let Some(all) = path.parent() else { return Err(io::ErrorKind::InvalidInput.into()) };
    if !all.exists() {
        fs::create_dir_all(all)?;
        fs::set_permissions(all, fs::Permissions::from_mode(0o700))?;
    }
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))
}

/// Puts the layers of an image together, for reading. Links to them say that they are in use.
fn image(path: &Path, layers: &[PathBuf]) -> io::Result<()> {
    let (Some(all), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::create_dir_all(path)?;
    fs::set_permissions(all, fs::Permissions::from_mode(0o700))?;
    if fs::metadata(path)?.dev() != fs::metadata(all)?.dev() {
        return Ok(());
    }
    // No volume has such a name.
    let links = all.join(format!(".image-{}", name.display())).join(LAYERS);
    let nothing = links.with_file_name("nothing");
    fs::create_dir_all(&links)?;
    fs::create_dir_all(&nothing)?;
    for (number, layer) in layers.iter().enumerate() {
        match symlink(layer, links.join(number.to_string())) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    // Short names: all options together must fit into a page. Without a directory to write to, there have to
    // be two.
    let place = File::open(&links)?;
    let short = |name: String| format!("/proc/self/fd/{}/{name}", place.as_raw_fd());
    let lower = (0..layers.len()).rev().map(|number| short(number.to_string()));
    let lower: Vec<_> = lower.chain([short("../nothing".into())]).collect();
    let lower = if layers.is_empty() { [&lower[..], &lower[..]].concat() } else { lower };
    let own = if in_user_namespace() { ",userxattr" } else { "" };
    let options = std::ffi::CString::new(format!("lowerdir={}{own}", lower.join(":")))?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    Ok(mount("overlay", path, "overlay", flags, Some(options.as_c_str()))?)
}

/// Makes the part of a volume that a container sees, if it is not there.
pub(super) fn prepare_part(
    volume: &VolumeMount,
    mount: &Mount,
    container: &str,
) -> Result<(), String> {
    let Some(part) = &mount.sub_path else { return Ok(()) };
    let name = &volume.volume.name;
    let made = match volume.volume.content {
        // What is in there is decided by the objects that it is made from.
        VolumeContent::Files(_) => mount.source.join(part).try_exists().and_then(|exists| {
            if exists { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
        }),
        // Links of an image lead to other places of it.
        VolumeContent::Image(_) => volume_path::open(&mount.source, Some(part)).map(drop),
        _ => volume_path::make(&mount.source, part),
    };
    made.map_err(|error| {
        format!(
            "failed to create subPath directory for volumeMount {name:?} of container {container:?}: {error}"
        )
    })
}

fn make(path: &Path, medium: Medium, mode: u32, group: Option<u32>) -> io::Result<()> {
    // The pod's own directory is made with its sandbox, and root's alone.
    let Some(all) = path.parent() else { return Err(io::ErrorKind::InvalidInput.into()) };
    fs::create_dir_all(all)?;
    fs::set_permissions(all, fs::Permissions::from_mode(0o700))?;
    match (fs::create_dir(path), medium) {
        (Err(error), _) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        (Err(_), Medium::Disk) => return Ok(()),
        // What was in memory is gone with the machine's last life.
        (Err(_), Medium::Memory { .. })
            if fs::metadata(path)?.dev() != fs::metadata(all)?.dev() =>
        {
            return Ok(());
        }
        _ => {}
    }
    if let Medium::Memory { size } = medium {
        let size = size.map(|size| format!(",size={size}")).unwrap_or_default();
        let options = std::ffi::CString::new(format!("mode={mode:o}{size}"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        if let Err(error) = mount("tmpfs", path, "tmpfs", flags, Some(options.as_c_str())) {
            // It must not pass for one on the disk the next time.
            fs::remove_dir(path)?;
            return Err(error.into());
        }
    }
    // Without the mask that files are made with.
    if group.is_some() {
        chown(path, None, group)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Looks at a path of the node, and makes what may be made.
fn host_path(path: &Path, check: HostPathCheck, own: &Path) -> Result<(), String> {
    let shown = path.display();
    let refused = |what: &str, found: &str| {
        Err(format!("hostPath type check failed: {shown} is not a {what}{found}"))
    };
    let told = |error: io::Error| format!("cannot make {shown}: {error}");
    if inside(path, own) {
        return Err(format!("hostPath {shown} belongs to the node agent"));
    }
    match (check, path.exists()) {
        // What is not checked, runtimes make.
        (HostPathCheck::DirectoryOrCreate | HostPathCheck::Anything, false) => {
            fs::create_dir_all(path).map_err(told)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(told)?;
        }
        (HostPathCheck::FileOrCreate, false) => {
            let options =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o644).to_owned();
            drop(options.open(path).map_err(told)?);
        }
        _ => {}
    }
    let Ok(about) = fs::metadata(path) else { return refused(wanted(check), "") };
    let kind = about.file_type();
    let (fits, found) = match check {
        HostPathCheck::Anything => (true, ""),
        HostPathCheck::Directory | HostPathCheck::DirectoryOrCreate => (kind.is_dir(), "a file"),
        HostPathCheck::File | HostPathCheck::FileOrCreate => (kind.is_file(), "a directory"),
        HostPathCheck::Socket => (kind.is_socket(), ""),
        HostPathCheck::CharDevice => (kind.is_char_device(), ""),
        HostPathCheck::BlockDevice => (kind.is_block_device(), ""),
    };
    let is_told =
        (kind.is_file() && found == "a file") || (kind.is_dir() && found == "a directory");
    let found = if is_told { format!(", it's {found}") } else { String::new() };
    if fits { Ok(()) } else { refused(wanted(check), &found) }
}

fn wanted(check: HostPathCheck) -> &'static str {
    match check {
        HostPathCheck::Anything => "file",
        HostPathCheck::Directory | HostPathCheck::DirectoryOrCreate => "directory",
        HostPathCheck::File | HostPathCheck::FileOrCreate => "file",
        HostPathCheck::Socket => "socket file",
        HostPathCheck::CharDevice => "character device",
        HostPathCheck::BlockDevice => "block device",
    }
}

/// Whether a path leads to our own files, by whatever links. Of one that is not there yet, that which is
/// decides.
fn inside(path: &Path, own: &Path) -> bool {
    let real = path.ancestors().find_map(|known| fs::canonicalize(known).ok());
    let real = real.unwrap_or_else(|| path.to_owned());
    real.starts_with(fs::canonicalize(own).unwrap_or_else(|_| own.to_owned()))
}

/// Removes all volumes in a directory, and it.
pub(super) fn remove_all(directory: &Path) -> io::Result<()> {
    if !directory.try_exists()? {
        return Ok(());
    }
    // What a container has mounted there for the node (`Bidirectional`) is not ours to remove: only the mount
    // goes. The last one first, as they are on each other.
    let real = fs::canonicalize(directory)?;
    let mounts = mount_points(&fs::read_to_string("/proc/self/mountinfo")?, &real);
    for place in mounts.iter().rev() {
        match unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let left = mount_points(&fs::read_to_string("/proc/self/mountinfo")?, &real);
    match left.first() {
        Some(place) => {
            let why = format!("{} is mounted and does not go", place.display());
            Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
        }
        None => fs::remove_dir_all(directory),
    }
}

/// Where something is mounted below a directory, according to the kernel: in the order in which it was done.
fn mount_points(mountinfo: &str, directory: &Path) -> Vec<PathBuf> {
    let places = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    places.filter(|place| place != directory && place.starts_with(directory)).collect()
}

/// The kernel writes characters that would be misread as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).filter(|_| *first == b'\\');
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below() {
        let mountinfo = "22 1 0:2 / / rw - ext4 /dev/x rw\n\
            30 22 0:3 / /v/a rw shared:7 - tmpfs tmpfs rw\n\
            31 30 0:4 / /v/a/b\\040c rw - tmpfs tmpfs rw\n\
            32 22 0:5 / /v2 rw - tmpfs tmpfs rw\n\
            33 22 0:6 / /v rw - tmpfs tmpfs rw\n\
            34 30 0:7 / /v/d\\134 rw - tmpfs tmpfs rw\n";
        let found = mount_points(mountinfo, Path::new("/v"));
        assert_eq!(found, ["/v/a", "/v/a/b c", "/v/d\\"].map(PathBuf::from));
    }
}
