//! What all controllers have in common: watch, remember, queue keys, plan, write, and remember
//! what was written.
//!
//! A controller owns its caches and plans without waiting for anything. The runner carries out
//! the writes of several keys at a time, never of one key twice at once, and hands the answers
//! back, so that the controller sees its own writes before it plans the same key again. Nothing
//! here depends on a kind: writes are bytes and answers are text.

use std::collections::BTreeSet;
use std::fmt;
use std::panic;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll, StreamExt};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use roadstead_watch::events::{About, Happening, Recorder, Severity};
use roadstead_watch::informer::Change;
use roadstead_watch::queue::{Backoff, Queue};
use roadstead_watch::write::{Verb, Write};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::metrics::Metrics;

/// What one controller knows and decides.
pub trait Controller: Send + 'static {
    /// What is queued: usually the name of an object.
    type Key: Ord + Clone + fmt::Display + Send + Sync + 'static;

    /// The name under which it writes events.
    const COMPONENT: &'static str;
    /// So many keys may be written at once. One, if the plan of a key depends on what others get.
    const WORKERS: usize = 8;

    /// The keys that wait.
    fn queue(&self) -> &Queue<Self::Key>;
    /// The keys that wait.
    fn queue_mut(&mut self) -> &mut Queue<Self::Key>;
    /// Whether everything that is watched has been seen once.
    fn synced(&self) -> bool;
    /// Says what is to be done about a key.
    fn plan(&mut self, key: &Self::Key, now: Timestamp) -> Plan;
    /// Takes in the answer to a write.
    fn record(&mut self, write: &Write, answer: &str);
    /// What to tell about one write, once its answer is there.
    fn tell(&self, _write: &Write, _answer: &str) -> Option<Happening> {
        None
    }
    /// How long a key that failed waits.
    fn backoff(&self, _key: &Self::Key) -> Backoff {
        Backoff::default()
    }
    /// The name of the queue that a key is in, for metrics.
    fn queue_name(_key: &Self::Key) -> &'static str {
        Self::COMPONENT
    }
    /// Takes in how the work on a key ended.
    fn finished(&mut self, _key: &Self::Key, _failed: bool) {}
}

/// What is to be done about a key.
#[derive(Default)]
pub struct Plan {
    /// What must be looked up first; it says what else to write and to tell.
    pub survey: Option<BoxFuture<'static, Surveyed>>,
    /// Writes, in this order; the first that fails ends them.
    pub writes: Vec<Write>,
    /// What to tell once they are done.
    pub events: Vec<Happening>,
    /// Whom to tell if they fail, and how the sentence begins.
    pub failure: Option<(About, &'static str, String)>,
    /// When to look again even if nothing happens.
    pub again_after: Option<Duration>,
    /// Why this was not all: the key is tried again as if it had failed.
    pub incomplete: Option<String>,
}

impl Plan {
    /// Nothing to do.
    pub fn none() -> Self {
        Self::default()
    }
}

/// What came of looking something up.
pub type Surveyed = Result<(Vec<Write>, Vec<Happening>), kube::Error>;

type Step<C> = Box<dyn FnOnce(&mut C) + Send>;

/// What a controller watches.
pub struct Inputs<C>(SelectAll<BoxStream<'static, Step<C>>>);

impl<C: Controller> Inputs<C> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self(SelectAll::new())
    }

    /// Also this, taken in by that method.
    pub fn follow<K>(
        mut self,
        changes: BoxStream<'static, Change<K>>,
        take: fn(&mut C, &Change<K>),
    ) -> Self
    where
        K: Send + Sync + 'static,
    {
        let step = move |change| Box::new(move |state: &mut C| take(state, &change)) as Step<C>;
        self.0.push(changes.map(step).boxed());
        self
    }
}

