//! What makes pods run, by what there can be several of.
//!
//! [`ContainerRuntime`] runs containers, [`Images`] has their images. [`builtin`] makes pods from
//! namespaces, our own executable and the command line of an OCI runtime, on the network of
//! `pod_network`; `cri` has them made by another runtime, such as containerd; before either, [`parts`]
//! shows parts of this process as containers. The tests of the agent have fake ones.

pub mod attach;
pub mod builtin;
#[cfg(feature = "cri")]
pub mod cri;
pub mod dial;
mod disk_usage;
pub mod exec;
mod executable;
mod forker;
pub(crate) mod labels;
mod last_words;
mod namespace;
mod ownership;
pub mod parts;
mod payload;
pub(crate) mod pidfd;
mod pod_processes;
mod record;
mod running;
mod seccomp_profiles;
mod service_unit;
mod shared_memory;
pub mod terminal;
mod volume;
mod volume_file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use roadstead_pod::addresses::Addresses;
use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::env_file::VolumeFile;
use roadstead_pod::eviction::Consumption;
use roadstead_pod::facts::{Exit, StartedContainer};
use roadstead_pod::image::ImageFacts;
use roadstead_pod::pod_name::PodName;
use roadstead_pod::recovery::RecoveredPod;
use roadstead_pod::resources::Resources;
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_pod::usage::Usage;
use roadstead_pod::volumes::PodVolume;
use roadstead_pod::volumes::payload::Payload;
use tokio::net::TcpStream;

use self::attach::{AttachOrder, AttachSession};
use self::dial::DialError;
use self::exec::{ExecError, ExecOrder, ExecSession};
use self::parts::{PartImages, PartsRuntime};
use crate::config::{Config, NodeError};

/// What the agent runs pods with.
pub struct Runtime {
    pub(crate) containers: Arc<dyn ContainerRuntime>,
    pub(crate) images: Arc<dyn Images>,
}

impl Runtime {
    /// Puts the parts together.
    pub fn new(containers: impl ContainerRuntime, images: impl Images) -> Self {
        Self { containers: Arc::new(containers), images: Arc::new(images) }
    }

    /// The same, where parts of this process show as containers, too.
    pub(crate) fn with_parts(self, config: &Config) -> Self {
        if config.parts.is_empty() {
            return self;
        }
        Self {
            containers: Arc::new(PartsRuntime::new(self.containers, config)),
            images: Arc::new(PartImages::new(self.images, config)),
        }
    }
}

/// Runs the containers of pods. It knows nothing of the API, of probes or of restarts.
pub trait ContainerRuntime: Send + Sync + 'static {
    /// Returns what was already there when the runtime began.
    fn recovered(&self) -> Vec<RecoveredPod>;

    /// Returns what the operator should know about this machine.
    fn notes(&self) -> Vec<MachineNote> {
        Vec::new()
    }

    /// Returns why no pods can be run now, if that is so.
    fn trouble(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { None })
    }

    /// Keeps what was made as it should be, for as long as it is polled.
    fn maintain(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Makes the pod's network, and lets its host ports lead there; returns its addresses.
    fn create_sandbox<'a>(
        &'a self,
        pod: &'a PodName,
        order: SandboxOrder,
    ) -> BoxFuture<'a, Result<Addresses, NodeError>>;

    /// Makes a volume of the pod, or brings its files up to date; the error says what is wrong with it.
    fn prepare_volume<'a>(
        &'a self,
        pod: &'a PodName,
        volume: PodVolume,
        files: Option<Payload>,
    ) -> BoxFuture<'a, Result<(), String>>;

    /// Reads a file that the pod's containers wrote to a volume of theirs; nothing if there is none.
    fn read_volume<'a>(
        &'a self,
        pod: &'a PodName,
        file: VolumeFile,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        let _ = (pod, file);
        Box::pin(async { Err("this runtime reads no files of volumes".into()) })
    }

    /// Starts a container in the pod's sandbox.
    fn start(&self, config: ContainerConfig)
    -> BoxFuture<'_, Result<StartedContainer, StartError>>;

    /// Holds a container that runs, and its pod, to other limits.
    fn resize<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        resources: Resources,
    ) -> BoxFuture<'a, Result<(), String>> {
        let _ = (pod, container, resources);
        Box::pin(async { Err("this runtime changes no limits of containers that run".into()) })
    }

    /// Waits until the container has ended; returns how.
    fn wait(&self, pod: &PodName, container: &str) -> BoxFuture<'static, Exit>;

    /// Runs a command in a container that runs. Whoever asked applies timeouts.
    fn exec<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        order: ExecOrder,
    ) -> BoxFuture<'a, Result<ExecSession, ExecError>> {
        let _ = (pod, container, order);
        Box::pin(async { Err(ExecError::new("this runtime runs no commands in containers")) })
    }

    /// Joins those who look at a container that runs, and type.
    fn attach<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        order: AttachOrder,
    ) -> BoxFuture<'a, Result<AttachSession, ExecError>> {
        let _ = (pod, container, order);
        Box::pin(async { Err(ExecError::new("this runtime shows no containers")) })
    }

    /// Connects to a port of the pod, on its own loopback addresses.
    fn dial<'a>(
        &'a self,
        pod: &'a PodName,
        port: u16,
    ) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        let _ = (pod, port);
        Box::pin(async { Err(DialError::new("this runtime reaches no ports of pods")) })
    }

    /// Returns where the log of the container's newest run is; `None` if it has never run.
    fn log(&self, pod: &PodName, container: &str) -> Option<ContainerLog> {
        let _ = (pod, container);
        None
    }

    /// Returns what pods and their containers use of the machine, those that run.
    fn usage(&self) -> BoxFuture<'_, Vec<PodUsage>> {
        Box::pin(async { Vec::new() })
    }

    /// Returns what a pod has written to the disk of the node.
    fn disk_usage<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Consumption> {
        let _ = pod;
        Box::pin(async { Consumption::default() })
    }

    /// Asks or forces the container to end.
    fn stop(&self, pod: &PodName, container: &str, how: Stop);

    /// Ends what still runs and gives the pod's network back. Logs and records stay.
    fn remove_sandbox<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>>;

    /// Removes all that belongs to the pod.
    fn remove<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>>;
}

