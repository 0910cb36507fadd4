//! The agent's main task: gives each pod of this node a worker.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_api::requests::Requests;
use roadstead_pod::downward::Allocatable;
use roadstead_pod::facts::PodFailure;
use roadstead_pod::lifecycle::Presence;
use roadstead_pod::recovery::RecoveredPod;
use roadstead_pod::static_pods::is_mirror;
use roadstead_watch::events::Severity;
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::allocations::Allocations;
use crate::config::{Config, NodeError};
use crate::heartbeat::Beat;
use crate::housekeeping::{Eviction, Housekeeper};
use crate::image_gc::ImageCollector;
use crate::images::StoredImages;
use crate::manifests::Manifests;
use crate::mirrors::Mirrors;
use crate::objects::Objects;
use crate::policy_gate::PolicyGate;
use crate::probe_counts::ProbeCounts;
use crate::runtime::Runtime;
use crate::runtime::builtin::{self, BuiltinRuntime, Removed};
#[cfg(feature = "cri")]
use crate::runtime::cri::{self, CriRuntime};
use crate::services::Services;
use crate::serving::{self, KnownPods, PodServer, secure};
use crate::worker::{self, Admission, Arrival, Context, PodUpdate};
use crate::{events, heartbeat, machine, measure, storage};

/// Runs the node until `stop`. Its containers go on: the next agent takes them over, and
/// [`cleanup`] removes them. What comes over the streams of `incoming` is trusted: see [`serving`].
pub async fn run(
    client: Client,
    config: Config,
    incoming: mpsc::Receiver<DuplexStream>,
    stop: CancellationToken,
) -> Result<(), NodeError> {
    let executable = std::env::current_exe().map_err(NodeError::Process)?;
    let runtime = match &config.runtime_endpoint {
        Some(socket) => other_runtime(&config, socket, &executable).await?,
        None => {
            let containers = BuiltinRuntime::start(&config, executable).await?;
            Runtime::new(containers, StoredImages::open(&config)?)
        }
    };
    run_with(client, (config, runtime), incoming, stop).await
}

#[cfg(feature = "cri")]
async fn other_runtime(
    config: &Config,
    socket: &Path,
    executable: &Path,
) -> Result<Runtime, NodeError> {
    let (containers, images) = CriRuntime::start(config, socket, executable).await?;
    Ok(Runtime::new(containers, images))
}

#[cfg(not(feature = "cri"))]
async fn other_runtime(_: &Config, socket: &Path, _: &Path) -> Result<Runtime, NodeError> {
    let source = std::io::Error::other("this executable was built without the feature `cri`");
    Err(NodeError::State { path: socket.to_owned(), source })
}

/// Removes everything that the agent has made on this machine: pods, links, routes and files. The API
/// objects stay. Fails if an agent still runs.
pub async fn cleanup(config: &Config) -> Result<Removed, NodeError> {
    #[cfg(feature = "cri")]
    if let Some(socket) = config.runtime_endpoint.as_ref().filter(|_| config.state_dir.exists()) {
        return cri::cleanup(config, socket).await;
    }
    builtin::cleanup(config).await
}

