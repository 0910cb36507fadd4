//! The listener: TLS, HTTP/1.1 and HTTP/2, one task per connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::time;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::api::{Api, User};
use crate::http::handle;
use crate::identity::user_of;

/// A client that does not finish its handshake or its headers within this is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long open requests may take when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves until `stop`, then lets requests finish (watches end at once).
pub async fn run(
    api: Arc<Api>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: CancellationToken,
) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(tls);
    let connections = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: give others time to close theirs.
                    debug!(%error, "cannot accept a connection");
                    time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        connections.spawn(connection(api.clone(), acceptor.clone(), stream, stop.clone()));
    }
    connections.close();
    let _ = time::timeout(FAREWELL, connections.wait()).await;
    Ok(())
}

async fn connection(
    api: Arc<Api>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let stream = match time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "TLS handshake failed"),
        Err(_) => return debug!("TLS handshake took too long"),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let user = certificate.and_then(user_of).unwrap_or_else(User::anonymous);
    let peer = stream.get_ref().0.peer_addr().ok();
    let service = service_fn(|mut request: Request<Incoming>| {
        // Audit logs tell where a request came from.
        peer.map(|peer| request.extensions_mut().insert(peer));
        let (api, user) = (api.clone(), user.clone());
        async move { Ok::<_, io::Error>(handle(api, user, request).await) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(30));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            // Watches never end by themselves.
            match time::timeout(Duration::from_millis(300), connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = result {
        debug!(%error, "connection ended");
    }
}
