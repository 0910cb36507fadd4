//! List-and-watch of one kind, before anybody looks into the objects.
//!
//! The first state comes as a stream (`sendInitialEvents`), so that no list is ever held in
//! memory; a server that does not know it gets a paged list instead. A watch that ends is resumed
//! where it was; one that fell too far behind starts anew. All of it is independent of the kind,
//! so that it is compiled once.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Client;
use kube::client::Body;
use kube::core::params::{ListParams, WatchParams};
use kube::core::request::Request;
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::{debug, warn};

/// How many objects a page of a list has, for servers that cannot stream one.
const PAGE: u32 = 500;

/// How long a server is asked to keep a watch open, and how much longer we believe it is alive.
const WATCH_SECONDS: u32 = 290;
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 30);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// What the server said about one object, as bytes of JSON.
#[derive(Debug)]
pub(crate) enum RawEvent {
    /// The state is told from the beginning.
    Start,
    /// The object exists, in this state.
    Object(Box<RawValue>),
    /// The object was deleted; this was its last state.
    Deleted(Box<RawValue>),
    /// All that existed at the start has been told: this is the state as of this version.
    Complete(String),
}

/// Which objects of a kind are followed: all, or those that labels and fields select.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    labels: Option<String>,
    fields: Option<String>,
}

impl Selection {
    /// All objects of the kind.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only objects that match this label selector too.
    pub fn labels(mut self, selector: &str) -> Self {
        self.labels = Some(selector.to_owned());
        self
    }

    /// Only objects that match this field selector too.
    pub fn fields(mut self, selector: &str) -> Self {
        self.fields = Some(selector.to_owned());
        self
    }
}

/// One kind, followed.
pub(crate) struct Watcher {
    client: Client,
    requests: Request,
    selection: Selection,
    phase: Phase,
    /// The version up to which everything has been told.
    version: String,
    /// Whether the server streams initial states.
    streams: bool,
    pause: Duration,
}

/// Where the machine is. In good order it goes `Start` → `Watch (initial)` → `Watch`, or on servers
/// that cannot stream `Start` → `Page` … `Page` → `Resume` → `Watch`. What goes wrong leads back to
/// `Start` as long as the first state is not complete, and to `Resume` after that; what is too old
/// to be resumed leads to `Start`, too (see [`Watcher::ended`]).
enum Phase {
    /// Nothing is known, or nothing can be continued. The next step asks for the first state, as a
    /// stream (→ `Watch`) or, if the server has refused that before, as a list (→ `Page`).
    Start,
    /// A page of a list is being told, object by object. At its end comes the next one, if there is
    /// a token for it (→ `Page`); else the state is complete (→ `Resume`).
    Page { token: Option<String>, items: std::vec::IntoIter<Box<RawValue>> },
    /// Everything up to `version` has been told, and no watch is open. The next step opens one from
    /// there on (→ `Watch`).
    Resume,
    /// A watch is open. While `initial`, its events are the first state, and the bookmark that marks
    /// their end makes them changes; it stays open until the server ends it or is silent for too
    /// long.
    Watch { lines: Lines, initial: bool },
}

/// Why a watch or list came to an end.
enum End {
    /// The server closed it in order.
    Closed,
    /// What we know is too old to be continued.
    TooOld(String),
    /// The server does not do what was asked.
    Refused(Box<Status>),
    /// The connection or the server failed.
    Broken(String),
}

impl Watcher {
    pub(crate) fn new(client: Client, path: &str, selection: Selection) -> Self {
        Self {
            client,
            requests: Request::new(path),
            selection,
            phase: Phase::Start,
            version: String::new(),
            streams: true,
            pause: FIRST_PAUSE,
        }
    }

    /// Waits for the next thing the server says, reconnecting as often as it takes.
    pub(crate) async fn next(&mut self) -> RawEvent {
        loop {
            match self.step().await {
                Ok(Some(said)) => return said,
                Ok(None) => {}
                Err(end) => self.ended(end).await,
            }
        }
    }

