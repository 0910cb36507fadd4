//! The naive resolver: a list of every record there is, and nothing else. Slow, and plainly right.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

const ZONE: &str = "cluster.local.";

/// A port: its name, whether it is UDP, and its number.
pub(crate) type Port = (&'static str, bool, u16);

/// What tells ports apart: the name, and whether it is UDP.
type PortName = (&'static str, bool);

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub namespaces: BTreeSet<&'static str>,
    pub services: Vec<ServiceSpec>,
    pub slices: Vec<SliceSpec>,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    ClusterIps(Vec<u8>),
    Headless,
    External(String),
}

#[derive(Clone, Debug)]
pub(crate) struct ServiceSpec {
    pub namespace: &'static str,
    pub name: &'static str,
    pub kind: Kind,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug)]
pub(crate) struct SliceSpec {
    pub namespace: &'static str,
    pub name: &'static str,
    pub v6: bool,
    pub endpoints: Vec<(Option<&'static str>, u8, bool)>,
    pub ports: Vec<Port>,
}

/// Two ports may not have the same name and protocol.
fn distinct(ports: &[Port]) -> Vec<Port> {
    let mut seen = BTreeSet::new();
    ports.iter().filter(|(name, udp, _)| seen.insert((*name, *udp))).copied().collect()
}

fn port_objects(ports: &[Port]) -> Value {
    let protocol = |udp| if udp { "UDP" } else { "TCP" };
    let port =
        |(name, udp, port): &Port| json!({"name": name, "protocol": protocol(*udp), "port": port});
    distinct(ports).iter().map(port).collect()
}

/// Odd numbers are IPv6.
fn cluster_ip(number: u8) -> IpAddr {
    match number % 2 {
        0 => Ipv4Addr::new(10, 96, 0, number).into(),
        _ => Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0, number.into()).into(),
    }
}

impl ServiceSpec {
    pub(crate) fn object(&self) -> Value {
        let ports = port_objects(&self.ports);
        let spec = match &self.kind {
            Kind::ClusterIps(numbers) => {
                let all: Vec<_> = numbers.iter().map(|n| cluster_ip(*n).to_string()).collect();
                json!({"clusterIPs": all, "ports": ports})
            }
            Kind::Headless => json!({"clusterIPs": ["None"], "ports": ports}),
            Kind::External(target) => json!({"type": "ExternalName", "externalName": target}),
        };
        json!({"metadata": {"namespace": self.namespace, "name": self.name}, "spec": spec})
    }
}

impl SliceSpec {
    pub(crate) fn object(&self, number: usize) -> Value {
        let endpoint = |(host, address, ready): &(Option<&str>, u8, bool)| {
            json!({"addresses": [self.address(*address).to_string()],
                "conditions": {"ready": ready}, "hostname": host})
        };
        json!({
            "metadata": {"namespace": self.namespace, "name": format!("slice-{number}"),
                "labels": {"kubernetes.io/service-name": self.name}},
            "addressType": if self.v6 { "IPv6" } else { "IPv4" },
            "ports": port_objects(&self.ports),
            "endpoints": self.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        })
    }

