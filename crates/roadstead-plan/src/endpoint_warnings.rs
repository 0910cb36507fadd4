//! What of the endpoints that people write by hand leads nowhere.
//!
//! The API accepts these objects, and nothing happens: no Service has that name, the Service has
//! no such port, its addresses are of the other family. So somebody must say it, where people
//! look: in an event about the object.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::endpointslice::desired::{families, is_headless};
use crate::endpointslice::{CONTROLLER, MANAGED_BY, SERVICE_NAME};
use crate::{endpoints, endpointslice_mirroring};

/// One thing that is probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointWarning {
    /// One word, for an event.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// A port as proxies match it: by name and protocol.
type Port = (String, String);

/// Whether a slice is none of those that our controllers write.
pub fn is_slice_by_hand(slice: &EndpointSlice) -> bool {
    let manager = label(&slice.metadata, MANAGED_BY);
    ![CONTROLLER, endpointslice_mirroring::CONTROLLER].contains(&manager)
}

/// Whether an Endpoints object is somebody's list of addresses and not our own. We name the pod of
/// every address.
pub fn is_endpoints_by_hand(object: &Endpoints) -> bool {
    let subsets = object.subsets.iter().flatten();
    let lists = subsets.flat_map(|subset| [&subset.addresses, &subset.not_ready_addresses]);
    let is_edited = || lists.flatten().flatten().any(|address| address.target_ref.is_none());
    (label(&object.metadata, endpoints::MANAGED_BY) != endpoints::CONTROLLER || is_edited())
        && label(&object.metadata, endpointslice_mirroring::SKIP) != "true"
        && !endpoints::is_lock(object)
}

/// What to say about a slice, given the Service that it names.
pub fn about_slice(slice: &EndpointSlice, service: Option<&Service>) -> Vec<EndpointWarning> {
    let name = label(&slice.metadata, SERVICE_NAME);
    if name.is_empty() {
        let message = format!("without the label {SERVICE_NAME} no Service uses these endpoints");
        return vec![EndpointWarning { reason: "NoServiceName", message }];
    }
    let held = slice.endpoints.iter().flatten();
    let addresses: Vec<&str> = held.flat_map(|e| &e.addresses).map(String::as_str).collect();
    let mut all = Vec::new();
    match service {
        None => all.push(no_such_service(&slice.metadata, name)),
        Some(service) => {
            let family = slice.address_type.as_str();
            if !addresses.is_empty() {
                all.extend(foreign_family(service, family, "these endpoints are"));
            }
            let ports = slice.ports.iter().flatten().map(|port| {
                let protocol = port.protocol.as_deref().unwrap_or("TCP");
                (port.name.clone().unwrap_or_default(), protocol.to_owned())
            });
            all.extend(foreign_ports(service, ports.collect(), addresses.is_empty()));
        }
    }
    all.extend(repeated(&addresses));
    all
}

/// What to say about Endpoints, given the Service of the same name.
pub fn about_endpoints(object: &Endpoints, service: Option<&Service>) -> Vec<EndpointWarning> {
    let Some(service) = service else {
        let name = object.metadata.name.as_deref().unwrap_or("");
        return vec![no_such_service(&object.metadata, name)];
    };
    if has_selector(service) {
        // Whatever else is wrong with them, that is why nobody uses them.
        return vec![selected_anyway(service)];
    }
    let mut all = Vec::new();
    for subset in object.subsets.iter().flatten() {
        let ready = subset.addresses.iter().flatten();
        let addresses = ready.chain(subset.not_ready_addresses.iter().flatten());
        let addresses: Vec<&str> = addresses.map(|address| address.ip.as_str()).collect();
        all.extend(addresses.iter().find_map(|address| {
            let six = address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6());
            let family = if six { "IPv6" } else { "IPv4" };
            foreign_family(service, family, &format!("address {address} is"))
        }));
        let ports = subset.ports.iter().flatten().map(|port| {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            (port.name.clone().unwrap_or_default(), protocol.to_owned())
        });
        all.extend(foreign_ports(service, ports.collect(), addresses.is_empty()));
        all.extend(repeated(&addresses));
    }
    all
}

fn label<'a>(metadata: &'a ObjectMeta, name: &str) -> &'a str {
    metadata.labels.as_ref().and_then(|labels| labels.get(name)).map_or("", String::as_str)
}

fn no_such_service(metadata: &ObjectMeta, name: &str) -> EndpointWarning {
    let namespace = metadata.namespace.as_deref().unwrap_or("");
    let message =
        format!("there is no Service {name:?} in namespace {namespace:?} to use these endpoints");
    EndpointWarning { reason: "NoSuchService", message }
}

fn has_selector(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| {
        let selects = spec.selector.as_ref().is_some_and(|selector| !selector.is_empty());
        selects && spec.type_.as_deref() != Some("ExternalName")
    })
}

