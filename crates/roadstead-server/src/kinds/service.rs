//! Services: addresses and ports, taken and given back in the transaction that writes them, which
//! external addresses they may have, and the way to their pods.

use std::sync::Arc;

use roadstead_store::transaction::Transaction;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::{
    Access, Afterwards, GroupVersionKind, Strategy, Subresource, proxy, service_cidr,
};
use crate::objects::delete::Removal;
use crate::objects::write::Context;

pub mod allocate;
mod external_addresses;
pub(crate) mod network;

use allocate::Allocation;

pub(super) struct Services;

impl Strategy for Services {
    fn subresources(&self) -> &'static [Subresource] {
        const {
            &[Subresource {
                name: "proxy",
                kind: Some(GroupVersionKind::new("", "v1", "ServiceProxyOptions")),
                verbs: proxy::VERBS,
                access: Access::Connect(proxy::service),
            }]
        }
    }

    fn complete(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        let Context { api, resource, dry_run, .. } = *context;
        external_addresses::check(api, resource, old, new)?;
        let (store, network) = (&api.storage.store, &api.network);
        let counters = &api.metrics.allocations;
        Allocation { store, network, counters, resource, old, dry_run }.complete(new, transaction)
    }

    fn committed<'a>(&self, api: &'a Api) -> Option<Afterwards<'a>> {
        service_cidr::tidy_later(api)
    }

    fn remove(&self, removal: &Removal<'_>, transaction: Transaction) -> Transaction {
        allocate::release(removal.api, removal.object, transaction).delete(removal.key())
    }

    /// All who take node ports in etcd write the same key.
    fn turn<'a>(&self, api: &'a Api, transaction: &Transaction) -> Option<&'a Arc<Mutex<()>>> {
        allocate::node_ports::is_common(transaction).then_some(&api.network.port_turn)
    }
}
