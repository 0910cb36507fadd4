//! The state behind all requests.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use roadstead_api::schema::Schema;
use roadstead_store::memory::Store;

use crate::openapi::Documents;
use crate::registry::Registry;

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the addresses of Services come from.
    pub service_range: IpNet,
    /// The address that the `kubernetes` Service leads to, with its port; `None` leaves the
    /// Service without endpoints.
    pub advertise: Option<(IpAddr, u16)>,
}

/// Everything that the handlers of requests share.
pub struct Api {
    pub(crate) store: Arc<Store>,
    pub(crate) registry: Registry,
    pub(crate) schema: &'static Schema,
    pub(crate) documents: Documents,
    pub(crate) config: Config,
}

impl Api {
    /// An API server over a store.
    pub fn new(store: Arc<Store>, config: Config) -> Arc<Self> {
        let schema = Schema::kubernetes();
        let registry = Registry::built_in();
        Arc::new(Self { store, registry, schema, documents: Documents::default(), config })
    }
}

/// Who is asking.
#[derive(Clone, Debug, Default)]
pub struct User {
    /// `system:anonymous` if nobody knows.
    pub name: String,
    /// Groups decide what the user may do.
    pub groups: Vec<String>,
}

impl User {
    /// A component in our own process.
    pub fn component() -> Self {
        Self { name: "system:roadstead".into(), groups: vec!["system:masters".into()] }
    }

    /// Somebody without a certificate.
    pub fn anonymous() -> Self {
        Self { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()] }
    }

    /// Whether everything is allowed.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }
}
