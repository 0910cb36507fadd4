//! Keeps pods to their own addresses, and to the node as their only neighbour.
//!
//! Pods hang on one bridge. What they send is routed by the node as long as they keep to their routes; a
//! process that makes its own frames does not. So a frame from a pod's link must come from the pod's own
//! hardware and IP address and go to the node: nobody gets to another pod around the node, where
//! NetworkPolicies and Services are, and nobody is taken for another (`docs/adr/0122-links-are-guarded.md`).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use roadstead_netlink::attributes::Attributes;
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::nftables::expressions::{
    ACCEPT, DATA_VALUE, DROP, EQUAL, INTERFACE_NAME_LENGTH, LINK_HEADER, META_ETHER_TYPE,
    META_INTERFACE_NAME, NETWORK_HEADER, NOT_EQUAL, TRANSPORT_HEADER, compare, lookup, meta,
    payload, verdict,
};
use roadstead_netlink::nftables::readback::{self, NamedTable};
use roadstead_netlink::nftables::{BaseChain, NEW_ELEMENTS, SetShape, TableBatch, concatenation};
use roadstead_netlink::socket::{NetlinkFamily, Socket};

const TABLE: NamedTable = NamedTable { family: 7, name: "roadstead-links" };
const CHAIN: &str = "prerouting";
const LINKS: &str = "links";
const FOUR: &str = "addresses";
const SIX: &str = "addresses6";

const IP: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IP6: u16 = 0x86dd;
const META_PROTOCOL: u32 = 16;
const ICMP6: u8 = 58;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// Where the words of a key are, behind the name of the link.
const HARDWARE_WORD: u32 = 4;
const ADDRESS_WORD: u32 = 6;

/// A pod's link, and what may come from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuardedLink {
    pub(crate) name: String,
    pub(crate) hardware: [u8; 6],
    pub(crate) addresses: Vec<IpAddr>,
}

/// The table of a bridge, and what it should hold.
#[derive(Debug)]
pub(crate) struct LinkGuard {
    socket: Socket,
    /// The bridge's, and the links on it.
    bridge: [u8; 6],
    wanted: Vec<GuardedLink>,
    /// The number of the last commit to nftables, by anybody, after which all was well.
    seen: Option<u32>,
}

impl LinkGuard {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::open(NetlinkFamily::Netfilter)?;
        Ok(Self { socket, bridge: [0; 6], wanted: Vec::new(), seen: None })
    }

    /// Guards these links of the bridge with that hardware address, and no others.
    pub(crate) fn guard(
        &mut self,
        bridge: [u8; 6],
        links: Vec<GuardedLink>,
    ) -> Result<(), NetlinkError> {
        if (self.bridge, &self.wanted) == (bridge, &links) {
            return Ok(());
        }
        (self.bridge, self.wanted) = (bridge, links);
        self.write()
    }

    /// Brings back what somebody removed; whether anything was.
    pub(crate) fn heal(&mut self) -> Result<bool, NetlinkError> {
        let now = readback::generation(&mut self.socket)?;
        if self.wanted.is_empty() || self.seen == Some(now) {
            return Ok(false);
        }
        let mut found = BTreeMap::new();
        for set in readback::sets(&mut self.socket, TABLE)? {
            let elements = readback::elements(&mut self.socket, TABLE, &set)?;
            found.insert(set, elements.into_keys().map(|key| (key, Vec::new())).collect());
        }
        let rules = readback::chains(&mut self.socket, TABLE)?;
        let rules = rules.get(CHAIN).map_or(0, Vec::len);
        if rules == RULES.len() && found == self.sets() {
            self.seen = Some(now);
            return Ok(false);
        }
        self.write()?;
        Ok(true)
    }

    fn write(&mut self) -> Result<(), NetlinkError> {
        self.seen = None;
        self.socket.commit(self.batch().into_batch())?;
        self.seen = Some(readback::generation(&mut self.socket)?);
        Ok(())
    }

    /// Everything anew: the old table goes in the same instant.
    fn batch(&self) -> TableBatch {
        const KEY: u16 = 1;
        let mut batch = TableBatch::new(TABLE.family, TABLE.name);
        batch.remove_table();
        batch.make_table();
        for (name, elements) in self.sets() {
            batch.set(&name, SetShape { key: shape(&name), data: None });
            batch.elements(NEW_ELEMENTS, &name, elements.into_keys(), |item, key| {
                item.nest(KEY, |data| data.put(DATA_VALUE, &key));
            });
        }
        // Before br_netfilter, which would already translate addresses.
        let base = BaseChain { kind: "filter", hook: 0, priority: -300 };
        batch.chain(CHAIN, Some(base));
        for rule in RULES {
            batch.rule(CHAIN, &[200, 0], |list| rule(list, &self.bridge));
        }
        batch
    }

    /// What the sets hold.
    fn sets(&self) -> BTreeMap<String, HashMap<Vec<u8>, Vec<u8>>> {
        let mut sets: BTreeMap<String, HashMap<Vec<u8>, Vec<u8>>> =
            [LINKS, FOUR, SIX].map(|name| (name.to_owned(), HashMap::new())).into();
        let mut add = |set: &str, key| sets.entry(set.to_owned()).or_default().insert(key, vec![]);
        for link in &self.wanted {
            let mut name = link.name.clone().into_bytes();
            name.resize(INTERFACE_NAME_LENGTH, 0);
            add(LINKS, name.clone());
            let own = [&name[..], &link.hardware, &[0; 2]].concat();
            add(SIX, [&own[..], &link_local(link.hardware).octets()].concat());
            for address in &link.addresses {
                match address {
                    IpAddr::V4(address) => add(FOUR, [&own[..], &address.octets()].concat()),
                    IpAddr::V6(address) => add(SIX, [&own[..], &address.octets()].concat()),
                };
            }
        }
        sets
    }
}

