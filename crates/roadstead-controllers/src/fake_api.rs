//! An API server for tests: it has some objects, notes what is written, and says yes to it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time;
use tokio_util::sync::CancellationToken;

use crate::Settings;

fn merge(object: &mut Value, patch: Value) {
    match patch {
        Value::Object(patch) if object.is_object() => {
            patch.into_iter().for_each(|(name, value)| merge(&mut object[name], value));
        }
        other => *object = other,
    }
}

/// Objects by the paths of their collections, and what was written.
#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    objects: BTreeMap<&'static str, Vec<Value>>,
    writes: Arc<Mutex<Vec<String>>>,
    bodies: Arc<Mutex<Vec<(String, Value)>>>,
}

impl FakeApi {
    pub(crate) fn with(mut self, path: &'static str, objects: &[Value]) -> Self {
        self.objects.insert(path, objects.to_vec());
        self
    }

    /// Runs a controller for that long, on a clock that does not wait; returns what it wrote, by
    /// method and path. Events are left out.
    pub(crate) async fn run(&self, name: &'static str, seconds: u64) -> String {
        let api = self.clone();
        let service = tower::service_fn(move |request| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        let client = Client::new(service, "default");
        let work = crate::run(vec![name], client, Settings::default(), CancellationToken::new());
        assert!(time::timeout(Duration::from_secs(seconds), work).await.is_err());
        self.writes.lock().unwrap().join("\n")
    }

    /// What was last written to a path that ends so.
    pub(crate) fn told(&self, end: &str) -> Value {
        let bodies = self.bodies.lock().unwrap();
        let last = bodies.iter().rev().find(|(path, _)| path.ends_with(end));
        last.map(|(_, body)| body.clone()).unwrap_or_default()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let query = parts.uri.query().unwrap_or_default().replace("%3D", "=");
        let body = body.collect_bytes().await.unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = match parts.method {
            Method::GET if query.contains("sendInitialEvents=true") => {
                self.first_events(parts.uri.path(), &query)
            }
            Method::GET if query.contains("watch=true") => return std::future::pending().await,
            Method::GET => {
                let items = self.selected(parts.uri.path(), &query);
                json!({"kind": "List", "apiVersion": "v1", "items": items,
                    "metadata": {"resourceVersion": "100"}})
                .to_string()
            }
            method => self.write(&method, parts.uri.path(), body),
        };
        Response::new(Body::from(text.into_bytes()))
    }

    fn selected(&self, path: &str, query: &str) -> Vec<Value> {
        let field = |wanted: &str, pointer: &str, object: &Value| {
            let marker = format!("fieldSelector={wanted}=");
            let value = query.split_once(&marker).map(|(_, rest)| rest.split('&').next());
            let own = object.pointer(pointer).and_then(Value::as_str).unwrap_or("");
            value.flatten().is_none_or(|value| value == own)
        };
        let all = self.objects.get(path).into_iter().flatten();
        let selected = all.filter(|object| {
            field("spec.nodeName", "/spec/nodeName", object)
                && field("status.phase", "/status/phase", object)
        });
        selected.cloned().collect()
    }

    fn first_events(&self, path: &str, query: &str) -> String {
        let objects = self.selected(path, query).into_iter();
        let added = objects.map(|object| json!({"type": "ADDED", "object": object}));
        let end = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "100",
            "annotations": {"k8s.io/initial-events-end": "true"}}}});
        added.chain([end]).map(|event| format!("{event}\n")).collect()
    }

    /// Notes a write, and answers with what was sent as if it were stored.
    fn write(&self, method: &Method, path: &str, mut body: Value) -> String {
        if path.ends_with("/events") {
            return body.to_string();
        }
        let mut writes = self.writes.lock().unwrap();
        let number = writes.len() + 1;
        writes.push(format!("{method} {path}"));
        self.bodies.lock().unwrap().push((path.to_owned(), body.clone()));
        if *method == Method::DELETE || path.ends_with("/binding") {
            return "{}".to_owned();
        }
        if *method == Method::POST {
            if let Some(prefix) = body["metadata"]["generateName"].as_str() {
                body["metadata"]["name"] = format!("{prefix}{number}").into();
            }
            body["metadata"]["uid"] = format!("new-{number}").into();
        }
        if *method == Method::PATCH {
            let mut object = self.find(path);
            merge(&mut object, body);
            body = object;
        }
        body["metadata"]["resourceVersion"] = (100 + number).to_string().into();
        body.to_string()
    }

    fn find(&self, path: &str) -> Value {
        let mut parts = path.trim_end_matches("/status").rsplit('/');
        let (name, plural) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let kinds = self.objects.iter().filter(|(path, _)| path.ends_with(plural));
        let mut objects = kinds.flat_map(|(_, objects)| objects);
        objects.find(|object| object["metadata"]["name"] == name).cloned().unwrap_or_default()
    }
}
