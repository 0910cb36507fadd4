//! The agent: follows the cluster and keeps the kernel equal to it.
//!
//! Nothing is written before all Services and EndpointSlices are known, so a restart interrupts
//! nobody: until then the rules of the predecessor serve. From then on every burst of changes is
//! one commit, with no pause in between.

pub mod complaints;
mod leave;
mod node;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::{Api, Client, Resource, ResourceExt};
use roadstead_forwarding::announce::Announcements;
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::surroundings::{NodePorts, Surroundings};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::{task, time};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::complaints::{Complaints, Note};
use crate::accounting;
use crate::addresses::{own_addresses, with_localhost};
use crate::conntrack::{self, Order};
use crate::family::{FamilyPlane, seconds_now};
use crate::forward;
use crate::health::{Health, HealthChecks};
use crate::ipvs::{IpvsOptions, IpvsPlane};
use crate::localhost::Relays;
use crate::metrics::Metrics;
use crate::news::{Triggers, Unserved};
use crate::nodes::NodeAddresses;
use crate::plane::{CommitError, Mode, Plane};
use crate::retry;
use crate::sysctl;
use crate::watched::watched;

/// So many changes at most go into one commit, so that none waits for an endless burst.
const BURST: usize = 10_000;

/// What the proxy needs to know about its surroundings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of this node, as endpoints carry it.
    pub node_name: String,
    /// The zone of this node, if it has one.
    pub zone: Option<String>,
    /// The node and the networks around it. Whoever calls a ClusterIP from outside the networks
    /// of the pods is masqueraded, because the answer might not find its way back through us.
    pub surroundings: Surroundings,
    /// How the kernel is told. What another mode left behind is removed.
    pub mode: Mode,
    /// What the operator wants of mode `ipvs`.
    pub ipvs: IpvsOptions,
    /// Whether mode `iptables` takes the place of `ipvs` on a kernel without IPVS; otherwise that
    /// is an error.
    pub ipvs_fallback: bool,
    /// The shortest time between two writes (`minSyncPeriod`), if that is longer than needed.
    pub shortest_pause: Duration,
    /// The address families to serve. One that the kernel does not have is left out.
    pub families: Vec<IpFamily>,
    /// Shows what is in the kernel; subscribe to it before `run`.
    pub programmed: watch::Sender<Programmed>,
    /// Where node ports are served, if `surroundings` does not say: networks and keywords.
    pub node_port_addresses: Vec<String>,
    /// Whether mode `iptables` serves node ports on 127.0.0.1, too (`localhostNodePorts`).
    pub localhost_node_ports: bool,
    /// Whether to follow our Node object: its zone, its addresses, whether it is about to leave.
    pub follow_node: bool,
    /// Whether pods are recognised by the networks that the Node object names.
    pub node_networks: bool,
    /// Whether to follow ServiceCIDRs: the networks that ClusterIPs are taken from.
    pub follow_service_networks: bool,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whether we keep up.
    pub health: Arc<Health>,
    /// The health checks that Services ask for.
    pub health_checks: watch::Sender<HealthChecks>,
    /// The load balancer addresses that somebody must answer for.
    pub announcements: watch::Sender<Arc<Announcements>>,
    /// The node ports that others than rules serve on loopback addresses.
    pub relays: watch::Sender<Arc<Relays>>,
    /// Takes what the owners of Services should know.
    pub notes: Option<tokio::sync::mpsc::Sender<Note>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            zone: None,
            surroundings: Surroundings::default(),
            mode: Mode::default(),
            ipvs: IpvsOptions::default(),
            ipvs_fallback: true,
            shortest_pause: Duration::ZERO,
            families: vec![IpFamily::V4, IpFamily::V6],
            programmed: watch::Sender::default(),
            node_port_addresses: Vec::new(),
            localhost_node_ports: true,
            follow_node: false,
            node_networks: false,
            follow_service_networks: false,
            metrics: Arc::default(),
            health: Arc::default(),
            health_checks: watch::Sender::default(),
            announcements: watch::Sender::default(),
            relays: watch::Sender::default(),
            notes: None,
        }
    }
}

