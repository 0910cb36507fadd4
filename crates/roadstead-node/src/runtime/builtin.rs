//! The built-in runtime: namespaces, our own executable, and a record of everything on the disk,
//! so that the next agent finds what this one started.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::try_join_all;
use jiff::Timestamp;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::RwLock;
use tokio::{task, time};
use tracing::{info, warn};

use super::pidfd;
use super::record::{Disk, NetworkRecord, PodRecord};
use super::volume;
use super::{
    ContainerOrder, Exit, PodName, PodNetwork, PodRuntime, RecoveredContainer, RecoveredPod,
    RecoveredState, StartError, StartedContainer, Stop,
};
use crate::addresses::AddressPool;
use crate::applet::{MONITOR, SELECT};
use crate::cgroup::Groups;
use crate::config::{Config, NodeError};
use crate::container::{EXITED, Exited, Handshake, RECIPE, RUNNING, Recipe, Running};
use crate::container::{read_json, write_json};
use crate::heal::{PodLink, Suspicion, Watcher};
use crate::images;
use crate::network::{Network, is_namespace, link_name};

/// A container that was killed is gone within this time, unless the kernel is in trouble.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// After the kernel did not tell us any more what happens to the network.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Runs pods as namespaces and processes of this machine.
#[derive(Debug)]
pub struct BuiltinRuntime {
    disk: Disk,
    network: Network,
    subnet: ipnet::Ipv4Net,
    host: IpAddr,
    executable: PathBuf,
    open_files: Option<u64>,
    groups: Arc<Groups>,
    state: Mutex<State>,
    /// Held for writing while the network is compared with the state, for reading while both change.
    settled: RwLock<()>,
    recovered: Vec<RecoveredPod>,
}

#[derive(Debug)]
struct State {
    pool: AddressPool,
    addresses: HashMap<String, Ipv4Addr>,
    containers: HashMap<(String, String), Arc<Container>>,
}

/// A container whose monitor runs, or ran until a moment ago.
#[derive(Debug)]
struct Container {
    directory: PathBuf,
    running: Running,
    monitor: OwnedFd,
    /// `None` if it has ended before we could look.
    init: Option<OwnedFd>,
    /// To be reaped if it is our own child, and not adopted from an earlier agent.
    child: Mutex<Option<Child>>,
}

impl BuiltinRuntime {
    /// Sets the network up and takes over what an earlier agent left. Containers are made from
    /// `executable`, which must call [`crate::applet::applet_main`] first in its `main`.
    pub async fn start(config: &Config, executable: PathBuf) -> Result<Self, NodeError> {
        let runtime = Self::take_over(config, executable).await?;
        runtime.network.heal(&runtime.links(), Suspicion::Everything).await?;
        Ok(runtime)
    }

    /// Finds what is there already.
    async fn take_over(config: &Config, executable: PathBuf) -> Result<Self, NodeError> {
        let disk = Disk::open(&config.state_dir)
            .map_err(|source| NodeError::State { path: config.state_dir.clone(), source })?;
        let network = Network::of(config);
        let mut state = State {
            pool: AddressPool::new(config.pod_cidr),
            addresses: HashMap::new(),
            containers: HashMap::new(),
        };
        let records = disk.load();
        let groups = Arc::new(Groups::take());
        groups.retain(&records.iter().map(|record| record.pod.uid.as_str()).collect::<Vec<_>>());
        for uid in disk.stray_networks(&records) {
            network.remove_pod(&disk.network(&uid), &link_name(&uid)).await?;
        }
        let recovered: Vec<_> =
            records.into_iter().map(|record| state.recover(&disk, record, config)).collect();
        if !recovered.is_empty() {
            info!(pods = recovered.len(), "found pods of an earlier agent");
        }
        Ok(Self {
            disk,
            network,
            subnet: config.pod_cidr,
            host: config.internal_ip,
            executable,
            open_files: config.open_files,
            groups,
            state: Mutex::new(state),
            settled: RwLock::new(()),
            recovered,
        })
    }

