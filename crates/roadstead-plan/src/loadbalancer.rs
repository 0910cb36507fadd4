//! The addresses of Services of type LoadBalancer.
//!
//! Addresses come from a pool that the operator names, each for one Service; or, without a pool,
//! from the nodes themselves, which Services share as long as their ports differ. A Service keeps
//! what it has while that is still possible.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Node, Service};
use roadstead_api::key::ObjectKey;

use crate::alloc;

/// Holds a Service until its addresses are released.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// The class under which Services can ask for us by name.
pub const CLASS: &str = "roadstead.dev/pool";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Ports that nodes need for themselves: those of ssh and of Kubernetes' own programs, and node ports.
/// Whoever could have one on their addresses would have the connections of others.
pub const OWN_PORTS: [RangeInclusive<u16>; 5] =
    [22..=22, 2379..=2380, 6443..=6443, 10248..=10259, alloc::NODE_PORTS];

/// Addresses from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: IpAddr,
    last: IpAddr,
}

impl Range {
    /// Whether the range and a network have an address in common.
    pub fn meets(&self, net: IpNet) -> bool {
        let same_family = self.first.is_ipv4() == net.addr().is_ipv4();
        same_family && self.first <= net.broadcast() && net.network() <= self.last
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl std::str::FromStr for Range {
    type Err = String;

    /// Reads `192.0.2.7`, `192.0.2.0/28` or `192.0.2.7-192.0.2.19`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not an address, a CIDR or a range of addresses");
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self { first: net.network(), last: net.broadcast() });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let parse = |part: &str| part.trim().parse::<IpAddr>().map_err(|_| bad());
        let (first, last) = (parse(first)?, parse(last)?);
        match first.is_ipv6() == last.is_ipv6() && first <= last {
            true => Ok(Self { first, last }),
            false => Err(bad()),
        }
    }
}

impl Range {
    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv6() == self.first.is_ipv6() && (self.first..=self.last).contains(&address)
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let number = |address| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)),
            IpAddr::V6(address) => u128::from(address),
        };
        let is_v6 = self.first.is_ipv6();
        (number(self.first)..=number(self.last)).map(move |number| match is_v6 {
            true => Ipv6Addr::from(number).into(),
            false => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        })
    }
}

/// Where addresses come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pool {
    /// The nodes themselves.
    #[default]
    Nodes,
    /// These, each for one Service.
    Ranges(Vec<Range>),
}

/// The protocol and number of a port.
pub(crate) type PortKey = (String, i32);

/// Which Service holds which address, with its ports.
pub type Holders = BTreeMap<IpAddr, BTreeMap<ObjectKey, BTreeSet<PortKey>>>;

/// What a plan is made from.
pub struct Input<'a> {
    /// The Service.
    pub service: &'a Service,
    /// Its key.
    pub key: &'a ObjectKey,
    /// Where addresses come from.
    pub pool: &'a Pool,
    /// The addresses of the nodes that take part.
    pub nodes: &'a BTreeSet<IpAddr>,
    /// The ports that nodes need for themselves.
    pub own_ports: &'a [RangeInclusive<u16>],
    /// Who holds what; this Service's own entries do not matter.
    pub holders: &'a Holders,
    /// `VIP` or `Proxy`.
    pub ip_mode: &'a str,
}

/// What to do about a Service.
#[derive(Debug, PartialEq)]
pub enum Balance {
    /// It is none of our business.
    Ignore,
    /// It is, and this is what its status should say.
    Ensure(Vec<LoadBalancerIngress>),
    /// It should have addresses and cannot; its status should say none.
    Fail(String),
    /// It no longer needs what it holds: clear the status, then remove the finalizer.
    Release,
}

/// Says what to do about a Service.
pub fn plan(input: &Input<'_>) -> Balance {
    let service = input.service;
    let spec = service.spec.as_ref();
    let class = spec.and_then(|spec| spec.load_balancer_class.as_deref());
    if class.is_some_and(|class| class != CLASS) {
        return Balance::Ignore;
    }
    let is_wanted = spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
        && service.metadata.deletion_timestamp.is_none();
    if !is_wanted {
        return if has_finalizer(service) { Balance::Release } else { Balance::Ignore };
    }
    match choose(input) {
        Ok(addresses) => {
            Balance::Ensure(addresses.into_iter().map(|a| ingress(a, input)).collect())
        }
        Err(why) => Balance::Fail(why),
    }
}

