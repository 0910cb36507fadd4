//! Follows a packet through rules and virtual servers, to see what the kernel would do with it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::model::{Entry, Program, Server, SetKind, SetName};
use crate::iptables::model::{Field, TableName};
use crate::iptables::trace::{Draws, End, Walk, World};
use crate::packet::{Origin, Outcome, Packet};

/// Everything that may become of a packet; with any scheduler, each forwarding is as likely.
pub fn trace(
    program: &Program,
    node_addresses: &BTreeSet<IpAddr>,
    packet: &Packet,
) -> BTreeSet<Outcome> {
    let in_set =
        |name: &str, fields: &[Field], packet: &Packet| contains(program, name, fields, packet);
    let addresses: BTreeSet<_> = node_addresses.union(&program.addresses).copied().collect();
    let none = BTreeSet::new();
    let world = World { node_addresses: &addresses, lists: &none, in_set: &in_set };
    let Packet { destination: address, protocol, port, .. } = *packet;
    let server = Server { address, protocol, port };
    let targets = program.servers.get(&server).map(|(_, targets)| targets);
    let walk = |target: Option<_>| {
        let mut draws = Draws::default();
        let mut walk = Walk::new(&program.rules, &world, packet.clone(), &mut draws);
        follow(&mut walk, &server, targets.is_some(), target)
    };
    match targets {
        Some(targets) if !targets.is_empty() => {
            targets.iter().map(|target| walk(Some(*target))).collect()
        }
        _ => [walk(None)].into(),
    }
}

fn follow(
    walk: &mut Walk<'_>,
    server: &Server,
    is_server: bool,
    target: Option<std::net::SocketAddr>,
) -> Outcome {
    let from_node = walk.packet.origin == Origin::Node;
    walk.hook(TableName::Nat, if from_node { "OUTPUT" } else { "PREROUTING" });
    // What the node sends is taken by IPVS on its way out, before any filter.
    if !(from_node && is_server)
        && walk.is_for_this_node()
        && let Some(outcome) = stopped(walk.hook(TableName::Filter, "INPUT"))
    {
        return outcome;
    }
    match target {
        Some(target) => {
            walk.redirect(target);
            walk.through(*server);
            stopped(walk.hook(TableName::Filter, "OUTPUT")).unwrap_or_else(|| walk.leave())
        }
        None if is_server => Outcome::Reject,
        None => Outcome::Pass,
    }
}

fn stopped(end: End) -> Option<Outcome> {
    match end {
        End::Drop => Some(Outcome::Drop),
        End::Reject => Some(Outcome::Reject),
        End::Return | End::Accept => None,
    }
}

/// Looks a packet's fields up, as the kernel does it: the second field is the port.
fn contains(program: &Program, name: &str, fields: &[Field], packet: &Packet) -> bool {
    let Some(set) = SetName::ALL.into_iter().find(|set| set.text(program.family) == name) else {
        return false;
    };
    let Packet { source, destination, protocol, port, .. } = *packet;
    let address = |field: Option<&Field>| match field {
        Some(Field::Source) => source,
        _ => destination,
    };
    let first = address(fields.first());
    let entries = &program.sets[&set];
    match set.kind() {
        SetKind::Port => entries.contains(&Entry::Port(port)),
        SetKind::Address => entries.contains(&Entry::Address(first)),
        SetKind::AddressPort => entries.contains(&Entry::AddressPort(first, protocol, port)),
        SetKind::AddressPortAddress => {
            let last = address(fields.get(2));
            entries.contains(&Entry::AddressPortAddress(first, protocol, port, last))
        }
        SetKind::AddressPortNetwork => entries.iter().any(|entry| match entry {
            Entry::AddressPortNetwork(to, of, number, network) => {
                (*to, *of, *number) == (first, protocol, port)
                    && network.contains(&address(fields.get(2)))
            }
            _ => false,
        }),
    }
}
