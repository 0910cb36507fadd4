//! `roadstead trace`: what becomes of a packet, and which objects decided it.

mod policies;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::bail;
use clap::Parser;
use roadstead_forwarding::iptables::model::Field;
use roadstead_forwarding::ipvs::model::Scheduler;
use roadstead_forwarding::packet::{Decision, Origin, Outcome, Packet};
use roadstead_forwarding::service::{Frontend, Host, IpFamily, Protocol, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::{iptables, ipvs};
use roadstead_proxy::data_plane::ProxyMode;

pub(crate) use self::policies::Hosts;
use self::policies::judgements;
use crate::world::{Source, World};

/// Say what happens to a packet, and which Service and which NetworkPolicy decided it.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Who sends it.
    #[arg(long, value_name = "IP")]
    from: IpAddr,
    /// Whom it is for.
    #[arg(long, value_name = "IP:PORT/PROTO")]
    to: Destination,
    /// The interface by which it comes in; without one, an address of the node sends from the
    /// node itself.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
}

/// An address, a port and a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Destination {
    socket: SocketAddr,
    protocol: Protocol,
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (socket, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = Protocol::parse(Some(&protocol.to_uppercase()));
        Ok(Self {
            socket: socket.parse().map_err(|_| format!("{socket} is not IP:PORT"))?,
            protocol: protocol.ok_or("the protocol is tcp, udp or sctp")?,
        })
    }
}

/// Carries out `roadstead trace`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let destination = args.to.socket.ip();
    if args.from.is_ipv4() != destination.is_ipv4() {
        bail!("the two addresses are of different families");
    }
    let world = args.source.world().await?;
    world.say_assumed();
    let World { tables: [v4, v6], node_addresses, relayed, config, policies, hosts, .. } = world;
    let table = if IpFamily::of(destination) == IpFamily::V4 { v4 } else { v6 };
    let own = node_addresses.contains(&args.from) || args.from.is_loopback();
    let packet = Packet {
        source: args.from,
        destination,
        protocol: args.to.protocol,
        port: args.to.socket.port(),
        origin: match (args.interface, own) {
            (None, true) => Origin::Node,
            (name, _) => Origin::Network(name.unwrap_or_else(|| "eth0".into()).into()),
        },
    };
    let mut decision = table.explain(&packet, None);
    let outcomes = outcomes(config.mode, &table, &packet, &decision);
    let differs = outcomes != decision.outcomes;
    decision.outcomes = outcomes;
    io::stdout().write_all(report(&decision).as_bytes())?;
    io::stdout().write_all(judgements(&policies, &hosts, &packet, &decision).as_bytes())?;
    if let Some(note) = unknown_node(&table, &packet, &decision) {
        writeln!(io::stdout(), "{note}")?;
    }
    let relayed = relayed.contains(&destination) && packet.protocol == Protocol::Tcp;
    if let Some(name) = of_node_port(&table, &packet).filter(|_| relayed) {
        writeln!(io::stdout(), "note     the proxy itself listens there, and passes on to {name}")?;
    }
    if differs {
        writeln!(io::stdout(), "note     mode {} treats it like this, others do not", config.mode)?;
    }
    Ok(())
}

/// What becomes of a packet in a mode: the rules of kube-proxy's older modes do not do everything
/// that they should.
fn outcomes(
    mode: ProxyMode,
    table: &ForwardingTable,
    packet: &Packet,
    decision: &Decision,
) -> BTreeSet<Outcome> {
    let node_addresses = &table.node_network().node_addresses;
    match mode {
        ProxyMode::Nftables => decision.outcomes.clone(),
        ProxyMode::Iptables => {
            let program = iptables::compile::compile(table);
            let lists = BTreeSet::new();
            let in_set = &|_: &str, _: &[Field], _: &Packet| false;
            let world = iptables::trace::World { node_addresses, lists: &lists, in_set };
            iptables::trace::trace(&program, &world, packet).into_keys().collect()
        }
        ProxyMode::Ipvs => {
            let program = ipvs::compile::compile(table, Scheduler::default());
            ipvs::trace::trace(&program, node_addresses, packet)
        }
    }
}

