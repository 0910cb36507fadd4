//! Refusals, in the code, reason and wording that Kubernetes uses for them.

use http::StatusCode;
use roadstead_api::kind::Info;
use roadstead_schema::invalid::Cause;
use roadstead_store::entry::Key;
use roadstead_store::error::StoreError;
use serde_json::{Value, json};

/// A refusal that reaches the client as a `Status`.
#[derive(Debug)]
pub struct ApiError {
    /// The HTTP status.
    pub code: StatusCode,
    /// The word that clients act on.
    pub reason: &'static str,
    /// The sentence that people read.
    pub message: String,
    /// `status.details`, if there is more to say.
    pub details: Option<Value>,
    /// Where the client may go on with its list; empty if nowhere.
    pub next: String,
    /// Whether it is said in plain text, for clients to put it in their own words.
    pub(crate) plain: bool,
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        let (message, next) = (message.into(), String::new());
        Self { code, reason, message, details: None, next, plain: false }
    }

    fn about(mut self, info: &Info, name: &str) -> Self {
        self.details = Some(json!({"name": name, "group": info.group, "kind": info.plural}));
        self
    }

    /// The request makes no sense.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// Nobody knows who is asking.
    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// The one who asks may not.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// The one who asks may not do this with this object.
    pub(crate) fn forbidden_object(info: &Info, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", info.resource());
        Self::forbidden(message).about(info, name)
    }

    /// There is no such path.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        let mut error = Self::new(StatusCode::NOT_FOUND, "NotFound", message);
        error.details = Some(json!({}));
        error
    }

    /// There is no such object.
    pub(crate) fn not_found(info: &Info, name: &str) -> Self {
        let message = format!("{} {name:?} not found", info.resource());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(info, name)
    }

    /// There is no such object, of a kind that is called otherwise than its path.
    pub(crate) fn not_found_by_name(kind: &str, group: &str, name: &str) -> Self {
        let message = format!("{kind}.{group} {name:?} not found");
        let mut error = Self::new(StatusCode::NOT_FOUND, "NotFound", message);
        error.details = Some(json!({"name": name, "group": group, "kind": kind}));
        error
    }

    /// There is such a path, but not for this method.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// There is such an object already.
    pub(crate) fn already_exists(info: &Info, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", info.resource());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(info, name)
    }

    /// Somebody else changed the object first.
    pub(crate) fn modified(info: &Info, name: &str) -> Self {
        Self::conflict(
            info,
            name,
            "the object has been modified; please apply your changes to the latest version and \
             try again",
        )
    }

    /// The object is not what the request expects it to be.
    pub(crate) fn conflict(info: &Info, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", info.resource());
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(info, name)
    }

    /// The object is wrong.
    pub(crate) fn invalid(info: &Info, name: &str, causes: &[Cause]) -> Self {
        let mut different: Vec<&Cause> = Vec::new();
        for cause in causes {
            if !different.contains(&cause) {
                different.push(cause);
            }
        }
        let lines: Vec<_> = different.iter().map(ToString::to_string).collect();
        let lines = match &lines[..] {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let kind = match info.group {
            "" => info.kind.to_owned(),
            group => format!("{}.{group}", info.kind),
        };
        let message = format!("{kind} {name:?} is invalid: {lines}");
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        let causes: Vec<_> = different.into_iter().map(Cause::to_json).collect();
        error.details =
            Some(json!({"name": name, "group": info.group, "kind": info.kind, "causes": causes}));
        error
    }

    /// The parameters of a request are wrong; `kind` is what upstream calls them together.
    pub(crate) fn invalid_options(kind: &'static str, causes: &[Cause]) -> Self {
        Self::invalid(&Info::new("meta.k8s.io", "v1", kind, "", ""), "", causes)
    }

    /// The parameters of a request to connect to a pod are wrong.
    pub(crate) fn invalid_pod_options(kind: &'static str, pod: &str, causes: &[Cause]) -> Self {
        Self::invalid(&Info::new("", "v1", kind, "", ""), pod, causes)
    }

    /// The namespace is being deleted: nothing new may be put into it.
    pub(crate) fn terminating(info: &Info, name: &str, namespace: &str) -> Self {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let mut error = Self::forbidden_object(info, name, &why);
        if let Some(details) = &mut error.details {
            let cause = format!("namespace {namespace} is being terminated");
            details["causes"] = json!([{"reason": "NamespaceTerminating", "message": cause,
                "field": "metadata.namespace"}]);
        }
        error
    }

    /// An applied configuration does not fit the schema (upstream gives no reason either).
    pub(crate) fn untyped(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// Others own what a configuration would change.
    pub(crate) fn owned_by_others(
        info: &Info,
        name: &str,
        message: String,
        causes: Vec<Value>,
    ) -> Self {
        let mut error = Self::new(StatusCode::CONFLICT, "Conflict", message).about(info, name);
        if let Some(details) = &mut error.details {
            details["causes"] = causes.into();
        }
        error
    }

    /// The patch makes sense, but not for this object.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    /// The body is in a format we do not read.
    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             {accepted}"
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// The client accepts nothing that we can write.
    pub(crate) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, \
            application/yaml, application/json;as=Table;v=v1;g=meta.k8s.io";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// The body is larger than anything we store.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::entity_too_large(format!("Request entity too large: limit is {limit}"))
    }

    /// What the request makes is larger than anything we store.
    pub(crate) fn entity_too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// The history that the client wants to read is gone.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// The state of the first page is gone: the client may begin anew, or take what there is now.
    pub(crate) fn inconsistent(next: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list \
            result. You can start a new list without the continue parameter, or use the continue \
            token in this response to retrieve the remainder of the results. Continuing with the \
            provided token results in an inconsistent list - objects that were created, modified, \
            or deleted between the time the first chunk was returned and now may show up in the \
            list.";
        Self { next, ..Self::expired(message) }
    }

    /// The client asks for a state that nobody has written yet.
    pub(crate) fn too_large_version(asked: u64, newest: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {newest}");
        let mut error = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        let cause = "Too large resource version";
        error.details = Some(json!({"retryAfterSeconds": 1,
            "causes": [{"reason": "ResourceVersionTooLarge", "message": cause}]}));
        error
    }

    /// The client did not finish its request.
    pub(crate) fn timeout() -> Self {
        let message = "Timeout: request did not complete within the allotted timeout";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    /// What is asked for cannot be reached now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// What is asked for cannot be reached, and soon will be: clients ask again by themselves.
    fn for_a_moment(message: String) -> Self {
        let details = Some(json!({"retryAfterSeconds": 1}));
        Self { details, ..Self::unavailable(message) }
    }

    /// Whether it is a refusal that follows from what is stored, and not a failure to look at it.
    pub(crate) fn is_refusal(&self) -> bool {
        self.code.is_client_error()
    }

    /// Later, please: after so many seconds, unless they are none.
    pub(crate) fn too_many_requests(message: impl Into<String>, seconds: u64) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        error.details = (seconds > 0).then(|| json!({"retryAfterSeconds": seconds}));
        error
    }

    /// There is no seat for the request now.
    pub(crate) fn busy() -> Self {
        let words = "Too many requests, please try again later.";
        Self { plain: true, ..Self::too_many_requests(words, 1) }
    }

    /// Upstream has this, we do not (yet).
    pub(crate) fn not_implemented(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    /// What the agent of a node has said about a request that was handed on to it.
    pub(crate) fn by_agent(code: StatusCode, message: String) -> Self {
        match code {
            StatusCode::BAD_REQUEST => Self::bad_request(message),
            StatusCode::FORBIDDEN => Self::forbidden(message),
            StatusCode::NOT_FOUND => Self::new(code, "NotFound", message),
            StatusCode::NOT_IMPLEMENTED => Self::not_implemented(message),
            code if code.is_client_error() => Self::new(code, "BadRequest", message),
            _ => Self::internal(message),
        }
    }

    /// The definition of a custom kind is going: nothing new may be made of it.
    pub(crate) fn definition_terminating() -> Self {
        let message = "create not allowed while custom resource definition is terminating";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// We did something that we thought impossible.
    pub(crate) fn panicked() -> Self {
        Self::internal("This request caused apiserver to panic. Pointer in the logs for details.")
    }

    /// Objects in the store are not what was written (upstream's StorageReadError).
    pub(crate) fn unreadable(info: &Info, found: &[(Key, String)]) -> Self {
        let some = found.iter().take(20);
        let named: Vec<_> = some.clone().map(|(key, why)| format!("{key}: {why}")).collect();
        let more = match found.len() - named.len() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let message = format!(
            "failed to read one or more {} from the storage: {}{more} (an administrator can delete what \
             cannot be read)",
            info.plural,
            named.join(", ")
        );
        let mut error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "StorageReadError", message);
        let causes = some.map(|(key, why)| {
            json!({"reason": "UnexpectedServerResponse", "message": why, "field": key.to_string()})
        });
        let causes: Vec<_> = causes.collect();
        error.details = Some(json!({"group": info.group, "kind": info.plural, "causes": causes}));
        error
    }

    /// Something went wrong that is not the client's fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let why = message.into();
        let message = format!("Internal error occurred: {why}");
        let mut error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message);
        error.details = Some(json!({"causes": [{"message": why}]}));
        error
    }

    /// The body of the answer.
    pub(crate) fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        if !self.next.is_empty() {
            status["metadata"]["continue"] = self.next.clone().into();
        }
        status
    }
}

/// For reads: writes handle conflicts themselves.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Compacted { asked, oldest } => {
                Self::expired(format!("too old resource version: {asked} ({oldest})"))
            }
            StoreError::Future { asked, newest } => Self::too_large_version(asked.0, newest.0),
            conflict @ StoreError::Conflict { .. } => Self::internal(conflict.to_string()),
            // Upstream gives no reason either.
            full @ StoreError::Full { .. } => Self::untyped(full.to_string()),
            // As Kubernetes answers when etcd is out of space.
            failed @ StoreError::ReadOnly { .. } => Self::internal(failed.to_string()),
            // Nobody is told to ask again: it takes somebody who makes room.
            full @ StoreError::NoSpace { .. } => Self::unavailable(full.to_string()),
            away @ StoreError::Unavailable { .. } => Self::for_a_moment(away.to_string()),
            unknown @ StoreError::Unknown { .. } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", unknown.to_string())
            }
            StoreError::TooLarge { cause } => Self::entity_too_large(&*cause),
        }
    }
}
