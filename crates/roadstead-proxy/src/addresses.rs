//! The addresses that this machine has.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
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

/// What `nodePortAddresses` means on a machine with these addresses. Each entry is a network or
/// one of the words `primary`, `localhost` and `all`; what is neither is returned.
pub fn node_ports(
    entries: &[String],
    own: &BTreeSet<IpAddr>,
    primary: &[IpAddr],
) -> (NodePorts, Vec<String>) {
    let mut chosen = BTreeSet::new();
    let mut odd = Vec::new();
    for entry in entries {
        match (entry.as_str(), entry.parse::<IpNet>()) {
            ("primary", _) => chosen.extend(primary),
            ("localhost", _) => chosen.extend(own.iter().filter(|a| a.is_loopback())),
            ("all", _) => return (NodePorts::default(), odd),
            (_, Ok(network)) if network.prefix_len() == 0 => return (NodePorts::default(), odd),
            (_, Ok(network)) => chosen.extend(own.iter().filter(|a| network.contains(*a))),
            (_, Err(_)) => odd.push(entry.clone()),
        }
    }
    if chosen.is_empty() && entries.is_empty() {
        return (NodePorts::default(), odd);
    }
    (NodePorts::On(chosen), odd)
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
        let own: BTreeSet<IpAddr> =
            ["127.0.0.1", "192.168.1.7", "10.0.0.7"].map(|text| text.parse().unwrap()).into();
        let primary = ["192.168.1.7".parse().unwrap()];
        let cases = [
            ("", "every"),
            ("all", "every"),
            ("0.0.0.0/0", "every"),
            ("primary", "192.168.1.7"),
            ("localhost", "127.0.0.1"),
            ("10.0.0.0/8", "10.0.0.7"),
            ("10.0.0.0/8 primary", "10.0.0.7 192.168.1.7"),
            ("172.16.0.0/12", ""),
            ("nonsense primary", "192.168.1.7"),
        ];
        for (entries, want) in cases {
            let entries: Vec<_> = entries.split_whitespace().map(str::to_owned).collect();
            let got = match node_ports(&entries, &own, &primary).0 {
                NodePorts::Every { .. } => "every".to_owned(),
                NodePorts::On(addresses) => {
                    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                }
            };
            assert_eq!(got, want, "{entries:?}");
        }
    }
}
