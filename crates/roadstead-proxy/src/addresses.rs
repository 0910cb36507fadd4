//! The addresses that this machine has.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};

use roadstead_api::ip;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::surroundings::NodePorts;

use crate::ipvs::link;
use crate::netlink::{DUMP, NetlinkError, Socket, attribute, request};

/// All addresses on all interfaces, loopback included. Those that IPVS holds for Services are not
/// the machine's own.
pub fn own_addresses() -> Result<BTreeSet<IpAddr>, NetlinkError> {
    const GET_ADDRESS: u16 = 22;
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const REST_OF_HEADER: usize = 4;
    let mut socket = Socket::open_route().map_err(NetlinkError::Socket)?;
    let messages = socket.ask(&request(0, GET_ADDRESS, DUMP, 0, |_| {}))?;
    let virtual_link = link_number(link::NAME);
    let address = |body: &[u8]| -> Option<IpAddr> {
        let number = u32::from_ne_bytes(body.get(..REST_OF_HEADER)?.try_into().ok()?);
        if Some(number) == virtual_link {
            return None;
        }
        let attributes = body.get(REST_OF_HEADER..)?;
        // On a link between two machines, only the local one is ours.
        let octets = attribute(attributes, LOCAL).or_else(|| attribute(attributes, ADDRESS))?;
        match octets.len() {
            4 => Some(<[u8; 4]>::try_from(octets).ok()?.into()),
            _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?).into()),
        }
    };
    Ok(messages.iter().filter_map(|message| address(&message.body)).collect())
}

fn link_number(name: &str) -> Option<u32> {
    fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?.trim().parse().ok()
}

/// What `nodePortAddresses` means.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// Networks, and the words `primary`, `localhost` and `all`.
    pub entries: &'a [String],
    /// The addresses of the machine.
    pub own: &'a BTreeSet<IpAddr>,
    /// The addresses that the cluster knows it by.
    pub primary: &'a [IpAddr],
    /// Whether rules can serve node ports on 127.0.0.1; on ::1 they never can.
    pub localhost: bool,
    /// Whether we listen ourselves where rules cannot serve.
    pub relays: bool,
}

impl Choice<'_> {
    /// The loopback addresses that entries speak of, and rules do not serve.
    pub fn relayed(&self) -> BTreeSet<IpAddr> {
        let means = |entry: &String, address: IpAddr| match ip::parse_network(entry) {
            Some(network) => network.prefix_len() > 0 && network.contains(&address),
            None => entry == "localhost",
        };
        let asked = |address: &&IpAddr| self.entries.iter().any(|entry| means(entry, **address));
        let loopback = self.own.iter().filter(|address| self.relays && address.is_loopback());
        loopback.filter(asked).copied().collect()
    }

    /// Where rules serve node ports of a family. A family that no entry speaks of serves them
    /// everywhere, as upstream's. Returns with it what is odd about the entries.
    pub fn of(&self, family: IpFamily) -> (NodePorts, Vec<String>) {
        let every = NodePorts::Every { loopback: self.localhost };
        let (mut chosen, mut notes, mut spoken) = (BTreeSet::new(), Vec::new(), false);
        for entry in self.entries {
            let network = ip::parse_network(entry);
            match (entry.as_str(), &network) {
                ("primary", _) => chosen.extend(self.primary),
                ("localhost", _) => chosen.extend(self.own.iter().filter(|a| a.is_loopback())),
                ("all", _) => return (every, notes),
                (_, Some(net)) if IpFamily::of(net.network()) != family => continue,
                (_, Some(net)) if net.prefix_len() == 0 => return (every, notes),
                (_, Some(net)) => chosen.extend(self.own.iter().filter(|a| net.contains(*a))),
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
        for (text, v4, v6, count) in cases {
            let entries: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            let choice = Choice {
                entries: &entries,
                own: &own,
                primary: &primary,
                localhost: true,
                relays: false,
            };
            let (mut got, mut notes) = (Vec::new(), Vec::new());
            for family in [IpFamily::V4, IpFamily::V6] {
                let (node_ports, mut odd) = choice.of(family);
                notes.append(&mut odd);
                got.push(match node_ports {
                    NodePorts::Every { .. } => "every".to_owned(),
                    NodePorts::On(addresses) => {
                        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                    }
                });
            }
            assert_eq!((&*got[0], &*got[1], notes.len()), (v4, v6, count), "{text}: {notes:?}");
            let (node_ports, notes) = Choice { localhost: false, ..choice }.of(IpFamily::V4);
            if text == "localhost" {
                assert_eq!(node_ports, NodePorts::On(BTreeSet::new()));
                assert_eq!(notes, ["node ports cannot be served on 127.0.0.1"]);
            }
            let relaying = Choice { localhost: false, relays: true, ..choice };
            let relayed: Vec<_> = relaying.relayed().iter().map(ToString::to_string).collect();
            let asked = if text == "localhost" { "127.0.0.1 ::1" } else { "" };
            assert_eq!(relayed.join(" "), asked, "{text}");
            let odd = if text.contains("nonsense") { 2 } else { 0 };
            let notes = [IpFamily::V4, IpFamily::V6].map(|family| relaying.of(family).1.len());
            assert_eq!(notes.iter().sum::<usize>(), odd, "{text}");
        }
    }
}
