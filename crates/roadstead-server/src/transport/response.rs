//! Answers: their body, and the headers that all of them have.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::json;

use crate::error::ApiError;
use crate::transport::{slices, warning};

/// The body of every answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The answer to a HEAD: how long the body would be, if that is known, and no body.
pub(crate) fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    Response::from_parts(parts, Full::default().boxed_unsync())
}

/// The Status of a refusal as a response.
pub(crate) fn failure(error: &ApiError) -> Response<Body> {
    let mut response = match error.plain {
        true => text(format!("{}\n", error.message)),
        false => respond(error.code, error.to_status().to_string()),
    };
    *response.status_mut() = error.code;
    let later = error.details.as_ref().and_then(|details| details["retryAfterSeconds"].as_u64());
    if let Some(seconds) = later {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// The answer to what happens to an object rather than makes one.
pub(crate) fn created() -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Success", "code": 201});
    respond(StatusCode::CREATED, status.to_string())
}

/// Adds a line that clients show to their users.
pub(crate) fn warn(response: &mut Response<Body>, text: &str) {
    warning::add(response.headers_mut(), text);
}

pub(crate) fn ok(body: impl Into<Bytes>) -> Response<Body> {
    respond(StatusCode::OK, body)
}

pub(crate) fn text(body: impl Into<Bytes>) -> Response<Body> {
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
