//! What may become of a connection: the reference that every data plane must match.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use roadstead_api::key::ObjectKey;

use crate::service::{
    Frontend, Handling, IpFamily, Place, Protocol, ServicePort, ServicePortName, Target,
};

/// The first packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sends it.
    pub source: IpAddr,
    /// Whom it is for.
    pub destination: IpAddr,
    /// Its transport protocol.
    pub protocol: Protocol,
    /// Its destination port.
    pub port: u16,
    /// Where this node got it from.
    pub origin: Origin,
}

/// Where a packet comes from, seen from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process in the node's own network namespace.
    Node,
    /// A pod or another machine.
    Network,
}

/// What may become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It goes to a target.
    Forward {
        /// The address and port of the target.
        target: SocketAddr,
        /// Whether the target sees this node's address instead of the client's.
        masquerade: bool,
    },
    /// It is refused.
    Reject,
    /// It disappears.
    Drop,
    /// It is none of our business.
    Pass,
}

/// Every service port of one address family, with its frontends.
#[derive(Debug)]
pub struct ForwardingTable {
    family: IpFamily,
    /// Sources inside these networks keep their address on the way to a ClusterIP.
    cluster_networks: Vec<IpNet>,
    ports: BTreeMap<Arc<ServicePortName>, ServicePort>,
    /// Who claims each frontend, in order; the first one has it.
    claims: BTreeMap<Frontend, Vec<Arc<ServicePortName>>>,
    target_count: usize,
}

impl ForwardingTable {
    /// Starts with no services. Connections to ClusterIPs from outside `cluster_networks` are
    /// masqueraded; with none given, nobody is outside.
    pub fn new(family: IpFamily, cluster_networks: &[IpNet]) -> Self {
        let ours = cluster_networks.iter().filter(|net| IpFamily::of(net.network()) == family);
        Self {
            family,
            cluster_networks: ours.map(IpNet::trunc).collect(),
            ports: BTreeMap::new(),
            claims: BTreeMap::new(),
            target_count: 0,
        }
    }

    /// The address family.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// The networks of the cluster's pods in this family.
    pub fn cluster_networks(&self) -> &[IpNet] {
        &self.cluster_networks
    }

    /// How many service ports there are.
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// How many targets they have in all.
    pub fn target_count(&self) -> usize {
        self.target_count
    }

    /// Makes `ports` all the ports of a Service; returns every service port that is now different.
    pub fn replace(
        &mut self,
        service: &ObjectKey,
        ports: Vec<(ServicePortName, ServicePort)>,
    ) -> BTreeSet<Arc<ServicePortName>> {
        let mut changed = BTreeSet::new();
        let wanted: BTreeMap<_, _> =
            ports.into_iter().map(|(name, port)| (Arc::new(name), port)).collect();
        for name in self.names_of(service) {
            if !wanted.contains_key(&name) {
                self.release(&name, &mut changed);
            }
        }
        for (name, port) in wanted {
            if self.ports.get(&name) != Some(&port) {
                self.release(&name, &mut changed);
                self.claim(name, port, &mut changed);
            }
        }
        changed
    }

    /// A service port, if it exists.
    pub fn get(&self, name: &ServicePortName) -> Option<&ServicePort> {
        self.ports.get(name)
    }

