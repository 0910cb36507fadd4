//! Pods made by another runtime, such as containerd, over the Container Runtime Interface.
//!
//! The runtime has images, sandboxes and containers, and remembers them; records, logs, volumes, addresses
//! and host ports are ours, as with the built-in runtime. What is in a sandbox's labels is all that is
//! needed to find it again.

mod client;
pub(crate) mod cni;
mod commands;
mod containers;
pub mod images;
mod messages;
mod order;
mod recovery;
mod run;
mod streaming;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};
use jiff::Timestamp;
use prost::Message;
use roadstead_grpc::status::Status;
use roadstead_pod::addresses::Addresses;
use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::env_file::VolumeFile;
use roadstead_pod::eviction::Consumption;
use roadstead_pod::facts::{Exit, StartedContainer};
use roadstead_pod::pod_name::{NetworkMode, PodName};
use roadstead_pod::recovery::RecoveredPod;
use roadstead_pod::resources::{Limits, Resources};
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_pod::usage::Usage;
use roadstead_pod::volumes::PodVolume;
use roadstead_pod::volumes::payload::Payload;
use tokio::net::TcpStream;
use tokio::{io, task, time};
use tracing::{info, warn};

use self::client::{Client, PATIENT, gone_is_fine};
use self::cni::CniDirectories;
use self::images::CriImages;
use self::messages::*;
use self::order::{OWNER, Owned, POD_UID};
use self::run::Run;
use super::attach::{AttachOrder, AttachSession};
use super::builtin::Removed;
use super::dial::{self, DialError};
use super::exec::{ExecError, ExecOrder, ExecSession};
use super::record::{Disk, NetworkRecord, PodRecord};
use super::{
    ContainerLog, ContainerRuntime, MachineNote, PodUsage, StartError, Stop, disk_usage, payload,
    volume, volume_file,
};
use crate::cgroup::Groups;
use crate::config::{Config, NodeError, in_full};
use crate::container::PARTS;
use crate::container::log_file::{LARGEST, put_aside};
use crate::host_ports::{self, HostPorts};
use crate::network::Network;
use crate::pod_network::PodNetwork;

/// How often logs are looked at.
const ROTATE: Duration = Duration::from_secs(10);
/// A runtime that lives says within this time how it is.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Runs pods by another runtime.
pub struct CriRuntime {
    client: Arc<Client>,
    disk: Disk,
    network: PodNetwork,
    host_ports: HostPorts,
    host: Addresses,
    groups: Arc<Groups>,
    /// What our sandboxes are marked with.
    owner: String,
    pods: Mutex<HashMap<String, KnownPod>>,
    recovered: Vec<RecoveredPod>,
    notes: Vec<String>,
}

/// A pod that the runtime has.
#[derive(Clone, Default)]
struct KnownPod {
    sandbox: String,
    config: PodSandboxConfig,
    /// The newest run of each container.
    runs: BTreeMap<String, Arc<Run>>,
}

impl KnownPod {
    fn network(&self) -> NetworkMode {
        let linux = self.config.linux.as_ref();
        let context = linux.and_then(|linux| linux.security_context.as_ref());
        let options = context.and_then(|context| context.namespace_options.as_ref());
        match options.is_some_and(|options| options.network == NAMESPACE_NODE) {
            true => NetworkMode::Host,
            false => NetworkMode::Own,
        }
    }
}

impl CriRuntime {
    /// Sets the network up and takes over what an earlier agent left with the runtime at `socket`, which
    /// calls `executable` for its plugins.
    pub async fn start(
        config: &Config,
        socket: &Path,
        executable: &Path,
    ) -> Result<(Self, CriImages), NodeError> {
        let failed = |source| NodeError::State { path: config.state_dir.clone(), source };
        let directories = CniDirectories::write(&config.state_dir, executable).map_err(failed)?;
        let mut runtime = Self::take_over(config, socket).await?;
        runtime.network.heal().await?;
        if let Err(error) = runtime.host_ports.heal().await {
            warn!(%error, "host ports may lead nowhere");
        }
        runtime.notes = runtime.complaints(&directories).await?;
        let images = CriImages::new(runtime.client.clone());
        Ok((runtime, images))
    }

