//! Parts of this process that show as containers of pods: nothing is started for them.
//!
//! Before another runtime stands one that knows the images of these parts. A container of such an image
//! is the part itself: its log is what the part says from now on, and its start tells the part to begin
//! anew. Its end ends nothing: the part goes on until the next such container.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use roadstead_pod::addresses::Addresses;
use roadstead_pod::builtin_image::BuiltInImage;
use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::env_file::VolumeFile;
use roadstead_pod::eviction::Consumption;
use roadstead_pod::facts::{Exit, StartedContainer};
use roadstead_pod::image::{ImageContent, ImageFacts};
use roadstead_pod::pod_name::PodName;
use roadstead_pod::recovery::RecoveredPod;
use roadstead_pod::resources::Resources;
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_pod::security::PARTS_NAMESPACE;
use roadstead_pod::volumes::PodVolume;
use roadstead_pod::volumes::payload::Payload;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time;

use super::attach::{AttachOrder, AttachSession};
use super::dial::DialError;
use super::exec::{ExecError, ExecOrder, ExecSession};
use super::record::pod_logs;
use super::{
    ContainerLog, ContainerRuntime, ImageError, Images, MachineNote, PodUsage, StartError, Stop,
    StoredImage,
};
use crate::config::{Config, NodeError};
use crate::container::log::{Stream, records};
use crate::container::log_file::LogFile;

/// A pod that is being replaced lets its successor in within this time.
const LET_IN_WITHIN: Duration = Duration::from_secs(10);

/// A part of this process.
#[derive(Clone, Debug)]
pub struct ProcessPart {
    /// The image whose containers it is.
    pub image: BuiltInImage,
    /// Hears of every container that is to be this part: it begins anew, and its log goes there.
    pub starts: mpsc::Sender<PartLog>,
}

/// The log of a container, as long as that runs.
#[derive(Clone, Debug)]
pub struct PartLog(Arc<Mutex<Option<LogFile>>>);

impl PartLog {
    /// A log that is not there any more.
    pub fn closed() -> Self {
        Self(Arc::default())
    }

    /// Writes a line; returns whether the container still runs.
    pub fn write(&self, line: &str, at: Timestamp) -> bool {
        let mut file = self.file();
        if let Some(file) = file.as_mut() {
            file.write(&records(Stream::Stderr, line, at), at);
        }
        file.is_some()
    }

    fn file(&self) -> MutexGuard<'_, Option<LogFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A container that is a part of this process.
#[derive(Debug)]
struct Run {
    image: BuiltInImage,
    pod: PodName,
    started: StartedContainer,
    restarts: i32,
    log: PartLog,
    exit: watch::Sender<Option<Exit>>,
}

impl Run {
    /// Ends the container; the part goes on without a log.
    fn end(&self, code: i32) {
        *self.log.file() = None;
        let reason = if code == 0 { "Completed" } else { "Error" };
        let exit = Exit {
            id: self.started.id.clone(),
            code,
            reason: reason.into(),
            message: None,
            started_at: self.started.since,
            finished_at: Timestamp::now(),
        };
        self.exit.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(exit);
            first
        });
    }

    async fn ended(self: Arc<Self>) -> Exit {
        let mut exit = self.exit.subscribe();
        let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
        match ended {
            Some(exit) => exit,
            None => std::future::pending().await,
        }
    }

    fn has_ended(&self) -> bool {
        self.exit.borrow().is_some()
    }
}

/// By the uid of the pod and the name of the container.
type Runs = HashMap<(String, String), Arc<Run>>;

/// Shows parts of this process as containers; all others are another runtime's.
pub(super) struct PartsRuntime {
    other: Arc<dyn ContainerRuntime>,
    parts: Vec<ProcessPart>,
    state_dir: PathBuf,
    runs: Mutex<Runs>,
}

impl PartsRuntime {
    pub(super) fn new(other: Arc<dyn ContainerRuntime>, config: &Config) -> Self {
        let (parts, state_dir) = (config.parts.clone(), config.state_dir.clone());
        Self { other, parts, state_dir, runs: Mutex::default() }
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, pod: &PodName, container: &str) -> Option<Arc<Run>> {
        self.runs().get(&(pod.uid.clone(), container.to_owned())).cloned()
    }

