//! What is to be done about a key, and the doing of it.

use std::time::Duration;

use futures::future::BoxFuture;
use kube::Client;
use roadstead_api::key::ObjectKey;
use roadstead_watch::events::{EventDraft, InvolvedObject};
use roadstead_watch::write::{Verb, Write};
use tokio::time::Instant;

/// What is to be done about a key.
pub(crate) struct WritePlan<K = ObjectKey> {
    /// What must be looked up first; it says what else is to be done.
    pub(crate) survey: Option<BoxFuture<'static, Result<Self, kube::Error>>>,
    /// Writes, in this order; the first that fails ends them.
    pub(crate) writes: Vec<Write>,
    /// What to tell once they are done.
    pub(crate) events: Vec<EventDraft>,
    /// Whom to tell if they fail, and how the sentence begins.
    pub(crate) failure: Option<(InvolvedObject, &'static str, String)>,
    /// When to look again even if nothing happens.
    pub(crate) again_after: Option<Duration>,
    /// Other keys to look at, and when.
    pub(crate) wake: Vec<(K, Duration)>,
    /// Why this was not all: the key is tried again as if it had failed.
    pub(crate) incomplete: Option<String>,
}

impl<K> Default for WritePlan<K> {
    fn default() -> Self {
        Self {
            survey: None,
            writes: Vec::new(),
            events: Vec::new(),
            failure: None,
            again_after: None,
            wake: Vec::new(),
            incomplete: None,
        }
    }
}

impl<K> WritePlan<K> {
    /// Nothing to do.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Only these writes.
    pub(crate) fn writes(writes: Vec<Write>) -> Self {
        Self { writes, ..Self::default() }
    }

    /// Takes over what a survey found.
    fn extend(&mut self, found: Self) {
        self.writes.extend(found.writes);
        self.events.extend(found.events);
        self.wake.extend(found.wake);
        self.failure = found.failure.or(self.failure.take());
        self.again_after = found.again_after.or(self.again_after);
        self.incomplete = found.incomplete.or(self.incomplete.take());
    }
}

/// What came of the writes of a plan.
pub(super) struct Flight {
    pub(super) began: Instant,
    pub(super) answers: Vec<(Write, String)>,
    pub(super) error: Option<kube::Error>,
    /// The write that failed, if that was because its object is gone.
    pub(super) in_vain: Option<Write>,
}

impl Flight {
    pub(super) fn new(began: Instant) -> Self {
        Self { began, answers: Vec::new(), error: None, in_vain: None }
    }
}

/// Looks up what has to be, then writes.
pub(super) async fn fly<K>(
    client: Client,
    mut plan: WritePlan<K>,
    began: Instant,
) -> (WritePlan<K>, Flight) {
    let mut flight = Flight::new(began);
    if let Some(survey) = plan.survey.take() {
        match survey.await {
            Ok(found) => plan.extend(found),
            Err(error) => {
                flight.error = Some(error);
                return (plan, flight);
            }
        }
    }
    let writes = std::mem::take(&mut plan.writes);
    carry_out(&client, writes, &mut flight).await;
    (plan, flight)
}

async fn carry_out(client: &Client, writes: Vec<Write>, flight: &mut Flight) {
    for write in writes {
        match write.send(client).await {
            Ok(answer) => flight.answers.push((write, answer)),
            // It is gone already, or another one has its name.
            Err(error) if write.verb == Verb::Delete && crate::is_gone(&error) => {
                flight.answers.push((write, String::new()));
            }
            Err(error) if write.verb == Verb::Create && is_terminating(&error) => {}
            Err(error) if write.only_if_unchanged && crate::is_gone(&error) => {}
            Err(error) => {
                flight.in_vain = Some(write).filter(|write| is_missing(write, &error));
                flight.error = Some(error);
                break;
            }
        }
    }
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
