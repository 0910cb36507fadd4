//! The listener: TLS, HTTP/1.1 and HTTP/2, one task per connection. Who may stay is for
//! `connections` to decide; how a server stops is planned in `farewell`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use crate::api::Api;
use crate::identity::authority::user_of;
use crate::identity::user::User;
use crate::request::chain::handle;
use crate::servers;
use crate::transport::connections::{Connection, Connections, SenderConnection};
use crate::transport::farewell::{Farewell, ending};
use crate::transport::receive::Timeouts;

/// How long connections may take to close when they have ended, or been cut.
const CLOSING: Duration = Duration::from_secs(2);
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
    /// How long the server goes on as before after it was asked to stop and says that it is not ready.
    pub shutdown_delay: Duration,
}

/// Serves until `stop`, then lets requests finish; clients are told to go elsewhere.
pub async fn run(api: Arc<Api>, serving: SecureServing, stop: CancellationToken) -> io::Result<()> {
    let SecureServing { listener, tls, timeouts, shutdown_delay } = serving;
    let (goodbye, told) = watch::channel(None);
    let mut door = Door {
        api: api.clone(),
        listener,
        acceptor: TlsAcceptor::from(tls),
        timeouts,
        open: Connections::new(),
        tasks: TaskTracker::new(),
        told,
        count: 0,
    };
    door.accept_until(stop.cancelled()).await;
    api.traffic.leaves();
    let farewell = Farewell::plan(servers::are_others(&api), shutdown_delay, door.tasks.len());
    let Farewell { delay, spread, grace, .. } = farewell;
    info!(connections = door.tasks.len(), ?delay, ?spread, ?grace, "the server takes its leave");
    door.accept_until(time::sleep(delay)).await;
    goodbye.send_replace(Some(farewell));
    door.accept_until(time::sleep(spread)).await;
    let Door { tasks, listener, .. } = door;
    // Who comes now finds nobody, and goes elsewhere.
    drop(listener);
    tasks.close();
    let _ = time::timeout(grace + CLOSING, tasks.wait()).await;
    Ok(())
}

/// Lets clients in.
struct Door {
    api: Arc<Api>,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    timeouts: Timeouts,
    open: Arc<Connections>,
    tasks: TaskTracker,
    told: watch::Receiver<Option<Farewell>>,
    /// How many have come.
    count: u32,
}

impl Door {
    async fn accept_until(&mut self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            let (stream, peer) = tokio::select! {
                () = &mut end => return,
                accepted = self.listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of file descriptors, most likely: give others time to close theirs.
                        debug!(%error, "cannot accept a connection");
                        self.open.make_room();
                        time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            let Some(connection) = self.open.enter(peer.ip()) else {
                debug!(%peer, "too many connections");
                continue;
            };
            self.count = self.count.wrapping_add(1);
            let client = Client {
                api: self.api.clone(),
                timeouts: self.timeouts,
                told: self.told.clone(),
                number: self.count,
                connection,
            };
            self.tasks.spawn(client.receive(self.acceptor.clone(), stream));
        }
    }
}

/// One connection.
struct Client {
    api: Arc<Api>,
    timeouts: Timeouts,
    told: watch::Receiver<Option<Farewell>>,
    number: u32,
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

    async fn serve(mut self, stream: TlsStream<TcpStream>) {
        let (socket, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let user = certificate.and_then(user_of).unwrap_or_else(User::anonymous);
        let peer = socket.peer_addr().ok();
        if !user.is_anonymous() {
            self.connection.know(&user.name);
        }
        let is_h2 = session.alpn_protocol() == Some(b"h2");
        let builder = protocol(is_h2, self.timeouts);
        let (api, timeouts, connection) =
            (self.api.clone(), self.timeouts, self.connection.clone());
        let asked = AtomicBool::new(false);
        let leaves = Arc::new(CancellationToken::new());
        let leaving = leaves.clone();
        let service = service_fn(|mut request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            // Audit logs tell where a request came from.
            peer.map(|peer| request.extensions_mut().insert(peer));
            request.extensions_mut().insert(timeouts);
            request.extensions_mut().insert(SenderConnection(connection.clone()));
            let (api, user, busy) = (api.clone(), user.clone(), connection.busy());
            let (leaves, is_single) = (leaving.clone(), request.version() < Version::HTTP_2);
            // Boxed, so that a watch does not keep the room that its beginning needed.
            Box::pin(async move {
                let mut response = ending(handle(api, user, request).await, &leaves);
                drop(busy);
                if is_single && leaves.is_cancelled() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
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
                farewell = sent_away(&mut self.told, self.number) => {
                    let end = time::Instant::now() + farewell.grace;
                    if !is_h2 {
                        // Its next answer says that it is the last one.
                        leaves.cancel();
                        if let Ok(result) = time::timeout(farewell.idle, served.as_mut()).await {
                            break result;
                        }
                    }
                    served.as_mut().graceful_shutdown();
                    // It knows that it has to go elsewhere before its watches end.
                    leaves.cancel();
                    match time::timeout_at(end, served).await {
                        Ok(result) => break result,
                        Err(_) => return debug!("a client takes too long to leave"),
                    }
                }
            }
        };
        if let Err(error) = result {
            debug!(%error, "connection ended");
        }
    }
}

/// Waits until it is this connection's turn to go.
async fn sent_away(told: &mut watch::Receiver<Option<Farewell>>, number: u32) -> Farewell {
    let farewell = match told.wait_for(Option::is_some).await {
        Ok(told) => *told,
        Err(_) => None,
    };
    let Some(farewell) = farewell else { return std::future::pending().await };
    time::sleep(farewell.turn(number)).await;
    farewell
}

/// How to speak with a client. The handshake has settled in which of the two protocols; nobody need
/// wait for the first byte.
fn protocol(is_h2: bool, timeouts: Timeouts) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    http1.timer(TokioTimer::new()).header_read_timeout(timeouts.silence).max_buf_size(UNREAD);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(30));
    http2.max_send_buf_size(UNREAD);
    if is_h2 { builder.http2_only() } else { builder.http1_only() }
}
