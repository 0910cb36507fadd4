//! `services/NAME/proxy` and `pods/NAME/proxy`: HTTP requests that the API server hands on to a pod,
//! bodies as they come, and connections that are upgraded (to WebSocket, say) in both directions.
//! Which pod it is, `backend` finds out. Addresses that are no pod's are refused (`reach`). Who asks for
//! HTTPS has it (`tls`).

use std::time::Duration;

use futures::{StreamExt, future};
use http::header::{
    AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, Empty, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::{io, time};
use tracing::debug;

use crate::error::ApiError;
use crate::kinds::Answer;
use crate::registry::Resource;
use crate::request::chain::ActiveRequest;
use crate::transport::connections::SenderConnection;
use crate::transport::receive::RequestBody;
use crate::transport::response::{Body, respond};

mod backend;
mod reach;
mod tls;

use backend::Backends;
pub(super) use backend::ProxyName;

/// How long a pod may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// And how long until it begins to answer.
const HEAD: Duration = Duration::from_secs(60);

/// Headers that are about one connection only, or about the API server.
const OURS: [HeaderName; 5] = [AUTHORIZATION, CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE];

/// What can be done through a proxy.
pub(super) const VERBS: &[&str] = &["create", "delete", "get", "patch", "update"];

/// Hands a request on to a pod.
pub(super) fn pod<'a>(
    request: &'a ActiveRequest,
    pods: &'a Resource,
    body: RequestBody,
) -> Answer<'a> {
    Box::pin(answer(request, pods, body, |backends, wanted| backends.pod(wanted)))
}

/// Hands a request on to one of the pods behind a Service.
pub(super) fn service<'a>(
    request: &'a ActiveRequest,
    services: &'a Resource,
    body: RequestBody,
) -> Answer<'a> {
    Box::pin(answer(request, services, body, |backends, wanted| backends.service(wanted)))
}

/// Finds the address and port of a pod.
type Locate = fn(&Backends<'_>, &ProxyName<'_>) -> Result<String, ApiError>;

/// Hands a request on, and the answer back.
async fn answer(
    request: &ActiveRequest,
    resource: &Resource,
    body: RequestBody,
    locate: Locate,
) -> Result<Response<Body>, ApiError> {
    let ActiveRequest { api, info, parts, .. } = request;
    let path = info.resource();
    let Some(wanted) = ProxyName::parse(&path.name) else {
        return Err(ApiError::bad_request(format!(
            "invalid {} request {:?}",
            path.plural, path.name
        )));
    };
    let upgrade = parts.extensions.get::<OnUpgrade>().cloned();
    let upgrade = upgrade.filter(|_| parts.headers.contains_key(UPGRADE));
    if parts.headers.contains_key(UPGRADE) && upgrade.is_none() {
        let message = "connections of HTTP/2 are not upgraded";
        return Err(ApiError::not_implemented(message));
    }
    let (storage, network) = (&api.storage, &api.network);
    let backends = Backends { storage, network, resource, namespace: &path.namespace };
    let address = locate(&backends, &wanted)?;
    if path.rest.is_empty() {
        // So that relative links in the answer lead to the same place.
        return Ok(redirect(&format!("{}/", parts.uri.path()), parts.uri.query()));
    }
    let onward = Onward {
        parts,
        path: &path.rest,
        prefix: parts.uri.path().strip_suffix(&*path.rest).unwrap_or(""),
        address: &address,
    };
    let onward_request = onward.request(body, upgrade.is_some())?;
    let mut response = onward.send(onward_request, wanted.scheme == "https").await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = upgrade else {
            return Err(unreachable_pod(&"it switches protocols, and was not asked to"));
        };
        return Ok(relayed(request, client, &mut response));
    }
    Ok(onward.back(response))
}

/// The answer to a client whose connection was upgraded, as the other side has said; bytes go both ways
/// from then on.
pub(super) fn relayed(
    request: &ActiveRequest,
    client: OnUpgrade,
    response: &mut Response<Incoming>,
) -> Response<Body> {
    let connection = request.parts.extensions.get::<SenderConnection>().cloned();
    tokio::spawn(relay(client, hyper::upgrade::on(&mut *response), connection));
    let mut answer = Response::new(Empty::new().boxed_unsync());
    *answer.status_mut() = response.status();
    *answer.headers_mut() = std::mem::take(response.headers_mut());
    answer
}

/// Sends a request to the agent of a node.
pub(super) async fn send_to_agent(
    request: &ActiveRequest,
    node: &str,
    onward: Request<RequestBody>,
) -> Result<Response<Incoming>, ApiError> {
    let failed = |error: &dyn std::fmt::Display| {
        ApiError::internal(format!("error dialing backend: the agent of node {node:?}: {error}"))
    };
    let stream = request.api.agent(node).await.map_err(|error| failed(&error))?;
    let connection = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = connection.map_err(|error| failed(&error))?;
    // It ends with the answer, or with whoever waits for it.
    tokio::spawn(connection.with_upgrades());
    sender.send_request(onward).await.map_err(|error| failed(&error))
}

