//! Ports of the node that lead to pods: reserved, and translated by a table of our own in nftables.
//!
//! The table comes after that of the proxy: what is a Service's stays a Service's. A port is also bound on
//! the node, without listening, so that a pod takes none from a process of the node, and no process one
//! from a pod. `docs/adr/0080-host-ports.md` says why it is so.

mod rules;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use nlink::netlink::netfilter::{ConntrackFilter, IpProtocol};
use nlink::netlink::types;
use nlink::netlink::{Connection, Netfilter, Nftables};
use roadstead_pod::addresses::Addresses;
use roadstead_pod::host_ports::{HostPort, ReservedPorts, TransportProtocol};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::sync::Mutex;
use tokio::time;
use tracing::{debug, warn};

use self::rules::{FAMILIES, Forward, MARK, TABLE, chains, ruleset};
use crate::config::NodeError;
use crate::network::{Trying, sysctl};

/// How soon it is noticed that somebody changed nftables.
const LOOK: Duration = Duration::from_secs(1);

/// The ports of this node's pods.
#[derive(Debug)]
pub(crate) struct HostPorts {
    bridge: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reserved: ReservedPorts,
    /// By uid, those that have a network of their own.
    forwards: BTreeMap<String, Vec<Forward>>,
    /// Sockets that keep the ports from processes of the node.
    bound: BTreeMap<String, Vec<OwnedFd>>,
    /// The number of the last commit to nftables, by anybody, after which all was well.
    seen: Option<u32>,
}

impl HostPorts {
    pub(crate) fn new(bridge: &str) -> Self {
        Self { bridge: bridge.to_owned(), state: Mutex::default() }
    }

    /// Reserves ports for a pod, all or none of them.
    pub(crate) async fn reserve(&self, uid: &str, ports: &[HostPort]) -> Result<(), NodeError> {
        self.state.lock().await.reserved.reserve(uid, ports).map_err(NodeError::HostPortTaken)
    }

    /// Lets the reserved ports lead to the pod's addresses.
    pub(crate) async fn forward(
        &self,
        uid: &str,
        ports: &[HostPort],
        target: Addresses,
    ) -> Result<(), NodeError> {
        if ports.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock().await;
        if !state.bound.contains_key(uid) {
            let bound = bind_all(ports, target)?;
            state.bound.insert(uid.to_owned(), bound);
        }
        state.forwards.insert(uid.to_owned(), forwards(ports, target));
        self.commit(&mut state).await?;
        forget_flows(ports, None).await;
        Ok(())
    }

    /// Takes note of ports that a pod has from an earlier agent.
    pub(crate) fn adopt(&mut self, uid: &str, ports: &[HostPort], target: Option<Addresses>) {
        let state = self.state.get_mut();
        if let Err(taken) = state.reserved.reserve(uid, ports) {
            warn!(%taken, uid, "two pods have one host port");
        }
        let Some(target) = target.filter(|_| !ports.is_empty()) else { return };
        match bind_all(ports, target) {
            Ok(bound) => drop(state.bound.insert(uid.to_owned(), bound)),
            Err(error) => warn!(%error, uid, "a process of the node has the port of a pod"),
        }
        state.forwards.insert(uid.to_owned(), forwards(ports, target));
    }

    /// Gives the pod's ports back.
    pub(crate) async fn release(&self, uid: &str) -> Result<(), NodeError> {
        let mut state = self.state.lock().await;
        let gone = state.forwards.remove(uid);
        if gone.is_some() {
            self.commit(&mut state).await?;
        }
        let ports = state.reserved.release(uid);
        state.bound.remove(uid);
        drop(state);
        let targets = gone.into_iter().flatten().map(|forward| forward.target);
        if let Some(targets) = Addresses::of(targets) {
            forget_flows(&ports, Some(targets)).await;
        }
        Ok(())
    }

    /// Writes the whole table if somebody has changed it, or it is not known to be there.
    pub(crate) async fn heal(&self) -> Result<(), NodeError> {
        let mut state = self.state.lock().await;
        let kernel = connect()?;
        let found = kernel.generation().await.trying(|| "ask for the generation".into())?;
        if state.seen == Some(found) || self.is_whole(&kernel, &state).await? {
            state.seen = Some(found);
            self.route_loopback(!state.forwards.is_empty());
            return Ok(());
        }
        if state.seen.is_some() {
            warn!("somebody changed the rules of host ports; they are back");
        }
        self.commit(&mut state).await
    }

    /// Keeps the table as it should be, for as long as it is polled.
    pub(crate) async fn maintain(&self) {
        let mut failing = false;
        loop {
            time::sleep(LOOK).await;
            let empty = self.state.lock().await.forwards.is_empty();
            // Where there are no host ports, there need be no nftables.
            let healed = if empty { Ok(()) } else { self.heal().await };
            if let Err(error) = &healed
                && !failing
            {
                warn!(%error, "cannot look after host ports, will retry");
            }
            failing = healed.is_err();
        }
    }