/// What the operator should know about this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineNote {
    /// The reason of an event.
    pub reason: &'static str,
    /// In sentences.
    pub message: String,
}

/// The images of this machine.
pub trait Images: Send + Sync + 'static {
    /// Returns the image if it is here.
    fn find<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<Option<ImageFacts>, ImageError>>;

    /// Brings the image from its registry. `secrets` are the contents of image pull secrets.
    fn pull(
        &self,
        image: String,
        secrets: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Result<ImageFacts, ImageError>>;

    /// Returns all that are here and have a name.
    fn list(&self) -> BoxFuture<'_, Result<Vec<StoredImage>, ImageError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Removes an image that nobody uses; `used` are the digests of those that somebody does.
    fn remove<'a>(
        &'a self,
        image: &'a StoredImage,
        used: &'a BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), ImageError>> {
        let _ = (image, used);
        Box::pin(async { Ok(()) })
    }
}

/// An image that is here.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredImage {
    /// The digest of its manifest.
    pub digest: String,
    /// Its names, those with a digest first.
    pub names: Vec<String>,
    /// In bytes.
    pub size: u64,
    /// It came from a file, and from nowhere else can it come again.
    pub loaded: bool,
}

/// The log of a container.
pub struct ContainerLog {
    /// The run, as in the container's status.
    pub id: String,
    /// The file that grows; rotated ones are beside it, with a time after its name.
    pub path: PathBuf,
    /// That of the run before, if there is one.
    pub previous: Option<PathBuf>,
    /// Whether nothing will be written to it any more.
    pub ended: Box<dyn Fn() -> bool + Send + Sync>,
}

/// What a pod uses now.
#[derive(Clone, Debug)]
pub struct PodUsage {
    /// Which pod.
    pub uid: String,
    /// All of it.
    pub usage: Usage,
    /// Its containers that run, by name.
    pub containers: BTreeMap<String, (StartedContainer, Usage)>,
}

/// How a container is to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// SIGTERM to its command, or what its image asks for.
    Gracefully,
    /// SIGKILL to all of it.
    Now,
}

/// Why a container did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It waits: its configuration cannot be used.
    #[error("{reason}: {message}")]
    Waiting {
        /// As in the API, such as `CreateContainerConfigError`.
        reason: &'static str,
        /// What exactly is wrong.
        message: String,
    },
    /// Its process could not be made.
    #[error("{0}")]
    Failed(String),
}

/// Why there is no image, in the words that users see.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// The name is no name of an image.
    #[error("{0}")]
    InvalidName(String),
    /// What is here cannot be read.
    #[error("{0}")]
    Broken(String),
    /// The registry says no.
    #[error("{0}")]
    Refused(String),
    /// Nobody answers.
    #[error("{0}")]
    Unavailable(String),
}