    fn part(&self, image: &ImageFacts) -> Option<&ProcessPart> {
        let ImageContent::BuiltIn(image) = image.content else { return None };
        self.parts.iter().find(|part| part.image == image)
    }

    fn log_path(&self, pod: &PodName, container: &str, restarts: i32) -> PathBuf {
        pod_logs(&self.state_dir, pod).join(container).join(format!("{restarts}.log"))
    }

    /// Makes a container its part, unless another one is that now.
    fn take(&self, run: &Arc<Run>, container: &str) -> Result<(), Arc<Run>> {
        let mut runs = self.runs();
        if let Some(holder) =
            runs.values().find(|known| known.image == run.image && !known.has_ended())
        {
            return Err(holder.clone());
        }
        runs.insert((run.pod.uid.clone(), container.to_owned()), run.clone());
        Ok(())
    }

    async fn start_part(
        &self,
        part: &ProcessPart,
        config: ContainerConfig,
    ) -> Result<StartedContainer, StartError> {
        let refused = |message| StartError::Waiting { reason: "CreateContainerError", message };
        let ContainerConfig { pod, container, restarts, .. } = config;
        if pod.namespace != PARTS_NAMESPACE {
            let why =
                format!("the image is a part of roadstead, for pods of {PARTS_NAMESPACE} only");
            return Err(refused(why));
        }
        let path = self.log_path(&pod, &container, restarts);
        let file = LogFile::open(&path, restarts)
            .map_err(|error| StartError::Failed(format!("{}: {error}", path.display())))?;
        let log = PartLog(Arc::new(Mutex::new(Some(file))));
        let id = uuid::Uuid::new_v4().simple().to_string();
        let started = StartedContainer { id, since: Timestamp::now() };
        let run = Arc::new(Run {
            image: part.image,
            started: started.clone(),
            restarts,
            log: log.clone(),
            exit: watch::Sender::new(None),
            pod,
        });
        let give_up = time::Instant::now() + LET_IN_WITHIN;
        while let Err(holder) = self.take(&run, &container) {
            let name = holder.pod.name.clone();
            if time::timeout_at(give_up, holder.ended()).await.is_err() {
                let why =
                    format!("pod {name} is this part of roadstead already; nothing runs twice");
                return Err(refused(why));
            }
        }
        // One that listens no more is ending, and with it everything here.
        let _ = part.starts.send(log).await;
        Ok(started)
    }

    /// Ends what is left of a pod.
    fn end_all(&self, pod: &PodName) {
        let runs = self.runs();
        let of_pod = runs.iter().filter(|((uid, _), _)| *uid == pod.uid);
        of_pod.for_each(|(_, run)| run.end(137));
    }
}

impl ContainerRuntime for PartsRuntime {
    fn recovered(&self) -> Vec<RecoveredPod> {
        self.other.recovered()
    }

    fn notes(&self) -> Vec<MachineNote> {
        self.other.notes()
    }

