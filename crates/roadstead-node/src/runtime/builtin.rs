//! The built-in runtime: namespaces, our own executable, and a record of everything on the disk,
//! so that the next agent finds what this one started.

mod recipe;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};
use roadstead_pod::addresses::Addresses;
use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::env_file::VolumeFile;
use roadstead_pod::eviction::Consumption;
use roadstead_pod::facts::{Exit, StartedContainer};
use roadstead_pod::host_ports::HostPort;
use roadstead_pod::pod_name::{NetworkMode, PodName};
use roadstead_pod::recovery::{RecoveredContainer, RecoveredPod, RecoveredState};
use roadstead_pod::resources::Resources;
use roadstead_pod::sandbox::{Processes, SandboxOrder};
use roadstead_pod::usage::Usage;
use roadstead_pod::volumes::PodVolume;
use roadstead_pod::volumes::payload::Payload;
use rustix::fs::Access;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio::{task, time};
use tracing::{info, warn};

use super::attach::{self, AttachOrder, AttachSession};
use super::dial::{self, DialError};
use super::disk_usage;
use super::exec::{self, ExecError, ExecOrder, ExecSession, Run};
use super::forker::Forker;
use super::payload;
use super::pod_processes;
use super::record::{Disk, NetworkRecord, PodRecord, forget_old_logs};
use super::running::{
    Container, end_launching, end_remains, is_launching, launch, read_exit, remove_unrecorded,
};
use super::{ContainerLog, ContainerRuntime, MachineNote, PodUsage, StartError, Stop};
use super::{service_unit, shared_memory, volume, volume_file};
use crate::cgroup::Groups;
use crate::config::{Config, NodeError, in_full};
use crate::container::oci;
use crate::container::{RECORD_VERSION, RUNNING, Running, read_json};
use crate::host_ports::{self, HostPorts};
use crate::network::Network;
use crate::pod_network::PodNetwork;

/// A container that was killed is gone within this time, unless the kernel is in trouble.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// A container that an earlier agent was starting runs within this time, or never will.
const LAUNCHED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Runs pods as namespaces and processes of this machine.
#[derive(Debug)]
pub struct BuiltinRuntime {
    disk: Disk,
    network: PodNetwork,
    host_ports: HostPorts,
    host: Addresses,
    /// What makes the processes around containers.
    forker: Arc<Forker>,
    open_files: Option<u64>,
    /// What runs images that are not built in.
    oci_runtime: Option<PathBuf>,
    groups: Arc<Groups>,
    containers: Mutex<Containers>,
    recovered: Vec<RecoveredPod>,
}

/// By the uid of the pod and the name of the container.
type Containers = HashMap<(String, String), Arc<Container>>;

impl BuiltinRuntime {
    /// Sets the network up and takes over what an earlier agent left. Containers are made from
    /// `executable`, which must call [`crate::applet::applet_main`] first in its `main`.
    pub async fn start(config: &Config, executable: PathBuf) -> Result<Self, NodeError> {
        let runtime = Self::take_over(config, executable).await?;
        runtime.network.heal().await?;
        if let Err(error) = runtime.host_ports.heal().await {
            warn!(%error, "host ports may lead nowhere");
        }
        Ok(runtime)
    }