    /// All service ports.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<ServicePortName>, &ServicePort)> {
        self.ports.iter()
    }

    /// The frontends that a service port really has: those that no earlier name claims.
    pub fn frontends_of(&self, name: &ServicePortName) -> Vec<Frontend> {
        let claimed = self.ports.get(name).into_iter().flat_map(|port| &port.frontends);
        claimed.filter(|frontend| self.owner(frontend) == Some(name)).copied().collect()
    }

    /// All that may become of a packet; each forwarding is equally likely.
    pub fn decide(&self, packet: &Packet) -> BTreeSet<Outcome> {
        let Packet { destination: address, protocol, port, .. } = *packet;
        match self.owner(&Frontend { address, protocol, port }).map(|name| &self.ports[name]) {
            Some(port) => match &port.internal {
                Handling::Forward(targets) => {
                    let outside = self.is_outside(packet.source);
                    let outcome = |target: &Target| Outcome::Forward {
                        target: target.socket(),
                        masquerade: outside
                            || (target.place == Place::Here && target.address == packet.source),
                    };
                    targets.iter().map(outcome).collect()
                }
                Handling::Reject => [Outcome::Reject].into(),
                Handling::Drop => [Outcome::Drop].into(),
            },
            None if self.is_cluster_ip(address) => [Outcome::Reject].into(),
            None => [Outcome::Pass].into(),
        }
    }

    fn owner(&self, frontend: &Frontend) -> Option<&ServicePortName> {
        Some(self.claims.get(frontend)?.first()?)
    }

    fn is_outside(&self, source: IpAddr) -> bool {
        let networks = &self.cluster_networks;
        !networks.is_empty() && !networks.iter().any(|network| network.contains(&source))
    }

    fn is_cluster_ip(&self, address: IpAddr) -> bool {
        let first = Frontend { address, protocol: Protocol::Tcp, port: 0 };
        self.claims.range(first..).next().is_some_and(|(frontend, _)| frontend.address == address)
    }

    fn names_of(&self, service: &ObjectKey) -> Vec<Arc<ServicePortName>> {
        let first = ServicePortName {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            port: String::new(),
            protocol: Protocol::Tcp,
        };
        let names = self.ports.range(first..).map(|(name, _)| name);
        let of_service = |name: &&Arc<ServicePortName>| {
            name.namespace == service.namespace && name.name == service.name
        };
        names.take_while(of_service).cloned().collect()
    }

    fn claim(
        &mut self,
        name: Arc<ServicePortName>,
        port: ServicePort,
        changed: &mut BTreeSet<Arc<ServicePortName>>,
    ) {
        for frontend in &port.frontends {
            let claims = self.claims.entry(*frontend).or_default();
            let at = claims.partition_point(|other| *other < name);
            if at == 0 {
                changed.extend(claims.first().cloned());
            }
            claims.insert(at, name.clone());
        }
        self.target_count += port.internal.targets().len();
        self.ports.insert(name.clone(), port);
        changed.insert(name);
    }

    fn release(&mut self, name: &ServicePortName, changed: &mut BTreeSet<Arc<ServicePortName>>) {
        let Some((name, port)) = self.ports.remove_entry(name) else { return };
        self.target_count -= port.internal.targets().len();
        for frontend in &port.frontends {
            let Some(claims) = self.claims.get_mut(frontend) else { continue };
            let had_it = claims.first() == Some(&name);
            claims.retain(|other| *other != name);
            match claims.first() {
                None => drop(self.claims.remove(frontend)),
                Some(heir) if had_it => drop(changed.insert(heir.clone())),
                Some(_) => {}
            }
        }
        changed.insert(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `web 10.9.0.1:80>10.0.0.1:8080,here!10.0.0.2:8080` is a service port.
    fn add(table: &mut ForwardingTable, text: &str) -> String {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let ports = rest.split_once('>').map(|(frontend, targets)| {
            let frontend: SocketAddr = frontend.parse().unwrap();
            let target = |word: &str| {
                let here = word.strip_prefix("here!");
                let socket: SocketAddr = here.unwrap_or(word).parse().unwrap();
                let place = if here.is_some() { Place::Here } else { Place::Elsewhere };
                Target { address: socket.ip(), port: socket.port(), place }
            };
            let internal = match targets {
                "reject" => Handling::Reject,
                "drop" => Handling::Drop,
                _ => Handling::Forward(targets.split(',').map(target).collect()),
            };
            let frontends = vec![Frontend {
                address: frontend.ip(),
                protocol: Protocol::Tcp,
                port: frontend.port(),
            }];
            (port_name(name), ServicePort { frontends, internal })
        });
        let changed = table.replace(&ObjectKey::new("ns", name), ports.into_iter().collect());
        changed.iter().map(|name| name.name.clone()).collect::<Vec<_>>().join(" ")
    }

    fn port_name(name: &str) -> ServicePortName {
        ServicePortName {
            namespace: "ns".into(),
            name: name.into(),
            port: String::new(),
            protocol: Protocol::Tcp,
        }
    }

    fn table() -> ForwardingTable {
        ForwardingTable::new(IpFamily::V4, &["10.0.0.0/16".parse().unwrap()])
    }

    fn decide(table: &ForwardingTable, source: &str, destination: &str) -> String {
        let destination: SocketAddr = destination.parse().unwrap();
        let outcomes = table.decide(&Packet {
            source: source.parse().unwrap(),
            destination: destination.ip(),
            protocol: Protocol::Tcp,
            port: destination.port(),
            origin: Origin::Network,
        });
        let word = |outcome: &Outcome| match outcome {
            Outcome::Forward { target, masquerade: false } => format!("{target}"),
            Outcome::Forward { target, masquerade: true } => format!("{target}(masqueraded)"),
            other => format!("{other:?}").to_lowercase(),
        };
        outcomes.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn decisions() {
        let mut table = table();
        add(&mut table, "web 10.9.0.1:80>10.0.0.1:8080,here!10.0.0.2:8080");
        add(&mut table, "none 10.9.0.2:80>reject");
        add(&mut table, "far 10.9.0.3:80>drop");
        let cases = [
            ("a pod", "10.0.0.9", "10.9.0.1:80", "10.0.0.1:8080 10.0.0.2:8080"),
            (
                "a local target calls itself",
                "10.0.0.2",
                "10.9.0.1:80",
                "10.0.0.1:8080 10.0.0.2:8080(masqueraded)",
            ),
            (
                "a remote one is not seen here",
                "10.0.0.1",
                "10.9.0.1:80",
                "10.0.0.1:8080 10.0.0.2:8080",
            ),
            (
                "from outside",
                "192.168.0.1",
                "10.9.0.1:80",
                "10.0.0.1:8080(masqueraded) 10.0.0.2:8080(masqueraded)",
            ),
            ("no endpoints", "10.0.0.9", "10.9.0.2:80", "reject"),
            ("none for us", "10.0.0.9", "10.9.0.3:80", "drop"),
            ("a port that is not served", "10.0.0.9", "10.9.0.1:81", "reject"),
            ("somebody else", "10.0.0.9", "10.9.0.9:80", "pass"),
        ];
        for (name, source, destination, want) in cases {
            assert_eq!(decide(&table, source, destination), want, "{name}");
        }
    }

    #[test]
    fn a_frontend_belongs_to_the_first_name() {
        let mut table = table();
        assert_eq!(add(&mut table, "b 10.9.0.1:80>10.0.0.2:80"), "b");
        assert_eq!(add(&mut table, "c 10.9.0.1:80>10.0.0.3:80"), "c");
        assert_eq!(decide(&table, "10.0.0.9", "10.9.0.1:80"), "10.0.0.2:80");
        assert_eq!(add(&mut table, "a 10.9.0.1:80>10.0.0.1:80"), "a b", "b loses it");
        assert_eq!(decide(&table, "10.0.0.9", "10.9.0.1:80"), "10.0.0.1:80");
        assert!(table.frontends_of(&port_name("b")).is_empty());
        assert_eq!(add(&mut table, "a"), "a b", "b has it back");
        assert_eq!(decide(&table, "10.0.0.9", "10.9.0.1:80"), "10.0.0.2:80");
        assert_eq!(add(&mut table, "b 10.9.0.1:80>10.0.0.2:80"), "", "nothing new");
    }
}
