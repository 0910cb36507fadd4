//! The agent: follows the cluster and keeps the kernel equal to it.
//!
//! Nothing is written before all Services and EndpointSlices are known, so a restart interrupts
//! nobody: until then the rules of the predecessor serve. From then on every burst of changes is
//! one commit, with no pause in between.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{future, io};

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource, ResourceExt};
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::surroundings::Surroundings;
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::{task, time};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::plane::{CommitError, Committed, Mode, Plane};

/// The first retry after a failed commit; each further one waits twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// No retry waits longer than this.
const LAST_RETRY: Duration = Duration::from_secs(30);
/// So many changes at most go into one commit, so that none waits for an endless burst.
const BURST: usize = 10_000;
/// How often we look whether somebody has tampered with the rules.
const CHECK_PERIOD: Duration = Duration::from_secs(5);

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
    /// The address families to serve. One that the kernel does not have is left out.
    pub families: Vec<IpFamily>,
    /// Shows what is in the kernel; subscribe to it before `run`.
    pub programmed: watch::Sender<Programmed>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            zone: None,
            surroundings: Surroundings::default(),
            mode: Mode::default(),
            families: vec![IpFamily::V4, IpFamily::V6],
            programmed: watch::Sender::default(),
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
    /// How many commits there have been.
    pub commits: u64,
}

/// Why the proxy cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// There is no way to the kernel.
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
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
    let mut agent = Agent::new(config)?;
    // Services of other proxies and headless ones never reach us.
    let services = Selection::all().labels("!service.kubernetes.io/service-proxy-name");
    let slices = Selection::all().labels("!service.kubernetes.io/headless");
    let mut services = informer::<Service>(Api::all(client.clone()), services);
    let mut slices = informer::<EndpointSlice>(Api::all(client), slices);
    let mut retry = Retry::default();
    let mut checks = time::interval(CHECK_PERIOD);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Some(change) = services.next() => agent.observe_service(&change),
            Some(change) = slices.next() => agent.observe_slice(&change),
            () = retry.due() => {}
            _ = checks.tick() => if at_leisure(|| agent.is_intact()) { continue },
        }
        agent.drain(&mut services, &mut slices);
        if agent.synced() && !retry.too_early() {
            let long = agent.takes_long();
            let outcome = if long { at_leisure(|| agent.commit()) } else { agent.commit() };
            retry.note(outcome);
        }
    }
}

/// Deletes everything that the proxy has written into the kernel, in whatever mode.
pub fn cleanup() -> Result<(), ProxyError> {
    Mode::ALL.into_iter().try_for_each(clean_mode)
}

/// Deletes everything that a mode has written into the kernel.
fn clean_mode(mode: Mode) -> Result<(), ProxyError> {
    for family in [IpFamily::V4, IpFamily::V6] {
        let mut plane = Plane::open(mode, family).map_err(ProxyError::Open)?;
        match plane.remove() {
            Err(error) if !error.is_missing_feature() => {
                return Err(ProxyError::Cleanup { family, source: error });
            }
            _ => debug!(%mode, ?family, "rules deleted"),
        }
    }
    Ok(())
}

/// The state behind the loop, and all there is to test without a cluster.
#[derive(Debug)]
pub struct Agent {
    mode: Mode,
    tracker: Tracker,
    families: Vec<FamilyPlane>,
    programmed: watch::Sender<Programmed>,
    services_synced: bool,
    slices_synced: bool,
    revision: u64,
}

/// One family's table, and its kernel half.
#[derive(Debug)]
struct FamilyPlane {
    table: ForwardingTable,
    plane: Plane,
    /// Whether a commit has ever succeeded.
    proven: bool,
}

impl Agent {
    /// Opens the way to the kernel, and knows nothing yet.
    pub fn new(config: Config) -> Result<Self, ProxyError> {
        let family = |family: &IpFamily| {
            let table = ForwardingTable::new(*family, &config.surroundings);
            let plane = Plane::open(config.mode, *family).map_err(ProxyError::Open)?;
            Ok(FamilyPlane { table, plane, proven: false })
        };
        Ok(Self {
            mode: config.mode,
            families: config.families.iter().map(family).collect::<Result<_, _>>()?,
            tracker: Tracker::new(NodeView { name: config.node_name, zone: config.zone }),
            programmed: config.programmed,
            services_synced: false,
            slices_synced: false,
            revision: 0,
        })
    }

    /// Takes in a change of a Service.
    pub fn observe_service(&mut self, change: &Change<Service>) {
        match change {
            Change::Set(service) => self.tracker.observe_service(service),
            Change::Gone(service) => self.tracker.remove_service(&key_of(service.as_ref())),
            Change::Synced => self.services_synced = true,
        }
        self.note_revision(change);
    }