/// What is in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Programmed {
    /// How many service ports are carried, in all families.
    pub service_ports: usize,
    /// How many targets they have.
    pub targets: usize,
    /// The newest resource version among the objects taken in; 0 before the first commit.
    pub revision: u64,
    /// The same, among the Services.
    pub of_services: u64,
    /// The same, among the EndpointSlices.
    pub of_slices: u64,
    /// How many commits there have been.
    pub commits: u64,
}

/// Why the proxy cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// There is no way to the kernel.
    #[error("cannot use mode {mode}")]
    Open {
        /// The mode that was asked for.
        mode: Mode,
        /// Why.
        source: CommitError,
    },
    /// The rules could not be deleted.
    #[error("cannot delete the {family:?} rules")]
    Cleanup {
        /// Of which family.
        family: IpFamily,
        /// Why.
        source: CommitError,
    },
}

/// Keeps the kernel equal to the cluster until `stop`. The rules stay when it ends.
pub async fn run(
    client: Client,
    config: Config,
    stop: CancellationToken,
) -> Result<(), ProxyError> {
    let name = format!("metadata.name={}", config.node_name);
    let mut node = match config.follow_node {
        true => informer::<Node>(Api::all(client.clone()), Selection::all().fields(&name)),
        false => futures::stream::pending().boxed(),
    };
    let mut networks = match config.follow_service_networks {
        true => informer::<ServiceCIDR>(Api::all(client.clone()), Selection::all()),
        false => futures::stream::pending().boxed(),
    };
    let mut agent = Agent::new(config)?;
    let mut nodes = match agent.follows_nodes {
        true => watched::<Node>(Api::all(client.clone()), Selection::all()),
        false => futures::stream::pending().boxed(),
    };
    // Services of other proxies and headless ones never reach us.
    let services = Selection::all().labels("!service.kubernetes.io/service-proxy-name");
    let slices = Selection::all().labels("!service.kubernetes.io/headless");
    let mut services = watched::<Service>(Api::all(client.clone()), services);
    let mut slices = watched::<EndpointSlice>(Api::all(client), slices);
    let mut checks = time::interval(agent.check_period());
    checks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Some(change) = services.next() => agent.observe_service(&change),
            Some(change) = slices.next() => agent.observe_slice(&change),
            Some(change) = node.next() => agent.observe_node(&change),
            Some(change) = nodes.next() => agent.observe_any_node(&change),
            Some(change) = networks.next() => agent.observe_service_network(&change),
            () = retry::until(agent.next_time()) => {}
            _ = checks.tick() => if at_leisure(|| agent.is_intact()) { continue },
        }
        agent.drain(&mut services, &mut slices);
        if agent.synced() {
            if agent.takes_long() {
                at_leisure(|| agent.commit_due());
            } else {
                agent.commit_due();
            }
        }
    }
}

/// Deletes everything that the proxy has written into the kernel, in whatever mode.
pub fn cleanup() -> Result<(), ProxyError> {
    forward::remove().unwrap_or_else(|error| warn!(%error, "rules left behind"));
    // What one mode left behind is no reason to leave the rest.
    let outcomes = Mode::ALL.map(leave::clean_mode);
    // Not before the rules that count with them.
    accounting::remove();
    outcomes.into_iter().collect()
}

/// The mode that was asked for, or iptables in place of IPVS where the kernel has none.
pub fn usable_mode(config: &Config) -> Result<Mode, ProxyError> {
    let mode = config.mode;
    if mode != Mode::Ipvs {
        return Ok(mode);
    }
    let Some(family) = config.families.first() else { return Ok(mode) };
    let probe = IpvsPlane::open(*family, config.ipvs.clone()).and_then(|mut ipvs| ipvs.try_out());
    match probe.map_err(CommitError::from) {
        Err(error) if config.ipvs_fallback && error.is_missing_feature() => {
            warn!(error = error.full_text(), "falling back to mode iptables");
            Ok(Mode::Iptables)
        }
        Err(source) => Err(ProxyError::Open { mode, source }),
        Ok(()) => Ok(mode),
    }
}

