//! From an HTTP request to the function that answers it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    RETRY_AFTER, USER_AGENT,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::{Body as _, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use jiff::Timestamp;
use roadstead_patch::apply::managers::name_from_user_agent;
use serde_json::Value;
use tracing::error;
use uuid::Uuid;

use crate::about::About;
use crate::api::{Api, User};
use crate::call::Call;
use crate::crowd::Sender;
use crate::error::ApiError;
use crate::receive::Received;
use crate::registry::{Registry, Resource};
use crate::request::{Path, Query, Target};
use crate::turns::{Flow, TURN};
use crate::view::View;
use crate::{
    audit, authorize, compress, discovery, health, impersonate, openapi, proxy, rbac, slices, tag,
    tokens, warning, yaml,
};

/// By which a request is known in the audit log.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The body of every answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers one request.
pub async fn handle<B>(api: Arc<Api>, user: User, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (begin, received) = (Instant::now(), Timestamp::now());
    let about = About::of(&request);
    let (mut parts, body) = request.into_parts();
    let id = audit_id(&parts.headers);
    let (caller, known) = caller(&api, &user, &mut parts);
    if let Some(Sender(guest)) = parts.extensions.get()
        && !caller.user.is_anonymous()
    {
        guest.know(&caller.user.name);
    }
    let flow = api.turns.of(caller.acting());
    let asked = Asked { api, caller: Arc::new(caller), parts: Arc::new(parts), flow };
    let (response, body) = match known {
        Ok(()) => admitted(&asked, &about, body).await,
        Err(error) => (failure(&error), Received::default()),
    };
    let Asked { api, caller, parts, flow } = asked;
    count(&api, &about, &response, begin);
    let source = parts.extensions.get::<SocketAddr>().map(SocketAddr::ip);
    let media_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let request = audit::Request {
        id: &id,
        user: &caller.user,
        role: caller.role.as_ref(),
        about: &about,
        media_type: media_type.unwrap_or(""),
        body: &body.bytes,
        received,
        source,
    };
    let mut response = audit::answered(&api, &request, response).await;
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(AUDIT_ID, id);
    }
    match parts.method == Method::HEAD {
        true => without_body(response),
        false => compress::maybe(&parts, &flow, response),
    }
}

/// The answer to a HEAD: how long the body would be, if that is known, and no body.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    Response::from_parts(parts, Full::default().boxed_unsync())
}

/// A request, and who sent it.
#[derive(Clone)]
struct Asked {
    api: Arc<Api>,
    caller: Arc<Caller>,
    parts: Arc<Parts>,
    flow: Arc<Flow>,
}

/// Answers somebody whom we know, or who did not say who they are; with what they sent.
async fn admitted<B>(asked: &Asked, about: &About, body: B) -> (Response<Body>, Received)
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Asked { api, caller, parts, flow } = asked;
    let user = caller.acting();
    // Nobody reads what strangers send.
    let body = match (user.is_anonymous(), about.is_mutating()) {
        (true, true) => Err(ApiError::unauthorized()),
        (true, false) => Ok(Received::default()),
        (false, _) => {
            let patience = parts.extensions.get().copied().unwrap_or_default();
            api.bodies.receive(body, patience).await
        }
    };
    let body = match body {
        Ok(body) => body,
        Err(error) => return (failure(&error), Received::default()),
    };
    // Our own components are never turned away.
    let place = match user.name.as_str() {
        "system:roadstead" => None,
        name => match api.limits.enter(name, about.is_mutating()) {
            Ok(place) => Some(place),
            Err(error) => return (failure(&error), body),
        },
    };
    let hard = about.is_mutating() && is_hard(asked, about, &body.bytes);
    let answer = answer(asked.clone(), body.bytes.clone());
    let response = AssertUnwindSafe(async {
        match hard {
            true => flow.follow(answer).await,
            false => answer.await,
        }
    });
    // A mistake of ours is for whoever hits it, not for all who share the connection.
    let response = response.catch_unwind().await.unwrap_or_else(|_| {
        error!(uri = about.uri, "a request made us panic");
        Err(ApiError::panicked())
    });
    drop(place);
    (response.unwrap_or_else(|error| failure(&error)), body)
}

/// Whether a write takes long: it is large, or what it changes is, or there may be much of that.
fn is_hard(asked: &Asked, about: &About, body: &Bytes) -> bool {
    let Asked { api, parts, .. } = asked;
    let media_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    // YAML takes much longer to read than JSON.
    let is_yaml = media_type.is_some_and(|media_type| media_type.contains("yaml"));
    let most = if is_yaml { TURN / 8 } else { TURN };
    if body.len() > most || about.verb == "deletecollection" {
        return true;
    }
    let registry = api.registry();
    let resource = registry.find(&about.group, &about.version, &about.resource);
    let stored = resource.filter(|_| !about.name.is_empty()).and_then(|resource| {
        let namespace = if resource.info().namespaced { &*about.namespace } else { "" };
        api.store.get(&resource.key(namespace, &about.name))
    });
    stored.is_some_and(|entry| entry.value.len() > TURN)
}

