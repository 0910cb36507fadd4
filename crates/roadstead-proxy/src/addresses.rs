//! The addresses that this machine has.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use roadstead_api::ip;
use roadstead_forwarding::node_network::NodePorts;
use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::DUMP;
use roadstead_netlink::attributes::{address_of, attribute};
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::socket::{Answer, NetlinkFamily, Request, Socket};

use crate::ipvs::link;

/// All addresses on all interfaces, loopback included. Those that IPVS holds for Services are not
/// the machine's own.
pub fn own_addresses() -> Result<BTreeSet<IpAddr>, NetlinkError> {
    const GET_ADDRESS: u16 = 22;
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    let mut socket = Socket::open(NetlinkFamily::Route).map_err(NetlinkError::Socket)?;
    let virtual_link = link_number(link::NAME);
    let address = |answer: Answer<'_>| {
        let link = u32::from_ne_bytes(answer.header.get(4..8)?.try_into().ok()?);
        // On a link between two machines, only the local one is ours.
        let own = attribute(answer.attributes, LOCAL);
        let address = address_of(own.or_else(|| attribute(answer.attributes, ADDRESS))?)?;
        (Some(link) != virtual_link).then_some(address)
    };
    let request = Request { kind: GET_ADDRESS, flags: DUMP, header: &[0; 8] };
    Ok(socket.ask(&request, |_| {}, address)?.into_iter().collect())
}

fn link_number(name: &str) -> Option<u32> {
    fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?.trim().parse().ok()
}

/// What `nodePortAddresses` asks for, and who can serve it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodePortAddresses {
    /// Networks, and the words `primary`, `localhost` and `all`.
    pub(crate) entries: Vec<String>,
    /// Whether rules can serve node ports on 127.0.0.1; on ::1 they never can.
    pub(crate) localhost: bool,
    /// Whether we listen ourselves where rules cannot serve.
    pub(crate) relays: bool,
}

/// What a machine has to serve node ports on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineAddresses<'a> {
    /// All its addresses.
    pub(crate) own: &'a BTreeSet<IpAddr>,
    /// Those that the cluster knows it by.
    pub(crate) primary: &'a [IpAddr],
}

impl NodePortAddresses {
    /// The loopback addresses that entries speak of, and rules do not serve.
    pub(crate) fn relayed(&self, machine: MachineAddresses<'_>) -> BTreeSet<IpAddr> {
        let means = |entry: &String, address: IpAddr| match ip::parse_network(entry) {
            Some(network) => network.prefix_len() > 0 && network.contains(&address),
            None => entry == "localhost",
        };
        let asked = |address: &&IpAddr| self.entries.iter().any(|entry| means(entry, **address));
        let loopback = machine.own.iter().filter(|address| self.relays && address.is_loopback());
        loopback.filter(asked).copied().collect()
    }

    /// Where rules serve node ports of a family. A family that no entry speaks of serves them
    /// everywhere, as upstream's. Returns with it what is odd about the entries.
    pub(crate) fn of(
        &self,
        family: IpFamily,
        machine: MachineAddresses<'_>,
    ) -> (NodePorts, Vec<String>) {
        let every = NodePorts::Every { loopback: self.localhost };
        let (mut chosen, mut notes, mut spoken) = (BTreeSet::new(), Vec::new(), false);
        for entry in &self.entries {
            let network = ip::parse_network(entry);
            match (entry.as_str(), &network) {
                ("primary", _) => chosen.extend(machine.primary),
                ("localhost", _) => chosen.extend(machine.own.iter().filter(|a| a.is_loopback())),
                ("all", _) => return (every, notes),
                (_, Some(net)) if IpFamily::of(net.network()) != family => continue,
                (_, Some(net)) if net.prefix_len() == 0 => return (every, notes),
                (_, Some(net)) => chosen.extend(machine.own.iter().filter(|a| net.contains(*a))),
                (_, None) => notes.push(format!("{entry} is neither a network nor a keyword")),
            }
            spoken = true;
        }
        if !spoken {
            return (every, notes);
        }
        chosen.retain(|address| IpFamily::of(*address) == family);
        let is_usable = |a: &IpAddr| !a.is_loopback() || (a.is_ipv4() && self.localhost);
        for address in chosen.extract_if(.., |address| !is_usable(address)) {
            if !self.relays {
                notes.push(format!("node ports cannot be served on {address}"));
            }
        }
        (NodePorts::On(chosen), notes)
    }
}

/// Whoever serves node ports on all addresses serves them on the loopback addresses only if told
/// to.
pub(crate) fn with_localhost(node_ports: NodePorts, localhost: bool) -> NodePorts {
    match node_ports {
        NodePorts::Every { .. } => NodePorts::Every { loopback: localhost },
        chosen => chosen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_port_addresses() {
        let own = ["127.0.0.1", "192.168.1.7", "10.0.0.7", "::1", "fd00::7", "2001:db8::7"];
        let own: BTreeSet<IpAddr> = own.map(|text| text.parse().unwrap()).into();
        let primary = ["192.168.1.7".parse().unwrap()];
        let (every, none) = ("every", "");
        let cases = [
            ("", every, every, 0),
            ("all", every, every, 0),
            ("0.0.0.0/0", every, every, 0),
            ("0.0.0.0/0 fd00::/8", every, "fd00::7", 0),
            ("10.0.0.0/8 ::/0", "10.0.0.7", every, 0),
            ("primary", "192.168.1.7", none, 0),
            ("localhost", "127.0.0.1", none, 1),
            ("10.0.0.0/8", "10.0.0.7", every, 0),
            ("10.0.0.0/8 primary", "10.0.0.7 192.168.1.7", none, 0),
            ("172.16.0.0/12 fc00::/8", none, none, 0),
            ("nonsense primary", "192.168.1.7", none, 2),
        ];
        let machine = MachineAddresses { own: &own, primary: &primary };
        for (text, v4, v6, count) in cases {
            let entries: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            let choice = NodePortAddresses { entries, localhost: true, relays: false };
            let (mut got, mut notes) = (Vec::new(), Vec::new());
            for family in [IpFamily::V4, IpFamily::V6] {
                let (node_ports, mut odd) = choice.of(family, machine);
                notes.append(&mut odd);
                got.push(match node_ports {
                    NodePorts::Every { .. } => "every".to_owned(),
                    NodePorts::On(addresses) => {
                        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                    }
                });
            }
            assert_eq!((&*got[0], &*got[1], notes.len()), (v4, v6, count), "{text}: {notes:?}");
            let (node_ports, notes) =
                NodePortAddresses { localhost: false, ..choice.clone() }.of(IpFamily::V4, machine);
            if text == "localhost" {
                assert_eq!(node_ports, NodePorts::On(BTreeSet::new()));
                assert_eq!(notes, ["node ports cannot be served on 127.0.0.1"]);
            }
            let relaying = NodePortAddresses { localhost: false, relays: true, ..choice };
            let relayed: Vec<_> =
                relaying.relayed(machine).iter().map(ToString::to_string).collect();
            let asked = if text == "localhost" { "127.0.0.1 ::1" } else { "" };
            assert_eq!(relayed.join(" "), asked, "{text}");
            let odd = if text.contains("nonsense") { 2 } else { 0 };
            let notes =
                [IpFamily::V4, IpFamily::V6].map(|family| relaying.of(family, machine).1.len());
            assert_eq!(notes.iter().sum::<usize>(), odd, "{text}");
        }
    }
}
