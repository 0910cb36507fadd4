//! What the rules of Kubernetes say about a packet, written naively from the rules themselves:
//! every question goes through all objects again, and nothing is remembered.
//!
//! It shares the nouns of packets and nodes with the product, and no decision. The numbers are
//! those of the table of behaviours in our description of a correct proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use roadstead_api::key::ObjectKey;

use super::clusters::{Event, News, SocketFrontend};
use crate::node_network::{DetectLocal, NodeNetwork, NodePorts};
use crate::packet::{Origin, Outcome, Packet};
use crate::service::Protocol;

/// All objects that there are in the end, and the zone of the node n1.
#[derive(Default)]
pub(super) struct Cluster {
    services: BTreeMap<ObjectKey, Service>,
    slices: BTreeMap<ObjectKey, EndpointSlice>,
    zone: Option<String>,
}

impl Cluster {
    pub(super) fn after(news: &[News]) -> Self {
        let mut all = Self::default();
        let key = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
            let text = |field: &Option<String>| field.clone().unwrap();
            ObjectKey::new(text(&metadata.namespace), text(&metadata.name))
        };
        for News { event, .. } in news {
            match event {
                Event::Service(service) => {
                    all.services.insert(key(&service.metadata), (**service).clone());
                }
                Event::NoService(key) => drop(all.services.remove(key)),
                Event::Slice(slice) => {
                    all.slices.insert(key(&slice.metadata), (**slice).clone());
                }
                Event::NoSlice(key) => drop(all.slices.remove(key)),
                Event::Zone(zone) => all.zone = zone.clone(),
            }
        }
        all
    }
}

/// What clients may think to dial, whether or not it leads anywhere.
pub(super) fn frontends(cluster: &Cluster, around: &NodeNetwork) -> Vec<SocketFrontend> {
    let mut all = Vec::new();
    for service in cluster.services.values() {
        let spec = service.spec.as_ref().unwrap();
        let ingress = service.status.iter().flat_map(|status| &status.load_balancer);
        let ingress = ingress.flat_map(|balancer| balancer.ingress.iter().flatten());
        let texts = spec.external_ips.iter().flatten().chain(ingress.filter_map(|i| i.ip.as_ref()));
        let external = texts.map(|text| address(text).unwrap());
        let addresses: Vec<IpAddr> = cluster_ips(service).into_iter().chain(external).collect();
        for port in spec.ports.iter().flatten() {
            let protocol = Protocol::parse(port.protocol.as_deref()).unwrap();
            let on = |address: &IpAddr, number: i32| {
                (SocketAddr::new(*address, number.try_into().unwrap()), protocol)
            };
            all.extend(addresses.iter().map(|address| on(address, port.port)));
            let node_port = port.node_port.unwrap_or_default();
            all.extend(around.node_addresses.iter().map(|address| on(address, node_port)));
        }
    }
    let ours = around.node_address.map(|address| address.is_ipv4());
    all.retain(|(to, _)| Some(to.is_ipv4()) == ours && to.port() != 0 && !to.ip().is_loopback());
    all
}

/// How a client came to a Service; if to several, the first way counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    ClusterIp,
    Balancer,
    ExternalIp,
    NodePort,
}

/// An address, perhaps with zeros before its numbers.
fn address(text: &str) -> Option<IpAddr> {
    let number = |word: &str| word.parse::<u8>().map(|number| number.to_string());
    let plain: Result<Vec<_>, _> = text.split('.').map(number).collect();
    plain.map_or(text.to_owned(), |words| words.join(".")).parse().ok()
}

fn network(text: &str) -> Option<IpNet> {
    let (first, length) = text.trim().split_once('/')?;
    IpNet::new(address(first)?, length.parse().ok()?).ok()
}

