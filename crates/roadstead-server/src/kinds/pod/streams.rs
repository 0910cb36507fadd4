//! `pods/NAME/log`, `exec`, `attach` and `portforward`: who may look into a pod is passed on to the agent
//! of its node. The protocols are the agent's; here is only who is meant, who may, and bytes both ways.

use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use super::options;
use crate::error::ApiError;
use crate::kinds::{Answer, GroupVersionKind, proxy};
use crate::registry::Resource;
use crate::request::chain::ActiveRequest;
use crate::transport::receive::{RequestBody, boxed};
use crate::transport::response::{Body, respond};

/// What can be done by connecting to a pod.
pub(super) const VERBS: &[&str] = &["create", "get"];

/// What an agent says is wrong is no longer than this.
const LONGEST_ERROR: usize = 16 << 10;

/// What belongs to an upgrade, and so to the agent.
const PASSED_ON: [&str; 6] = [
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "sec-websocket-extensions",
    "x-stream-protocol-version",
    "upgrade",
];

/// The kind of the options of such a request.
pub(super) const fn options_kind(kind: &'static str) -> Option<GroupVersionKind> {
    Some(GroupVersionKind::new("", "v1", kind))
}

/// `kubectl logs`.
pub(super) fn log<'a>(
    request: &'a ActiveRequest,
    pods: &'a Resource,
    _body: RequestBody,
) -> Answer<'a> {
    Box::pin(async move {
        let pod = pod(request, pods)?;
        let query = options::log(pod.text("/metadata/name"), &request.info.query)?;
        let container = options::container(&pod, request.info.query.get("container"))?;
        if pod.text("/spec/nodeName").is_empty() {
            // It has said nothing yet.
            return Ok(plain(respond(StatusCode::OK, "")));
        }
        let way = format!("/containerLogs/{}/{container}?{query}", place(&pod));
        let onward = onward(request, &way, false)?;
        let response = send(request, &pod, onward).await?;
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        Ok(plain(response.map(proxy::as_it_comes)))
    })
}

/// `kubectl exec`.
pub(super) fn exec<'a>(
    request: &'a ActiveRequest,
    pods: &'a Resource,
    _body: RequestBody,
) -> Answer<'a> {
    Box::pin(async move {
        let pod = pod(request, pods)?;
        let query = options::exec(pod.text("/metadata/name"), request.parts.uri.query())?;
        let container = options::container(&pod, request.info.query.get("container"))?;
        connect(request, &pod, &format!("/exec/{}/{container}?{query}", place(&pod))).await
    })
}

/// `kubectl attach`.
pub(super) fn attach<'a>(
    request: &'a ActiveRequest,
    pods: &'a Resource,
    _body: RequestBody,
) -> Answer<'a> {
    Box::pin(async move {
        let pod = pod(request, pods)?;
        let query = options::attach(pod.text("/metadata/name"), &request.info.query)?;
        let container = options::container(&pod, request.info.query.get("container"))?;
        connect(request, &pod, &format!("/attach/{}/{container}?{query}", place(&pod))).await
    })
}

/// `kubectl port-forward`.
pub(super) fn port_forward<'a>(
    request: &'a ActiveRequest,
    pods: &'a Resource,
    _body: RequestBody,
) -> Answer<'a> {
    Box::pin(async move {
        let pod = pod(request, pods)?;
        let query = options::port_forward(request.parts.uri.query());
        connect(request, &pod, &format!("/portForward/{}?{query}", place(&pod))).await
    })
}

fn pod(request: &ActiveRequest, pods: &Resource) -> Result<Value, ApiError> {
    let path = request.info.resource();
    let found = request.api.storage.object(pods, &path.namespace, &path.name);
    found.ok_or_else(|| ApiError::not_found(pods.info(), &path.name))
}

/// Where the agent has the pod.
fn place(pod: &Value) -> String {
    format!("{}/{}", pod.text("/metadata/namespace"), pod.text("/metadata/name"))
}

fn plain(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Hands the connection itself on. Whoever asks by GET, as browsers do, needs the right to create, too:
/// to run a command is not to read.
async fn connect(
    request: &ActiveRequest,
    pod: &Value,
    way: &str,
) -> Result<Response<Body>, ApiError> {
    if request.parts.method == Method::GET {
        request.authorize_creation()?;
    }
    let upgrade = request.parts.extensions.get::<OnUpgrade>().cloned();
    let Some(client) = upgrade.filter(|_| request.parts.headers.contains_key(UPGRADE)) else {
        return Err(ApiError::bad_request("Upgrade request required"));
    };
    let mut response = send(request, pod, onward(request, way, true)?).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response).await);
    }
    Ok(proxy::relayed(request, client, &mut response))
}

/// The request as the agent sees it: nothing in it says who sent it.
fn onward(
    request: &ActiveRequest,
    way: &str,
    upgrade: bool,
) -> Result<Request<RequestBody>, ApiError> {
    let way = way.trim_end_matches('?');
    let mut onward = Request::builder().method(&request.parts.method).uri(way).header(HOST, "node");
    if upgrade {
        onward = onward.header(CONNECTION, "Upgrade");
        for name in PASSED_ON.map(HeaderName::from_static) {
            for value in request.parts.headers.get_all(&name) {
                onward = onward.header(&name, value);
            }
        }
    }
    let onward = onward.body(boxed(http_body_util::Empty::new()));
    onward.map_err(|error| ApiError::bad_request(format!("this cannot be handed on: {error}")))
}

/// Sends it to the agent of the pod's node.
async fn send(
    request: &ActiveRequest,
    pod: &Value,
    onward: Request<RequestBody>,
) -> Result<Response<Incoming>, ApiError> {
    let (node, name) = (pod.text("/spec/nodeName"), pod.text("/metadata/name"));
    if node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    proxy::send_to_agent(request, node, onward).await
}

/// What the agent says instead.
async fn refusal(response: Response<Incoming>) -> ApiError {
    let code = response.status();
    let text = Limited::new(response.into_body(), LONGEST_ERROR).collect().await;
    let text = text.map(|text| String::from_utf8_lossy(&text.to_bytes()).trim().to_owned());
    ApiError::by_agent(code, text.unwrap_or_default())
}
