//! Telling users what happened to an object, where they look for it: `kubectl describe`.
//!
//! Events are best effort: they are written one after the other in the background, and losing one
//! harms nobody. One that repeats is counted rather than written again.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::{Metadata, Resource};
use kube::Client;
use roadstead_api::key::ObjectKey;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::debug;

use crate::write::{Collection, Write};

/// More events than this may wait to be written; the rest is dropped.
const MOST_WAITING: usize = 1024;
/// That many events are remembered, to count repeats.
const MOST_REMEMBERED: usize = 512;
const EVENTS: Collection = Collection::of::<Event>();

/// Whether an event is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// As planned.
    Normal,
    /// Somebody should look.
    Warning,
}

/// The object that an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InvolvedObject {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace, or "".
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The part of it that is meant, or "".
    pub field: String,
}

impl InvolvedObject {
    /// An object as a whole.
    pub fn of<K: Resource + Metadata<Ty = ObjectMeta>>(object: &K) -> Self {
        let metadata = object.metadata();
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            api_version: K::API_VERSION.to_owned(),
            kind: K::KIND.to_owned(),
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
            uid: text(&metadata.uid),
            field: String::new(),
        }
    }
}

/// What there is to tell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventDraft {
    /// About which object.
    pub about: InvolvedObject,
    /// Good news or not.
    pub severity: Severity,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// Takes events; cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    send: mpsc::Sender<EventDraft>,
}

impl Recorder {
    /// A recorder in the name of a component on a host (which may be ""), and the writer that
    /// somebody must run.
    pub fn new(
        client: Client,
        component: impl Into<String>,
        host: impl Into<String>,
    ) -> (Self, Writer) {
        let (send, receive) = mpsc::channel(MOST_WAITING);
        let (component, host) = (component.into(), host.into());
        (Self { send }, Writer { client, component, host, receive, seen: HashMap::new() })
    }

    /// Tells something, unless too much waits already.
    pub fn record(&self, draft: EventDraft) {
        let EventDraft { about, reason, message, .. } = &draft;
        debug!(kind = about.kind, name = about.name, reason, message, "event");
        let _ = self.send.try_send(draft);
    }
}

/// Tells one thing and waits until it is written.
pub async fn record_once(client: Client, component: &str, draft: EventDraft) {
    let (recorder, writer) = Recorder::new(client, component, "");
    recorder.record(draft);
    drop(recorder);
    writer.run().await;
}

/// Writes what its recorder takes.
pub struct Writer {
    client: Client,
    component: String,
    host: String,
    receive: mpsc::Receiver<EventDraft>,
    /// The name and the count of what has been written.
    seen: HashMap<EventDraft, (String, i32)>,
}

impl Writer {
    /// Writes events until the last recorder is gone.
    pub async fn run(mut self) {
        while let Some(draft) = self.receive.recv().await {
            self.write(draft, Timestamp::now()).await;
        }
    }

    async fn write(&mut self, draft: EventDraft, now: Timestamp) {
        let namespace = match draft.about.namespace.as_str() {
            "" => "default".to_owned(),
            own => own.to_owned(),
        };
        if let Some((name, count)) = self.seen.get_mut(&draft) {
            let patch = json!({"count": *count + 1, "lastTimestamp": Time(now)});
            let key = ObjectKey::new(&namespace, name.as_str());
            if Write::merge(EVENTS, key, &patch).send(&self.client).await.is_ok() {
                *count += 1;
                return;
            }
        }
        let name = format!("{}.{:x}", draft.about.name, now.as_nanosecond());
        let event = self.event(&draft, &name, &namespace, now);
        match Write::create_value(EVENTS, &namespace, &event).send(&self.client).await {
            Ok(_) => {
                if self.seen.len() >= MOST_REMEMBERED {
                    self.seen.clear();
                }
                self.seen.insert(draft, (name, 1));
            }
            Err(error) => debug!(%error, reason = draft.reason, "event lost"),
        }
    }

    fn event(&self, told: &EventDraft, name: &str, namespace: &str, now: Timestamp) -> Value {
        let about = &told.about;
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": some(&about.namespace),
                "name": about.name,
                "uid": some(&about.uid),
                "fieldPath": some(&about.field),
            },
            "reason": told.reason,
            "message": told.message,
            "type": format!("{:?}", told.severity),
            "count": 1,
            "firstTimestamp": Time(now),
            "lastTimestamp": Time(now),
            "source": {"component": self.component, "host": some(&self.host)},
            "reportingComponent": self.component,
            "reportingInstance": some(&self.host),
        })
    }
}
