//! The agent: follows the cluster and keeps the kernel equal to what policies say.

use std::future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::{Api, Client, ResourceExt};
use roadstead_component::component::Component;
use roadstead_component::pacer::{RetryPacer, until};
use roadstead_component::pages::serve;
use roadstead_component::readiness::ReadyGuard;
use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::nftables::others::OwnCommits;
use roadstead_policy::layout::PolicyLayout;
use roadstead_policy::pod::{PolicyPod, pod_blocks};
use roadstead_policy::policy::Policy;
use roadstead_policy::program::PolicyTransaction;
use roadstead_watch::informer::{Change, Selection, key_of};
use roadstead_watch::keys_only::keys_only;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::metrics::Metrics;
use crate::plane::PolicyPlane;

/// So many changes at most go into one commit, so that none waits for an endless burst.
const BURST: usize = 10_000;
/// How soon it is noticed that somebody changed nftables.
const CHECK: Duration = Duration::from_millis(250);
/// How soon what was refused is tried again: the first time, and at last.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Where it runs, and what it shows.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The name of this node: its pods are protected.
    pub node_name: String,
    /// For `/healthz`, `/readyz`, `/metrics` and `/debug/state`.
    pub pages: Option<SocketAddr>,
    /// What the pages show; components of one process may share one.
    pub component: Component,
    /// What this process commits to nftables, others of its parts included.
    pub own_commits: OwnCommits,
    /// Becomes true when the rules are written for the first time.
    pub programmed: watch::Sender<bool>,
}

/// Why policies cannot be enforced at all.
#[derive(Debug, thiserror::Error)]
pub enum NetpolError {
    /// There is no way to the kernel.
    #[error("cannot talk to nftables")]
    Open(#[source] io::Error),
    /// The rules could not be deleted.
    #[error("cannot delete the table of policies")]
    Cleanup(#[source] NetlinkError),
}

/// Keeps the kernel equal to the cluster until `stop`. The rules stay when it ends.
pub async fn run(
    client: Client,
    config: Config,
    stop: CancellationToken,
) -> Result<(), NetpolError> {
    let metrics = Arc::new(Metrics::default());
    let agent = Agent::new(&config, metrics.clone())?;
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow(client, agent) => {}
        () = show(config, metrics) => {}
    }
    Ok(())
}

/// Deletes everything that was written into the kernel.
pub fn cleanup() -> Result<(), NetpolError> {
    for family in [IpFamily::V4, IpFamily::V6] {
        let plane = PolicyPlane::open(family, OwnCommits::default());
        match plane.map_err(NetpolError::Open)?.remove() {
            Err(error) if is_lacking(&error) => {}
            outcome => outcome.map_err(NetpolError::Cleanup)?,
        }
    }
    Ok(())
}

/// Whether the kernel has no such address family.
fn is_lacking(error: &NetlinkError) -> bool {
    let unsupported = [io::ErrorKind::Unsupported, io::ErrorKind::NotFound];
    error.refusal().is_some_and(|refusal| unsupported.contains(&refusal.kind()))
}

async fn follow(client: Client, mut agent: Agent) {
    let all = Selection::all;
    let mut pods = keys_only::<Pod>(Api::all(client.clone()), all());
    let mut namespaces = keys_only::<Namespace>(Api::all(client.clone()), all());
    let mut nodes = keys_only::<Node>(Api::all(client.clone()), all());
    let mut policies = keys_only::<NetworkPolicy>(Api::all(client), all());
    let mut checks = time::interval(CHECK);
    checks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(change) = pods.next() => agent.observe_pod(change),
            Some(change) = namespaces.next() => agent.observe_namespace(change),
            Some(change) = nodes.next() => agent.observe_node(change),
            Some(change) = policies.next() => agent.observe_policy(change),
            () = until(agent.retries.next_time()) => {}
            _ = checks.tick() => if agent.is_intact() { continue },
        }
        drain(&mut namespaces, |change| agent.observe_namespace(change));
        drain(&mut nodes, |change| agent.observe_node(change));
        drain(&mut policies, |change| agent.observe_policy(change));
        drain(&mut pods, |change| agent.observe_pod(change));
        agent.commit();
    }
}

/// Takes what is there already.
fn drain<T>(stream: &mut BoxStream<'static, T>, mut take: impl FnMut(T)) {
    for _ in 0..BURST {
        match stream.next().now_or_never() {
            Some(Some(change)) => take(change),
            _ => return,
        }
    }
}

/// Serves pages for ever, if there is an address to serve them on.
async fn show(config: Config, metrics: Arc<Metrics>) {
    let Some(address) = config.pages else { return future::pending().await };
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            warn!(%address, %error, "cannot listen, going on without");
            return future::pending().await;
        }
    };
    serve(listener, move |path| config.component.page(path, || metrics.page())).await;
}

/// The state behind the loop.
#[derive(Debug)]
struct Agent {
    layout: PolicyLayout,
    planes: Vec<PolicyPlane>,
    metrics: Arc<Metrics>,
    /// What is not known yet, each until it was taken in as a whole.
    unknown: Vec<(Source, ReadyGuard)>,
    /// Until rules are written for the first time.
    unwritten: Option<ReadyGuard>,
    programmed: watch::Sender<bool>,
    retries: RetryPacer,
    shown: watch::Sender<Shown>,
}

/// What the page `/debug/state` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    node: String,
    /// What has not been seen as a whole yet: nothing is written before that.
    awaited: Vec<String>,
    /// The address families that the kernel has.
    families: Vec<String>,
    policies: usize,
    /// Pods of this node that are under policies.
    isolated_pods: usize,
    commits: u64,
    /// How often the kernel refused the newest rules.
    failures: u32,
    last_error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Pods,
    Namespaces,
    Nodes,
    Policies,
}