/// Whether the Service is held for us.
pub fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

/// The ports that a Service takes on its addresses.
pub fn ports(service: &Service) -> BTreeSet<PortKey> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()).into_iter().flatten();
    ports.map(|port| (port.protocol.clone().unwrap_or_else(|| "TCP".into()), port.port)).collect()
}

/// The addresses that the status of a Service names.
pub fn held(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|ingress| ingress.ip.as_deref()?.parse().ok()).collect()
}

/// The addresses of a node that takes part: those for the outside, else those for the inside.
pub fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let excluded =
        node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED));
    let status = node.status.as_ref();
    let mut conditions = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
    let is_ready = conditions.any(|c| c.type_ == "Ready" && c.status == "True");
    if excluded || !is_ready {
        return Vec::new();
    }
    let of = |kind: &str| -> Vec<IpAddr> {
        let all = status.and_then(|status| status.addresses.as_ref()).into_iter().flatten();
        all.filter(|a| a.type_ == kind).filter_map(|a| a.address.parse().ok()).collect()
    };
    let outside = of("ExternalIP");
    if outside.is_empty() { of("InternalIP") } else { outside }
}

fn ingress(address: IpAddr, input: &Input<'_>) -> LoadBalancerIngress {
    LoadBalancerIngress {
        ip: Some(address.to_string()),
        ip_mode: Some(input.ip_mode.to_owned()),
        ..Default::default()
    }
}

fn choose(input: &Input<'_>) -> Result<Vec<IpAddr>, String> {
    let spec = input.service.spec.as_ref();
    let asked = spec.and_then(|spec| spec.load_balancer_ip.as_deref()).filter(|ip| !ip.is_empty());
    let asked = match asked {
        Some(text) => {
            let address = text.parse::<IpAddr>();
            Some(address.map_err(|_| format!("loadBalancerIP {text:?} is not an address"))?)
        }
        None => None,
    };
    let families = spec.and_then(|spec| spec.ip_families.clone()).unwrap_or_default();
    let families = if families.is_empty() { vec!["IPv4".to_owned()] } else { families };
    let mut chosen = Vec::new();
    let mut obstacle = None;
    for is_v6 in families.iter().map(|family| family == "IPv6") {
        let asked = asked.filter(|address| address.is_ipv6() == is_v6);
        match choose_family(input, is_v6, asked) {
            Ok(addresses) => chosen.extend(addresses),
            Err(why) => obstacle = obstacle.or(Some(why)),
        }
    }
    match obstacle {
        Some(why) if chosen.is_empty() => Err(why),
        _ => Ok(chosen),
    }
}

fn choose_family(
    input: &Input<'_>,
    is_v6: bool,
    asked: Option<IpAddr>,
) -> Result<Vec<IpAddr>, String> {
    let family = if is_v6 { "IPv6" } else { "IPv4" };
    match input.pool {
        Pool::Nodes => {
            let of_family = input.nodes.iter().copied().filter(|a| a.is_ipv6() == is_v6);
            let offered: Vec<_> =
                of_family.filter(|address| asked.is_none_or(|asked| asked == *address)).collect();
            if offered.is_empty() {
                return Err(match asked {
                    Some(asked) => format!("loadBalancerIP {asked} is not an address of a node"),
                    None => format!("no node that is ready has an {family} address"),
                });
            }
            let taken = || offered.iter().find_map(|address| taken_port(input, *address));
            own_port(input).or_else(taken).map_or(Ok(offered), Err)
        }
        Pool::Ranges(ranges) => {
            let own = |address: &IpAddr| {
                address.is_ipv6() == is_v6 && ranges.iter().any(|range| range.contains(*address))
            };
            let is_free = |address: &IpAddr| holder(input, *address).is_none();
            if let Some(asked) = asked {
                return match (own(&asked), holder(input, asked)) {
                    (false, _) => Err(format!("loadBalancerIP {asked} is not in the pool")),
                    (_, Some(other)) => Err(format!("loadBalancerIP {asked} is held by {other}")),
                    _ => Ok(vec![asked]),
                };
            }
            let before = held(input.service).into_iter().find(|a| own(a) && is_free(a));
            let mut all = ranges.iter().flat_map(Range::addresses).filter(own);
            let found = before.or_else(|| all.find(is_free));
            found
                .map(|address| vec![address])
                .ok_or_else(|| format!("no {family} address is free in the pool"))
        }
    }
}

