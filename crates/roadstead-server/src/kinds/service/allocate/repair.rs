//! The check that what is taken is what Services hold.
//!
//! Because both are written in one transaction this finds nothing; it is here to say so, and to
//! mend stores that other versions have written.

use std::collections::BTreeMap;

use roadstead_schema::json::Pointer;
use roadstead_store::entry::Key;
use roadstead_store::transaction::Transaction;
use serde_json::Value;
use tracing::warn;

use super::{
    ADDRESSES, MANAGED_BY, NODE_PORTS, address_key, address_object, held_addresses, held_ports,
    holder, port_key,
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
    let mut found = Vec::new();
    let (mut addresses, mut ports) = (BTreeMap::new(), BTreeMap::new());
    let services = api.storage.store.list("services", "", None)?;
    let at = Some(services.revision);
    for entry in services.entries {
        let service = object::value(&entry);
        let name = entry.key.path.to_string();
        for address in held_addresses(&service) {
            if let Some(other) = addresses.insert(address.to_string(), name.clone()) {
                found.push(difference("ClusterIPAlreadyAllocated", &address.to_string(), &other));
            }
        }
        for port in held_ports(&service) {
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
    for entry in api.storage.store.list(NODE_PORTS, "", at)?.entries {
        let (port, named) = (entry.key.path.to_string(), String::from_utf8_lossy(&entry.value));
        if ports.remove(&port).as_deref() != Some(&*named) {
            found.push(difference("PortNotHeld", &port, &named));
        }
    }
    found.extend(addresses.iter().map(|(ip, of)| difference("ClusterIPNotAllocated", ip, of)));
    found.extend(ports.iter().map(|(port, of)| difference("PortNotAllocated", port, of)));
    Ok(found)
}

/// Takes what Services hold, and gives back what they do not. What two of them hold at once is for
/// a person to decide.
pub(crate) async fn mend(api: &Api, found: Vec<Difference>) {
    for difference in found {
        let mended = match step(api, &difference) {
            Some(transaction) => api.storage.store.commit(transaction).await.is_ok(),
            None => false,
        };
        api.metrics.allocations.difference(&difference, mended);
        let Difference { reason, what, service } = difference;
        warn!(reason, what, service, mended, "an allocation is not what the Service holds");
    }
}

/// The write that makes one difference disappear, if the Service is still what it was.
fn step(api: &Api, difference: &Difference) -> Option<Transaction> {
    let key = Key::new("services", difference.service.as_str());
    let entry = api.storage.store.get(&key);
    let guard = Transaction::new().expect(key, entry.as_ref().map(|entry| entry.revision));
    let service = entry.map(|entry| object::value(&entry)).unwrap_or_default();
    let (address, port) = (difference.what.parse(), difference.what.parse());
    let (addresses, ports) = (held_addresses(&service), held_ports(&service));
    Some(match (difference.reason, address, port) {
        ("ClusterIPNotAllocated", Ok(address), _) if addresses.contains(&address) => {
            let value = address_object(address, &service["metadata"]);
            let key = address_key(address);
            guard.expect(key.clone(), None).put(key, value)
        }
        ("IPAddressNotAllocated", Ok(address), _) if !addresses.contains(&address) => {
            guard.delete(address_key(address))
        }
        ("PortNotAllocated", _, Ok(port)) if ports.contains(&port) => {
            let key = port_key(port);
            guard.expect(key.clone(), None).put(key, holder(&service))
        }
        ("PortNotHeld", _, Ok(port)) if !ports.contains(&port) => guard.delete(port_key(port)),
        _ => return None,
    })
}

fn is_managed(object: &Value) -> bool {
    object["metadata"]["labels"][MANAGED_BY.0] == MANAGED_BY.1
}

fn difference(reason: &'static str, what: &str, service: &str) -> Difference {
    Difference { reason, what: what.to_owned(), service: service.to_owned() }
}
