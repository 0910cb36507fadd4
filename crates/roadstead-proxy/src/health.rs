//! Whether the proxy does its work, told to load balancers and to the kubelet.
//!
//! `/healthz` and `/livez` speak of the proxy; each `healthCheckNodePort` of whether this node has
//! endpoints of one Service.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::tracker::HealthCheck;
use rustix::io::Errno;
use serde_json::{Map, Value, json};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time;
use tracing::{debug, info, warn};

/// A change that waits longer than this means that something is wrong.
const LATE: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for somebody else to leave a port.
const PORT_RETRY: Duration = Duration::from_secs(5);

/// What is known about our health.
#[derive(Debug, Default)]
pub struct Health {
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    /// Since when the oldest change waits to be written, by family.
    waiting: BTreeMap<IpFamily, Option<Instant>>,
    /// What the kernel does not take, and why, by family.
    refused: BTreeMap<IpFamily, String>,
    /// When each family was last written.
    updated: BTreeMap<IpFamily, Timestamp>,
    /// The node is going away, so load balancers should leave.
    node_leaves: bool,
}

impl Health {
    /// A change waits to be written.
    pub(crate) fn note_queued(&self, family: IpFamily) {
        self.state().waiting.entry(family).or_default().get_or_insert_with(Instant::now);
    }

    /// Everything is written.
    pub(crate) fn note_written(&self, family: IpFamily) {
        let mut state = self.state();
        state.waiting.insert(family, None);
        state.refused.remove(&family);
        state.updated.insert(family, Timestamp::now());
    }

    /// The kernel refused to take a family's rules.
    pub(crate) fn note_refused(&self, family: IpFamily, why: String) {
        self.state().refused.insert(family, why);
    }

    /// The kernel has no such family, and we go on without.
    pub(crate) fn leave_out(&self, family: IpFamily) {
        let mut state = self.state();
        state.waiting.remove(&family);
        state.refused.remove(&family);
    }

    /// Whether the node is about to leave.
    pub(crate) fn note_node(&self, leaves: bool) {
        self.state().node_leaves = leaves;
    }

    /// Whether the proxy keeps up.
    pub(crate) fn is_live(&self) -> bool {
        self.state().is_live()
    }

