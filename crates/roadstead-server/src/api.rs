//! The state behind all requests.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use roadstead_api::ip::Family;
use roadstead_api::kinds::service::families::Cluster;
use roadstead_api::schema::Schema;
use roadstead_plan::alloc;
use roadstead_store::store::Store;

use crate::allocate::ranges::Ranges;
use crate::audit::Audit;
use crate::identity::IdentityError;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::plugins::{Plugin, Plugins};
use crate::rbac::Rbac;
use crate::receive::Bodies;
use crate::registry::{Catalog, Registry};
use crate::settle::Settled;
use crate::tokens::Tokens;
use crate::turns::Turns;
use crate::unreadable::Unreadable;

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

/// What an operator can choose about Services.
#[derive(Clone, Debug)]
pub struct Services {
    /// Where addresses of the other family come from, in a cluster that has both.
    pub second_range: Option<IpNet>,
    /// Where node ports come from.
    pub node_ports: RangeInclusive<u16>,
    /// Whether everybody who uses Endpoints hears that EndpointSlices have replaced them.
    pub warn_about_endpoints: bool,
    /// Whether new external addresses are refused, whatever they are.
    pub deny_external_ips: bool,
    /// Where the addresses of pods come from, besides what Nodes say.
    pub pod_ranges: Vec<IpNet>,
}

impl Default for Services {
    fn default() -> Self {
        Self {
            second_range: None,
            node_ports: alloc::NODE_PORTS,
            warn_about_endpoints: true,
            deny_external_ips: false,
            pod_ranges: Vec::new(),
        }
    }
}

/// What is around the API server, as far as whoever starts it knows.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// The controllers and other components that run, all of them; `None` if there may be others.
    pub components: Option<Vec<&'static str>>,
}

impl Neighbours {
    /// Whether it is certain that this component does not run.
    pub(crate) fn lacks(&self, component: &str) -> bool {
        self.components.as_ref().is_some_and(|all| !all.contains(&component))
    }
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
    pub(crate) bodies: Bodies,
    pub(crate) turns: Turns,
    pub(crate) metrics: Metrics,
    pub(crate) audit: Option<Audit>,
    pub(crate) services: Services,
    pub(crate) ranges: Ranges,
    pub(crate) unreadable: Unreadable,
    neighbours: OnceLock<Neighbours>,
    /// Who must have taken in a write before it is acknowledged.
    pub(crate) settled: OnceLock<Settled>,
    plugins: OnceLock<Plugins>,
}

impl Api {
    /// An API server over a store.
    pub fn new(store: Arc<Store>, config: Config, tokens: Tokens) -> Arc<Self> {
        Self::with_services(store, config, Services::default(), tokens)
    }

    /// An API server over a store, with choices about Services.
    pub fn with_services(
        store: Arc<Store>,
        mut config: Config,
        services: Services,
        tokens: Tokens,
    ) -> Arc<Self> {
        Arc::new(Self {
            rbac: Rbac::new(store.clone()),
            ranges: Ranges::new(store.clone()),
            unreadable: Unreadable::find(&store),
            services,
            store: store.clone(),
            catalog: Catalog::new(store.clone()),
            schema: Schema::kubernetes(),
            limits: Limits::default(),
            bodies: Bodies::default(),
            turns: Turns::default(),
            metrics: Metrics::default(),
            audit: config.audit.take(),
            config,
            tokens,
            neighbours: OnceLock::new(),
            settled: OnceLock::new(),
            plugins: OnceLock::new(),
        })
    }

    /// Leaves out what the operator does not want to be done to new objects. Only the first choice
    /// counts.
    pub fn set_plugins(&self, plugins: Plugins) {
        let _ = self.plugins.set(plugins);
    }

    /// Whether an admission plugin does its work.
    pub(crate) fn has(&self, plugin: Plugin) -> bool {
        self.plugins.get().is_none_or(|plugins| plugins.has(plugin))
    }

    /// From now on writes wait until this component has taken them in. Only the first one counts.
    pub fn settle(&self, settled: Settled) {
        let _ = self.settled.set(settled);
    }
}

impl Api {
    /// Takes in what has been changed about the keys of tokens; whether anything was.
    pub fn reload_keys(&self) -> Result<bool, IdentityError> {
        self.tokens.reload()
    }

    /// Tells the server what is around it. Only the first time counts.
    pub fn set_neighbours(&self, neighbours: Neighbours) {
        let _ = self.neighbours.set(neighbours);
    }

    pub(crate) fn neighbours(&self) -> &Neighbours {
        self.neighbours.get_or_init(Neighbours::default)
    }

    /// The families in which Services can have addresses.
    pub(crate) fn families(&self) -> Cluster {
        let primary = Family::of(self.config.service_range.addr());
        Cluster { primary, dual: self.services.second_range.is_some() }
    }

    /// The kinds served now.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.catalog.now()
    }
}

/// Who is asking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// `system:anonymous` if nobody knows.
    pub name: String,
    /// Groups decide what the user may do.
    pub groups: Vec<String>,
    /// Tells apart users who had the same name at different times.
    pub uid: String,
    /// What else is known about the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Somebody of whom no more is known than name and groups.
    pub fn new(name: impl Into<String>, groups: Vec<String>) -> Self {
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// A component in our own process.
    pub fn component() -> Self {
        Self::new("system:roadstead", vec!["system:masters".into()])
    }

    /// Somebody without a certificate.
    pub fn anonymous() -> Self {
        Self::new("system:anonymous", vec!["system:unauthenticated".into()])
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
