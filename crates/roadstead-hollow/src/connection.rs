//! A connection by HTTP/2 over TLS that many share, and that is made anew when it has ended.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

/// How to reach the server.
#[derive(Clone)]
pub(crate) struct Server {
    authority: String,
    host: String,
    tls: Arc<ClientConfig>,
}

impl Server {
    pub(crate) async fn of(kubeconfig: &Path) -> anyhow::Result<Self> {
        let config = Kubeconfig::read_from(kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options).await?;
        let authority = config.cluster_url.authority().context("a server without a name")?;
        let host = config.cluster_url.host().context("a server without a name")?.to_owned();
        let mut tls = config.rustls_client_config()?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { authority: authority.to_string(), host, tls: Arc::new(tls) })
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        let name = self.host.clone().try_into()?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(1 << 20).initial_connection_window_size(16 << 20);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// One connection, as long as the run.
pub(crate) struct Connection {
    server: Server,
    sender: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// What to ask.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: Bytes::new() }
    }

    pub(crate) fn with(mut self, body: String) -> Self {
        self.body = body.into();
        self
    }
}

impl Connection {
    pub(crate) fn new(server: &Server) -> Arc<Self> {
        Arc::new(Self { server: server.clone(), sender: Mutex::default() })
    }

    /// Sends a request; another connection is made if this one has ended.
    pub(crate) async fn send(&self, call: &Call) -> anyhow::Result<http::Response<Incoming>> {
        let media = match call.method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(call.method.clone())
            .uri(format!("https://{}{}", self.server.authority, call.path))
            .header("content-type", media)
            .header("user-agent", "roadstead-hollow")
            .body(Full::new(call.body.clone()))?;
        let mut sender = {
            let mut known = self.sender.lock().await;
            match &*known {
                Some(sender) if !sender.is_closed() => sender.clone(),
                _ => known.insert(self.server.connect().await?).clone(),
            }
        };
        sender.ready().await?;
        Ok(sender.send_request(request).await?)
    }

    /// Sends a request and reads its whole answer.
    pub(crate) async fn ask(&self, call: &Call) -> anyhow::Result<(StatusCode, Bytes)> {
        let response = self.send(call).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    /// The same, and it must be answered well.
    pub(crate) async fn must(&self, call: &Call) -> anyhow::Result<Bytes> {
        let (status, body) = self.ask(call).await?;
        if !status.is_success() {
            let said = String::from_utf8_lossy(&body);
            bail!("{} {}: {status} {said}", call.method, call.path);
        }
        Ok(body)
    }
}
