//! The check that what is taken is what Services hold.
//!
//! Because both are written in one transaction this finds nothing; it is here to say so, and to
//! mend stores that other versions have written.

use std::collections::BTreeMap;

use roadstead_schema::json::Pointer;
use roadstead_store::entry::{Key, Revision};
use roadstead_store::transaction::Transaction;
use serde_json::Value;
use tracing::warn;

use super::node_ports::{self, NodePorts};
use super::{
    ADDRESSES, MANAGED_BY, address_key, address_object, held_addresses, held_ports, holder,
};
use crate::api::Api;
use crate::error::ApiError;
use crate::reading::object;

/// One difference between the Services and what is taken, in the words of upstream's events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Such as `ClusterIPNotAllocated`.
    pub reason: &'static str,
    /// The address or port.
    pub what: String,
    /// The Service, as `namespace/name`.
    pub service: String,
}

/// Compares all Services with all addresses and ports that are taken.
///
/// All three are read as they were at one moment.
pub fn differences(api: &Api) -> Result<Vec<Difference>, ApiError> {
    survey(api).map(|(_, found)| found)
}

/// The differences, and the revision at which they were.
fn survey(api: &Api) -> Result<(Revision, Vec<Difference>), ApiError> {
    let mut found = Vec::new();
    let (mut addresses, mut ports) = (BTreeMap::new(), BTreeMap::new());
    let services = api.storage.store.list("services", "", None)?;
    let revision = services.revision;
    let at = Some(revision);
    for entry in services.entries {
        let service = object::value(&entry);
        let name = entry.key.path.to_string();
        for address in held_addresses(&service) {
            if let Some(other) = addresses.insert(address.to_string(), name.clone()) {
                found.push(difference("ClusterIPAlreadyAllocated", &address.to_string(), &other));
            }
        }
        let rows = !api.storage.store.is_shared();
        let range = &api.network.services.node_ports;
        // In etcd, what is beyond the range has no place where it could be taken.
        for port in held_ports(&service).into_iter().filter(|port| rows || range.contains(port)) {
            if let Some(other) = ports.insert(port.to_string(), name.clone()) {
                found.push(difference("PortAlreadyAllocated", &port.to_string(), &other));
            }
        }
    }
    for entry in api.storage.store.list(ADDRESSES, "", at)?.entries {
        let object = object::value(&entry);
        let address = object.text("/metadata/name").to_owned();
        let parent = |field: &str| object["spec"]["parentRef"][field].as_str().unwrap_or("");
        let named = format!("{}/{}", parent("namespace"), parent("name"));
        match addresses.remove(&address) {
            Some(service) if service == named => {}
            Some(service) => found.push(difference("IPAddressWrongReference", &address, &service)),
            None if is_managed(&object) => {
                found.push(difference("IPAddressNotAllocated", &address, &named));
            }
            None => {}
        }
    }
    for (port, named) in node_ports::all(&api.storage.store, at)? {
        let port = port.to_string();
        let is_held = match (ports.remove(&port), &named) {
            (Some(service), Some(named)) => service == *named,
            (service, None) => service.is_some(),
            (None, Some(_)) => false,
        };
        if !is_held {
            found.push(difference("PortNotHeld", &port, &named.unwrap_or_default()));
        }
    }
    found.extend(addresses.iter().map(|(ip, of)| difference("ClusterIPNotAllocated", ip, of)));
    found.extend(ports.iter().map(|(port, of)| difference("PortNotAllocated", port, of)));
    Ok((revision, found))
}

impl Difference {
    /// Whether it may be of a Service that is just being written: kube-apiserver takes first, and gives
    /// back last.
    pub(crate) fn may_pass(&self) -> bool {
        ["IPAddressNotAllocated", "PortNotHeld"].contains(&self.reason)
    }
}

/// Takes what Services hold, and gives back what they do not, as far as that is still so. What two of
/// them hold at once is for a person to decide.
pub(crate) async fn mend(api: &Api, found: Vec<Difference>) {
    for difference in found {
        let still = match survey(api) {
            Ok((at, still)) => Some(at).filter(|_| still.contains(&difference)),
            Err(_) => None,
        };
        let Some(at) = still else { continue };
        let mended = match step(api, &difference, at) {
            Some(transaction) => api.storage.store.commit(transaction).await.is_ok(),
            None => false,
        };
        api.metrics.allocations.difference(&difference, mended);
        let Difference { reason, what, service } = difference;
        warn!(reason, what, service, mended, "an allocation is not what the Service holds");
    }
}

/// The write that makes one difference disappear, if everything is still what it was at a revision.
fn step(api: &Api, difference: &Difference, at: Revision) -> Option<Transaction> {
    let key = Key::new("services", difference.service.as_str());
    let entry = api.storage.store.get(&key);
    let guard = Transaction::new().expect(key, entry.as_ref().map(|entry| entry.revision));
    let service = entry.map(|entry| object::value(&entry)).unwrap_or_default();
    let (address, port) = (difference.what.parse(), difference.what.parse());
    let (addresses, ports) = (held_addresses(&service), held_ports(&service));
    let exchange = |before: &[u16], after: &[u16]| {
        let taken = NodePorts::now(&api.storage.store, &api.network.services.node_ports).ok()?;
        let set = |ports: &[u16]| ports.iter().copied().collect();
        let is_same = taken.revision() <= Some(at);
        let holder = holder(&service);
        is_same.then(|| taken.exchange(&set(before), &set(after), &holder, guard.clone()))
    };
    match (difference.reason, address, port) {
        ("ClusterIPNotAllocated", Ok(address), _) if addresses.contains(&address) => {
            let value = address_object(address, &service["metadata"]);
            let key = address_key(address);
            Some(guard.expect(key.clone(), None).put(key, value))
        }
        ("IPAddressNotAllocated", Ok(address), _) if !addresses.contains(&address) => {
            Some(guard.delete(address_key(address)))
        }
        ("PortNotAllocated", _, Ok(port)) if ports.contains(&port) => exchange(&[], &[port]),
        ("PortNotHeld", _, Ok(port)) if !ports.contains(&port) => exchange(&[port], &[]),
        _ => None,
    }
}

fn is_managed(object: &Value) -> bool {
    object["metadata"]["labels"][MANAGED_BY.0] == MANAGED_BY.1
}

fn difference(reason: &'static str, what: &str, service: &str) -> Difference {
    Difference { reason, what: what.to_owned(), service: service.to_owned() }
}