fn selected_anyway(service: &Service) -> EndpointWarning {
    let message = format!(
        "Service {:?} has a selector, so the pods that it selects are its endpoints: these are not \
         used, and will be overwritten. Remove spec.selector from the Service to write its \
         endpoints by hand",
        name(service)
    );
    EndpointWarning { reason: "ServiceHasSelector", message }
}

fn foreign_family(service: &Service, family: &str, what: &str) -> Option<EndpointWarning> {
    let own = families(service);
    let message = match family {
        "FQDN" => format!("{what} names: proxies use addresses only"),
        family if own.iter().any(|own| own == family) => return None,
        _ => format!("{what} {family}, but Service {:?} is {} only", name(service), own.join(", ")),
    };
    Some(EndpointWarning { reason: "AddressTypeMismatch", message })
}

/// Ports that the Service does not have. Names in DNS need none of it.
fn foreign_ports(
    service: &Service,
    ports: Vec<Port>,
    nothing_to_reach: bool,
) -> Vec<EndpointWarning> {
    if is_headless(service) || nothing_to_reach {
        return Vec::new();
    }
    let own = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let own: BTreeSet<Port> = own
        .map(|port| {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            (port.name.clone().unwrap_or_default(), protocol.to_owned())
        })
        .collect();
    let show = |(name, protocol): &Port| format!("{name:?}/{protocol}");
    let known = own.iter().map(show).collect::<Vec<_>>().join(", ");
    let why = |what: String| EndpointWarning {
        reason: "PortNameMismatch",
        message: format!(
            "{what}: ports are matched by name and protocol, and Service {:?} has {known}",
            name(service)
        ),
    };
    if ports.is_empty() && !own.is_empty() {
        return vec![why("there is no port".into())];
    }
    let foreign = ports.iter().filter(|port| !own.contains(port));
    foreign.map(|port| why(format!("nobody uses port {}", show(port)))).collect()
}

fn repeated(addresses: &[&str]) -> Option<EndpointWarning> {
    let mut seen = BTreeSet::new();
    let twice: BTreeSet<_> = addresses.iter().filter(|address| !seen.insert(**address)).collect();
    let first = twice.first()?;
    let others = match twice.len() - 1 {
        0 => String::new(),
        others => format!(", and so are {others} others"),
    };
    let message = format!("address {first} is listed more than once, but counts once{others}");
    Some(EndpointWarning { reason: "DuplicateAddress", message })
}

