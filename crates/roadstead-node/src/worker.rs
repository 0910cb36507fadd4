//! The worker of one pod: asks `lifecycle` what to do, does it, and reports the status.

mod containers;
mod departure;
mod hooks;
mod policies;
mod probes;
mod pulls;
mod resizing;
mod stopping;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use kube::Client;
use roadstead_api::node_affinity::{NodeTraits, is_particular};
use roadstead_pod::admission::{Rejection, check_affinity};
use roadstead_pod::departure::Departure;
use roadstead_pod::downward::Allocatable;
use roadstead_pod::facts::{Exit, PodFacts, PodFailure, Sandbox, State, after};
use roadstead_pod::hosts::kernel_name;
use roadstead_pod::lifecycle::{PodStep, Presence, plan, restart_all};
use roadstead_pod::mandatory::check_app_armor;
use roadstead_pod::pod_name::PodName;
use roadstead_pod::recovery::RecoveredPod;
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_pod::security::forbidden_host_network;
use roadstead_pod::static_pods::is_static;
use roadstead_pod::status::plan_status;
use roadstead_pod::{backoff, ephemeral, recovery, resize};
use tokio::sync::watch;
use tokio::time::{self, Instant};
use tracing::{info, warn};

use self::containers::policy;
use self::hooks::Hooks;
use self::probes::{Begin, Probes};
use self::pulls::FinishedPull;
use self::volumes::PodVolumes;
use crate::allocations::Allocations;
use crate::config::{Config, in_full};
use crate::events::Recorder;
use crate::objects::Objects;
use crate::pod_api;
use crate::policy_gate::PolicyGate;
use crate::probe_counts::ProbeCounts;
use crate::runtime::{Runtime, Stop, labels};
use crate::services::Services;

/// After a failure of the API or of the runtime.
const RETRY: Duration = Duration::from_secs(1);

/// What all workers share.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    pub(crate) events: Recorder,
    pub(crate) services: Services,
    pub(crate) objects: Objects,
    pub(crate) probe_counts: ProbeCounts,
    pub(crate) policy_gate: PolicyGate,
    /// What the node has for pods.
    pub(crate) allocatable: Allocatable,
    pub(crate) allocations: Allocations,
}

/// The newest state of the pod in the API.
#[derive(Clone, Debug)]
pub(crate) struct PodUpdate {
    pub(crate) pod: Arc<Pod>,
    pub(crate) presence: Presence,
    /// The node wants it to go.
    pub(crate) failure: Option<PodFailure>,
    /// Of a static pod, the uid of what the API shows of it.
    pub(crate) mirror: Option<String>,
}

impl PodUpdate {
    /// A pod that is there.
    pub(crate) fn of(pod: Arc<Pod>) -> Self {
        Self { pod, presence: Presence::Present, failure: None, mirror: None }
    }
}

/// How a pod comes to this agent.
pub(crate) struct Arrival {
    /// What an earlier agent has left of it.
    pub(crate) recovered: Option<RecoveredPod>,
    pub(crate) admission: Admission,
}

/// Whether there is room for a pod.
pub(crate) enum Admission {
    /// It was here before.
    Settled,
    /// It is new, and there is; whether it wants this node is still to be asked.
    New,
    /// There is none.
    Rejected(Rejection),
}