    fn trouble(&self) -> BoxFuture<'_, Option<String>> {
        self.other.trouble()
    }

    fn maintain(&self) -> BoxFuture<'_, ()> {
        self.other.maintain()
    }

    fn create_sandbox<'a>(
        &'a self,
        pod: &'a PodName,
        order: SandboxOrder,
    ) -> BoxFuture<'a, Result<Addresses, NodeError>> {
        self.other.create_sandbox(pod, order)
    }

    fn prepare_volume<'a>(
        &'a self,
        pod: &'a PodName,
        volume: PodVolume,
        files: Option<Payload>,
    ) -> BoxFuture<'a, Result<(), String>> {
        self.other.prepare_volume(pod, volume, files)
    }

    fn read_volume<'a>(
        &'a self,
        pod: &'a PodName,
        file: VolumeFile,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        self.other.read_volume(pod, file)
    }

    fn start(
        &self,
        config: ContainerConfig,
    ) -> BoxFuture<'_, Result<StartedContainer, StartError>> {
        match self.part(&config.image) {
            Some(part) => Box::pin(self.start_part(part, config)),
            None => self.other.start(config),
        }
    }

    fn resize<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        resources: Resources,
    ) -> BoxFuture<'a, Result<(), String>> {
        match self.run(pod, container) {
            // It is no process of its own.
            Some(_) => Box::pin(async { Ok(()) }),
            None => self.other.resize(pod, container, resources),
        }
    }

    fn wait(&self, pod: &PodName, container: &str) -> BoxFuture<'static, Exit> {
        match self.run(pod, container) {
            Some(run) => Box::pin(run.ended()),
            None => self.other.wait(pod, container),
        }
    }

    fn exec<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        order: ExecOrder,
    ) -> BoxFuture<'a, Result<ExecSession, ExecError>> {
        if self.run(pod, container).is_some() {
            let why = "the container is a part of roadstead's own process: it has no programs";
            return Box::pin(async move { Err(ExecError::new(why)) });
        }
        self.other.exec(pod, container, order)
    }

    fn attach<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        order: AttachOrder,
    ) -> BoxFuture<'a, Result<AttachSession, ExecError>> {
        if self.run(pod, container).is_some() {
            let why = "the container is a part of roadstead's own process: see its log";
            return Box::pin(async move { Err(ExecError::new(why)) });
        }
        self.other.attach(pod, container, order)
    }

    fn dial<'a>(
        &'a self,
        pod: &'a PodName,
        port: u16,
    ) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        self.other.dial(pod, port)
    }

    fn log(&self, pod: &PodName, container: &str) -> Option<ContainerLog> {
        let Some(run) = self.run(pod, container) else { return self.other.log(pod, container) };
        let previous = self.log_path(pod, container, run.restarts - 1);
        Some(ContainerLog {
            id: run.started.id.clone(),
            path: self.log_path(pod, container, run.restarts),
            previous: previous.exists().then_some(previous),
            ended: Box::new(move || run.has_ended()),
        })
    }

    fn usage(&self) -> BoxFuture<'_, Vec<PodUsage>> {
        self.other.usage()
    }

    fn disk_usage<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Consumption> {
        self.other.disk_usage(pod)
    }

    fn stop(&self, pod: &PodName, container: &str, how: Stop) {
        match (self.run(pod, container), how) {
            (Some(run), Stop::Gracefully) => run.end(0),
            (Some(run), Stop::Now) => run.end(137),
            (None, _) => self.other.stop(pod, container, how),
        }
    }

    fn remove_sandbox<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        self.end_all(pod);
        self.other.remove_sandbox(pod)
    }

    fn remove<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        self.end_all(pod);
        self.runs().retain(|(uid, _), _| *uid != pod.uid);
        self.other.remove(pod)
    }
}

/// Has the images of parts; all others are elsewhere.
pub(super) struct PartImages {
    other: Arc<dyn Images>,
    parts: Vec<BuiltInImage>,
}

impl PartImages {
    pub(super) fn new(other: Arc<dyn Images>, config: &Config) -> Self {
        Self { other, parts: config.parts.iter().map(|part| part.image).collect() }
    }
}

impl Images for PartImages {
    fn find<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<Option<ImageFacts>, ImageError>> {
        let part = ImageFacts::built_in(image).filter(|facts| {
            matches!(facts.content, ImageContent::BuiltIn(image) if self.parts.contains(&image))
        });
        match part {
            Some(facts) => Box::pin(async { Ok(Some(facts)) }),
            None => self.other.find(image),
        }
    }

    fn pull(
        &self,
        image: String,
        secrets: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Result<ImageFacts, ImageError>> {
        self.other.pull(image, secrets)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<StoredImage>, ImageError>> {
        self.other.list()
    }

    fn remove<'a>(
        &'a self,
        image: &'a StoredImage,
        used: &'a BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), ImageError>> {
        self.other.remove(image, used)
    }
}
