//! The one thread that writes: it takes all transactions that wait, decides them one after the
//! other, makes their writes durable together, publishes them, and only then answers.
//!
//! Nobody sees a write that is not durable, not even as somebody else's conflict: a transaction
//! that is refused because of one earlier in its group is told so after that one is on disk. If it
//! cannot get there, nothing of the group has happened as far as anyone can tell.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::{io, thread};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use crate::commit_plan::CommitPlan;
use crate::entry::{Millis, Revision};
use crate::error::StoreError;
use crate::log::Group;
use crate::replica::Replica;
use crate::transaction::Transaction;

#[cfg(test)]
mod interleavings;

/// How many transactions may wait; further writers wait before they are in the queue.
const WAITING: usize = 256;

/// Where groups go before anyone sees them.
pub(crate) trait Journal: Send {
    /// Returns when the group is durable, in one step with what it forgets. After an error nobody
    /// knows how much of the group is: the journal is not used again.
    fn write(&mut self, group: &Group) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// The queue in front of the thread. Dropping it lets the thread finish what waits.
#[derive(Debug)]
pub(crate) struct Committer {
    status: Arc<Status>,
    queue: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and those who ask it know of its health.
#[derive(Debug, Default)]
struct Status {
    /// Why nothing can be written any more.
    failure: OnceLock<StoreError>,
    /// Whether somebody has been refused for want of room.
    full: AtomicBool,
}

#[derive(Debug)]
struct Request {
    transaction: Transaction,
    now: Millis,
    answer: oneshot::Sender<Result<Revision, StoreError>>,
}

impl Committer {
    /// Starts the thread. Nobody else may feed the replica.
    pub(crate) fn start(
        replica: Arc<Replica>,
        journal: impl Journal + 'static,
    ) -> io::Result<Self> {
        let (send, receive) = mpsc::channel(WAITING);
        let status = Arc::new(Status::default());
        let mut work = Work { replica, status: status.clone(), journal };
        let thread = thread::Builder::new().name("committer".into());
        let thread = thread.spawn(move || work.run(receive))?;
        Ok(Self { status, queue: Some(send), thread: Some(thread) })
    }

    pub(crate) async fn commit(
        &self,
        transaction: Transaction,
        now: Millis,
    ) -> Result<Revision, StoreError> {
        if let Some(failure) = self.status.failure.get() {
            return Err(failure.clone());
        }
        let (answer, answered) = oneshot::channel();
        let request = Request { transaction, now, answer };
        let queue = self.queue.as_ref().expect("the queue is there until the store is dropped");
        // Neither can fail while the thread lives.
        let ended = || self.fail("the committer has ended by surprise");
        queue.send(request).await.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }

    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.status.failure.get().cloned()
    }

    /// From now on nothing is written any more.
    pub(crate) fn fail(&self, cause: &str) -> StoreError {
        self.status.fail(cause)
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.queue = None;
        // The journal is closed when the thread has ended, so that it can be opened again.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Status {
    fn fail(&self, cause: &str) -> StoreError {
        let failure = StoreError::ReadOnly { since: Timestamp::now(), cause: cause.into() };
        let failure = self.failure.get_or_init(|| failure);
        error!(error = %failure, "writes are refused from now on, reads go on; restart when the cause is gone");
        failure.clone()
    }

    /// Says when there is no room any more, and when there is again.
    fn notice(&self, outcomes: &Outcomes, group: &Group) {
        let full = outcomes.iter().find_map(|outcome| match outcome {
            Err(full @ StoreError::Full { .. }) => Some(full),
            _ => None,
        });
        let creates = || group.events.iter().any(|event| event.before.is_none());
        if let Some(full) = full {
            if !self.full.swap(true, Ordering::Relaxed) {
                warn!("nothing can be created any more: {full}");
            }
        } else if self.full.load(Ordering::Relaxed) && creates() {
            self.full.store(false, Ordering::Relaxed);
            info!("there is room for new objects again");
        }
    }
}

type Answers = Vec<oneshot::Sender<Result<Revision, StoreError>>>;
type Outcomes = Vec<Result<Revision, StoreError>>;

/// What the thread has.
struct Work<J> {
    replica: Arc<Replica>,
    status: Arc<Status>,
    journal: J,
}

impl<J: Journal> Work<J> {
    fn run(&mut self, mut queue: mpsc::Receiver<Request>) {
        let mut requests = Vec::new();
        while queue.blocking_recv_many(&mut requests, WAITING) > 0 {
            self.round(&mut requests);
        }
    }

    /// Carries out what waits, and answers.
    fn round(&mut self, requests: &mut Vec<Request>) {
        let (answers, outcomes) = self.carry_out(requests.drain(..));
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // Whoever asked may have gone away.
            let _ = answer.send(outcome);
        }
    }

    fn carry_out(&mut self, requests: impl Iterator<Item = Request>) -> (Answers, Outcomes) {
        let (mut answers, mut outcomes) = (Vec::new(), Vec::new());
        if let Some(failure) = self.status.failure.get() {
            let answers: Answers = requests.map(|request| request.answer).collect();
            outcomes.resize(answers.len(), Err(failure.clone()));
            return (answers, outcomes);
        }
        let group = {
            let state = self.replica.read();
            let mut plan = CommitPlan::new(&state);
            let mut latest = 0;
            for request in requests {
                latest = request.now.max(latest);
                answers.push(request.answer);
                outcomes.push(plan.add(&state, request.transaction, request.now));
            }
            plan.finish(&state, latest)
        };
        self.status.notice(&outcomes, &group);
        if group.events.is_empty() {
            return (answers, outcomes);
        }
        match self.write(&group) {
            Ok(()) => self.replica.apply(group),
            Err(cause) => outcomes.fill(Err(self.status.fail(&cause))),
        }
        (answers, outcomes)
    }

    /// Writes the group; a journal that panics has failed like any other.
    fn write(&mut self, group: &Group) -> Result<(), String> {
        match catch_unwind(AssertUnwindSafe(|| self.journal.write(group))) {
            Ok(written) => written.map_err(|error| error.to_string()),
            Err(panic) => Err(format!("the journal panicked: {}", panic_text(&*panic))),
        }
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}