/// All that may become of a packet. `before` is where its sender went the last time.
pub(super) fn route(
    cluster: &Cluster,
    around: &NodeNetwork,
    packet: &Packet,
    before: Option<SocketAddr>,
) -> BTreeSet<Outcome> {
    let Some((key, spec, port, way)) = called(cluster, around, packet) else {
        return [stray(cluster, around, packet.destination)].into();
    };
    let endpoints = endpoints_of(cluster, key, port, packet.destination.is_ipv4());
    // 7: source ranges are for load balancers only.
    if way == Way::Balancer && !is_admitted(spec, around, packet) {
        return [Outcome::Drop].into();
    }
    // 16: nobody anywhere could answer.
    if !endpoints.iter().any(|found| found.is_ready() || found.is_draining()) {
        return [Outcome::Reject].into();
    }
    let (local, masquerade) = treatment(spec, way, around, packet);
    let usable = if local { usable_here(&endpoints) } else { usable(cluster, &endpoints) };
    // 17: an empty list means policy Local, and that endpoints exist elsewhere.
    if usable.is_empty() {
        return [Outcome::Drop].into();
    }
    // 9: who came before goes where it went, as long as that is still possible.
    let sticky = spec.session_affinity.as_deref() == Some("ClientIP");
    let again = usable.iter().find(|found| sticky && Some(found.socket) == before);
    let chosen = again.map_or(usable.clone(), |found| vec![*found]);
    let outcome = |found: &Found<'_>| Outcome::Forward {
        target: found.socket,
        // 20: who calls itself would not believe an answer from itself.
        masquerade: masquerade || (found.is_here() && found.socket.ip() == packet.source),
    };
    chosen.into_iter().map(|found| outcome(&found)).collect()
}

/// 18: what is for no port of any Service.
fn stray(cluster: &Cluster, around: &NodeNetwork, destination: IpAddr) -> Outcome {
    let mut services = cluster.services.values().filter(|service| is_ours(service));
    if services.any(|service| cluster_ips(service).contains(&destination)) {
        Outcome::Reject
    } else if around.service_networks.iter().any(|net| net.contains(&destination)) {
        Outcome::Drop
    } else {
        Outcome::Pass
    }
}

/// 31: neither of another proxy, nor without an address.
fn is_ours(service: &Service) -> bool {
    let another = "service.kubernetes.io/service-proxy-name";
    let labels = service.metadata.labels.iter().flat_map(BTreeMap::keys);
    let is_name = service.spec.as_ref().unwrap().type_.as_deref() == Some("ExternalName");
    !is_name && !labels.into_iter().any(|label| label == another)
}

fn cluster_ips(service: &Service) -> Vec<IpAddr> {
    let spec = service.spec.as_ref().unwrap();
    match &spec.cluster_ips {
        Some(many) => many.iter().filter_map(|text| text.parse().ok()).collect(),
        None => spec.cluster_ip.iter().filter_map(|text| text.parse().ok()).collect(),
    }
}

/// The port of a Service that a packet is for. If several could be meant, the first way to one of
/// them counts, then age, and a Service that does not say is young; then the name.
fn called<'a>(
    cluster: &'a Cluster,
    around: &NodeNetwork,
    packet: &Packet,
) -> Option<(&'a ObjectKey, &'a ServiceSpec, &'a ServicePort, Way)> {
    let mut found = Vec::new();
    let mut ours = cluster.services.values().filter(|service| is_ours(service));
    let is_cluster_ip = ours.any(|service| cluster_ips(service).contains(&packet.destination));
    for (key, service) in &cluster.services {
        // 30: each family is a proxy of its own, for Services with a ClusterIP of that family.
        let same_family = |address: &IpAddr| address.is_ipv4() == packet.destination.is_ipv4();
        if !is_ours(service) || !cluster_ips(service).iter().any(same_family) {
            continue;
        }
        let spec = service.spec.as_ref().unwrap();
        for port in spec.ports.iter().flatten() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            if protocol != packet.protocol.to_string().to_uppercase() {
                continue;
            }
            let way = way_to(service, port, around, packet);
            // A ClusterIP is nobody else's, whatever the port.
            if let Some(way) = way.filter(|way| !is_cluster_ip || *way == Way::ClusterIp) {
                let name = port.name.clone().unwrap_or_default();
                let age = service.metadata.creation_timestamp.clone();
                let rank = (way, age.is_none(), age, key, name);
                found.push((rank, (key, spec, port, way)));
            }
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found.into_iter().next().map(|(_, called)| called)
}

/// How a packet reaches a port of a Service, if it does.
fn way_to(
    service: &Service,
    port: &ServicePort,
    around: &NodeNetwork,
    packet: &Packet,
) -> Option<Way> {
    let spec = service.spec.as_ref().unwrap();
    let is_destination = |text: &String| address(text) == Some(packet.destination);
    let ingress = service.status.iter().flat_map(|status| &status.load_balancer);
    // 6: a load balancer of mode Proxy wants to see the traffic itself.
    let mut vips = ingress
        .flat_map(|balancer| balancer.ingress.iter().flatten())
        .filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|ingress| ingress.ip.as_ref());
    if port.port == i32::from(packet.port) {
        if cluster_ips(service).contains(&packet.destination) {
            return Some(Way::ClusterIp);
        } else if vips.any(is_destination) {
            return Some(Way::Balancer);
        } else if spec.external_ips.iter().flatten().any(is_destination) {
            return Some(Way::ExternalIp);
        }
    }
    let node_port = port.node_port == Some(i32::from(packet.port));
    (node_port && serves_node_ports(around, packet.destination)).then_some(Way::NodePort)
}

