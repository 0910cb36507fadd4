//! Node ports on the loopback addresses, in modes whose rules cannot serve them.
//!
//! The kernel keeps packets of loopback addresses on the machine, unless it is told to take them
//! from anywhere (`route_localnet`). So we listen there ourselves and pass on what is said, by TCP
//! only, as upstream's nftables mode does since 1.37 (KEP-6032): if `nodePortAddresses` asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::service::{FrontendKind, IpFamily, Protocol};
use roadstead_forwarding::table::ForwardingTable;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{self, Instant};
use tracing::{debug, info, warn};

use crate::health::{AbortOnDrop, listen_on};

/// How long an endpoint may take to answer before the next one is tried.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many connections at most are passed on at a time: whoever has more is turned away, and not
/// the rest of this process.
const MOST: usize = 1024;
/// A port that somebody else has is tried again after this time.
const PORT_RETRY: Duration = Duration::from_secs(10);

/// Where to listen, and where that leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relays {
    /// The loopback addresses.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The node ports of each Service.
    pub(crate) by_service: BTreeMap<ObjectKey, Vec<Relay>>,
}

/// A node port of a Service in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relay {
    family: IpFamily,
    port: u16,
    targets: Vec<SocketAddr>,
    affinity: Option<Duration>,
}

impl Relays {
    /// Takes in the Services of a table that changed. From the node itself all endpoints are
    /// reached, whatever the policy.
    pub(crate) fn observe(&mut self, tables: &[&ForwardingTable], changed: &BTreeSet<ObjectKey>) {
        for key in changed {
            let relays: Vec<_> = tables.iter().flat_map(|table| relays_of(table, key)).collect();
            match relays.is_empty() {
                true => drop(self.by_service.remove(key)),
                false => drop(self.by_service.insert(key.clone(), relays)),
            }
        }
    }

    fn sockets(&self) -> BTreeSet<SocketAddr> {
        let at = |relay: &Relay| {
            let Relay { family, port, .. } = *relay;
            let addresses = self.addresses.iter();
            let addresses = addresses.filter(move |address| IpFamily::of(**address) == family);
            addresses.map(move |address| SocketAddr::new(*address, port))
        };
        self.by_service.values().flatten().flat_map(at).collect()
    }

    fn relay_on(&self, socket: SocketAddr) -> Option<&Relay> {
        let family = IpFamily::of(socket.ip());
        let is_meant = |relay: &&Relay| relay.port == socket.port() && relay.family == family;
        self.by_service.values().flatten().find(is_meant)
    }
}

fn relays_of(table: &ForwardingTable, key: &ObjectKey) -> Vec<Relay> {
    let mut relays = Vec::new();
    for (name, port) in table.ports_of(key).filter(|(name, _)| name.protocol == Protocol::Tcp) {
        let frontends = table.frontends_of(&name).into_iter();
        for (frontend, _) in frontends.filter(|(_, kind)| *kind == FrontendKind::NodePort) {
            // Nobody is led back to the machine's own loopback.
            let targets = port.cluster.iter().map(|target| target.socket());
            let targets: Vec<_> = targets.filter(|target| !target.ip().is_loopback()).collect();
            if !targets.is_empty() {
                let (family, affinity) = (table.family(), port.affinity);
                relays.push(Relay { family, port: frontend.port, targets, affinity });
            }
        }
    }
    relays
}

/// Serves all of them until dropped.
pub async fn serve(mut relays: watch::Receiver<Arc<Relays>>) {
    let mut listening: BTreeMap<SocketAddr, AbortOnDrop> = BTreeMap::new();
    let mut refused: BTreeSet<SocketAddr> = BTreeSet::new();
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let sockets = relays.borrow_and_update().sockets();
        listening.retain(|socket, _| sockets.contains(socket));
        refused.retain(|socket| sockets.contains(socket));
        for socket in sockets {
            if listening.contains_key(&socket) {
                continue;
            }
            match listen_on(socket) {
                Ok(Some(listener)) => {
                    info!(%socket, "node port served on a loopback address");
                    let task = tokio::spawn(accept(listener, socket, relays.clone(), room.clone()));
                    listening.insert(socket, AbortOnDrop(task.abort_handle()));
                    refused.remove(&socket);
                }
                Ok(None) => debug!(%socket, "no such address family"),
                Err(error) => {
                    if refused.insert(socket) {
                        warn!(%socket, %error, "cannot serve this node port on a loopback address");
                    }
                }
            }
        }
        let patience = if refused.is_empty() { Duration::MAX } else { PORT_RETRY };
        if let Ok(Err(_)) = time::timeout(patience, relays.changed()).await {
            return;
        }
    }
}

async fn accept(
    listener: TcpListener,
    socket: SocketAddr,
    relays: watch::Receiver<Arc<Relays>>,
    room: Arc<Semaphore>,
) {
    let mut turn = Turn::default();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let order = {
            let relays = relays.borrow();
            relays.relay_on(socket).map(|relay| turn.order(relay, Instant::now()))
        };
        if let (Some(order), Ok(place)) = (order, room.clone().try_acquire_owned()) {
            tokio::spawn(async move {
                pass_on(client, order).await;
                drop(place);
            });
        }
    }
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct Turn {
    next: usize,
    last: Option<(SocketAddr, Instant)>,
}

impl Turn {
    /// The targets in the order in which to try them. With session affinity the last one comes
    /// first: all who call are this machine.
    fn order(&mut self, relay: &Relay, now: Instant) -> Vec<SocketAddr> {
        let mut order = relay.targets.clone();
        let same = self.last.filter(|(_, at)| {
            relay.affinity.is_some_and(|timeout| now.duration_since(*at) < timeout)
        });
        let same = same.and_then(|(last, _)| order.iter().position(|target| *target == last));
        let first = same.unwrap_or_else(|| {
            self.next = self.next.wrapping_add(1);
            self.next % order.len()
        });
        order.rotate_left(first);
        self.last = Some((order[0], now));
        order
    }
}

async fn pass_on(mut client: TcpStream, targets: Vec<SocketAddr>) {
    for target in targets {
        match time::timeout(PATIENCE, TcpStream::connect(target)).await {
            Ok(Ok(mut server)) => {
                // How it ends is between the two of them.
                let _: io::Result<_> = copy_bidirectional(&mut client, &mut server).await;
                return;
            }
            Ok(Err(error)) => debug!(%target, %error, "an endpoint does not answer"),
            Err(_) => debug!(%target, "an endpoint does not answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns() {
        let targets: Vec<SocketAddr> =
            ["10.0.0.1:80", "10.0.0.2:80"].map(|text| text.parse().unwrap()).into();
        let (family, port) = (IpFamily::V4, 30080);
        let plain = Relay { family, port, targets: targets.clone(), affinity: None };
        let mut turn = Turn::default();
        let start = Instant::now();
        let firsts: BTreeSet<_> = (0..2).map(|_| turn.order(&plain, start)[0]).collect();
        assert_eq!(firsts.len(), 2, "each has its turn");
        let sticky = Relay { affinity: Some(Duration::from_secs(60)), ..plain.clone() };
        let first = turn.order(&sticky, start)[0];
        let later = start + Duration::from_secs(50);
        assert_eq!(turn.order(&sticky, later)[0], first);
        let other = targets.iter().find(|target| **target != first).copied().unwrap();
        let gone = Relay { targets: vec![other], ..sticky };
        assert_eq!(turn.order(&gone, later), [other], "one that is gone");
    }
}
