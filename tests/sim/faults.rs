//! A client whose requests fail and whose watches break, as a seed decides.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use kube::client::Body;
use roadstead_server::transport::local::Local;
use tower::Service;

/// Numbers that only depend on a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(Arc<AtomicU64>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)))
    }

    /// A number below `bound` (SplitMix64).
    pub(crate) fn below(&self, bound: u64) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The API server behind a bad line.
#[derive(Clone)]
pub(crate) struct BadLine {
    server: Local,
    random: Random,
    /// Whether there is trouble now.
    pub troubled: Arc<AtomicBool>,
    /// Writes of all kinds but events.
    pub writes: Arc<Mutex<Vec<String>>>,
    /// Requests that were forbidden.
    pub refused: Arc<Mutex<Vec<String>>>,
}

impl BadLine {
    pub(crate) fn new(server: Local, random: Random) -> Self {
        let troubled = Arc::new(AtomicBool::new(true));
        Self { server, random, troubled, writes: Arc::default(), refused: Arc::default() }
    }

    /// The same line for somebody else.
    pub(crate) fn to(&self, server: Local) -> Self {
        Self { server, ..self.clone() }
    }

    fn note(&self, request: &Request<Body>) {
        let path = request.uri().path();
        if !path.contains("/events") {
            self.writes.lock().unwrap().push(format!("{} {path}", request.method()));
        }
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl Service<Request<Body>> for BadLine {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut server, random) = (self.server.clone(), self.random.clone());
        let refused = self.refused.clone();
        let troubled = self.troubled.load(Ordering::Relaxed);
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let is_write = request.method() != Method::GET;
        if is_write {
            self.note(&request);
        }
        Box::pin(async move {
            if troubled && is_write && random.once_in(12) {
                return Ok(unavailable());
            }
            let asked = format!("{} {}", request.method(), request.uri());
            let response = server.call(request).await?;
            if response.status() == StatusCode::FORBIDDEN {
                refused.lock().unwrap().push(asked);
            }
            if troubled && is_write && random.once_in(12) {
                // It happened, but nobody hears of it.
                return Ok(unavailable());
            }
            if troubled && is_watch && random.once_in(3) {
                let (parts, body) = response.into_parts();
                let frames = BodyStream::new(body).take(random.below(6) as usize);
                return Ok(Response::from_parts(parts, StreamBody::new(frames).boxed_unsync()));
            }
            Ok(response)
        })
    }
}

fn unavailable() -> Answer {
    let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError",
        "message":"the line is bad","code":500}"#;
    let mut response = Response::new(Full::new(Bytes::from(status)).boxed_unsync());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}
