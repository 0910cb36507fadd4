//! IPAddresses: the rows of what Services have taken.

use std::sync::Arc;

use roadstead_api::ip;
use roadstead_schema::json::Pointer;
use roadstead_store::entry::Entry;
use roadstead_store::transaction::Transaction;
use serde_json::Value;

use crate::api::Api;
use crate::kinds::service::allocate::{address_key, address_object, held_addresses};
use crate::kinds::{Afterwards, Strategy, service_cidr};
use crate::objects::delete::Removal;
use crate::reading::object;

pub(super) struct IpAddresses;

impl Strategy for IpAddresses {
    fn committed<'a>(&self, api: &'a Api) -> Option<Afterwards<'a>> {
        service_cidr::tidy_later(api)
    }

    fn remove(&self, removal: &Removal<'_>, transaction: Transaction) -> Transaction {
        restore(removal, transaction.delete(removal.key()))
    }
}

/// The address of a Service cannot be taken from it by deleting the IPAddress: a new one takes its
/// place in the same transaction.
fn restore(removal: &Removal<'_>, transaction: Transaction) -> Transaction {
    let Removal { api, object, .. } = removal;
    let Some(address) = ip::parse(object.text("/metadata/name")) else { return transaction };
    let holds = |service: &Value| held_addresses(service).contains(&address);
    let candidates = parents(api, &object["spec"]["parentRef"]).into_iter();
    let mut services = candidates.map(|entry| (object::value(&entry), entry));
    let Some((service, entry)) = services.find(|(service, _)| holds(service)) else {
        return transaction;
    };
    let value = address_object(address, &service["metadata"]);
    transaction.expect(entry.key.clone(), Some(entry.revision)).put(address_key(address), value)
}

/// The Service that an IPAddress says that it is for. If it cannot be read, it may be for any.
fn parents(api: &Api, parent: &Value) -> Vec<Arc<Entry>> {
    let (store, registry) = (&api.storage.store, api.registry());
    let services = registry.core("services");
    let name = |field: &str| parent[field].as_str().unwrap_or("");
    match (name("group"), name("resource")) {
        _ if parent.is_null() => {
            store.list(&services.bucket, "", None).map(|all| all.entries).unwrap_or_default()
        }
        ("", "services") => {
            store.get(&services.key(name("namespace"), name("name"))).into_iter().collect()
        }
        _ => Vec::new(),
    }
}