    fn address(&self, number: u8) -> IpAddr {
        match self.v6 {
            false => Ipv4Addr::new(10, 0, 0, number).into(),
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Found(Vec<String>),
    NoName(Vec<String>),
    UpstreamFailure,
}

/// Every record, by name and type.
#[derive(Debug, Default)]
pub(crate) struct Records {
    all: BTreeMap<String, BTreeSet<(String, String)>>,
    namespaces: BTreeSet<String>,
    pointers: BTreeMap<String, BTreeSet<String>>,
    /// Addresses that are a Service's own: no endpoint may claim them.
    own: BTreeSet<IpAddr>,
}

impl Records {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut records = Self::default();
        records.add(format!("dns-version.{ZONE}"), "TXT", "1.1.0");
        records.exists(format!("ns.dns.{ZONE}"));
        records.exists(format!("svc.{ZONE}"));
        records.exists(format!("pod.{ZONE}"));
        let with_services = cluster.services.iter().map(|service| service.namespace);
        for namespace in cluster.namespaces.iter().copied().chain(with_services) {
            records.namespaces.insert(namespace.into());
            records.exists(format!("{namespace}.svc.{ZONE}"));
            records.exists(format!("{namespace}.pod.{ZONE}"));
        }
        for service in &cluster.services {
            records.own_addresses(service);
        }
        for service in &cluster.services {
            let slices = cluster
                .slices
                .iter()
                .filter(|slice| (slice.namespace, slice.name) == (service.namespace, service.name));
            records.service(service, &slices.collect::<Vec<_>>());
        }
        records
    }

    fn exists(&mut self, name: String) {
        self.all.entry(name).or_default();
    }

    fn add(&mut self, name: String, kind: &str, data: &str) {
        self.all.entry(name).or_default().insert((kind.into(), data.to_lowercase()));
    }

    fn address(&mut self, name: &str, address: IpAddr) {
        let kind = if address.is_ipv4() { "A" } else { "AAAA" };
        self.add(name.into(), kind, &address.to_string());
    }

    /// Each address belongs to the Service whose key comes first only if it is shared; such
    /// clusters cannot exist, so the way back is not asked about them.
    fn own_addresses(&mut self, service: &ServiceSpec) {
        let Kind::ClusterIps(numbers) = &service.kind else { return };
        let fresh: BTreeSet<_> = numbers.iter().map(|n| cluster_ip(*n)).collect();
        for address in fresh {
            let name = format!("{}.{}.svc.{ZONE}", service.name, service.namespace);
            let pointer = reverse(address);
            if self.own.insert(address) {
                self.pointers.insert(pointer, [name].into());
            } else {
                self.pointers.remove(&pointer);
            }
        }
    }

    fn service(&mut self, service: &ServiceSpec, slices: &[&SliceSpec]) {
        let name = format!("{}.{}.svc.{ZONE}", service.name, service.namespace);
        if let Kind::External(target) = &service.kind {
            return self.add(name, "CNAME", &format!("{target}."));
        }
        // Endpoints: by name, their addresses and ports.
        let mut hosts: BTreeMap<String, (BTreeSet<IpAddr>, BTreeSet<Port>)> = BTreeMap::new();
        let mut behind: BTreeMap<PortName, BTreeSet<IpAddr>> = BTreeMap::new();
        for slice in slices {
            for (host, number, _) in slice.endpoints.iter().filter(|(_, _, ready)| *ready) {
                let address = slice.address(*number);
                let label = host.map_or_else(|| dashed(address), str::to_owned);
                let known = hosts.entry(format!("{label}.{name}")).or_default();
                known.0.insert(address);
                known.1.extend(distinct(&slice.ports));
                for (port, udp, _) in distinct(&slice.ports) {
                    behind.entry((port, udp)).or_default().insert(address);
                }
            }
        }
        for (host, (addresses, _)) in &hosts {
            for address in addresses {
                self.address(host, *address);
                let pointer = reverse(*address);
                if !self.own.contains(address) {
                    self.pointers.entry(pointer).or_default().insert(host.clone());
                }
            }
        }
        match &service.kind {
            Kind::ClusterIps(numbers) => {
                let addresses: BTreeSet<_> = numbers.iter().map(|n| cluster_ip(*n)).collect();
                let ports: BTreeSet<_> = distinct(&service.ports).into_iter().collect();
                let all: Vec<_> = ports.iter().map(|port| (name.clone(), *port)).collect();
                let copies = addresses.len();
                let behind = ports.iter().map(|(port, udp, _)| ((*port, *udp), addresses.clone()));
                self.own_name(&name, &addresses, &all, copies);
                self.port_names(&name, &behind.collect(), &all, copies);
            }
            _ => {
                let addresses: BTreeSet<_> =
                    hosts.values().flat_map(|host| host.0.clone()).collect();
                let pairs = hosts.iter().flat_map(|(host, (_, ports))| {
                    ports.iter().map(move |port| (host.clone(), *port))
                });
                let all: Vec<_> = pairs.collect();
                if !addresses.is_empty() {
                    self.own_name(&name, &addresses, &all, 1);
                    self.port_names(&name, &behind, &all, 1);
                }
            }
        }
    }

    /// The Service's own name: all addresses, all ports.
    fn own_name(
        &mut self,
        name: &str,
        addresses: &BTreeSet<IpAddr>,
        all: &[(String, Port)],
        copies: usize,
    ) {
        addresses.iter().for_each(|address| self.address(name, *address));
        self.services(name, all.iter().map(|(target, port)| (target.clone(), port.2)), copies);
    }

    /// `_http._tcp`: the addresses behind which there is such a port, and no others.
    fn port_names(
        &mut self,
        name: &str,
        behind: &BTreeMap<PortName, BTreeSet<IpAddr>>,
        all: &[(String, Port)],
        copies: usize,
    ) {
        for ((port, udp), addresses) in behind.iter().filter(|((port, _), _)| !port.is_empty()) {
            let place = format!("_{port}._{}.{name}", if *udp { "udp" } else { "tcp" });
            addresses.iter().for_each(|address| self.address(&place, *address));
            let same = all.iter().filter(|(_, own)| (own.0, own.1) == (*port, *udp));
            self.services(&place, same.map(|(target, port)| (target.clone(), port.2)), copies);
        }
    }

    fn services(
        &mut self,
        place: &str,
        targets: impl Iterator<Item = (String, u16)>,
        copies: usize,
    ) {
        let targets: BTreeSet<_> = targets.collect();
        let weight = (100 / (targets.len() * copies).max(1)).max(1);
        for (target, number) in targets {
            self.add(place.into(), "SRV", &format!("0 {weight} {number} {target}"));
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.all.keys()
    }

    pub(crate) fn pointers(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.pointers
    }

    pub(crate) fn exists_below(&self, name: &str) -> bool {
        let suffix = format!(".{name}");
        self.all.keys().any(|known| known.ends_with(&suffix))
    }

    pub(crate) fn resolve(&self, name: &str, kind: &str) -> Outcome {
        let (mut name, mut answers) = (name.to_lowercase(), Vec::new());
        for _ in 0..9 {
            if !name.ends_with(ZONE) {
                return Outcome::Found(answers);
            }
            let pod = self.pod(&name);
            let here = self.all.get(&name).or(pod.as_ref());
            let alias = here.and_then(|all| all.iter().find(|(kind, _)| kind == "CNAME"));
            if let Some((_, target)) = alias {
                answers.push(format!("{name} CNAME {target}"));
                if kind == "CNAME" {
                    return Outcome::Found(answers);
                }
                name = target.clone();
                continue;
            }
            if here.is_none() && !self.exists_below(&name) {
                return Outcome::NoName(answers);
            }
            let fitting = here.into_iter().flatten().filter(|(known, _)| known == kind);
            answers.extend(fitting.map(|(_, data)| format!("{name} {kind} {data}")));
            return Outcome::Found(answers);
        }
        Outcome::UpstreamFailure
    }

    /// `10-0-0-3.namespace.pod` is that address in every namespace that exists.
    fn pod(&self, name: &str) -> Option<BTreeSet<(String, String)>> {
        let front = name.strip_suffix(&format!(".pod.{ZONE}"))?;
        let (label, namespace) = front.split_once('.')?;
        let known = self.namespaces.contains(namespace);
        let address = label.replace('-', ".").parse().map(IpAddr::V4);
        let address = address.or_else(|_| label.replace('-', ":").parse().map(IpAddr::V6)).ok();
        let address = address.filter(|_| known)?;
        let kind = if address.is_ipv4() { "A" } else { "AAAA" };
        Some([(kind.to_owned(), address.to_string())].into())
    }
}

/// A label must not end in a dash.
fn dashed(address: IpAddr) -> String {
    let text = address.to_string().replace(['.', ':'], "-");
    if text.ends_with('-') { format!("{text}0") } else { text }
}

fn reverse(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa.")
        }
        IpAddr::V6(address) => {
            let octets = address.octets();
            let nibbles =
                octets.iter().rev().map(|octet| format!("{:x}.{:x}.", octet & 15, octet >> 4));
            nibbles.collect::<String>() + "ip6.arpa."
        }
    }
}
