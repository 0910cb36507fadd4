//! Watches: the store's feed as a stream of lines.
//!
//! A watcher reads the history of its kind at its own pace. An event in the usual form is encoded
//! by the first watcher that needs it and shared by all others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{self, Stream};
use jiff::Timestamp;
use roadstead_store::entry::{Entry, Event, Revision};
use roadstead_store::feed::{Batch, Feed};
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use crate::error::ApiError;
use crate::reading::filter::Filter;
use crate::reading::view::View;
use crate::registry::Resource;
use crate::transport::rotation::{Flow, TURN};

/// How often a watcher that asked for bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// What an event counts for at least, however small its object.
const LEAST: usize = 200;
/// What is read at once, whatever it takes.
const SMALL: usize = TURN / 4;
/// And how much of what happened since the last look.
const AT_ONCE: usize = 2 * TURN;

/// What a watcher asked for.
pub(crate) struct Watch {
    /// What it wants to see.
    pub(crate) selection: Arc<Selection>,
    /// Whether it wants to know the revision when nothing happens.
    pub(crate) bookmarks: bool,
    /// When the server ends the watch.
    pub(crate) timeout: Duration,
    /// What is told before the live events.
    pub(crate) initial: Option<Initial>,
    /// The place in the history from which live events are told.
    pub(crate) feed: Feed,
    /// The work that it takes.
    pub(crate) flow: Arc<Flow>,
}

/// What a watcher wants to see, and how.
pub(crate) struct Selection {
    pub(crate) resource: Arc<Resource>,
    /// The form of objects.
    pub(crate) view: View,
    /// Which objects.
    pub(crate) filter: Filter,
}

/// The state at the beginning of a watch.
pub(crate) struct Initial {
    /// All objects of the kind and namespace that have not been told yet.
    pub(crate) entries: vec::IntoIter<Arc<Entry>>,
    /// When all of them were true.
    pub(crate) revision: Revision,
    /// Whether a bookmark marks their end.
    pub(crate) marked: bool,
}

/// The lines of a watch, one per item; ends at the timeout or after an error.
pub(crate) fn lines(watch: Watch) -> impl Stream<Item = Bytes> + Send {
    let now = Instant::now();
    let watcher = Watcher {
        end: now + watch.timeout,
        next_bookmark: now + BOOKMARK_EVERY,
        reached: Revision(0),
        pending: VecDeque::new(),
        read: 0,
        first: true,
        done: false,
        watch,
    };
    stream::unfold(watcher, |mut watcher| async {
        let line = watcher.next().await?;
        Some((line, watcher))
    })
}

struct Watcher {
    watch: Watch,
    end: Instant,
    next_bookmark: Instant,
    /// All events up to here have been told.
    reached: Revision,
    pending: VecDeque<Pending>,
    /// How much has been read and told in this turn.
    read: usize,
    first: bool,
    done: bool,
}

/// What is to be told, if it concerns the watcher.
enum Pending {
    /// It does.
    Line(Bytes),
    /// An object was there from the beginning.
    Initial(Arc<Entry>),
    Event(Arc<Event>),
}

