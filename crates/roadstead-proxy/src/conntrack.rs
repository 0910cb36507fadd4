//! Makes the kernel forget flows that lead nowhere any more.
//!
//! The kernel hands out the flows of one protocol; we pick those of the changed frontends.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use roadstead_forwarding::conntrack::FlowFilter;
use roadstead_forwarding::service::{Frontend, Host, IpFamily, Protocol};
use tracing::{debug, warn};

use crate::metrics::Metrics;
use crate::netlink::{ACKNOWLEDGE, DUMP, Message, NetlinkError, Socket, attribute, request};

const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;

const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_TRANSPORT: u16 = 2;
const FILTER: u16 = 25;

/// Flows to forget, of one family. Node ports are those on the node's addresses only, so that
/// nobody else's flows are touched.
#[derive(Debug)]
pub struct Order {
    /// Of which family.
    pub family: IpFamily,
    /// Which ones.
    pub filters: Vec<FlowFilter>,
    /// All addresses of the node.
    pub node_addresses: BTreeSet<IpAddr>,
}

/// How often an order is tried, and how long to wait in between.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Starts a thread that carries out orders until nobody can give any more: looking through all
/// flows takes the kernel milliseconds, and the next change must not wait for that. What fails is
/// tried again, together with what has come up meanwhile.
pub fn start(metrics: Arc<Metrics>) -> io::Result<mpsc::Sender<Order>> {
    let mut socket = Socket::open()?;
    let (sender, orders) = mpsc::channel::<Order>();
    thread::Builder::new().name("conntrack".into()).spawn(move || {
        let (mut open, mut failures) = (Vec::new(), 0);
        while let Some(new) = wait(&orders, !open.is_empty()) {
            open.extend(new.into_iter().chain(orders.try_iter()));
            for family in [IpFamily::V4, IpFamily::V6] {
                let ours: Vec<_> = open.iter().filter(|order| order.family == family).collect();
                if !ours.is_empty() && carry_out(&mut socket, family, &ours, &metrics) {
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
                && let Ok(fresh) = Socket::open()
            {
                socket = fresh;
            }
        }
    })?;
    Ok(sender)
}

/// The next order; `Some(None)` if it is time to try an old one again, `None` at the end.
fn wait(orders: &mpsc::Receiver<Order>, again: bool) -> Option<Option<Order>> {
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
fn carry_out(socket: &mut Socket, family: IpFamily, orders: &[&Order], metrics: &Metrics) -> bool {
    let started = Instant::now();
    let outcome = forget(socket, family, orders);
    match &outcome {
        Ok(flows) => {
            debug!(?family, flows, took = ?started.elapsed(), "stale flows forgotten");
            let deleted = metrics.conntrack_deleted.get_or_create(&family.into());
            deleted.inc_by(u64::try_from(*flows).unwrap_or(0));
        }
        Err(error) => warn!(?family, %error, "cannot forget stale flows, will retry"),
    }
    let took = started.elapsed().as_secs_f64();
    metrics.conntrack.get_or_create(&family.into()).observe(took);
    outcome.is_ok()
}

/// Deletes the flows that the orders name; returns how many. A later order knows better which
/// flows may stay.
fn forget(socket: &mut Socket, family: IpFamily, orders: &[&Order]) -> Result<usize, NetlinkError> {
    let filters = orders.iter().flat_map(|order| &order.filters);
    let filters: HashMap<Frontend, &FlowFilter> =
        filters.map(|filter| (filter.frontend, filter)).collect();
    let own = &orders[orders.len() - 1].node_addresses;
    let number = if family == IpFamily::V4 { 2 } else { 10 };
    let mut forgotten = 0;
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        if !filters.keys().any(|frontend| frontend.protocol == protocol) {
            continue;
        }
        for flow in socket.ask(&dump_of(protocol, number))? {
            // Kernels before 5.8 hand out the flows of all protocols.
            if !is_of(&flow, protocol) {
                continue;
            }
            let Some((dialled, answerer)) = ends(&flow) else { continue };
            let at = |host| Frontend { host, protocol, port: dialled.port() };
            let node = own.contains(&dialled.ip()).then(|| at(Host::Node));
            let found = filters.get(&at(Host::Address(dialled.ip())));
            let filter = found.or_else(|| filters.get(&node?));
            if filter.is_some_and(|filter| !filter.keep.contains(&answerer)) {
                forgotten += usize::from(delete(socket, number, &flow)?);
            }
        }
    }
    Ok(forgotten)
}

/// Asks for all flows of a protocol.
fn dump_of(protocol: Protocol, family: u8) -> Vec<u8> {
    const ORIGINAL_FLAGS: u16 = 1;
    const REPLY_FLAGS: u16 = 2;
    const PROTOCOL: u32 = 1 << 3;
    request(SUBSYSTEM, GET, DUMP, family, |message| {
        message.nest(ORIGINAL, |tuple| {
            tuple.nest(TUPLE_TRANSPORT, |transport| transport.put(1, &[protocol.number()]));
        });
        message.nest(FILTER, |filter| {
            filter.put(ORIGINAL_FLAGS, &PROTOCOL.to_ne_bytes());
            filter.put(REPLY_FLAGS, &0u32.to_ne_bytes());
        });
    })
}

/// Deletes one flow; it may have ended meanwhile.
fn delete(socket: &mut Socket, family: u8, flow: &Message) -> Result<bool, NetlinkError> {
    let Some(tuple) = attribute(&flow.body, ORIGINAL) else { return Ok(false) };
    let message = request(SUBSYSTEM, DELETE, ACKNOWLEDGE, family, |message| {
        message.nest(ORIGINAL, |nest| nest.raw(tuple));
    });
    match socket.ask(&message) {
        Ok(_) => Ok(true),
        Err(NetlinkError::Refused { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn is_of(flow: &Message, protocol: Protocol) -> bool {
    const NUMBER: u16 = 1;
    let transport = attribute(&flow.body, ORIGINAL).and_then(|t| attribute(t, TUPLE_TRANSPORT));
    transport.and_then(|transport| attribute(transport, NUMBER)) == Some(&[protocol.number()])
}

/// Whom the client dialled, and who answers.
fn ends(flow: &Message) -> Option<(SocketAddr, SocketAddr)> {
    let tuple = |kind, v4, v6, port| {
        let tuple = attribute(&flow.body, kind)?;
        let addresses = attribute(tuple, TUPLE_ADDRESSES)?;
        let transport = attribute(tuple, TUPLE_TRANSPORT)?;
        let address: IpAddr = match attribute(addresses, v4) {
            Some(octets) => <[u8; 4]>::try_from(octets).ok()?.into(),
            None => Ipv6Addr::from(<[u8; 16]>::try_from(attribute(addresses, v6)?).ok()?).into(),
        };
        let port = u16::from_be_bytes(attribute(transport, port)?.try_into().ok()?);
        Some(SocketAddr::new(address, port))
    };
    // The destination of the original, the source of the reply.
    Some((tuple(ORIGINAL, 2, 4, 3)?, tuple(REPLY, 1, 3, 2)?))
}