/// A body as it comes. One that breaks off ends early, as it would without us.
pub(super) fn as_it_comes(body: Incoming) -> Body {
    let frames = BodyStream::new(body).take_while(|frame| future::ready(frame.is_ok()));
    let frames = frames.filter_map(|frame| future::ready(frame.ok().map(Ok)));
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

/// Carries bytes both ways between a client and a pod until one of them ends, or the client has to
/// make room for others.
async fn relay(client: OnUpgrade, pod: OnUpgrade, connection: Option<SenderConnection>) {
    let carried = async {
        let (client, pod) = future::try_join(client, pod).await.map_err(io::Error::other)?;
        io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(pod)).await
    };
    let dismissed = async {
        match &connection {
            Some(SenderConnection(connection)) => connection.dismissed().await,
            None => future::pending().await,
        }
    };
    tokio::select! {
        ended = carried => if let Err(error) = ended {
            debug!(%error, "a relayed connection ended");
        },
        () = dismissed => debug!("a relayed connection made room"),
    }
}

fn unreachable_pod(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::unavailable(format!("error trying to reach service: {error}"))
}

pub(super) fn redirect(path: &str, query: Option<&str>) -> Response<Body> {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = respond(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(location) = HeaderValue::from_str(&format!("{path}{query}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// A request on its way to a pod.
pub(super) struct Onward<'a> {
    pub(super) parts: &'a Parts,
    /// The path that the pod sees, with its slash.
    pub(super) path: &'a str,
    /// Our own path before it.
    pub(super) prefix: &'a str,
    /// Of the pod, with the port.
    pub(super) address: &'a str,
}

impl Onward<'_> {
    /// The request as the pod sees it.
    pub(super) fn request(
        &self,
        body: RequestBody,
        upgrade: bool,
    ) -> Result<Request<RequestBody>, ApiError> {
        let Self { parts, path, prefix, address } = self;
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut request = Request::builder().method(&parts.method).uri(format!("{path}{query}"));
        let host = parts.headers.get(HOST).cloned();
        if let Some(headers) = request.headers_mut() {
            let own = |name: &HeaderName| OURS.contains(name);
            let theirs = parts.headers.iter().filter(|(name, _)| !own(name));
            headers.extend(theirs.map(|(name, value)| (name.clone(), value.clone())));
            set(headers, HOST, address);
            set(headers, HeaderName::from_static("x-forwarded-proto"), "https");
            set(headers, HeaderName::from_static("x-forwarded-uri"), &format!("{prefix}{path}"));
            host.map(|host| headers.insert(HeaderName::from_static("x-forwarded-host"), host));
            if upgrade {
                let protocols = parts.headers.get_all(UPGRADE).iter();
                headers.extend(protocols.map(|protocol| (UPGRADE, protocol.clone())));
                set(headers, CONNECTION, "Upgrade");
            }
        }
        let request = request.body(body);
        request.map_err(|error| ApiError::bad_request(format!("this cannot be handed on: {error}")))
    }

    /// Sends it, encrypted or plain, and waits for the head of the answer.
    async fn send(
        &self,
        request: Request<RequestBody>,
        encrypted: bool,
    ) -> Result<Response<Incoming>, ApiError> {
        let (address, failed) = (self.address, unreachable_pod);
        let stream = time::timeout(CONNECT, TcpStream::connect(address)).await;
        let stream = stream.map_err(|_| failed(&format!("dial tcp {address}: i/o timeout")))?;
        let stream = stream.map_err(|error| failed(&format!("dial tcp {address}: {error}")))?;
        if !encrypted {
            return exchange(stream, request).await;
        }
        let stream = time::timeout(CONNECT, tls::encrypted(stream)).await;
        let stream = stream.map_err(|_| failed(&"net/http: TLS handshake timeout"))?;
        exchange(stream.map_err(|error| failed(&error))?, request).await
    }

    /// The answer as the client sees it: what the pod calls `/x` is below our path.
    pub(super) fn back(&self, response: Response<Incoming>) -> Response<Body> {
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(CONNECTION);
        parts.headers.remove(TRANSFER_ENCODING);
        let location = parts.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        let moved = location.and_then(|location| {
            let rest = ["http://", "https://"].iter().find_map(|own| location.strip_prefix(own));
            let own = rest.and_then(|rest| rest.strip_prefix(self.address));
            let own = own.unwrap_or(location);
            own.starts_with('/').then(|| format!("{}{own}", self.prefix))
        });
        if let Some(moved) = moved {
            set(&mut parts.headers, LOCATION, &moved);
        }
        Response::from_parts(parts, as_it_comes(body))
    }
}

/// Sends a request over a connection, and waits for the head of the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<RequestBody>,
) -> Result<Response<Incoming>, ApiError> {
    let failed = unreachable_pod;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    // It ends with the answer, or with whoever waits for it.
    tokio::spawn(connection.with_upgrades());
    let response = time::timeout(HEAD, sender.send_request(request)).await;
    let timeout = "net/http: timeout awaiting response headers";
    response.map_err(|_| failed(&timeout))?.map_err(|error| failed(&error))
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