/// 2 and 3.
fn serves_node_ports(around: &NodeNetwork, destination: IpAddr) -> bool {
    match &around.node_ports {
        NodePorts::On(addresses) => addresses.contains(&destination),
        NodePorts::Every { .. } if destination.is_loopback() => false,
        NodePorts::Every { .. } => around.node_addresses.contains(&destination),
    }
}

/// 7 and 8.
fn is_admitted(spec: &ServiceSpec, around: &NodeNetwork, packet: &Packet) -> bool {
    let texts = || spec.load_balancer_source_ranges.iter().flatten();
    let ranges: Vec<IpNet> = texts()
        .filter_map(|text| network(text))
        .filter(|range| range.addr().is_ipv4() == packet.destination.is_ipv4())
        .collect();
    let holds = |address: IpAddr| ranges.iter().any(|range| range.contains(&address));
    let looped_back = packet.source == packet.destination;
    // What cannot be read was not written to let everybody in.
    let says_nothing = ranges.is_empty() && texts().all(|text| network(text).is_some());
    says_nothing || holds(packet.source) || (looped_back && around.node_address.is_some_and(holds))
}

/// Whether only endpoints of this node will do, and whether the sender is hidden from them.
fn treatment(spec: &ServiceSpec, way: Way, around: &NodeNetwork, packet: &Packet) -> (bool, bool) {
    let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    let pod = is_pod(around, packet);
    if way == Way::ClusterIp {
        // 12, 22 and 23.
        let stranger = pod == Some(false);
        (is_local(&spec.internal_traffic_policy), around.masquerade_all || stranger)
    } else if !is_local(&spec.external_traffic_policy) {
        (false, true) // 21
    } else if pod == Some(true) {
        (false, false) // 11
    } else if packet.origin == Origin::Node {
        (false, true) // 11: pods would answer to one of the node's addresses, but not this one.
    } else {
        (true, false) // 10
    }
}

/// Whether it comes from a pod, if there is a way to tell.
fn is_pod(around: &NodeNetwork, packet: &Packet) -> Option<bool> {
    let interface = match &packet.origin {
        Origin::Network(name) => name,
        Origin::Node => "",
    };
    match &around.detect_local {
        DetectLocal::Unknown => None,
        DetectLocal::Networks(nets) => Some(nets.iter().any(|net| net.contains(&packet.source))),
        DetectLocal::Bridge(bridge) => Some(interface == bridge),
        DetectLocal::InterfacePrefix(prefix) => Some(interface.starts_with(prefix)),
    }
}

/// An endpoint of a port.
#[derive(Clone, Copy)]
struct Found<'a> {
    socket: SocketAddr,
    endpoint: &'a Endpoint,
}