fn count(api: &Api, about: &About, response: &Response<Body>, begin: Instant) {
    let (code, seconds) = (response.status().as_u16(), begin.elapsed().as_secs_f64());
    match response.status().is_success() {
        true => api.metrics.answered(about, code, seconds),
        // A request that failed may be about anything that a stranger can think of.
        false => api.metrics.answered(&about.known(&api.registry()), code, seconds),
    }
}

/// What clients and logs call the request: the client's own name for it, if it has one.
fn audit_id(headers: &HeaderMap) -> String {
    let own = headers.get(AUDIT_ID).and_then(|value| value.to_str().ok());
    match own.filter(|own| !own.is_empty() && own.len() <= 64) {
        Some(own) => own.to_owned(),
        None => Uuid::new_v4().to_string(),
    }
}

/// Who asks.
#[derive(Default)]
struct Caller {
    user: User,
    /// Whom they act as, if that is somebody else.
    role: Option<User>,
}

impl Caller {
    /// Whose rights count.
    fn acting(&self) -> &User {
        self.role.as_ref().unwrap_or(&self.user)
    }
}

/// As much as is known about who asks, and why that is not enough.
fn caller(api: &Api, user: &User, parts: &mut Parts) -> (Caller, Result<(), ApiError>) {
    let user = match bearer(api, user, parts) {
        Ok(user) => user,
        Err(error) => return (Caller::default(), Err(error)),
    };
    match impersonate::taken_role(api, &user, &mut parts.headers) {
        Ok(role) => (Caller { user, role }, Ok(())),
        Err(error) => (Caller { user, role: None }, Err(error)),
    }
}

/// Whoever has no certificate may have a token.
fn bearer(api: &Api, user: &User, parts: &Parts) -> Result<User, ApiError> {
    let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match header.and_then(|header| header.strip_prefix("Bearer ")) {
        Some(token) if user.is_anonymous() => {
            let bearer = api.tokens.authenticate(api, token.trim(), &[tokens::ISSUER]);
            bearer.map(|bearer| bearer.user).map_err(|_| ApiError::unauthorized())
        }
        _ => Ok(user.clone()),
    }
}