    /// Tells which version the object had that was said last: a watch is resumed from there.
    pub(crate) fn reached(&mut self, version: String) {
        if matches!(self.phase, Phase::Watch { initial: false, .. }) {
            self.version = version;
        }
        self.pause = FIRST_PAUSE;
    }

    async fn step(&mut self) -> Result<Option<RawEvent>, End> {
        match &mut self.phase {
            Phase::Start if self.streams => {
                let lines = self.watch(true).await?;
                self.phase = Phase::Watch { lines, initial: true };
                Ok(Some(RawEvent::Start))
            }
            Phase::Start => {
                self.phase = Phase::Page { token: None, items: Vec::new().into_iter() };
                self.turn_page().await?;
                Ok(Some(RawEvent::Start))
            }
            Phase::Page { items, token } => match (items.next(), token.is_some()) {
                (Some(item), _) => Ok(Some(RawEvent::Object(item))),
                (None, true) => self.turn_page().await.map(|()| None),
                (None, false) => {
                    self.phase = Phase::Resume;
                    Ok(Some(RawEvent::Complete(self.version.clone())))
                }
            },
            Phase::Resume => {
                let lines = self.watch(false).await?;
                self.phase = Phase::Watch { lines, initial: false };
                Ok(None)
            }
            Phase::Watch { lines, .. } => {
                let line = lines.next().await?;
                self.hear(&line)
            }
        }
    }

    /// Reads one line of a watch.
    fn hear(&mut self, line: &[u8]) -> Result<Option<RawEvent>, End> {
        let event: Line = serde_json::from_slice(line)
            .map_err(|error| End::Broken(format!("a line that is no event: {error}")))?;
        match event.kind {
            "ADDED" | "MODIFIED" => Ok(Some(RawEvent::Object(event.object.to_owned()))),
            "DELETED" => Ok(Some(RawEvent::Deleted(event.object.to_owned()))),
            "BOOKMARK" => Ok(self.bookmark(event.object)),
            "ERROR" => Err(refusal(serde_json::from_str(event.object.get()).unwrap_or_default())),
            other => Err(End::Broken(format!("unknown event type {other:?}"))),
        }
    }

    fn bookmark(&mut self, object: &RawValue) -> Option<RawEvent> {
        let Ok(Marked { metadata }) = serde_json::from_str(object.get()) else { return None };
        self.version = metadata.resource_version;
        self.pause = FIRST_PAUSE;
        let Phase::Watch { initial, .. } = &mut self.phase else { return None };
        let complete = *initial && metadata.annotations.initial_events_end.is_some();
        *initial &= !complete;
        complete.then(|| RawEvent::Complete(self.version.clone()))
    }