    fn open(config: &Config, socket: &Path) -> Result<Self, NodeError> {
        let failed = |source| NodeError::State { path: config.state_dir.clone(), source };
        let disk = Disk::open(&config.state_dir).map_err(failed)?;
        let owner = std::path::absolute(&config.state_dir).map_err(failed)?;
        Ok(Self {
            client: Arc::new(Client::new(socket)),
            network: PodNetwork::new(config, disk.networks()),
            disk,
            host_ports: HostPorts::new(&config.bridge),
            host: config.internal_ips,
            groups: Arc::new(Groups::take_at_top()),
            owner: owner.to_string_lossy().into_owned(),
            pods: Mutex::default(),
            recovered: vec![],
            notes: vec![],
        })
    }

    /// What the runtime is not ready for, in sentences.
    async fn complaints(&self, directories: &CniDirectories) -> Result<Vec<String>, NodeError> {
        let question = VersionRequest { version: "v1".into() };
        let VersionResponse { runtime_name, runtime_version } =
            self.client.ask("Version", &question).await?;
        info!(runtime_name, runtime_version, "pods are run by another runtime");
        let answer: StatusResponse = self.client.ask("Status", &Empty {}).await?;
        let conditions = answer.status.unwrap_or_default().conditions;
        let wrong = conditions.into_iter().filter(|condition| !condition.status);
        let notes = wrong.map(|condition| {
            let RuntimeCondition { kind, reason, message, .. } = condition;
            let advice = match kind.as_str() {
                "NetworkReady" => format!(
                    "; in its configuration conf_dir has to be {:?} and bin_dir {:?}",
                    directories.configuration, directories.programs
                ),
                _ => String::new(),
            };
            format!("{runtime_name} says {kind} is false: {reason}: {message}{advice}")
        });
        Ok(notes.collect())
    }

    /// In the words of a kubelet.
    async fn what_is_wrong(&self) -> Option<String> {
        let asked = self.client.ask_within("Status", &Empty {}, ANSWERS_WITHIN).await;
        let answer: StatusResponse = match asked {
            Ok(answer) => answer,
            Err(error) => return Some(format!("container runtime is down: {error}")),
        };
        let conditions = answer.status.unwrap_or_default().conditions;
        let wrong = conditions.into_iter().filter(|condition| !condition.status);
        let wrong = wrong.map(|RuntimeCondition { kind, reason, message, .. }| {
            let what = match kind.as_str() {
                "NetworkReady" => "container runtime network",
                _ => "container runtime",
            };
            format!("{what} not ready: {kind}=false reason:{reason} message:{message}")
        });
        let wrong: Vec<_> = wrong.collect();
        (!wrong.is_empty()).then(|| wrong.join(", "))
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, KnownPod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, pod: &PodName, container: &str) -> Option<Arc<Run>> {
        self.pods().get(&pod.uid)?.runs.get(container).cloned()
    }

    fn save(
        &self,
        pod: &PodName,
        network: NetworkRecord,
        order: Option<&SandboxOrder>,
    ) -> Result<(), NodeError> {
        let host_ports = order.map(|order| order.host_ports.clone()).unwrap_or_default();
        let saved = self.disk.save(&PodRecord { pod: pod.clone(), network, host_ports });
        saved.map_err(|source| self.state_error(source))
    }

    fn state_error(&self, source: io::Error) -> NodeError {
        NodeError::State { path: self.disk.root().into(), source }
    }

    /// The sandboxes of a pod, or all of ours.
    async fn sandboxes(&self, uid: Option<&str>) -> Result<Vec<PodSandbox>, Status> {
        let mut label_selector = BTreeMap::from([(OWNER.to_owned(), self.owner.clone())]);
        label_selector.extend(uid.map(|uid| (POD_UID.to_owned(), uid.to_owned())));
        let filter = Some(PodSandboxFilter { label_selector });
        let answer = self.client.ask("ListPodSandbox", &ListPodSandboxRequest { filter }).await;
        answer.map(|ListPodSandboxResponse { items }| items)
    }

    /// Ends the sandboxes of a pod; what the runtime remembers of them stays.
    async fn stop_sandboxes(&self, uid: &str) -> Result<Vec<SandboxId>, Status> {
        let found = self.sandboxes(Some(uid)).await?;
        let found = found.into_iter().map(|found| SandboxId { pod_sandbox_id: found.id });
        let found: Vec<_> = found.collect();
        for id in &found {
            gone_is_fine(self.client.ask::<Empty>("StopPodSandbox", id).await)?;
        }
        Ok(found)
    }

