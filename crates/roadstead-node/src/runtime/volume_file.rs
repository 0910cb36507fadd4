//! Reads what containers wrote to a volume of their pod. They chose what is there, so nothing of it is
//! believed: no link leads out of the volume, nothing is opened that is not a regular file, and no more is
//! read than could be used.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use roadstead_pod::env_file::{MOST_BYTES, VolumeFile};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use tokio::task;

use crate::container::volume_path;

/// The text of a file below the directory of a pod's volumes; nothing if it is not there.
pub(super) async fn read(volumes: PathBuf, file: VolumeFile) -> Result<Option<String>, String> {
    let read = task::spawn_blocking(move || {
        // The API allows no other names, and not everything comes through an API.
        let volume =
            Some(&file.volume).filter(|name| !name.contains('/') && !name.starts_with('.'));
        let volume = volume.ok_or_else(|| "that is no name of a volume".to_owned())?;
        match read_text(&volumes.join(volume), &file.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
            Ok(text) => Ok(Some(text)),
        }
    });
    read.await.expect("it does not panic")
}

fn read_text(volume: &Path, path: &str) -> io::Result<String> {
    // As upstream has it, the top is that of the volume.
    let found = match volume_path::open(volume, Some(path.trim_start_matches('/'))) {
        Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
            return Err(io::Error::other("it leads out of the volume"));
        }
        found => found?,
    };
    let refused = |why: &str| Err(io::Error::other(why));
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return refused("it is not a regular file");
    }
    // What was looked at is opened, whatever has its name by now.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = open(same, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut data = Vec::new();
    File::from(file).take(MOST_BYTES + 1).read_to_end(&mut data)?;
    if data.len() as u64 > MOST_BYTES {
        return refused("it is too large");
    }
    String::from_utf8(data).map_err(|_| io::Error::other("it is not text"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, mknodat};

    use super::*;

    #[tokio::test]
    async fn files_that_others_made() {
        let place = std::env::temp_dir().join(format!("roadstead-files-{}", std::process::id()));
        let volume = place.join("v");
        fs::create_dir_all(volume.join("directory")).unwrap();
        fs::create_dir_all(place.join(".hidden")).unwrap();
        for secret in ["secret", ".hidden/secret"] {
            fs::write(place.join(secret), "A='of the node'").unwrap();
        }
        fs::write(volume.join("env"), "A='1'").unwrap();
        fs::write(volume.join("bytes"), [0xff, 0xfe]).unwrap();
        File::create(volume.join("huge")).unwrap().set_len(1 << 32).unwrap();
        symlink("env", volume.join("inside")).unwrap();
        symlink("../secret", volume.join("up")).unwrap();
        symlink("/etc/passwd", volume.join("absolute")).unwrap();
        symlink("..", volume.join("parent")).unwrap();
        symlink("/proc/self/root", volume.join("magic")).unwrap();
        symlink("loop", volume.join("loop")).unwrap();
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, volume.join("pipe"), FileType::Fifo, mode, 0).unwrap();
        let out = "! it leads out of the volume";
        for (volume, path, want) in [
            ("v", "env", "A='1'"),
            ("v", "/env", "A='1'"),
            ("v", "./directory/../env", "A='1'"),
            ("v", "inside", "A='1'"),
            ("v", "gone", "-"),
            ("v", "directory/gone", "-"),
            ("w", "env", "-"),
            ("v", "../secret", out),
            ("v", "up", out),
            ("v", "absolute", out),
            ("v", "parent/secret", out),
            ("v", "magic/etc/passwd", out),
            ("v", "directory/../../secret", out),
            ("v", "directory", "! it is not a regular file"),
            ("v", "pipe", "! it is not a regular file"),
            ("v", "huge", "! it is too large"),
            ("v", "bytes", "! it is not text"),
            ("..", "secret", "! that is no name of a volume"),
            (".hidden", "secret", "! that is no name of a volume"),
            ("v/../", "secret", "! that is no name of a volume"),
        ] {
            let file = VolumeFile { volume: volume.into(), path: path.into() };
            let found = match read(place.clone(), file).await {
                Ok(text) => text.unwrap_or("-".into()),
                Err(why) => format!("! {why}"),
            };
            assert_eq!(found, want, "{volume} {path}");
        }
        let file = VolumeFile { volume: "v".into(), path: "loop".into() };
        assert!(read(place.clone(), file).await.is_err(), "a link to itself");
        fs::remove_dir_all(&place).unwrap();
    }
}
