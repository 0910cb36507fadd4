//! From a service port to virtual servers, addresses and elements of ipsets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::diff::Layout;
use super::model::{Entry, Program, Scheduler, Server, SetName, Settings, Virtual};
use crate::node_network::{NodeNetwork, NodePorts};
use crate::select::TrafficPolicy;
use crate::service::{
    Frontend, FrontendKind, Host, Locality, Protocol, ServicePort, ServicePortName, Target,
};
use crate::table::ForwardingTable;

/// Compiles the whole table.
pub fn compile(table: &ForwardingTable, scheduler: Scheduler) -> Program {
    Layout::new(table, scheduler).program()
}

/// What a service port needs. Others may need some of it, too.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) servers: BTreeMap<Server, Virtual>,
    /// Those of them that are node ports. Where one is a virtual address as well, that counts.
    pub(super) node_ports: BTreeSet<Server>,
    pub(super) entries: Vec<(SetName, Entry)>,
    /// What the node itself must not call.
    pub(super) closed: Vec<Server>,
}

/// Compiles one service port of a table; nothing if it is not there.
pub(super) fn compile_port(
    table: &ForwardingTable,
    scheduler: Scheduler,
    name: &ServicePortName,
) -> Part {
    let Some(port) = table.get(name) else { return Part::default() };
    let mut compiler =
        Compiler { node_network: table.node_network(), scheduler, part: Part::default() };
    if let Some(number) = port.health_check_port {
        compiler.add(SetName::HealthCheckNodePort, Entry::Port(number));
    }
    for (frontend, kind) in table.frontends_of(name) {
        compiler.frontend(name, port, &frontend, kind);
    }
    compiler.part
}

struct Compiler<'a> {
    node_network: &'a NodeNetwork,
    scheduler: Scheduler,
    part: Part,
}

impl Compiler<'_> {
    fn frontend(
        &mut self,
        name: &ServicePortName,
        port: &ServicePort,
        frontend: &Frontend,
        kind: FrontendKind,
    ) {
        let Frontend { host, protocol, port: number } = *frontend;
        let hosts = match host {
            Host::Address(address) if !can_be_virtual(address) => return,
            Host::Address(address) => vec![address],
            Host::Node => self.node_port_addresses(),
        };
        for address in hosts {
            let server = Server { address, protocol, port: number };
            self.server(server, name, port, kind);
            if let Host::Address(_) = host {
                self.address(server, port, kind);
                continue;
            }
            self.part.node_ports.insert(server);
            if protocol == Protocol::Sctp {
                let entry = Entry::AddressPort(address, protocol, number);
                self.node_port_entry(port, protocol, entry);
            }
        }
        if host == Host::Node && protocol != Protocol::Sctp {
            self.node_port_entry(port, protocol, Entry::Port(number));
        }
    }

    fn server(
        &mut self,
        server: Server,
        name: &ServicePortName,
        port: &ServicePort,
        kind: FrontendKind,
    ) {
        let persistence =
            port.affinity.map(|timeout| u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
        let settings = Settings { scheduler: self.scheduler, persistence };
        let targets = destinations(port, kind);
        for target in targets.iter().filter(|target| target.locality == Locality::Here) {
            let Target { address, port, .. } = *target;
            let entry = Entry::AddressPortAddress(address, name.protocol, port, address);
            self.add(SetName::LoopBack, entry);
        }
        let sockets = targets.iter().map(Target::socket).collect();
        self.part.servers.insert(server, (settings, sockets));
    }

    /// What else a virtual address needs than a server.
    fn address(&mut self, server: Server, port: &ServicePort, kind: FrontendKind) {
        let Server { address, protocol, port: number } = server;
        // An address that some link of the node has already is taken in anyway. On a link of ours,
        // one that another node has would make that node unreachable from here.
        let NodeNetwork { node_addresses, taken, .. } = self.node_network;
        if !node_addresses.contains(&address) && !taken.contains(&address) {
            self.part.addresses.push(address);
            self.add(SetName::VirtualAddresses, Entry::Address(address));
        }
        let local = port.external_policy == TrafficPolicy::Local;
        let entry = Entry::AddressPort(address, protocol, number);
        match kind {
            FrontendKind::ClusterIp => self.add(SetName::ClusterIp, entry),
            FrontendKind::ExternalIp if local => self.add(SetName::ExternalIpLocal, entry),
            FrontendKind::ExternalIp => self.add(SetName::ExternalIp, entry),
            FrontendKind::LoadBalancer => {
                self.add(SetName::LoadBalancer, entry);
                if local {
                    self.add(SetName::LoadBalancerLocal, entry);
                }
                if let Some(ranges) = &port.source_ranges {
                    self.source_ranges(server, port, ranges);
                }
            }
            FrontendKind::NodePort => {}
        }
    }

    fn source_ranges(&mut self, server: Server, port: &ServicePort, ranges: &[IpNet]) {
        let Server { address, protocol, port: number } = server;
        let entry = Entry::AddressPort(address, protocol, number);
        self.add(SetName::LoadBalancerFirewall, entry);
        for network in ranges {
            let entry = Entry::AddressPortNetwork(address, protocol, number, *network);
            self.add(SetName::LoadBalancerSourceNetwork, entry);
        }
        if self.node_network.node_address.is_some_and(|node| port.admits(node)) {
            let entry = Entry::AddressPortAddress(address, protocol, number, address);
            self.add(SetName::LoadBalancerSourceIp, entry);
        } else {
            self.part.closed.push(server);
        }
    }

    fn node_port_entry(&mut self, port: &ServicePort, protocol: Protocol, entry: Entry) {
        let (all, local) = match protocol {
            Protocol::Tcp => (SetName::NodePortTcp, SetName::NodePortLocalTcp),
            Protocol::Udp => (SetName::NodePortUdp, SetName::NodePortLocalUdp),
            Protocol::Sctp => (SetName::NodePortSctp, SetName::NodePortLocalSctp),
        };
        self.add(all, entry);
        if port.external_policy == TrafficPolicy::Local {
            self.add(local, entry);
        }
    }

    fn node_port_addresses(&self) -> Vec<IpAddr> {
        match &self.node_network.node_ports {
            // The kernel does not let loopback addresses leave the machine.
            NodePorts::Every { .. } => {
                let all = self.node_network.node_addresses.iter();
                all.filter(|address| !address.is_loopback()).copied().collect()
            }
            NodePorts::On(addresses) => addresses.iter().copied().collect(),
        }
    }

    fn add(&mut self, set: SetName, entry: Entry) {
        self.part.entries.push((set, entry));
    }
}