/// The Status of a refusal as a response.
pub fn failure(error: &ApiError) -> Response<Body> {
    let mut response = respond(error.code, error.to_status().to_string());
    let later = error.details.as_ref().and_then(|details| details["retryAfterSeconds"].as_u64());
    if let Some(seconds) = later {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

async fn answer(asked: Asked, body: Bytes) -> Result<Response<Body>, ApiError> {
    let Asked { api, caller, parts, flow } = &asked;
    let user = caller.acting();
    let path = parts.uri.path();
    let query = Query::parse(parts.uri.query());
    let header = |name| parts.headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    let accept = header(ACCEPT).unwrap_or("");
    let registry = api.registry();
    let parsed = Path::read(path);
    let Some(target) = parsed.as_ref().and_then(Target::parse) else {
        // Before anything is made that takes time.
        authorize::path(api, user, &parts.method, path)?;
        if path == "/debug/snapshot" {
            return Ok(snapshot(api));
        }
        let response = fixed(api, &registry, &parts.uri, accept);
        let response = response.ok_or_else(ApiError::no_such_path)?;
        let document = ["/api", "/apis", "/openapi"].iter().any(|root| path.starts_with(root));
        return Ok(if document {
            tag::answer(&parts.headers, flow, response).await
        } else {
            response
        });
    };
    if user.is_anonymous() {
        return Err(ApiError::unauthorized());
    }
    let resource = registry.find(target.group, target.version, target.plural);
    let resource = resource.ok_or_else(ApiError::no_such_path)?;
    check_scope(resource, &target, &parts.method)?;
    authorize::verb(api, user, &parts.method, resource, &target, &query)?;
    discovery::check_subresource(resource.info(), target.subresource)?;
    let manager = match query.get("fieldManager") {
        "" => name_from_user_agent(header(USER_AGENT).unwrap_or("")),
        name => name.to_owned(),
    };
    if target.subresource == "proxy" {
        return proxy::answer(api, resource, &target, parts, body).await;
    }
    let call = Call {
        api,
        user,
        resource,
        target,
        query,
        view: match resource.info().review {
            true => View::plain(accept)?,
            false => View::choose(accept, Query::parse(parts.uri.query()).get("includeObject"))?,
        },
        media_type: header(CONTENT_TYPE).unwrap_or(""),
        manager,
        body,
        flow,
    };
    let deprecated = resource.info().deprecated;
    let silent = resource.bucket == "endpoints" && !api.services.warn_about_endpoints;
    // Whoever sends a HEAD is answered as by GET, up to the body.
    let method = if parts.method == Method::HEAD { Method::GET } else { parts.method.clone() };
    let watches = method == Method::GET && call.query.flag("watch");
    let answer = match call.answer(method.as_str()).await {
        Ok(response) if yaml::is_wanted(accept) && !watches => {
            Ok(yaml::answer(flow, response).await)
        }
        answer => answer,
    };
    if resource.info().group == rbac::GROUP && method != Method::GET {
        // Whoever changes the rights takes them in, not whoever comes next.
        api.rbac.refresh();
    }
    if deprecated.is_empty() || silent {
        return answer;
    }
    // Those who are refused hear it too, and everybody hears it first.
    let mut response = answer.unwrap_or_else(|error| failure(&error));
    warning::add_first(response.headers_mut(), deprecated);
    Ok(response)
}

/// Answers that do not depend on objects.
fn fixed(api: &Api, registry: &Registry, uri: &Uri, accept: &str) -> Option<Response<Body>> {
    let path = uri.path();
    let json = |value: Value| Some(respond(StatusCode::OK, value.to_string()));
    let aggregated = |core| {
        let value = discovery::aggregated(registry, core).to_string();
        let mut response = respond(StatusCode::OK, value);
        let media_type = HeaderValue::from_static(discovery::AGGREGATED);
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        Some(response)
    };
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    match parts[..] {
        [""] => json(discovery::paths(registry)),
        [endpoint @ ("healthz" | "livez" | "readyz"), ref check @ ..] => {
            health::answer(api, endpoint, check, uri.query())
        }
        ["metrics"] => Some(text(api.metrics.text(api))),
        ["version"] => json(discovery::version()),
        ["openid", "v1", "jwks"] => json(api.tokens.key_set()),
        [".well-known", "openid-configuration"] => json(tokens::discovery()),
        ["api"] if discovery::wants_aggregated(accept) => aggregated(true),
        ["apis"] if discovery::wants_aggregated(accept) => aggregated(false),
        ["api"] => json(discovery::core_versions()),
        ["apis"] => json(discovery::groups(registry)),
        ["apis", group] => discovery::group(registry, group).and_then(json),
        ["api", version] => discovery::resources(registry, "", version).and_then(json),
        ["apis", group, version] => discovery::resources(registry, group, version).and_then(json),
        ["openapi", "v2"] => {
            let protobuf = accept.contains("protobuf");
            let mut response = ok(registry.documents.v2(registry, protobuf));
            if protobuf {
                let media_type = HeaderValue::from_static(openapi::V2_PROTOBUF);
                response.headers_mut().insert(CONTENT_TYPE, media_type);
            }
            Some(response)
        }
        ["openapi", "v3"] => json(registry.documents.index(registry)),
        ["openapi", "v3", ..] => {
            let path = path.trim_matches('/').strip_prefix("openapi/v3/")?;
            let document = registry.documents.document(registry, path)?;
            Some(ok(document))
        }
        _ => None,
    }
}

/// The whole store as a file, for `roadstead snapshot save`.
fn snapshot(api: &Api) -> Response<Body> {
    let pieces = roadstead_store::snapshot::write(&api.store);
    let frames = futures::stream::iter(pieces).then(async |piece| {
        // Others get their turn in between.
        tokio::task::yield_now().await;
        Ok(Frame::data(piece))
    });
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
    let media_type = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

fn check_scope(resource: &Resource, target: &Target<'_>, method: &Method) -> Result<(), ApiError> {
    let info = resource.info();
    let misplaced = !info.namespaced && !target.namespace.is_empty();
    let homeless = info.namespaced
        && target.namespace.is_empty()
        && !(target.name.is_empty() && [Method::GET, Method::HEAD].contains(method));
    if misplaced || homeless {
        return Err(ApiError::no_such_path());
    }
    Ok(())
}

/// Adds a line that clients show to their users.
pub(crate) fn warn(response: &mut Response<Body>, text: &str) {
    warning::add(response.headers_mut(), text);
}

pub(crate) fn ok(body: impl Into<Bytes>) -> Response<Body> {
    respond(StatusCode::OK, body)
}

fn text(body: impl Into<Bytes>) -> Response<Body> {
    let mut response = respond(StatusCode::OK, body);
    let media_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

pub(crate) fn respond(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(slices::body(body.into()));
    *response.status_mut() = code;
    let media_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}
