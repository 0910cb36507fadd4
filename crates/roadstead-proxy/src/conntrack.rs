//! Makes the kernel (conntrack) forget flows that lead nowhere any more.
//!
//! The kernel hands out the flows of one protocol; we pick those of the changed frontends.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use roadstead_forwarding::conntrack::FlowFilter;
use roadstead_forwarding::service::{Frontend, Host, IpFamily, Protocol};
use roadstead_netlink::attributes::{Attributes, address_of, attribute};
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::socket::{NetlinkFamily, Request, Socket};
use roadstead_netlink::{DUMP, netfilter};
use tracing::{debug, warn};

use crate::metrics::Metrics;

const SUBSYSTEM: u8 = 1;
const GET: u16 = netfilter(SUBSYSTEM, 1);
const DELETE: u16 = netfilter(SUBSYSTEM, 2);

const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_TRANSPORT: u16 = 2;
const FILTER: u16 = 25;

/// Flows of one family that lead nowhere any more. Node ports are those on the node's addresses only, so that
/// nobody else's flows are touched.
#[derive(Debug)]
pub(crate) struct StaleFlows {
    pub(crate) family: IpFamily,
    pub(crate) filters: Vec<FlowFilter>,
    /// All addresses of the node.
    pub(crate) node_addresses: BTreeSet<IpAddr>,
}

/// How often an order is tried, and how long to wait in between.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// The thread that deletes entries of the kernel's connection tracking; without one, they stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conntrack(Option<mpsc::Sender<StaleFlows>>);

impl Conntrack {
    /// Starts it, if we may.
    pub(crate) fn start(metrics: Arc<Metrics>) -> Self {
        Self(start(metrics).ok())
    }

    /// Deletes flows, some time soon.
    pub(crate) fn forget(&self, flows: StaleFlows) {
        let Some(orders) = &self.0 else { return };
        if orders.send(flows).is_err() {
            warn!("nobody forgets stale flows any more");
        }
    }
}

/// Starts a thread that carries out orders until nobody can give any more: looking through all
/// flows takes the kernel milliseconds, and the next change must not wait for that. What fails is
/// tried again, together with what has come up meanwhile.
fn start(metrics: Arc<Metrics>) -> io::Result<mpsc::Sender<StaleFlows>> {
    let mut socket = Socket::open(NetlinkFamily::Netfilter)?;
    let (sender, orders) = mpsc::channel::<StaleFlows>();
    thread::Builder::new().name("conntrack".into()).spawn(move || {
        let (mut open, mut failures) = (Vec::new(), 0);
        while let Some(new) = wait(&orders, !open.is_empty()) {
            open.extend(new.into_iter().chain(orders.try_iter()));
            for family in [IpFamily::V4, IpFamily::V6] {
                let ours: Vec<_> = open.iter().filter(|order| order.family == family).collect();
                if !ours.is_empty() && forget_and_count(&mut socket, family, &ours, &metrics) {
                    open.retain(|order| order.family != family);
                }
            }
            failures = if open.is_empty() { 0 } else { failures + 1 };
            if failures == ATTEMPTS {
                warn!("stale flows stay until they end by themselves");
                (open, failures) = (Vec::new(), 0);
            }
            // After an error, answers to the old question may still be on their way.
            if failures > 0
                && let Ok(fresh) = Socket::open(NetlinkFamily::Netfilter)
            {
                socket = fresh;
            }
        }
    })?;
    Ok(sender)
}

/// The next order; `Some(None)` if it is time to try an old one again, `None` at the end.
fn wait(orders: &mpsc::Receiver<StaleFlows>, again: bool) -> Option<Option<StaleFlows>> {
    if !again {
        return orders.recv().ok().map(Some);
    }
    match orders.recv_timeout(PAUSE) {
        Ok(order) => Some(Some(order)),
        Err(mpsc::RecvTimeoutError::Timeout) => Some(None),
        Err(mpsc::RecvTimeoutError::Disconnected) => None,
    }
}

