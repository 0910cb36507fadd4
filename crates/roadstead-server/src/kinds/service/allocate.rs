//! Cluster addresses and node ports, taken and given back in the transaction that writes the
//! Service: no crash can leak one or give it out twice.
//!
//! What is taken is in the store: an IPAddress object per address, which is also what users see,
//! and node ports as `node_ports` has them. The store reads from memory, so looking one up costs the
//! same however many there are, and there is no second copy that could differ.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use bytes::Bytes;
use jiff::Timestamp;
use roadstead_api::ip::{self, Family};
use roadstead_api::kinds::service::{self, families, transition};
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use roadstead_store::entry::{Key, Revision};
use roadstead_store::kv::Store;
use roadstead_store::transaction::Transaction;
use serde_json::Value;
use tracing::warn;
use uuid::Uuid;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::service::network::ServiceNetwork;
use crate::registry::Resource;

mod addresses;
pub(crate) mod metrics;
pub(crate) mod node_ports;
mod ports;
pub mod repair;
pub(crate) mod take_over;
#[cfg(test)]
mod tests;

use metrics::Counters;
use node_ports::NodePorts;

/// Where the store keeps IPAddress objects.
pub(crate) const ADDRESSES: &str = "ipaddresses.networking.k8s.io";
/// The label of addresses that belong to Services.
pub(crate) const MANAGED_BY: (&str, &str) =
    ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");

/// A write that may need addresses and ports.
#[derive(Clone, Copy)]
pub(crate) struct Allocation<'a> {
    pub(crate) store: &'a Store,
    pub(crate) network: &'a ServiceNetwork,
    pub(crate) counters: &'a Counters,
    /// The kind that is written.
    pub(crate) resource: &'a Resource,
    /// What is replaced.
    pub(crate) old: Option<&'a Value>,
    /// Whether nothing is really taken.
    pub(crate) dry_run: bool,
}

/// A range that an address was taken from: it must not have changed when the write happens.
pub(crate) type Source = (Key, Revision);

impl Allocation<'_> {
    /// Completes a Service with what it leaves out, and the transaction with what it takes and
    /// gives back.
    pub(crate) fn complete(
        &self,
        new: &mut Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        match self.old {
            Some(old) => transition::carry_over(old, new),
            None => transition::begin(&mut new["spec"]),
        }
        let mut causes = Causes::default();
        let before = self.old.map(|old| &old["spec"]);
        families::settle(self.network.families(), before, &mut new["spec"], &mut causes);
        self.refuse(new, &causes)?;
        let sources = addresses::allocate(self, new)?;
        let before = self.old.map(held_ports).unwrap_or_default();
        let taken = match before.is_empty() && !service::is_on_nodes(&new["spec"]) {
            true => None,
            false => Some(NodePorts::now(self.store, &self.network.services.node_ports)?),
        };
        if let Some(taken) = &taken {
            ports::allocate(self, taken, new)?;
        }
        hide_unused(&mut new["spec"]);
        if self.dry_run {
            return Ok(transaction);
        }
        let transaction = self.exchange(new, sources, transaction);
        Ok(match taken {
            Some(taken) => taken.exchange(&before, &held_ports(new), &holder(new), transaction),
            None => transaction,
        })
    }

    fn refuse(&self, new: &Value, causes: &Causes) -> Result<(), ApiError> {
        match &causes.0[..] {
            [] => Ok(()),
            causes => {
                Err(ApiError::invalid(self.resource.info(), new.text("/metadata/name"), causes))
            }
        }
    }

    /// Takes the addresses that the new state holds and the old did not, and gives the rest back.
    fn exchange(&self, new: &Value, sources: Vec<Source>, transaction: Transaction) -> Transaction {
        let mut transaction = sources
            .into_iter()
            .fold(transaction, |t, (key, revision)| t.expect(key, Some(revision)));
        let before = self.old.map(held_addresses).unwrap_or_default();
        let after = held_addresses(new);
        for &address in after.difference(&before) {
            let value = address_object(address, &new["metadata"]);
            let key = address_key(address);
            transaction = transaction.expect(key.clone(), None).put(key, value);
        }
        before.difference(&after).fold(transaction, |t, &ip| t.delete(address_key(ip)))
    }
}

