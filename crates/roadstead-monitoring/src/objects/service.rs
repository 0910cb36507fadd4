//! Services in numbers.

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::family::{Family, Measured, Samples, row};

impl Measured for Service {
    const NAME: &'static str = "service";
    const HAS_UID: bool = true;
    const FAMILIES: &'static [Family<Self>] = &[
        row("kube_service_info", "Information about a Service", info),
        row(
            "kube_service_created",
            "When it was created, in seconds since 1970",
            |service, out| {
                out.moment(service.metadata.creation_timestamp.as_ref());
            },
        ),
        row("kube_service_spec_type", "The type of a Service", |service, out| {
            let kind = spec(service).and_then(|spec| spec.type_.as_deref());
            out.add(&[("type", kind.unwrap_or("ClusterIP"))], 1.0);
        }),
        row("kube_service_spec_external_ip", "An external address of it", |service, out| {
            let addresses = spec(service).and_then(|spec| spec.external_ips.as_ref());
            for address in addresses.into_iter().flatten() {
                out.add(&[("external_ip", address)], 1.0);
            }
        }),
        row(
            "kube_service_status_load_balancer_ingress",
            "An address of its load balancer",
            ingress,
        ),
        row("kube_service_ports", "A port of it", ports),
    ];
}

fn spec(service: &Service) -> Option<&ServiceSpec> {
    service.spec.as_ref()
}

fn info(service: &Service, out: &mut Samples) {
    let text = |part: fn(&ServiceSpec) -> &Option<String>| {
        spec(service).and_then(|spec| part(spec).as_deref()).unwrap_or_default()
    };
    let labels = [
        ("cluster_ip", text(|spec| &spec.cluster_ip)),
        ("external_name", text(|spec| &spec.external_name)),
        ("external_traffic_policy", text(|spec| &spec.external_traffic_policy)),
        ("load_balancer_ip", text(|spec| &spec.load_balancer_ip)),
    ];
    out.add(&labels, 1.0);
}

fn ingress(service: &Service, out: &mut Samples) {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    for ingress in status.and_then(|status| status.ingress.as_ref()).into_iter().flatten() {
        let ip = ingress.ip.as_deref().unwrap_or_default();
        out.add(&[("ip", ip), ("hostname", ingress.hostname.as_deref().unwrap_or_default())], 1.0);
    }
}

fn ports(service: &Service, out: &mut Samples) {
    for port in spec(service).and_then(|spec| spec.ports.as_ref()).into_iter().flatten() {
        let target = match &port.target_port {
            Some(IntOrString::Int(number)) => number.to_string(),
            Some(IntOrString::String(name)) => name.clone(),
            None => String::new(),
        };
        let node_port = port.node_port.map(|port| port.to_string()).unwrap_or_default();
        let labels = [
            ("port_name", port.name.as_deref().unwrap_or_default()),
            ("port_protocol", port.protocol.as_deref().unwrap_or("TCP")),
            ("port_number", &port.port.to_string()),
            ("port_target", &target),
            ("port_app_protocol", port.app_protocol.as_deref().unwrap_or_default()),
            ("port_node_number", &node_port),
        ];
        out.add(&labels, 1.0);
    }
}