impl Found<'_> {
    fn conditions(&self) -> EndpointConditions {
        self.endpoint.conditions.clone().unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        self.conditions().ready.unwrap_or(true)
    }

    fn is_terminating(&self) -> bool {
        self.conditions().terminating.unwrap_or(false)
    }

    fn is_draining(&self) -> bool {
        self.conditions().serving.unwrap_or(true) && self.is_terminating()
    }

    fn is_here(&self) -> bool {
        self.endpoint.node_name.as_deref() == Some("n1")
    }

    fn zones(&self) -> Vec<&str> {
        let hints = self.endpoint.hints.iter().flat_map(|hints| hints.for_zones.iter().flatten());
        hints.map(|hint| &*hint.name).collect()
    }

    fn nodes(&self) -> Vec<&str> {
        let hints = self.endpoint.hints.iter().flat_map(|hints| hints.for_nodes.iter().flatten());
        hints.map(|hint| &*hint.name).collect()
    }
}

/// 32: all endpoints of a port, each once. Of two entries the one that does not terminate counts.
/// The rest is up to us: the one that can do more, then the first slice by name.
fn endpoints_of<'a>(
    cluster: &'a Cluster,
    service: &ObjectKey,
    port: &ServicePort,
    is_ipv4: bool,
) -> Vec<Found<'a>> {
    let mut all = Vec::new();
    for (key, slice) in &cluster.slices {
        let labels = slice.metadata.labels.clone().unwrap_or_default();
        let owner = labels.get("kubernetes.io/service-name");
        let is_headless = labels.contains_key("service.kubernetes.io/headless");
        let family = if is_ipv4 { "IPv4" } else { "IPv6" };
        if key.namespace != service.namespace
            || owner != Some(&service.name)
            || is_headless
            || slice.address_type != family
        {
            continue;
        }
        for number in numbers(slice, port) {
            for endpoint in slice.endpoints.iter().flatten() {
                let address = endpoint.addresses.first().and_then(|text| text.parse().ok());
                // An address of the other family is no use to anybody.
                if let Some(address) = address.filter(|a: &IpAddr| a.is_ipv4() == is_ipv4) {
                    all.push(Found { socket: (address, number).into(), endpoint });
                }
            }
        }
    }
    all.sort_by_key(|found| {
        (found.is_terminating(), !found.is_ready(), !found.is_ready() && !found.is_draining())
    });
    let mut known = BTreeSet::new();
    all.retain(|found| known.insert(found.socket));
    all
}

/// The numbers that a slice has for a port; without name or number it says nothing.
fn numbers(slice: &EndpointSlice, port: &ServicePort) -> Vec<u16> {
    let protocol = |text: &Option<String>| text.clone().unwrap_or("TCP".into());
    let same = slice.ports.iter().flatten().filter(|given| {
        given.name.as_ref() == Some(&port.name.clone().unwrap_or_default())
            && protocol(&given.protocol) == protocol(&port.protocol)
    });
    same.filter_map(|given| u16::try_from(given.port?).ok()).filter(|number| *number > 0).collect()
}

/// 13 and 10: under policy Local.
fn usable_here<'a>(endpoints: &[Found<'a>]) -> Vec<Found<'a>> {
    let here: Vec<_> = endpoints.iter().copied().filter(Found::is_here).collect();
    let ready: Vec<_> = here.iter().copied().filter(Found::is_ready).collect();
    if ready.is_empty() { here.into_iter().filter(Found::is_draining).collect() } else { ready }
}

/// 13, 14 and 15: under policy Cluster.
fn usable<'a>(cluster: &Cluster, endpoints: &[Found<'a>]) -> Vec<Found<'a>> {
    let ready: Vec<_> = endpoints.iter().copied().filter(Found::is_ready).collect();
    if ready.is_empty() {
        return endpoints.iter().copied().filter(Found::is_draining).collect();
    }
    if ready.iter().all(|found| !found.nodes().is_empty()) {
        let ours: Vec<_> =
            ready.iter().copied().filter(|found| found.nodes().contains(&"n1")).collect();
        if !ours.is_empty() {
            return ours;
        }
    }
    let Some(zone) = cluster.zone.as_deref() else { return ready };
    if ready.iter().all(|found| !found.zones().is_empty()) {
        let ours: Vec<_> =
            ready.iter().copied().filter(|found| found.zones().contains(&zone)).collect();
        if !ours.is_empty() {
            return ours;
        }
    }
    ready
}