    /// Takes in a change of an EndpointSlice.
    pub fn observe_slice(&mut self, change: &Change<EndpointSlice>) {
        match change {
            Change::Set(slice) => self.tracker.observe_slice(slice),
            Change::Gone(slice) => self.tracker.remove_slice(&key_of(slice.as_ref())),
            Change::Synced => self.slices_synced = true,
        }
        self.note_revision(change);
    }

    /// Whether everything that exists has been taken in once.
    pub fn synced(&self) -> bool {
        self.services_synced && self.slices_synced
    }

    /// Writes all that changed since the last commit. After an error the kernel still has what it
    /// had, and the next commit writes everything.
    pub fn commit(&mut self) -> Result<(), CommitError> {
        let dirty = self.tracker.take_dirty();
        // Every table takes the changes in, even if an earlier family fails to write them.
        let changed: Vec<_> = self
            .families
            .iter_mut()
            .map(|half| {
                let family = half.table.family();
                let ports = |key| self.tracker.service_ports(key, family);
                dirty.iter().flat_map(|key| half.table.replace(key, ports(key))).collect()
            })
            .collect();
        let outcomes: Vec<_> =
            self.families.iter_mut().zip(changed).map(|(half, names)| half.commit(names)).collect();
        for (family, outcome) in outcomes {
            outcome.or_else(|error| self.give_up_family(family, error))?;
        }
        self.publish();
        Ok(())
    }

    /// Whether the next commit may take a while.
    pub fn takes_long(&self) -> bool {
        self.families.iter().any(|half| half.plane.takes_long())
    }

    /// Whether the kernel still has what we committed; if not, the next commit heals it.
    pub fn is_intact(&mut self) -> bool {
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

    /// A family that the kernel lacks is not a failure; any other error is.
    fn give_up_family(&mut self, family: IpFamily, error: CommitError) -> Result<(), CommitError> {
        let unproven = |half: &FamilyPlane| half.table.family() == family && !half.proven;
        let others = self.families.iter().any(|half| half.table.family() != family);
        if !(others && error.is_missing_feature() && self.families.iter().any(unproven)) {
            return Err(error);
        }
        warn!(?family, %error, "the kernel cannot do this address family, going on without");
        self.families.retain(|half| half.table.family() != family);
        Ok(())
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

    fn note_revision<K: Resource>(&mut self, change: &Change<K>) {
        if let Change::Set(object) | Change::Gone(object) = change {
            let revision = object.resource_version().and_then(|text| text.parse().ok());
            self.revision = self.revision.max(revision.unwrap_or(0));
        }
    }

    fn publish(&self) {
        let tables = || self.families.iter().map(|half| &half.table);
        let before = *self.programmed.borrow();
        let now = Programmed {
            service_ports: tables().map(ForwardingTable::port_count).sum(),
            targets: tables().map(ForwardingTable::target_count).sum(),
            revision: self.revision,
            commits: before.commits + 1,
        };
        if before.commits == 0 {
            let mode = self.mode;
            info!(%mode, service_ports = now.service_ports, targets = now.targets, "serving");
            // Only now: until then the other mode's rules served.
            for other in Mode::ALL.into_iter().filter(|other| *other != mode) {
                clean_mode(other)
                    .unwrap_or_else(|error| warn!(%other, %error, "rules left behind"));
            }
        }
        self.programmed.send_replace(now);
    }
}

impl FamilyPlane {
    fn commit(
        &mut self,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> (IpFamily, Result<(), CommitError>) {
        let family = self.table.family();
        let started = Instant::now();
        let outcome = self.plane.commit(&self.table, changed);
        self.proven |= outcome.is_ok();
        (
            family,
            outcome.map(|Committed { whole, operations }| {
                debug!(?family, whole, operations, took = ?started.elapsed(), "rules written");
            }),
        )
    }
}

/// When to try again after a failure.
#[derive(Debug, Default)]
struct Retry {
    at: Option<time::Instant>,
    failures: u32,
}

impl Retry {
    fn note(&mut self, outcome: Result<(), CommitError>) {
        match outcome {
            Ok(()) if self.failures > 0 => {
                info!(failures = self.failures, "rules written again");
                *self = Self::default();
            }
            Ok(()) => {}
            Err(error) => {
                let delay = FIRST_RETRY.saturating_mul(1 << self.failures.min(16)).min(LAST_RETRY);
                let cause = error.source().map(ToString::to_string).unwrap_or_default();
                warn!(%error, cause, ?delay, "the kernel keeps its old rules, will retry");
                self.at = Some(time::Instant::now() + delay);
                self.failures += 1;
            }
        }
    }

    /// Waits until it is time; forever if nothing failed.
    async fn due(&self) {
        match self.at {
            Some(at) => time::sleep_until(at).await,
            None => future::pending().await,
        }
    }

    /// Changes that arrive meanwhile wait for the retry.
    fn too_early(&self) -> bool {
        self.at.is_some_and(|at| time::Instant::now() < at)
    }
}

/// Runs something that may take long without holding up other tasks of this thread.
fn at_leisure<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => task::block_in_place(work),
        _ => work(),
    }
}