/// Whether the kernel takes an address for a virtual server, an ipset and a link.
fn can_be_virtual(address: IpAddr) -> bool {
    let everybody = IpAddr::V4(Ipv4Addr::BROADCAST);
    !address.is_unspecified()
        && !address.is_loopback()
        && !address.is_multicast()
        && address != everybody
}

/// The destinations of a server: it has only one list, whoever calls.
///
/// Without a local endpoint an external frontend takes them all, so that at least senders inside
/// the cluster are served (upstream's pull request 97081).
fn destinations(port: &ServicePort, kind: FrontendKind) -> &[Target] {
    let targets = port.targets(port.policy(kind));
    match kind {
        FrontendKind::ClusterIp => targets,
        _ if targets.is_empty() => &port.cluster,
        _ => targets,
    }
}

#[cfg(test)]
mod tests {
    use roadstead_api::key::ObjectKey;

    use super::*;
    use crate::service::IpFamily;

    #[test]
    fn addresses_of_nodes_stay_where_they_are() {
        let addresses = ["192.168.0.7", "192.168.0.8", "192.168.0.100", "0.0.0.0", "127.0.0.1"];
        let addresses: Vec<IpAddr> = addresses.map(|text| text.parse().unwrap()).into();
        let node_network = NodeNetwork {
            node_addresses: [addresses[0]].into(),
            taken: addresses[..2].iter().copied().collect(),
            ..NodeNetwork::default()
        };
        let mut table = ForwardingTable::new(IpFamily::V4, &node_network);
        let name = ServicePortName {
            namespace: "ns".into(),
            name: "web".into(),
            port: String::new(),
            protocol: Protocol::Tcp,
        };
        let port = ServicePort { port: 80, load_balancer_ips: addresses, ..ServicePort::default() };
        table.replace(&ObjectKey::new("ns", "web"), vec![(name, port)]);
        let program = compile(&table, Scheduler::default());
        assert_eq!(program.addresses, ["192.168.0.100".parse().unwrap()].into());
        assert_eq!(program.servers.len(), 3, "calls that arrive here are served all the same");
    }
}
