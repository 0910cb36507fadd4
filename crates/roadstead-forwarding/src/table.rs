//! What may become of a connection: the reference that every data plane must match.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use roadstead_api::key::ObjectKey;

use crate::node_network::NodeNetwork;
use crate::packet::{Decision, Origin, Outcome, Packet, Reason};
use crate::select::TrafficPolicy;
use crate::service::{
    Frontend, FrontendKind, Host, IpFamily, Locality, Protocol, ServicePort, ServicePortName,
    Target,
};

/// Every service port of one address family, with its frontends.
#[derive(Debug)]
pub struct ForwardingTable {
    family: IpFamily,
    node_network: NodeNetwork,
    ports: BTreeMap<Arc<ServicePortName>, Arc<ServicePort>>,
    /// Who claims each frontend, the strongest claim first.
    claims: BTreeMap<Frontend, Vec<Arc<ServicePortName>>>,
    /// Those whose claims meet others, or did, since somebody last asked.
    disputed: BTreeSet<Arc<ServicePortName>>,
    target_count: usize,
}

impl ForwardingTable {
    /// Starts with no services.
    pub fn new(family: IpFamily, node_network: &NodeNetwork) -> Self {
        Self {
            family,
            node_network: node_network.of_family(family),
            ports: BTreeMap::new(),
            claims: BTreeMap::new(),
            disputed: BTreeSet::new(),
            target_count: 0,
        }
    }

    /// The address family.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// The node and the networks around it, in this family.
    pub fn node_network(&self) -> &NodeNetwork {
        &self.node_network
    }