    /// The answer of `/healthz` or, without the node, of `/livez`.
    pub fn page(&self, with_node: bool) -> (u16, String) {
        let state = self.state();
        let live = state.is_live();
        let now = Timestamp::now();
        let stamp = |healthy: bool, written: Option<&Timestamp>| match healthy {
            true => now.to_string(),
            false => written.map(ToString::to_string).unwrap_or_default(),
        };
        let family = |(family, since): (&IpFamily, &Option<Instant>)| {
            let name = if *family == IpFamily::V4 { "IPv4" } else { "IPv6" };
            let healthy = is_timely(*since) && !state.is_unserved(*family);
            let mut status = json!({
                "lastUpdated": stamp(healthy, state.updated.get(family)), "healthy": healthy,
            });
            if let Some(why) = state.refused.get(family) {
                status["error"] = json!(why);
            }
            (name.to_owned(), status)
        };
        let families: Map<String, Value> = state.waiting.iter().map(family).collect();
        let healthy = live && !(with_node && state.node_leaves);
        let mut body = json!({
            "lastUpdated": stamp(live, state.updated.values().min()),
            "currentTime": now.to_string(),
            "healthy": healthy,
            "status": families,
        });
        if with_node {
            body["nodeEligible"] = json!(!state.node_leaves);
        }
        (if healthy { 200 } else { 503 }, body.to_string())
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl HealthState {
    fn is_live(&self) -> bool {
        // Whoever has nothing to write yet is not late: as upstream, healthy while starting.
        let mut families = self.waiting.iter();
        families.all(|(family, since)| is_timely(*since) && !self.is_unserved(*family))
    }

    /// Whether the kernel has refused all we ever wanted: then there is not even an old state to
    /// serve from, and no reason to wait and see.
    fn is_unserved(&self, family: IpFamily) -> bool {
        !self.updated.contains_key(&family) && self.refused.contains_key(&family)
    }
}

fn is_timely(since: Option<Instant>) -> bool {
    since.is_none_or(|since| since.elapsed() < LATE)
}

/// The health checks that Services ask for, and where they are answered.
pub type HealthChecks = Arc<Checks>;

/// See [`HealthChecks`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// The checks of each Service.
    pub by_service: BTreeMap<ObjectKey, HealthCheck>,
    /// The addresses to listen on: 0.0.0.0 and :: stand for all of their family.
    pub addresses: BTreeSet<IpAddr>,
}

impl Checks {
    /// Every address and port to listen on, with its Service.
    fn sockets(&self) -> BTreeSet<(SocketAddr, ObjectKey)> {
        let of = |(key, check): (&ObjectKey, &HealthCheck)| {
            let (key, port) = (key.clone(), check.port);
            let addresses = self.addresses.iter();
            addresses
                .map(move |address| (SocketAddr::new(*address, port), key.clone()))
                .collect::<Vec<_>>()
        };
        self.by_service.iter().flat_map(of).collect()
    }
}

/// A port that a Service wants its health checks answered on, but somebody else has.
#[derive(Debug)]
pub(crate) struct HealthCheckFailure {
    /// The Service.
    pub service: ObjectKey,
    /// Its `healthCheckNodePort`.
    pub port: u16,
    /// Why we cannot listen there.
    pub error: io::Error,
}

/// Answers all health checks until dropped. A port that cannot be had is reported once,
/// and tried again every now and then.
pub(crate) async fn serve_checks(
    mut checks: watch::Receiver<HealthChecks>,
    health: Arc<Health>,
    failures: mpsc::Sender<HealthCheckFailure>,
) {
    let mut listening: BTreeMap<(SocketAddr, ObjectKey), AbortOnDrop> = BTreeMap::new();
    let mut refused: BTreeSet<(SocketAddr, ObjectKey)> = BTreeSet::new();
    loop {
        let sockets = checks.borrow_and_update().sockets();
        listening.retain(|wanted, _| sockets.contains(wanted));
        refused.retain(|wanted| sockets.contains(wanted));
        for wanted in sockets {
            if listening.contains_key(&wanted) {
                continue;
            }
            let (socket, key) = &wanted;
            let port = socket.port();
            match listen_on(*socket) {
                Ok(Some(listener)) => {
                    info!(service = %key, %socket, "answering health checks");
                    let work = answer_all(listener, key.clone(), checks.clone(), health.clone());
                    let task = tokio::spawn(work).abort_handle();
                    refused.remove(&wanted);
                    listening.insert(wanted, AbortOnDrop(task));
                }
                Ok(None) => debug!(%socket, "no such address family"),
                Err(error) => {
                    let same = |(at, of): &(SocketAddr, ObjectKey)| at.port() == port && of == key;
                    if !refused.iter().any(same) {
                        warn!(service = %key, %socket, %error, "cannot answer health checks");
                        let service = key.clone();
                        // One that is lost is only a message.
                        let _ = failures.try_send(HealthCheckFailure { service, port, error });
                    }
                    refused.insert(wanted);
                }
            }
        }
        let patience = if refused.is_empty() { Duration::MAX } else { PORT_RETRY };
        if let Ok(Err(_)) = time::timeout(patience, checks.changed()).await {
            return;
        }
    }
}

/// Listens on an address of one family; `None` where the machine does not have that family.
pub(crate) fn listen_on(place: SocketAddr) -> io::Result<Option<TcpListener>> {
    let socket = match Socket::new(Domain::for_address(place), Type::STREAM, None) {
        Err(error) if error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => {
            return Ok(None);
        }
        socket => socket?,
    };
    // The other family has a listener of its own.
    if place.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&place.into())?;
    socket.listen(128)?;
    TcpListener::from_std(socket.into()).map(Some)
}

pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn answer_all(
    listener: TcpListener,
    key: ObjectKey,
    checks: watch::Receiver<HealthChecks>,
    health: Arc<Health>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let count = checks.borrow().by_service.get(&key).map_or(0, |check| check.local_endpoints);
        let answer = check_answer(&key, count, health.is_live());
        tokio::spawn(time::timeout(REQUEST_TIMEOUT, answer_one(stream, answer)));
    }
}

