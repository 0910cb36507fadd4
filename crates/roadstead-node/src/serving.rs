//! What the kubelet serves, for `kubectl logs`, `exec` and `port-forward`.
//!
//! Whoever is at the other end of a stream in memory is trusted: it is the API server in our own process.
//! Others come to a port of their own ([`secure`]), and are asked who they are.

mod access;
mod exec;
mod known_pods;
mod log_changes;
mod log_reader;
mod logs;
mod own_metrics;
mod port_forward;
mod query;
pub mod secure;
mod stats;
mod upgrade;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::core::v1::Pod;
use roadstead_api::key::ObjectKey;
use roadstead_pod::logs::log_container;
use roadstead_pod::pod_name::PodName;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::access::Gatekeeper;
pub use self::known_pods::KnownPods;
use self::query::Query;
use crate::measure::Measurements;
use crate::probe_counts::ProbeCounts;
use crate::runtime::ContainerRuntime;

/// A client that was told the end goes within this time, and one that goes hears so.
const GONE: Duration = Duration::from_secs(5);
/// Who asks says what within this time.
const HEAD: Duration = Duration::from_secs(30);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers questions about the pods of this node.
#[derive(Clone)]
pub struct PodServer {
    pods: KnownPods,
    containers: Arc<dyn ContainerRuntime>,
    node: String,
    measurements: Option<Measurements>,
    probes: ProbeCounts,
    /// How many more connections to ports are carried, for all clients.
    forwards: Arc<Semaphore>,
}

/// What is said, and what is done with the connection when it is no HTTP any more.
struct Answer {
    response: Response<Body>,
    then: Option<BoxFuture<'static, ()>>,
}

impl From<Response<Body>> for Answer {
    fn from(response: Response<Body>) -> Self {
        Self { response, then: None }
    }
}

/// Who is at the other end.
enum Caller {
    /// It has asked whoever is behind it.
    Trusted,
    /// Perhaps with a certificate that we believe.
    Stranger(Box<(Gatekeeper, Option<UserInfo>)>),
}

/// An answer that is an error, in plain text.
#[derive(Debug)]
struct Refusal(StatusCode, String);

/// Which container of which pod.
struct Target {
    pod: Arc<Pod>,
    container: String,
}