    /// Takes in what the node and its networks are now; returns whether data planes must be told. The addresses of the
    /// node they know themselves.
    pub fn set_node_network(&mut self, node_network: &NodeNetwork) -> bool {
        let before = std::mem::replace(&mut self.node_network, node_network.of_family(self.family));
        let node_addresses = self.node_network.node_addresses.clone();
        NodeNetwork { node_addresses, ..before } != self.node_network
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
            match self.get(&name) {
                Some(known) if *known == port => {}
                Some(known) if known.claims_like(&port) => {
                    self.exchange(name.clone(), port);
                    changed.insert(name);
                }
                _ => {
                    self.release(&name, &mut changed);
                    self.claim(name, Arc::new(port), &mut changed);
                }
            }
        }
        changed
    }

    /// A service port, if it exists.
    pub fn get(&self, name: &ServicePortName) -> Option<&ServicePort> {
        self.shared(name).map(Arc::as_ref)
    }

    /// The same, for whoever keeps it.
    pub fn shared(&self, name: &ServicePortName) -> Option<&Arc<ServicePort>> {
        self.ports.get(name)
    }

    /// The ports of a Service.
    pub fn ports_of(
        &self,
        service: &ObjectKey,
    ) -> impl Iterator<Item = (Arc<ServicePortName>, &ServicePort)> {
        self.names_of(service).into_iter().filter_map(|name| {
            let port = self.get(&name)?;
            Some((name, port))
        })
    }

    /// All service ports.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<ServicePortName>, &ServicePort)> {
        self.ports.iter().map(|(name, port)| (name, port.as_ref()))
    }

    /// The frontends that a service port really has, in order: those that nobody claims more
    /// strongly.
    pub fn frontends_of(&self, name: &ServicePortName) -> Vec<(Frontend, FrontendKind)> {
        let Some(port) = self.ports.get(name) else { return Vec::new() };
        let mut ours = strongest(name, port);
        ours.retain(|(frontend, kind)| {
            let first = self.claims.get(frontend).and_then(|names| names.first());
            first.is_some_and(|first| **first == *name) && self.is_open_to(*kind, frontend.host)
        });
        ours
    }

    /// The frontends that a service port claims in vain, each with the one who has it.
    pub fn lost_by(&self, name: &ServicePortName) -> Vec<(Frontend, Arc<ServicePortName>)> {
        let Some(port) = self.ports.get(name) else { return Vec::new() };
        let winner = |(frontend, kind): (Frontend, FrontendKind)| {
            let first = self.claims.get(&frontend)?.first()?;
            if **first != *name {
                return Some((frontend, first.clone()));
            }
            let Host::Address(address) = frontend.host else { return None };
            let host = (kind != FrontendKind::ClusterIp).then(|| self.host_of(address))??;
            Some((frontend, host.clone()))
        };
        strongest(name, port).into_iter().filter_map(winner).collect()
    }

    /// The service ports whose claims met those of others since the last call, or do no more.
    pub fn take_disputed(&mut self) -> BTreeSet<Arc<ServicePortName>> {
        std::mem::take(&mut self.disputed)
    }

    /// All that may become of a packet; each forwarding is equally likely.
    pub fn decide(&self, packet: &Packet) -> BTreeSet<Outcome> {
        self.explain(packet, None).outcomes
    }

    /// What may become of a packet, and why. `before` is the target of the sender's last
    /// connection to the same service port, if its affinity has not yet run out.
    pub fn explain(&self, packet: &Packet, before: Option<SocketAddr>) -> Decision {
        let Some((name, kind)) = self.find(packet) else { return self.stray(packet.destination) };
        let port = &self.ports[&name];
        let decided =
            |reason, outcomes| Decision { owner: Some((name.clone(), kind)), reason, outcomes };
        // Whom a load balancer shuts out does not hear whether anybody is there.
        if kind == FrontendKind::LoadBalancer && !self.admits(port, packet) {
            return decided(Reason::SourceNotAllowed, [Outcome::Drop].into());
        }
        if !port.has_endpoints() {
            return decided(Reason::NoEndpoints, [Outcome::Reject].into());
        }
        let (policy, masquerade, reason) = self.route(port, kind, packet);
        let targets = port.targets(policy);
        if targets.is_empty() {
            return decided(Reason::NoLocalEndpoints, [Outcome::Drop].into());
        }
        let outcome = |target: &Target| Outcome::Forward {
            target: target.socket(),
            masquerade: masquerade
                || (target.locality == Locality::Here && target.address == packet.source),
        };
        let same = |target: &&Target| port.affinity.is_some() && Some(target.socket()) == before;
        match targets.iter().find(same) {
            Some(target) => decided(Reason::SameTarget, [outcome(target)].into()),
            None => decided(reason, targets.iter().map(outcome).collect()),
        }
    }

    /// Under which policy a packet goes, and whether it is masqueraded.
    fn route(
        &self,
        port: &ServicePort,
        kind: FrontendKind,
        packet: &Packet,
    ) -> (TrafficPolicy, bool, Reason) {
        let NodeNetwork { detect_local, masquerade_all, .. } = &self.node_network;
        let is_pod = detect_local.is_pod(packet);
        let is_node = packet.origin == Origin::Node;
        match (kind, port.policy(kind)) {
            (FrontendKind::ClusterIp, policy) => {
                let stranger = detect_local.is_known() && !is_pod;
                let reason = match policy {
                    TrafficPolicy::Cluster => Reason::AnyEndpoint,
                    TrafficPolicy::Local => Reason::LocalEndpoint,
                };
                (policy, *masquerade_all || stranger, reason)
            }
            (_, TrafficPolicy::Cluster) => (TrafficPolicy::Cluster, true, Reason::AnyEndpoint),
            // Inside the cluster the external frontends are mere names for the Service.
            (_, TrafficPolicy::Local) if is_pod => {
                (TrafficPolicy::Cluster, false, Reason::ShortCircuit)
            }
            (_, TrafficPolicy::Local) if is_node => {
                (TrafficPolicy::Cluster, true, Reason::ShortCircuit)
            }
            (_, TrafficPolicy::Local) => (TrafficPolicy::Local, false, Reason::LocalEndpoint),
        }
    }

    /// Whether the load balancer's addresses may be called by the sender. Where the node itself
    /// may, so may the looped-back packets that it sends from the very address.
    fn admits(&self, port: &ServicePort, packet: &Packet) -> bool {
        let looped_back = packet.source == packet.destination;
        port.admits(packet.source)
            || (looped_back && self.node_network.node_address.is_some_and(|node| port.admits(node)))
    }

    /// A packet for no frontend.
    fn stray(&self, destination: IpAddr) -> Decision {
        let networks = &self.node_network.service_networks;
        let (reason, outcome) = if self.is_cluster_ip(destination) {
            (Reason::UnusedPort, Outcome::Reject)
        } else if networks.iter().any(|network| network.contains(&destination)) {
            (Reason::UnusedAddress, Outcome::Drop)
        } else {
            (Reason::NoService, Outcome::Pass)
        };
        Decision { owner: None, reason, outcomes: [outcome].into() }
    }

    /// The service port that a packet is for. Addresses come before node ports.
    fn find(&self, packet: &Packet) -> Option<(Arc<ServicePortName>, FrontendKind)> {
        let Packet { destination, protocol, port, .. } = *packet;
        let owned = |host| {
            let frontend = Frontend { host, protocol, port };
            let name = self.claims.get(&frontend)?.first()?;
            let mut kinds = self.ports[name].frontends(protocol);
            let kind = kinds.find(|(found, _)| *found == frontend)?.1;
            self.is_open_to(kind, host).then(|| (name.clone(), kind))
        };
        let on_node = || self.node_network.serves_node_ports(destination).then_some(Host::Node);
        owned(Host::Address(destination)).or_else(|| owned(on_node()?))
    }

    /// Whether an address may be a frontend of this kind at all. A ClusterIP belongs to its Service
    /// as a whole: nobody else opens a port on it, even one that the Service does not have.
    fn is_open_to(&self, kind: FrontendKind, host: Host) -> bool {
        match host {
            Host::Address(address) => {
                kind == FrontendKind::ClusterIp || !self.is_cluster_ip(address)
            }
            Host::Node => true,
        }
    }

    fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.host_of(address).is_some()
    }

    /// A service port that has the address as its ClusterIP.
    fn host_of(&self, address: IpAddr) -> Option<&Arc<ServicePortName>> {
        self.first_on(address).find(|name| self.ports[*name].cluster_ips.contains(&address))
    }

    /// Who claims the ports of an address, and would have them if it were nobody's ClusterIP.
    fn guests_of(&self, address: IpAddr) -> BTreeSet<Arc<ServicePortName>> {
        let is_guest =
            |name: &&Arc<ServicePortName>| !self.ports[*name].cluster_ips.contains(&address);
        self.first_on(address).filter(is_guest).cloned().collect()
    }

    /// The strongest claim to each port of an address.
    fn first_on(&self, address: IpAddr) -> impl Iterator<Item = &Arc<ServicePortName>> {
        let host = Host::Address(address);
        let first = Frontend { host, protocol: Protocol::Tcp, port: 0 };
        let claims =
            self.claims.range(first..).take_while(move |(frontend, _)| frontend.host == host);
        claims.filter_map(|(_, names)| names.first())
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

    /// A service port that claims what it did before.
    fn exchange(&mut self, name: Arc<ServicePortName>, port: ServicePort) {
        self.target_count += port.cluster.len();
        if let Some(before) = self.ports.insert(name, Arc::new(port)) {
            self.target_count -= before.cluster.len();
        }
    }

    fn claim(
        &mut self,
        name: Arc<ServicePortName>,
        port: Arc<ServicePort>,
        changed: &mut BTreeSet<Arc<ServicePortName>>,
    ) {
        let Self { claims, ports, disputed, .. } = self;
        for (frontend, kind) in strongest(&name, &port) {
            let claims = claims.entry(frontend).or_default();
            let ours = (kind, port.created, &name);
            let at = claims.partition_point(|other| {
                let port = &ports[other];
                let mut kinds = port.frontends(frontend.protocol);
                let kind = kinds.find(|(found, _)| *found == frontend).map(|(_, kind)| kind);
                kind.is_some_and(|kind| (kind, port.created, other) < ours)
            });
            if at == 0 {
                changed.extend(claims.first().cloned());
            }
            if !claims.is_empty() {
                disputed.extend(claims.iter().cloned().chain([name.clone()]));
            }
            // There is one for each frontend, and it nearly always stays the only one.
            claims.reserve_exact(1);
            claims.insert(at, name.clone());
        }
        self.target_count += port.cluster.len();
        self.ports.insert(name.clone(), port.clone());
        self.tell_guests(&port, changed);
        if self.asks_for_cluster_ip(&port) {
            self.disputed.insert(name.clone());
        }
        changed.insert(name);
    }

    fn release(&mut self, name: &ServicePortName, changed: &mut BTreeSet<Arc<ServicePortName>>) {
        let Some((name, port)) = self.ports.remove_entry(name) else { return };
        self.target_count -= port.cluster.len();
        for (frontend, _) in strongest(&name, &port) {
            let Some(claims) = self.claims.get_mut(&frontend) else { continue };
            let had_it = claims.first() == Some(&name);
            if claims.len() > 1 {
                self.disputed.extend(claims.iter().cloned());
            }
            claims.retain(|other| *other != name);
            match claims.first() {
                None => drop(self.claims.remove(&frontend)),
                Some(heir) if had_it => drop(changed.insert(heir.clone())),
                Some(_) => {}
            }
        }
        self.tell_guests(&port, changed);
        if self.asks_for_cluster_ip(&port) {
            self.disputed.insert(name.clone());
        }
        changed.insert(name);
    }

    /// Whether it claims what some Service has as its ClusterIP.
    fn asks_for_cluster_ip(&self, port: &ServicePort) -> bool {
        let mut asked = port.load_balancer_ips.iter().chain(&port.external_ips);
        asked.any(|address| self.is_cluster_ip(*address))
    }

    /// Whoever claims an address beside its Service may have won or lost it.
    fn tell_guests(&mut self, port: &ServicePort, changed: &mut BTreeSet<Arc<ServicePortName>>) {
        for address in &port.cluster_ips {
            let guests = self.guests_of(*address);
            self.disputed.extend(guests.iter().cloned());
            changed.extend(guests);
        }
    }
}

/// Each frontend that a service port claims, once, with the kind that counts.
fn strongest(name: &ServicePortName, port: &ServicePort) -> Vec<(Frontend, FrontendKind)> {
    let mut claimed: Vec<_> = port.frontends(name.protocol).collect();
    claimed.sort_unstable();
    claimed.dedup_by_key(|(frontend, _)| *frontend);
    claimed
}

#[cfg(test)]
mod tests;