    /// Removes the sandboxes of a pod, and with them its containers.
    async fn remove_sandboxes(&self, uid: &str) -> Result<(), Status> {
        for id in self.stop_sandboxes(uid).await? {
            gone_is_fine(self.client.ask::<Empty>("RemovePodSandbox", &id).await)?;
        }
        Ok(())
    }

    async fn make_sandbox(
        &self,
        pod: &PodName,
        order: &SandboxOrder,
    ) -> Result<Addresses, NodeError> {
        let uid = &pod.uid;
        self.host_ports.reserve(uid, &order.host_ports).await?;
        let addresses = match order.network {
            NetworkMode::Own => Some(self.network.allocate(uid)?),
            NetworkMode::Host => None,
        };
        let record = addresses.map_or(NetworkRecord::Host, NetworkRecord::Own);
        self.save(pod, record, Some(order))?;
        // One of an earlier attempt would have the same name.
        self.remove_sandboxes(uid).await?;
        let groups = self.groups.prepare_pod(uid, &Limits::default());
        let groups = groups.map_err(|source| self.state_error(source))?;
        let logs = self.disk.pod_logs(pod).to_string_lossy().into_owned();
        let owned = Owned { pod, owner: &self.owner };
        let config = order::sandbox_config(&owned, order, groups, logs);
        let written = fs::create_dir_all(self.disk.pod_logs(pod))
            .and_then(|()| fs::write(self.disk.notes(uid), config.encode_to_vec()));
        written.map_err(|source| self.state_error(source))?;
        let question = RunPodSandboxRequest { config: Some(config.clone()) };
        let made: SandboxId = self.client.ask("RunPodSandbox", &question).await?;
        if let Some(addresses) = addresses {
            self.join(uid, &made.pod_sandbox_id, addresses).await?;
            self.host_ports.forward(uid, &order.host_ports, addresses).await?;
        }
        let known = KnownPod { sandbox: made.pod_sandbox_id, config, runs: BTreeMap::default() };
        self.pods().insert(uid.clone(), known);
        Ok(addresses.unwrap_or(self.host))
    }

    /// Joins the namespace that the runtime has made to our network.
    async fn join(&self, uid: &str, sandbox: &str, addresses: Addresses) -> Result<(), NodeError> {
        let question =
            PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: true };
        let answer: PodSandboxStatusResponse =
            self.client.ask("PodSandboxStatus", &question).await?;
        let path = run::network_namespace(&answer.info);
        let path = path.ok_or_else(|| {
            self.state_error(io::Error::other("the runtime does not say where the network is"))
        })?;
        self.network.adopt_namespace(uid, &path, addresses).await
    }

    /// Looks after the logs, which the runtime writes and does not end.
    async fn rotate_logs(&self) {
        loop {
            time::sleep(ROTATE).await;
            let runs: Vec<_> = {
                let pods = self.pods();
                pods.values().flat_map(|pod| pod.runs.values().cloned()).collect()
            };
            for run in runs.into_iter().filter(|run| !run.has_ended()) {
                let log = self.disk.log(&run.pod, &run.container, run.restarts);
                if fs::metadata(&log).is_ok_and(|about| about.len() > LARGEST) {
                    self.rotate(&run, &log).await;
                }
            }
        }
    }

    async fn rotate(&self, run: &Run, log: &Path) {
        if let Err(error) = put_aside(log, Timestamp::now()) {
            warn!(%error, log = %log.display(), "cannot rotate a log");
            return;
        }
        let question = ContainerId { container_id: run.id.clone() };
        if let Err(error) = self.client.ask::<Empty>("ReopenContainerLog", &question).await {
            warn!(%error, log = %log.display(), "the runtime goes on with an old log");
        }
    }

    async fn give_back(&self, pod: &PodName) -> Result<(), NodeError> {
        let (groups, uid) = (self.groups.clone(), pod.uid.clone());
        let removed = task::spawn_blocking(move || groups.remove_everywhere(Some(&uid)));
        removed.await.expect("it does not panic");
        self.host_ports.release(&pod.uid).await?;
        self.network.remove(&pod.uid).await?;
        self.save(pod, NetworkRecord::Removed, None)?;
        self.network.release(&pod.uid);
        let containers = self.disk.containers(&pod.uid).into_iter();
        let parts = containers.map(|name| self.disk.container(&pod.uid, &name).join(PARTS));
        let all: Vec<_> = parts.chain([self.disk.volumes(&pod.uid)]).collect();
        let removed =
            task::spawn_blocking(move || all.iter().try_for_each(|all| volume::remove_all(all)));
        let removed = removed.await.expect("it does not panic");
        removed.map_err(|source| self.state_error(source))
    }
}

