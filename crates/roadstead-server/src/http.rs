//! From an HTTP request to the function that answers it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::about::About;
use crate::api::{Api, User};
use crate::audit::Line;
use crate::delete::{self, Deleted};
use crate::error::ApiError;
use crate::patch::Patch;
use crate::registry::{Registry, Resource};
use crate::request::{Query, Target};
use crate::view::View;
use crate::write::{Part, Written};
use crate::{
    authorize, body, compress, discovery, object, openapi, read, reviews, scale, tokens, watch,
    write,
};

/// The body of every answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers one request.
pub async fn handle<B>(api: Arc<Api>, user: User, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let user = match bearer(&api, &user, &request) {
        Ok(user) => user,
        Err(error) => return failure(&error),
    };
    let begin = Instant::now();
    let received = Timestamp::now();
    let about = About::of(&request);
    // Our own components are never turned away.
    let place = match user.name.as_str() {
        "system:roadstead" => None,
        name => match api.limits.enter(name, about.is_mutating()) {
            Ok(place) => Some(place),
            Err(error) => return failure(&error),
        },
    };
    let (parts, body) = request.into_parts();
    let (response, body) = match collect(body).await {
        Ok(body) => {
            let response = answer(&api, &user, &parts, body.clone()).await;
            (response.unwrap_or_else(|error| failure(&error)), body)
        }
        Err(error) => (failure(&error), Bytes::new()),
    };
    drop(place);
    let code = response.status().as_u16();
    api.metrics.answered(&about, code, begin.elapsed().as_secs_f64());
    if let Some(audit) = &api.audit {
        let source = parts.extensions.get::<SocketAddr>().map(SocketAddr::ip);
        audit.write(Line { user: &user, about: &about, body: &body, code, received, source });
    }
    compress::maybe(&parts, response)
}

/// Whoever has no certificate may have a token.
fn bearer<B>(api: &Api, user: &User, request: &Request<B>) -> Result<User, ApiError> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match header.and_then(|header| header.strip_prefix("Bearer ")) {
        Some(token) if user.is_anonymous() => {
            api.tokens.authenticate(api, token.trim()).map_err(|_| ApiError::unauthorized())
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

async fn answer(
    api: &Arc<Api>,
    user: &User,
    parts: &Parts,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    let path = parts.uri.path();
    let query = Query::parse(parts.uri.query());
    let header = |name| parts.headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    let accept = header(ACCEPT).unwrap_or("");
    let registry = api.registry();
    if let Some(response) = fixed(api, &registry, path, accept) {
        authorize::path(api, user, &parts.method, path)?;
        return Ok(response);
    }
    if user.is_anonymous() {
        return Err(ApiError::unauthorized());
    }
    if path == "/debug/snapshot" {
        authorize::path(api, user, &parts.method, path)?;
        return Ok(snapshot(api));
    }
    let target = Target::parse(path).ok_or_else(ApiError::no_such_path)?;
    let resource = registry.find(target.group, target.version, target.plural);
    let resource = resource.ok_or_else(ApiError::no_such_path)?;
    check_scope(resource, &target, &parts.method)?;
    authorize::verb(api, user, &parts.method, resource, &target, &query)?;
    let call = Call {
        api,
        user,
        resource,
        target,
        query,
        view: View::choose(accept, Query::parse(parts.uri.query()).get("includeObject"))?,
        media_type: header(CONTENT_TYPE).unwrap_or(""),
        body,
    };
    let deprecated = resource.info().deprecated;
    let mut response = call.answer(parts.method.as_str()).await?;
    if !deprecated.is_empty() {
        warn(&mut response, deprecated);
    }
    Ok(response)
}

/// Answers that do not depend on objects.
fn fixed(api: &Api, registry: &Registry, path: &str, accept: &str) -> Option<Response<Body>> {
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
        [""] => json(json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3",
            "/readyz", "/version"]})),
        ["healthz" | "livez" | "readyz", ..] => Some(text("ok")),
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
    let frames = futures::stream::iter(pieces.map(|piece| Ok(Frame::data(piece))));
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
        && !(target.name.is_empty() && method == Method::GET);
    if misplaced || homeless {
        return Err(ApiError::no_such_path());
    }
    Ok(())
}