/// Gives back what a Service holds when it is removed.
pub(super) fn release(api: &Api, service: &Value, transaction: Transaction) -> Transaction {
    let transaction =
        held_addresses(service).into_iter().fold(transaction, |t, ip| t.delete(address_key(ip)));
    let held = held_ports(service);
    if held.is_empty() {
        return transaction;
    }
    match NodePorts::now(&api.storage.store, &api.network.services.node_ports) {
        Ok(taken) => taken.exchange(&held, &BTreeSet::new(), &Bytes::new(), transaction),
        // The Service can go all the same.
        Err(error) => {
            warn!(error = %error.message, "node ports are not given back");
            transaction
        }
    }
}

/// A field that means nothing to a Service that is only a name. It is accepted, but not kept.
fn hide_unused(spec: &mut Value) {
    let known = ["Cluster", "Local"].contains(&spec.text("/internalTrafficPolicy"));
    if spec.text("/type") == "ExternalName" && known {
        spec.as_object_mut().map(|fields| fields.remove("internalTrafficPolicy"));
    }
}

/// The addresses that a Service has taken.
pub(crate) fn held_addresses(service: &Value) -> BTreeSet<IpAddr> {
    if service.text("/spec/type") == "ExternalName" {
        return BTreeSet::new();
    }
    let addresses = service.list("/spec/clusterIPs").iter();
    addresses.filter_map(|address| ip::parse(address.as_str()?)).collect()
}

/// The ports of the nodes that a Service has taken.
fn held_ports(service: &Value) -> BTreeSet<u16> {
    let spec = &service["spec"];
    if !service::is_on_nodes(spec) {
        return BTreeSet::new();
    }
    let ports = spec.list("/ports").iter().map(|port| port.int("/nodePort"));
    let check = service::needs_health_check(spec).then(|| spec.int("/healthCheckNodePort"));
    ports.chain(check).filter_map(|port| u16::try_from(port).ok()).filter(|&p| p != 0).collect()
}

/// Whether some Service has an address as its ClusterIP.
pub(crate) fn is_taken(store: &Store, address: IpAddr) -> bool {
    store.get(&address_key(address)).is_some()
}

pub(crate) fn address_key(address: IpAddr) -> Key {
    Key::new(ADDRESSES, format!("/{address}"))
}

/// What is kept beside a node port: whose it is.
fn holder(service: &Value) -> Bytes {
    let metadata = &service["metadata"];
    format!("{}/{}", metadata.text("/namespace"), metadata.text("/name")).into()
}

/// The bytes of an IPAddress, as [`object::encode`] would make them of a value: there is one for
/// every Service, and no need for a tree in between.
pub(crate) fn address_object(address: IpAddr, service: &Value) -> Bytes {
    let family = Family::of(address).name();
    let (label, manager) = MANAGED_BY;
    let (created, uid) = (crate::objects::write::seconds(Timestamp::now()), Uuid::new_v4());
    let (name, namespace) = (&service["name"], &service["namespace"]);
    format!(
        "{{\"apiVersion\":\"networking.k8s.io/v1\",\"kind\":\"IPAddress\",\"metadata\":{{\
         \"creationTimestamp\":\"{created}\",\
         \"labels\":{{\"ipaddress.kubernetes.io/ip-family\":\"{family}\",\"{label}\":\"{manager}\"}},\
         \"name\":\"{address}\",\"uid\":\"{uid}\"}},\
         \"spec\":{{\"parentRef\":{{\"group\":\"\",\"name\":{name},\"namespace\":{namespace},\
         \"resource\":\"services\"}}}}}}"
    )
    .into()
}

fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