/// The state behind the loop, and all there is to test without a cluster.
#[derive(Debug)]
pub struct Agent {
    mode: Mode,
    ipvs: IpvsOptions,
    others: leave::Others,
    tracker: Tracker,
    families: Vec<FamilyPlane>,
    programmed: watch::Sender<Programmed>,
    services_synced: bool,
    slices_synced: bool,
    node_synced: bool,
    node_seen: bool,
    networks_synced: bool,
    /// The networks of each ServiceCIDR.
    service_networks: BTreeMap<String, Vec<IpNet>>,
    of_services: u64,
    of_slices: u64,
    triggers: Triggers,
    unserved: Unserved,
    announcements: watch::Sender<Arc<Announcements>>,
    complaints: Complaints,
    relays: watch::Sender<Arc<Relays>>,
    surroundings: Surroundings,
    /// The addresses that the cluster knows us by.
    primary: Vec<IpAddr>,
    /// The addresses of all nodes, where they matter.
    nodes: NodeAddresses,
    follows_nodes: bool,
    /// Where node ports are served, by family, if the operator says so.
    node_ports: BTreeMap<IpFamily, NodePorts>,
    /// What was last said about the addresses that node ports are served on.
    odd_addresses: BTreeSet<String>,
    node_name: String,
    node_port_addresses: Vec<String>,
    localhost: bool,
    node_networks: bool,
    conntrack: Option<mpsc::Sender<Order>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    health_checks: watch::Sender<HealthChecks>,
}

impl Agent {
    /// Opens the way to the kernel, and knows nothing yet.
    pub fn new(config: Config) -> Result<Self, ProxyError> {
        let mode = usable_mode(&config)?;
        let mut surroundings = config.surroundings;
        if surroundings.node_addresses.is_empty() {
            surroundings.node_addresses = own_addresses().unwrap_or_default();
        }
        let localhost = mode == Mode::Iptables && config.localhost_node_ports;
        surroundings.node_ports = with_localhost(surroundings.node_ports, localhost);
        surroundings.drop_invalid = !sysctl::is_on("net/netfilter/nf_conntrack_tcp_be_liberal");
        surroundings.named_counters = mode == Mode::Iptables && accounting::make();
        let family = |family: &IpFamily| {
            let table = ForwardingTable::new(*family, &surroundings);
            let plane = Plane::open(mode, *family, &config.ipvs)
                .map_err(|source| ProxyError::Open { mode, source })?;
            let mut half = FamilyPlane::new(table, plane);
            half.shortest_pause = config.shortest_pause;
            Ok(half)
        };
        let agent = Self {
            mode,
            ipvs: config.ipvs.clone(),
            others: leave::Others::default(),
            families: config.families.iter().map(family).collect::<Result<_, _>>()?,
            tracker: Tracker::new(NodeView { name: config.node_name.clone(), zone: config.zone }),
            programmed: config.programmed,
            services_synced: false,
            slices_synced: false,
            node_synced: !config.follow_node,
            node_seen: false,
            networks_synced: !config.follow_service_networks,
            service_networks: BTreeMap::new(),
            of_services: 0,
            of_slices: 0,
            triggers: Triggers::since(Timestamp::now()),
            unserved: Unserved::default(),
            announcements: config.announcements,
            complaints: Complaints::to(config.notes),
            relays: config.relays,
            surroundings,
            primary: Vec::new(),
            nodes: NodeAddresses::default(),
            follows_nodes: config.follow_node && mode == Mode::Ipvs,
            node_ports: BTreeMap::new(),
            odd_addresses: BTreeSet::new(),
            node_name: config.node_name,
            node_port_addresses: config.node_port_addresses,
            localhost,
            node_networks: config.node_networks,
            conntrack: conntrack::start(config.metrics.clone()).ok(),
            metrics: config.metrics,
            health: config.health,
            health_checks: config.health_checks,
        };
        agent.place_checks();
        Ok(agent)
    }

