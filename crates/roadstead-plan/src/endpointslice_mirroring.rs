//! Endpoints that people write by hand, as slices: what the proxy and DNS read.
//!
//! Only for Services without a selector. One slice per address family and set of ports; each
//! subset gives at most a thousand addresses, ready ones first.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::endpoints::{is_lock, repack};
use crate::endpointslice::desired::{Port, PortSet};
use crate::endpointslice::{MANAGED_BY, SERVICE_NAME};
use crate::{owner, trigger_time};

/// What we are called in the label that says who writes a slice.
pub const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
/// Endpoints with this label are not mirrored.
pub const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The writes that make the mirror image right.
#[derive(Debug, Default, PartialEq)]
pub struct MirrorPlan {
    /// Slices to create.
    pub create: Vec<EndpointSlice>,
    /// Slices to replace.
    pub update: Vec<EndpointSlice>,
    /// Slices to delete.
    pub delete: Vec<EndpointSlice>,
    /// Addresses beyond the limit of their subset.
    pub skipped: usize,
    /// Addresses that are none.
    pub invalid: usize,
    /// Endpoints that there should be.
    pub endpoints: usize,
}

/// Whether an Endpoints object is to be mirrored for this Service.
pub(crate) fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    let skip = labels.and_then(|labels| labels.get(SKIP)).is_some_and(|value| value == "true");
    let has_selector = |service: &Service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| !selector.is_empty())
    };
    !skip && !is_lock(endpoints) && service.is_some_and(|service| !has_selector(service))
}

/// Plans the mirrored slices of one name; `most` is how many addresses a subset may give.
pub fn plan(
    endpoints: Option<&Endpoints>,
    service: Option<&Service>,
    slices: &[&EndpointSlice],
    most: usize,
) -> MirrorPlan {
    let mut plan = MirrorPlan::default();
    let alive = slices.iter().copied().filter(|s| s.metadata.deletion_timestamp.is_none());
    let mut existing: Vec<&EndpointSlice> = alive.collect();
    if let Some(endpoints) = endpoints.filter(|endpoints| is_mirrored(endpoints, service)) {
        for ((family, ports), mut wanted) in image(endpoints, most, &mut plan) {
            plan.endpoints += wanted.len();
            sort(&mut wanted);
            let same_place = |slice: &&EndpointSlice| {
                slice.address_type == family && PortSet::of(slice) == ports
            };
            let slice = new(endpoints, family, &ports, wanted);
            match existing.iter().position(same_place) {
                None => plan.create.push(slice),
                Some(index) => {
                    let old = existing.remove(index);
                    plan.update.extend((!is_same(old, &slice)).then(|| renamed(slice, old)));
                }
            }
        }
    }
    plan.delete = existing.into_iter().cloned().collect();
    recycle(&mut plan);
    plan
}

type Place = (&'static str, PortSet);

fn image(
    endpoints: &Endpoints,
    most: usize,
    plan: &mut MirrorPlan,
) -> BTreeMap<Place, Vec<Endpoint>> {
    let mut image: BTreeMap<Place, Vec<Endpoint>> = BTreeMap::new();
    for subset in repack(endpoints.subsets.clone().unwrap_or_default()) {
        let ports = subset.ports.iter().flatten().map(|port| Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            port: port.port,
            app_protocol: port.app_protocol.clone(),
        });
        let ports = PortSet::sorted(ports.collect());
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let waiting = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        let mut taken = 0;
        for (address, is_ready) in ready.chain(waiting) {
            let Ok(ip) = address.ip.parse::<IpAddr>() else {
                plan.invalid += 1;
                continue;
            };
            if taken == most {
                plan.skipped += 1;
                continue;
            }
            taken += 1;
            let family = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
            image.entry((family, ports.clone())).or_default().push(endpoint(address, is_ready));
        }
    }
    image
}

fn endpoint(address: &EndpointAddress, is_ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(is_ready), ..Default::default() }),
        hostname: address.hostname.clone().filter(|hostname| !hostname.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Default::default()
    }
}

fn new(endpoints: &Endpoints, family: &str, ports: &PortSet, held: Vec<Endpoint>) -> EndpointSlice {
    let metadata = &endpoints.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let mut labels = metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.into(), name.clone());
    labels.insert(MANAGED_BY.into(), CONTROLLER.into());
    let mut annotations = metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| key != trigger_time::ANNOTATION && key != LAST_APPLIED);
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            namespace: metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            owner_references: Some(vec![owner::controlled_by(endpoints)]),
            ..Default::default()
        },
        address_type: family.to_owned(),
        ports: Some(ports.to_ports()).filter(|ports| !ports.is_empty()),
        endpoints: Some(held),
    }
}

fn is_same(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    let mut held = old.endpoints.clone().unwrap_or_default();
    sort(&mut held);
    let annotations =
        |slice: &EndpointSlice| slice.metadata.annotations.clone().unwrap_or_default();
    let owner = |slice: &EndpointSlice| {
        owner::controller_of(&slice.metadata).map(|owner| owner.uid.clone())
    };
    Some(held) == new.endpoints
        && old.metadata.labels == new.metadata.labels
        && annotations(old) == annotations(new)
        && owner(old) == owner(new)
}

fn sort(endpoints: &mut [Endpoint]) {
    endpoints.sort_by(|a, b| a.addresses.cmp(&b.addresses));
}

/// The new content under the old name.
fn renamed(mut new: EndpointSlice, old: &EndpointSlice) -> EndpointSlice {
    new.metadata = ObjectMeta {
        labels: new.metadata.labels,
        annotations: new.metadata.annotations,
        owner_references: new.metadata.owner_references,
        ..old.metadata.clone()
    };
    new
}

