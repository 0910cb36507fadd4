//! The environment variables that tell a container about Services: pure.

use k8s_openapi::api::core::v1::{Service, ServicePort};

/// The Service of the API server, which every container is told about.
pub const MASTER: (&str, &str) = ("default", "kubernetes");

/// Returns the variables about these Services, each once, in the order of their names.
///
/// As in the kubelet a Service of the pod's namespace goes before the API server's of the same
/// name, and those without an address of their own are left out.
pub fn service_links(namespace: &str, services: &[Service]) -> Vec<(String, String)> {
    let is_own = |service: &Service| service.metadata.namespace.as_deref() == Some(namespace);
    let mut named: Vec<_> = services.iter().filter_map(Named::of).collect();
    named.sort_by_key(|named| (named.name, !is_own(named.service)));
    named.dedup_by_key(|named| named.name);
    named.iter().flat_map(variables).collect()
}

/// A Service that has what the variables need.
struct Named<'a> {
    service: &'a Service,
    name: &'a str,
    address: &'a str,
    ports: &'a [ServicePort],
}

impl<'a> Named<'a> {
    fn of(service: &'a Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let address = spec.cluster_ip.as_deref().filter(|ip| !matches!(*ip, "" | "None"))?;
        let ports = spec.ports.as_deref().filter(|ports| !ports.is_empty())?;
        Some(Self { service, name: service.metadata.name.as_deref()?, address, ports })
    }
}

fn variables(of: &Named<'_>) -> Vec<(String, String)> {
    let name = upper(of.name);
    let first = &of.ports[0];
    let mut all = vec![
        (format!("{name}_SERVICE_HOST"), of.address.to_owned()),
        (format!("{name}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in of.ports {
        if let Some(title) = port.name.as_deref().filter(|title| !title.is_empty()) {
            all.push((format!("{name}_SERVICE_PORT_{}", upper(title)), port.port.to_string()));
        }
    }
    // As Docker once linked containers.
    all.push((format!("{name}_PORT"), url(of.address, first)));
    for port in of.ports {
        let protocol = protocol(port);
        let prefix = format!("{name}_PORT_{}_{}", port.port, protocol.to_uppercase());
        all.push((prefix.clone(), url(of.address, port)));
        all.push((format!("{prefix}_PROTO"), protocol));
        all.push((format!("{prefix}_PORT"), port.port.to_string()));
        all.push((format!("{prefix}_ADDR"), of.address.to_owned()));
    }
    all
}

fn protocol(port: &ServicePort) -> String {
    port.protocol.as_deref().unwrap_or("TCP").to_lowercase()
}

fn url(address: &str, port: &ServicePort) -> String {
    let (protocol, port) = (protocol(port), port.port);
    match address.contains(':') {
        true => format!("{protocol}://[{address}]:{port}"),
        false => format!("{protocol}://{address}:{port}"),
    }
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Reads `dev/my-db 10.0.0.1 sql:5432 53/UDP`.
    fn service(text: &str) -> Service {
        let words: Vec<_> = text.split_whitespace().collect();
        let (namespace, name) = words[0].split_once('/').unwrap();
        let ports = words[2..].iter().map(|word| {
            let (title, rest) = word.split_once(':').unwrap_or(("", word));
            let (number, protocol) = rest.split_once('/').unwrap_or((rest, "TCP"));
            json!({"name": title, "port": number.parse::<i32>().unwrap(), "protocol": protocol})
        });
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": words[1], "ports": ports.collect::<Vec<_>>()},
        }))
        .unwrap()
    }

    fn links(services: &[&str]) -> String {
        let services: Vec<_> = services.iter().map(|text| service(text)).collect();
        let all = service_links("dev", &services);
        all.iter().map(|(name, value)| format!("{name}={value} ")).collect::<String>()
    }

    #[test]
    fn variables_of_services() {
        for (name, services, want) in [
            (
                "one port",
                &["dev/web 10.0.0.1 80"][..],
                "WEB_SERVICE_HOST=10.0.0.1 WEB_SERVICE_PORT=80 WEB_PORT=tcp://10.0.0.1:80 \
                 WEB_PORT_80_TCP=tcp://10.0.0.1:80 WEB_PORT_80_TCP_PROTO=tcp \
                 WEB_PORT_80_TCP_PORT=80 WEB_PORT_80_TCP_ADDR=10.0.0.1 ",
            ),
            (
                "names, protocols and the newer family",
                &["dev/my-dns fd00::1 dns-udp:53/UDP tls:853"],
                "MY_DNS_SERVICE_HOST=fd00::1 MY_DNS_SERVICE_PORT=53 \
                 MY_DNS_SERVICE_PORT_DNS_UDP=53 MY_DNS_SERVICE_PORT_TLS=853 \
                 MY_DNS_PORT=udp://[fd00::1]:53 MY_DNS_PORT_53_UDP=udp://[fd00::1]:53 \
                 MY_DNS_PORT_53_UDP_PROTO=udp MY_DNS_PORT_53_UDP_PORT=53 \
                 MY_DNS_PORT_53_UDP_ADDR=fd00::1 MY_DNS_PORT_853_TCP=tcp://[fd00::1]:853 \
                 MY_DNS_PORT_853_TCP_PROTO=tcp MY_DNS_PORT_853_TCP_PORT=853 \
                 MY_DNS_PORT_853_TCP_ADDR=fd00::1 ",
            ),
            ("headless", &["dev/web None 80"], ""),
        ] {
            assert_eq!(links(services), want, "{name}");
        }
    }

    #[test]
    fn a_service_of_ones_own_goes_first() {
        let text = links(&["default/kubernetes 10.96.0.1 https:443", "dev/kubernetes 10.0.0.9 1"]);
        assert!(text.starts_with("KUBERNETES_SERVICE_HOST=10.0.0.9 "), "{text}");
        assert_eq!(text.matches("KUBERNETES_SERVICE_HOST").count(), 1);
    }
}