fn holder<'a>(input: &Input<'a>, address: IpAddr) -> Option<&'a ObjectKey> {
    input.holders.get(&address)?.keys().find(|key| *key != input.key)
}

/// Why the Service cannot have the addresses of nodes, if it asks for what is their own.
fn own_port(input: &Input<'_>) -> Option<String> {
    let is_own = |port: i32| {
        let port = u16::try_from(port).unwrap_or(0);
        input.own_ports.iter().any(|own| own.contains(&port))
    };
    let (protocol, port) = ports(input.service).into_iter().find(|(_, port)| is_own(*port))?;
    Some(format!("port {port}/{protocol} of the nodes is not for load balancers"))
}

/// Why the Service cannot share an address, if it cannot. Whoever came first keeps it.
fn taken_port(input: &Input<'_>, address: IpAddr) -> Option<String> {
    let wanted = ports(input.service);
    let others = input.holders.get(&address)?.iter().filter(|(key, _)| *key != input.key);
    others.into_iter().find_map(|(other, taken)| {
        let (protocol, port) = wanted.intersection(taken).next()?;
        Some(format!("port {port}/{protocol} of {address} is taken by Service {other}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(spec: Value, held: &[&str]) -> Service {
        let ingress: Vec<_> = held.iter().map(|ip| json!({"ip": ip})).collect();
        let mut service = json!({"metadata": {"name": "web", "finalizers": [FINALIZER]},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": ingress}}});
        for (key, value) in spec.as_object().unwrap() {
            service["spec"][key] = value.clone();
        }
        serde_json::from_value(service).unwrap()
    }

    /// `192.0.2.1=other:80` says that another Service holds that port of that address.
    fn decide(service: &Service, pool: &str, holders: &str) -> String {
        let pool = match pool {
            "nodes" => Pool::Nodes,
            ranges => Pool::Ranges(ranges.split(',').map(|r| r.parse().unwrap()).collect()),
        };
        let mut held = Holders::new();
        for word in holders.split_whitespace() {
            let (address, rest) = word.split_once('=').unwrap();
            let (name, port) = rest.split_once(':').unwrap();
            let ports = BTreeSet::from([("TCP".to_owned(), port.parse().unwrap())]);
            let entry = held.entry(address.parse().unwrap()).or_default();
            entry.insert(ObjectKey::new("ns", name), ports);
        }
        let nodes = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap()).into();
        let input = Input {
            service,
            key: &ObjectKey::new("ns", "web"),
            pool: &pool,
            nodes: &nodes,
            own_ports: &OWN_PORTS,
            holders: &held,
            ip_mode: "VIP",
        };
        match plan(&input) {
            Balance::Ignore => "ignore".into(),
            Balance::Release => "release".into(),
            Balance::Fail(why) => why,
            Balance::Ensure(ingress) => {
                ingress.into_iter().flat_map(|i| i.ip).collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn who_gets_which_address() {
        let plain = || service(json!({}), &[]);
        let pool = "192.0.2.1-192.0.2.3";
        let asking = |ip: &str| service(json!({"loadBalancerIP": ip}), &[]);
        let dual = service(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[]);
        let cases = [
            ("the nodes", plain(), "nodes", "", "10.0.0.1 10.0.0.2"),
            ("shared by port", plain(), "nodes", "10.0.0.1=a:81", "10.0.0.1 10.0.0.2"),
            (
                "not the same port",
                plain(),
                "nodes",
                "10.0.0.1=a:80",
                "port 80/TCP of 10.0.0.1 is taken by Service ns/a",
            ),
            (
                "not what nodes need",
                service(json!({"ports": [{"port": 80}, {"port": 6443}]}), &[]),
                "nodes",
                "",
                "port 6443/TCP of the nodes is not for load balancers",
            ),
            (
                "not a node port",
                service(json!({"ports": [{"port": 30333, "protocol": "UDP"}]}), &[]),
                "nodes",
                "",
                "port 30333/UDP of the nodes is not for load balancers",
            ),
            (
                "any port of an address of its own",
                { service(json!({"ports": [{"port": 6443}]}), &[]) },
                pool,
                "",
                "192.0.2.1",
            ),
            ("its own port", plain(), "nodes", "10.0.0.1=web:80", "10.0.0.1 10.0.0.2"),
            ("the first free", plain(), pool, "192.0.2.1=a:81", "192.0.2.2"),
            (
                "keeps its own",
                service(json!({}), &["192.0.2.3"]),
                pool,
                "192.0.2.3=web:80",
                "192.0.2.3",
            ),
            (
                "not outside a changed pool",
                service(json!({}), &["198.51.100.1"]),
                pool,
                "",
                "192.0.2.1",
            ),
            (
                "none free",
                plain(),
                "192.0.2.1",
                "192.0.2.1=a:1",
                "no IPv4 address is free in the pool",
            ),
            ("asked for", asking("192.0.2.3"), pool, "", "192.0.2.3"),
            (
                "asked for a strange one",
                asking("192.0.2.9"),
                pool,
                "",
                "loadBalancerIP 192.0.2.9 is not in the pool",
            ),
            (
                "asked for another's",
                asking("192.0.2.3"),
                pool,
                "192.0.2.3=a:1",
                "loadBalancerIP 192.0.2.3 is held by ns/a",
            ),
            ("asked for a node", asking("10.0.0.2"), "nodes", "", "10.0.0.2"),
            ("nonsense", asking("x"), pool, "", "loadBalancerIP \"x\" is not an address"),
            ("both families", dual.clone(), "192.0.2.1,fd00::1", "", "192.0.2.1 fd00::1"),
            ("one of two families", dual, pool, "", "192.0.2.1"),
            (
                "another's class",
                service(json!({"loadBalancerClass": "example.com/lb"}), &[]),
                pool,
                "",
                "ignore",
            ),
            ("our class", service(json!({"loadBalancerClass": CLASS}), &[]), pool, "", "192.0.2.1"),
            (
                "no longer",
                service(json!({"type": "ClusterIP"}), &["192.0.2.1"]),
                pool,
                "",
                "release",
            ),
        ];
        for (name, service, pool, holders, want) in cases {
            assert_eq!(decide(&service, pool, holders), want, "{name}");
        }
        let mut going = plain();
        going.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(decide(&going, pool, ""), "release");
        going.metadata.finalizers = None;
        assert_eq!(decide(&going, pool, ""), "ignore");
    }

    #[test]
    fn ranges_are_read() {
        for (text, count) in [
            ("192.0.2.0/30", Some(4)),
            ("192.0.2.7", Some(1)),
            ("fd00::1-fd00::3", Some(3)),
            ("192.0.2.9-192.0.2.1", None),
            ("192.0.2.1-fd00::1", None),
            ("x", None),
        ] {
            assert_eq!(text.parse::<Range>().ok().map(|r| r.addresses().count()), count, "{text}");
        }
    }

    #[test]
    fn which_nodes_take_part() {
        let cases = [
            ("inside", json!({}), "True", json!([["InternalIP", "10.0.0.1"]]), vec!["10.0.0.1"]),
            (
                "outside first",
                json!({}),
                "True",
                json!([["InternalIP", "10.0.0.1"], ["ExternalIP", "192.0.2.1"]]),
                vec!["192.0.2.1"],
            ),
            ("not ready", json!({}), "Unknown", json!([["InternalIP", "10.0.0.1"]]), vec![]),
            (
                "excluded",
                json!({EXCLUDED: ""}),
                "True",
                json!([["InternalIP", "10.0.0.1"]]),
                vec![],
            ),
        ];
        for (name, labels, ready, addresses, want) in cases {
            let addresses: Vec<_> = addresses
                .as_array()
                .unwrap()
                .iter()
                .map(|pair| json!({"type": pair[0], "address": pair[1]}))
                .collect();
            let node: Node = serde_json::from_value(json!({"metadata": {"labels": labels},
                "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap();
            let got: Vec<_> = node_addresses(&node).iter().map(ToString::to_string).collect();
            assert_eq!(got, want, "{name}");
        }
    }
}
