//! The thread that takes writes from the log to the tables, many at a time. Nobody waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem};

use crate::entry::Revision;
use crate::log::disk::committer::panic_text;
use crate::log::disk::contents::Redo;
use crate::log::disk::tables::Tables;

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
    pub(crate) rotate_at: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { pause: Duration::from_millis(500), changes: 2000, rotate_at: 4 << 20 }
    }
}

/// The thread. Dropping it has it finish.
#[derive(Debug)]
pub(super) struct Checkpointer {
    queue: Option<SyncSender<Redo>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Progress>,
}

/// Where it begins.
#[derive(Debug)]
pub(super) struct Begin {
    pub(super) tables: Arc<Tables>,
    /// What the tables hold.
    pub(super) checkpointed: Revision,
    /// Which use of a file of the log they are to know of.
    pub(super) generation: u64,
    /// What only the log holds.
    pub(super) rest: Vec<Redo>,
}

#[derive(Debug, Default)]
struct Progress {
    checkpointed: AtomicU64,
    /// Which use of a file of the log the tables are to know of.
    generation: AtomicU64,
    failure: OnceLock<String>,
}

impl Checkpointer {
    /// Starts with what the log holds and the tables do not.
    pub(super) fn start(begin: Begin, pace: Pace) -> io::Result<Self> {
        let Begin { tables, checkpointed, generation, rest } = begin;
        let (send, receive) = mpsc::sync_channel(WAITING);
        let progress = Arc::new(Progress::default());
        progress.checkpointed.store(checkpointed.0, Ordering::Release);
        progress.generation.store(generation, Ordering::Release);
        let work = Work { queue: receive, tables, pace, progress: progress.clone() };
        let thread = thread::Builder::new().name("checkpointer".into());
        let thread = thread.spawn(move || work.run(rest))?;
        Ok(Self { queue: Some(send), thread: Some(thread), progress })
    }

    pub(super) fn checkpointed(&self) -> Revision {
        Revision(self.progress.checkpointed.load(Ordering::Acquire))
    }

    /// The log goes on in another file.
    pub(super) fn use_log(&self, generation: u64) {
        self.progress.generation.store(generation, Ordering::Release);
    }

    /// Fails if the thread has: the log cannot grow for ever.
    pub(super) fn check(&self) -> Result<(), String> {
        self.progress.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    pub(super) fn hand_over(&self, group: Redo) {
        // A thread that has ended has said why, and the next write asks.
        let _ = self.queue.as_ref().map(|queue| queue.send(group));
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.queue = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What the thread has.
struct Work {
    queue: Receiver<Redo>,
    tables: Arc<Tables>,
    pace: Pace,
    progress: Arc<Progress>,
}

impl Work {
    fn run(&self, rest: Vec<Redo>) {
        let mut groups = rest;
        let mut open = true;
        while open {
            if groups.is_empty() {
                let Ok(group) = self.queue.recv() else { return };
                groups.push(group);
                open = self.gather(&mut groups);
            }
            let checkpointed = groups.last().map_or(Revision(0), Redo::last);
            let generation = self.progress.generation.load(Ordering::Acquire);
            let groups = mem::take(&mut groups);
            let work = || self.tables.checkpoint(&groups, generation).map_err(|e| e.to_string());
            let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
                Err(format!("the store panicked: {}", panic_text(&*panic)))
            });
            if let Err(failure) = outcome {
                let _ = self.progress.failure.set(failure);
                return;
            }
            self.progress.checkpointed.store(checkpointed.0, Ordering::Release);
        }
    }

    /// Waits for more; tells whether there can be any after it.
    fn gather(&self, groups: &mut Vec<Redo>) -> bool {
        let until = Instant::now() + self.pace.pause;
        let mut changes = groups.iter().map(|group| group.changes.len()).sum::<usize>();
        while changes < self.pace.changes {
            match self.queue.recv_timeout(until.saturating_duration_since(Instant::now())) {
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
}
