//! The listener: TLS, HTTP/1.1 and HTTP/2, one task per connection. Who may stay is for
//! `connections` to decide.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::time;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::api::Api;
use crate::identity::authority::user_of;
use crate::identity::user::User;
use crate::request::chain::handle;
use crate::transport::connections::{Connection, Connections, SenderConnection};
use crate::transport::receive::Timeouts;

/// How long open requests may take when the server stops.
const SHUTDOWN: Duration = Duration::from_secs(2);
/// How much of what a client has not read yet is kept for each of its requests, beside the piece
/// that is being sent; and how long the head of a request may be.
const UNREAD: usize = 64 << 10;

/// Where clients connect.
pub struct SecureServing {
    /// Where connections are accepted.
    pub listener: TcpListener,
    /// The server's certificate, and whom it believes.
    pub tls: Arc<rustls::ServerConfig>,
    /// How long clients may take.
    pub timeouts: Timeouts,
}

/// Serves until `stop`, then lets requests finish (watches end at once).
pub async fn run(api: Arc<Api>, serving: SecureServing, stop: CancellationToken) -> io::Result<()> {
    let SecureServing { listener, tls, timeouts } = serving;
    let acceptor = TlsAcceptor::from(tls);
    let connections = TaskTracker::new();
    let open = Connections::new();
    loop {
        let (stream, peer) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, most likely: give others time to close theirs.
                    debug!(%error, "cannot accept a connection");
                    open.make_room();
                    time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let Some(connection) = open.enter(peer.ip()) else {
            debug!(%peer, "too many connections");
            continue;
        };
        let client = Client { api: api.clone(), timeouts, stop: stop.clone(), connection };
        connections.spawn(client.receive(acceptor.clone(), stream));
    }
    connections.close();
    let _ = time::timeout(SHUTDOWN, connections.wait()).await;
    Ok(())
}

/// One connection.
struct Client {
    api: Arc<Api>,
    timeouts: Timeouts,
    stop: CancellationToken,
    connection: Arc<Connection>,
}

impl Client {
    async fn receive(self, acceptor: TlsAcceptor, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        // A client that does not read is cut by the kernel, whatever we wanted to tell it.
        let unread = u32::try_from(self.timeouts.unread.as_millis()).unwrap_or(u32::MAX);
        let _ = set_tcp_user_timeout(&stream, unread);
        let greeting = time::timeout(self.timeouts.silence, async {
            // Whoever says nothing is silent; a handshake is not.
            stream.readable().await?;
            let _busy = self.connection.busy();
            acceptor.accept(stream).await
        });
        let greeted = tokio::select! {
            greeted = greeting => greeted,
            () = self.connection.dismissed() => return debug!("a stranger made room"),
        };
        match greeted {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
            Err(_) => debug!("TLS handshake took too long"),
        }
    }

    async fn serve(self, stream: TlsStream<TcpStream>) {
        let (socket, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let user = certificate.and_then(user_of).unwrap_or_else(User::anonymous);
        let peer = socket.peer_addr().ok();
        if !user.is_anonymous() {
            self.connection.know(&user.name);
        }
        let builder = protocol(session.alpn_protocol(), self.timeouts);
        let (api, timeouts, connection) =
            (self.api.clone(), self.timeouts, self.connection.clone());
        let asked = AtomicBool::new(false);
        let service = service_fn(|mut request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            // Audit logs tell where a request came from.
            peer.map(|peer| request.extensions_mut().insert(peer));
            request.extensions_mut().insert(timeouts);
            request.extensions_mut().insert(SenderConnection(connection.clone()));
            let (api, user, busy) = (api.clone(), user.clone(), connection.busy());
            // Boxed, so that a watch does not keep the room that its beginning needed.
            Box::pin(async move {
                let response = handle(api, user, request).await;
                drop(busy);
                Ok::<_, io::Error>(response)
            })
        });
        let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(served);
        let mut look = timeouts.silence;
        let result = loop {
            tokio::select! {
                result = served.as_mut() => break result,
                () = self.connection.dismissed() => return debug!("a stranger made room"),
                () = time::sleep(look), if look > Duration::ZERO => {
                    if !asked.load(Ordering::Relaxed) {
                        return debug!("nothing was asked for");
                    }
                    // An answer to a ping says nothing.
                    match self.connection.silence() {
                        Some(silence) if silence >= timeouts.stranger => {
                            return debug!("a stranger was silent");
                        }
                        Some(silence) => look = timeouts.stranger - silence,
                        None => look = Duration::ZERO,
                    }
                }
                () = self.stop.cancelled() => {
                    served.as_mut().graceful_shutdown();
                    // Watches never end by themselves.
                    match time::timeout(Duration::from_millis(300), served).await {
                        Ok(result) => break result,
                        Err(_) => return,
                    }
                }
            }
        };
        if let Err(error) = result {
            debug!(%error, "connection ended");
        }
    }
}

/// How to speak with a client. The handshake has settled in which of the two protocols; nobody need
/// wait for the first byte.
fn protocol(alpn: Option<&[u8]>, timeouts: Timeouts) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    http1.timer(TokioTimer::new()).header_read_timeout(timeouts.silence).max_buf_size(UNREAD);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(30));
    http2.max_send_buf_size(UNREAD);
    if alpn == Some(b"h2") { builder.http2_only() } else { builder.http1_only() }
}
