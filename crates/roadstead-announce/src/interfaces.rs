//! The Ethernets that this machine is on.

use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_netlink::DUMP;
use roadstead_netlink::attributes::{address_of, attribute, text_of};
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::socket::{Answer, NetlinkFamily, Request, Socket};

use crate::frames::Hardware;

/// An interface, with the networks that can be reached through it without a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its Ethernet address.
    pub hardware: Hardware,
    /// Its networks.
    pub networks: Vec<IpNet>,
}

/// All interfaces with an Ethernet address and a network.
pub fn interfaces() -> Result<Vec<Interface>, NetlinkError> {
    const GET_LINK: u16 = 18;
    const GET_ADDRESS: u16 = 22;
    let mut socket = Socket::open(NetlinkFamily::Route).map_err(NetlinkError::Socket)?;
    let addresses = Request { kind: GET_ADDRESS, flags: DUMP, header: &[0; 8] };
    let networks = socket.ask(&addresses, |_| {}, network)?;
    let with_networks = |(index, name, hardware)| {
        let own = networks.iter().filter(|(of, _)| *of == index);
        let networks: Vec<_> = own.map(|(_, network)| *network).collect();
        (!networks.is_empty()).then_some(Interface { index, name, hardware, networks })
    };
    let links = Request { kind: GET_LINK, flags: DUMP, header: &[0; 16] };
    let links = socket.ask(&links, |_| {}, link)?;
    Ok(links.into_iter().filter_map(with_networks).collect())
}

/// The number, name and Ethernet address of an interface, from an `ifinfomsg`.
fn link(answer: Answer<'_>) -> Option<(u32, String, Hardware)> {
    const ADDRESS: u16 = 1;
    const NAME: u16 = 3;
    let hardware: Hardware = attribute(answer.attributes, ADDRESS)?.try_into().ok()?;
    let name = attribute(answer.attributes, NAME).map(text_of)?;
    (hardware != [0; 6]).then_some((index(answer.header)?, name, hardware))
}

/// The interface and network of an address, from an `ifaddrmsg`.
fn network(answer: Answer<'_>) -> Option<(u32, IpNet)> {
    const ADDRESS: u16 = 1;
    let prefix = *answer.header.get(1)?;
    let address = address_of(attribute(answer.attributes, ADDRESS)?)?;
    Some((index(answer.header)?, IpNet::new(address, prefix).ok()?))
}

fn index(header: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(header.get(4..8)?.try_into().ok()?))
}

/// The interface on whose network an address is: of several the one with the smallest network. An
/// address that the machine has itself is none of our business: the kernel answers for it.
pub fn on_link(interfaces: &[Interface], address: IpAddr) -> Option<&Interface> {
    let networks = || interfaces.iter().flat_map(|i| i.networks.iter().map(move |net| (i, net)));
    if networks().any(|(_, net)| net.addr() == address) {
        return None;
    }
    let around = networks().filter(|(_, net)| net.contains(&address));
    around.max_by_key(|(_, net)| net.prefix_len()).map(|(interface, _)| interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_an_address_is() {
        let interface = |index: u32, networks: &[&str]| Interface {
            index,
            name: format!("eth{index}"),
            hardware: [2, 0, 0, 0, 0, 1],
            networks: networks.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let all = [
            interface(1, &["192.168.7.1/24", "fd00:7::1/64"]),
            interface(2, &["10.0.0.1/8"]),
            interface(3, &["10.1.0.1/16"]),
        ];
        let cases = [
            ("on a network", "192.168.7.100", Some("eth1")),
            ("IPv6", "fd00:7::64", Some("eth1")),
            ("the smaller network", "10.1.2.3", Some("eth3")),
            ("the larger network", "10.2.2.3", Some("eth2")),
            ("our own address", "192.168.7.1", None),
            ("behind a router", "203.0.113.1", None),
        ];
        for (name, address, want) in cases {
            let found = on_link(&all, address.parse().unwrap());
            assert_eq!(found.map(|interface| &*interface.name), want, "{name}");
        }
    }
}
