//! EndpointSlices in numbers.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::family::{Family, Measured, Samples, row};

impl Measured for EndpointSlice {
    const NAME: &'static str = "endpointslice";
    const HAS_UID: bool = false;
    const FAMILIES: &'static [Family<Self>] = &[
        row("kube_endpointslice_info", "Information about a slice", |slice, out| {
            out.add(&[("addresstype", &slice.address_type)], 1.0);
        }),
        row(
            "kube_endpointslice_created",
            "When it was created, in seconds since 1970",
            |own, out| {
                out.moment(own.metadata.creation_timestamp.as_ref());
            },
        ),
        row("kube_endpointslice_endpoints", "An address of it", |slice, out| {
            for endpoint in slice.endpoints.iter().flatten() {
                addresses(endpoint, out);
            }
        }),
        row(
            "kube_endpointslice_endpoints_hints",
            "A zone that an endpoint is for",
            |slice, out| {
                for endpoint in slice.endpoints.iter().flatten() {
                    hints(endpoint, out);
                }
            },
        ),
        row("kube_endpointslice_ports", "A port of it", ports),
    ];
}

fn addresses(endpoint: &Endpoint, out: &mut Samples) {
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|own| own.ready);
    let serving = conditions.and_then(|own| own.serving);
    let terminating = conditions.and_then(|own| own.terminating);
    let target = endpoint.target_ref.as_ref();
    let of = |text: Option<&Option<String>>| text.cloned().flatten().unwrap_or_default();
    let kind = of(target.map(|own| &own.kind));
    let name = of(target.map(|own| &own.name));
    let namespace = of(target.map(|own| &own.namespace));
    for address in &endpoint.addresses {
        let labels = [
            ("ready", said(ready)),
            ("serving", said(serving)),
            ("terminating", said(terminating)),
            ("hostname", endpoint.hostname.as_deref().unwrap_or_default()),
            ("targetref_kind", &kind),
            ("targetref_name", &name),
            ("targetref_namespace", &namespace),
            ("nodename", endpoint.node_name.as_deref().unwrap_or_default()),
            ("endpoint_zone", endpoint.zone.as_deref().unwrap_or_default()),
            ("address", address),
        ];
        out.add(&labels, 1.0);
    }
}

/// What nobody has said is no label.
fn said(condition: Option<bool>) -> &'static str {
    match condition {
        Some(true) => "true",
        Some(false) => "false",
        None => "",
    }
}

fn hints(endpoint: &Endpoint, out: &mut Samples) {
    let zones = endpoint.hints.as_ref().and_then(|hints| hints.for_zones.as_ref());
    let first = endpoint.addresses.first().map(String::as_str).unwrap_or_default();
    for zone in zones.into_iter().flatten() {
        out.add(&[("address", first), ("for_zone", &zone.name)], 1.0);
    }
}

fn ports(slice: &EndpointSlice, out: &mut Samples) {
    for port in slice.ports.iter().flatten() {
        let number = port.port.map(|port| port.to_string()).unwrap_or_default();
        let labels = [
            ("port_name", port.name.as_deref().unwrap_or_default()),
            ("port_protocol", port.protocol.as_deref().unwrap_or("TCP")),
            ("port_number", &number),
        ];
        out.add(&labels, 1.0);
    }
}