    /// The links of all pods that have a network of their own.
    fn links(&self) -> Vec<PodLink> {
        let state = self.state();
        let links = state.addresses.iter().map(|(uid, address)| PodLink {
            namespace: self.disk.network(uid),
            name: link_name(uid),
            address: *address,
        });
        links.collect()
    }

    async fn follow_network(&self) -> Result<(), NodeError> {
        let mut watcher = Watcher::start().await?;
        let mut suspicion = Some(Suspicion::Everything);
        while let Some(suspected) = suspicion {
            let alone = self.settled.write().await;
            let healed = self.network.heal(&self.links(), suspected).await?;
            drop(alone);
            if !healed.is_empty() {
                warn!(links = ?healed, "somebody removed parts of the pod network; they are back");
            }
            suspicion = watcher.next().await?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn container(&self, pod: &PodName, container: &str) -> Option<Arc<Container>> {
        self.state().containers.get(&(pod.uid.clone(), container.to_owned())).cloned()
    }

    async fn make_network(&self, pod: &PodName) -> Result<IpAddr, NodeError> {
        let _changing = self.settled.read().await;
        let address = {
            let mut state = self.state();
            let kept = state.addresses.get(&pod.uid).copied();
            let address = kept.or_else(|| state.pool.allocate());
            let address = address.ok_or(NodeError::NoAddress(self.subnet))?;
            state.addresses.insert(pod.uid.clone(), address);
            address
        };
        self.save(pod, NetworkRecord::Own(address))?;
        self.network.add_pod(&self.disk.network(&pod.uid), &link_name(&pod.uid), address).await?;
        Ok(address.into())
    }

    fn save(&self, pod: &PodName, network: NetworkRecord) -> Result<(), NodeError> {
        let saved = self.disk.save(&PodRecord { pod: pod.clone(), network });
        saved.map_err(|source| NodeError::State { path: self.disk.root().into(), source })
    }

    fn recipe(&self, order: ContainerOrder) -> Result<Recipe, StartError> {
        let Some(image) = images::find(&order.image) else {
            let (reason, message) = images::refusal(&order.image, order.pull_policy.as_deref());
            return Err(StartError::Waiting { reason, message });
        };
        let command =
            images::command_line(image, &order.command, &order.args).map_err(StartError::Failed)?;
        let uid = &order.pod.uid;
        let network = self.state().addresses.contains_key(uid).then(|| self.disk.network(uid));
        Ok(Recipe {
            id: uuid::Uuid::new_v4().simple().to_string(),
            restarts: order.restarts,
            command,
            directory: self.disk.container(uid, &order.container),
            log: self.disk.log(&order.pod, &order.container, order.restarts),
            network,
            environment: order.environment,
            working_directory: order.working_directory,
            hostname: order.hostname,
            files: order.files,
            open_files: self.open_files,
            confinement: order.confinement,
            groups: Vec::new(),
            oom_score_adj: 0,
            mounts: order.mounts.iter().map(|mount| self.disk.mount(uid, mount)).collect(),
        })
    }

    /// Kills what runs of the pod, and waits until it is gone.
    async fn kill(&self, uid: &str) {
        let containers: Vec<_> = {
            let mut state = self.state();
            let all = state.containers.extract_if(|(of, _), _| of == uid);
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

impl PodRuntime for BuiltinRuntime {
    fn recovered(&self) -> Vec<RecoveredPod> {
        self.recovered.clone()
    }

    fn notes(&self) -> Vec<String> {
        match self.groups.missing() {
            missing if missing.is_empty() => vec![],
            missing => vec![format!(
                "This machine has no control groups for {}: what pods are limited to of it does not hold",
                missing.join(", ")
            )],
        }
    }

    async fn maintain(&self) {
        loop {
            if let Err(error) = self.follow_network().await {
                warn!(%error, "lost sight of the pod network, will look again");
            }
            time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn create_sandbox(
        &self,
        pod: &PodName,
        network: PodNetwork,
    ) -> Result<IpAddr, NodeError> {
        match network {
            PodNetwork::Own => self.make_network(pod).await,
            PodNetwork::Host => {
                self.save(pod, NetworkRecord::Host)?;
                Ok(self.host)
            }
        }
    }

    async fn start(&self, order: ContainerOrder) -> Result<StartedContainer, StartError> {
        let key = (order.pod.uid.clone(), order.container.clone());
        let volumes = order.mounts.iter().map(|mount| mount.volume.clone()).collect::<Vec<_>>();
        let (resources, groups) = (order.resources, self.groups.clone());
        let uid = order.pod.uid.clone();
        let mut recipe = self.recipe(order)?;
        recipe.oom_score_adj = resources.oom_score_adj;
        let executable = self.executable.clone();
        let launched = task::spawn_blocking(move || {
            for (volume, mount) in volumes.iter().zip(&recipe.mounts) {
                volume::prepare(volume, &mount.source)?;
            }
            let made = groups.prepare(&uid, &recipe.id, &resources);
            recipe.groups = made.map_err(|error| error.to_string())?;
            launch(&executable, &recipe)
        })
        .await;
        let container = launched.expect("launch does not panic").map_err(StartError::Failed)?;
        let started = container.started();
        self.state().containers.insert(key, Arc::new(container));
        Ok(started)
    }

    fn wait(&self, pod: &PodName, container: &str) -> impl Future<Output = Exit> + Send + 'static {
        let container = self.container(pod, container);
        async move {
            match container {
                Some(container) => container.ended().await,
                None => std::future::pending().await,
            }
        }
    }

    fn stop(&self, pod: &PodName, container: &str, how: Stop) {
        let Some(container) = self.container(pod, container) else { return };
        match how {
            // The monitor passes it on, or has ended already.
            Stop::Gracefully => drop(pidfd_send_signal(&container.monitor, Signal::TERM)),
            Stop::Now => container.kill(),
        }
    }

    async fn remove_sandbox(&self, pod: &PodName) -> Result<(), NodeError> {
        self.kill(&pod.uid).await;
        self.groups.remove_pod(&pod.uid);
        let _changing = self.settled.read().await;
        self.network.remove_pod(&self.disk.network(&pod.uid), &link_name(&pod.uid)).await?;
        self.save(pod, NetworkRecord::Removed)?;
        let mut state = self.state();
        if let Some(address) = state.addresses.remove(&pod.uid) {
            state.pool.release(address);
        }
        Ok(())
    }

    async fn remove(&self, pod: &PodName) -> Result<(), NodeError> {
        self.remove_sandbox(pod).await?;
        let removed = self.disk.remove(pod);
        removed.map_err(|source| NodeError::State { path: self.disk.root().into(), source })
    }
}

impl State {
    fn recover(&mut self, disk: &Disk, record: PodRecord, config: &Config) -> RecoveredPod {
        let uid = record.pod.uid.clone();
        let address = match record.network {
            NetworkRecord::Own(address) => {
                self.pool.reserve(address);
                self.addresses.insert(uid.clone(), address);
                is_namespace(&disk.network(&uid)).then_some(IpAddr::V4(address))
            }
            NetworkRecord::Host => Some(config.internal_ip),
            NetworkRecord::Removed => None,
        };
        let mut containers = BTreeMap::new();
        for name in disk.containers(&uid) {
            let directory = disk.container(&uid, &name);
            let Ok(running) = read_json::<Running>(&directory.join(RUNNING)) else { continue };
            let restarts = running.restarts;
            let state = match Container::adopt(&directory, &running) {
                Some(container) if address.is_some() => {
                    let state = RecoveredState::Running(container.started());
                    self.containers.insert((uid.clone(), name.clone()), Arc::new(container));
                    state
                }
                cut_off => {
                    // Without its network it is of no use.
                    if let Some(container) = cut_off {
                        container.kill();
                    }
                    RecoveredState::Exited(read_exit(&directory, &running))
                }
            };
            containers.insert(name, RecoveredContainer { restarts, state });
        }
        RecoveredPod { pod: record.pod, address, containers }
    }
}

impl Container {
    fn new(directory: &Path, running: Running, child: Option<Child>) -> io::Result<Self> {
        let open = |pid: i32| {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
            pidfd_open(pid, PidfdFlags::NONBLOCK).map_err(io::Error::from)
        };
        Ok(Self {
            directory: directory.to_owned(),
            monitor: open(running.monitor.pid)?,
            init: open(running.init.pid).ok(),
            running,
            child: Mutex::new(child),
        })
    }

    /// Takes over a container that an earlier agent started, if it still runs.
    fn adopt(directory: &Path, running: &Running) -> Option<Self> {
        let container = Self::new(directory, running.clone(), None).ok()?;
        // Looked at after opening: so it was not another process that we opened.
        (running.monitor.is_alive() && running.init.is_alive()).then_some(container)
    }

    fn started(&self) -> StartedContainer {
        StartedContainer { id: self.running.id.clone(), since: self.running.started_at }
    }

    /// Ends process 1, and with it the kernel ends the container.
    fn kill(&self) {
        if let Some(init) = &self.init {
            let _ = pidfd_send_signal(init, Signal::KILL);
        }
    }

    async fn ended(&self) -> Exit {
        let waited = match self.monitor.try_clone() {
            Ok(monitor) => pidfd::ended(monitor).await,
            Err(error) => Err(error),
        };
        if let Err(error) = waited {
            warn!(%error, "cannot wait for a container, will look now and then");
            while self.running.monitor.is_alive() {
                time::sleep(Duration::from_millis(100)).await;
            }
        }
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut child) = child {
            let _ = child.wait();
        }
        read_exit(&self.directory, &self.running)
    }
}

/// How a run ended, according to its monitor; killed, if the monitor had no time to say.
fn read_exit(directory: &Path, running: &Running) -> Exit {
    let written = read_json::<Exited>(&directory.join(EXITED)).ok();
    let written = written.filter(|exited| exited.id == running.id);
    let out_of_memory = written.as_ref().is_some_and(|exited| exited.out_of_memory);
    let (code, finished_at, message) = match written {
        Some(exited) => (exited.code, exited.finished_at, None),
        None => (137, Timestamp::now(), Some("the container's monitor was killed".into())),
    };
    let reason = match code {
        _ if out_of_memory => "OOMKilled",
        0 => "Completed",
        _ => "Error",
    };
    Exit {
        id: running.id.clone(),
        code,
        reason: reason.into(),
        message,
        started_at: running.started_at,
        finished_at,
    }
}

/// Starts a monitor and hears from it how the start went.
fn launch(executable: &Path, recipe: &Recipe) -> Result<Container, String> {
    let directory = &recipe.directory;
    let path = directory.join(RECIPE);
    std::fs::create_dir_all(directory)
        .and_then(|()| write_json(&path, recipe))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    let mut child = Command::new(executable)
        .args([SELECT, MONITOR])
        .arg(&path)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot run {}: {error}", executable.display()))?;
    let mut text = String::new();
    let mut stdout = child.stdout.take().expect("it is piped");
    let heard = stdout.read_to_string(&mut text).map_err(|error| error.to_string());
    let parsed = heard.and_then(|_| {
        serde_json::from_str(&text).map_err(|_| format!("the monitor answered {text:?}"))
    });
    match parsed {
        Ok(Handshake::Started(running)) => Container::new(directory, running, Some(child))
            .map_err(|error| format!("cannot follow the container: {error}")),
        Ok(Handshake::Failed(message)) | Err(message) => {
            // One that we did not understand may still run.
            let _ = child.kill().and_then(|()| child.wait());
            Err(message)
        }
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
        runtime.groups.remove_all();
        let removed = runtime.disk.remove_all();
        removed.map_err(|source| NodeError::State { path: config.state_dir.clone(), source })?;
    }
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