    /// The mode that is really used.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How often to call `is_intact`.
    pub fn check_period(&self) -> Duration {
        let periods = self.families.iter().map(|half| half.plane.check_period());
        periods.min().unwrap_or(Duration::from_secs(5))
    }

    /// Takes in a change of a Service.
    pub fn observe_service(&mut self, change: &Change<Service>) {
        match change {
            Change::Set(service) => self.tracker.observe_service(service),
            Change::Gone(service) => self.tracker.remove_service(&key_of(service.as_ref())),
            Change::Synced => self.services_synced = true,
        }
        if !matches!(change, Change::Synced) {
            self.metrics.services_total.inc();
            self.metrics.services_pending.inc();
            self.note_queued();
        }
        self.of_services = self.of_services.max(revision(change));
    }

    /// Takes in a change of an EndpointSlice.
    pub fn observe_slice(&mut self, change: &Change<EndpointSlice>) {
        match change {
            Change::Set(slice) => self.tracker.observe_slice(slice),
            Change::Gone(slice) => self.tracker.remove_slice(&key_of(slice.as_ref())),
            Change::Synced => self.slices_synced = true,
        }
        if !matches!(change, Change::Synced) {
            self.metrics.endpoints_total.inc();
            self.metrics.endpoints_pending.inc();
            self.note_queued();
        }
        if let Change::Set(slice) = change {
            self.triggers.observe(slice);
        }
        self.of_slices = self.of_slices.max(revision(change));
    }

    /// Whether everything that exists has been taken in once.
    pub fn synced(&self) -> bool {
        let nodes_synced = self.nodes.is_known() || !self.follows_nodes;
        self.services_synced
            && self.slices_synced
            && self.node_synced
            && nodes_synced
            && self.networks_synced
    }

    /// Writes all that changed since the last commit. After an error the kernel still has what it
    /// had, and the next commit writes everything. Families do not wait for each other: what one
    /// took in is told and published, whatever happened to the other.
    pub fn commit(&mut self) -> Result<(), CommitError> {
        self.commit_those(|_| true)
    }

    /// The same, but for families that are to be left alone for a while.
    pub fn commit_due(&mut self) {
        // What failed has been said already, and is tried again.
        let _ = self.commit_those(FamilyPlane::is_due);
    }

    fn commit_those(&mut self, wanted: fn(&FamilyPlane) -> bool) -> Result<(), CommitError> {
        let mut told = self.tracker.take_dirty();
        // Every table takes the changes in, even if its family cannot write them now.
        let take_in = |half: &mut FamilyPlane| half.take_in(&self.tracker, &told);
        let changed: Vec<_> = self.families.iter_mut().map(take_in).collect();
        let mut outcomes = Vec::new();
        for (half, names) in self.families.iter_mut().zip(changed) {
            match wanted(half) {
                true => outcomes.push(half.commit(names, &self.metrics)),
                false => half.put_off(names),
            }
        }
        let (written, failure) = self.settle(outcomes);
        for half in &mut self.families {
            match written.contains(&half.table.family()) {
                true => told.append(&mut half.untold),
                false => half.untold.extend(told.iter().cloned()),
            }
        }
        if !written.is_empty() {
            self.tell(&told);
        }
        failure.map_or(Ok(()), Err)
    }

    /// When to write what has failed or had to wait, if there is such a thing.
    fn next_time(&self) -> Option<time::Instant> {
        self.families.iter().filter_map(FamilyPlane::next_time).min()
    }

