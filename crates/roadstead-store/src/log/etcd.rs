//! The log in etcd, where others write too, by `/registry/…` as the layout says.
//!
//! A commit is one transaction of etcd. The replica hears of it, as of everything that others write, from
//! one watch of all keys (`follow`): so every revision comes, and that none was left out can be seen by its
//! number. At the start, and when a watch cannot go on, the state at the oldest revision that etcd still
//! has is loaded, and everything since then replayed (`load`): all servers have the same past, and a
//! reader of one can go on at another.
//!
//! What was just written elsewhere is here within a millisecond, most times. Who must not miss it asks
//! for a [barrier](EtcdLog::fresh): etcd is asked for its newest revision, once for all who wait, and the
//! replica waited for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use roadstead_etcd::client::Client;
use roadstead_etcd::failure::Failure;
use roadstead_etcd::messages::{Header, RangeRequest};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{self, Instant};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::entry::Revision;
use crate::error::{OpenError, StoreError};
use crate::kv::EtcdOptions;
use crate::layout::KeyLayout;
use crate::log::Log;
use crate::log::etcd::leases::Leases;
use crate::log::etcd::request::{Request, Verdict};
use crate::log::etcd::waiters::Waiters;
use crate::mutation::{self, Mutation};
use crate::replica::Replica;
use crate::retention::Limits;
use crate::transaction::Transaction;

mod compact;
mod follow;
mod leases;
mod load;
#[cfg(test)]
mod mutations;
mod request;
#[cfg(test)]
mod tests;
mod told;
mod waiters;

/// How long etcd may be silent until whoever asked is told: longer than it takes to elect a leader.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the replica may be behind what etcd has told.
const LAG: Duration = Duration::from_secs(2);
/// Between two attempts that failed at once.
const BREATH: Duration = Duration::from_millis(50);
/// How often we look whether etcd answers, and how long it may be silent until we say that it does not.
const LOOK: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_secs(2);
/// How many transactions may be on their way.
const AT_ONCE: usize = 256;
/// How many may wait for a barrier.
const WAITING: usize = 4096;

/// Those who wait for a barrier, and the tasks that keep the replica level.
#[derive(Debug)]
pub(crate) struct EtcdLog {
    remote: Arc<Remote>,
    barrier: mpsc::Sender<oneshot::Sender<Result<(), StoreError>>>,
    tasks: Vec<AbortHandle>,
}

/// What is at the other end, and what is known of it here.
#[derive(Debug)]
struct Remote {
    client: Client,
    layout: Arc<dyn KeyLayout>,
    history: Limits,
    replica: Arc<Replica>,
    waiters: Waiters,
    clock: Clock,
    permits: Semaphore,
    leases: Leases,
    health: Mutex<Health>,
    /// The watch is silent though there is something to tell: it is to be begun again.
    silent: Notify,
    /// etcd has gone back: it is another one, or was restored.
    gone_back: Notify,
}

/// Whether etcd answers.
#[derive(Debug)]
struct Health {
    /// When the replica was level with it.
    level: Instant,
    cause: Arc<str>,
}

impl EtcdLog {
    /// Loads everything; the replica shows it.
    pub(crate) async fn open(
        client: Client,
        layout: Arc<dyn KeyLayout>,
        options: EtcdOptions,
    ) -> Result<(Arc<Replica>, Self), OpenError> {
        let begin = Instant::now();
        let (clock, history) = (Clock::new(0), options.history);
        let loading = load::Loading { client: &client, layout: &*layout, history, clock: &clock };
        let loaded = loading.patiently(begin + options.patience).await?;
        let revision = loaded.state.revision;
        info!(%revision, took_ms = begin.elapsed().as_millis() as u64, "loaded from etcd");
        let replica = Replica::new(loaded.state);
        let health = Health { level: Instant::now(), cause: "".into() };
        let remote = Arc::new(Remote {
            client,
            layout,
            history,
            replica: replica.clone(),
            waiters: Waiters::default(),
            clock,
            permits: Semaphore::new(AT_ONCE),
            leases: Leases::default(),
            health: Mutex::new(health),
            silent: Notify::new(),
            gone_back: Notify::new(),
        });
        remote.waiters.reach(revision);
        let (barrier, asked) = mpsc::channel(WAITING);
        let mut tasks = vec![
            tokio::spawn(follow::follow(remote.clone(), loaded.follower)).abort_handle(),
            tokio::spawn(answer(remote.clone(), asked)).abort_handle(),
            tokio::spawn(look(remote.clone())).abort_handle(),
        ];
        if let Some(every) = options.compaction {
            tasks.push(tokio::spawn(compact::run(remote.clone(), every)).abort_handle());
        }
        Ok((replica, Self { remote, barrier, tasks }))
    }
}

