//! The filters that every request passes, in this order: who sends it, on whose behalf, whether there
//! is a place for it, whether they may. The handler comes last, and only then is a body read: as
//! bytes where it is an object, as a stream (or an upgraded connection) where it is handed on.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use futures::FutureExt;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use http::request::Parts;
use http::{Method, Request, Response};
use jiff::Timestamp;
use roadstead_patch::apply::managers::name_from_user_agent;
use tracing::{error, warn};
use uuid::Uuid;

use crate::api::Api;
use crate::documents;
use crate::error::ApiError;
use crate::identity::authorize::{Authorizer, is_public};
use crate::identity::user::User;
use crate::identity::{audit, impersonate, tokens};
use crate::kinds::{Access, Subresource};
use crate::reading::view::View;
use crate::registry::{Registry, Resource};
use crate::request::RequestInfo;
use crate::request::handler::Handler;
use crate::request::path::ResourcePath;
use crate::transport::connections::SenderConnection;
use crate::transport::fairness::Class;
use crate::transport::place::Place;
use crate::transport::receive::{self, Received, RequestBody};
use crate::transport::response::{Body, failure, without_body};
use crate::transport::rotation::{Flow, TURN};
use crate::transport::{compress, place, warning, yaml};

/// By which a request is known in the audit log.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// What the request belonged to.
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// Answers one request.
pub async fn handle<B>(api: Arc<Api>, user: User, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (begin, received) = (Instant::now(), Timestamp::now());
    let (mut parts, body) = request.into_parts();
    let info = RequestInfo::of(&parts);
    let id = audit_id(&parts.headers);
    let (mut caller, mut known) = identify(&api, &user, &mut parts);
    if known.is_err() && api.storage.store.is_shared() && api.storage.store.fresh().await.is_ok() {
        // Another server may have made whom we do not know yet.
        (caller, known) = identify(&api, &user, &mut parts);
    }
    if let Some(SenderConnection(connection)) = parts.extensions.get()
        && !caller.user.is_anonymous()
    {
        connection.know(&caller.user.name);
    }
    let flow = api.traffic.rotation.of(caller.acting());
    let class = OnceLock::new();
    let request = Arc::new(ActiveRequest { api, caller, info, parts, flow, class });
    let (response, body) = match known {
        Ok(()) => request.answer(receive::boxed(body)).await,
        Err(error) => (failure(&error), Received::default()),
    };
    let ActiveRequest { api, caller, info, parts, flow, .. } = &*request;
    count(api, info, &response, begin);
    let answered = audit::Request {
        id: &id,
        user: &caller.user,
        impersonated: caller.impersonated.as_ref(),
        info,
        media_type: request.header(CONTENT_TYPE),
        body: &body.bytes,
        received,
        source: parts.extensions.get::<SocketAddr>().map(SocketAddr::ip),
    };
    let mut response = audit::answered(api.identity.audit.as_ref(), &answered, response).await;
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(AUDIT_ID, id);
    }
    if let Some(class) = request.class.get() {
        let uids = [FLOW_SCHEMA, PRIORITY_LEVEL].into_iter().zip(class.uids());
        let known = uids.filter_map(|(name, uid)| Some((name, uid?.clone())));
        response.headers_mut().extend(known);
    }
    match parts.method == Method::HEAD {
        true => without_body(response),
        false => compress::maybe(parts, flow, response),
    }
}

fn count(api: &Api, info: &RequestInfo, response: &Response<Body>, begin: Instant) {
    let (code, seconds) = (response.status().as_u16(), begin.elapsed().as_secs_f64());
    let path = match response.status().is_success() {
        true => Cow::Borrowed(info.resource()),
        // A request that failed may be about anything that a stranger can think of.
        false => known(info.resource(), &api.registry()),
    };
    api.metrics.answered(&info.verb, &path, code, seconds);
}