    /// Finds what is there already.
    async fn take_over(config: &Config, executable: PathBuf) -> Result<Self, NodeError> {
        let disk = Disk::open(&config.state_dir)
            .map_err(|source| NodeError::State { path: config.state_dir.clone(), source })?;
        let network = PodNetwork::new(config, disk.networks());
        let records = disk.load();
        let known: Vec<_> = records.iter().map(|record| record.pod.uid.as_str()).collect();
        let groups = Arc::new(Groups::take());
        groups.retain(&known);
        network.retain(&known).await?;
        launched(&disk, &known).await;
        let mut containers = Containers::new();
        let mut host_ports = HostPorts::new(&config.bridge);
        let mut finder = Finder {
            disk: &disk,
            network: &network,
            config,
            host_ports: &mut host_ports,
            containers: &mut containers,
        };
        let recovered: Vec<_> = records.into_iter().map(|record| finder.recover(record)).collect();
        if !recovered.is_empty() {
            info!(pods = recovered.len(), "found pods of an earlier agent");
        }
        Ok(Self {
            disk,
            network,
            host_ports,
            host: config.internal_ips,
            forker: Arc::new(Forker::new(executable)),
            open_files: config.open_files,
            oci_runtime: config.oci_runtime.clone().or_else(oci::find_runtime),
            groups,
            containers: Mutex::new(containers),
            recovered,
        })
    }

    fn containers(&self) -> MutexGuard<'_, Containers> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn container(&self, pod: &PodName, container: &str) -> Option<Arc<Container>> {
        self.containers().get(&(pod.uid.clone(), container.to_owned())).cloned()
    }

    async fn make_network(
        &self,
        pod: &PodName,
        ports: &[HostPort],
    ) -> Result<Addresses, NodeError> {
        let addresses = self.network.allocate(&pod.uid)?;
        self.save(pod, NetworkRecord::Own(addresses), ports)?;
        self.network.add(&pod.uid, addresses).await?;
        self.host_ports.forward(&pod.uid, ports, addresses).await?;
        Ok(addresses)
    }

    fn save(
        &self,
        pod: &PodName,
        network: NetworkRecord,
        host_ports: &[HostPort],
    ) -> Result<(), NodeError> {
        let host_ports = host_ports.to_vec();
        let saved = self.disk.save(&PodRecord { pod: pod.clone(), network, host_ports });
        saved.map_err(|source| NodeError::State { path: self.disk.root().into(), source })
    }

    async fn start_container(
        &self,
        config: ContainerConfig,
    ) -> Result<StartedContainer, StartError> {
        let key = (config.pod.uid.clone(), config.container.clone());
        let volumes = config.mounts.clone();
        let (resources, groups) = (config.resources, self.groups.clone());
        let uid = config.pod.uid.clone();
        let container = config.container.clone();
        let own = self.disk.root().to_owned();
        let refused = |message| StartError::Waiting { reason: "CreateContainerError", message };
        // Held until the container is made.
        let beside = self.beside(&config).map_err(refused)?;
        let shares_processes = config.processes == Processes::Pod;
        let mut recipe = self.recipe(config, beside.as_ref())?;
        let pod_volumes = self.disk.volumes(&uid);
        let forker = self.forker.clone();
        let launched = task::spawn_blocking(move || {
            for (volume, mount) in volumes.iter().zip(&recipe.mounts) {
                let reason = "CreateContainerConfigError";
                let refused = |message| StartError::Waiting { reason, message };
                volume::prepare(&volume.volume, &mount.source, &own).map_err(refused)?;
                volume::prepare_part(volume, mount, &container).map_err(refused)?;
            }
            let reason = "CreateContainerError";
            let unshared = |error: std::io::Error| StartError::Waiting {
                reason,
                message: format!("cannot make what the containers of the pod share: {error}"),
            };
            recipe.shared.iter().try_for_each(shared_memory::prepare).map_err(unshared)?;
            if shares_processes {
                pod_processes::prepare(&forker, &pod_volumes).map_err(unshared)?;
            }
            let made = groups.prepare(&uid, &recipe.id, &resources);
            recipe.groups =
                made.map_err(|error| StartError::Waiting { reason, message: in_full(&error) })?;
            let launched = launch(&forker, &recipe).map_err(StartError::Failed);
            forget_old_logs(&recipe.log, recipe.restarts);
            launched
        })
        .await;
        let container = launched.expect("launch does not panic")?;
        let started = container.started();
        self.containers().insert(key, Arc::new(container));
        Ok(started)
    }

    async fn exec_in(
        &self,
        pod: &PodName,
        container: &str,
        order: ExecOrder,
    ) -> Result<ExecSession, ExecError> {
        let missing = || ExecError::new(format!("container not found ({container:?})"));
        let found = self.container(pod, container).ok_or_else(missing)?;
        let init =
            found.init.as_ref().and_then(|init| init.try_clone().ok()).ok_or_else(missing)?;
        let run = Run { directory: &found.directory, running: &found.running, entry: &found.entry };
        let entry = run.entry(&order).map_err(|error| ExecError::new(error.to_string()))?;
        exec::start(self.forker.clone(), init, entry, order.stdin).await
    }

    /// Kills what runs of the pod, and waits until it is gone.
    async fn kill(&self, uid: &str) {
        let containers: Vec<_> = {
            let mut containers = self.containers();
            let all = containers.extract_if(|(of, _), _| of == uid);
            all.map(|(_, container)| container).collect()
        };
        for container in containers {
            container.kill();
            if time::timeout(KILLED_WITHIN, container.ended()).await.is_err() {
                warn!(pid = container.running.init.pid, "a container does not die");
            }
        }
    }
}

