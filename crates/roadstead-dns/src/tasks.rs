//! Tasks that outlive the query that began them. They have an owner all the same: when it goes, or is
//! told to end them, they are over.

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Tasks of one owner.
#[derive(Debug)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl Default for Tasks {
    fn default() -> Self {
        let stop = CancellationToken::new();
        Self { tracker: TaskTracker::new(), _guard: stop.clone().drop_guard(), stop }
    }
}

impl Tasks {
    /// Begins a task, which ends with the others if it is not done before.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(self.stop.clone().run_until_cancelled_owned(work));
    }

    /// Ends all tasks, and waits until they are over.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
