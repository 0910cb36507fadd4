//! Those who wait until the replica has reached a revision. Each is woken once, when it is time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time;

use crate::entry::Revision;

/// Those who wait.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    reached: Revision,
    /// For which revision.
    queue: BTreeMap<Revision, Vec<oneshot::Sender<()>>>,
}

impl Waiters {
    /// Up to here everything is in the replica.
    pub(super) fn reached(&self) -> Revision {
        self.lock().reached
    }

    /// The replica has reached a revision (or another log, which is behind the one before).
    pub(super) fn reach(&self, revision: Revision) {
        let mut waiting = self.lock();
        waiting.reached = revision;
        let later = waiting.queue.split_off(&Revision(revision.0 + 1));
        let ready = std::mem::replace(&mut waiting.queue, later);
        drop(waiting);
        for waiter in ready.into_values().flatten() {
            let _ = waiter.send(());
        }
    }

    /// Returns whether the replica has reached a revision, and waits for it so long.
    pub(super) async fn wait(&self, revision: Revision, limit: Duration) -> bool {
        let waiter = {
            let mut waiting = self.lock();
            if waiting.reached >= revision {
                return true;
            }
            let (sender, waiter) = oneshot::channel();
            let queue = waiting.queue.entry(revision).or_default();
            // Of a log that is stuck, others may have given up waiting.
            queue.retain(|waiter| !waiter.is_closed());
            queue.push(sender);
            waiter
        };
        matches!(time::timeout(limit, waiter).await, Ok(Ok(())))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tokio::test(start_paused = true)]
async fn everybody_is_woken_in_time() {
    let waiters = Waiters::default();
    let second = Duration::from_secs(1);
    waiters.reach(Revision(3));
    assert!(waiters.wait(Revision(3), second).await);
    assert!(!waiters.wait(Revision(4), second).await, "nothing comes");
    let (four, five, six, ()) = tokio::join!(
        waiters.wait(Revision(4), second),
        waiters.wait(Revision(5), second),
        waiters.wait(Revision(6), second),
        async { waiters.reach(Revision(5)) },
    );
    assert_eq!((four, five, six), (true, true, false));
}