    async fn watch(&mut self, initial: bool) -> Result<Lines, End> {
        let parameters = WatchParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: initial,
        };
        let version = if initial { "" } else { &self.version };
        let request = self.requests.watch(&parameters, version).map_err(broken)?;
        self.send(request).await.map(Lines::new)
    }

    async fn turn_page(&mut self) -> Result<(), End> {
        let Phase::Page { token, .. } = &self.phase else { return Ok(()) };
        let parameters = ListParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            limit: Some(PAGE),
            continue_token: token.clone(),
            ..ListParams::default()
        };
        let request = self.requests.list(&parameters).map_err(broken)?;
        let body = self.send(request).await?.collect().await.map_err(broken)?.to_bytes();
        let page: Page = serde_json::from_slice(&body).map_err(broken)?;
        self.version = page.metadata.resource_version;
        let token = page.metadata.token.filter(|token| !token.is_empty());
        self.phase = Phase::Page { token, items: page.items.into_iter() };
        Ok(())
    }

    async fn send(&mut self, request: http::Request<Vec<u8>>) -> Result<Body, End> {
        let response = self.client.send(request.map(Body::from)).await.map_err(broken)?;
        let code = response.status();
        if code.is_success() {
            return Ok(response.into_body());
        }
        let body = response.into_body().collect().await.map_err(broken)?.to_bytes();
        let status = serde_json::from_slice(&body).unwrap_or_else(|_| Status {
            code: Some(code.as_u16().into()),
            message: Some(String::from_utf8_lossy(&body).into_owned()),
            ..Status::default()
        });
        Err(refusal(status))
    }

    /// Decides where to go on after something came to an end.
    async fn ended(&mut self, end: End) {
        let initial = match &self.phase {
            Phase::Watch { initial, .. } => *initial,
            Phase::Start | Phase::Page { .. } => true,
            Phase::Resume => false,
        };
        let again = if initial { Phase::Start } else { Phase::Resume };
        let before = std::mem::replace(&mut self.phase, again);
        match end {
            // A watch that was alive is resumed without a pause.
            End::Closed if matches!(before, Phase::Watch { initial: false, .. }) => {
                debug!("watch ended, resuming");
            }
            End::Closed => debug!("watch ended before the state was complete"),
            End::TooOld(reason) => {
                debug!(%reason, "watch cannot be resumed, starting anew");
                self.phase = Phase::Start;
                return;
            }
            End::Refused(status) if initial && self.streams && cannot_stream(&status) => {
                debug!(message = ?status.message, "no streamed lists here, listing in pages");
                self.streams = false;
                return;
            }
            End::Refused(status) => {
                warn!(message = status.message.as_deref().unwrap_or("?"), "watch refused");
            }
            End::Broken(reason) => warn!(%reason, "watch broken, will reconnect"),
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

fn broken(error: impl Display) -> End {
    End::Broken(error.to_string())
}

fn refusal(status: Status) -> End {
    match status.code {
        Some(410) => End::TooOld(status.message.unwrap_or_default()),
        _ => End::Refused(Box::new(status)),
    }
}

/// Servers without streamed lists call the request invalid; those whose storage is too old for
/// them, their own failure. Other refusals have nothing to do with how we ask.
fn cannot_stream(status: &Status) -> bool {
    matches!(status.code, Some(400 | 422 | 500 | 501))
}

/// The lines of a body, each without its newline.
struct Lines<B = Body> {
    body: B,
    /// What has arrived and not been taken, and how much of it has no newline.
    arrived: Vec<Bytes>,
    rest: Bytes,
}

impl<B> Lines<B>
where
    B: http_body::Body<Data = Bytes, Error: Display> + Unpin,
{
    fn new(body: B) -> Self {
        Self { body, arrived: Vec::new(), rest: Bytes::new() }
    }

    async fn next(&mut self) -> Result<Bytes, End> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let tail = self.rest.split_to(end + 1).slice(..end);
                return Ok(self.joined(tail));
            }
            if !self.rest.is_empty() {
                self.arrived.push(std::mem::take(&mut self.rest));
            }
            self.rest = self.frame().await?;
        }
    }

    /// A line that came in one piece is not copied.
    fn joined(&mut self, tail: Bytes) -> Bytes {
        if self.arrived.is_empty() {
            return tail;
        }
        let mut line = self.arrived.concat();
        self.arrived.clear();
        line.extend_from_slice(&tail);
        line.into()
    }

    async fn frame(&mut self) -> Result<Bytes, End> {
        let frame = tokio::time::timeout(SILENCE, self.body.frame());
        match frame.await {
            Err(_) => Err(End::Broken("the server has been silent for too long".into())),
            Ok(None) => Err(End::Closed),
            Ok(Some(Err(error))) => Err(broken(error)),
            Ok(Some(Ok(frame))) => Ok(frame.into_data().unwrap_or_default()),
        }
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Marked {
    metadata: Mark,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    resource_version: String,
    #[serde(default)]
    annotations: MarkAnnotations,
}

#[derive(Default, Deserialize)]
struct MarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    #[serde(default)]
    items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    token: Option<String>,
}

#[cfg(test)]
mod tests;
