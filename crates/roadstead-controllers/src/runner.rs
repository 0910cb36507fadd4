//! What all controllers have in common: watch, remember, queue keys, plan, write, and remember
//! what was written.
//!
//! The runner owns the queue, feeds the caches, knows when everything has been seen once, counts,
//! and carries out the writes of several keys at a time, never of one key twice at once. What a
//! write is answered is in the caches before the same key is planned again, so that a controller
//! sees its own writes. A controller says which keys a change concerns ([`Watches`]) and what is to
//! be done about a key ([`Controller::plan`]), and waits for nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::panic;
use std::sync::Arc;

use futures::stream::{BoxStream, SelectAll, StreamExt};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use roadstead_api::key::ObjectKey;
use roadstead_component::readiness::ReadyGuard;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, Recorder, Severity};
use roadstead_watch::queue::{Backoff, Queue};
use roadstead_watch::write::Write;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

pub(crate) use self::flight::WritePlan;
use self::flight::{Flight, fly};
pub(crate) use self::inputs::{Inputs, every};
use self::inputs::{Step, Watched};
use crate::Context;
use crate::metrics::{Metrics, QueueMeter};
use crate::state::StateReport;

mod flight;
mod inputs;

/// What one controller decides.
pub(crate) trait Controller: Sized + Send + 'static {
    /// What is queued: usually the name of an object.
    type Key: Ord + Clone + fmt::Display + Send + Sync + 'static;

    /// The name under which it writes events.
    const COMPONENT: &'static str;
    /// The name of its queue, for metrics.
    const QUEUE: &'static str;
    /// So many keys may be written at once. One, if the plan of a key depends on what others get.
    const WORKERS: usize = 8;
    /// Whether keys that are due are taken in their own order, not in that in which they came.
    const BY_KEY: bool = false;

    /// Says what is to be done about a key.
    fn plan(&mut self, key: &Self::Key, now: Timestamp) -> WritePlan<Self::Key>;

    /// Takes in that a write was answered, as the caches have already; returns what to tell of it.
    fn written(&mut self, _write: &Write, _answer: &str) -> Option<EventDraft> {
        None
    }

    /// Takes in why a write was refused, unless it came too late.
    fn failed(&mut self, _key: &Self::Key, _why: &str) {}

    /// Takes in how the work on a key ended.
    fn finished(&mut self, _key: &Self::Key, _failed: bool) {}

    /// Whether nothing is missing besides the first lists of what is watched.
    fn is_complete(&self) -> bool {
        true
    }

    /// How long a key that failed waits.
    fn backoff(_key: &Self::Key) -> Backoff {
        Backoff::default()
    }

    /// The name of the queue that a key is in, if it is not always the same.
    fn queue_name(_key: &Self::Key) -> &'static str {
        Self::QUEUE
    }
}

/// What a controller makes of a kind that it watches.
pub(crate) trait Watches<K>: Controller {
    /// Where it finds the objects.
    fn cache(&mut self) -> &mut Cache<K>;

    /// Keeps what is derived from the cache equal to it: after every change, own writes included.
    fn index(&mut self, _change: &Changed<K>, _queue: &mut Queue<Self::Key>) {}

    /// Queues the keys that a change concerns. Own writes are no news.
    fn wake(&mut self, change: &Changed<K>, queue: &mut Queue<Self::Key>);
}

/// An object of a cache before and after a change.
pub(crate) struct Changed<K> {
    pub(crate) key: ObjectKey,
    pub(crate) before: Option<Arc<K>>,
    pub(crate) now: Option<Arc<K>>,
}

impl<K> Changed<K> {
    /// The state before, then the state now: those that there are.
    pub(crate) fn states(&self) -> impl Iterator<Item = &K> {
        self.before.iter().chain(&self.now).map(Arc::as_ref)
    }
}

/// Runs a controller for ever.
pub(crate) async fn run<C: Controller>(context: Context, controller: C, inputs: Inputs<C>) {
    let Context { name, client, settings, ready } = context;
    let (recorder, writer) = Recorder::new(client.clone(), C::COMPONENT, "");
    let metrics = settings.metrics;
    let mut queue = Queue::with_meter(QueueMeter::new(metrics.clone(), C::queue_name));
    if C::BY_KEY {
        queue = queue.by_key();
    }
    for (key, delay) in inputs.first {
        queue.add_after(key, delay);
    }
    let runner = Runner {
        client,
        metrics,
        recorder,
        desk: Desk { controller, queue, unsynced: (0..inputs.watched.len()).collect() },
        inputs: inputs.steps,
        watched: inputs.watched,
        flying: JoinSet::new(),
        busy: BTreeSet::new(),
        again: BTreeSet::new(),
        report: settings.states.of(name),
        ready: Some(ready),
    };
    tokio::select! {
        () = writer.run() => {}
        () = runner.run() => {}
    }
}

/// What the watches change.
struct Desk<C: Controller> {
    controller: C,
    queue: Queue<C::Key>,
    /// Which of the watched kinds have not been seen as a whole.
    unsynced: BTreeSet<usize>,
}

struct Runner<C: Controller> {
    client: Client,
    metrics: Metrics,
    recorder: Recorder,
    desk: Desk<C>,
    inputs: SelectAll<BoxStream<'static, Step<C>>>,
    watched: Vec<Watched<C>>,
    /// Tasks of their own, so that a large write does not hold up the next plan.
    flying: JoinSet<(C::Key, WritePlan<C::Key>, Flight)>,
    /// Keys whose writes are under way.
    busy: BTreeSet<C::Key>,
    /// Those of them that have become due again meanwhile.
    again: BTreeSet<C::Key>,
    report: StateReport,
    /// Until everything has been seen once.
    ready: Option<ReadyGuard>,
}