impl<C: Controller> Default for Inputs<C> {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs a controller for ever.
pub async fn run<C: Controller>(client: Client, metrics: Metrics, state: C, inputs: Inputs<C>) {
    let (recorder, writer) = Recorder::new(client.clone(), C::COMPONENT, "");
    let runner = Runner {
        client,
        metrics,
        recorder,
        state,
        inputs: inputs.0,
        flying: JoinSet::new(),
        busy: BTreeSet::new(),
        again: BTreeSet::new(),
    };
    tokio::select! {
        () = writer.run() => {}
        () = runner.run() => {}
    }
}

struct Runner<C: Controller> {
    client: Client,
    metrics: Metrics,
    recorder: Recorder,
    state: C,
    inputs: SelectAll<BoxStream<'static, Step<C>>>,
    /// Tasks of their own, so that a large write does not hold up the next plan.
    flying: JoinSet<(C::Key, Plan, Flight)>,
    /// Keys whose writes are under way.
    busy: BTreeSet<C::Key>,
    /// Those of them that have become due again meanwhile.
    again: BTreeSet<C::Key>,
}

/// What came of the writes of a plan.
struct Flight {
    began: Instant,
    answers: Vec<(Write, String)>,
    error: Option<kube::Error>,
    /// The write that failed, if that was because its object is gone.
    in_vain: Option<Write>,
}

impl Flight {
    fn new(began: Instant) -> Self {
        Self { began, answers: Vec::new(), error: None, in_vain: None }
    }
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
                Some(step) = self.inputs.next() => step(&mut self.state),
                () = self.state.queue().ready(),
                    if self.flying.len() < C::WORKERS && self.state.synced() => self.take_off(),
            }
        }
    }

    fn take_off(&mut self) {
        let Some(key) = self.state.queue_mut().pop() else { return };
        if self.busy.contains(&key) {
            self.again.insert(key);
            return;
        }
        let began = Instant::now();
        let mut plan = self.state.plan(&key, Timestamp::now());
        let writes = std::mem::take(&mut plan.writes);
        let survey = plan.survey.take();
        if writes.is_empty() && survey.is_none() {
            return self.land(key, plan, Flight::new(began));
        }
        self.busy.insert(key.clone());
        let client = self.client.clone();
        self.flying.spawn(async move {
            let flight = fly(client, survey, writes, &mut plan.events, began).await;
            (key, plan, flight)
        });
    }

    fn land(&mut self, key: C::Key, plan: Plan, flight: Flight) {
        for (write, answer) in &flight.answers {
            self.state.record(write, answer);
            if let Some(happening) = self.state.tell(write, answer) {
                self.recorder.tell(happening);
            }
        }
        self.metrics.worked(C::queue_name(&key), flight.began.elapsed());
        self.busy.remove(&key);
        let backoff = self.state.backoff(&key);
        let failed = flight.error.is_some() || plan.incomplete.is_some();
        self.state.finished(&key, failed);
        let queue = self.state.queue_mut();
        if self.again.remove(&key) {
            queue.add(key.clone());
        }
        if let Some(delay) = plan.again_after {
            queue.add_after(key.clone(), delay);
        }
        if let Some(write) = flight.in_vain {
            // Somebody has deleted the object under our hands: no failure, and nobody is told. What
            // is to be done without it is another question, which comes at once, or, should the
            // object be in the way for another reason, later and later.
            if let Some(deletion) = write.in_vain() {
                self.state.record(&deletion, "");
            }
            let queue = self.state.queue_mut();
            let again_in = queue.retry_with(key.clone(), backoff);
            debug!(controller = C::COMPONENT, %key, gone = %write.key, ?again_in, "it is gone");
            return;
        }
        if let Some(error) = flight.error {
            let again_in = queue.retry_with(key.clone(), backoff);
            warn!(controller = C::COMPONENT, %key, %error, ?again_in, "not done yet");
            if let Some((about, reason, beginning)) = plan.failure {
                let (severity, reason) = (Severity::Warning, reason.to_owned());
                let message = format!("{beginning}: {error}");
                self.recorder.tell(Happening { about, severity, reason, message });
            }
            return;
        }
        plan.events.into_iter().for_each(|happening| self.recorder.tell(happening));
        match plan.incomplete {
            Some(why) => {
                let again_in = queue.retry_with(key.clone(), backoff);
                debug!(controller = C::COMPONENT, %key, why, ?again_in, "not complete yet");
            }
            None => queue.succeeded(&key),
        }
    }
}

async fn fly(
    client: Client,
    survey: Option<BoxFuture<'static, Surveyed>>,
    mut writes: Vec<Write>,
    events: &mut Vec<Happening>,
    began: Instant,
) -> Flight {
    match survey {
        None => carry_out(client, writes, began).await,
        Some(survey) => match survey.await {
            Err(error) => Flight { error: Some(error), ..Flight::new(began) },
            Ok((more, told)) => {
                writes.extend(more);
                events.extend(told);
                carry_out(client, writes, began).await
            }
        },
    }
}

async fn carry_out(client: Client, writes: Vec<Write>, began: Instant) -> Flight {
    let mut flight = Flight::new(began);
    for write in writes {
        match write.send(&client).await {
            Ok(answer) => flight.answers.push((write, answer)),
            // It is gone already, or another one has its name.
            Err(error) if write.verb == Verb::Delete && crate::is_gone(&error) => {
                flight.answers.push((write, String::new()));
            }
            Err(error) if write.verb == Verb::Create && is_terminating(&error) => {}
            Err(error) => {
                flight.in_vain = Some(write).filter(|write| is_missing(write, &error));
                flight.error = Some(error);
                break;
            }
        }
    }
    flight
}

/// Whether the object that was to be changed is not there any more.
fn is_missing(write: &Write, error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let Some(details) = &status.details else { return false };
    status.code == 404
        && !write.key.name.is_empty()
        && details.name == write.key.name
        && details.kind == write.collection.plural
}

/// Whether the namespace is going away, so that nothing can be made in it any more.
fn is_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice());
    status.code == 403
        && causes.unwrap_or_default().iter().any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests;