/// Works on a pod until it is gone.
pub(crate) async fn run(
    context: Arc<Context>,
    mut wanted: watch::Receiver<PodUpdate>,
    arrival: Arrival,
) {
    let first = wanted.borrow_and_update().clone();
    let facts = recovery::facts(&first.pod, arrival.recovered, Timestamp::now());
    let mut worker = Worker::new(context, first, facts);
    worker.admit(arrival.admission).await;
    worker.resume();
    loop {
        worker.allocate();
        let next = plan(&worker.pod, worker.presence, &worker.facts, Timestamp::now());
        if !next.steps.is_empty() {
            for step in next.steps {
                if worker.take(step).await == Progress::Finished {
                    return;
                }
            }
            continue;
        }
        worker.finish_resize();
        worker.write_status().await;
        worker.wait(&mut wanted, next.wake_at).await;
        worker.follow_volumes().await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Progress {
    GoingOn,
    Finished,
}

struct Worker {
    context: Arc<Context>,
    name: PodName,
    /// With as much of the machine as it has been allocated.
    pod: Arc<Pod>,
    /// With as much as it wants.
    wanted_pod: Arc<Pod>,
    /// Tells when others leave room.
    freed: watch::Receiver<u64>,
    presence: Presence,
    facts: PodFacts,
    exits: FuturesUnordered<BoxFuture<'static, (String, Exit)>>,
    pulls: FuturesUnordered<BoxFuture<'static, FinishedPull>>,
    probes: Probes,
    hooks: Hooks,
    volumes: PodVolumes,
    /// Whether the pod has waited for policies with the network that it has.
    policies_awaited: bool,
    /// Ends when nobody sends new connections to the pod.
    leaving: Option<BoxFuture<'static, ()>>,
    written: Option<PodStatus>,
    /// Of a static pod, the uid of what the API shows of it.
    mirror: Option<String>,
    write_again_at: Option<Instant>,
}

impl Worker {
    fn new(context: Arc<Context>, wanted: PodUpdate, facts: PodFacts) -> Self {
        Self {
            name: PodName::of(&wanted.pod),
            freed: context.allocations.freed(),
            context,
            pod: Arc::new(resize::as_reported(&wanted.pod)),
            wanted_pod: wanted.pod,
            presence: wanted.presence,
            facts,
            exits: FuturesUnordered::new(),
            pulls: FuturesUnordered::new(),
            probes: Probes::default(),
            hooks: Hooks::default(),
            volumes: PodVolumes::default(),
            policies_awaited: false,
            leaving: None,
            written: None,
            mirror: wanted.mirror,
            write_again_at: None,
        }
    }

    /// Takes in whether there is room for the pod.
    async fn admit(&mut self, admission: Admission) {
        let rejection = match admission {
            Admission::Settled => return,
            Admission::Rejected(rejection) => rejection,
            Admission::New => match self.unfit().await {
                Some(rejection) => rejection,
                None => return,
            },
        };
        let (reason, message) = (rejection.reason, rejection.message.clone());
        warn!(pod = %self.title(), reason, message, "the pod is rejected");
        self.context.events.warning(&self.pod, None, reason, message);
        self.facts.failure = Some(rejection.failure());
    }

    /// Why this machine is not one for the pod, although there is room for it.
    async fn unfit(&mut self) -> Option<Rejection> {
        if let Err(rejection) = check_app_armor(&self.pod, labels::has_app_armor()) {
            return Some(rejection);
        }
        let spec = self.pod.spec.as_ref().filter(|spec| is_particular(spec));
        let (client, name) = (&self.context.client, &self.context.config.node_name);
        let labels = match spec {
            Some(_) => pod_api::node_labels(client, name).await,
            None => None,
        };
        // A node that cannot be asked takes whoever is sent to it.
        let labels = labels?;
        check_affinity(&self.pod, NodeTraits { name, labels: Some(&labels) }).err()
    }

    /// Follows the containers that were running before we came.
    fn resume(&mut self) {
        self.facts.start_time.get_or_insert_with(Timestamp::now);
        self.resume_resources();
        let running = self.facts.containers.iter();
        let running = running.filter(|(_, known)| matches!(known.state, State::Running { .. }));
        self.volumes.changed = self.facts.sandbox == Sandbox::Ready;
        for name in running.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.follow(&name);
            self.start_probes(&name, Begin::Spread);
        }
    }

    async fn take(&mut self, step: PodStep) -> Progress {
        match step {
            PodStep::Depart { limit } => {
                let since = Timestamp::now();
                self.facts.departure = Departure::Underway { since, until: later(limit) };
                let (client, namespace) =
                    (self.context.client.clone(), self.name.namespace.clone());
                let left = departure::left_everywhere(client, namespace, self.name.uid.clone());
                self.leaving = Some(Box::pin(left));
            }
            PodStep::CreateSandbox => {
                self.create_sandbox().await;
                // Whoever waits for the address need not wait for the images.
                self.write_status().await;
            }
            PodStep::Pull(container) => self.pull(&container).await,
            PodStep::BackOffPull(container) => self.back_off_pull(&container),
            PodStep::Start(container) => self.start(&container).await,
            PodStep::Stop { container, grace } => {
                self.stop(&container, grace, &format!("Stopping container {container}"));
            }
            PodStep::Replace { container, grace, message } => {
                self.replace(&container, grace, &message);
            }
            PodStep::Resize => self.apply_resize().await,
            PodStep::RestartAll => restart_all(&self.pod, &mut self.facts),
            PodStep::Signal(container) => self.signal(&container),
            PodStep::Kill(container) => self.kill(&container),
            PodStep::Fail(failure) => {
                let message = failure.message.clone();
                self.context.events.normal(&self.pod, None, failure.reason, message);
                self.facts.failure = Some(failure);
            }
            PodStep::RemoveSandbox => {
                match self.context.runtime.containers.remove_sandbox(&self.name).await {
                    Ok(()) => self.facts.sandbox = Sandbox::Removed,
                    Err(error) => {
                        warn!(pod = %self.title(), %error, "cannot remove the sandbox, will retry");
                        time::sleep(RETRY).await;
                    }
                }
            }
            PodStep::Finish => return self.finish().await,
        }
        Progress::GoingOn
    }

    fn title(&self) -> String {
        format!("{}/{}", self.name.namespace, self.name.name)
    }

    async fn create_sandbox(&mut self) {
        let policy = policy(&self.context.config);
        if let Some(why) = forbidden_host_network(&self.pod, policy) {
            self.explain_waiting(Some(&why));
            let message = format!("Failed to create pod sandbox: {why}");
            return self.sandbox_failed("FailedCreatePodSandBox", message);
        }
        if let Err(message) = self.prepare_volumes().await {
            self.explain_waiting(Some(&message));
            return self.sandbox_failed("FailedMount", message);
        }
        self.explain_waiting(None);
        if recovery::lose_sandbox(&self.pod, &mut self.facts) {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.context.events.normal(&self.pod, None, "SandboxChanged", text);
        }
        let node = &self.context.config;
        let hostname = match kernel_name(&self.pod, &node.cluster_domain, &node.node_name) {
            Ok(hostname) => hostname,
            Err(why) => {
                let message = format!("Failed to create pod sandbox: {why}");
                return self.sandbox_failed("FailedCreatePodSandBox", message);
            }
        };
        let order = SandboxOrder::of(&self.pod, hostname, &node.unsafe_sysctls);
        match self.context.runtime.containers.create_sandbox(&self.name, order).await {
            Ok(addresses) => {
                self.facts.addresses = Some(addresses);
                self.policies_awaited = false;
                self.facts.sandbox = Sandbox::Ready;
            }
            Err(error) => {
                let message = format!("Failed to create pod sandbox: {}", in_full(&error));
                self.sandbox_failed("FailedCreatePodSandBox", message);
            }
        }
    }

    /// Says at the containers that wait what they wait for.
    fn explain_waiting(&mut self, message: Option<&str>) {
        let spec = self.pod.spec.iter();
        let all =
            spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        for container in all {
            let facts = self.facts.containers.entry(container.name.clone()).or_default();
            if let State::Waiting { message: shown, .. } = &mut facts.state {
                *shown = message.map(str::to_owned);
            }
        }
    }

    fn sandbox_failed(&mut self, reason: &'static str, message: String) {
        let before = match self.facts.sandbox {
            Sandbox::Failed { delay, .. } => Some(delay),
            _ => None,
        };
        let delay = backoff::after_failed_start(before);
        warn!(pod = %self.title(), reason, message, "the pod cannot start");
        self.context.events.warning(&self.pod, None, reason, message);
        self.facts.sandbox = Sandbox::Failed { retry_at: later(delay), delay };
    }

    fn find(&self, name: &str) -> Option<Container> {
        let spec = self.pod.spec.as_ref()?;
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        let found = all.find(|container| container.name == name).cloned();
        found.or_else(|| ephemeral::find(spec, name).map(ephemeral::as_container))
    }

    fn is_ephemeral(&self, name: &str) -> bool {
        let spec = self.pod.spec.iter();
        let mut all = spec.flat_map(|spec| spec.ephemeral_containers.iter().flatten());
        all.any(|container| container.name == name)
    }

    /// Waits until something happens, and takes it in.
    async fn wait(&mut self, wanted: &mut watch::Receiver<PodUpdate>, wake_at: Option<Timestamp>) {
        let until = wake_at.map(|at| Instant::now() + from_now(at));
        let times = [until, self.write_again_at, self.volumes.wake_at()];
        let wake = times.into_iter().flatten().min();
        tokio::select! {
            // Of one that is gone there is no more news.
            changed = wanted.changed(), if self.presence == Presence::Present => match changed {
                Ok(()) => self.wanted(wanted.borrow_and_update().clone()),
                // The agent is gone: its task ends us soon.
                Err(_) => std::future::pending().await,
            },
            Some((name, exit)) = self.exits.next() => self.ended(&name, exit),
            Some(pull) = self.pulls.next() => self.pull_finished(pull),
            Some(report) = self.probes.next() => self.probed(report),
            Some(report) = self.hooks.next() => self.hook_ended(report),
            () = self.volumes.next_change() => {}
            Ok(()) = self.freed.changed(), if self.facts.resize.pending.is_some() => {}
            () = finished(&mut self.leaving) => {
                self.leaving = None;
                self.facts.departure = self.facts.departure.end(Timestamp::now());
            }
            () = sleep_until(wake) => {}
        }
    }

    fn wanted(&mut self, wanted: PodUpdate) {
        let before = self.pod.clone();
        // What files and variables say of the pod itself may be out of date.
        self.volumes.changed |= self.pod.metadata.labels != wanted.pod.metadata.labels
            || self.pod.metadata.annotations != wanted.pod.metadata.annotations;
        self.take_in(wanted.pod);
        self.presence = wanted.presence;
        if self.mirror != wanted.mirror {
            // Another object has to be told everything.
            self.written = None;
            self.mirror = wanted.mirror;
        }
        if let Some(failure) = wanted.failure.filter(|_| self.facts.failure.is_none()) {
            self.evict(failure);
        }
        if before.spec != self.pod.spec {
            // Another image may exist where the last one did not: try at once.
            let all = self.facts.containers.values_mut();
            for container in all {
                container.image = None;
                if matches!(container.state, State::Waiting { .. }) {
                    container.retry_at = None;
                }
            }
        }
        self.hurry();
    }

    /// The node is short of something: the pod has no time to end by itself.
    fn evict(&mut self, failure: PodFailure) {
        self.context.events.warning(&self.pod, None, failure.reason, failure.message.clone());
        self.facts.failure = Some(failure);
        for container in self.facts.containers.keys() {
            self.context.runtime.containers.stop(&self.name, container, Stop::Now);
        }
    }

    /// A warning about a container of a pod that somebody still knows.
    fn event(&self, container: &str, reason: &'static str, message: &str) {
        if self.presence == Presence::Present {
            self.context.events.warning(&self.pod, Some(container), reason, message);
        }
    }

    /// Writes the status if it is not what we wrote last.
    async fn write_status(&mut self) {
        let now = Instant::now();
        if self.presence == Presence::Gone || self.write_again_at.is_some_and(|at| at > now) {
            return;
        }
        self.write_again_at = None;
        let host = self.context.config.internal_ips;
        let before = recovery::with_last_status(&self.pod, self.written.as_ref());
        let status = plan_status(&before, &self.facts, host, Timestamp::now());
        if self.written.as_ref() == Some(&status) {
            return;
        }
        let mut shown = self.name.clone();
        if is_static(&self.pod) {
            // It will be written when there is something to write it to.
            let Some(mirror) = self.mirror.clone() else { return };
            shown.uid = mirror;
        }
        match pod_api::write_status(&self.context.client, &shown, &status).await {
            Ok(()) => self.written = Some(status),
            Err(error) => {
                warn!(pod = %self.title(), error, "cannot write the status, will retry");
                self.write_again_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Forgets the pod, and lets the API forget it.
    async fn finish(&mut self) -> Progress {
        self.write_status().await;
        if self.write_again_at.is_some() {
            // Whoever waits for the end must be able to see how it ended.
            time::sleep(RETRY).await;
            return Progress::GoingOn;
        }
        if let Err(error) = self.context.runtime.containers.remove(&self.name).await {
            warn!(pod = %self.title(), %error, "cannot remove the pod, will retry");
            time::sleep(RETRY).await;
            return Progress::GoingOn;
        }
        info!(pod = %self.title(), "removed");
        if self.presence == Presence::Gone {
            return Progress::Finished;
        }
        if let Err(error) = pod_api::delete(&self.context.client, &self.name).await {
            warn!(pod = %self.title(), error, "cannot delete the pod, will retry");
            time::sleep(RETRY).await;
            return Progress::GoingOn;
        }
        Progress::Finished
    }
}

fn later(delay: Duration) -> Timestamp {
    after(Timestamp::now(), delay)
}

fn from_now(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
}

async fn finished(work: &mut Option<BoxFuture<'static, ()>>) {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
