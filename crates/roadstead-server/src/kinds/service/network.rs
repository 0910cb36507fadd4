//! Where Services have their addresses and ports.

use std::sync::Arc;

use ipnet::IpNet;
use roadstead_api::ip::Family;
use roadstead_api::kinds::service::families::Cluster;
use roadstead_store::kv::Store;
use tokio::sync::Mutex;

use crate::config::Services;
use crate::kinds::service_cidr::Ranges;

/// The ranges of a cluster, as the operator has chosen them and as they are now.
pub(crate) struct ServiceNetwork {
    /// The operator's first range.
    pub(crate) range: IpNet,
    pub(crate) services: Services,
    /// All ranges, as they are now.
    pub(crate) ranges: Ranges,
    /// Who may take node ports next, where one key has all of them.
    pub(crate) port_turn: Arc<Mutex<()>>,
}

impl ServiceNetwork {
    pub(crate) fn new(store: Arc<Store>, range: IpNet, services: Services) -> Self {
        Self { range, services, ranges: Ranges::new(store), port_turn: Arc::default() }
    }

    /// The families in which Services can have addresses.
    pub(crate) fn families(&self) -> Cluster {
        let primary = Family::of(self.range.addr());
        Cluster { primary, dual: self.services.second_range.is_some() }
    }

    /// The ranges that the operator has chosen.
    pub(crate) fn chosen(&self) -> impl Iterator<Item = IpNet> {
        [Some(self.range), self.services.second_range].into_iter().flatten()
    }
}