impl<C: Controller> Runner<C> {
    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                Some(landed) = self.flying.join_next(), if !self.flying.is_empty() => {
                    match landed {
                        Ok((key, plan, flight)) => self.land(key, plan, flight),
                        Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
                        // Everything ends.
                        Err(_) => return,
                    }
                }
                Some(step) = self.inputs.next() => self.take_in(step),
                () = self.desk.queue.ready(),
                    if self.flying.len() < C::WORKERS && self.is_synced() => self.take_off(),
            }
        }
    }

    fn is_synced(&self) -> bool {
        self.desk.unsynced.is_empty() && self.desk.controller.is_complete()
    }

    fn take_in(&mut self, step: Step<C>) {
        step(&mut self.desk);
        if self.ready.is_some() && self.is_synced() {
            self.ready = None;
            self.tell_state(None);
        }
    }

    fn take_off(&mut self) {
        // What waits only for its moment is due by itself, without any change.
        if self.ready.take().is_some() {
            self.tell_state(None);
        }
        let Some(key) = self.desk.queue.pop() else { return };
        if self.busy.contains(&key) {
            self.again.insert(key);
            return;
        }
        let began = Instant::now();
        let plan = self.desk.controller.plan(&key, Timestamp::now());
        if plan.writes.is_empty() && plan.survey.is_none() {
            return self.land(key, plan, Flight::new(began));
        }
        self.busy.insert(key.clone());
        let client = self.client.clone();
        self.flying.spawn(async move {
            let (plan, flight) = fly(client, plan, began).await;
            (key, plan, flight)
        });
    }

    fn land(&mut self, key: C::Key, plan: WritePlan<C::Key>, flight: Flight) {
        for (write, answer) in &flight.answers {
            self.record(write, answer);
            if let Some(draft) = self.desk.controller.written(write, answer) {
                self.recorder.record(draft);
            }
        }
        self.metrics.worked(C::queue_name(&key), flight.began.elapsed());
        self.busy.remove(&key);
        let failed = flight.error.is_some() || plan.incomplete.is_some();
        let error = flight.error.as_ref().filter(|error| !crate::is_gone(error));
        if let Some(kube::Error::Api(status)) = error {
            self.desk.controller.failed(&key, &status.message);
        }
        self.desk.controller.finished(&key, failed);
        let queue = &mut self.desk.queue;
        if self.again.remove(&key) {
            queue.add(key.clone());
        }
        let again = plan.again_after.map(|delay| (key.clone(), delay));
        for (key, delay) in again.into_iter().chain(plan.wake) {
            queue.add_after(key, delay);
        }
        match (flight.in_vain, flight.error) {
            (Some(write), _) => self.gone(key, &write),
            (None, Some(error)) => {
                self.failed(key, &error);
                if let Some((about, reason, beginning)) = plan.failure {
                    let (severity, reason) = (Severity::Warning, reason.to_owned());
                    let message = format!("{beginning}: {error}");
                    self.recorder.record(EventDraft { about, severity, reason, message });
                }
            }
            (None, None) => {
                plan.events.into_iter().for_each(|draft| self.recorder.record(draft));
                self.done(key, plan.incomplete);
            }
        }
    }

    /// Brings the answer to a write into the caches of its kind.
    fn record(&mut self, write: &Write, answer: &str) {
        for watched in self.watched.iter().filter(|own| own.collection == write.collection) {
            (watched.record)(&mut self.desk, write, answer);
        }
    }

    /// Somebody has deleted an object under our hands: no failure, and nobody is told. What is to
    /// be done without it is another question, which comes at once, or, should the object be in
    /// the way for another reason, later and later.
    fn gone(&mut self, key: C::Key, write: &Write) {
        if let Some(deletion) = write.in_vain() {
            self.record(&deletion, "");
        }
        let again_in = self.desk.queue.retry_with(key.clone(), C::backoff(&key));
        debug!(controller = C::COMPONENT, %key, gone = %write.key, ?again_in, "it is gone");
        self.tell_state(None);
    }

    fn failed(&mut self, key: C::Key, error: &kube::Error) {
        let again_in = self.desk.queue.retry_with(key.clone(), C::backoff(&key));
        warn!(controller = C::COMPONENT, %key, %error, ?again_in, "not done yet");
        self.tell_state(Some(format!("{key}: {error}")));
    }

    fn done(&mut self, key: C::Key, incomplete: Option<String>) {
        match incomplete {
            Some(why) => {
                let again_in = self.desk.queue.retry_with(key.clone(), C::backoff(&key));
                debug!(controller = C::COMPONENT, %key, why, ?again_in, "not complete yet");
            }
            None => self.desk.queue.succeeded(&key),
        }
        self.tell_state(None);
    }

    /// Shows what can be seen at `/debug/state`.
    fn tell_state(&mut self, error: Option<String>) {
        let (queue, busy) = (self.desk.queue.counts(), self.busy.len());
        let Self { desk, watched, report, ready, .. } = self;
        let objects = watched.iter().map(|own| (own.collection.plural.as_ref(), (own.len)(desk)));
        report.tell(|state| {
            state.synced = ready.is_none();
            state.busy = busy;
            state.queue = queue;
            state.set_objects(objects);
            if error.is_some() {
                state.last_error = error;
            }
        });
    }
}

#[cfg(test)]
mod tests;
