//! The state behind all requests.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use roadstead_api::schema::Schema;
use roadstead_store::store::Store;

use crate::audit::Audit;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::rbac::Rbac;
use crate::registry::{Catalog, Registry};
use crate::tokens::Tokens;

/// What an operator can choose.
pub struct Config {
    /// Where the addresses of Services come from.
    pub service_range: IpNet,
    /// The address that the `kubernetes` Service leads to, with its port; `None` leaves the
    /// Service without endpoints.
    pub advertise: Option<(IpAddr, u16)>,
    /// Where to write who did what.
    pub audit: Option<Audit>,
}

/// Everything that the handlers of requests share.
pub struct Api {
    pub(crate) store: Arc<Store>,
    catalog: Catalog,
    pub(crate) schema: &'static Schema,
    pub(crate) config: Config,
    pub(crate) rbac: Rbac,
    pub(crate) tokens: Tokens,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) audit: Option<Audit>,
}

impl Api {
    /// An API server over a store.
    pub fn new(store: Arc<Store>, mut config: Config, tokens: Tokens) -> Arc<Self> {
        Arc::new(Self {
            rbac: Rbac::new(store.clone()),
            store: store.clone(),
            catalog: Catalog::new(store.clone()),
            schema: Schema::kubernetes(),
            limits: Limits::default(),
            metrics: Metrics::default(),
            audit: config.audit.take(),
            config,
            tokens,
        })
    }
}

impl Api {
    /// The kinds served now.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.catalog.now()
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

    /// Whether nobody knows who it is.
    pub fn is_anonymous(&self) -> bool {
        self.name.is_empty() || self.name == "system:anonymous"
    }

    /// Whether everything is allowed.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }
}