fn name(service: &Service) -> &str {
    service.metadata.name.as_deref().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap()
    }

    fn shown(all: &[EndpointWarning]) -> String {
        let lines = all.iter().map(|warning| format!("{}: {}", warning.reason, warning.message));
        lines.collect::<Vec<_>>().join("\n")
    }

    const PORTS: &str = "ports are matched by name and protocol, and Service \"web\" has";

    #[test]
    fn slices() {
        let web = || service(json!({"ipFamilies": ["IPv4"], "ports": [{"name": "http"}]}));
        let headless = || service(json!({"clusterIP": "None", "ports": [{"name": "http"}]}));
        let slice =
            |label: &str, family: &str, addresses: &[&str], ports: Value| -> EndpointSlice {
                let endpoints: Vec<_> =
                    addresses.iter().map(|a| json!({"addresses": [a]})).collect();
                serde_json::from_value(json!({
                "metadata": {"namespace": "shop", "labels": {(SERVICE_NAME): label}},
                "addressType": family, "endpoints": endpoints, "ports": ports}))
                .unwrap()
            };
        let http = || json!([{"name": "http", "port": 80}]);
        let one = &["10.0.0.1"][..];
        let cases = [
            ("all is well", slice("web", "IPv4", one, http()), Some(web()), String::new()),
            (
                "no label",
                slice("", "IPv4", one, http()),
                None,
                "NoServiceName: without the label kubernetes.io/service-name no Service uses \
                 these endpoints"
                    .into(),
            ),
            (
                "a wrong label",
                slice("wbe", "IPv4", one, http()),
                None,
                "NoSuchService: there is no Service \"wbe\" in namespace \"shop\" to use these \
                 endpoints"
                    .into(),
            ),
            (
                "another name of the port",
                slice("web", "IPv4", one, json!([{"port": 80}])),
                Some(web()),
                format!("PortNameMismatch: nobody uses port \"\"/TCP: {PORTS} \"http\"/TCP"),
            ),
            (
                "another protocol",
                slice("web", "IPv4", one, json!([{"name": "http", "protocol": "UDP"}])),
                Some(web()),
                format!("PortNameMismatch: nobody uses port \"http\"/UDP: {PORTS} \"http\"/TCP"),
            ),
            (
                "no port",
                slice("web", "IPv4", one, json!(null)),
                Some(web()),
                format!("PortNameMismatch: there is no port: {PORTS} \"http\"/TCP"),
            ),
            (
                "names need no ports",
                slice("web", "IPv4", one, json!(null)),
                Some(headless()),
                String::new(),
            ),
            (
                "the other family",
                slice("web", "IPv6", &["fd00::1"], http()),
                Some(web()),
                "AddressTypeMismatch: these endpoints are IPv6, but Service \"web\" is IPv4 only"
                    .into(),
            ),
            (
                "names instead of addresses",
                slice("web", "FQDN", &["a.b"], http()),
                Some(web()),
                "AddressTypeMismatch: these endpoints are names: proxies use addresses only".into(),
            ),
            (
                "an address twice",
                slice("web", "IPv4", &["10.0.0.1", "10.0.0.2", "10.0.0.1"], http()),
                Some(web()),
                "DuplicateAddress: address 10.0.0.1 is listed more than once, but counts once"
                    .into(),
            ),
            (
                "nothing at all is no mistake",
                slice("web", "IPv6", &[], json!(null)),
                Some(web()),
                String::new(),
            ),
        ];
        for (name, slice, service, want) in cases {
            assert_eq!(shown(&about_slice(&slice, service.as_ref())), want, "{name}");
        }
    }

    #[test]
    fn endpoints_of_all_kinds() {
        let web = || Some(service(json!({"ports": [{"name": "http"}]})));
        let object = |subsets: Value| -> Endpoints {
            let metadata = json!({"name": "web", "namespace": "shop"});
            serde_json::from_value(json!({"metadata": metadata, "subsets": subsets})).unwrap()
        };
        let at = |ip: &str, port: &str| json!([{"addresses": [{"ip": ip}], "ports": [{"name": port, "port": 80}]}]);
        let cases = [
            ("all is well", object(at("10.0.0.1", "http")), web(), String::new()),
            (
                "no Service",
                object(at("10.0.0.1", "http")),
                None,
                "NoSuchService: there is no Service \"web\" in namespace \"shop\" to use these \
                 endpoints"
                    .into(),
            ),
            (
                "another name of the port",
                object(at("10.0.0.1", "web")),
                web(),
                format!("PortNameMismatch: nobody uses port \"web\"/TCP: {PORTS} \"http\"/TCP"),
            ),
            (
                "the Service selects pods",
                object(at("10.0.0.1", "web")),
                Some(service(json!({"selector": {"app": "web"}, "ports": [{"name": "http"}]}))),
                "ServiceHasSelector: Service \"web\" has a selector, so the pods that it selects \
                 are its endpoints: these are not used, and will be overwritten. Remove \
                 spec.selector from the Service to write its endpoints by hand"
                    .into(),
            ),
            (
                "the other family",
                object(at("fd00::1", "http")),
                web(),
                "AddressTypeMismatch: address fd00::1 is IPv6, but Service \"web\" is IPv4 only"
                    .into(),
            ),
            (
                "an address twice",
                object(json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}],
                    "ports": [{"name": "http", "port": 80}]}])),
                web(),
                "DuplicateAddress: address 10.0.0.1 is listed more than once, but counts once"
                    .into(),
            ),
        ];
        for (name, object, service, want) in cases {
            assert_eq!(shown(&about_endpoints(&object, service.as_ref())), want, "{name}");
        }
    }

    #[test]
    fn what_is_written_by_hand() {
        let slice = |manager: &str| -> EndpointSlice {
            serde_json::from_value(json!({"metadata": {"labels": {(MANAGED_BY): manager}},
                "addressType": "IPv4", "endpoints": []}))
            .unwrap()
        };
        let endpoints = |metadata: Value| -> Endpoints {
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let lock = json!({"annotations": {(endpoints::LEADER): "me"}});
        let own = json!({"labels": {(endpoints::MANAGED_BY): endpoints::CONTROLLER}});
        let listed = |target: Value| -> Endpoints {
            let address = json!({"ip": "10.0.0.1", "targetRef": target});
            serde_json::from_value(json!({"metadata": own, "subsets": [{"addresses": [address]}]}))
                .unwrap()
        };
        let (pod, nobody) = (listed(json!({"kind": "Pod", "name": "p"})), listed(json!(null)));
        let cases = [
            ("our addresses of pods", is_endpoints_by_hand(&pod), false),
            ("our addresses, and somebody's", is_endpoints_by_hand(&nobody), true),
            ("a colleague's slice", is_slice_by_hand(&slice("staff")), true),
            ("our slice", is_slice_by_hand(&slice(CONTROLLER)), false),
            (
                "our mirrored slice",
                is_slice_by_hand(&slice(endpointslice_mirroring::CONTROLLER)),
                false,
            ),
            ("addresses", is_endpoints_by_hand(&endpoints(json!({}))), true),
            ("our addresses", is_endpoints_by_hand(&endpoints(own.clone())), false),
            ("a lock", is_endpoints_by_hand(&endpoints(lock)), false),
            (
                "the API server's own",
                is_endpoints_by_hand(&endpoints(
                    json!({"labels": {(endpointslice_mirroring::SKIP): "true"}}),
                )),
                false,
            ),
        ];
        for (name, got, want) in cases {
            assert_eq!(got, want, "{name}");
        }
    }
}