    async fn is_whole(
        &self,
        kernel: &Connection<Nftables>,
        state: &State,
    ) -> Result<bool, NodeError> {
        for family in FAMILIES {
            let found = kernel.list_rules(TABLE, family).await;
            let found = found.trying(|| "list the rules of host ports".into())?;
            let found =
                found.into_iter().map(|rule| (rule.chain, rule.comment_text.unwrap_or_default()));
            let wanted = ruleset(family, &self.bridge, &state.all());
            if !found.eq(wanted.iter().map(|rule| rule.identity())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Replaces the tables as a whole, or removes them when there are no host ports.
    async fn commit(&self, state: &mut State) -> Result<(), NodeError> {
        let forwards = state.all();
        state.seen = None;
        // Only while somebody needs it do loopback addresses leave the loopback link, and never
        // without the rules that keep pods from them.
        if forwards.is_empty() {
            self.route_loopback(false);
            return remove_table().await.map(drop);
        }
        let kernel = connect()?;
        let mut batch = kernel.transaction();
        for family in FAMILIES {
            let tables = kernel.list_tables_in(family).await.trying(|| "list tables".into())?;
            if tables.iter().any(|table| table.name == TABLE) {
                batch = batch.del_table(TABLE, family);
            }
            let rules = ruleset(family, &self.bridge, &forwards);
            if rules.is_empty() {
                continue;
            }
            batch = batch.add_table_with_comment(TABLE, family, 0, Some(MARK));
            for chain in chains(family).trying(|| "make the chains of host ports".into())? {
                batch = batch.add_chain(chain);
            }
            for rule in rules {
                batch = batch.add_rule(rule.rule());
            }
        }
        batch.commit(&kernel).await.trying(|| "write the rules of host ports".into())?;
        self.route_loopback(true);
        Ok(())
    }

    /// The bridge may be another one than before.
    fn route_loopback(&self, allowed: bool) {
        let name = format!("net/ipv4/conf/{}/route_localnet", self.bridge);
        if Path::new("/proc/sys").join(&name).exists() {
            sysctl(&name, if allowed { "1" } else { "0" });
        }
    }
}

impl State {
    fn all(&self) -> Vec<Forward> {
        self.forwards.values().flatten().copied().collect()
    }
}

/// Removes our tables; returns whether there were any.
pub(crate) async fn remove_table() -> Result<bool, NodeError> {
    let (kernel, mut any) = (connect()?, false);
    for family in FAMILIES {
        any |= match kernel.del_table_if_exists(TABLE, family).await {
            // A kernel without nftables has no table either.
            Err(error) if error.is_not_supported() || error.is_invalid_argument() => false,
            removed => removed.trying(|| "remove the rules of host ports".into())?,
        };
    }
    Ok(any)
}

fn connect() -> Result<Connection<Nftables>, NodeError> {
    Connection::<Nftables>::new().trying(|| "open a netlink socket".into())
}

fn forwards(ports: &[HostPort], targets: Addresses) -> Vec<Forward> {
    let all = ports.iter().flat_map(|port| targets.iter().map(move |target| (*port, target)));
    let same = |port: &HostPort, target: IpAddr| {
        // What is asked for at an IPv6 address has no way to a pod without one.
        port.address.is_none_or(|address| address.is_ipv4() == target.is_ipv4())
    };
    let reachable = all.filter(|(port, target)| same(port, *target));
    reachable.map(|(port, target)| Forward { port, target }).collect()
}

/// Keeps the ports from processes of the node; fails if one has one already.
fn bind_all(ports: &[HostPort], targets: Addresses) -> Result<Vec<OwnedFd>, NodeError> {
    let mut bound = Vec::new();
    for Forward { port, target } in forwards(ports, targets) {
        match bind(&port, target) {
            Ok(socket) => bound.extend(socket),
            Err(Errno::ADDRINUSE) => return Err(NodeError::HostPortInUse(port)),
            // An address that the node does not have, not yet or not any more, leads to nobody.
            Err(error) => debug!(%port, %error, "cannot keep a port for a pod"),
        }
    }
    Ok(bound)
}

/// Binds the port in the family of its target.
fn bind(port: &HostPort, target: IpAddr) -> Result<Option<OwnedFd>, Errno> {
    let every: IpAddr = match target {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let address = SocketAddr::new(port.address.unwrap_or(every), port.port);
    let kind = match port.protocol {
        TransportProtocol::Tcp => SocketType::STREAM,
        TransportProtocol::Udp => SocketType::DGRAM,
        // Few kernels have sockets of it.
        TransportProtocol::Sctp => return Ok(None),
    };
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if family == AddressFamily::INET6 {
        // IPv4 has a socket of its own.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Connections that ended a moment ago are in nobody's way; from then on nobody shares the port.
    let is_stream = kind == SocketType::STREAM;
    sockopt::set_socket_reuseaddr(&socket, is_stream)?;
    rustix::net::bind(&socket, &address)?;
    sockopt::set_socket_reuseaddr(&socket, false)?;
    Ok(Some(socket))
}

/// A flow without connections would go on where it went before, for as long as packets come.
async fn forget_flows(ports: &[HostPort], targets: Option<Addresses>) {
    for port in ports.iter().filter(|port| port.protocol == TransportProtocol::Udp) {
        let filter = ConntrackFilter::new().proto(IpProtocol::Udp).orig_dst_port(port.port);
        let filters: Vec<_> = match (port.address, targets) {
            (_, Some(targets)) => {
                targets.iter().map(|target| filter.clone().reply_src(target)).collect()
            }
            (Some(address), None) => vec![filter.orig_dst(address)],
            (None, None) => [types::AddressFamily::Inet, types::AddressFamily::Inet6]
                .map(|family| filter.clone().family(family))
                .into(),
        };
        for filter in filters {
            if let Err(error) = forget(&filter).await {
                debug!(%port, %error, "cannot forget flows to a host port");
            }
        }
    }
}

async fn forget(filter: &ConntrackFilter) -> Result<(), nlink::Error> {
    Connection::<Netfilter>::new()?.del_conntrack_matching(filter).await.map(drop)
}
