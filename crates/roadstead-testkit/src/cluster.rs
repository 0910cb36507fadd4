//! A pretended API server: lists and watches of whatever objects a test puts into it.
//!
//! It runs inside the process, behind a real `kube::Client`. It validates nothing, selects nothing
//! and forgets nothing, which is all that a component needs that only reads.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

/// The objects of a pretended cluster, with their history.
#[derive(Clone, Debug, Default)]
pub struct FakeCluster {
    history: Arc<Mutex<Vec<Event>>>,
    /// How long the history is; everybody who watches waits for it to grow.
    length: Arc<watch::Sender<usize>>,
}

/// What happened, at the revision that is its position in the history plus one.
#[derive(Clone, Debug)]
struct Event {
    path: String,
    kind: &'static str,
    object: Value,
}

impl FakeCluster {
    /// A client for it.
    pub fn client(&self) -> Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let response = cluster.serve(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        Client::new(service, "default")
    }

    /// Creates or changes an object at a list's path, such as `/api/v1/services`; returns the
    /// revision of that.
    pub fn put(&self, path: &str, object: Value) -> u64 {
        let exists = self.current(path).iter().any(|known| same(known, &object));
        self.record(path, if exists { "MODIFIED" } else { "ADDED" }, object)
    }

    /// Deletes an object; returns the revision of that.
    pub fn delete(&self, path: &str, object: Value) -> u64 {
        self.record(path, "DELETED", object)
    }

    fn record(&self, path: &str, kind: &'static str, mut object: Value) -> u64 {
        let mut history = self.history.lock().expect("no test holds on to it");
        let revision = history.len() + 1;
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        object["metadata"]["uid"] = name.into();
        history.push(Event { path: path.to_owned(), kind, object });
        self.length.send_replace(revision);
        u64::try_from(revision).expect("not that many")
    }

    fn current(&self, path: &str) -> Vec<Value> {
        let history = self.history.lock().expect("no test holds on to it");
        let mut objects: Vec<Value> = Vec::new();
        for event in history.iter().filter(|event| event.path == path) {
            objects.retain(|object| !same(object, &event.object));
            if event.kind != "DELETED" {
                objects.push(event.object.clone());
            }
        }
        objects
    }

    fn serve(&self, request: &Request<Body>) -> Response<StreamBody<FrameStream>> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default();
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let body: FrameStream = if parameter("watch").is_some() {
            let since = parameter("resourceVersion").and_then(|text| text.parse().ok());
            if parameter("sendInitialEvents") == Some("true") {
                let (state, since) = self.initial_events(&path);
                Box::pin(stream::iter(state).chain(self.clone().events(path, since)))
            } else {
                Box::pin(self.clone().events(path, since.unwrap_or(0)))
            }
        } else {
            let revision = self.length.borrow().to_string();
            let metadata = json!({"resourceVersion": revision});
            let list = json!({"kind": "List", "metadata": metadata, "items": self.current(&path)});
            Box::pin(stream::iter([frame(&list)]))
        };
        Response::new(StreamBody::new(body))
    }

    /// The present state as a watch tells it, and the revision from which it goes on.
    fn initial_events(&self, path: &str) -> (Vec<FrameResult>, usize) {
        let revision = *self.length.borrow();
        let added = |object| frame(&json!({"type": "ADDED", "object": object}));
        let mut events: Vec<_> = self.current(path).into_iter().map(added).collect();
        let metadata = json!({
            "resourceVersion": revision.to_string(),
            "annotations": {"k8s.io/initial-events-end": "true"},
        });
        let bookmark = json!({"kind": "Bookmark", "apiVersion": "v1", "metadata": metadata});
        events.push(frame(&json!({"type": "BOOKMARK", "object": bookmark})));
        (events, revision)
    }

    fn events(self, path: String, since: usize) -> impl Stream<Item = FrameResult> + Send {
        let receiver = self.length.subscribe();
        stream::unfold(
            (self, path, since, receiver),
            |(cluster, path, at, mut receiver)| async move {
                let mut at = at;
                loop {
                    receiver.wait_for(|length| *length > at).await.ok()?;
                    let event = cluster.history.lock().ok()?.get(at).cloned()?;
                    at += 1;
                    if event.path == path {
                        let line = frame(&json!({"type": event.kind, "object": event.object}));
                        return Some((line, (cluster, path, at, receiver)));
                    }
                }
            },
        )
    }
}

type FrameResult = Result<Frame<Bytes>, Infallible>;
type FrameStream = std::pin::Pin<Box<dyn Stream<Item = FrameResult> + Send>>;

fn frame(value: &Value) -> FrameResult {
    Ok(Frame::data(Bytes::from(format!("{value}\n"))))
}

fn same(left: &Value, right: &Value) -> bool {
    let key = |object: &Value| {
        let field = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
        (field("namespace"), field("name"))
    };
    key(left) == key(right)
}
