//! The one thread that writes: it takes all transactions that wait, decides them one after the
//! other, makes their writes durable together, publishes them, and only then answers.
//!
//! Nobody sees a write that is not durable, not even as somebody else's conflict: a transaction
//! that is refused because of one earlier in its group is told so after that one is on disk. If it
//! cannot get there, nothing of the group has happened as far as anyone can tell.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::{io, thread};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use crate::entry::{Millis, Revision};
use crate::error::StoreError;
use crate::journal::Journal;
use crate::plan::Plan;
use crate::state::State;
use crate::transaction::Transaction;

/// How many transactions may wait; further writers wait before they are in the queue.
const WAITING: usize = 256;

/// What the committer shares with readers.
#[derive(Debug)]
pub(crate) struct View {
    state: RwLock<State>,
    /// Why nothing can be written any more.
    failure: OnceLock<StoreError>,
    /// Whether somebody has been refused for want of room.
    full: AtomicBool,
}

impl View {
    pub(crate) fn new(state: State) -> Arc<Self> {
        Arc::new(Self { state: RwLock::new(state), failure: OnceLock::new(), full: false.into() })
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        // Whoever panicked with the lock was not half-way through a change.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a transaction that needs no journal.
    pub(crate) fn commit(
        &self,
        transaction: Transaction,
        now: Millis,
    ) -> Result<Revision, StoreError> {
        let mut state = self.write();
        let mut plan = Plan::new(&state);
        let revision = plan.add(&state, transaction, now)?;
        state.age(&mut plan, now);
        state.apply(plan);
        Ok(revision)
    }

    /// Says when there is no room any more, and when there is again.
    fn notice(&self, outcomes: &[Result<Revision, StoreError>], plan: &Plan) {
        let full = outcomes.iter().find_map(|outcome| match outcome {
            Err(full @ StoreError::Full { .. }) => Some(full),
            _ => None,
        });
        if let Some(full) = full {
            if !self.full.swap(true, Ordering::Relaxed) {
                warn!("nothing can be created any more: {full}");
            }
        } else if self.full.load(Ordering::Relaxed) && plan.creates() {
            self.full.store(false, Ordering::Relaxed);
            info!("there is room for new objects again");
        }
    }

    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.failure.get().cloned()
    }

    pub(crate) fn fail(&self, cause: &str) -> StoreError {
        let failure = StoreError::ReadOnly { since: Timestamp::now(), cause: cause.into() };
        let failure = self.failure.get_or_init(|| failure);
        error!(error = %failure, "writes are refused from now on, reads go on; restart when the cause is gone");
        failure.clone()
    }
}

/// The queue in front of the thread. Dropping it lets the thread finish what waits.
#[derive(Debug)]
pub(crate) struct Committer {
    view: Arc<View>,
    queue: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Request {
    transaction: Transaction,
    now: Millis,
    answer: oneshot::Sender<Result<Revision, StoreError>>,
}

impl Committer {
    pub(crate) fn start(view: Arc<View>, journal: impl Journal + 'static) -> io::Result<Self> {
        let (send, receive) = mpsc::channel(WAITING);
        let shared = view.clone();
        let thread = thread::Builder::new().name("committer".into());
        let thread = thread.spawn(move || run(receive, &shared, journal))?;
        Ok(Self { view, queue: Some(send), thread: Some(thread) })
    }

    pub(crate) async fn commit(
        &self,
        transaction: Transaction,
        now: Millis,
    ) -> Result<Revision, StoreError> {
        if let Some(failure) = self.view.failure.get() {
            return Err(failure.clone());
        }
        let (answer, answered) = oneshot::channel();
        let request = Request { transaction, now, answer };
        let queue = self.queue.as_ref().expect("the queue is there until the store is dropped");
        // Neither can fail while the thread lives.
        let ended = || self.view.fail("the committer has ended by surprise");
        queue.send(request).await.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.queue = None;
        // The journal is closed when the thread has ended, so that it can be opened again.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(mut queue: mpsc::Receiver<Request>, view: &View, mut journal: impl Journal) {
    let mut requests = Vec::new();
    while queue.blocking_recv_many(&mut requests, WAITING) > 0 {
        let (answers, outcomes) = carry_out(requests.drain(..), view, &mut journal);
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // Whoever asked may have gone away.
            let _ = answer.send(outcome);
        }
    }
}

type Answers = Vec<oneshot::Sender<Result<Revision, StoreError>>>;
type Outcomes = Vec<Result<Revision, StoreError>>;

fn carry_out(
    requests: impl Iterator<Item = Request>,
    view: &View,
    journal: &mut impl Journal,
) -> (Answers, Outcomes) {
    let (mut answers, mut outcomes) = (Vec::new(), Vec::new());
    if let Some(failure) = view.failure.get() {
        let answers: Answers = requests.map(|request| request.answer).collect();
        outcomes.resize(answers.len(), Err(failure.clone()));
        return (answers, outcomes);
    }
    let plan = {
        let state = view.read();
        let mut plan = Plan::new(&state);
        let mut latest = 0;
        for request in requests {
            latest = request.now.max(latest);
            answers.push(request.answer);
            outcomes.push(plan.add(&state, request.transaction, request.now));
        }
        state.age(&mut plan, latest);
        plan
    };
    view.notice(&outcomes, &plan);
    if plan.events.is_empty() {
        return (answers, outcomes);
    }
    match write(journal, &plan) {
        Ok(()) => view.write().apply(plan),
        Err(cause) => outcomes.fill(Err(view.fail(&cause))),
    }
    (answers, outcomes)
}

/// Writes the plan; a journal that panics has failed like any other.
fn write(journal: &mut impl Journal, plan: &Plan) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| journal.write(plan))) {
        Ok(written) => written.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("the journal panicked: {}", panic_text(&*panic))),
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}
