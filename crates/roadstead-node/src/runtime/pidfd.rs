//! Waits for processes that may not be our own children.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Lets tasks wait for a descriptor, in both directions.
pub(crate) fn followed(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, so it stays open and the same until the AsyncFd is dropped.
    let followed = unsafe { AsyncFd::register(descriptor) };
    followed.map_err(|error| error.into_parts().1)
}

/// Waits until the process has ended.
pub(super) async fn ended(process: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is owned, so it stays open and the same until the AsyncFd is dropped.
    let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) };
    process.map_err(|error| error.into_parts().1)?.readable().await.map(drop)
}

/// Ends a process and its group; with an older kernel, the process alone.
pub(super) fn kill_group(process: &OwnedFd) {
    const PROCESS_GROUP: libc::c_uint = 1 << 2;
    // SAFETY: the call has no memory to do with.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<libc::siginfo_t>(),
            PROCESS_GROUP,
        )
    };
    if result != 0 {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;
    use std::time::Duration;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use tokio::time;

    use super::*;

    #[tokio::test]
    async fn a_process_ends_and_is_waited_for() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let open = || pidfd_open(Pid::from_child(&child), PidfdFlags::NONBLOCK).unwrap();
        let (handle, soon) = (open(), Duration::from_millis(50));
        assert!(time::timeout(soon, ended(open())).await.is_err(), "it runs");
        kill_group(&handle);
        time::timeout(Duration::from_secs(10), ended(open())).await.unwrap().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