/// Whether it was done.
fn forget_and_count(
    socket: &mut Socket,
    family: IpFamily,
    orders: &[&StaleFlows],
    metrics: &Metrics,
) -> bool {
    let started = Instant::now();
    let outcome = forget(socket, family, orders);
    let took = started.elapsed();
    match &outcome {
        Ok(flows) => debug!(?family, flows, ?took, "stale flows forgotten"),
        Err(error) => warn!(?family, %error, "cannot forget stale flows, will retry"),
    }
    metrics.note_conntrack(family, took, outcome.as_ref().ok().copied());
    outcome.is_ok()
}

/// Deletes the flows that the orders name; returns how many. A later order knows better which
/// flows may stay.
fn forget(
    socket: &mut Socket,
    family: IpFamily,
    orders: &[&StaleFlows],
) -> Result<usize, NetlinkError> {
    let filters = orders.iter().flat_map(|order| &order.filters);
    let filters: HashMap<Frontend, &FlowFilter> =
        filters.map(|filter| (filter.frontend, filter)).collect();
    let own = &orders[orders.len() - 1].node_addresses;
    let header = [family.number(), 0, 0, 0];
    let mut forgotten = 0;
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        if !filters.keys().any(|frontend| frontend.protocol == protocol) {
            continue;
        }
        let stale = |flow: &[u8]| {
            let (dialled, answerer) = ends(flow)?;
            let at = |host| Frontend { host, protocol, port: dialled.port() };
            let node = own.contains(&dialled.ip()).then(|| at(Host::Node));
            let found = filters.get(&at(Host::Address(dialled.ip())));
            let filter = found.or_else(|| filters.get(&node?))?;
            // Kernels before 5.8 hand out the flows of all protocols.
            let is_stale = is_of(flow, protocol) && !filter.keep.contains(&answerer);
            is_stale.then(|| attribute(flow, ORIGINAL).map(<[u8]>::to_vec))?
        };
        let dump = Request { kind: GET, flags: DUMP, header: &header };
        let flows = socket.ask(&dump, |all| only(all, protocol), |flow| stale(flow.attributes))?;
        for flow in flows {
            forgotten += usize::from(delete(socket, &header, &flow)?);
        }
    }
    Ok(forgotten)
}

/// Asks for the flows of a protocol only.
fn only(message: &mut Attributes<'_>, protocol: Protocol) {
    const ORIGINAL_FLAGS: u16 = 1;
    const REPLY_FLAGS: u16 = 2;
    const PROTOCOL: u32 = 1 << 3;
    message.nest(ORIGINAL, |tuple| {
        tuple.nest(TUPLE_TRANSPORT, |transport| transport.put(1, &[protocol.number()]));
    });
    message.nest(FILTER, |filter| {
        filter.put(ORIGINAL_FLAGS, &PROTOCOL.to_ne_bytes());
        filter.put(REPLY_FLAGS, &0u32.to_ne_bytes());
    });
}

/// Deletes the flow of a tuple; it may have ended meanwhile.
fn delete(socket: &mut Socket, header: &[u8], tuple: &[u8]) -> Result<bool, NetlinkError> {
    let request = Request { kind: DELETE, flags: 0, header };
    match socket.order(&request, |all| all.nest(ORIGINAL, |nest| nest.raw(tuple))) {
        Ok(()) => Ok(true),
        Err(NetlinkError::Declined(source)) if source.kind() == io::ErrorKind::NotFound => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn is_of(flow: &[u8], protocol: Protocol) -> bool {
    const NUMBER: u16 = 1;
    let transport = attribute(flow, ORIGINAL).and_then(|t| attribute(t, TUPLE_TRANSPORT));
    transport.and_then(|transport| attribute(transport, NUMBER)) == Some(&[protocol.number()])
}

/// Whom the client dialled, and who answers.
fn ends(flow: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let tuple = |kind, v4, v6, port| {
        let tuple = attribute(flow, kind)?;
        let addresses = attribute(tuple, TUPLE_ADDRESSES)?;
        let transport = attribute(tuple, TUPLE_TRANSPORT)?;
        let octets = attribute(addresses, v4).or_else(|| attribute(addresses, v6))?;
        let port = u16::from_be_bytes(attribute(transport, port)?.try_into().ok()?);
        Some(SocketAddr::new(address_of(octets)?, port))
    };
    // The destination of the original, the source of the reply.
    Some((tuple(ORIGINAL, 2, 4, 3)?, tuple(REPLY, 1, 3, 2)?))
}