/// Runs the node with a certain runtime.
pub async fn run_with(
    client: Client,
    (config, runtime): (Config, Runtime),
    incoming: mpsc::Receiver<DuplexStream>,
    stop: CancellationToken,
) -> Result<(), NodeError> {
    let runtime = runtime.with_parts(&config);
    let known = KnownPods::default();
    let (measured, measurements) = watch::channel(None);
    let probe_counts = ProbeCounts::default();
    let server = PodServer::new(known.clone(), runtime.containers.clone());
    let server = server.showing(&config.node_name, measurements, probe_counts.clone());
    let shown = server.clone();
    config.component.state.register("node", move || shown.state());
    let (recorder, writer) = events::Recorder::new(client.clone(), &config.node_name);
    let mut tasks = JoinSet::new();
    if let Some(port) = config.secure_port.clone() {
        let failed = |source| NodeError::Listen { address: port.listen, source };
        let listener = TcpListener::bind(port.listen).await.map_err(failed)?;
        let strangers =
            secure::run((server.clone(), client.clone()), (listener, port), stop.clone());
        tasks.spawn(async { (strangers.await, "port").1 });
    }
    let (short_of, pressures) = watch::channel(Vec::new());
    let beat = Beat {
        client: client.clone(),
        config: config.clone(),
        events: recorder.clone(),
        images: runtime.images.clone(),
        containers: runtime.containers.clone(),
        pressures,
    };
    let beat = heartbeat::run(beat, stop.clone());
    tasks.spawn(async { (beat.await, "heartbeat").1 });
    let (evictions, evicted) = mpsc::channel(16);
    let images = (runtime.images.clone(), known.clone(), recorder.clone());
    let housekeeper = Housekeeper {
        config: config.clone(),
        containers: runtime.containers.clone(),
        pods: known.clone(),
        images: ImageCollector::new(&config, images.0, images.1, images.2),
        pressures: short_of,
        evictions,
    };
    let keeping = housekeeper.run(stop.clone());
    tasks.spawn(async { (keeping.await, "housekeeping").1 });
    let looks = measure::run(runtime.containers.clone(), config.clone(), measured, stop.clone());
    tasks.spawn(async { (looks.await, "measurements").1 });
    let events = events::run(writer, stop.clone());
    tasks.spawn(async { (events.await, "events").1 });
    for note in runtime.containers.notes() {
        warn!(reason = note.reason, note.message, "the operator should know");
        recorder.of_node(Severity::Warning, &config.node_name, note.reason, note.message);
    }
    let (removal, stopped) = (storage::run(client.clone(), config.node_name.clone()), stop.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = stopped.cancelled() => {}
            () = removal => {}
        }
        "storage"
    });
    let services = Services::new(client.clone());
    let objects = Objects::new(client.clone());
    let policy_gate = PolicyGate::new(config.policies.expected);
    let room = machine::room(&config);
    let Requests { cpu, memory, storage } = room.allocatable;
    let context = Arc::new(Context {
        allocations: Allocations::new(room),
        allocatable: Allocatable { cpu_milli: cpu, memory, storage },
        client,
        config,
        runtime,
        events: recorder,
        services,
        objects,
        probe_counts,
        policy_gate,
    });
    let (kept, stopped) = (context.clone(), stop.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = stopped.cancelled() => {}
            () = kept.runtime.containers.maintain() => {}
        }
        "runtime"
    });
    let served = serving::run(server, incoming, stop.clone());
    tasks.spawn(async { (served.await, "serving").1 });
    let pods = Pods::new(context, known).run(evicted, stop.clone());
    tasks.spawn(async { (pods.await, "pods").1 });
    while let Some(ended) = tasks.join_next().await {
        if !stop.is_cancelled() {
            return Err(NodeError::TaskEnded(ended.unwrap_or("panicked")));
        }
    }
    Ok(())
}

/// How soon what went wrong with a mirror is tried again.
const RECONCILE: Duration = Duration::from_secs(5);

/// The pods of this node and who works on them.
struct Pods {
    context: Arc<Context>,
    /// By uid, from the first time we see a pod until the API has removed it.
    wanted: HashMap<String, watch::Sender<PodUpdate>>,
    /// The uid of the pod that has a name now.
    uids: HashMap<ObjectKey, String>,
    /// What the runtime had at the start and no worker has taken yet.
    recovered: HashMap<String, RecoveredPod>,
    workers: JoinSet<()>,
    /// New pods that wait until all are known that were here before them; `None` when they are.
    newcomers: Option<Vec<Arc<Pod>>>,
    /// For those who ask for logs.
    known: KnownPods,
    /// Files of pods that this node runs by itself.
    manifests: Manifests,
    /// What the API shows of those.
    mirrors: Mirrors,
}

impl Pods {
    fn new(context: Arc<Context>, known: KnownPods) -> Self {
        let recovered = context.runtime.containers.recovered().into_iter();
        let recovered = recovered.map(|pod| (pod.pod.uid.clone(), pod)).collect();
        Self {
            manifests: Manifests::new(context.config.manifests.clone(), &context.config.node_name),
            mirrors: Mirrors::new(context.client.clone(), &context.config.node_name),
            context,
            wanted: HashMap::new(),
            uids: HashMap::new(),
            recovered,
            workers: JoinSet::new(),
            newcomers: Some(Vec::new()),
            known,
        }
    }

