//! The agent: follows the cluster and keeps the kernel equal to it.
//!
//! Nothing is written before all Services and EndpointSlices are known, so a restart interrupts
//! nobody: until then the rules of the predecessor serve. From then on every burst of changes is
//! one commit, with no pause in between.

mod announcements;
pub mod config;
mod node;
mod other_modes;
mod publish;
pub(crate) mod service_events;
mod sync;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::{Api, Client, Resource};
use roadstead_component::pacer;
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use roadstead_watch::apart::apart;
use roadstead_watch::informer::{Change, Selection, revision_of};
use roadstead_watch::keys_only::keys_only;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::{task, time};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::config::{Config, Outputs, Revisions};
use self::node::NodeState;
use self::other_modes::OtherModes;
use self::publish::Figures;
use self::service_events::ServiceEvents;
use self::sync::{InitialSync, Source};
use crate::data_plane::{CommitError, CounterDoubt, PLANES, PlaneContext, ProxyMode};
use crate::family::FamilyPlane;
use crate::pacer::Pacer;
use crate::{forward_policy, named_counters};

/// So many changes at most go into one commit, so that none waits for an endless burst.
const BURST: usize = 10_000;

/// Why the proxy cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// There is no way to the kernel.
    #[error("cannot use mode {mode}")]
    Open {
        /// The mode that was asked for.
        mode: ProxyMode,
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
    outputs: Outputs,
    stop: CancellationToken,
) -> Result<(), ProxyError> {
    let own_name = format!("metadata.name={}", config.node_name);
    let mut agent = Agent::new(config, outputs)?;
    let all = Selection::all;
    let mut node = agent.followed(Source::Node, || {
        keys_only::<Node>(Api::all(client.clone()), all().fields(&own_name))
    });
    let mut nodes =
        agent.followed(Source::AllNodes, || keys_only::<Node>(Api::all(client.clone()), all()));
    let mut networks = agent.followed(Source::ServiceCidrs, || {
        keys_only::<ServiceCIDR>(Api::all(client.clone()), all())
    });
    // Services of other proxies and headless ones never reach us.
    let services = all().labels("!service.kubernetes.io/service-proxy-name");
    let slices = all().labels("!service.kubernetes.io/headless");
    // There may be very many of these: they are read while those that came before are taken in.
    let mut services = apart(keys_only::<Service>(Api::all(client.clone()), services));
    let mut slices = apart(keys_only::<EndpointSlice>(Api::all(client), slices));
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
            () = pacer::until(agent.next_time()) => {}
            _ = checks.tick() => if blocking(|| agent.is_intact()) { continue },
        }
        agent.drain(&mut services, &mut slices);
        if agent.synced() {
            if agent.takes_long() {
                blocking(|| agent.commit_due());
            } else {
                agent.commit_due();
            }
        }
    }
}

/// Deletes everything that the proxy has written into the kernel, in whatever mode.
pub fn cleanup() -> Result<(), ProxyError> {
    forward_policy::remove().unwrap_or_else(|error| warn!(%error, "rules left behind"));
    // What one mode left behind is no reason to leave the rest.
    let outcomes: Vec<_> = PLANES.iter().map(other_modes::clean).collect();
    // Not before the rules that count with them.
    named_counters::remove();
    outcomes.into_iter().collect()
}

/// The mode that was asked for, or the one that takes its place where the kernel lacks it.
pub(crate) fn usable_mode(config: &Config) -> Result<ProxyMode, ProxyError> {
    let mode = config.mode;
    let kind = mode.kind();
    let (Some(fallback), Some(family)) = (kind.fallback, config.families.first()) else {
        return Ok(mode);
    };
    let context = PlaneContext { ipvs: config.ipvs.clone(), ..PlaneContext::default() };
    match (kind.open)(&context, *family).and_then(|mut plane| plane.try_out()) {
        Err(error) if config.ipvs_fallback && error.is_missing_feature() => {
            warn!(error = error.full_text(), "falling back to mode {fallback}");
            Ok(fallback)
        }
        Err(source) => Err(ProxyError::Open { mode, source }),
        Ok(()) => Ok(mode),
    }
}

