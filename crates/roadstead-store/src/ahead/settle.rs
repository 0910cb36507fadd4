//! The thread that takes writes from the log to the tables, many at a time. Nobody waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem};

use crate::committer::panic_text;
use crate::disk::Disk;
use crate::entry::Revision;
use crate::journal::Group;

/// How many groups may wait; if there are more, writers do.
const WAITING: usize = 4096;

/// When writes are taken over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// So long after the first of them,
    pub(crate) pause: Duration,
    /// or when there are so many.
    pub(crate) changes: usize,
    /// The other file is used when the log has this size.
    pub(crate) turn: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { pause: Duration::from_millis(500), changes: 2000, turn: 4 << 20 }
    }
}

/// The thread. Dropping it has it finish.
#[derive(Debug)]
pub(super) struct Settler {
    queue: Option<SyncSender<Group>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Progress>,
}

/// Where it begins.
#[derive(Debug)]
pub(super) struct Begin {
    /// What the tables hold.
    pub(super) settled: Revision,
    /// Which use of a file of the log they are to know of.
    pub(super) using: u64,
    /// What only the log holds.
    pub(super) rest: Vec<Group>,
}

#[derive(Debug, Default)]
struct Progress {
    settled: AtomicU64,
    /// Which use of a file of the log the tables are to know of.
    using: AtomicU64,
    failure: OnceLock<String>,
}

impl Settler {
    /// Starts with what the log holds and the tables do not.
    pub(super) fn start(disk: Arc<Disk>, begin: Begin, pace: Pace) -> io::Result<Self> {
        let Begin { settled, using, rest } = begin;
        let (send, receive) = mpsc::sync_channel(WAITING);
        let progress = Arc::new(Progress::default());
        progress.settled.store(settled.0, Ordering::Release);
        progress.using.store(using, Ordering::Release);
        let shared = progress.clone();
        let work = move || run(&receive, &disk, rest, pace, &shared);
        let thread = thread::Builder::new().name("settler".into()).spawn(work)?;
        Ok(Self { queue: Some(send), thread: Some(thread), progress })
    }

    pub(super) fn settled(&self) -> Revision {
        Revision(self.progress.settled.load(Ordering::Acquire))
    }

    /// The log goes on in another file.
    pub(super) fn use_log(&self, using: u64) {
        self.progress.using.store(using, Ordering::Release);
    }

    /// Fails if the thread has: the log cannot grow for ever.
    pub(super) fn check(&self) -> Result<(), String> {
        self.progress.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    pub(super) fn hand_over(&self, group: Group) {
        // A thread that has ended has said why, and the next write asks.
        let _ = self.queue.as_ref().map(|queue| queue.send(group));
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        self.queue = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(queue: &Receiver<Group>, disk: &Disk, rest: Vec<Group>, pace: Pace, progress: &Progress) {
    let mut groups = rest;
    let mut open = true;
    while open {
        if groups.is_empty() {
            let Ok(group) = queue.recv() else { return };
            groups.push(group);
            open = gather(queue, &mut groups, pace);
        }
        let settled = groups.last().map_or(Revision(0), Group::last);
        let using = progress.using.load(Ordering::Acquire);
        let work =
            || disk.settle(&mem::take(&mut groups), using).map_err(|error| error.to_string());
        let outcome = catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|panic| Err(format!("the store panicked: {}", panic_text(&*panic))));
        if let Err(failure) = outcome {
            let _ = progress.failure.set(failure);
            return;
        }
        progress.settled.store(settled.0, Ordering::Release);
    }
}

/// Waits for more; tells whether there can be any after it.
fn gather(queue: &Receiver<Group>, groups: &mut Vec<Group>, pace: Pace) -> bool {
    let until = Instant::now() + pace.pause;
    let mut changes = groups.iter().map(|group| group.changes.len()).sum::<usize>();
    while changes < pace.changes {
        match queue.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(group) => {
                changes += group.changes.len();
                groups.push(group);
            }
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
    true
}
