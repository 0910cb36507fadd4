//! What DNS needs to know of Services and EndpointSlices.

use std::net::{IpAddr, Ipv6Addr};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::name::Name;

/// What kind of names a Service has.
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
    pub ports: Vec<PortView>,
}

/// A port with its names in small letters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortView {
    /// Empty if it has none.
    pub name: String,
    pub protocol: &'static str,
    pub number: u16,
}

impl PortView {
    fn read(name: Option<&str>, protocol: Option<&str>, number: Option<i32>) -> Option<Self> {
        let protocol = match protocol.unwrap_or("TCP") {
            "TCP" => "tcp",
            "UDP" => "udp",
            "SCTP" => "sctp",
            _ => return None,
        };
        let number = u16::try_from(number?).ok()?;
        Some(Self { name: name.unwrap_or_default().to_lowercase(), protocol, number })
    }
}

impl ServiceView {
    pub fn read(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let ports = spec.ports.iter().flatten();
        let ports = ports
            .filter_map(|p| PortView::read(p.name.as_deref(), p.protocol.as_deref(), Some(p.port)));
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
        Some(Self { kind, ports: ports.collect() })
    }
}

/// What we need of an EndpointSlice: its ready endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SliceView {
    pub ports: Vec<PortView>,
    pub endpoints: Vec<EndpointView>,
}

/// A ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointView {
    /// Its host name, or its address with dashes.
    pub host: String,
    pub addresses: Vec<IpAddr>,
}

impl SliceView {
    pub fn read(slice: &EndpointSlice) -> Self {
        let ports = slice.ports.iter().flatten();
        let ports =
            ports.filter_map(|p| PortView::read(p.name.as_deref(), p.protocol.as_deref(), p.port));
        let endpoints = slice.endpoints.iter().flatten().filter_map(EndpointView::read);
        Self { ports: ports.collect(), endpoints: endpoints.collect() }
    }
}

impl EndpointView {
    fn read(endpoint: &Endpoint) -> Option<Self> {
        // Only readiness counts: whoever wants unready addresses published has them set ready.
        let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
        let addresses: Vec<IpAddr> =
            endpoint.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let first = addresses.first().filter(|_| ready.unwrap_or(true))?;
        let host = match endpoint.hostname.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => name.to_lowercase(),
            None => dashed(*first),
        };
        Some(Self { host, addresses })
    }
}

/// An address as a label: `10-1-2-3`, `fd00-5--1`.
pub(crate) fn dashed(address: IpAddr) -> String {
    let mut text = address.to_string().replace([':', '.'], "-");
    if text.ends_with('-') {
        // A label must not end in a dash.
        text.push('0');
    }
    text
}

/// The address that such a label stands for.
pub(crate) fn undashed(label: &str) -> Option<IpAddr> {
    let dots = label.replace('-', ".");
    dots.parse().ok().or_else(|| label.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}
