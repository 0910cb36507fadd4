//! Answers that are not about objects: discovery, OpenAPI, health and metrics.

use futures::StreamExt;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::Value;

use crate::api::Api;
use crate::error::ApiError;
use crate::identity::tokens;
use crate::request::chain::ActiveRequest;
use crate::transport::etag;
use crate::transport::response::{Body, ok, respond, text};

pub(crate) mod discovery;
mod health;
pub(crate) mod made;
pub(crate) mod metrics;
mod openapi;
mod state;

use made::Document;

/// Answers a request for a path that is not about objects.
pub(crate) async fn answer(request: &ActiveRequest) -> Result<Response<Body>, ApiError> {
    let path = request.parts.uri.path();
    if path == "/debug/snapshot" {
        request.api.storage.store.fresh().await?;
        return Ok(snapshot(&request.api));
    }
    // Health does not wait for kinds to be read.
    let response = match at_once(request, path) {
        Some(known) => known,
        None => about_kinds(request, path).await.ok_or_else(ApiError::no_such_path)?,
    };
    match ["/api", "/apis", "/openapi"].iter().any(|root| path.starts_with(root)) {
        true => Ok(etag::answer(&request.parts.headers, &request.flow, response).await),
        false => Ok(response),
    }
}

/// What depends on nothing but the kinds that there are.
async fn about_kinds(request: &ActiveRequest, path: &str) -> Option<Response<Body>> {
    let registry = request.api.registry();
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let document = Document::at(&registry, &parts, request.header(ACCEPT))?;
    let media_type = document.media_type();
    let mut response = ok(made::get(&registry, &request.flow, document).await);
    if let Some(media_type) = media_type {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    Some(response)
}

/// What is known at once.
fn at_once(request: &ActiveRequest, path: &str) -> Option<Response<Body>> {
    let ActiveRequest { api, .. } = request;
    let json = |value: Value| Some(respond(StatusCode::OK, value.to_string()));
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    match parts[..] {
        [endpoint @ ("healthz" | "livez" | "readyz"), ref check @ ..] => {
            let state = (&*api.storage.store, api.traffic.is_leaving());
            health::answer(state, endpoint, check, request.parts.uri.query())
        }
        ["debug", "api_priority_and_fairness", "dump_priority_levels"] => {
            Some(text(api.traffic.fairness.dump_levels()))
        }
        ["debug", "api_priority_and_fairness", "dump_queues"] => {
            Some(text(api.traffic.fairness.dump_queues()))
        }
        ["debug", "state"] => Some(respond(StatusCode::OK, format!("{:#}\n", state::page(api)))),
        ["metrics"] => Some(text(api.metrics.text(api))),
        ["version"] => json(discovery::version()),
        ["openid", "v1", "jwks"] => json(api.identity.tokens.key_set()),
        [".well-known", "openid-configuration"] => json(tokens::discovery()),
        _ => None,
    }
}

/// The whole store as a file, for `roadstead snapshot save`.
fn snapshot(api: &Api) -> Response<Body> {
    let pieces = roadstead_store::snapshot::write(&api.storage.store);
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