/// The state behind the loop, and all there is to test without a cluster.
#[derive(Debug)]
pub struct Agent {
    mode: ProxyMode,
    context: PlaneContext,
    tracker: Tracker,
    families: Vec<FamilyPlane>,
    sync: InitialSync,
    /// Of all that was taken in.
    newest: Revisions,
    node: NodeState,
    other_modes: OtherModes,
    service_events: ServiceEvents,
    figures: Figures,
    outputs: Outputs,
}

impl Agent {
    /// Opens the way to the kernel, and knows nothing yet.
    pub fn new(config: Config, outputs: Outputs) -> Result<Self, ProxyError> {
        let mode = usable_mode(&config)?;
        let config = Config { mode, ..config };
        let node = NodeState::new(&config);
        let context = PlaneContext::new(&config, outputs.metrics.clone());
        let family = |family: &IpFamily| {
            let table = ForwardingTable::new(*family, &node.network_of(*family));
            let pacer = Pacer::new(config.shortest_pause);
            FamilyPlane::open(table, mode.kind(), &context, pacer)
                .map_err(|source| ProxyError::Open { mode, source })
        };
        let families = config.families.iter().map(family).collect::<Result<_, _>>()?;
        let agent = Self {
            mode,
            tracker: Tracker::new(NodeView { name: config.node_name.clone(), zone: None }),
            families,
            sync: InitialSync::new(&config),
            newest: Revisions::default(),
            node,
            other_modes: OtherModes::default(),
            service_events: ServiceEvents::to(outputs.service_events.clone()),
            figures: Figures::since(Timestamp::now()),
            context,
            outputs,
        };
        agent.place_checks();
        Ok(agent)
    }

    /// The mode that is really used.
    pub fn mode(&self) -> ProxyMode {
        self.mode
    }

    /// The changes of something, if it is followed.
    fn followed<T>(
        &self,
        source: Source,
        follow: impl FnOnce() -> BoxStream<'static, T>,
    ) -> BoxStream<'static, T>
    where
        T: Send + 'static,
    {
        match self.sync.follows(source) {
            true => follow(),
            false => futures::stream::pending().boxed(),
        }
    }

    /// How often to call `is_intact`.
    pub(crate) fn check_period(&self) -> Duration {
        let periods = self.families.iter().map(|family| family.plane.check_period());
        periods.min().unwrap_or(Duration::from_secs(5))
    }

    /// Takes in a change of a Service.
    pub fn observe_service(&mut self, change: &Change<Service>) {
        match change {
            Change::Set(service) => self.tracker.observe_service(service),
            Change::Gone(key, _) => self.tracker.remove_service(key),
            Change::Synced => return self.sync.note_synced(Source::Services),
        }
        self.outputs.metrics.service_changes.note_change();
        self.note_queued();
        self.newest.services = self.newest.services.max(revision(change));
    }

    /// Takes in a change of an EndpointSlice.
    pub fn observe_slice(&mut self, change: &Change<EndpointSlice>) {
        match change {
            Change::Set(slice) => {
                self.tracker.observe_slice(slice);
                self.figures.triggers.observe(slice);
            }
            Change::Gone(key, _) => self.tracker.remove_slice(key),
            Change::Synced => return self.sync.note_synced(Source::EndpointSlices),
        }
        self.outputs.metrics.endpoint_changes.note_change();
        self.note_queued();
        self.newest.slices = self.newest.slices.max(revision(change));
    }

    /// Whether everything that exists has been taken in once.
    pub fn synced(&self) -> bool {
        self.sync.is_done()
    }

    /// Writes all that changed since the last commit. After an error the kernel still has what it
    /// had, and the next commit writes everything. Families do not wait for each other: what one
    /// took in is published, whatever happened to the other.
    pub fn commit(&mut self) -> Result<(), CommitError> {
        self.commit_those(|_| true)
    }

    /// The same, but for families that are to be left alone for a while.
    pub fn commit_due(&mut self) {
        // What failed has been said already, and is tried again.
        let _ = self.commit_those(|family| family.pacer.is_due());
    }

