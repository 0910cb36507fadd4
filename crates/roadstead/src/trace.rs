//! `roadstead trace`: what becomes of a packet, and which object decided it.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::bail;
use clap::Parser;
use roadstead_forwarding::packet::{Decision, Origin, Outcome, Packet};
use roadstead_forwarding::service::{IpFamily, Protocol};

use crate::world::Source;

/// Say what happens to a packet, and which Service decided it.
#[derive(Debug, Parser)]
pub struct Args {
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
pub async fn run(mut args: Args) -> anyhow::Result<()> {
    let destination = args.to.socket.ip();
    if args.from.is_ipv4() != destination.is_ipv4() {
        bail!("the two addresses are of different families");
    }
    let [v4, v6] = args.source.tables().await?;
    let table = if IpFamily::of(destination) == IpFamily::V4 { v4 } else { v6 };
    let own = args.source.node_address.contains(&args.from);
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
    io::stdout().write_all(report(&table.explain(&packet, None)).as_bytes())?;
    Ok(())
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
    use super::*;

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
