//! An API server over a store in memory, asked one request at a time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::{RETRY_AFTER, WARNING};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use roadstead_server::api::Api;
use roadstead_server::bootstrap;
use roadstead_server::config::{Config, Neighbours, Services};
use roadstead_server::identity::audit::Audit;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::identity::user::User;
use roadstead_server::node_agents::LocalAgent;
use roadstead_server::objects::admission_plugins::Plugins;
use roadstead_server::request::chain::handle;
use roadstead_server::transport::response::Body;
use roadstead_store::kv::Store;
use serde_json::Value;
use tokio::io::DuplexStream;
use tokio::time;

/// The server.
pub(crate) struct Server(Arc<Api>);

/// What it answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub code: u16,
    pub body: Value,
    /// The body as it came, for answers that are not JSON.
    pub text: String,
    pub warnings: Vec<String>,
    /// When the client may come again.
    pub retry_after: Option<String>,
    /// The schema and the level that the request belonged to.
    pub flow: String,
}

impl Answer {
    async fn read(response: http::Response<Body>) -> Self {
        let warnings = response.headers().get_all(WARNING).iter();
        let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
        let uid = |kind: &str| {
            let value = response.headers().get(format!("x-kubernetes-pf-{kind}-uid"));
            value.map_or("", |value| value.to_str().unwrap())
        };
        let flow = format!("{} {}", uid("flowschema"), uid("prioritylevel"));
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or_default();
        Self { code, body, text, warnings, retry_after, flow }
    }
}

impl Server {
    pub(crate) async fn new() -> Self {
        Self::over(Store::memory()).await
    }

    pub(crate) async fn over(store: Arc<Store>) -> Self {
        Self::with(store, None).await
    }

    pub(crate) async fn with(store: Arc<Store>, audit: Option<Audit>) -> Self {
        Self::with_all(store, audit, Services::default()).await
    }

    /// With choices about Services.
    pub(crate) async fn with_services(services: Services) -> Self {
        Self::over_with_services(Store::memory(), services).await
    }

    pub(crate) async fn over_with_services(store: Arc<Store>, services: Services) -> Self {
        Self::with_all(store, None, services).await
    }

    async fn with_all(store: Arc<Store>, audit: Option<Audit>, services: Services) -> Self {
        let range = "10.96.0.0/16".parse().unwrap();
        let config = Config { service_range: range, advertise: None, audit };
        let tokens = Tokens::ephemeral().unwrap();
        let api = Api::with_services(store, config, services, tokens);
        bootstrap::run(&api).await.unwrap();
        Self(api)
    }

    /// A server without some admission plugins, for others to reach at an address.
    pub(crate) async fn without(plugins: &[&str]) -> Self {
        let off: Vec<_> = plugins.iter().map(|name| name.to_string()).collect();
        let range = "10.96.0.0/16".parse().unwrap();
        let advertise = Some(("192.0.2.1".parse().unwrap(), 6443));
        let config = Config { service_range: range, advertise, audit: None };
        let api = Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
        api.set_plugins(Plugins::choose(&[], &off).unwrap());
        bootstrap::run(&api).await.unwrap();
        Self(api)
    }

    /// Gives the server the agent of a node.
    pub(crate) fn set_local_agent(&self, agent: LocalAgent) {
        self.0.set_local_agent(agent);
    }

    /// Tells the server what is around it.
    pub(crate) fn set_neighbours(&self, neighbours: Neighbours) {
        self.0.set_neighbours(neighbours);
    }

    /// Sends a body of JSON (or, for PATCH, a merge patch) and returns the answer.
    pub(crate) async fn ask(&self, request: &str, body: impl ToString) -> Answer {
        self.ask_as(request, media_type(request), body).await
    }

    pub(crate) async fn ask_as(
        &self,
        request: &str,
        media_type: &str,
        body: impl ToString,
    ) -> Answer {
        self.send_bytes(request, media_type, body.to_string().into()).await
    }

    /// As this user, with these headers.
    pub(crate) async fn ask_by(
        &self,
        user: User,
        headers: &[(&str, &str)],
        request: &str,
    ) -> Answer {
        let (method, path) = request.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from_static(b"{}"))).unwrap();
        Answer::read(handle(self.0.clone(), user, request).await).await
    }

    /// As this user, a body of JSON or a merge patch.
    pub(crate) async fn ask_for(&self, user: User, request: &str, body: impl ToString) -> Answer {
        self.ask_with(user, request, media_type(request), body).await
    }

    pub(crate) async fn ask_with(
        &self,
        user: User,
        request: &str,
        media_type: &str,
        body: impl ToString,
    ) -> Answer {
        let body = body.to_string().into();
        Answer::read(self.send_for(user, request, media_type, body).await).await
    }

    /// As this user: why it is forbidden, or "" if it is not. Bodies that never end are not read.
    pub(crate) async fn forbids(&self, user: User, request: &str) -> String {
        let body = Bytes::from_static(b"{}");
        let response = self.send_for(user, request, media_type(request), body).await;
        match response.status().as_u16() {
            403 => Answer::read(response).await.text,
            _ => String::new(),
        }
    }

    /// As this user, whatever it is.
    pub(crate) async fn send_request<B>(&self, user: User, request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Answer::read(handle(self.0.clone(), user, request).await).await
    }

    /// A connection on which our own components speak HTTP/1.1.
    pub(crate) fn connect(&self) -> DuplexStream {
        let (client, stream) = tokio::io::duplex(64 << 10);
        let api = self.0.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(handle(api, User::component(), request).await) }
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        tokio::spawn(served.with_upgrades());
        client
    }

    pub(crate) async fn send_bytes(
        &self,
        request: &str,
        media_type: &str,
        body: Vec<u8>,
    ) -> Answer {
        Answer::read(self.send(request, media_type, body.into()).await).await
    }

    /// Reads a watch until nothing more comes for a while; the events without their envelopes.
    pub(crate) async fn watch(&self, path: &str) -> Vec<(String, Value)> {
        let response = self.send(&format!("GET {path}"), "", Bytes::new()).await;
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Ok(Some(frame)) = time::timeout(Duration::from_millis(200), body.frame()).await {
            text.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        let lines = std::str::from_utf8(&text).unwrap().lines();
        let event = |line: &str| {
            let mut event: Value = serde_json::from_str(line).unwrap();
            (event["type"].as_str().unwrap().to_owned(), event["object"].take())
        };
        lines.map(event).collect()
    }

    async fn send(&self, request: &str, media_type: &str, body: Bytes) -> http::Response<Body> {
        self.send_for(User::component(), request, media_type, body).await
    }

    async fn send_for(
        &self,
        user: User,
        request: &str,
        media_type: &str,
        body: Bytes,
    ) -> http::Response<Body> {
        let (method, path) = request.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", media_type).body(Full::new(body)).unwrap();
        handle(self.0.clone(), user, request).await
    }
}

fn media_type(request: &str) -> &'static str {
    match request.starts_with("PATCH") {
        true => "application/merge-patch+json",
        false => "application/json",
    }
}