impl ContainerRuntime for CriRuntime {
    fn recovered(&self) -> Vec<RecoveredPod> {
        self.recovered.clone()
    }

    fn notes(&self) -> Vec<MachineNote> {
        let told =
            |message: &String| MachineNote { reason: "RuntimeNotReady", message: message.clone() };
        self.notes.iter().map(told).collect()
    }

    fn trouble(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.what_is_wrong())
    }

    fn maintain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            tokio::join!(self.network.maintain(), self.host_ports.maintain(), self.rotate_logs());
        })
    }

    fn create_sandbox<'a>(
        &'a self,
        pod: &'a PodName,
        order: SandboxOrder,
    ) -> BoxFuture<'a, Result<Addresses, NodeError>> {
        Box::pin(async move { self.make_sandbox(pod, &order).await })
    }

    fn prepare_volume<'a>(
        &'a self,
        pod: &'a PodName,
        volume: PodVolume,
        files: Option<Payload>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            // Whatever is on the disk must say whose it is.
            if !self.disk.knows(&pod.uid) {
                let saved = self.save(pod, NetworkRecord::Removed, None);
                saved.map_err(|error| in_full(&error))?;
            }
            payload::prepare_volume(&self.disk, &pod.uid, volume, files).await
        })
    }

    fn read_volume<'a>(
        &'a self,
        pod: &'a PodName,
        file: VolumeFile,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(volume_file::read(self.disk.volumes(&pod.uid), file))
    }

    fn start(
        &self,
        config: ContainerConfig,
    ) -> BoxFuture<'_, Result<StartedContainer, StartError>> {
        Box::pin(self.start_container(config))
    }

    fn resize<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        resources: Resources,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.resize_container(pod, container, resources))
    }

    fn wait(&self, pod: &PodName, container: &str) -> BoxFuture<'static, Exit> {
        let (client, run) = (self.client.clone(), self.run(pod, container));
        let directory = self.disk.container(&pod.uid, container);
        let log = run.as_ref().map(|run| self.disk.log(pod, container, run.restarts));
        Box::pin(async move {
            match run.zip(log) {
                Some((run, log)) => run.ended(&client, &directory, &log).await,
                None => std::future::pending().await,
            }
        })
    }

    fn exec<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        order: ExecOrder,
    ) -> BoxFuture<'a, Result<ExecSession, ExecError>> {
        Box::pin(self.exec_in(pod, container, order))
    }

    fn attach<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        order: AttachOrder,
    ) -> BoxFuture<'a, Result<AttachSession, ExecError>> {
        Box::pin(self.attach_to(pod, container, order))
    }

    fn dial<'a>(
        &'a self,
        pod: &'a PodName,
        port: u16,
    ) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        Box::pin(async move {
            let own = self.network.namespace(&pod.uid);
            match (self.disk.network(&pod.uid), own) {
                (Some(NetworkRecord::Host), _) => dial::dial(None, port).await,
                (Some(NetworkRecord::Own(_)), Some(own)) => dial::dial(Some(own), port).await,
                _ => Err(DialError::new("the pod is not running")),
            }
        })
    }

    fn log(&self, pod: &PodName, container: &str) -> Option<ContainerLog> {
        let run = self.run(pod, container)?;
        let previous = self.disk.log(pod, container, run.restarts - 1);
        Some(ContainerLog {
            path: self.disk.log(pod, container, run.restarts),
            previous: previous.exists().then_some(previous),
            id: run.id.clone(),
            ended: Box::new(move || run.ended.load(Ordering::Acquire)),
        })
    }

    fn usage(&self) -> BoxFuture<'_, Vec<PodUsage>> {
        let runs: Vec<_> = {
            let pods = self.pods();
            pods.values().flat_map(|pod| pod.runs.values().cloned()).collect()
        };
        let groups = self.groups.clone();
        let measured = task::spawn_blocking(move || measure(&groups, &runs));
        Box::pin(async move { measured.await.expect("it does not panic") })
    }

    fn disk_usage<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Consumption> {
        let places = self.disk.written(pod);
        let measured = task::spawn_blocking(move || disk_usage::measure(places));
        Box::pin(async move {
            let mut used = measured.await.expect("it does not panic");
            let label_selector = BTreeMap::from([(POD_UID.to_owned(), pod.uid.clone())]);
            let filter = Some(ContainerStatsFilter { label_selector });
            let question = ListContainerStatsRequest { filter };
            let answer = self.client.ask("ListContainerStats", &question).await;
            let ListContainerStatsResponse { stats } = answer.unwrap_or_default();
            for one in stats {
                let id = one.attributes.unwrap_or_default().id;
                let layer = one.writable_layer.and_then(|layer| layer.used_bytes);
                let pods = self.pods();
                let mut runs = pods.get(&pod.uid).into_iter().flat_map(|pod| &pod.runs);
                if let Some((name, _)) = runs.find(|(_, run)| run.id == id) {
                    *used.containers.entry(name.clone()).or_default() +=
                        layer.map_or(0, |bytes| bytes.value);
                }
            }
            used
        })
    }

    fn stop(&self, pod: &PodName, container: &str, how: Stop) {
        let Some(run) = self.run(pod, container) else { return };
        let timeout = match how {
            // Whoever has asked decides when it has been long enough.
            Stop::Gracefully => i64::try_from(PATIENT.as_secs()).unwrap_or(i64::MAX),
            Stop::Now => 0,
        };
        let question = StopContainerRequest { container_id: run.id.clone(), timeout };
        let client = self.client.clone();
        task::spawn(async move {
            let stopped = client.ask_within::<Empty>("StopContainer", &question, PATIENT).await;
            if let Err(error) = gone_is_fine(stopped) {
                warn!(%error, container = run.container, "cannot stop a container");
            }
        });
    }

    fn remove_sandbox<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        Box::pin(async move {
            self.stop_sandboxes(&pod.uid).await?;
            self.give_back(pod).await
        })
    }

    fn remove<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        Box::pin(async move {
            self.remove_sandboxes(&pod.uid).await?;
            self.give_back(pod).await?;
            self.pods().remove(&pod.uid);
            self.disk.remove(pod).map_err(|source| self.state_error(source))
        })
    }
}

