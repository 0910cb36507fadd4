//! What makes pods run.
//!
//! [`PodRuntime`] is the seam behind which containerd will come by CRI. [`builtin`] makes pods
//! from namespaces and our own executable; the tests of the agent have a fake one.

pub mod builtin;
mod pidfd;
mod record;
mod volume;

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::cgroup::limits::{Limits, Resources};
use crate::config::NodeError;
pub use crate::facts::Exit;
pub use crate::security::Confinement;
pub use crate::volumes::{EmptyDirectory, Medium, VolumeMount};

/// Runs the processes of pods. It knows nothing of the API, of probes or of restarts.
pub trait PodRuntime: Send + Sync + 'static {
    /// Returns what was already there when the runtime began.
    fn recovered(&self) -> Vec<RecoveredPod>;

    /// Returns what the operator should know about this machine, in sentences.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Keeps what was made as it should be, for as long as it is polled.
    fn maintain(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Makes the pod's network; returns its address.
    fn create_sandbox(
        &self,
        pod: &PodName,
        network: PodNetwork,
    ) -> impl Future<Output = Result<IpAddr, NodeError>> + Send;

    /// Starts a container in the pod's sandbox.
    fn start(
        &self,
        order: ContainerOrder,
    ) -> impl Future<Output = Result<StartedContainer, StartError>> + Send;

    /// Waits until the container has ended; returns how.
    fn wait(&self, pod: &PodName, container: &str) -> impl Future<Output = Exit> + Send + 'static;

    /// Asks or forces the container to end.
    fn stop(&self, pod: &PodName, container: &str, how: Stop);

    /// Ends what still runs and gives the pod's network back. Logs and records stay.
    fn remove_sandbox(&self, pod: &PodName) -> impl Future<Output = Result<(), NodeError>> + Send;

    /// Removes all that belongs to the pod.
    fn remove(&self, pod: &PodName) -> impl Future<Output = Result<(), NodeError>> + Send;
}

/// Which pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodName {
    /// Its namespace in the API.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: another pod of the same name is another pod.
    pub uid: String,
}

/// Whose network a pod uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum PodNetwork {
    /// One of its own.
    Own,
    /// The node's.
    Host,
}

/// How a container is to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// SIGTERM to its command.
    Gracefully,
    /// SIGKILL to all of it.
    Now,
}

/// A container to start.
#[derive(Clone, Debug)]
pub struct ContainerOrder {
    /// The pod, whose sandbox must exist.
    pub pod: PodName,
    /// The container's name within the pod.
    pub container: String,
    /// The image as written in the spec.
    pub image: String,
    /// `imagePullPolicy`, as far as it is given.
    pub pull_policy: Option<String>,
    /// Replaces the image's command if not empty.
    pub command: Vec<String>,
    /// The command's arguments. References to variables are resolved in both.
    pub args: Vec<String>,
    /// All environment variables.
    pub environment: Vec<(String, String)>,
    /// Where the command starts; the image's choice if not given.
    pub working_directory: Option<String>,
    /// The host name within the container.
    pub hostname: String,
    /// Files such as /etc/resolv.conf, by path.
    pub files: BTreeMap<String, String>,
    /// What its processes may do.
    pub confinement: Confinement,
    /// How much of the machine it may use.
    pub resources: Resources,
    /// The volumes that it sees.
    pub mounts: Vec<VolumeMount>,
    /// How often the container ran before.
    pub restarts: i32,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct StartedContainer {
    /// Identifies this run.
    pub id: String,
    /// When it began.
    pub since: Timestamp,
}

/// Why a container did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It waits: its image is missing or its configuration cannot be used.
    #[error("{reason}: {message}")]
    Waiting {
        /// As in the API, such as `ErrImagePull`.
        reason: &'static str,
        /// What exactly is wrong.
        message: String,
    },
    /// Its process could not be made.
    #[error("{0}")]
    Failed(String),
}

/// A pod found at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredPod {
    /// Which pod.
    pub pod: PodName,
    /// Its address, if its sandbox is still usable.
    pub address: Option<IpAddr>,
    /// Its containers by name.
    pub containers: BTreeMap<String, RecoveredContainer>,
}

/// A container found at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredContainer {
    /// How often it ran before.
    pub restarts: i32,
    /// What became of it.
    pub state: RecoveredState,
}

/// What became of a container while no agent looked.
#[derive(Clone, Debug, PartialEq)]
pub enum RecoveredState {
    /// It still runs.
    Running(StartedContainer),
    /// It has ended.
    Exited(Exit),
}
