//! A few lines of API server: objects by path, merge patches, and a watch on pods.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::broadcast;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The objects, and what was asked.
#[derive(Clone)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
    changes: broadcast::Sender<(String, Value)>,
}

#[derive(Default)]
struct State {
    revision: u64,
    objects: BTreeMap<String, Value>,
    deletions: Vec<(String, Value)>,
}

impl FakeApi {
    pub(crate) fn new() -> Self {
        Self { state: Arc::default(), changes: broadcast::channel(1024).0 }
    }

    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.store(&mut self.state.lock().unwrap(), path, object);
    }

    fn store(&self, state: &mut State, path: &str, mut object: Value) -> Value {
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        let known = state.objects.insert(path.into(), object.clone());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        let _ = self.changes.send((path.into(), json!({"type": kind, "object": object})));
        object
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    /// Merges into an object, as a user would.
    pub(crate) fn patch(&self, path: &str, patch: &Value) -> Option<Value> {
        // Nobody writes in between: what the agent says of a pod is not lost.
        let mut state = self.state.lock().unwrap();
        let mut object = state.objects.get(path).cloned()?;
        merge(&mut object, patch);
        Some(self.store(&mut state, path, object))
    }

    pub(crate) fn delete(&self, path: &str) -> Option<Value> {
        let mut state = self.state.lock().unwrap();
        let object = state.objects.remove(path)?;
        let change = json!({"type": "DELETED", "object": object});
        let _ = self.changes.send((path.into(), change));
        Some(object)
    }

    /// The DELETE requests so far: paths and bodies.
    pub(crate) fn deletions(&self) -> Vec<(String, Value)> {
        self.state.lock().unwrap().deletions.clone()
    }

    /// The reasons of all events, in the order of their creation.
    pub(crate) fn event_reasons(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let events = state.objects.iter().filter(|(path, _)| path.contains("/events/"));
        let mut events: Vec<_> = events.map(|(_, event)| event.clone()).collect();
        let order = |event: &Value| {
            let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            name.rsplit('.').next().map(str::to_owned)
        };
        events.sort_by_key(order);
        events.iter().map(|event| event["reason"].as_str().unwrap_or_default().into()).collect()
    }

    /// Waits for an event whose message contains this.
    pub(crate) async fn until_message(&self, text: &str) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let messages: Vec<_> = {
                let state = self.state.lock().unwrap();
                let events = state.objects.iter().filter(|(path, _)| path.contains("/events/"));
                let messages = events.map(|(_, event)| event["message"].to_string());
                messages.map(|message| message.replace("\\\"", "\"")).collect()
            };
            if messages.iter().any(|message| message.contains(text)) {
                return;
            }
            assert!(Instant::now() < end, "no event {text}: {messages:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The event with this reason and message.
    pub(crate) fn event(&self, reason: &str, message: &str) -> Value {
        let state = self.state.lock().unwrap();
        let mut events = state.objects.iter().filter(|(path, _)| path.contains("/events/"));
        let found =
            events.find(|(_, event)| event["reason"] == reason && event["message"] == message);
        found.map_or(Value::Null, |(_, event)| event.clone())
    }

    /// Remembers what becomes of an object, until it is gone.
    pub(crate) fn follow(&self, path: &str) -> Arc<Mutex<Vec<Value>>> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut changes, kept, path) = (self.changes.subscribe(), seen.clone(), path.to_owned());
        tokio::spawn(async move {
            while let Ok((changed, change)) = changes.recv().await {
                if changed == path && change["type"] == "MODIFIED" {
                    kept.lock().unwrap().push(change["object"].clone());
                }
            }
        });
        seen
    }

    /// Waits until the object satisfies a condition; returns it.
    pub(crate) async fn until(
        &self,
        path: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let object = self.get(path).unwrap_or(Value::Null);
            if holds(&object) {
                return object;
            }
            assert!(Instant::now() < end, "{path} is never {what}: {object:#}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let method = request.method().clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if path == "/api/v1/pods" {
            assert!(query.contains("spec.nodeName"), "{query}");
            return match query.contains("watch=true") {
                // An old server: it must be asked for a list.
                true if query.contains("sendInitialEvents") => {
                    let status = json!({"kind": "Status", "status": "Failure", "code": 422});
                    reply(StatusCode::UNPROCESSABLE_ENTITY, &status)
                }
                true => self.watch(),
                false => self.list(),
            };
        }
        if (path.ends_with("/configmaps") || path.ends_with("/secrets")) && method == Method::GET {
            let name = query.split("metadata.name%3D").nth(1).unwrap_or_default();
            let name = name.split('&').next().unwrap_or_default();
            return match query.contains("watch=true") {
                true if query.contains("sendInitialEvents") => {
                    let status = json!({"kind": "Status", "status": "Failure", "code": 422});
                    reply(StatusCode::UNPROCESSABLE_ENTITY, &status)
                }
                true => self.watch_one(format!("{path}/{name}")),
                false => self.list_below(&format!("{path}/{name}")),
            };
        }
        let lists = ["/services", "/endpointslices", "/leases"];
        if lists.iter().any(|list| path.ends_with(list)) && method == Method::GET {
            return self.list_below(&path);
        }
        let object = path.strip_suffix("/status").unwrap_or(&path).to_owned();
        let found = match method {
            Method::GET => self.get(&object),
            // Only what is applied may be new.
            Method::PATCH if query.contains("fieldManager=") && self.get(&object).is_none() => {
                self.put(&object, body.clone());
                self.get(&object)
            }
            Method::PATCH => self.patch(&object, &body),
            Method::POST if path.ends_with("/token") => Some(json!({
                "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
                "spec": body["spec"],
                "status": {"token": format!("token-for-{}", body["spec"]["boundObjectRef"]["name"]),
                           "expirationTimestamp": "2100-01-01T00:00:00Z"}})),
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("{path}/{name}");
                self.put(&path, body.clone());
                self.get(&path)
            }
            Method::DELETE => {
                self.state.lock().unwrap().deletions.push((object.clone(), body));
                self.delete(&object)
            }
            _ => None,
        };
        match found {
            Some(object) => reply(StatusCode::OK, &object),
            None => reply(
                StatusCode::NOT_FOUND,
                &json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}),
            ),
        }
    }

    fn list(&self) -> Answer {
        let state = self.state.lock().unwrap();
        let pods = state.objects.iter().filter(|(path, _)| path.contains("/pods/"));
        let items: Vec<_> = pods.map(|(_, pod)| pod.clone()).collect();
        let list = json!({"kind": "PodList", "apiVersion": "v1", "items": items,
                          "metadata": {"resourceVersion": state.revision.to_string()}});
        reply(StatusCode::OK, &list)
    }

    fn list_below(&self, path: &str) -> Answer {
        let state = self.state.lock().unwrap();
        let found = state.objects.iter().filter(|(known, _)| known.starts_with(path));
        let items: Vec<_> = found.map(|(_, object)| object.clone()).collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "items": items,
                          "metadata": {"resourceVersion": state.revision.to_string()}});
        reply(StatusCode::OK, &list)
    }

    fn watch(&self) -> Answer {
        self.watch_paths(|path| path.contains("/pods/"))
    }

    fn watch_one(&self, wanted: String) -> Answer {
        self.watch_paths(move |path| path == wanted)
    }

    fn watch_paths(&self, wanted: impl Fn(&str) -> bool + Clone + Send + 'static) -> Answer {
        let changes = stream::unfold(self.changes.subscribe(), move |mut changes| {
            let wanted = wanted.clone();
            async move {
                loop {
                    let (path, change) = changes.recv().await.ok()?;
                    if wanted(&path) {
                        return Some((format!("{change}\n"), changes));
                    }
                }
            }
        });
        let frames = changes.map(|line| Ok(http_body::Frame::data(Bytes::from(line))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

fn reply(code: StatusCode, object: &Value) -> Answer {
    let body = Full::new(Bytes::from(object.to_string()));
    let answer = Response::builder().status(code).header("content-type", "application/json");
    answer.body(body.boxed_unsync()).unwrap()
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(name)),
            _ => merge(&mut target[name.as_str()], value),
        }
    }
}
