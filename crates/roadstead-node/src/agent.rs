//! The agent's main task: gives each pod of this node a worker.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use roadstead_watch::informer::{Change, Selection, informer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::config::{Config, NodeError};
use crate::lifecycle::Presence;
use crate::runtime::builtin::BuiltinRuntime;
pub use crate::runtime::builtin::cleanup;
use crate::runtime::{PodRuntime, RecoveredPod};
use crate::services::Services;
use crate::worker::{self, Context, Wanted};
use crate::{events, heartbeat};

/// Runs the node until `stop`. Its containers go on: the next agent takes them over, and
/// [`cleanup`] removes them.
pub async fn run(client: Client, config: Config, stop: CancellationToken) -> Result<(), NodeError> {
    let executable = std::env::current_exe().map_err(NodeError::Process)?;
    let runtime = BuiltinRuntime::start(&config, executable).await?;
    run_with(client, config, runtime, stop).await
}

/// Runs the node with a certain runtime.
pub async fn run_with<R: PodRuntime>(
    client: Client,
    config: Config,
    runtime: R,
    stop: CancellationToken,
) -> Result<(), NodeError> {
    let (recorder, writer) = events::Recorder::new(client.clone(), &config.node_name);
    let mut tasks = JoinSet::new();
    let beat = heartbeat::run(client.clone(), config.clone(), stop.clone());
    tasks.spawn(async { (beat.await, "heartbeat").1 });
    let events = events::run(writer, stop.clone());
    tasks.spawn(async { (events.await, "events").1 });
    for note in runtime.notes() {
        recorder.of_node(&config.node_name, "MissingControlGroups", note);
    }
    let services = Services::new(client.clone());
    let context = Arc::new(Context { client, config, runtime, events: recorder, services });
    let (kept, stopped) = (context.clone(), stop.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = stopped.cancelled() => {}
            () = kept.runtime.maintain() => {}
        }
        "runtime"
    });
    let pods = Pods::new(context).run(stop.clone());
    tasks.spawn(async { (pods.await, "pods").1 });
    while let Some(ended) = tasks.join_next().await {
        if !stop.is_cancelled() {
            return Err(NodeError::TaskEnded(ended.unwrap_or("panicked")));
        }
    }
    Ok(())
}

/// The pods of this node and who works on them.
struct Pods<R> {
    context: Arc<Context<R>>,
    /// By uid, from the first time we see a pod until the API has removed it.
    wanted: HashMap<String, watch::Sender<Wanted>>,
    /// What the runtime had at the start and no worker has taken yet.
    recovered: HashMap<String, RecoveredPod>,
    workers: JoinSet<()>,
}

impl<R: PodRuntime> Pods<R> {
    fn new(context: Arc<Context<R>>) -> Self {
        let recovered = context.runtime.recovered().into_iter();
        let recovered = recovered.map(|pod| (pod.pod.uid.clone(), pod)).collect();
        Self { context, wanted: HashMap::new(), recovered, workers: JoinSet::new() }
    }

    async fn run(mut self, stop: CancellationToken) {
        let fields = format!("spec.nodeName={}", self.context.config.node_name);
        let api: Api<Pod> = Api::all(self.context.client.clone());
        let mut changes = informer(api, Selection::all().fields(&fields));
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.workers.shutdown().await,
                Some(change) = changes.next() => self.observe(change),
                // A worker that panicked takes the agent with it.
                Some(ended) = self.workers.join_next() => if ended.is_err() { return },
                else => return,
            }
        }
    }

    fn observe(&mut self, change: Change<Pod>) {
        match change {
            Change::Set(pod) => self.want(Wanted { pod, presence: Presence::Present }),
            Change::Gone(pod) => {
                let uid = pod.uid().unwrap_or_default();
                if let Some(known) = self.wanted.remove(&uid) {
                    let _ = known.send(Wanted { pod, presence: Presence::Gone });
                }
            }
            Change::Synced => self.remove_unwanted(),
        }
    }

    fn want(&mut self, wanted: Wanted) {
        let uid = wanted.pod.uid().unwrap_or_default();
        if let Some(known) = self.wanted.get(&uid) {
            // Its worker may have finished already and wait for nothing more.
            let _ = known.send(wanted);
            return;
        }
        let recovered = self.recovered.remove(&uid);
        let (send, receive) = watch::channel(wanted);
        self.wanted.insert(uid, send);
        let work = worker::run(self.context.clone(), receive, recovered);
        self.workers.spawn(work);
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
                if let Err(error) = context.runtime.remove(&recovered.pod).await {
                    error!(pod = recovered.pod.name, %error, "cannot remove a pod");
                }
            });
        }
    }
}