async fn collect<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(body);
    let mut bytes = BytesMut::new();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let error = error.into();
            ApiError::bad_request(format!("the body could not be read: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        match size {
            _ if size <= body::LIMIT => bytes.extend_from_slice(&data),
            // A client that is still sending would not hear the answer: let it finish, if it does
            // so in reasonable time.
            _ if size <= 8 * body::LIMIT => bytes.clear(),
            _ => break,
        }
    }
    if size > body::LIMIT { Err(ApiError::too_large(body::LIMIT)) } else { Ok(bytes.freeze()) }
}

/// A request about objects, taken apart.
struct Call<'a> {
    api: &'a Arc<Api>,
    user: &'a User,
    resource: &'a Resource,
    target: Target<'a>,
    query: Query,
    view: View,
    media_type: &'a str,
    body: Bytes,
}

impl Call<'_> {
    async fn answer(&self, method: &str) -> Result<Response<Body>, ApiError> {
        if self.resource.info().review {
            return self.review(method);
        }
        match (method, self.target.name, self.target.subresource) {
            ("GET", "", _) if self.query.flag("watch") => self.watch(),
            ("GET", "", _) => self.list(),
            ("GET", _, "") if self.query.flag("watch") => self.watch(),
            ("GET", _, "" | "status") => self.get(),
            ("GET", _, "scale") => self.get_scale(),
            ("POST", "", _) => self.create().await,
            ("POST", _, "binding") => self.bind().await,
            ("POST", _, "token") => self.token(),
            ("POST", _, "eviction") => self.evict().await,
            ("PUT", _, "") => self.replace(Part::Main).await,
            ("PUT", _, "status") => self.replace(Part::Status).await,
            ("PUT", _, "scale") => self.replace_scale().await,
            ("PUT", _, "finalize") => self.finalize().await,
            ("PATCH", _, "") => self.patch(Part::Main).await,
            ("PATCH", _, "status") => self.patch(Part::Status).await,
            ("PATCH", _, "scale") => self.patch_scale().await,
            ("DELETE", "", _) => self.delete_many().await,
            ("DELETE", _, "") => self.delete().await,
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn get(&self) -> Result<Response<Body>, ApiError> {
        read::get(self.api, self.resource, &self.target, self.view).map(ok)
    }

    fn list(&self) -> Result<Response<Body>, ApiError> {
        read::list(self.api, self.resource, &self.target, &self.query, self.view).map(ok)
    }

    fn watch(&self) -> Result<Response<Body>, ApiError> {
        let watch = read::watch(self.api, self.resource, &self.target, &self.query, self.view)?;
        let about = About {
            group: self.target.group.to_owned(),
            version: self.target.version.to_owned(),
            resource: self.target.plural.to_owned(),
            ..About::default()
        };
        let watching = self.api.metrics.watching(&about);
        let frames = watch::lines(watch).map(move |line| {
            let _until_the_end = &watching;
            Ok(Frame::data(line))
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
        let media_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        Ok(response)
    }

    /// The object in the body, decoded as the kind of the path.
    fn object(&self) -> Result<(Value, Vec<String>), ApiError> {
        let mut object = body::read(self.media_type, &self.body)?;
        let warnings = body::decode_as(self.api, self.resource, &self.query, &mut object)?;
        Ok((object, warnings))
    }

    /// A question: answered, not stored.
    fn review(&self, method: &str) -> Result<Response<Body>, ApiError> {
        if method != "POST" {
            return Err(ApiError::method_not_allowed());
        }
        let (review, _) = self.object()?;
        let (plural, namespace) = (self.target.plural, self.target.namespace);
        let answer = reviews::answer(self.api, self.user, plural, namespace, review);
        Ok(respond(StatusCode::CREATED, answer.to_string()))
    }

    /// A token for a service account.
    fn token(&self) -> Result<Response<Body>, ApiError> {
        if self.resource.bucket != "serviceaccounts" {
            return Err(ApiError::no_such_path());
        }
        let account = object::value(&*read::entry(self.api, self.resource, &self.target)?);
        let request = body::read(self.media_type, &self.body)?;
        let issued = self.api.tokens.issue(&account, request)?;
        Ok(respond(StatusCode::CREATED, issued.to_string()))
    }

    fn check_escalation(&self, object: &Value) -> Result<(), ApiError> {
        authorize::escalation(self.api, self.user, self.resource, self.target.namespace, object)
    }

    async fn create(&self) -> Result<Response<Body>, ApiError> {
        let (object, warnings) = self.object()?;
        self.check_escalation(&object)?;
        let (namespace, dry_run) = (self.target.namespace, self.query.dry_run()?);
        let written = write::create(self.api, self.resource, namespace, object, dry_run).await?;
        Ok(self.wrote(written, warnings))
    }

    async fn replace(&self, part: Part) -> Result<Response<Body>, ApiError> {
        let (object, warnings) = self.object()?;
        self.check_escalation(&object)?;
        let Target { namespace, name, .. } = self.target;
        let dry_run = self.query.dry_run()?;
        let change = |_: &Value| Ok(object.clone());
        let written =
            write::update(self.api, self.resource, namespace, name, part, dry_run, change).await;
        let written = match written {
            Err(error)
                if error.reason == "NotFound"
                    && self.resource.info().create_on_update
                    && part == Part::Main =>
            {
                write::create(self.api, self.resource, namespace, object, dry_run).await?
            }
            other => other?,
        };
        Ok(self.wrote(written, warnings))
    }

    async fn patch(&self, part: Part) -> Result<Response<Body>, ApiError> {
        let patch = Patch::read(self.media_type, &self.body)?;
        let Target { namespace, name, .. } = self.target;
        let dry_run = self.query.dry_run()?;
        let warnings = std::sync::Mutex::new(Vec::new());
        let change = |old: &Value| {
            let mut new = patch.apply(self.api, self.resource, old)?;
            let found = body::decode_as(self.api, self.resource, &self.query, &mut new)?;
            self.check_escalation(&new)?;
            *warnings.lock().expect("nobody panics with the warnings") = found;
            Ok(new)
        };
        let written =
            write::update(self.api, self.resource, namespace, name, part, dry_run, change).await?;
        let warnings = warnings.into_inner().expect("nobody panics with the warnings");
        Ok(self.wrote(written, warnings))
    }

    fn get_scale(&self) -> Result<Response<Body>, ApiError> {
        self.check_scalable()?;
        let entry = read::entry(self.api, self.resource, &self.target)?;
        Ok(ok(scale::scale_of(&object::value(&entry)).to_string()))
    }

    async fn replace_scale(&self) -> Result<Response<Body>, ApiError> {
        let wanted = body::read(self.media_type, &self.body)?;
        self.scale(|old| scale::scaled(old, &wanted)).await
    }

    async fn patch_scale(&self) -> Result<Response<Body>, ApiError> {
        let patch = Patch::read(self.media_type, &self.body)?;
        self.scale(|old| {
            let mut wanted = scale::scale_of(old);
            wanted["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
            let wanted = match &patch {
                Patch::Json(_) => patch.apply(self.api, self.resource, &wanted)?,
                Patch::Merge(patch) | Patch::Strategic(patch) => {
                    roadstead_patch::merge(&mut wanted, patch)
                        .map_err(|error| ApiError::bad_request(error.to_string()))?;
                    wanted
                }
            };
            scale::scaled(old, &wanted)
        })
        .await
    }

    async fn scale(
        &self,
        change: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<Response<Body>, ApiError> {
        self.check_scalable()?;
        let Target { namespace, name, .. } = self.target;
        let dry_run = self.query.dry_run()?;
        let written =
            write::update(self.api, self.resource, namespace, name, Part::Main, dry_run, change)
                .await?;
        Ok(ok(scale::scale_of(&object::value(&written.entry)).to_string()))
    }

    fn check_scalable(&self) -> Result<(), ApiError> {
        if self.resource.info().scale { Ok(()) } else { Err(ApiError::no_such_path()) }
    }

    /// Puts a pod onto a node.
    async fn bind(&self) -> Result<Response<Body>, ApiError> {
        let binding = body::read(self.media_type, &self.body)?;
        let node = binding["target"]["name"].clone();
        let Target { namespace, name, .. } = self.target;
        let info = self.resource.info();
        let change = |old: &Value| {
            if let Some(taken) = old["spec"]["nodeName"].as_str() {
                let why = format!("pod {name} is already assigned to node {taken:?}");
                return Err(ApiError::conflict(info, name, &why));
            }
            let mut new = old.clone();
            new["spec"]["nodeName"] = node.clone();
            let now = write::seconds(jiff::Timestamp::now());
            let bound =
                json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now});
            new["status"]["conditions"] = json!([bound]);
            Ok(new)
        };
        let dry_run = self.query.dry_run()?;
        write::update(self.api, self.resource, namespace, name, Part::Whole, dry_run, change)
            .await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "code": 201});
        Ok(respond(StatusCode::CREATED, status.to_string()))
    }

    /// Deletes a pod, unless a budget forbids it.
    async fn evict(&self) -> Result<Response<Body>, ApiError> {
        if self.resource.bucket != "pods" {
            return Err(ApiError::no_such_path());
        }
        let eviction = body::read(self.media_type, &self.body)?;
        let pod = object::value(&*read::entry(self.api, self.resource, &self.target)?);
        let Target { namespace, name, .. } = self.target;
        delete::check_budgets(self.api, namespace, &pod)?;
        let options = delete::Options::read(&eviction["deleteOptions"], self.query.dry_run()?);
        delete::delete(self.api, self.resource, namespace, name, &options).await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "code": 201});
        Ok(respond(StatusCode::CREATED, status.to_string()))
    }

    /// Releases a namespace that is empty.
    async fn finalize(&self) -> Result<Response<Body>, ApiError> {
        let wanted = body::read(self.media_type, &self.body)?;
        let change = |old: &Value| {
            let mut new = old.clone();
            new["spec"] = wanted["spec"].clone();
            new["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            Ok(new)
        };
        let Target { namespace, name, .. } = self.target;
        let part = Part::Whole;
        let written =
            write::update(self.api, self.resource, namespace, name, part, false, change).await?;
        Ok(self.wrote(written, Vec::new()))
    }

    fn delete_options(&self) -> Result<delete::Options, ApiError> {
        let mut options = match self.body.is_empty() {
            true => Value::Null,
            false => body::read(self.media_type, &self.body)?,
        };
        if !self.query.get("gracePeriodSeconds").is_empty() {
            options["gracePeriodSeconds"] = self.query.number("gracePeriodSeconds")?.into();
        }
        if !self.query.get("propagationPolicy").is_empty() {
            options["propagationPolicy"] = self.query.get("propagationPolicy").into();
        }
        Ok(delete::Options::read(&options, self.query.dry_run()?))
    }

    async fn delete(&self) -> Result<Response<Body>, ApiError> {
        let options = self.delete_options()?;
        let Target { namespace, name, .. } = self.target;
        let deleted = delete::delete(self.api, self.resource, namespace, name, &options).await?;
        Ok(match deleted {
            Deleted::Going(entry) => ok(object::served(&entry)),
            Deleted::Gone(object) if self.resource.info().delete_returns_object => {
                ok(object.to_string())
            }
            Deleted::Gone(object) => ok(delete::success(self.resource, &object).to_string()),
        })
    }

    async fn delete_many(&self) -> Result<Response<Body>, ApiError> {
        let options = self.delete_options()?;
        let filter =
            crate::filter::Filter::new(self.resource, self.target.namespace, "", &self.query)?;
        let found = self.api.store.list(&self.resource.bucket, filter.prefix(), None)?;
        for entry in &found.entries {
            if !filter.matches(&entry.key.path, &entry.value) {
                continue;
            }
            let (namespace, name) = entry.key.path.split_once('/').unwrap_or(("", &entry.key.path));
            match delete::delete(self.api, self.resource, namespace, name, &options).await {
                Err(error) if error.reason == "NotFound" => {}
                result => {
                    result?;
                }
            }
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "details": {"kind": self.resource.info().plural}});
        Ok(ok(status.to_string()))
    }

    fn wrote(&self, written: Written, warnings: Vec<String>) -> Response<Body> {
        let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
        let body = match self.view {
            View::Object => write::answer(&written),
            view => view.one(self.resource, &written.entry, jiff::Timestamp::now()),
        };
        let mut response = respond(code, body);
        for warning in warnings.iter().chain(&written.warnings) {
            warn(&mut response, warning);
        }
        response
    }
}

/// Adds a line that clients show to their users.
fn warn(response: &mut Response<Body>, warning: &str) {
    let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().append(WARNING, value);
    }
}

fn ok(body: impl Into<Bytes>) -> Response<Body> {
    respond(StatusCode::OK, body)
}

fn text(body: impl Into<Bytes>) -> Response<Body> {
    let mut response = respond(StatusCode::OK, body);
    let media_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

fn respond(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    let media_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}
