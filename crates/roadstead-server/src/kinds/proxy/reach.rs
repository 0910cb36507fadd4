//! Which addresses the API server connects to for others: those of pods, in the ranges of pods, and
//! of Nodes for the pods that share their network. Whoever may write the status of a pod must not
//! choose where the server, which stands inside of everything, knocks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::service::network::ServiceNetwork;
use crate::reading::object;
use crate::storage::Storage;

/// Where clouds tell machines who they are, besides link-local addresses.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// What is known about the addresses of a cluster.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Where pods have theirs.
    pods: Vec<IpNet>,
    /// Where Services have theirs, behind which anything may be.
    services: Vec<IpNet>,
    /// Each Node's, by its name.
    nodes: Vec<(String, Vec<IpAddr>)>,
}

impl Reach {
    /// As the server knows it now. If nobody has told it the ranges of pods, the Nodes do.
    pub(super) fn now(storage: &Storage, network: &ServiceNetwork) -> Result<Self, ApiError> {
        let registry = storage.registry();
        let nodes = storage.store.list(&registry.core("nodes").bucket, "", None)?.entries;
        let nodes: Vec<_> = nodes.iter().map(|entry| object::value(entry)).collect();
        let told = network.services.pod_ranges.clone();
        let pods = if told.is_empty() { nodes.iter().flat_map(pod_ranges).collect() } else { told };
        let ranges = network.ranges.now();
        let services = network.chosen().chain(ranges.networks());
        let nodes = nodes.iter().map(|node| (node.text("/metadata/name").into(), addresses(node)));
        Ok(Self { pods, services: services.collect(), nodes: nodes.collect() })
    }

    /// The address of a pod, or why nobody is connected with it.
    pub(super) fn check(&self, pod: &Value, address: &str) -> Result<IpAddr, String> {
        let Ok(ip) = address.parse::<IpAddr>().map(|ip| ip.to_canonical()) else {
            return Err(format!("{address:?} is no address"));
        };
        if is_special(ip) || METADATA.contains(&ip) {
            return Err(format!("{ip} is not the address of a pod"));
        }
        if self.services.iter().any(|range| range.contains(&ip)) {
            return Err(format!("{ip} is in a range of Services"));
        }
        if pod["spec"]["hostNetwork"] == true {
            let name = pod.text("/spec/nodeName");
            let mut own = self.nodes.iter().filter(|(node, _)| node == name);
            return match own.any(|(_, addresses)| addresses.contains(&ip)) {
                true => Ok(ip),
                false => Err(format!("{ip} is not an address of the node {name:?}")),
            };
        }
        match self.pods.iter().any(|range| range.contains(&ip)) {
            true => Ok(ip),
            false => Err(format!("{ip} is not in a range of pods")),
        }
    }
}

/// What listens for this machine only, for whoever is near, or for many.
fn is_special(ip: IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast()
}

fn pod_ranges(node: &Value) -> Vec<IpNet> {
    let parse = |text: &Value| text.as_str()?.parse().ok();
    match node.list("/spec/podCIDRs") {
        [] => parse(&node["spec"]["podCIDR"]).into_iter().collect(),
        ranges => ranges.iter().filter_map(parse).collect(),
    }
}

fn addresses(node: &Value) -> Vec<IpAddr> {
    let all = node.list("/status/addresses").iter();
    let ips = all.filter(|address| matches!(address.text("/type"), "InternalIP" | "ExternalIP"));
    ips.filter_map(|address| address.text("/address").parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn where_pods_are() {
        let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDRs": ["10.244.0.0/24", "fd01::/64"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"},
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "ExternalIP", "address": "10.96.0.1"},
                {"type": "Hostname", "address": "192.0.2.9"}]}});
        let reach = Reach {
            pods: pod_ranges(&node),
            services: vec!["10.96.0.0/12".parse().unwrap()],
            nodes: vec![("n1".into(), addresses(&node))],
        };
        // The network of the pod, its address, whether it is reached.
        let cases = "own 10.244.0.7 yes; own fd01::9 yes; own ::ffff:10.244.0.7 yes; \
            own 10.244.1.7 no; own 192.0.2.7 no; own 192.0.2.8 no; own 10.96.0.1 no; \
            own 127.0.0.1 no; own 127.9.9.9 no; own 0.0.0.0 no; own 169.254.169.254 no; \
            own ::1 no; own :: no; own fe80::1 no; own ::ffff:127.0.0.1 no; own 224.0.0.1 no; \
            own ff02::1 no; own localhost no; own 127.1 no; own 255.255.255.255 no; \
            n1 192.0.2.7 yes; n1 10.244.0.7 no; n1 127.0.0.1 no; n1 10.96.0.1 no; n1 192.0.2.9 no; \
            n2 192.0.2.7 no";
        for case in cases.split(';') {
            let words: Vec<_> = case.split_whitespace().collect();
            let pod = match words[0] {
                "own" => json!({"spec": {"nodeName": "n1"}}),
                node => json!({"spec": {"nodeName": node, "hostNetwork": true}}),
            };
            let found = reach.check(&pod, words[1]);
            assert_eq!(found.is_ok(), words[2] == "yes", "{case}: {found:?}");
        }
        let everywhere = Reach { pods: vec!["0.0.0.0/0".parse().unwrap()], ..reach };
        for metadata in METADATA.iter().filter(|ip| ip.is_ipv4()) {
            assert!(everywhere.check(&json!({}), &metadata.to_string()).is_err(), "{metadata}");
        }
    }
}
