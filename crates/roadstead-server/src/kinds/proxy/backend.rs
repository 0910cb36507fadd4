//! Which pod a proxied request goes to: the one that it names, or one behind the Service that it names.

use std::net::IpAddr;

use roadstead_schema::json::Pointer;
use serde_json::Value;
use uuid::Uuid;

use super::reach::Reach;
use crate::error::ApiError;
use crate::kinds::service::network::ServiceNetwork;
use crate::reading::object;
use crate::registry::Resource;
use crate::storage::Storage;

/// The name in the path: `[SCHEME:]NAME[:PORT]`.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::kinds) struct ProxyName<'a> {
    pub(super) scheme: &'a str,
    pub(in crate::kinds) name: &'a str,
    pub(in crate::kinds) port: &'a str,
}

impl<'a> ProxyName<'a> {
    pub(in crate::kinds) fn parse(text: &'a str) -> Option<Self> {
        match text.split(':').collect::<Vec<_>>()[..] {
            [name] => Some(Self { scheme: "", name, port: "" }),
            [name, port] => Some(Self { scheme: "", name, port }),
            [scheme @ ("" | "http" | "https"), name, port] => Some(Self { scheme, name, port }),
            _ => None,
        }
    }
}

/// Where pods and Services are looked for.
pub(super) struct Backends<'a> {
    pub(super) storage: &'a Storage,
    pub(super) network: &'a ServiceNetwork,
    /// Pods or Services.
    pub(super) resource: &'a Resource,
    pub(super) namespace: &'a str,
}

impl Backends<'_> {
    /// The pod or Service that the path names.
    fn object(&self, wanted: &ProxyName<'_>) -> Result<Value, ApiError> {
        let found = self.storage.object(self.resource, self.namespace, wanted.name);
        found.ok_or_else(|| ApiError::not_found(self.resource.info(), wanted.name))
    }

    /// One of the ready pods behind a Service.
    pub(super) fn service(&self, wanted: &ProxyName<'_>) -> Result<String, ApiError> {
        let Self { storage, namespace, .. } = *self;
        let (name, service) = (wanted.name, self.object(wanted)?);
        let mut ports = service.list("/spec/ports").iter();
        let port = ports.find(|port| match wanted.port {
            "" => port.text("/name").is_empty(),
            port_name => {
                port.text("/name") == port_name || port.int("/port").to_string() == port_name
            }
        });
        let missing = |words: String| Err(ApiError::unavailable(words));
        let port = match (port, wanted.port) {
            (Some(port), _) => port.text("/name"),
            // Endpoints may have ports that the Service has not.
            (None, "") => "",
            (None, number) if number.parse::<u16>().is_ok() => {
                return missing(format!("no service port {number} found for service {name:?}"));
            }
            (None, port_name) => port_name,
        };
        let registry = storage.registry();
        let slices = registry.find("discovery.k8s.io", "v1", "endpointslices");
        let slices = slices.expect("slices are always served");
        let family =
            service.list("/spec/ipFamilies").first().and_then(Value::as_str).unwrap_or("IPv4");
        let found = storage.store.list(&slices.bucket, &slices.prefix(namespace), None)?;
        let label = "kubernetes.io/service-name";
        let own = found.entries.iter().map(|entry| object::value(entry)).filter(|slice| {
            slice["metadata"]["labels"][label] == name && slice.text("/addressType") == family
        });
        let own: Vec<_> = own.collect();
        let reach = Reach::now(storage, self.network)?;
        let pod = |name: &str| storage.object(registry.core("pods"), namespace, name);
        let candidates = own.iter().flat_map(|slice| reachable(&reach, pod, slice, port));
        pick(candidates.collect()).ok_or_else(|| {
            ApiError::unavailable(format!("no endpoints available for service {name:?}"))
        })
    }

    /// A pod by its own address.
    pub(super) fn pod(&self, wanted: &ProxyName<'_>) -> Result<String, ApiError> {
        let pod = self.object(wanted)?;
        let containers = pod.list("/spec/containers").iter();
        let mut ports = containers.flat_map(|container| container.list("/ports"));
        let port = match wanted.port {
            "" => ports.next().map_or(80, |port| port.int("/containerPort")),
            text => match text.parse::<u16>() {
                Ok(number) => i64::from(number),
                Err(_) => {
                    let named = ports.find(|port| port.text("/name") == text);
                    named.map_or(0, |port| port.int("/containerPort"))
                }
            },
        };
        let address = match pod.text("/status/podIP") {
            "" => Err("the pod has none yet".to_owned()),
            address => Reach::now(self.storage, self.network)?.check(&pod, address),
        };
        match (address, port) {
            (Err(why), _) => Err(ApiError::bad_request(format!("address not allowed: {why}"))),
            (_, 0) => Err(ApiError::bad_request(format!("there is no port {:?}", wanted.port))),
            (Ok(address), port) => Ok(join(address, port)),
        }
    }
}

/// The endpoints of a slice that are pods of this namespace: nobody can make the API server talk to
/// any other address by writing it into a slice.
fn reachable(
    reach: &Reach,
    pod: impl Fn(&str) -> Option<Value>,
    slice: &Value,
    port: &str,
) -> Vec<String> {
    let mut ports = slice.list("/ports").iter();
    let number = ports.find(|own| own.text("/name") == port).map_or(0, |port| port.int("/port"));
    let ready = slice
        .list("/endpoints")
        .iter()
        .filter(|endpoint| number != 0 && endpoint["conditions"]["ready"] != false);
    let addresses = ready.filter_map(|endpoint| {
        let address = endpoint["addresses"][0].as_str()?;
        let reference = &endpoint["targetRef"];
        let pod = pod(reference.text("/name"))?;
        let is_own = reference.text("/kind") == "Pod"
            && pod.list("/status/podIPs").iter().any(|own| own.text("/ip") == address);
        let address = reach.check(&pod, address).ok().filter(|_| is_own)?;
        Some(join(address, number))
    });
    addresses.collect()
}

fn pick(mut candidates: Vec<String>) -> Option<String> {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    let count = u64::try_from(candidates.len()).ok().filter(|count| *count > 0)?;
    let at = usize::try_from((high ^ low) % count).ok()?;
    Some(candidates.swap_remove(at))
}

fn join(address: IpAddr, port: i64) -> String {
    match address {
        IpAddr::V6(address) => format!("[{address}]:{port}"),
        IpAddr::V4(address) => format!("{address}:{port}"),
    }
}

#[test]
fn names_in_the_path() {
    let show = |text| ProxyName::parse(text).map(|w| [w.scheme, w.name, w.port].join("|"));
    let cases = [
        ("web", Some("|web|")),
        ("web:80", Some("|web|80")),
        ("web:http", Some("|web|http")),
        ("https:web:443", Some("https|web|443")),
        (":web:80", Some("|web|80")),
        ("ftp:web:21", None),
        ("a:b:c:d", None),
    ];
    for (text, want) in cases {
        assert_eq!(show(text).as_deref(), want, "{text}");
    }
}