/// A packet for a node port passes if nobody knows which addresses the node has.
fn unknown_node(table: &ForwardingTable, packet: &Packet, decision: &Decision) -> Option<String> {
    let mut own = table.node_network().node_addresses.iter();
    let unowned = decision.owner.is_none() && own.all(IpAddr::is_loopback);
    let name =
        of_node_port(table, packet).filter(|_| unowned && !packet.destination.is_loopback())?;
    Some(format!(
        "note     {} is the node port of {name}, but the node is not known: say --node or --node-address",
        packet.port
    ))
}

/// Whose node port the port of a packet is, if it is one.
fn of_node_port<'a>(
    table: &'a ForwardingTable,
    packet: &Packet,
) -> Option<&'a Arc<ServicePortName>> {
    let node_port = Frontend { host: Host::Node, protocol: packet.protocol, port: packet.port };
    let of = |name: &&Arc<ServicePortName>| {
        table.frontends_of(name).iter().any(|(frontend, _)| *frontend == node_port)
    };
    table.iter().map(|(name, _)| name).find(of)
}

fn report(decision: &Decision) -> String {
    let mut lines = Vec::new();
    if let Some((service, kind)) = &decision.owner {
        lines.push(format!("service  {service} ({kind:?})"));
    }
    lines.push(format!("because  {}", decision.reason));
    let count = decision.outcomes.len();
    for outcome in &decision.outcomes {
        lines.push(match outcome {
            Outcome::Forward { target, masquerade } => {
                let seen = if *masquerade { ", which sees the node as the sender" } else { "" };
                format!("forward  {target} (1 in {count}){seen}")
            }
            Outcome::Reject => "reject   the sender is told at once".into(),
            Outcome::Drop => "drop     the sender hears nothing".into(),
            Outcome::Pass => "pass     the proxy does not touch it".into(),
        });
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use roadstead_api::key::ObjectKey;
    use roadstead_forwarding::node_network::NodeNetwork;
    use roadstead_forwarding::service::ServicePort;

    use super::*;

    #[test]
    fn node_ports_of_an_unknown_node() {
        let port = ServicePort { port: 80, node_port: Some(30080), ..ServicePort::default() };
        let name = ServicePortName {
            namespace: "ns".into(),
            name: "web".into(),
            port: String::new(),
            protocol: Protocol::Tcp,
        };
        let own: IpAddr = [192, 168, 0, 7].into();
        for (known, number, want) in
            [(false, 30080, true), (false, 30081, false), (true, 30080, false)]
        {
            let node_addresses = known.then_some(own).into_iter().collect();
            let node_network = NodeNetwork { node_addresses, ..NodeNetwork::default() };
            let mut table = ForwardingTable::new(IpFamily::V4, &node_network);
            table.replace(&ObjectKey::new("ns", "web"), vec![(name.clone(), port.clone())]);
            let packet = Packet {
                source: [10, 0, 0, 1].into(),
                destination: own,
                protocol: Protocol::Tcp,
                port: number,
                origin: Origin::Network("eth0".into()),
            };
            let note = unknown_node(&table, &packet, &table.explain(&packet, None));
            assert_eq!(note.is_some(), want, "{known} {number}");
        }
    }

    #[test]
    fn destinations() {
        let tcp = Destination { socket: ([10, 0, 0, 1], 80).into(), protocol: Protocol::Tcp };
        let udp = Destination { protocol: Protocol::Udp, ..tcp.clone() };
        let cases = [
            ("10.0.0.1:80/tcp", Some(tcp.clone())),
            ("10.0.0.1:80", Some(tcp)),
            ("10.0.0.1:80/UDP", Some(udp)),
            ("10.0.0.1", None),
            ("10.0.0.1:80/icmp", None),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse().ok(), want, "{text}");
        }
    }
}
