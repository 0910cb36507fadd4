//! Which node answers for the address of a load balancer on the local network.
//!
//! Every node computes the same answer from the same facts, so nobody has to be asked: of the
//! nodes that may hold an address, the one with the highest hash of both. When a node leaves,
//! only the addresses that it held move.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use roadstead_api::key::ObjectKey;

/// The Leases of proxies whose nodes answer for load balancers have this label.
pub const ANNOUNCES_LABEL: &str = "roadstead.dev/announces";

/// The load balancer addresses of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// The nodes that can serve them: under policy Local those with ready endpoints, otherwise
    /// `None` for all.
    pub nodes: Option<BTreeSet<String>>,
}

/// All Services that have load balancer addresses.
pub type Announcements = BTreeMap<ObjectKey, Announced>;

/// The addresses that `own` holds while these nodes are alive, each with one Service that it is
/// for.
pub fn held<'a>(
    all: &'a Announcements,
    alive: &BTreeSet<String>,
    own: &str,
) -> BTreeMap<IpAddr, &'a ObjectKey> {
    let mut by_address: BTreeMap<IpAddr, Vec<(&ObjectKey, &Announced)>> = BTreeMap::new();
    for (key, announced) in all {
        for address in &announced.addresses {
            by_address.entry(*address).or_default().push((key, announced));
        }
    }
    let ours = |(address, services): (IpAddr, Vec<(&'a ObjectKey, &Announced)>)| {
        let serves = |node: &str, announced: &Announced| {
            announced.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
        };
        // Services that share an address want a node that serves all of them, or else some.
        let all = alive.iter().filter(|node| services.iter().all(|(_, s)| serves(node, s)));
        let some = alive.iter().filter(|node| services.iter().any(|(_, s)| serves(node, s)));
        let holder = highest(address, all).or_else(|| highest(address, some));
        (holder == Some(own)).then_some((address, services.first()?.0))
    };
    by_address.into_iter().filter_map(ours).collect()
}

fn highest<'a>(address: IpAddr, nodes: impl Iterator<Item = &'a String>) -> Option<&'a str> {
    nodes.max_by_key(|node| (weight(address, node), *node)).map(String::as_str)
}

/// FNV-1a with a last stir, without which names that differ at the end only would be in order.
fn weight(address: IpAddr, node: &str) -> u64 {
    let octets = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let bytes = node.bytes().chain([0]).chain(octets);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// `web=any` or `web=n1,n2`: Services with the same address, and who can serve them.
    fn announcements(address: &str, text: &str) -> Announcements {
        let service = |word: &str| {
            let (name, places) = word.split_once('=').unwrap();
            let nodes = (places != "any").then(|| nodes(&places.replace(',', " ")));
            let addresses = vec![address.parse().unwrap()];
            (ObjectKey::new("default", name), Announced { addresses, nodes })
        };
        text.split_whitespace().map(service).collect()
    }

    fn holders(services: &str, alive: &str) -> Vec<String> {
        let (all, alive) = (announcements("192.0.2.1", services), nodes(alive));
        alive.iter().filter(|node| !held(&all, &alive, node).is_empty()).cloned().collect()
    }

    #[test]
    fn one_holder_among_those_who_can() {
        let cases = [
            ("nobody is alive", "web=any", "", ""),
            ("the only one", "web=any", "n1", "n1"),
            ("policy Local", "web=n2", "n1 n2 n3", "n2"),
            ("policy Local without endpoints", "web=", "n1 n2", ""),
            ("endpoints only on the dead", "web=n9", "n1 n2", ""),
            ("shared: who serves both", "web=n1,n2 api=n2,n3", "n1 n2 n3", "n2"),
            ("shared: nobody serves both", "web=n1 api=", "n1 n2", "n1"),
        ];
        for (name, services, alive, want) in cases {
            assert_eq!(holders(services, alive).join(" "), want, "{name}");
        }
        assert_eq!(holders("web=any", "n1 n2 n3 n4").len(), 1);
    }

    #[test]
    fn addresses_spread_and_only_those_of_the_dead_move() {
        let key = ObjectKey::new("default", "web");
        let addresses = (0..100).map(|last| [192, 0, 2, last].into()).collect();
        let all: Announcements = [(key, Announced { addresses, nodes: None })].into();
        let three = nodes("n1 n2 n3");
        let of = |alive: &BTreeSet<String>, node: &str| -> BTreeSet<IpAddr> {
            held(&all, alive, node).into_keys().collect()
        };
        for node in &three {
            let count = of(&three, node).len();
            assert!((20..=50).contains(&count), "{node} holds {count} of 100");
        }
        let two = nodes("n1 n2");
        for node in &two {
            assert!(of(&two, node).is_superset(&of(&three, node)), "{node} gave something away");
        }
        assert_eq!(of(&two, "n1").len() + of(&two, "n2").len(), 100);
    }
}