/// Removes the table, if there is one.
pub(crate) fn remove() -> Result<(), NetlinkError> {
    let mut batch = TableBatch::new(TABLE.family, TABLE.name);
    batch.remove_table();
    let mut socket = Socket::open(NetlinkFamily::Netfilter).map_err(NetlinkError::Socket)?;
    socket.commit(batch.into_batch())
}

/// The address that the kernel gives to a link by itself.
fn link_local(hardware: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = hardware;
    let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, pair(a ^ 2, b), pair(c, 0xff), pair(0xfe, d), pair(e, f))
}

/// The type and the length of a set's keys, with the numbers that nft has for types.
fn shape(set: &str) -> (u32, u32) {
    let (name, hardware, four, six) = ((41, 16), (9, 6), (7, 4), (8, 16));
    match set {
        LINKS => name,
        FOUR => concatenation([name, hardware, four]),
        _ => concatenation([name, hardware, six]),
    }
}

type GuardRule = fn(&mut Attributes<'_>, &[u8; 6]);

/// In order; the second argument is the hardware address of the bridge.
const RULES: [GuardRule; 8] = [
    |rule, _| {
        meta(rule, META_INTERFACE_NAME, 0);
        lookup(rule, LINKS, NOT_EQUAL, None);
        verdict(rule, ACCEPT, None);
    },
    |rule, bridge| {
        is(rule, IP);
        to_bridge(rule, bridge);
        from_own(rule, (LINK_HEADER, 6), (NETWORK_HEADER, 12, 4), FOUR);
    },
    |rule, _| {
        is(rule, ARP);
        from_own(rule, (NETWORK_HEADER, 8), (NETWORK_HEADER, 14, 4), FOUR);
    },
    // Who says that it has an address must have it.
    |rule, _| {
        is_icmp(rule, NEIGHBOUR_ADVERTISEMENT);
        from_own(rule, (LINK_HEADER, 6), (TRANSPORT_HEADER, 8, 16), SIX);
    },
    |rule, _| {
        is_icmp(rule, NEIGHBOUR_ADVERTISEMENT);
        verdict(rule, DROP, None);
    },
    |rule, _| {
        is_icmp(rule, NEIGHBOUR_SOLICITATION);
        from_own(rule, (LINK_HEADER, 6), (NETWORK_HEADER, 8, 16), SIX);
    },
    |rule, bridge| {
        is(rule, IP6);
        to_bridge(rule, bridge);
        from_own(rule, (LINK_HEADER, 6), (NETWORK_HEADER, 8, 16), SIX);
    },
    |rule, _| verdict(rule, DROP, None),
];

fn is(rule: &mut Attributes<'_>, ether_type: u16) {
    meta(rule, META_ETHER_TYPE, 0);
    compare(rule, EQUAL, &ether_type.to_be_bytes());
}

fn is_icmp(rule: &mut Attributes<'_>, kind: u8) {
    is(rule, IP6);
    meta(rule, META_PROTOCOL, 0);
    compare(rule, EQUAL, &[ICMP6]);
    payload(rule, 0, TRANSPORT_HEADER, (0, 1));
    compare(rule, EQUAL, &[kind]);
}

fn to_bridge(rule: &mut Attributes<'_>, bridge: &[u8; 6]) {
    payload(rule, 0, LINK_HEADER, (0, 6));
    compare(rule, EQUAL, bridge);
}

/// Accepts what has the link's own addresses: where the hardware's is, and where the other is.
fn from_own(rule: &mut Attributes<'_>, hardware: (u32, u32), address: (u32, u32, u32), set: &str) {
    meta(rule, META_INTERFACE_NAME, 0);
    payload(rule, HARDWARE_WORD, hardware.0, (hardware.1, 6));
    payload(rule, ADDRESS_WORD, address.0, (address.1, address.2));
    lookup(rule, set, EQUAL, None);
    verdict(rule, ACCEPT, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_address() {
        let own = link_local([0x0a, 0x58, 10, 244, 0, 5]);
        assert_eq!(own.to_string(), "fe80::858:aff:fef4:5");
    }
}