/// A slice to create takes the name of one to delete.
fn recycle(plan: &mut MirrorPlan) {
    for slice in std::mem::take(&mut plan.create) {
        let same_family = |old: &EndpointSlice| old.address_type == slice.address_type;
        match plan.delete.iter().position(same_family) {
            Some(index) => {
                let old = plan.delete.remove(index);
                plan.update.push(renamed(slice, &old));
            }
            None => plan.create.push(slice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(selector: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "db", "namespace": "ns"},
            "spec": {"selector": selector}}))
        .unwrap()
    }

    fn endpoints(metadata: Value, subsets: Value) -> Endpoints {
        let mut object = json!({"metadata": metadata, "subsets": subsets});
        object["metadata"]["name"] = json!("db");
        object["metadata"]["namespace"] = json!("ns");
        object["metadata"]["uid"] = json!("endpoints-uid");
        serde_json::from_value(object).unwrap()
    }

    fn subset(ips: &[&str], ports: &[i32]) -> Value {
        let addresses: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        let ports: Vec<_> = ports.iter().map(|port| json!({"port": port})).collect();
        json!({"addresses": addresses, "ports": ports})
    }

    fn show(slices: &[EndpointSlice]) -> Vec<String> {
        let mut words: Vec<_> = slices
            .iter()
            .map(|slice| {
                let held: Vec<_> =
                    slice.endpoints.iter().flatten().map(|e| e.addresses[0].clone()).collect();
                let ports: Vec<_> = slice.ports.iter().flatten().flat_map(|p| p.port).collect();
                format!("{} {} {ports:?}", slice.address_type, held.join(" "))
            })
            .collect();
        words.sort();
        words
    }

    #[test]
    fn the_image_of_subsets() {
        let cases = [
            ("one", json!([subset(&["10.0.0.1"], &[80])]), vec!["IPv4 10.0.0.1 [80]"]),
            (
                "two with the same port are one",
                json!([subset(&["10.0.0.1", "10.0.0.2"], &[80]), subset(&["10.0.0.3"], &[80])]),
                vec!["IPv4 10.0.0.1 10.0.0.2 10.0.0.3 [80]"],
            ),
            (
                "families are apart",
                json!([subset(&["10.0.0.1", "fd00::1"], &[80])]),
                vec!["IPv4 10.0.0.1 [80]", "IPv6 fd00::1 [80]"],
            ),
            ("nothing", json!([]), vec![]),
        ];
        let service = service(Value::Null);
        for (name, subsets, want) in cases {
            let made =
                plan(Some(&endpoints(json!({}), subsets.clone())), Some(&service), &[], 1000);
            assert_eq!(show(&made.create), want, "{name}");
            let held: Vec<_> = made.create.iter().collect();
            let again = plan(Some(&endpoints(json!({}), subsets)), Some(&service), &held, 1000);
            assert_eq!(
                (again.create.len(), again.update.len(), again.delete.len()),
                (0, 0, 0),
                "{name}"
            );
        }
    }

    #[test]
    fn when_there_is_no_image() {
        let free = service(Value::Null);
        let selecting = service(json!({"app": "x"}));
        let skip = json!({"labels": {SKIP: "true"}});
        let lock = json!({"annotations": {"control-plane.alpha.kubernetes.io/leader": "{}"}});
        let one = || json!([subset(&["10.0.0.1"], &[80])]);
        let old = plan(Some(&endpoints(json!({}), one())), Some(&free), &[], 1000).create;
        let old: Vec<_> = old.iter().collect();
        let cases = [
            ("no Service", json!({}), None),
            ("a selector", json!({}), Some(&selecting)),
            ("asked to skip", skip, Some(&free)),
            ("a lock", lock, Some(&free)),
        ];
        for (name, metadata, service) in cases {
            let plan = plan(Some(&endpoints(metadata, one())), service, &old, 1000);
            let counts = (plan.create.len(), plan.update.len(), plan.delete.len());
            assert_eq!(counts, (0, 0, 1), "{name}");
        }
        assert_eq!(plan(None, Some(&free), &old, 1000).delete.len(), 1, "no Endpoints");
    }

    #[test]
    fn limits_metadata_and_names() {
        let service = service(Value::Null);
        let metadata = json!({"labels": {"team": "a"}, "annotations": {"note": "x",
            LAST_APPLIED: "{}", trigger_time::ANNOTATION: "1970-01-01T00:00:00Z"}});
        let subsets = json!([{"addresses": [{"ip": "10.0.0.2"}, {"ip": "nonsense"}],
            "notReadyAddresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.3"}], "ports": [{"port": 80}]}]);
        let made = plan(Some(&endpoints(metadata.clone(), subsets)), Some(&service), &[], 2);
        assert_eq!((made.skipped, made.invalid), (1, 1));
        assert_eq!(show(&made.create), ["IPv4 10.0.0.1 10.0.0.2 [80]"], "ready ones first");
        let slice = &made.create[0];
        let labels = slice.metadata.labels.as_ref().unwrap();
        assert_eq!((labels["team"].as_str(), labels[MANAGED_BY].as_str()), ("a", CONTROLLER));
        let annotations = slice.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["note"]);
        assert_eq!(slice.metadata.owner_references.as_ref().unwrap()[0].kind, "Endpoints");
        let mut old = slice.clone();
        old.metadata.name = Some("db-1".into());
        let moved = endpoints(metadata, json!([subset(&["10.0.0.9"], &[81])]));
        let plan = plan(Some(&moved), Some(&service), &[&old], 1000);
        assert_eq!(plan.update[0].metadata.name.as_deref(), Some("db-1"), "the name is kept");
        assert_eq!((plan.create.len(), plan.delete.len()), (0, 0));
    }
}