impl ContainerRuntime for BuiltinRuntime {
    fn recovered(&self) -> Vec<RecoveredPod> {
        self.recovered.clone()
    }

    fn notes(&self) -> Vec<MachineNote> {
        let missing = self.groups.missing();
        let groups = (!missing.is_empty()).then(|| MachineNote {
            reason: "MissingControlGroups",
            message: format!(
                "This machine has no control groups for {}: what pods are limited to of it does not hold",
                missing.join(", ")
            ),
        });
        let service = service_unit::warning();
        let service = service.map(|message| MachineNote { reason: "PodsEndWithService", message });
        groups.into_iter().chain(service).collect()
    }

    fn trouble(&self) -> BoxFuture<'_, Option<String>> {
        let root = self.disk.root().to_owned();
        let looked = task::spawn_blocking(move || {
            let writable = rustix::fs::access(&root, Access::WRITE_OK);
            writable.err().map(|error| format!("{} cannot be written to: {error}", root.display()))
        });
        Box::pin(async move { looked.await.expect("it does not panic") })
    }

    fn maintain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            tokio::join!(self.network.maintain(), self.host_ports.maintain());
        })
    }

    fn create_sandbox<'a>(
        &'a self,
        pod: &'a PodName,
        order: SandboxOrder,
    ) -> BoxFuture<'a, Result<Addresses, NodeError>> {
        Box::pin(async move {
            let ports = &order.host_ports;
            self.host_ports.reserve(&pod.uid, ports).await?;
            match order.network {
                NetworkMode::Own => self.make_network(pod, ports).await,
                NetworkMode::Host => {
                    self.save(pod, NetworkRecord::Host, ports)?;
                    Ok(self.host)
                }
            }
        })
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
                self.save(pod, NetworkRecord::Removed, &[]).map_err(|error| in_full(&error))?;
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
        let found = self.container(pod, container);
        let (groups, uid) = (self.groups.clone(), pod.uid.clone());
        Box::pin(async move {
            let id = found.ok_or("it does not run")?.running.id.clone();
            let held = task::spawn_blocking(move || groups.hold(&uid, &id, &resources)).await;
            held.expect("it does not panic").map_err(|error| error.to_string())
        })
    }

    fn wait(&self, pod: &PodName, container: &str) -> BoxFuture<'static, Exit> {
        let container = self.container(pod, container);
        Box::pin(async move {
            match container {
                Some(container) => container.ended().await,
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
        let found = self.container(pod, container);
        Box::pin(async move {
            let missing = || ExecError::new(format!("container not found ({container:?})"));
            let found = found.filter(|found| found.running.init.is_alive()).ok_or_else(missing)?;
            attach::attach(found.directory.clone(), order).await
        })
    }

    fn dial<'a>(
        &'a self,
        pod: &'a PodName,
        port: u16,
    ) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        Box::pin(async move {
            // Without a network of its own, a pod is not one in the node's.
            let own = self.network.namespace(&pod.uid);
            match (self.disk.network(&pod.uid), own) {
                (Some(NetworkRecord::Host), _) => dial::dial(None, port).await,
                (Some(NetworkRecord::Own(_)), Some(own)) => dial::dial(Some(own), port).await,
                _ => Err(DialError::new("the pod is not running")),
            }
        })
    }

    fn log(&self, pod: &PodName, container: &str) -> Option<ContainerLog> {
        let directory = self.disk.container(&pod.uid, container);
        let running = read_json::<Running>(&directory.join(RUNNING)).ok()?;
        let previous = self.disk.log(pod, container, running.restarts - 1);
        Some(ContainerLog {
            path: self.disk.log(pod, container, running.restarts),
            previous: previous.exists().then_some(previous),
            id: running.id.clone(),
            ended: Box::new(move || !running.monitor.is_alive()),
        })
    }

    fn usage(&self) -> BoxFuture<'_, Vec<PodUsage>> {
        let containers = self.containers();
        let runs = containers.iter().map(|(key, container)| (key.clone(), container.started()));
        let (runs, groups) = (runs.collect(), self.groups.clone());
        let measured = task::spawn_blocking(move || measure(&groups, runs));
        Box::pin(async move { measured.await.expect("it does not panic") })
    }

    fn disk_usage<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Consumption> {
        let places = self.disk.written(pod);
        let measured = task::spawn_blocking(move || disk_usage::measure(places));
        Box::pin(async move { measured.await.expect("it does not panic") })
    }

    fn stop(&self, pod: &PodName, container: &str, how: Stop) {
        let Some(container) = self.container(pod, container) else { return };
        match how {
            // The monitor passes it on, or has ended already.
            Stop::Gracefully => drop(pidfd_send_signal(&container.monitor, Signal::TERM)),
            Stop::Now => container.kill(),
        }
    }

    fn remove_sandbox<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        Box::pin(async move {
            self.kill(&pod.uid).await;
            let path = self.disk.volumes(&pod.uid);
            let ended = task::spawn_blocking(move || pod_processes::end(&path));
            let ended = ended.await.expect("it does not panic");
            ended
                .map_err(|source| NodeError::State { path: self.disk.volumes(&pod.uid), source })?;
            let (groups, uid) = (self.groups.clone(), pod.uid.clone());
            let removed = task::spawn_blocking(move || groups.remove_pod(&uid));
            removed.await.expect("it does not panic");
            self.host_ports.release(&pod.uid).await?;
            self.network.remove(&pod.uid).await?;
            self.save(pod, NetworkRecord::Removed, &[])?;
            self.network.release(&pod.uid);
            let path = self.disk.volumes(&pod.uid);
            let removed = task::spawn_blocking({
                let path = path.clone();
                move || volume::remove_all(&path)
            });
            let removed = removed.await.expect("it does not panic");
            removed.map_err(|source| NodeError::State { path, source })
        })
    }

    fn remove<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        Box::pin(async move {
            self.remove_sandbox(pod).await?;
            let removed = self.disk.remove(pod);
            removed.map_err(|source| NodeError::State { path: self.disk.root().into(), source })
        })
    }
}

