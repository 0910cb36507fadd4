//! Ports of the node that lead to pods: which a pod asks for, and which exclude each other. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ContainerPort, Pod};
use serde::{Deserialize, Serialize};

use crate::pod_name::NetworkMode;

/// What ports are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TransportProtocol {
    /// The default.
    Tcp,
    /// Without connections.
    Udp,
    /// Of telephone networks.
    Sctp,
}

impl TransportProtocol {
    /// The number in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    fn of(name: Option<&str>) -> Self {
        match name {
            Some("UDP") => Self::Udp,
            Some("SCTP") => Self::Sctp,
            _ => Self::Tcp,
        }
    }
}

/// A port of the node that a pod asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostPort {
    /// The node's address; `None` is every one.
    pub address: Option<IpAddr>,
    /// What it is a port of.
    pub protocol: TransportProtocol,
    /// On the node.
    pub port: u16,
    /// In the pod.
    pub container_port: u16,
}

impl HostPort {
    fn of(port: &ContainerPort, network: NetworkMode) -> Option<Self> {
        let container_port = u16::try_from(port.container_port).ok()?;
        let own = (network == NetworkMode::Host).then_some(container_port);
        let asked = port.host_port.and_then(|port| u16::try_from(port).ok());
        let address = port.host_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
        Some(Self {
            address: address.filter(|address| !address.is_unspecified()),
            protocol: TransportProtocol::of(port.protocol.as_deref()),
            port: asked.filter(|port| *port != 0).or(own)?,
            container_port,
        })
    }

    /// Whether only one of the two can be had.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        let same_address = match (self.address, other.address) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        self.protocol == other.protocol && self.port == other.port && same_address
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            TransportProtocol::Tcp => "TCP",
            TransportProtocol::Udp => "UDP",
            TransportProtocol::Sctp => "SCTP",
        };
        match self.address {
            None => write!(f, "{protocol} port {}", self.port),
            Some(address) => write!(f, "{protocol} port {} of {address}", self.port),
        }
    }
}

/// Returns the ports of the node that a pod asks for. In the network of its node every port of its
/// containers is one.
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let network = NetworkMode::of(pod);
    let spec = pod.spec.iter();
    // Ordinary init containers have ended when the others begin, but their ports cannot go to others.
    let all = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let ports = all.flat_map(|container| container.ports.iter().flatten());
    let mut ports: Vec<_> = ports.filter_map(|port| HostPort::of(port, network)).collect();
    ports.sort();
    ports.dedup();
    ports
}

/// Who has which ports of the node, by uids of pods.
#[derive(Clone, Debug, Default)]
pub struct ReservedPorts(BTreeMap<String, Vec<HostPort>>);

impl ReservedPorts {
    /// Reserves all of these for a pod, instead of what it has; or none, and returns one that another has.
    pub fn reserve(&mut self, uid: &str, ports: &[HostPort]) -> Result<(), HostPort> {
        let others = || self.0.iter().filter(|(owner, _)| *owner != uid).flat_map(|(_, had)| had);
        let taken = ports.iter().find(|port| others().any(|other| port.excludes(other)));
        match taken {
            Some(taken) => Err(*taken),
            None => {
                self.0.insert(uid.to_owned(), ports.to_vec());
                Ok(())
            }
        }
    }

    /// Gives all ports of a pod back; returns them.
    pub fn release(&mut self, uid: &str) -> Vec<HostPort> {
        self.0.remove(uid).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(ports: &serde_json::Value, host: bool) -> Vec<String> {
        let pod =
            json!({"spec": {"hostNetwork": host, "containers": [{"name": "a", "ports": ports}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let show = |port: &HostPort| format!("{port} to {}", port.container_port);
        host_ports(&pod).iter().map(show).collect()
    }

    #[test]
    fn what_pods_ask_for() {
        let ports = json!([
            {"containerPort": 80, "hostPort": 8080},
            {"containerPort": 81},
            {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
            {"containerPort": 9, "hostPort": 9, "protocol": "SCTP", "hostIP": "0.0.0.0"},
            {"containerPort": 80, "hostPort": 8080, "hostIP": ""},
        ]);
        let own = ["TCP port 8080 to 80", "SCTP port 9 to 9", "UDP port 53 of 127.0.0.1 to 53"];
        assert_eq!(ask(&ports, false), own);
        let host = json!([{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]);
        assert_eq!(ask(&host, true), ["TCP port 80 to 80", "TCP port 81 to 81"]);
    }

    /// Reads `tcp:80` and `udp:53@127.0.0.1`.
    fn port(text: &str) -> HostPort {
        let (protocol, rest) = text.split_once(':').unwrap();
        let (port, address) =
            rest.split_once('@').map_or((rest, None), |(port, at)| (port, Some(at)));
        HostPort {
            address: address.map(|text| text.parse().unwrap()),
            protocol: TransportProtocol::of(Some(&protocol.to_uppercase())),
            port: port.parse().unwrap(),
            container_port: 1,
        }
    }

    #[test]
    fn who_has_a_port() {
        for (name, had, asked, free) in [
            ("the same", "tcp:80", "tcp:80", false),
            ("another protocol", "tcp:80", "udp:80", true),
            ("another port", "tcp:80", "tcp:81", true),
            ("another address", "tcp:80@127.0.0.1", "tcp:80@192.0.2.1", true),
            ("one address of all", "tcp:80", "tcp:80@192.0.2.1", false),
            ("all addresses, one is taken", "tcp:80@192.0.2.1", "tcp:80", false),
        ] {
            let mut reserved = ReservedPorts::default();
            reserved.reserve("one", &[port(had)]).unwrap();
            reserved.reserve("one", &[port(had)]).expect("it has it already");
            let got = reserved.reserve("two", &[port("tcp:7"), port(asked)]);
            assert_eq!(got, if free { Ok(()) } else { Err(port(asked)) }, "{name}");
            let first = reserved.reserve("three", &[port("tcp:7")]);
            assert_eq!(first.is_ok(), !free, "{name}: all or nothing");
            reserved.release("one");
            reserved.reserve("two", &[port(asked)]).expect("given back");
        }
    }
}
