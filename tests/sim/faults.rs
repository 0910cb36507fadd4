//! A client whose requests fail and whose watches break, as a seed decides.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use kube::client::Body;
use roadstead_server::local::Local;
use tower::Service;

/// Numbers that only depend on a seed.
#[derive(Clone, Debug)]
pub struct Random(Arc<AtomicU64>);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)))
    }

    /// A number below `bound` (SplitMix64).
    pub fn below(&self, bound: u64) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// True once in `n` times.
    pub fn once_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The API server behind a bad line.
#[derive(Clone)]
pub struct BadLine {
    server: Local,
    random: Random,
    /// Whether there is trouble now.
    pub troubled: Arc<AtomicBool>,
    /// Writes of all kinds but events, and those of EndpointSlices among them.
    pub writes: Arc<(AtomicU64, AtomicU64)>,
}

impl BadLine {
    pub fn new(server: Local, random: Random) -> Self {
        let troubled = Arc::new(AtomicBool::new(true));
        Self { server, random, troubled, writes: Arc::default() }
    }

    fn count(&self, request: &Request<Body>) {
        let path = request.uri().path();
        if !path.contains("/events") {
            self.writes.0.fetch_add(1, Ordering::Relaxed);
            self.writes.1.fetch_add(u64::from(path.contains("/endpointslices")), Ordering::Relaxed);
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
        let troubled = self.troubled.load(Ordering::Relaxed);
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let is_write = request.method() != Method::GET;
        if is_write {
            self.count(&request);
        }
        Box::pin(async move {
            if troubled && is_write && random.once_in(12) {
                return Ok(unavailable());
            }
            let response = server.call(request).await?;
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