impl Watcher {
    /// Goes on with the initial state, or says that it was all; false if it was before. Nothing is
    /// encoded before the client has taken what came before: there may be many objects, and many
    /// clients who read slowly.
    fn begin(&mut self) -> bool {
        let Some(initial) = &mut self.watch.initial else { return false };
        if let Some(entry) = initial.entries.next() {
            self.pending.push_back(Pending::Initial(entry));
            return true;
        }
        let Some(initial) = self.watch.initial.take() else { return false };
        self.reached = initial.revision;
        if initial.marked {
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            let line = self.bookmark(Some(annotations));
            self.pending.push_back(Pending::Line(line));
        }
        true
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(pending) = self.pending.pop_front() {
                match self.tell(pending).await {
                    Some(line) => return Some(line),
                    None => continue,
                }
            }
            if self.done {
                return None;
            }
            if self.begin() {
                continue;
            }
            let bookmark_at = if self.watch.bookmarks { self.next_bookmark } else { self.end };
            tokio::select! {
                batch = self.watch.feed.next() => match batch {
                    Ok(batch) => self.take(batch),
                    Err(error) => {
                        let status = ApiError::from(error).to_status();
                        let line = line("ERROR", status.to_string().as_bytes());
                        self.pending.push_back(Pending::Line(line));
                        self.done = true;
                    }
                },
                () = time::sleep_until(self.end.min(bookmark_at)) => self.quiet(),
            }
        }
    }

    /// Nothing happened for a while: tell where we are, or end.
    fn quiet(&mut self) {
        let now = Instant::now();
        self.done = now >= self.end;
        if self.watch.bookmarks {
            // The feed was empty up to the store's own revision.
            if let Ok(batch) = self.watch.feed.now() {
                self.take(batch);
            }
            let line = self.bookmark(None);
            self.pending.push_back(Pending::Line(line));
            self.next_bookmark = now + BOOKMARK_EVERY;
        }
    }

    /// Takes in what happened: a little of it at once, the rest when its turn comes.
    fn take(&mut self, batch: Batch) {
        self.reached = batch.revision;
        let selection = self.watch.selection.clone();
        let reads = selection.filter.reads() || selection.view != View::Object;
        let mut read = 0;
        for event in batch.events {
            if !event.key.path.starts_with(selection.filter.prefix()) {
                continue;
            }
            read += if reads { size(&event) } else { 0 };
            if read > AT_ONCE {
                self.pending.push_back(Pending::Event(event));
            } else if let Some(line) = selection.happened(&event, self.first) {
                self.first = false;
                self.pending.push_back(Pending::Line(line));
            }
        }
    }

    /// The line about something that happened, if it concerns the watcher.
    async fn tell(&mut self, pending: Pending) -> Option<Bytes> {
        let Watch { selection, flow, .. } = &self.watch;
        let size = match &pending {
            Pending::Line(_) => 0,
            Pending::Initial(entry) => entry.value.len(),
            Pending::Event(event) => size(event),
        };
        self.read += size + LEAST;
        if self.read > TURN {
            self.read = 0;
            flow.turn().await;
        }
        let first = self.first;
        let line = if size > SMALL && selection.is_hard(&pending) {
            let selection = selection.clone();
            flow.work(move || selection.line(&pending, first)).await
        } else {
            selection.line(&pending, first)
        };
        self.first &= line.is_none();
        line
    }

    fn bookmark(&self, annotations: Option<Value>) -> Bytes {
        let Selection { resource, view, .. } = &*self.watch.selection;
        let (kind, version) = view.type_meta(&*resource.kind);
        let mut metadata = json!({"resourceVersion": self.reached.to_string()});
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        let mut object = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        if kind == "Table" {
            let row = json!({"cells": [], "object": {"kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]}});
            object["rows"] = json!([row]);
            object["columnDefinitions"] = json!([]);
        }
        line("BOOKMARK", object.to_string().as_bytes())
    }
}

/// How much there is to read of what happened.
fn size(event: &Event) -> usize {
    let length = |entry: &Option<Arc<Entry>>| entry.as_ref().map_or(0, |entry| entry.value.len());
    length(&event.before) + length(&event.after)
}

impl Selection {
    /// Whether objects have to be read.
    fn is_hard(&self, pending: &Pending) -> bool {
        let entry = match pending {
            Pending::Line(_) => return false,
            Pending::Initial(entry) => Some(entry),
            Pending::Event(event) => event.after.as_ref().or(event.before.as_ref()),
        };
        self.filter.reads() || entry.is_some_and(|entry| self.view.is_hard(&self.resource, entry))
    }

    fn line(&self, pending: &Pending, first: bool) -> Option<Bytes> {
        match pending {
            Pending::Line(line) => Some(line.clone()),
            Pending::Initial(entry) => {
                let matches = self.filter.matches(&entry.key.path, &entry.value);
                matches.then(|| self.shown("ADDED", entry, first))
            }
            Pending::Event(event) => self.happened(event, first),
        }
    }

    /// An object that enters the selection is new to this watcher, one that leaves it is gone.
    fn happened(&self, event: &Event, first: bool) -> Option<Bytes> {
        let filter = &self.filter;
        let matches = |entry: &Option<Arc<Entry>>| {
            entry.as_ref().is_some_and(|entry| {
                !filter.looks_inside() || filter.matches(&entry.key.path, &entry.value)
            })
        };
        let kind = match (matches(&event.before), matches(&event.after)) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        // The state of a deleted object is its last one, at the revision of the deletion.
        let entry = if kind == "DELETED" { &event.before } else { &event.after };
        let entry = entry.as_ref().expect("it matched");
        if self.view == View::Object && !self.resource.converts(&entry.value) {
            return Some(match kind == usual_kind(event) {
                true => event.encoded(encode).clone(),
                false => encode_as(kind, event),
            });
        }
        let (key, value) = (entry.key.clone(), entry.value.clone());
        Some(self.shown(kind, &Entry { key, value, revision: event.revision }, first))
    }

    fn shown(&self, kind: &str, entry: &Entry, first: bool) -> Bytes {
        let object = self.view.watched(&self.resource, entry, first, Timestamp::now());
        line(kind, &object)
    }
}

/// What an event is for a watcher who sees all objects.
fn usual_kind(event: &Event) -> &'static str {
    match (&event.before, &event.after) {
        (None, _) => "ADDED",
        (Some(_), Some(_)) => "MODIFIED",
        (Some(_), None) => "DELETED",
    }
}

/// An event in the usual form: by far the most common line, made once for all watchers.
fn encode(event: &Event) -> Bytes {
    encode_as(usual_kind(event), event)
}

/// An event as one of the others that selectors can turn it into.
fn encode_as(kind: &str, event: &Event) -> Bytes {
    let entry = if kind == "DELETED" { &event.before } else { &event.after };
    let value = &entry.as_ref().expect("an event has the state it tells").value;
    let mut object = BytesMut::with_capacity(value.len() + 40);
    crate::reading::object::splice(&mut object, value, event.revision);
    line(kind, &object)
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(object.len() + 40);
    out.put_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
    out.put_slice(object);
    out.put_slice(b"}\n");
    out.freeze()
}