    fn commit_those(&mut self, wanted: fn(&FamilyPlane) -> bool) -> Result<(), CommitError> {
        let mut published = self.tracker.take_dirty();
        let mut outcomes = Vec::new();
        // Every table takes the changes in, even if its family cannot write them now.
        for family in &mut self.families {
            family.take_in(&self.tracker, &published);
        }
        for family in &mut self.families {
            match wanted(family) {
                true => {
                    outcomes.push((family.ip_family(), family.commit(&self.outputs.metrics)));
                }
                false => family.pacer.note_waiting(),
            }
        }
        let (written, failure) = self.take_in_outcomes(outcomes);
        for family in &mut self.families {
            match written.contains(&family.ip_family()) {
                true => published.append(&mut family.unpublished),
                false => family.unpublished.extend(published.iter().cloned()),
            }
        }
        if !written.is_empty() {
            self.publish(&published);
        }
        failure.map_or(Ok(()), Err)
    }

    /// When to write what has failed or had to wait, if there is such a thing.
    fn next_time(&self) -> Option<time::Instant> {
        self.families.iter().filter_map(|family| family.pacer.next_time()).min()
    }

    /// Takes in how writing went: for the health, and for flows that now lead nowhere. A family
    /// that the kernel lacks is no failure if it has another one. Returns those that were written,
    /// and the first failure.
    fn take_in_outcomes(
        &mut self,
        outcomes: Vec<(IpFamily, Result<(), CommitError>)>,
    ) -> (BTreeSet<IpFamily>, Option<CommitError>) {
        let succeeded = outcomes.iter().any(|(_, outcome)| outcome.is_ok());
        let proven = succeeded || self.families.iter().any(FamilyPlane::is_proven);
        let (mut written, mut failure) = (BTreeSet::new(), None);
        for (ip_family, outcome) in outcomes {
            let at = self.families.iter().position(|family| family.ip_family() == ip_family);
            let Some(at) = at else { continue };
            let family = &mut self.families[at];
            match outcome {
                Ok(()) => {
                    self.outputs.health.note_written(ip_family);
                    family.note_written(self.newest);
                    written.insert(ip_family);
                }
                Err(error) if proven && error.is_missing_feature() && !family.is_proven() => {
                    let error = error.full_text();
                    warn!(family = ?ip_family, error, "going on without this address family");
                    self.families.remove(at);
                    self.outputs.health.leave_out(ip_family);
                    self.place_checks();
                }
                Err(error) => {
                    family.pacer.note_failure(ip_family, &error);
                    self.outputs.health.note_refused(ip_family, error.full_text());
                    let doubtful = match error.doubt_about_counters() {
                        CounterDoubt::None => false,
                        // Once may be somebody else who wrote at the same moment.
                        CounterDoubt::Possible => family.pacer.has_failed_again(),
                        CounterDoubt::Named => true,
                    };
                    if doubtful && self.node.counts_by_name() {
                        self.stop_counting();
                    }
                    failure.get_or_insert(error);
                }
            }
        }
        (written, failure)
    }

    fn note_queued(&self) {
        let families = || self.families.iter().map(FamilyPlane::ip_family);
        families().for_each(|family| self.outputs.health.note_queued(family));
        self.outputs.metrics.note_queued(families());
    }

    /// Whether the next commit may take a while.
    fn takes_long(&self) -> bool {
        self.families.iter().any(|family| family.pacer.is_due() && family.plane.takes_long())
    }

    /// Whether the kernel still has what we committed; if not, the next commit heals it.
    pub fn is_intact(&mut self) -> bool {
        self.other_modes.finish_leaving();
        let mut intact = true;
        for family in &mut self.families {
            match family.plane.check() {
                Ok(true) => {}
                Ok(false) => {
                    warn!(family = ?family.ip_family(), "somebody removed our rules");
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

/// The revision of a change, if there is one.
fn revision<K: Resource>(change: &Change<K>) -> u64 {
    match change {
        Change::Set(object) => revision_of(object),
        Change::Gone(_, revision) => *revision,
        Change::Synced => 0,
    }
}

/// Runs something that may take long without holding up other tasks of this thread.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => task::block_in_place(work),
        _ => work(),
    }
}