    /// Takes in how writing went: for the health, and for flows that now lead nowhere. A family
    /// that the kernel lacks is no failure if it has another one. Returns those that were written,
    /// and the first failure.
    fn settle(
        &mut self,
        outcomes: Vec<(IpFamily, Result<(), CommitError>)>,
    ) -> (BTreeSet<IpFamily>, Option<CommitError>) {
        let proven = self.families.iter().any(|half| half.proven);
        let (mut written, mut failure) = (BTreeSet::new(), None);
        for (family, outcome) in outcomes {
            let Some(at) = self.families.iter().position(|half| half.table.family() == family)
            else {
                continue;
            };
            match outcome {
                Ok(()) => {
                    self.health.note_written(family);
                    self.families[at].note_written((self.of_services, self.of_slices));
                    self.forget(at);
                    written.insert(family);
                }
                Err(error) if proven && error.is_missing_feature() && !self.families[at].proven => {
                    let error = error.full_text();
                    warn!(?family, error, "going on without this address family");
                    self.families.remove(at);
                    self.health.leave_out(family);
                    self.place_checks();
                }
                Err(error) => {
                    self.families[at].retry.note_failure(family, &error);
                    self.health.note_refused(family, error.full_text());
                    if self.surroundings.named_counters && error.may_be_about_counters() {
                        self.stop_counting();
                    }
                    failure.get_or_insert(error);
                }
            }
        }
        (written, failure)
    }

    /// Makes the kernel forget flows of a family that lead nowhere any more.
    fn forget(&mut self, at: usize) {
        let half = &mut self.families[at];
        let filters = half.settle();
        let Some(orders) = self.conntrack.as_ref().filter(|_| !filters.is_empty()) else { return };
        let node_addresses = half.table.surroundings().node_addresses.clone();
        let order = Order { family: half.table.family(), filters, node_addresses };
        if orders.send(order).is_err() {
            warn!("nobody forgets stale flows any more");
        }
    }

    fn note_queued(&self) {
        let now = seconds_now();
        for half in &self.families {
            let family = half.table.family();
            self.health.note_queued(family);
            self.metrics.last_queued.get_or_create(&family.into()).set(now);
        }
    }

    /// Whether the next commit may take a while.
    pub fn takes_long(&self) -> bool {
        self.families.iter().any(|half| half.is_due() && half.plane.takes_long())
    }

    /// Whether the kernel still has what we committed; if not, the next commit heals it.
    pub fn is_intact(&mut self) -> bool {
        self.let_others_leave();
        let mut intact = true;
        for half in &mut self.families {
            match half.plane.check() {
                Ok(true) => {}
                Ok(false) => {
                    warn!(family = ?half.table.family(), "somebody removed our rules");
                    intact = false;
                }
                Err(error) => warn!(%error, "cannot check the rules"),
            }
        }
        intact
    }

    /// Takes in whatever else is there already, so that a burst is one commit.
    fn drain(
        &mut self,
        services: &mut BoxStream<'static, Change<Service>>,
        slices: &mut BoxStream<'static, Change<EndpointSlice>>,
    ) {
        for _ in 0..BURST {
            let service = services.next().now_or_never().flatten();
            let slice = slices.next().now_or_never().flatten();
            if service.is_none() && slice.is_none() {
                return;
            }
            service.iter().for_each(|change| self.observe_service(change));
            slice.iter().for_each(|change| self.observe_slice(change));
        }
    }
}

/// The resource version of a changed object, if there is one.
fn revision<K: Resource>(change: &Change<K>) -> u64 {
    match change {
        Change::Set(object) | Change::Gone(object) => {
            object.resource_version().and_then(|text| text.parse().ok()).unwrap_or(0)
        }
        Change::Synced => 0,
    }
}

/// Runs something that may take long without holding up other tasks of this thread.
fn at_leisure<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => task::block_in_place(work),
        _ => work(),
    }
}
