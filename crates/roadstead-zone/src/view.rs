//! What the zone needs of each object, read once at the edge.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice};

use crate::name::Name;
use crate::settings::{Outside, ZoneSettings};

/// What a Service's name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServiceKind {
    /// It has virtual addresses.
    ClusterIps(Vec<IpAddr>),
    /// Its name stands for its endpoints.
    Headless,
    /// It is another name for something else; `None` if that is not a domain name.
    External(Option<Name>),
}

/// What we need of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceView {
    pub kind: ServiceKind,
    pub ports: Vec<Port>,
    /// What its name in the zone for outsiders stands for, if there is such a zone.
    pub public: Option<PublicView>,
}

/// What a Service's name stands for outside the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublicView {
    /// The addresses of its load balancer, and others that lead to it from outside.
    Addresses(Vec<IpAddr>),
    /// Its load balancer has a name only.
    Host(Name),
    /// Its endpoints.
    Endpoints,
}

impl PublicView {
    fn read(service: &Service, headless: bool) -> Option<Self> {
        let given = service.spec.iter().flat_map(|spec| spec.external_ips.iter().flatten());
        let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = status.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
        let texts = given.chain(ingress.iter().filter_map(|one| one.ip.as_ref()));
        let addresses: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
        let host = ingress.iter().find_map(|one| Name::parse(one.hostname.as_deref()?));
        match (addresses.is_empty(), host) {
            (false, _) => Some(PublicView::Addresses(addresses)),
            (true, Some(host)) => Some(PublicView::Host(host)),
            (true, None) => headless.then_some(PublicView::Endpoints),
        }
    }
}

/// A transport protocol that ports are named by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The label without its underscore.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

/// A port with its name in small letters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    /// Empty if it has none.
    pub name: Box<str>,
    pub protocol: Protocol,
    pub number: u16,
}

impl Port {
    fn read(name: Option<&str>, protocol: Option<&str>, number: Option<i32>) -> Option<Self> {
        let protocol = match protocol.unwrap_or("TCP") {
            "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            _ => return None,
        };
        let number = u16::try_from(number?).ok()?;
        Some(Self { name: name.unwrap_or_default().to_lowercase().into(), protocol, number })
    }
}

impl ServiceView {
    pub(crate) fn read(service: &Service, settings: &ZoneSettings) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let ports = spec.ports.iter().flatten();
        let ports = ports
            .filter_map(|p| Port::read(p.name.as_deref(), p.protocol.as_deref(), Some(p.port)));
        let many = spec.cluster_ips.as_deref().unwrap_or_default();
        let mut texts = many.iter().chain(spec.cluster_ip.iter().filter(|_| many.is_empty()));
        let kind = if spec.type_.as_deref() == Some("ExternalName") {
            let target = spec.external_name.as_deref().filter(|name| !name.is_empty())?;
            // An address is not a domain name, however much it looks like one.
            let is_name = target.parse::<IpAddr>().is_err();
            ServiceKind::External(Name::parse(target).filter(|_| is_name))
        } else if texts.clone().any(|text| text == "None") {
            ServiceKind::Headless
        } else if texts.clone().all(String::is_empty) {
            // The address is still to be allocated.
            return None;
        } else {
            ServiceKind::ClusterIps(texts.by_ref().filter_map(|text| text.parse().ok()).collect())
        };
        let headless = |outside: &Outside| outside.headless && kind == ServiceKind::Headless;
        let outside = settings.outside.as_ref();
        let public = outside.and_then(|outside| PublicView::read(service, headless(outside)));
        Some(Self { kind, ports: ports.collect(), public })
    }
}

/// What we need of an EndpointSlice: its ready endpoints, and how many are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SliceView {
    pub ports: Vec<Port>,
    pub endpoints: Vec<EndpointView>,
    pub unready: usize,
}

/// One address of a ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointView {
    pub host: Option<Box<str>>,
    pub address: IpAddr,
    /// Where it runs, as labels in wire form and small letters, if that is part of names.
    pub zone: Option<Box<[u8]>>,
}