/// Serves the streams that come, until `stop`.
pub(crate) async fn run(
    server: PodServer,
    mut incoming: mpsc::Receiver<DuplexStream>,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return connections.shutdown().await,
            stream = incoming.recv() => match stream {
                Some(stream) => drop(connections.spawn(server.clone().serve(stream))),
                // Nobody will ask any more.
                None => return stop.cancelled().await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

impl Caller {
    async fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        match self {
            Self::Trusted => Ok(()),
            Self::Stranger(stranger) => {
                let (gatekeeper, user) = &**stranger;
                let asked = (request.method(), request.uri().path(), request.headers());
                gatekeeper.admit(user.as_ref(), asked).await
            }
        }
    }
}

impl PodServer {
    /// Answers for these pods, run by this runtime.
    pub fn new(pods: KnownPods, containers: Arc<dyn ContainerRuntime>) -> Self {
        let (node, probes) = (String::new(), ProbeCounts::default());
        let forwards = Arc::new(Semaphore::new(port_forward::MOST_CONNECTIONS));
        Self { pods, containers, node, measurements: None, probes, forwards }
    }

    /// Shows what was measured of the node of this name, and how its probes went.
    pub(crate) fn showing(
        self,
        node: &str,
        measurements: Measurements,
        probes: ProbeCounts,
    ) -> Self {
        let (node, measurements) = (node.to_owned(), Some(measurements));
        Self { node, measurements, probes, ..self }
    }

    /// Serves HTTP/1.1 to somebody who is trusted, until one of us ends the connection.
    pub async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        self.serve_to(stream, Caller::Trusted).await;
    }

    async fn serve_to(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        caller: Caller,
    ) {
        // Done in this task: whoever ends it ends all.
        let then = Mutex::new(None);
        let service = service_fn(async |request| {
            let answer = match caller.check(&request).await {
                Ok(()) => self.answer(request).await,
                Err(refusal) => refusal.response().into(),
            };
            *then.lock().unwrap_or_else(PoisonError::into_inner) = answer.then;
            Ok::<_, Infallible>(answer.response)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service);
        // If it breaks, the other end knows as well.
        let _ = connection.with_upgrades().await;
        let then = then.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(then) = then {
            then.await;
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let parts: Vec<_> = path.split('/').skip(1).collect();
        let query = Query::of(request.uri());
        let result = match (request.method(), &parts[..]) {
            (&Method::GET, ["containerLogs", namespace, pod, container]) => {
                match self.target(namespace, pod, container) {
                    Ok(target) => self.logs(&target, &query).await.map(Answer::from),
                    Err(refusal) => Err(refusal),
                }
            }
            (&Method::GET | &Method::POST, ["exec", namespace, pod, container]) => self
                .target(namespace, pod, container)
                .and_then(|target| self.exec(&target, &query, request)),
            (&Method::GET | &Method::POST, ["portForward", namespace, pod]) => {
                self.pod(namespace, pod).and_then(|pod| self.port_forward(&pod, &query, request))
            }
            (&Method::GET, ["healthz"]) => Ok(text(Full::from("ok").boxed_unsync()).into()),
            (&Method::GET, ["pods"]) => Ok(Answer::from(self.listed())),
            (&Method::GET, ["debug", "state"]) => {
                Ok(Answer::from(stats::respond(stats::JSON, format!("{:#}\n", self.state()))))
            }
            (&Method::GET, ["metrics"] | ["stats" | "metrics", _]) => {
                self.stats(&parts).map(Answer::from)
            }
            (&Method::GET | &Method::POST, ["attach", namespace, pod, container]) => {
                match self.target(namespace, pod, container) {
                    Ok(target) => self.attach(&target, &query, request).await,
                    Err(refusal) => Err(refusal),
                }
            }
            _ => Err(Refusal(StatusCode::NOT_FOUND, "404 page not found".to_owned())),
        };
        result.unwrap_or_else(|refusal| refusal.response().into())
    }

    /// All pods of this node.
    fn listed(&self) -> Response<Body> {
        let pods: Vec<_> = self.pods.all().iter().map(|pod| json!(**pod)).collect();
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods});
        stats::respond(stats::JSON, list.to_string())
    }

    /// What the agent has to do with at this moment, in short.
    pub(crate) fn state(&self) -> Value {
        let pods = self.pods.all();
        let line = |pod: &Arc<Pod>| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let name = PodName::of(pod);
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let logs = containers.filter_map(|container| {
                let log = self.containers.log(&name, &container.name)?;
                Some((container.name.clone(), json!({"run": log.id, "log": log.path})))
            });
            let containers: serde_json::Map<_, _> = logs.collect();
            json!({"pod": name, "phase": phase, "containers": containers})
        };
        json!({"node": self.node, "pods": pods.iter().map(line).collect::<Vec<_>>()})
    }

    fn pod(&self, namespace: &str, name: &str) -> Result<Arc<Pod>, Refusal> {
        let found = self.pods.get(&ObjectKey::new(namespace, name));
        found.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, "pod not found".to_owned()))
    }

    fn target(&self, namespace: &str, pod: &str, container: &str) -> Result<Target, Refusal> {
        let pod = self.pod(namespace, pod)?;
        let container = log_container(&pod, Some(container)).map_err(Refusal::bad)?;
        Ok(Target { pod, container })
    }
}

impl Refusal {
    fn bad(message: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, message.into())
    }

    fn response(self) -> Response<Body> {
        let body = Full::new(Bytes::from(self.1)).boxed_unsync();
        let mut response = text(body);
        *response.status_mut() = self.0;
        response
    }
}

fn text(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let plain = hyper::header::HeaderValue::from_static("text/plain");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, plain);
    response
}