/// Waits until every container that an earlier agent was just starting runs, or will never run.
async fn launched(disk: &Disk, pods: &[&str]) {
    let all = pods
        .iter()
        .flat_map(|uid| disk.containers(uid).into_iter().map(|name| disk.container(uid, &name)));
    let mut launching: Vec<_> = all.filter(|directory| is_launching(directory)).collect();
    let begin = Instant::now();
    while !launching.is_empty() && begin.elapsed() < LAUNCHED_WITHIN {
        time::sleep(LOOK_AGAIN).await;
        launching.retain(|directory| is_launching(directory));
    }
    for directory in launching {
        warn!(directory = %directory.display(), "a container does not come to its start, and is ended");
        end_launching(&directory);
    }
}

/// What these runs use, by pod. One that has ended has no group any more.
fn measure(groups: &Groups, runs: Vec<((String, String), StartedContainer)>) -> Vec<PodUsage> {
    let mut pods: BTreeMap<String, PodUsage> = BTreeMap::new();
    for ((uid, container), started) in runs {
        let usage = groups.usage(&uid, Some(&started.id));
        if usage == Usage::default() {
            continue;
        }
        let pod = pods.entry(uid).or_insert_with_key(|uid| PodUsage {
            uid: uid.clone(),
            usage: groups.usage(uid, None),
            containers: BTreeMap::new(),
        });
        pod.containers.insert(container, (started, usage));
    }
    pods.into_values().collect()
}

