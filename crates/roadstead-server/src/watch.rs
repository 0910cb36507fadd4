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
use roadstead_store::feed::Feed;
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use crate::error::ApiError;
use crate::filter::Filter;
use crate::registry::Resource;
use crate::view::View;

/// How often a watcher that asked for bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// What a watcher asked for.
pub struct Watch {
    /// The kind it watches.
    pub resource: Resource,
    /// The form in which it wants objects.
    pub view: View,
    /// Which objects it wants.
    pub filter: Filter,
    /// Whether it wants to know the revision when nothing happens.
    pub bookmarks: bool,
    /// When the server ends the watch.
    pub timeout: Duration,
    /// What is told before the live events.
    pub initial: Option<Initial>,
    /// The place in the history from which live events are told.
    pub feed: Feed,
}

/// The state at the beginning of a watch.
pub struct Initial {
    /// All objects of the kind and namespace that have not been told yet.
    pub entries: vec::IntoIter<Arc<Entry>>,
    /// When all of them were true.
    pub revision: Revision,
    /// Whether a bookmark marks their end.
    pub marked: bool,
}

/// The lines of a watch, one per item; ends at the timeout or after an error.
pub fn lines(watch: Watch) -> impl Stream<Item = Bytes> + Send {
    let now = Instant::now();
    let watcher = Watcher {
        end: now + watch.timeout,
        next_bookmark: now + BOOKMARK_EVERY,
        reached: Revision(0),
        pending: VecDeque::new(),
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
    pending: VecDeque<Bytes>,
    first: bool,
    done: bool,
}

impl Watcher {
    /// Tells the next part of the initial state, or that it was all; false if it was before. Nothing
    /// is encoded before the client has taken what came before: there may be many objects, and many
    /// clients who read slowly.
    fn begin(&mut self) -> bool {
        let Some(initial) = &mut self.watch.initial else { return false };
        let filter = &self.watch.filter;
        let matches = |entry: &Arc<Entry>| filter.matches(&entry.key.path, &entry.value);
        if let Some(entry) = initial.entries.find(matches) {
            self.tell("ADDED", &entry);
            return true;
        }
        let Some(initial) = self.watch.initial.take() else { return false };
        self.reached = initial.revision;
        if initial.marked {
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            let line = self.bookmark(Some(annotations));
            self.pending.push_back(line);
        }
        true
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.pending.pop_front() {
                return Some(line);
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
                    Ok(batch) => {
                        for event in batch.events {
                            self.see(&event);
                        }
                        self.reached = batch.revision;
                    }
                    Err(error) => {
                        let status = ApiError::from(error).to_status();
                        self.pending.push_back(line("ERROR", status.to_string().as_bytes()));
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
                for event in batch.events {
                    self.see(&event);
                }
                self.reached = batch.revision;
            }
            let line = self.bookmark(None);
            self.pending.push_back(line);
            self.next_bookmark = now + BOOKMARK_EVERY;
        }
    }

    /// An object that enters the selection is new to this watcher, one that leaves it is gone.
    fn see(&mut self, event: &Event) {
        let filter = &self.watch.filter;
        if !event.key.path.starts_with(filter.prefix()) {
            return;
        }
        let matches = |entry: &Option<Arc<Entry>>| {
            entry.as_ref().is_some_and(|entry| {
                !filter.looks_inside() || filter.matches(&entry.key.path, &entry.value)
            })
        };
        let kind = match (matches(&event.before), matches(&event.after)) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return,
        };
        // The state of a deleted object is its last one, at the revision of the deletion.
        let entry = if kind == "DELETED" { &event.before } else { &event.after };
        let entry = entry.as_ref().expect("it matched");
        if self.watch.view == View::Object && !self.watch.resource.converts(&entry.value) {
            let lines = event.memo(Lines::new);
            self.pending.push_back(lines.of(kind, event));
            return;
        }
        let (key, value) = (entry.key.clone(), entry.value.clone());
        self.tell(kind, &Entry { key, value, revision: event.revision });
    }

    fn tell(&mut self, kind: &str, entry: &Entry) {
        let view = self.watch.view;
        let first = std::mem::take(&mut self.first);
        let object = view.watched(&self.watch.resource, entry, first, Timestamp::now());
        self.pending.push_back(line(kind, &object));
    }

    fn bookmark(&self, annotations: Option<Value>) -> Bytes {
        let (kind, version) = self.watch.view.type_meta(&*self.watch.resource.kind);
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

/// An event in the usual form, encoded once for all watchers: by far the most common line, made
/// eagerly, and the two that selectors can turn it into, made when needed.
struct Lines {
    usual: (&'static str, Bytes),
}

impl Lines {
    fn new(event: &Event) -> Self {
        let kind = match (&event.before, &event.after) {
            (None, _) => "ADDED",
            (Some(_), Some(_)) => "MODIFIED",
            (Some(_), None) => "DELETED",
        };
        Self { usual: (kind, Self::make(kind, event)) }
    }

    fn of(&self, kind: &'static str, event: &Event) -> Bytes {
        if self.usual.0 == kind { self.usual.1.clone() } else { Self::make(kind, event) }
    }

    fn make(kind: &str, event: &Event) -> Bytes {
        let entry = if kind == "DELETED" { &event.before } else { &event.after };
        let value = &entry.as_ref().expect("an event has the state it tells").value;
        let mut object = BytesMut::with_capacity(value.len() + 40);
        crate::object::splice(&mut object, value, event.revision);
        line(kind, &object)
    }
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(object.len() + 40);
    out.put_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
    out.put_slice(object);
    out.put_slice(b"}\n");
    out.freeze()
}
