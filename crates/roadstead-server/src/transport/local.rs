//! The API server as a `tower` service, for components in the same process: same router, same
//! rules, no socket.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tower::Service;

use crate::api::Api;
use crate::identity::user::User;
use crate::request::chain::handle;
use crate::transport::response::Body;

/// Answers requests as one user.
#[derive(Clone)]
pub struct Local {
    api: Arc<Api>,
    user: User,
}

impl Local {
    /// The service as that user.
    pub fn new(api: Arc<Api>, user: User) -> Self {
        Self { api, user }
    }
}

impl<B> Service<Request<B>> for Local
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (api, user) = (self.api.clone(), self.user.clone());
        Box::pin(async move { Ok(handle(api, user, request).await) })
    }
}