/// Finds what an earlier agent left.
struct Finder<'a> {
    disk: &'a Disk,
    network: &'a PodNetwork,
    config: &'a Config,
    host_ports: &'a mut HostPorts,
    containers: &'a mut Containers,
}

impl Finder<'_> {
    fn recover(&mut self, record: PodRecord) -> RecoveredPod {
        let uid = record.pod.uid.clone();
        let addresses = match record.network {
            NetworkRecord::Own(own) => self.network.adopt(&uid, own),
            NetworkRecord::Host => Some(self.config.internal_ips),
            NetworkRecord::Removed => None,
        };
        let target = match record.network {
            NetworkRecord::Own(own) => Some(own),
            _ => None,
        };
        self.host_ports.adopt(&uid, &record.host_ports, target);
        let mut containers = BTreeMap::new();
        for name in self.disk.containers(&uid) {
            let directory = self.disk.container(&uid, &name);
            let running = read_json::<Running>(&directory.join(RUNNING)).ok();
            remove_unrecorded(&directory, running.as_ref());
            let Some(running) = running else { continue };
            if running.version > RECORD_VERSION {
                warn!(
                    container = name,
                    version = running.version,
                    "started by a later version of this agent, of which not everything is understood"
                );
            }
            let restarts = running.restarts;
            let state = match Container::adopt(&directory, &running) {
                Some(container) if addresses.is_some() => {
                    let state = RecoveredState::Running(container.started());
                    self.containers.insert((uid.clone(), name.clone()), Arc::new(container));
                    state
                }
                cut_off => {
                    // Without its network it is of no use.
                    if let Some(container) = cut_off {
                        container.kill();
                    }
                    end_remains(&directory, &running);
                    RecoveredState::Exited(read_exit(&directory, &running))
                }
            };
            containers.insert(name, RecoveredContainer { restarts, state });
        }
        RecoveredPod { pod: record.pod, addresses, containers }
    }
}

/// Removes everything that the agent has made on this machine: processes, namespaces, links,
/// routes and files. The API objects stay. Fails if an agent still runs.
pub async fn cleanup(config: &Config) -> Result<Removed, NodeError> {
    let mut pods = 0;
    if config.state_dir.exists() {
        let runtime = BuiltinRuntime::take_over(config, PathBuf::new()).await?;
        pods = runtime.recovered.len();
        try_join_all(runtime.recovered.iter().map(|found| runtime.remove(&found.pod))).await?;
        let groups = runtime.groups.clone();
        let removed = task::spawn_blocking(move || groups.remove_all());
        removed.await.expect("it does not panic");
        let removed = runtime.disk.remove_all();
        removed.map_err(|source| NodeError::State { path: config.state_dir.clone(), source })?;
    }
    host_ports::remove_table().await?;
    let bridge = Network::of(config).tear_down().await?;
    Ok(Removed { pods, bridge })
}

/// What [`cleanup`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// How many pods there were.
    pub pods: usize,
    /// Whether there was a bridge of ours.
    pub bridge: bool,
}
