//! Wakes who follows a log when something is written to it.

use std::future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::io::unix::AsyncFd;
use tokio::time;

use crate::runtime::pidfd::followed;

/// So long may a line be on its way where the kernel tells us nothing; and so soon it is seen that nothing
/// more will come, which is written nowhere.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// What is written within this time is read together: a flood of lines would wake us for each.
const GATHER: Duration = Duration::from_millis(2);

/// What happens in the directory of a log.
pub(super) struct LogChanges(Option<AsyncFd<OwnedFd>>);

impl LogChanges {
    /// From now on. Users have few of these, so without one we look again and again.
    pub(super) fn of(log: &Path) -> Self {
        Self(watch(log).ok())
    }

    /// Waits until something may have been written since the last time, or for a short while.
    pub(super) async fn next(&self) {
        let _ = time::timeout(POLL, self.changed()).await;
    }

    async fn changed(&self) {
        let Some(changes) = &self.0 else { return future::pending().await };
        let Ok(mut ready) = changes.readable().await else { return future::pending().await };
        time::sleep(GATHER).await;
        while rustix::io::read(changes.get_ref(), &mut [0; 4096]).is_ok() {}
        ready.clear_ready();
    }
}

fn watch(log: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    // Also files that come: a log that has grown is put aside, and begins anew.
    let what = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    add_watch(&inotify, log.parent().unwrap_or(Path::new(".")), what)?;
    followed(inotify)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn what_is_written_wakes() {
        let name = format!("roadstead-changes-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let log = directory.join("0.log");
        let changes = LogChanges::of(&log);
        let soon = async || time::timeout(Duration::from_secs(60), changes.changed()).await;
        fs::write(&log, "made").unwrap();
        soon().await.expect("a file that comes");
        fs::OpenOptions::new().append(true).open(&log).unwrap().set_len(0).unwrap();
        soon().await.expect("a file that changes");
        assert!(time::timeout(POLL, changes.changed()).await.is_err(), "each change wakes once");
        let none = LogChanges(None);
        time::timeout(Duration::from_secs(60), none.next()).await.expect("then it looks again");
        fs::remove_dir_all(&directory).unwrap();
    }
}
