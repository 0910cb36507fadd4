//! Endpoints in numbers.
//!
//! `kube_endpoint_address_available` and `kube_endpoint_address_not_ready` were dropped by kube-state-metrics
//! 2.14; alerts that were written before ask for them still. They count an address once for each port of its
//! subset, as they did there.

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};

use super::family::{Family, Measured, Samples, row};

impl Measured for Endpoints {
    const NAME: &'static str = "endpoint";
    const HAS_UID: bool = false;
    const FAMILIES: &'static [Family<Self>] = &[
        row("kube_endpoint_info", "Information about Endpoints", |_, out| out.value(1.0)),
        row(
            "kube_endpoint_created",
            "When they were created, in seconds since 1970",
            |own, out| {
                out.moment(own.metadata.creation_timestamp.as_ref());
            },
        ),
        row("kube_endpoint_address", "An address and a port of it", |own, out| {
            for subset in subsets(own) {
                addresses(ready(subset), ports(subset), "true", out);
                addresses(not_ready(subset), ports(subset), "false", out);
            }
        }),
        row("kube_endpoint_address_available", "Ready addresses, once per port", |own, out| {
            out.value(count(own, ready));
        }),
        row("kube_endpoint_address_not_ready", "Addresses that are not ready", |own, out| {
            out.value(count(own, not_ready));
        }),
        row("kube_endpoint_ports", "A port of them", |own, out| {
            for port in subsets(own).flat_map(ports) {
                let number = port.port.to_string();
                out.add(&labels(port, &number), 1.0);
            }
        }),
    ];
}

fn subsets(endpoints: &Endpoints) -> impl Iterator<Item = &EndpointSubset> {
    endpoints.subsets.iter().flatten()
}

fn ready(subset: &EndpointSubset) -> &[EndpointAddress] {
    subset.addresses.as_deref().unwrap_or_default()
}

fn not_ready(subset: &EndpointSubset) -> &[EndpointAddress] {
    subset.not_ready_addresses.as_deref().unwrap_or_default()
}

fn ports(subset: &EndpointSubset) -> &[EndpointPort] {
    subset.ports.as_deref().unwrap_or_default()
}

fn count(endpoints: &Endpoints, of: fn(&EndpointSubset) -> &[EndpointAddress]) -> f64 {
    let counts = subsets(endpoints).map(|subset| of(subset).len() * ports(subset).len());
    counts.sum::<usize>() as f64
}

fn labels<'a>(port: &'a EndpointPort, number: &'a str) -> [(&'static str, &'a str); 3] {
    [
        ("port_name", port.name.as_deref().unwrap_or_default()),
        ("port_protocol", port.protocol.as_deref().unwrap_or("TCP")),
        ("port_number", number),
    ]
}

/// Every address with every port.
fn addresses(
    addresses: &[EndpointAddress],
    ports: &[EndpointPort],
    is_ready: &str,
    out: &mut Samples,
) {
    for port in ports {
        let number = port.port.to_string();
        let [name, protocol, number] = labels(port, &number);
        for address in addresses {
            out.add(&[name, protocol, number, ("ip", &address.ip), ("ready", is_ready)], 1.0);
        }
    }
}