impl Drop for EtcdLog {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Log for EtcdLog {
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        let mut request = Request::of(transaction, &*self.remote.layout)?;
        for time in request.times() {
            request.end_with(time, self.remote.leases.of(&self.remote.client, time).await?);
        }
        let remote = self.remote.clone();
        // In a task of its own: it happens even if nobody waits for the answer.
        let done = tokio::spawn(async move { remote.commit(&request).await }).await;
        done.unwrap_or_else(|error| Err(StoreError::Unknown { cause: error.to_string().into() }))
    }

    async fn fresh(&self) -> Result<(), StoreError> {
        let gone = || StoreError::Unavailable { cause: "the store is being closed".into() };
        let (sender, answer) = oneshot::channel();
        self.barrier.send(sender).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    fn failure(&self) -> Option<StoreError> {
        self.remote.silence().map(|cause| StoreError::Unavailable { cause })
    }
}

/// Answers those who wait for a barrier. Who comes while etcd is asked waits for the next answer.
async fn answer(
    remote: Arc<Remote>,
    mut asked: mpsc::Receiver<oneshot::Sender<Result<(), StoreError>>>,
) {
    let mut waiting = Vec::new();
    while asked.recv_many(&mut waiting, WAITING).await > 0 {
        // Where etcd is known to be away, nobody is kept waiting for long.
        let patience = remote.silence().map_or(PATIENCE, |_| LOOK);
        let level = match mutation::is(Mutation::NoBarrier) {
            true => Ok(()),
            false => remote.level(patience).await,
        };
        for waiter in waiting.drain(..) {
            let _ = waiter.send(level.clone());
        }
    }
}

/// Looks whether etcd answers, and whether the watch tells what there is to tell.
async fn look(remote: Arc<Remote>) {
    let mut was_level = true;
    loop {
        let level = remote.level(SILENCE).await;
        match (&level, was_level) {
            (Err(error), true) => warn!(%error, "etcd does not answer"),
            (Ok(()), false) => info!("etcd answers again"),
            _ => {}
        }
        was_level = level.is_ok();
        time::sleep(LOOK).await;
    }
}

impl Remote {
    /// Why etcd has not answered for so long that it counts as away, if that is so.
    fn silence(&self) -> Option<Arc<str>> {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        (health.level.elapsed() > LOOK + SILENCE).then(|| health.cause.clone())
    }

    async fn commit(&self, request: &Request) -> Result<Revision, StoreError> {
        let _permit = self.permits.acquire().await;
        let since = self.waiters.reached();
        let deadline = Instant::now() + PATIENCE;
        let mut unsure = None;
        loop {
            let failure = match self.client.txn(&request.txn).await {
                Ok(answer) => {
                    let revision = revision_of(answer.header.as_ref());
                    if !answer.succeeded && mutation::is(Mutation::NoWaitAfterConflict) {
                        return Err(request.conflict(&answer));
                    }
                    // Whoever is told of a revision sees it. If it does not come, the health of the log
                    // says so; what was written was.
                    let seen = self.waiters.wait(revision, LAG).await;
                    return match (answer.succeeded, unsure) {
                        (true, _) => Ok(revision),
                        (false, None) => Err(request.conflict(&answer)),
                        (false, Some(cause)) if !seen => Err(StoreError::Unknown { cause }),
                        (false, Some(cause)) => match self.judge(request, since) {
                            Verdict::Took(revision) => Ok(revision),
                            Verdict::Never => Err(request.conflict(&answer)),
                            Verdict::Unsure => Err(StoreError::Unknown { cause }),
                        },
                    };
                }
                Err(failure) => failure,
            };
            if let Failure::Unknown(cause) = &failure {
                unsure = Some(cause.as_str().into());
            }
            let may_repeat = unsure.is_none() || request.is_repeatable();
            let is_late = Instant::now() + BREATH >= deadline || self.silence().is_some();
            if failure.is_about_leases() {
                // Somebody has ended it, or etcd is another one: the next write gets another.
                self.leases.forget().await;
            }
            if !failure.is_passing() || !may_repeat || is_late {
                return match unsure {
                    Some(cause) => self.resolve(request, since, deadline, cause).await,
                    None => Err(refused(failure)),
                };
            }
            time::sleep(BREATH).await;
        }
    }