impl Agent {
    fn new(config: &Config, metrics: Arc<Metrics>) -> Result<Self, NetpolError> {
        let plane = |family| PolicyPlane::open(family, config.own_commits.clone());
        let planes = [IpFamily::V4, IpFamily::V6].into_iter().map(plane);
        let sources = [Source::Pods, Source::Namespaces, Source::Nodes, Source::Policies];
        let readiness = &config.component.readiness;
        let unknown = sources.map(|source| (source, readiness.register(format!("{source:?}"))));
        let agent = Self {
            layout: PolicyLayout::new(&config.node_name),
            planes: planes.collect::<Result<_, _>>().map_err(NetpolError::Open)?,
            metrics,
            unknown: unknown.into(),
            unwritten: Some(readiness.register("Rules")),
            programmed: config.programmed.clone(),
            retries: RetryPacer::new(FIRST_RETRY, LAST_RETRY),
            shown: watch::Sender::default(),
        };
        agent.show(|shown| shown.node.clone_from(&config.node_name));
        let shown = agent.shown.subscribe();
        config.component.state.register("networkPolicy", move || shown.borrow().clone());
        Ok(agent)
    }

    /// Changes what is shown, and brings it up to date.
    fn show(&self, change: impl FnOnce(&mut Shown)) {
        self.shown.send_modify(|shown| {
            change(shown);
            shown.awaited = self.unknown.iter().map(|(source, _)| format!("{source:?}")).collect();
            let families = self.planes.iter().map(|plane| format!("{:?}", plane.family()));
            shown.families = families.collect();
            shown.policies = self.layout.cluster().policy_count();
            shown.isolated_pods = self.layout.subject_count();
            shown.failures = self.retries.failures();
        });
    }

    fn observe_pod(&mut self, change: Change<Pod>) {
        match change {
            Change::Set(pod) => self.layout.observe_pod(key_of(&pod), Some(PolicyPod::read(&pod))),
            Change::Gone(key, _) => self.layout.observe_pod(key, None),
            Change::Synced => self.note_synced(Source::Pods),
        }
    }

    fn observe_namespace(&mut self, change: Change<Namespace>) {
        match change {
            Change::Set(space) => {
                let labels = space.metadata.labels.clone().unwrap_or_default();
                self.layout.observe_namespace(&space.name_any(), Some(labels));
            }
            Change::Gone(key, _) => self.layout.observe_namespace(&key.name, None),
            Change::Synced => self.note_synced(Source::Namespaces),
        }
    }

    fn observe_node(&mut self, change: Change<Node>) {
        match change {
            Change::Set(node) => {
                self.layout.observe_node(&node.name_any(), Some(pod_blocks(&node)));
            }
            Change::Gone(key, _) => self.layout.observe_node(&key.name, None),
            Change::Synced => self.note_synced(Source::Nodes),
        }
    }

    fn observe_policy(&mut self, change: Change<NetworkPolicy>) {
        match change {
            Change::Set(policy) => {
                self.layout.observe_policy(&key_of(&policy), Some(Policy::read(&policy)));
            }
            Change::Gone(key, _) => self.layout.observe_policy(&key, None),
            Change::Synced => self.note_synced(Source::Policies),
        }
    }

    fn note_synced(&mut self, source: Source) {
        self.unknown.retain(|(other, _)| *other != source);
        self.show(|_| {});
    }

    /// Writes what is new, once everything is known. After a failure it waits for its time.
    fn commit(&mut self) {
        let is_early = !self.retries.is_due();
        let idle =
            !self.layout.is_dirty() && self.planes.iter().all(|plane| !plane.needs_everything());
        if !self.unknown.is_empty() || is_early || idle {
            return;
        }
        let started = Instant::now();
        let changes = self.layout.update();
        let lacking = self.write(&changes);
        self.planes.retain(|plane| !lacking.contains(&plane.family()));
        let failed = self.planes.iter().any(PolicyPlane::needs_everything);
        self.metrics.note_commit(started.elapsed(), !failed);
        self.metrics.note_size(self.layout.cluster().policy_count(), self.layout.subject_count());
        if failed {
            self.retries.note_failure();
            return self.show(|_| {});
        }
        if self.unwritten.take().is_some() {
            self.programmed.send_replace(true);
        }
        let failures = self.retries.note_success();
        if failures > 0 {
            info!(failures, "policies written again");
        }
        self.show(|shown| shown.commits += 1);
    }

    /// Tells all families; returns those that the kernel does not have.
    fn write(&mut self, changes: &PolicyTransaction) -> Vec<IpFamily> {
        let mut lacking = Vec::new();
        for plane in &mut self.planes {
            let Err(error) = plane.commit(self.layout.program(), changes) else { continue };
            let family = plane.family();
            if family == IpFamily::V6 && is_lacking(&error) {
                info!("the kernel has no IPv6, and no policies for it");
                lacking.push(family);
            } else {
                warn!(?family, %error, "the kernel keeps its old policies, will retry");
                let error = format!("{family:?}: {error}");
                self.shown.send_modify(|shown| shown.last_error = Some(error));
            }
        }
        lacking
    }

    /// Whether the kernel still has what it was told.
    fn is_intact(&mut self) -> bool {
        let mut intact = true;
        for plane in &mut self.planes {
            match plane.check(self.layout.program()) {
                Ok(true) => {}
                Ok(false) => {
                    warn!(family = ?plane.family(), "somebody removed policies; they come back");
                    self.metrics.note_healed();
                    intact = false;
                }
                Err(error) => warn!(%error, "cannot look at nftables"),
            }
        }
        intact
    }
}
