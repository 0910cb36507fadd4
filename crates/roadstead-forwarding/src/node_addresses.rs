//! The addresses that the machines of the cluster have, as their Node objects say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use roadstead_api::ip;

use crate::service::IpFamily;

/// The addresses of all nodes.
#[derive(Debug, Default)]
pub struct NodeAddresses {
    by_node: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl NodeAddresses {
    /// Takes in the newest state of a Node; returns whether an address came or went.
    pub fn observe(&mut self, node: &Node) -> bool {
        let addresses: BTreeSet<_> =
            listed(node).filter_map(|listed| ip::parse(&listed.address)).collect();
        let name = node.metadata.name.clone().unwrap_or_default();
        let before = self.by_node.insert(name, addresses.clone());
        before.unwrap_or_default() != addresses
    }

    /// Takes in that a Node is gone; returns whether an address went with it.
    pub fn remove(&mut self, name: &str) -> bool {
        self.by_node.remove(name).is_some_and(|gone| !gone.is_empty())
    }

    /// The node that has an address.
    pub fn owner(&self, address: IpAddr) -> Option<&str> {
        let owner = self.by_node.iter().find(|(_, addresses)| addresses.contains(&address));
        owner.map(|(name, _)| name.as_str())
    }

    /// All of them.
    pub fn all(&self) -> BTreeSet<IpAddr> {
        self.by_node.values().flatten().copied().collect()
    }
}

/// The address of each family that the cluster knows a node by: an internal one, or else an
/// external one (upstream: `GetNodeHostIPs`).
pub fn primary_addresses(node: &Node) -> Vec<IpAddr> {
    let of = |kind: &str, family: IpFamily| {
        let kind = listed(node).filter(|listed| listed.type_ == kind);
        let mut addresses = kind.filter_map(|listed| ip::parse(&listed.address));
        addresses.find(|address| IpFamily::of(*address) == family)
    };
    let of = |family| of("InternalIP", family).or_else(|| of("ExternalIP", family));
    [IpFamily::V4, IpFamily::V6].into_iter().filter_map(of).collect()
}

fn listed(node: &Node) -> impl Iterator<Item = &NodeAddress> {
    node.status.iter().flat_map(|status| status.addresses.iter().flatten())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `InternalIP=10.0.0.1 Hostname=n1`
    fn node(name: &str, addresses: &str) -> Node {
        let address = |word: &str| {
            let (kind, address) = word.split_once('=').unwrap();
            json!({"type": kind, "address": address})
        };
        let addresses: Vec<_> = addresses.split_whitespace().map(address).collect();
        let node = json!({"metadata": {"name": name}, "status": {"addresses": addresses}});
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn what_a_node_is_known_by() {
        let cases = [
            ("", ""),
            ("Hostname=n1", ""),
            ("InternalIP=10.0.0.1 ExternalIP=192.0.2.1", "10.0.0.1"),
            ("ExternalIP=192.0.2.1 InternalIP=10.0.0.1 InternalIP=10.0.0.2", "10.0.0.1"),
            ("ExternalIP=192.0.2.1", "192.0.2.1"),
            ("InternalIP=fd00::1 InternalIP=10.0.0.1", "10.0.0.1 fd00::1"),
            ("InternalIP=10.0.0.1 ExternalIP=2001:db8::1", "10.0.0.1 2001:db8::1"),
        ];
        for (addresses, want) in cases {
            let got = primary_addresses(&node("n1", addresses));
            let got: Vec<_> = got.iter().map(ToString::to_string).collect();
            assert_eq!(got.join(" "), want, "{addresses}");
        }
    }

    #[test]
    fn who_has_an_address() {
        let mut nodes = NodeAddresses::default();
        let address = "10.0.0.2".parse().unwrap();
        assert!(nodes.observe(&node("n1", "InternalIP=10.0.0.1 Hostname=n1")));
        assert!(nodes.observe(&node("n2", "InternalIP=10.0.0.2")));
        assert!(!nodes.observe(&node("n2", "InternalIP=10.0.0.2")), "nothing new");
        assert_eq!((nodes.owner(address), nodes.all().len()), (Some("n2"), 2));
        assert!(nodes.remove("n2"));
        assert_eq!(nodes.owner(address), None);
    }
}