impl SliceView {
    /// The settings say whether a pod's name may stand in for a host name, and whether zones count.
    pub(crate) fn read(slice: &EndpointSlice, settings: &ZoneSettings) -> Self {
        let ports = slice.ports.iter().flatten();
        let ports =
            ports.filter_map(|p| Port::read(p.name.as_deref(), p.protocol.as_deref(), p.port));
        let mut view = Self { ports: ports.collect(), endpoints: Vec::new(), unready: 0 };
        for endpoint in slice.endpoints.iter().flatten() {
            // Only readiness counts: whoever wants unready addresses published has them set ready.
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
            if !ready.unwrap_or(true) {
                view.unready += 1;
                continue;
            }
            let host = host(endpoint, settings.endpoint_pod_names);
            let zone = endpoint.zone.as_deref().filter(|_| settings.zonal).and_then(Name::parse);
            let zone: Option<Box<[u8]>> = zone.map(|zone| {
                let wire = zone.to_lowercase();
                wire.wire()[..wire.wire().len() - 1].into()
            });
            let addresses = endpoint.addresses.iter().filter_map(|text| text.parse().ok());
            view.endpoints.extend(addresses.map(|address| EndpointView {
                host: host.clone(),
                address,
                zone: zone.clone(),
            }));
        }
        view
    }
}

/// The label in front of the Service's name; none if it is made from the address.
fn host(endpoint: &ApiEndpoint, pod_names: bool) -> Option<Box<str>> {
    let given = endpoint.hostname.as_deref();
    let pod = endpoint.target_ref.as_ref().filter(|_| pod_names);
    let pod = pod.and_then(|pod| pod.name.as_deref()).filter(|name| !name.contains('.'));
    let fits = |name: &&str| !name.is_empty() && name.len() <= 63;
    let name = given.filter(fits).or(pod.filter(fits))?;
    Some(name.to_lowercase().into())
}

/// An address as a label: `10-1-2-3`, `fd00-5--1`.
#[derive(Clone, Copy, Debug)]
pub struct Dashed {
    bytes: [u8; 46],
    length: usize,
}

impl Dashed {
    /// Writes the label.
    pub fn new(address: IpAddr) -> Self {
        let mut label = Self { bytes: [0; 46], length: 0 };
        let _ = write!(label, "{address}");
        if label.bytes[..label.length].ends_with(b"-") {
            // A label must not end in a dash.
            let _ = label.write_char('0');
        }
        label
    }

    /// The label.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Dashed {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            *self.bytes.get_mut(self.length).ok_or(std::fmt::Error)? =
                if matches!(byte, b'.' | b':') { b'-' } else { byte };
            self.length += 1;
        }
        Ok(())
    }
}

/// The address that such a label stands for.
pub(crate) fn undashed(label: &[u8]) -> Option<IpAddr> {
    if label.iter().any(|byte| matches!(byte, b'.' | b':')) {
        return None;
    }
    let mut buffer = [0; 46];
    let text = buffer.get_mut(..label.len())?;
    text.copy_from_slice(label);
    text.iter_mut().filter(|byte| **byte == b'-').for_each(|byte| *byte = b'.');
    if let Some(address) = parsed::<Ipv4Addr>(text) {
        return Some(address.into());
    }
    text.iter_mut().filter(|byte| **byte == b'.').for_each(|byte| *byte = b':');
    parsed::<Ipv6Addr>(text).map(IpAddr::V6)
}

fn parsed<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_labels() {
        for (address, label) in [
            ("10.1.2.3", "10-1-2-3"),
            ("fd00:5::1", "fd00-5--1"),
            ("fd00:5::", "fd00-5--0"),
            ("::ffff:10.1.2.3", "--ffff-10-1-2-3"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(Dashed::new(address).bytes(), label.as_bytes());
            let back = undashed(label.as_bytes());
            assert!(back == Some(address) || label.starts_with("--ffff"), "{label}: {back:?}");
        }
        for bad in ["web", "10-1-2", "10-1-2-256", "", "-"] {
            assert_eq!(undashed(bad.as_bytes()), None, "{bad}");
        }
    }
}
