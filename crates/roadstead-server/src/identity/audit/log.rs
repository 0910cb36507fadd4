//! The lines of the audit log, and where they go.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use jiff::Timestamp;
use serde_json::{Value, json};
use tracing::warn;

use crate::identity::audit::{Annotations, Level, Policy};
use crate::identity::user::User;
use crate::kinds::private::redacted;
use crate::kinds::review::shown;
use crate::request::RequestInfo;
use crate::request::body;
use crate::transport::response::Body;

/// Where the lines go.
pub struct Audit {
    policy: Policy,
    file: Mutex<File>,
}

impl Audit {
    /// Appends to a file.
    pub fn new(policy: Policy, file: File) -> Self {
        Self { policy, file: Mutex::new(file) }
    }

    fn write(&self, event: &Value) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writeln!(file, "{event}") {
            warn!(%error, "cannot write the audit log");
        }
    }
}

/// A request that has been answered.
pub(crate) struct Request<'a> {
    /// By which the client knows it.
    pub id: &'a str,
    /// Who asked.
    pub user: &'a User,
    /// Whom they act as, if that is somebody else.
    pub impersonated: Option<&'a User>,
    pub info: &'a RequestInfo,
    /// The form of the body.
    pub media_type: &'a str,
    /// The body of the request.
    pub body: &'a Bytes,
    /// When the request arrived.
    pub received: Timestamp,
    pub source: Option<IpAddr>,
}

impl Request<'_> {
    fn event(&self, level: Level, code: u16) -> Value {
        let (info, path) = (self.info, self.info.resource());
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1",
            "level": format!("{level:?}"), "auditID": self.id,
            "requestURI": info.uri(), "verb": info.verb,
            "user": shown(self.user),
            "responseStatus": {"metadata": {}, "code": code},
            "requestReceivedTimestamp": format!("{:.6}", self.received),
        });
        if let Some(user) = self.impersonated {
            event["impersonatedUser"] = shown(user);
        }
        if info.path.is_some() {
            event["objectRef"] = json!({"resource": path.plural, "namespace": path.namespace,
                "name": path.name, "apiGroup": path.group, "apiVersion": path.version,
                "subresource": path.subresource});
        }
        if let Some(address) = self.source {
            event["sourceIPs"] = json!([address.to_string()]);
        }
        if level >= Level::Request && !self.body.is_empty() {
            let object = body::read(self.media_type, self.body);
            // Patches have media types of their own, but are JSON or YAML all the same.
            let object = object.or_else(|_| body::yaml(self.body).map(|document| document.value));
            event["requestObject"] = redacted(object.unwrap_or_default());
        }
        event
    }
}

/// Writes what the policy wants to know about an answer, and returns the answer.
pub(crate) async fn answered(
    audit: Option<&Arc<Audit>>,
    request: &Request<'_>,
    response: Response<Body>,
) -> Response<Body> {
    let Some(audit) = audit else { return response };
    let level = audit.policy.level(request.user, request.info);
    if level == Level::None {
        return response;
    }
    let omits = |stage| audit.policy.omits(request.user, request.info, stage);
    let mut event = request.event(level, response.status().as_u16());
    for (name, text) in response.extensions().get::<Annotations>().map_or(&[][..], |own| &own.0) {
        event["annotations"][name] = text.as_str().into();
    }
    if request.info.verb == "watch" && response.status().is_success() {
        if !omits(STARTED) {
            audit.write(&staged(&event, STARTED));
        }
        let end = End { audit: audit.clone(), event: (!omits(COMPLETE)).then_some(event) };
        return watched(response, end);
    }
    if omits(COMPLETE) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let bytes = match level {
        // Nobody needs the bytes of an answer that is not written.
        Level::None | Level::Metadata | Level::Request => {
            audit.write(&staged(&event, COMPLETE));
            return Response::from_parts(parts, body);
        }
        Level::RequestResponse => body.collect().await.unwrap_or_else(|never| match never {}),
    };
    let bytes = bytes.to_bytes();
    event["responseObject"] = redacted(serde_json::from_slice(&bytes).unwrap_or_default());
    audit.write(&staged(&event, COMPLETE));
    Response::from_parts(parts, Full::new(bytes).boxed_unsync())
}

const STARTED: &str = "ResponseStarted";
const COMPLETE: &str = "ResponseComplete";

fn staged(event: &Value, stage: &str) -> Value {
    let mut event = event.clone();
    event["stage"] = stage.into();
    event["stageTimestamp"] = format!("{:.6}", Timestamp::now()).into();
    event
}

/// Writes the last line about a watch when it ends, whoever ends it.
struct End {
    audit: Arc<Audit>,
    event: Option<Value>,
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(event) = &self.event {
            self.audit.write(&staged(event, COMPLETE));
        }
    }
}

fn watched(response: Response<Body>, end: End) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let frames = BodyStream::new(body).map(move |frame| {
        let _until_the_end = &end;
        frame
    });
    Response::from_parts(parts, BodyExt::boxed_unsync(StreamBody::new(frames)))
}
