//! The worker of one pod: asks `lifecycle` what to do, does it, and reports the status.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::{self, Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::events::Recorder;
use crate::facts::{ContainerFacts, Exit, PodFacts, Sandbox, State};
use crate::lifecycle::{Presence, Step, grace_period, plan, will_restart};
use crate::order::{Circumstances, on_host_network, plan_order, pod_name};
use crate::probe::{Check, Kind, Outcome, Schedule, Tally, Verdict, step};
use crate::prober::{self, Assignment, Report};
use crate::runtime::{
    ContainerOrder, PodName, PodNetwork, PodRuntime, RecoveredPod, StartError, StartedContainer,
    Stop,
};
use crate::services::Services;
use crate::status::plan_status;
use crate::{backoff, pod_api, recovery, volumes};

/// After a failure of the API or of the runtime.
const RETRY: Duration = Duration::from_secs(1);

/// What all workers share.
pub(crate) struct Context<R> {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) runtime: R,
    pub(crate) events: Recorder,
    pub(crate) services: Services,
}

/// The newest state of the pod in the API.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) pod: Arc<Pod>,
    pub(crate) presence: Presence,
}

/// Works on a pod until it is gone.
pub(crate) async fn run<R: PodRuntime>(
    context: Arc<Context<R>>,
    mut wanted: watch::Receiver<Wanted>,
    recovered: Option<RecoveredPod>,
) {
    let first = wanted.borrow_and_update().clone();
    let facts = recovery::facts(&first.pod, recovered, Timestamp::now());
    let mut worker = Worker::new(context, first, facts);
    worker.resume();
    loop {
        let next = plan(&worker.pod, worker.presence, &worker.facts, Timestamp::now());
        if !next.steps.is_empty() {
            for step in next.steps {
                if worker.take(step).await == Progress::Finished {
                    return;
                }
            }
            continue;
        }
        worker.write_status().await;
        worker.wait(&mut wanted, next.wake_at).await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Progress {
    GoingOn,
    Finished,
}

struct Worker<R> {
    context: Arc<Context<R>>,
    name: PodName,
    pod: Arc<Pod>,
    presence: Presence,
    facts: PodFacts,
    exits: FuturesUnordered<BoxFuture<'static, (String, Exit)>>,
    probes: HashMap<(String, Kind), Probing>,
    reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
    /// When a container that was asked to end is killed.
    deadlines: BTreeMap<String, Instant>,
    written: Option<PodStatus>,
    write_again_at: Option<Instant>,
}

/// A probe under way; dropping it ends it.
struct Probing {
    tally: Tally,
    schedule: Schedule,
    _task: AbortOnDropHandle<()>,
}

impl<R: PodRuntime> Worker<R> {
    fn new(context: Arc<Context<R>>, wanted: Wanted, facts: PodFacts) -> Self {
        let (report, reports) = mpsc::channel(16);
        Self {
            name: pod_name(&wanted.pod),
            context,
            pod: wanted.pod,
            presence: wanted.presence,
            facts,
            exits: FuturesUnordered::new(),
            probes: HashMap::new(),
            reports,
            report,
            deadlines: BTreeMap::new(),
            written: None,
            write_again_at: None,
        }
    }

    /// Follows the containers that were running before we came.
    fn resume(&mut self) {
        self.facts.start_time.get_or_insert_with(Timestamp::now);
        let running = self.facts.containers.iter().filter_map(|(name, container)| {
            let State::Running { id, .. } = &container.state else { return None };
            Some((name.clone(), id.clone(), container.started))
        });
        for (name, id, started) in running.collect::<Vec<_>>() {
            self.follow(&name);
            self.start_probes(&name, &id, started);
        }
    }

    async fn take(&mut self, step: Step) -> Progress {
        match step {
            Step::CreateSandbox => self.create_sandbox().await,
            Step::Start(container) => self.start(&container).await,
            Step::Stop { container, grace } => {
                let message = format!("Stopping container {container}");
                self.context.events.normal(&self.pod, Some(&container), "Killing", message);
                self.stop(&container, grace);
            }
            Step::RemoveSandbox => match self.context.runtime.remove_sandbox(&self.name).await {
                Ok(()) => self.facts.sandbox = Sandbox::Removed,
                Err(error) => {
                    warn!(pod = %self.title(), %error, "cannot remove the sandbox, will retry");
                    time::sleep(RETRY).await;
                }
            },
            Step::Finish => return self.finish().await,
        }
        Progress::GoingOn
    }

    fn title(&self) -> String {
        format!("{}/{}", self.name.namespace, self.name.name)
    }

    async fn create_sandbox(&mut self) {
        if let Some(message) = volumes::missing(&self.pod) {
            let all = self
                .pod
                .spec
                .iter()
                .flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
            for container in all {
                let facts = self.facts.containers.entry(container.name.clone()).or_default();
                if let State::Waiting { message: shown, .. } = &mut facts.state {
                    *shown = Some(message.clone());
                }
            }
            return self.sandbox_failed("FailedMount", message);
        }
        for volume in volumes::left_out(&self.pod) {
            let message = format!(
                "MountVolume.SetUp failed for volume {volume:?} : tokens are not supported by this node yet, the pod runs without"
            );
            self.context.events.warning(&self.pod, None, "FailedMount", message);
        }
        let network = match on_host_network(&self.pod) {
            true => PodNetwork::Host,
            false => PodNetwork::Own,
        };
        match self.context.runtime.create_sandbox(&self.name, network).await {
            Ok(address) => {
                self.facts.address = Some(address);
                self.facts.sandbox = Sandbox::Ready;
            }
            Err(error) => {
                let message = format!("Failed to create pod sandbox: {}", chain(&error));
                self.sandbox_failed("FailedCreatePodSandBox", message);
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

    async fn start(&mut self, name: &str) {
        let Some(container) = self.find(name) else { return };
        let known = self.facts.containers.get(name);
        let restarts = known.map_or(0, |known| match known.state {
            State::Exited(_) => known.restarts + 1,
            _ => known.restarts,
        });
        let links = self.context.services.links(&self.pod).await;
        let result = match links.and_then(|links| self.order(&container, restarts, &links)) {
            Ok(order) => self.context.runtime.start(order).await,
            Err(message) => {
                Err(StartError::Waiting { reason: "CreateContainerConfigError", message })
            }
        };
        match result {
            Ok(started) => self.started(&container, started, restarts),
            Err(StartError::Waiting { reason, message }) => self.refused(name, reason, message),
            Err(StartError::Failed(message)) => {
                self.context.events.warning(
                    &self.pod,
                    Some(name),
                    "Failed",
                    format!("Error: {message}"),
                );
                self.facts.containers.entry(name.into()).or_default().restarts = restarts;
                let now = Timestamp::now();
                self.ended(
                    name,
                    Exit {
                        id: String::new(),
                        code: 128,
                        reason: "StartError".into(),
                        message: Some(message),
                        started_at: now,
                        finished_at: now,
                    },
                );
            }
        }
    }

    fn find(&self, name: &str) -> Option<Container> {
        let spec = self.pod.spec.as_ref()?;
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        all.find(|container| container.name == name).cloned()
    }

    fn order(
        &self,
        container: &Container,
        restarts: i32,
        links: &[(String, String)],
    ) -> Result<ContainerOrder, String> {
        let config = &self.context.config;
        let address = self.facts.address.unwrap_or(config.internal_ip);
        let circumstances = Circumstances { address, restarts, links, config };
        let (order, notes) = plan_order(&self.pod, container, &circumstances)?;
        for note in notes {
            self.context.events.warning(&self.pod, None, "DNSConfigForming", note);
        }
        Ok(order)
    }

    fn started(&mut self, container: &Container, started: StartedContainer, restarts: i32) {
        let name = &container.name;
        info!(pod = %self.title(), container = name, restarts, "started");
        let events = &self.context.events;
        let image = container.image.as_deref().unwrap_or_default();
        let message = format!("Container image {image:?} already present on machine");
        events.normal(&self.pod, Some(name), "Pulled", message);
        events.normal(&self.pod, Some(name), "Created", format!("Created container: {name}"));
        events.normal(&self.pod, Some(name), "Started", format!("Started container {name}"));
        let is_started = container.startup_probe.is_none();
        let facts = self.facts.containers.entry(name.clone()).or_default();
        let running =
            State::Running { id: started.id.clone(), since: started.since, stopping: false };
        if let State::Exited(exit) = std::mem::replace(&mut facts.state, running) {
            facts.last = Some(exit);
        }
        facts.restarts = restarts;
        facts.started = is_started;
        facts.ready = is_started && container.readiness_probe.is_none();
        facts.retry_at = None;
        self.follow(name);
        self.start_probes(name, &started.id, is_started);
    }

    fn refused(&mut self, name: &str, reason: &'static str, message: String) {
        self.context.events.warning(
            &self.pod,
            Some(name),
            "Failed",
            format!("Error: {reason}: {message}"),
        );
        let facts = self.facts.containers.entry(name.into()).or_default();
        let delay = backoff::after_failed_start(facts.delay);
        facts.delay = Some(delay);
        facts.retry_at = Some(later(delay));
        let before =
            std::mem::replace(&mut facts.state, State::Waiting { reason, message: Some(message) });
        if let State::Exited(exit) = before {
            facts.last = Some(exit);
            facts.restarts += 1;
        }
    }

    /// Lets us know when the container ends.
    fn follow(&mut self, name: &str) {
        let wait = self.context.runtime.wait(&self.name, name);
        let name = name.to_owned();
        self.exits.push(Box::pin(async move { (name, wait.await) }));
    }

    fn ended(&mut self, name: &str, exit: Exit) {
        self.probes.retain(|(container, _), _| container != name);
        self.deadlines.remove(name);
        let Some(container) = self.find(name) else { return };
        let facts = self.facts.containers.entry(name.into()).or_default();
        let ran_for = exit.finished_at.duration_since(exit.started_at);
        let delay = backoff::after_exit(facts.delay, ran_for.unsigned_abs());
        let again = will_restart(&self.pod, &container, &exit);
        debug!(container = name, code = exit.code, again, "ended");
        facts.retry_at = again.then(|| later(delay));
        facts.delay = Some(delay);
        facts.ready = false;
        facts.started = false;
        facts.state = State::Exited(exit);
        if again && !delay.is_zero() {
            let message = format!(
                "Back-off restarting failed container {name} in pod {}_{}({})",
                self.name.name, self.name.namespace, self.name.uid
            );
            self.context.events.warning(&self.pod, Some(name), "BackOff", message);
        }
    }

    /// Asks the container to end, and kills it after the grace period.
    fn stop(&mut self, name: &str, grace: Duration) {
        if let Some(ContainerFacts { state: State::Running { stopping, .. }, .. }) =
            self.facts.containers.get_mut(name)
        {
            *stopping = true;
        }
        // It stays ready until it has ended, but it is not asked any more whether it lives.
        self.probes.retain(|(container, kind), _| container != name || *kind == Kind::Readiness);
        if grace.is_zero() {
            return self.context.runtime.stop(&self.name, name, Stop::Now);
        }
        self.context.runtime.stop(&self.name, name, Stop::Gracefully);
        self.deadlines.insert(name.into(), Instant::now() + grace);
    }

    fn start_probes(&mut self, name: &str, id: &str, started: bool) {
        let kinds: &[Kind] =
            if started { &[Kind::Readiness, Kind::Liveness] } else { &[Kind::Startup] };
        let (Some(container), Some(address)) = (self.find(name), self.facts.address) else {
            return;
        };
        for kind in kinds {
            let Some(probe) = kind.of(&container) else { continue };
            let schedule = Schedule::of(probe);
            match Check::of(probe, &container) {
                Ok(check) => {
                    let assignment = Assignment {
                        container: name.into(),
                        id: id.into(),
                        kind: *kind,
                        check,
                        schedule: schedule.clone(),
                        address,
                    };
                    let task = tokio::spawn(prober::run(assignment, self.report.clone()));
                    let _task = AbortOnDropHandle::new(task);
                    let probing = Probing { tally: Tally::default(), schedule, _task };
                    self.probes.insert((name.into(), *kind), probing);
                }
                // Not ready and not killed: the container must not seem better than it is, nor
                // die of what we cannot do.
                Err(message) => self.unhealthy(name, *kind, &message),
            }
        }
    }

    fn unhealthy(&self, container: &str, kind: Kind, message: &str) {
        let message = format!("{} probe failed: {message}", kind.title());
        self.context.events.warning(&self.pod, Some(container), "Unhealthy", message);
    }

    fn probed(&mut self, report: Report) {
        let Report { container, id, kind, outcome } = report;
        let Some(facts) = self.facts.containers.get_mut(&container) else { return };
        let is_current = matches!(&facts.state, State::Running { id: now, .. } if *now == id);
        let Some(probing) = self.probes.get_mut(&(container.clone(), kind)) else { return };
        if !is_current {
            return;
        }
        let (tally, verdict) = step(probing.tally, &outcome, probing.schedule.thresholds);
        probing.tally = tally;
        match (kind, verdict) {
            (_, Verdict::Undecided) | (Kind::Liveness, Verdict::Passing) => {}
            (Kind::Readiness, verdict) => facts.ready = verdict == Verdict::Passing,
            (Kind::Startup, Verdict::Passing) => self.startup_passed(&container, &id),
            (Kind::Startup | Kind::Liveness, Verdict::Failing) => {}
        }
        if let Outcome::Failure(message) = &outcome {
            self.unhealthy(&container, kind, message);
        }
        if verdict == Verdict::Failing && kind != Kind::Readiness {
            self.kill_unhealthy(&container, kind);
        }
    }

    fn startup_passed(&mut self, name: &str, id: &str) {
        self.probes.remove(&(name.to_owned(), Kind::Startup));
        let waits = self.find(name).is_some_and(|container| container.readiness_probe.is_some());
        if let Some(facts) = self.facts.containers.get_mut(name) {
            facts.started = true;
            facts.ready = !waits;
        }
        self.start_probes(name, id, true);
    }

    fn kill_unhealthy(&mut self, name: &str, kind: Kind) {
        let title = kind.title().to_lowercase();
        let message = format!("Container {name} failed {title} probe, will be restarted");
        self.context.events.normal(&self.pod, Some(name), "Killing", message);
        let container = self.find(name);
        let own = container
            .as_ref()
            .and_then(|container| kind.of(container)?.termination_grace_period_seconds);
        let grace = own.map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs()));
        self.stop(name, grace.unwrap_or_else(|| grace_period(&self.pod)));
    }

    /// Waits until something happens, and takes it in.
    async fn wait(&mut self, wanted: &mut watch::Receiver<Wanted>, wake_at: Option<Timestamp>) {
        let until = wake_at.map(|at| Instant::now() + from_now(at));
        let deadline = self.deadlines.values().min().copied();
        let times = [until, deadline, self.write_again_at];
        let wake = times.into_iter().flatten().min();
        tokio::select! {
            changed = wanted.changed() => match changed {
                Ok(()) => self.wanted(wanted.borrow_and_update().clone()),
                // The agent is gone: its task ends us soon.
                Err(_) => std::future::pending().await,
            },
            Some((name, exit)) = self.exits.next() => self.ended(&name, exit),
            Some(report) = self.reports.recv() => self.probed(report),
            () = sleep_until(wake) => self.kill_overdue(),
        }
    }

    fn wanted(&mut self, wanted: Wanted) {
        let spec_changed = self.pod.spec != wanted.pod.spec;
        self.pod = wanted.pod;
        self.presence = wanted.presence;
        if spec_changed {
            // Another image may exist where the last one did not: try at once.
            let all = self.facts.containers.values_mut();
            for container in all.filter(|c| matches!(c.state, State::Waiting { .. })) {
                container.retry_at = None;
            }
        }
        // Somebody may have lost patience since the deletion began.
        let latest = Instant::now() + grace_period(&self.pod);
        self.deadlines.values_mut().for_each(|deadline| *deadline = latest.min(*deadline));
    }

    fn kill_overdue(&mut self) {
        let now = Instant::now();
        let overdue = self.deadlines.extract_if(.., |_, deadline| *deadline <= now);
        for (name, _) in overdue {
            self.context.runtime.stop(&self.name, &name, Stop::Now);
        }
    }

    /// Writes the status if it is not what we wrote last.
    async fn write_status(&mut self) {
        let now = Instant::now();
        if self.presence == Presence::Gone || self.write_again_at.is_some_and(|at| at > now) {
            return;
        }
        self.write_again_at = None;
        let host = self.context.config.internal_ip;
        let before = recovery::with_last_status(&self.pod, self.written.as_ref());
        let status = plan_status(&before, &self.facts, host, Timestamp::now());
        if self.written.as_ref() == Some(&status) {
            return;
        }
        match pod_api::write_status(&self.context.client, &self.name, &status).await {
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
        if let Err(error) = self.context.runtime.remove(&self.name).await {
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
    Timestamp::now() + SignedDuration::try_from(delay).unwrap_or(SignedDuration::ZERO)
}

fn from_now(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// An error with its causes, for events.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