/// What of a path is about kinds that are served.
fn known<'a>(path: &'a ResourcePath, registry: &Registry) -> Cow<'a, ResourcePath> {
    let Some(resource) = registry.find(&path.group, &path.version, &path.plural) else {
        return Cow::Owned(ResourcePath::default());
    };
    match path.subresource.is_empty() || resource.subresource(&path.subresource).is_some() {
        true => Cow::Borrowed(path),
        false => Cow::Owned(ResourcePath { subresource: String::new(), ..path.clone() }),
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

#[derive(Default)]
struct Caller {
    user: User,
    /// Whom they act as, if that is somebody else.
    impersonated: Option<User>,
}

impl Caller {
    /// Whose rights count.
    fn acting(&self) -> &User {
        self.impersonated.as_ref().unwrap_or(&self.user)
    }
}

/// As much as is known about who sends a request, and why that is not enough.
fn identify(api: &Api, user: &User, parts: &mut Parts) -> (Caller, Result<(), ApiError>) {
    let user = match bearer(api, user, parts) {
        Ok(user) => user,
        Err(error) => return (Caller::default(), Err(error)),
    };
    match impersonate::impersonated_user(&api.identity.rbac, &user, &mut parts.headers) {
        Ok(impersonated) => (Caller { user, impersonated }, Ok(())),
        Err(error) => (Caller { user, impersonated: None }, Err(error)),
    }
}

/// Whoever has no certificate may have a token.
fn bearer(api: &Api, user: &User, parts: &Parts) -> Result<User, ApiError> {
    let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match header.and_then(|header| header.strip_prefix("Bearer ")) {
        Some(token) if user.is_anonymous() => {
            let bearer =
                api.identity.tokens.authenticate(&api.storage, token.trim(), &[tokens::ISSUER]);
            bearer.map(|bearer| bearer.user).map_err(|_| ApiError::unauthorized())
        }
        _ => Ok(user.clone()),
    }
}

/// A request whose sender is known, without its body.
pub(crate) struct ActiveRequest {
    pub(crate) api: Arc<Api>,
    caller: Caller,
    pub(crate) info: RequestInfo,
    pub(crate) parts: Parts,
    pub(crate) flow: Arc<Flow>,
    /// What it belongs to, once that is known.
    pub(crate) class: OnceLock<Arc<Class>>,
}

impl ActiveRequest {
    /// Whose rights count.
    pub(crate) fn user(&self) -> &User {
        self.caller.acting()
    }

    /// The text of a header, or "".
    pub(crate) fn header(&self, name: HeaderName) -> &str {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Answers somebody whom we know, or who did not say who they are; with what was read of the body.
    async fn answer(self: &Arc<Self>, body: RequestBody) -> (Response<Body>, Received) {
        let mut received = Received::default();
        let response = AssertUnwindSafe(self.filter(body, &mut received));
        // A mistake of ours is for whoever hits it, not for all who share the connection.
        let response = response.catch_unwind().await.unwrap_or_else(|_| {
            error!(uri = self.info.uri(), "a request made us panic");
            Err(ApiError::panicked())
        });
        (response.unwrap_or_else(|error| failure(&error)), received)
    }

    async fn filter(
        self: &Arc<Self>,
        body: RequestBody,
        received: &mut Received,
    ) -> Result<Response<Body>, ApiError> {
        let stranger = self.user().is_anonymous();
        if stranger && self.info.is_mutating() {
            return Err(ApiError::unauthorized());
        }
        let mut place = self.enter().await?;
        let mut authorized = self.authorize();
        if authorized.is_err()
            && !stranger
            && self.api.storage.store.is_shared()
            && self.api.storage.store.fresh().await.is_ok()
        {
            // Another server may have given the right, or made the kind known.
            authorized = self.authorize();
        }
        let resource = match authorized {
            Ok(Some(resource)) => resource,
            Ok(None) => return documents::answer(self).await,
            Err(error) => {
                // Nobody reads what strangers send, and who waits to be told need not send it.
                if !stranger && !self.parts.headers.contains_key(EXPECT) {
                    receive::discard(body, self.timeouts()).await;
                }
                return Err(error);
            }
        };
        if let Some(Subresource { access: Access::Connect(connect), .. }) =
            resource.subresource(&self.info.resource().subresource)
        {
            return connect(self, &resource, body).await;
        }
        if takes_body(&self.parts.method) {
            *received = self.receive(body, &mut place).await?;
        }
        let hard = self.info.is_mutating() && self.is_hard(&resource, &received.bytes);
        let answer = answer(self.clone(), resource, received.bytes.clone());
        match hard {
            true => self.flow.follow(answer).await,
            false => answer.await,
        }
    }

    /// Takes a place among the requests under way. Our own components need none.
    async fn enter(&self) -> Result<Option<Place>, ApiError> {
        match self.user().in_process {
            true => Ok(None),
            false => place::of(self).await.map(Some),
        }
    }

    /// Whether the user may; with the kind that the request is about, if it is about one.
    fn authorize(&self) -> Result<Option<Arc<Resource>>, ApiError> {
        let authorizer = Authorizer::new(&self.api.identity.rbac, self.user());
        let Some(path) = &self.info.path else {
            // Before anything is made that takes time.
            authorizer.path(&self.info.verb, self.parts.uri.path())?;
            return Ok(None);
        };
        if self.user().is_anonymous() && !is_public(&self.info.verb, path) {
            return Err(ApiError::unauthorized());
        }
        let registry = self.api.registry();
        let resource = registry.find(&path.group, &path.version, &path.plural);
        let resource = resource.ok_or_else(ApiError::no_such_path)?;
        check_scope(resource, path, &self.parts.method)?;
        authorizer.request(&self.info, path, resource.info()).inspect_err(|error| {
            // What nodes may do changes with their pods; what other parts may do is our own table.
            if self.user().in_process && self.user().node().is_none() {
                warn!(error = %error.message, "a part of this process lacks a right");
            }
        })?;
        check_subresource(resource, path)?;
        Ok(Some(resource.clone()))
    }

    /// Whether the user may also create what is asked for.
    pub(crate) fn authorize_creation(&self) -> Result<(), ApiError> {
        let (path, registry) = (self.info.resource(), self.api.registry());
        let resource = registry.find(&path.group, &path.version, &path.plural);
        let resource = resource.ok_or_else(ApiError::no_such_path)?;
        let authorizer = Authorizer::new(&self.api.identity.rbac, self.user());
        authorizer.creation(path, resource.info())
    }

    fn timeouts(&self) -> receive::Timeouts {
        self.parts.extensions.get().copied().unwrap_or_default()
    }

    /// Reads the body. Whoever sends slowly holds no place meanwhile.
    async fn receive(
        &self,
        body: RequestBody,
        place: &mut Option<Place>,
    ) -> Result<Received, ApiError> {
        let mut receiving = pin!(self.api.traffic.bodies.receive(body, self.timeouts()));
        let first = poll_fn(|context| Poll::Ready(receiving.as_mut().poll(context))).await;
        if let Poll::Ready(received) = first {
            return received;
        }
        drop(place.take());
        let received = receiving.await?;
        *place = self.enter().await?;
        Ok(received)
    }

    /// Whether a write takes long: it is large, or what it changes is, or there may be much of that.
    fn is_hard(&self, resource: &Resource, body: &Bytes) -> bool {
        // YAML takes much longer to read than JSON.
        let is_yaml = self.header(CONTENT_TYPE).contains("yaml");
        let most = if is_yaml { TURN / 8 } else { TURN };
        if body.len() > most || self.info.verb == "deletecollection" {
            return true;
        }
        let path = self.info.resource();
        let namespace = if resource.info().namespaced { &*path.namespace } else { "" };
        let stored = || self.api.storage.store.get(&resource.key(namespace, &path.name));
        !path.name.is_empty() && stored().is_some_and(|entry| entry.value.len() > TURN)
    }
}

fn takes_body(method: &Method) -> bool {
    ![Method::GET, Method::HEAD].contains(method)
}

fn check_scope(resource: &Resource, path: &ResourcePath, method: &Method) -> Result<(), ApiError> {
    let info = resource.info();
    let misplaced = !info.namespaced && !path.namespace.is_empty();
    let homeless = info.namespaced
        && path.namespace.is_empty()
        && !(path.name.is_empty() && [Method::GET, Method::HEAD].contains(method));
    if misplaced || homeless {
        return Err(ApiError::no_such_path());
    }
    Ok(())
}

/// Fails if we do not serve this below objects of a kind.
fn check_subresource(resource: &Resource, path: &ResourcePath) -> Result<(), ApiError> {
    match resource.subresource(&path.subresource) {
        None if !path.subresource.is_empty() => Err(ApiError::no_such_path()),
        _ => Ok(()),
    }
}

/// Answers a request about objects.
async fn answer(
    request: Arc<ActiveRequest>,
    resource: Arc<Resource>,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    let ActiveRequest { api, info, parts, flow, .. } = &*request;
    let (accept, query) = (request.header(ACCEPT), &info.query);
    let handler = Handler {
        api,
        user: request.user(),
        resource: &resource,
        path: info.resource(),
        query,
        view: match resource.info().review {
            true => View::plain(accept)?,
            false => View::choose(accept, query.get("includeObject"))?,
        },
        media_type: request.header(CONTENT_TYPE),
        manager: match query.get("fieldManager") {
            "" => name_from_user_agent(request.header(USER_AGENT)),
            name => name.to_owned(),
        },
        body,
        flow,
    };
    // Whoever sends a HEAD is answered as by GET, up to the body.
    let method = if parts.method == Method::HEAD { &Method::GET } else { &parts.method };
    let answer = match handler.answer(method).await {
        Ok(response) if yaml::is_wanted(accept) && info.verb != "watch" => {
            Ok(yaml::answer(flow, response).await)
        }
        answer => answer,
    };
    let deprecated = resource.info().deprecated;
    if deprecated.is_empty() || resource.strategy.hides_deprecation(&api.network.services) {
        return answer;
    }
    // Those who are refused hear it too, and everybody hears it first.
    let mut response = answer.unwrap_or_else(|error| failure(&error));
    warning::add_first(response.headers_mut(), deprecated);
    Ok(response)
}
