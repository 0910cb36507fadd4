//! Clients that balance over servers as any good client does: one that is refused, or told to go, goes elsewhere; a
//! request that was sent and has no answer has failed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use roadstead_testkit::kubectl::eventually;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::process::Credentials;

const SOON: Duration = Duration::from_secs(60);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// What has come of all requests.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) failures: Vec<String>,
    pub(super) watch_ended_well: bool,
    /// How many requests each client has made.
    #[allow(dead_code, reason = "it is printed")]
    pub(super) done: Vec<usize>,
}

/// Some of each kind, each in a thread of its own.
pub(super) struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    tls: [Arc<ClientConfig>; 2],
    servers: Vec<SocketAddr>,
    stop: AtomicBool,
    done: Vec<AtomicUsize>,
    failures: Mutex<Vec<String>>,
    watch_ended_well: AtomicBool,
}

/// With HTTP/2 or not, and what is asked for.
const KINDS: [(bool, &str); 4] = [(true, "GET"), (false, "GET"), (true, "POST"), (false, "POST")];

impl Clients {
    pub(super) fn start(credentials: &Credentials, servers: &[&str]) -> Self {
        let shared = Arc::new(Shared {
            tls: [config(credentials, b"http/1.1"), config(credentials, b"h2")],
            servers: servers
                .iter()
                .map(|ip| (ip.parse::<std::net::IpAddr>().unwrap(), 6443).into())
                .collect(),
            stop: AtomicBool::new(false),
            done: KINDS.iter().map(|_| AtomicUsize::new(0)).collect(),
            failures: Mutex::default(),
            watch_ended_well: AtomicBool::new(false),
        });
        let mut threads: Vec<_> = (0..KINDS.len())
            .map(|number| {
                let shared = shared.clone();
                thread::spawn(move || on_its_own(ask_and_ask(shared, number)))
            })
            .collect();
        let watching = shared.clone();
        threads.push(thread::spawn(move || on_its_own(watch(watching))));
        Self { shared, threads }
    }

    /// Waits until each client has made so many more requests.
    pub(super) fn each_has_done(&self, more: usize) {
        let now = || -> Vec<usize> {
            self.shared.done.iter().map(|done| done.load(Ordering::Relaxed)).collect()
        };
        let before = now();
        eventually("all clients go on", SOON, now, |now| {
            before.iter().zip(now).all(|(before, now)| now - before >= more)
        });
    }

    pub(super) fn stop(self) -> Told {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        let done = self.shared.done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
        let failures = std::mem::take(&mut *self.shared.failures.lock().unwrap());
        let watch_ended_well = self.shared.watch_ended_well.load(Ordering::Relaxed);
        Told { failures, watch_ended_well, done }
    }
}

fn on_its_own(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

fn config(credentials: &Credentials, protocol: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&credentials.authority).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(&credentials.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(&credentials.key).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    let mut config = config.with_client_auth_cert(chain, key).unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

async fn connect(shared: &Shared, is_h2: bool, at: usize) -> Option<Sender> {
    let address = shared.servers[at % shared.servers.len()];
    let stream = TcpStream::connect(address).await.ok()?;
    let tls = TlsConnector::from(shared.tls[usize::from(is_h2)].clone());
    let name = ServerName::from(address.ip());
    let stream = TokioIo::new(tls.connect(name, stream).await.ok()?);
    Some(if is_h2 {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.ok()?;
        tokio::spawn(connection);
        Sender::Two(sender)
    } else {
        let (sender, connection) = http1::handshake(stream).await.ok()?;
        tokio::spawn(connection);
        Sender::One(sender)
    })
}

/// The answer; `Ok(None)` if the server has not seen the request.
async fn send(
    sender: &mut Sender,
    request: Request<Full<Bytes>>,
) -> Result<Option<http::Response<Incoming>>, String> {
    let outcome = match sender {
        Sender::One(sender) => match sender.ready().await {
            Err(_) => return Ok(None),
            Ok(()) => sender.try_send_request(request).await,
        },
        Sender::Two(sender) => match sender.ready().await {
            Err(_) => return Ok(None),
            Ok(()) => sender.try_send_request(request).await,
        },
    };
    match outcome {
        Ok(answer) => Ok(Some(answer)),
        Err(mut refused) => match refused.take_message() {
            Some(_) => Ok(None),
            None => Err(format!("{:?}", refused.into_error())),
        },
    }
}

fn request(
    is_h2: bool,
    method: &Method,
    path: &str,
    name: &str,
    at: &SocketAddr,
) -> Request<Full<Bytes>> {
    let body = match *method {
        Method::POST => format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}"),
        _ => String::new(),
    };
    let uri = if is_h2 { format!("https://{at}{path}") } else { path.to_owned() };
    let request = Request::builder().method(method.clone()).uri(uri);
    let request = request.header("content-type", "application/json");
    let request = if is_h2 { request } else { request.header("host", at.to_string()) };
    request.body(Full::new(body.into())).unwrap()
}

async fn ask_and_ask(shared: Arc<Shared>, number: usize) {
    let (is_h2, method) = KINDS[number];
    let method: Method = method.parse().unwrap();
    let (mut at, mut sender, mut count) = (0, None, 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let Some(open) = &mut sender else {
            sender = connect(&shared, is_h2, at).await;
            at += usize::from(sender.is_none());
            continue;
        };
        let server = shared.servers[at % shared.servers.len()];
        let asked = request(is_h2, &method, MAPS, &format!("m{number}-{count}"), &server);
        let outcome = match send(open, asked).await {
            Ok(None) => {
                (at, sender) = (at + 1, None);
                continue;
            }
            Ok(Some(answer)) => {
                let code = answer.status();
                let read = answer.into_body().collect().await;
                match read {
                    Ok(_) if code.is_success() => Ok(()),
                    Ok(body) => Err(format!("{code}: {:?}", body.to_bytes())),
                    Err(error) => Err(format!("in the middle of an answer: {error:?}")),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            let what =
                format!("{method} over {}: {error}", if is_h2 { "HTTP/2" } else { "HTTP/1" });
            shared.failures.lock().unwrap().push(what);
            sender = None;
        }
        count += 1;
        shared.done[number].store(count, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Follows the first server until the watch ends.
async fn watch(shared: Arc<Shared>) {
    let mut sender = connect(&shared, true, 0).await.expect("the server is there");
    let path = format!("{MAPS}?watch=true&timeoutSeconds=300");
    let asked = request(true, &Method::GET, &path, "", &shared.servers[0]);
    let mut body = send(&mut sender, asked).await.unwrap().unwrap().into_body();
    while !shared.stop.load(Ordering::Relaxed) {
        match tokio::time::timeout(Duration::from_millis(100), body.frame()).await {
            Err(_) | Ok(Some(Ok(_))) => {}
            Ok(None) => return shared.watch_ended_well.store(true, Ordering::Relaxed),
            Ok(Some(Err(error))) => {
                return shared.failures.lock().unwrap().push(format!("a watch: {error:?}"));
            }
        }
    }
}
