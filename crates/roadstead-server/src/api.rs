//! The state behind all requests, in parts: a function takes the part that it needs.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use roadstead_store::kv::Store;
use serde_json::{Map, Value};

use crate::config::{Config, Neighbours, Services};
use crate::documents::metrics::Metrics;
use crate::identity::Identity;
use crate::identity::authority::IdentityError;
use crate::identity::tokens::Tokens;
use crate::kinds::resource_quota;
use crate::kinds::service::network::ServiceNetwork;
use crate::node_agents::{AgentStream, LocalAgent, RemoteAgents};
use crate::objects::admission_plugins::{Plugin, Plugins};
use crate::objects::await_dns::DnsProgress;
use crate::registry::Registry;
use crate::storage::Storage;
use crate::transport::Traffic;

/// An API server.
pub struct Api {
    /// The objects, and the kinds that they are of.
    pub(crate) storage: Storage,
    /// Who may do what, and who did.
    pub(crate) identity: Identity,
    /// Who has to wait.
    pub(crate) traffic: Traffic,
    /// Where Services have their addresses and ports.
    pub(crate) network: ServiceNetwork,
    pub(crate) metrics: Metrics,
    /// Who may write next where there are quotas.
    pub(crate) quota_turns: resource_quota::Turns,
    /// The address that the `kubernetes` Service leads to, with its port.
    pub(crate) advertise: Option<(IpAddr, u16)>,
    setup: Setup,
}

/// What whoever starts the server may tell it afterwards, once.
#[derive(Default)]
struct Setup {
    neighbours: OnceLock<Neighbours>,
    plugins: OnceLock<Plugins>,
    dns: OnceLock<DnsProgress>,
    agent: OnceLock<LocalAgent>,
    agents: OnceLock<RemoteAgents>,
    parts: OnceLock<Parts>,
}

/// What the other parts of the process know and do, by their names.
type Parts = Box<dyn Fn() -> Value + Send + Sync>;

impl Api {
    /// An API server over a store.
    pub fn new(store: Arc<Store>, config: Config, tokens: Tokens) -> Arc<Self> {
        Self::with_services(store, config, Services::default(), tokens)
    }

    /// An API server over a store, with choices about Services.
    pub fn with_services(
        store: Arc<Store>,
        config: Config,
        services: Services,
        tokens: Tokens,
    ) -> Arc<Self> {
        let Config { service_range, advertise, audit } = config;
        Arc::new(Self {
            identity: Identity::new(store.clone(), tokens, audit),
            network: ServiceNetwork::new(store.clone(), service_range, services),
            traffic: Traffic::new(store.clone()),
            storage: Storage::new(store),
            metrics: Metrics::default(),
            quota_turns: resource_quota::Turns::default(),
            advertise,
            setup: Setup::default(),
        })
    }

    /// From now on `/debug/state` shows what other parts of the process say, too: an object, by their names.
    /// Only the first time counts.
    pub fn show_parts(&self, parts: impl Fn() -> Value + Send + Sync + 'static) {
        let _ = self.setup.parts.set(Box::new(parts));
    }

    /// What other parts of the process say.
    pub(crate) fn parts(&self) -> Value {
        self.setup.parts.get().map_or_else(|| Value::Object(Map::new()), |parts| parts())
    }

    /// Leaves out what the operator does not want to be done to new objects. Only the first choice
    /// counts.
    pub fn set_plugins(&self, plugins: Plugins) {
        let _ = self.setup.plugins.set(plugins);
    }

    /// Whether an admission plugin does its work.
    pub(crate) fn has(&self, plugin: Plugin) -> bool {
        self.setup.plugins.get().is_none_or(|plugins| plugins.has(plugin))
    }

    /// From now on writes wait until DNS has taken them in. Only the first time counts.
    pub fn await_dns(&self, progress: DnsProgress) {
        let _ = self.setup.dns.set(progress);
    }

    /// What must have taken in a write before it is acknowledged.
    pub(crate) fn dns(&self) -> Option<&DnsProgress> {
        self.setup.dns.get()
    }

    /// From now on whoever wants to look into a pod of a node in this process is passed on to its agent.
    /// Only the first time counts.
    pub fn set_local_agent(&self, agent: LocalAgent) {
        let _ = self.setup.agent.set(agent);
        self.storage.serve_measured();
    }

    /// From now on metrics.k8s.io is served, from what the agents of nodes measure.
    pub fn serve_metrics(&self) {
        self.storage.serve_measured();
    }

    /// From now on the agents of other nodes are reached by their ports. Only the first time counts.
    pub fn set_remote_agents(&self, agents: RemoteAgents) {
        let _ = self.setup.agents.set(agents);
    }

    /// A new connection to the agent of a node.
    pub(crate) async fn agent(&self, node: &str) -> Result<Box<dyn AgentStream>, String> {
        if let Some(agent) = self.setup.agent.get().filter(|agent| agent.serves(node)) {
            let stream = agent.connect().await.map_err(|error| error.to_string())?;
            return Ok(Box::new(stream));
        }
        let registry = self.registry();
        let object = self.storage.object(registry.core("nodes"), "", node);
        let object = object.ok_or("there is no such node")?;
        let agents = self.setup.agents.get().ok_or("it is not in this process")?;
        agents.connect(&object).await.map_err(|error| error.to_string())
    }

    /// Takes in what has been changed about the keys of tokens; whether anything was.
    pub fn reload_keys(&self) -> Result<bool, IdentityError> {
        self.identity.tokens.reload()
    }

    /// Tells the server what is around it. Only the first time counts.
    pub fn set_neighbours(&self, neighbours: Neighbours) {
        let _ = self.setup.neighbours.set(neighbours);
    }

    pub(crate) fn neighbours(&self) -> &Neighbours {
        self.setup.neighbours.get_or_init(Neighbours::default)
    }

    /// The kinds served now.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.storage.registry()
    }
}