/// What these runs use, by pod.
fn measure(groups: &Groups, runs: &[Arc<Run>]) -> Vec<PodUsage> {
    let mut pods: BTreeMap<&str, PodUsage> = BTreeMap::new();
    for run in runs.iter().filter(|run| !run.has_ended()) {
        let uid = run.pod.uid.as_str();
        let usage = groups.usage(uid, Some(&run.id));
        if usage == Usage::default() {
            continue;
        }
        let pod = pods.entry(uid).or_insert_with(|| PodUsage {
            uid: uid.to_owned(),
            usage: groups.usage(uid, None),
            containers: BTreeMap::new(),
        });
        pod.containers.insert(run.container.clone(), (run.started(), usage));
    }
    pods.into_values().collect()
}

/// Removes everything that an agent with this runtime has made: sandboxes, links, routes and files. The API
/// objects stay. Fails if an agent still runs.
pub async fn cleanup(config: &Config, socket: &Path) -> Result<Removed, NodeError> {
    let runtime = CriRuntime::take_over(config, socket).await?;
    let pods = runtime.recovered.len();
    try_join_all(runtime.recovered.iter().map(|found| runtime.remove(&found.pod))).await?;
    let groups = runtime.groups.clone();
    let removed = task::spawn_blocking(move || groups.remove_everywhere(None));
    removed.await.expect("it does not panic");
    let cni: PathBuf = config.state_dir.join("cni");
    let removed = runtime.disk.remove_all().and_then(|()| match fs::remove_dir_all(&cni) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    });
    removed.map_err(|source| NodeError::State { path: config.state_dir.clone(), source })?;
    host_ports::remove_table().await?;
    let bridge = Network::of(config).tear_down().await?;
    Ok(Removed { pods, bridge })
}