/// Any request gets the same answer.
async fn answer_one(mut stream: TcpStream, answer: String) {
    let mut request: Vec<u8> = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < 16 << 10 {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => request.extend(&buffer[..length]),
        }
    }
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn check_answer(key: &ObjectKey, count: usize, healthy: bool) -> String {
    let status = if count > 0 && healthy { "200 OK" } else { "503 Service Unavailable" };
    let (namespace, name) = (&key.namespace, &key.name);
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {count}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_follows_what_was_written() {
        let health = Health::default();
        assert_eq!(health.page(true).0, 200, "nothing to write yet");
        health.note_queued(IpFamily::V4);
        assert_eq!(health.page(true).0, 200, "a young change is no harm");
        health.note_written(IpFamily::V4);
        health.note_node(true);
        assert_eq!((health.page(true).0, health.page(false).0), (503, 200), "the node leaves");
        let body: Value = serde_json::from_str(&health.page(true).1).unwrap();
        assert_eq!(body["nodeEligible"], json!(false));
        assert_eq!(body["status"]["IPv4"]["healthy"], json!(true));
    }

    #[test]
    fn what_the_kernel_refuses_shows() {
        let health = Health::default();
        let status = || {
            let (code, body) = health.page(true);
            let body: Value = serde_json::from_str(&body).unwrap();
            (code, body["status"]["IPv4"]["error"].as_str().map(str::to_owned))
        };
        let refused = Some("no nf_tables".to_owned());
        health.note_queued(IpFamily::V4);
        health.note_refused(IpFamily::V4, "no nf_tables".into());
        assert_eq!(status(), (503, refused.clone()), "nothing was ever written");
        health.note_written(IpFamily::V4);
        assert_eq!(status(), (200, None));
        health.note_queued(IpFamily::V4);
        health.note_refused(IpFamily::V4, "no nf_tables".into());
        assert_eq!(status(), (200, refused), "the last good state serves, for now");
        health.note_queued(IpFamily::V6);
        health.leave_out(IpFamily::V4);
        assert_eq!(status(), (200, None));
    }

    #[tokio::test]
    async fn a_health_check_is_answered_while_it_is_wanted() {
        let port = TcpListener::bind("[::]:0").await.unwrap().local_addr().unwrap().port();
        let key = ObjectKey::new("ns", "web");
        let checks = |local_endpoints| -> HealthChecks {
            let by_service = [(key.clone(), HealthCheck { port, local_endpoints })].into();
            let addresses = ["127.0.0.1", "::1"].map(|text| text.parse().unwrap()).into();
            Arc::new(Checks { by_service, addresses })
        };
        let health = Arc::new(Health::default());
        health.note_written(IpFamily::V4);
        let (sender, receiver) = watch::channel(checks(2));
        let (failures, mut failed) = mpsc::channel(1);
        let server = tokio::spawn(serve_checks(receiver, health, failures));
        let ask = || async {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
            TcpStream::connect(("::1", port)).await.ok()?;
            stream.write_all(b"GET /any HTTP/1.1\r\nHost: x\r\n\r\n").await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            Some(answer)
        };
        let eventually = async |wanted: fn(&Option<String>) -> bool| {
            for _ in 0..200 {
                let answer = ask().await;
                if wanted(&answer) {
                    return;
                }
                time::sleep(Duration::from_millis(10)).await;
            }
            panic!("{:?}", ask().await);
        };
        eventually(|answer| {
            answer.as_ref().is_some_and(|a| {
                a.starts_with("HTTP/1.1 200") && a.contains("Endpoint-Weight: 2\r\n")
            })
        })
        .await;
        sender.send_replace(checks(0));
        eventually(|answer| answer.as_ref().is_some_and(|a| a.starts_with("HTTP/1.1 503"))).await;
        sender.send_replace(Arc::default());
        eventually(Option::is_none).await;
        // Somebody else was faster.
        let _taken = TcpListener::bind(("::", port)).await.unwrap();
        sender.send_replace(checks(1));
        let failure = failed.recv().await.unwrap();
        assert_eq!((failure.service, failure.port), (key.clone(), port));
        server.abort();
    }
}