    /// What became of a transaction that may not be sent again. If it is seen, it happened; if it is not, it
    /// may be on its way.
    async fn resolve(
        &self,
        request: &Request,
        since: Revision,
        deadline: Instant,
        cause: Arc<str>,
    ) -> Result<Revision, StoreError> {
        let rest = deadline.saturating_duration_since(Instant::now()).max(LOOK);
        match self.level(rest).await.map(|()| self.judge(request, since)) {
            Ok(Verdict::Took(revision)) => Ok(revision),
            _ => Err(StoreError::Unknown { cause }),
        }
    }

    /// What became of a transaction, as the events since then tell.
    fn judge(&self, request: &Request, since: Revision) -> Verdict {
        let state = self.replica.read();
        let mut events = Vec::new();
        for bucket in
            request.keys().map(|key| &key.bucket).collect::<std::collections::BTreeSet<_>>()
        {
            match state.events_after(bucket, since, usize::MAX) {
                Ok(batch) => events.extend(batch.events),
                Err(_) => return Verdict::Unsure,
            }
        }
        drop(state);
        events.retain(|event| request.keys().any(|key| *key == event.key));
        events.sort_by_key(|event| event.revision);
        request.judge(events.iter().map(|event| &**event))
    }

    /// Asks etcd for its newest revision, and waits until the replica has reached it.
    async fn level(&self, patience: Duration) -> Result<(), StoreError> {
        let before = self.waiters.reached();
        let newest = match newest(&self.client, Instant::now() + patience).await {
            Ok(newest) => newest,
            Err(failure) => return Err(self.is_silent(refused(failure))),
        };
        if newest < before {
            self.gone_back.notify_one();
            let cause =
                format!("it is at revision {newest}, and was at {before}: it has gone back");
            return Err(self.is_silent(StoreError::Unavailable { cause: cause.into() }));
        }
        if !self.waiters.wait(newest, LAG).await {
            self.silent.notify_one();
            let cause = format!("its watch has not told of revision {newest} within {LAG:?}");
            return Err(self.is_silent(StoreError::Unavailable { cause: cause.into() }));
        }
        self.health.lock().unwrap_or_else(PoisonError::into_inner).level = Instant::now();
        Ok(())
    }

    /// Remembers why nobody can say that the replica is level.
    fn is_silent(&self, error: StoreError) -> StoreError {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if let StoreError::Unavailable { cause } = &error {
            health.cause = cause.clone();
        }
        error
    }
}

/// What a question means to our callers that has failed and did nothing.
fn refused(failure: Failure) -> StoreError {
    let cause: Arc<str> = failure.to_string().into();
    match failure {
        Failure::NoSpace(_) => StoreError::NoSpace { cause },
        Failure::TooLarge(_) => StoreError::TooLarge { cause },
        _ => StoreError::Unavailable { cause },
    }
}

/// The newest revision, which no member says alone.
async fn newest(client: &Client, deadline: Instant) -> Result<Revision, Failure> {
    // Nobody has a key that is only a zero byte.
    let key = b"\0"[..].into();
    let request = RangeRequest { key, count_only: true, limit: 1, ..RangeRequest::default() };
    Ok(revision_of(client.range(&request, deadline).await?.header.as_ref()))
}

fn revision_of(header: Option<&Header>) -> Revision {
    Revision(header.map_or(0, |header| header.revision.unsigned_abs()))
}
