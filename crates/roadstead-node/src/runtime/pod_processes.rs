//! The namespace of processes that the containers of a pod share, and the process that keeps it
//! (`crate::container::pause`). Its number is among the pod's volumes, with a file that the namespace is bound
//! to; both live as long as the pod's network.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::forker::{Forker, reap};
use super::shared_memory::is_namespace;
use crate::container::exec::receive_some;
use crate::container::forker::Job;
use crate::container::pause::Report;
use crate::container::{Identity, read_json, write_json};

/// Among the volumes of the pod; none of them has such a name.
const NAMESPACE: &str = ".pid";
const KEEPER: &str = ".pause";
/// Who was killed is gone within this time.
const GOES: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Where that of a pod is, whose volumes are in this directory.
pub(super) fn of(volumes: &Path) -> PathBuf {
    volumes.join(NAMESPACE)
}

/// Makes it, unless it is there. One whose keeper has died has lost all its processes, and takes no more.
pub(super) fn prepare(forker: &Forker, volumes: &Path) -> io::Result<()> {
    let keeper = read_json::<Identity>(&volumes.join(KEEPER));
    if keeper.is_ok_and(|keeper| keeper.is_alive()) && is_namespace(&of(volumes)) {
        return Ok(());
    }
    end(volumes)?;
    fs::create_dir_all(volumes)?;
    let (ours, theirs) = UnixStream::pair()?;
    let helper = forker.fork(&Job::Pause, &[theirs.as_fd()])?;
    drop(theirs);
    let made = converse(&ours, volumes);
    let _ = reap(&helper);
    made
}

/// Hears that the process is there, writes it down, and lets it be.
fn converse(socket: &UnixStream, volumes: &Path) -> io::Result<()> {
    let (mut text, mut handle) = (Vec::new(), None);
    let mut buffer = vec![0; 4096];
    let said = |text: &[u8], wanted: &Report| -> io::Result<bool> {
        let lines =
            text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let reports: Vec<Report> = lines.map(serde_json::from_slice).collect::<Result<_, _>>()?;
        let failed = reports.iter().find_map(|report| match report {
            Report::Failed(why) => Some(io::Error::other(why.clone())),
            _ => None,
        });
        failed.map_or(Ok(reports.contains(wanted)), Err)
    };
    while !(said(&text, &Report::Made)? && said(&text, &Report::Ready)?) {
        let (count, descriptors) = receive_some(socket, &mut buffer)?;
        handle = handle.or(descriptors.into_iter().next());
        if count == 0 {
            return Err(io::Error::other("it ended before it was ready"));
        }
        text.extend_from_slice(&buffer[..count]);
    }
    let handle = handle.ok_or_else(|| io::Error::other("there is no handle on it"))?;
    let pid = number(&handle)?;
    write_json(&volumes.join(KEEPER), &Identity::of(pid)?)?;
    let place = of(volumes);
    File::create(&place)?;
    mount_bind(format!("/proc/{pid}/ns/pid"), &place)?;
    (&mut &*socket).write_all(b"!")
}

/// The number of the process that this is a handle on.
fn number(handle: &OwnedFd) -> io::Result<i32> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd()))?;
    let line = about.lines().find_map(|line| line.strip_prefix("Pid:"));
    let pid = line.and_then(|text| text.trim().parse().ok()).filter(|pid| *pid > 0);
    pid.ok_or_else(|| io::Error::other("it has no number here"))
}

/// Ends the keeper, and with it the kernel ends all that is in the namespace. Waits until that is so.
pub(super) fn end(volumes: &Path) -> io::Result<()> {
    let keeper = read_json::<Identity>(&volumes.join(KEEPER)).ok();
    let open = |keeper: &Identity| {
        let handle = pidfd_open(Pid::from_raw(keeper.pid)?, PidfdFlags::empty()).ok()?;
        // Looked at after opening: so it was not another process that we opened.
        keeper.is_same().then_some(handle)
    };
    if let Some(handle) = keeper.as_ref().and_then(open) {
        let _ = pidfd_send_signal(&handle, Signal::KILL);
        let until = Instant::now() + GOES;
        while keeper.as_ref().is_some_and(Identity::is_alive) && Instant::now() < until {
            thread::sleep(LOOK_AGAIN);
        }
        // It is our own child, or an earlier agent's.
        let _ = reap(&handle);
    }
    if is_namespace(&of(volumes)) {
        unmount(of(volumes), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
    }
    match fs::remove_file(volumes.join(KEEPER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
