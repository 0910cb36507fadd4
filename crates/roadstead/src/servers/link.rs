//! A connection to one API server, which all requests of a client to it share. A server that is silent is noticed:
//! it is pinged, and a connection without answers is over.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::Body;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Server;

/// How much may be on its way to one reader; readers that rest do not keep others waiting.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// How patient we are with a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// To be let in.
    pub(super) connect: Duration,
    /// Between the last that was heard and a ping.
    pub(super) ping: Duration,
    /// From there to an answer.
    pub(super) pong: Duration,
}

impl Patience {
    /// There is somebody else to ask. A machine that has much to do is not silent for so long.
    pub(super) const SHORT: Self = Self::new(3, 2, 3);
    /// There is what was known before.
    pub(super) const WITH_ARCHIVE: Self = Self::new(1, 10, 20);
    /// There is not.
    pub(super) const LONG: Self = Self::new(10, 10, 20);

    const fn new(connect: u64, ping: u64, pong: u64) -> Self {
        let [connect, ping, pong] =
            [Duration::from_secs(connect), Duration::from_secs(ping), Duration::from_secs(pong)];
        Self { connect, ping, pong }
    }
}

/// How a connection ended.
pub(super) enum End {
    /// The server wanted it so.
    Farewell,
    Broken(String),
}

/// What a connection is, once there is one.
#[derive(Clone)]
pub(super) enum Link {
    Shared(http2::SendRequest<Body>),
    /// The server takes one request at a time on a connection: each has one of its own.
    Single,
}

impl Link {
    /// Whether nothing can be asked here any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Shared(sender) if sender.is_closed())
    }
}

/// A connection in the making, for all who wait for it.
pub(super) type Linking = Shared<BoxFuture<'static, Result<Link, Arc<io::Error>>>>;

/// How to be believed, and whom to believe.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) config: Arc<rustls::ClientConfig>,
    /// The name of all servers, if it is not that of their address.
    pub(super) name: Option<String>,
}

/// Connects; `ended` hears of the end.
pub(super) fn link(
    server: Server,
    tls: Tls,
    patience: Patience,
    ended: impl FnOnce(End) + Send + 'static,
) -> Linking {
    let linking = async move {
        let stream = connect(&server, &tls, patience).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Ok::<_, io::Error>(Link::Single);
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new());
        builder.keep_alive_interval(patience.ping).keep_alive_timeout(patience.pong);
        builder.keep_alive_while_idle(true);
        builder.initial_stream_window_size(STREAM_WINDOW);
        builder.initial_connection_window_size(CONNECTION_WINDOW);
        let made = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(io::Error::other)?;
        tokio::spawn(async move {
            ended(match connection.await {
                Ok(()) => End::Farewell,
                Err(error) => End::Broken(described(&error)),
            });
        });
        Ok(Link::Shared(sender))
    };
    // It goes on although whoever has asked for it waits no longer: others may.
    let linking = tokio::spawn(linking);
    let made = linking.map(|ended| ended.map_err(io::Error::other).flatten().map_err(Arc::new));
    made.boxed().shared()
}

/// A connection for a single request.
pub(super) async fn single(
    server: &Server,
    tls: &Tls,
    patience: Patience,
) -> io::Result<http1::SendRequest<Body>> {
    let stream = connect(server, tls, patience).await?;
    let made = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn connect(
    server: &Server,
    tls: &Tls,
    patience: Patience,
) -> io::Result<TlsStream<TcpStream>> {
    let host = server.host().to_owned();
    let name = ServerName::try_from(tls.name.clone().unwrap_or(host.clone()));
    let name = name.map_err(io::Error::other)?;
    let connecting = async {
        let stream = TcpStream::connect((host.as_str(), server.port())).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(tls.config.clone()).connect(name, stream).await
    };
    let connected = time::timeout(patience.connect, connecting).await;
    connected.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")))
}

/// An error with its causes.
pub(super) fn described(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