    async fn run(mut self, mut evicted: mpsc::Receiver<Eviction>, stop: CancellationToken) {
        let fields = format!("spec.nodeName={}", self.context.config.node_name);
        let api: Api<Pod> = Api::all(self.context.client.clone());
        let mut changes = informer(api, Selection::all().fields(&fields));
        let mut again = time::interval(RECONCILE);
        self.read_manifests();
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.workers.shutdown().await,
                Some(change) = changes.next() => self.observe(change),
                Some((uid, failure)) = evicted.recv() => self.evict(&uid, failure),
                () = self.manifests.changed() => self.read_manifests(),
                _ = again.tick() => self.mirrors.reconcile_all(),
                // A worker that panicked takes the agent with it.
                Some(ended) = self.workers.join_next() => if ended.is_err() { return },
                else => return,
            }
        }
    }

    fn observe(&mut self, change: Change<Arc<Pod>>) {
        match change {
            Change::Set(pod) if is_mirror(&pod) => {
                let key = key_of(pod.as_ref());
                self.mirrors.show(pod);
                self.want_static(&key);
            }
            Change::Set(pod) if self.mirrors.is_static(&key_of(pod.as_ref())) => {
                warn!(
                    pod = pod.name_any(),
                    "a pod of the API has the name of one of this node's own"
                );
            }
            Change::Set(pod) => self.set(PodUpdate::of(pod)),
            Change::Gone(key, _) if self.mirrors.hide(&key) => self.want_static(&key),
            Change::Gone(key, _) => self.gone(key),
            Change::Synced => {
                self.mirrors.begin();
                self.take_newcomers();
                self.remove_unwanted();
            }
        }
    }

    fn set(&mut self, update: PodUpdate) {
        self.known.set(update.pod.clone());
        self.uids.insert(key_of(update.pod.as_ref()), update.pod.uid().unwrap_or_default());
        self.want(update);
    }

    /// Brings a static pod up to date with what is shown of it.
    fn want_static(&mut self, key: &ObjectKey) {
        self.mirrors.reconcile(key);
        if let Some(update) = self.mirrors.update(key) {
            self.set(update);
        }
    }

    /// Takes in the files of static pods.
    fn read_manifests(&mut self) {
        let pods = self.manifests.read();
        let (gone, new) = self.mirrors.replace(pods);
        for key in gone {
            self.gone(key.clone());
            self.mirrors.reconcile(&key);
        }
        for key in new {
            self.want_static(&key);
        }
    }

    fn gone(&mut self, key: ObjectKey) {
        self.known.remove(&key);
        let uid = self.uids.remove(&key);
        self.context.probe_counts.forget(uid.as_deref().unwrap_or_default());
        self.context.allocations.free(uid.as_deref().unwrap_or_default());
        if let Some(known) = uid.and_then(|uid| self.wanted.remove(&uid)) {
            known.send_modify(|update| update.presence = Presence::Gone);
        }
    }

    fn want(&mut self, wanted: PodUpdate) {
        let uid = wanted.pod.uid().unwrap_or_default();
        if is_finished(&wanted.pod) {
            self.context.allocations.free(&uid);
        }
        if let Some(known) = self.wanted.get(&uid) {
            // Its worker may have finished already and wait for nothing more; or not have seen yet that
            // it has to go.
            known.send_modify(|update| {
                let failure = update.failure.take();
                *update = PodUpdate { failure, ..wanted };
            });
            return;
        }
        let recovered = self.recovered.remove(&uid);
        let is_settled = recovered.is_some() || is_settled(&wanted.pod);
        if let Some(newcomers) = self.newcomers.as_mut().filter(|_| !is_settled) {
            newcomers.retain(|known| known.uid() != wanted.pod.uid());
            return newcomers.push(wanted.pod);
        }
        let (allocations, sysctls) =
            (&self.context.allocations, &self.context.config.unsafe_sysctls);
        let admission = match is_settled {
            true => {
                if !is_finished(&wanted.pod) {
                    allocations.settle(&wanted.pod);
                }
                Admission::Settled
            }
            false => match allocations.admit(&wanted.pod, sysctls) {
                Ok(()) => Admission::New,
                Err(rejection) => Admission::Rejected(rejection),
            },
        };
        let (send, receive) = watch::channel(wanted);
        self.wanted.insert(uid, send);
        let work = worker::run(self.context.clone(), receive, Arrival { recovered, admission });
        self.workers.spawn(work);
    }

    /// All pods are known that were here before: now those may come in, in the order of their age.
    fn take_newcomers(&mut self) {
        let mut newcomers = self.newcomers.take().unwrap_or_default();
        newcomers.sort_by_key(|pod| pod.creation_timestamp());
        for pod in newcomers {
            let is_there = self.uids.get(&key_of(pod.as_ref())) == pod.uid().as_ref();
            if is_there {
                self.want(PodUpdate::of(pod));
            }
        }
    }

    fn evict(&mut self, uid: &str, failure: PodFailure) {
        if let Some(known) = self.wanted.get(uid) {
            known.send_modify(|update| update.failure = Some(failure));
        }
    }

    /// Pods that the API does not have were deleted while no agent ran.
    fn remove_unwanted(&mut self) {
        for (_, recovered) in self.recovered.drain() {
            let context = self.context.clone();
            info!(
                pod = recovered.pod.name,
                namespace = recovered.pod.namespace,
                "removing a pod that is gone"
            );
            self.workers.spawn(async move {
                if let Err(error) = context.runtime.containers.remove(&recovered.pod).await {
                    error!(pod = recovered.pod.name, %error, "cannot remove a pod");
                }
            });
        }
    }
}

/// Whether an agent has taken the pod before, or nobody needs to any more.
fn is_settled(pod: &Pod) -> bool {
    let has_begun = pod.status.as_ref().is_some_and(|status| status.start_time.is_some());
    has_begun || is_finished(pod) || pod.metadata.deletion_timestamp.is_some()
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
