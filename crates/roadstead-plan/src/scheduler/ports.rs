//! Ports of a node that pods take.

use k8s_openapi::api::core::v1::PodSpec;

/// A port of a node that a pod takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodePortUse {
    /// `TCP`, `UDP` or `SCTP`.
    protocol: String,
    /// The node's address; empty is every one.
    address: String,
    /// The port.
    number: i32,
}

impl NodePortUse {
    /// Reads what a container's port takes of its node.
    pub(super) fn new(protocol: Option<&str>, address: Option<&str>, number: i32) -> Self {
        let address = address.filter(|address| !matches!(*address, "0.0.0.0" | "::"));
        Self {
            protocol: protocol.unwrap_or("TCP").to_owned(),
            address: address.unwrap_or_default().to_owned(),
            number,
        }
    }

    /// Whether only one of the two can be had.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let everywhere = self.address.is_empty() || other.address.is_empty();
        self.protocol == other.protocol
            && self.number == other.number
            && (everywhere || self.address == other.address)
    }
}

/// The ports that the pod would take of its node.
pub(super) fn node_ports(spec: &PodSpec) -> Vec<NodePortUse> {
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ports = all.flat_map(|container| container.ports.iter().flatten());
    let of_node = ports.filter_map(|port| {
        let own = (spec.host_network == Some(true)).then_some(port.container_port);
        let number = port.host_port.filter(|number| *number != 0).or(own)?;
        Some(NodePortUse::new(port.protocol.as_deref(), port.host_ip.as_deref(), number))
    });
    of_node.collect()
}
