//! What the agent is told at its start, and what can go wrong with it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use roadstead_api::{names, quantity};
use roadstead_component::component::Component;
use roadstead_pod::addresses::Addresses;
use roadstead_pod::eviction::EvictionThresholds;
use roadstead_pod::host_ports::HostPort;
use roadstead_pod::sysctls::UnsafeSysctls;

use crate::addresses;
use crate::runtime::parts::ProcessPart;
use crate::serving::secure::SecurePort;

/// The bridge's name unless the configuration says otherwise.
pub const DEFAULT_BRIDGE: &str = "roadstead0";

/// How one node is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the Node object, and what `spec.nodeName` of our pods says.
    pub node_name: String,
    /// The bridge that all pods hang on; see [`DEFAULT_BRIDGE`].
    pub bridge: String,
    /// The addresses of this node's pods: of one family, or of both, the primary one first. The bridge takes
    /// the first address of each.
    pub pod_cidrs: Vec<IpNet>,
    /// The cluster's Service addresses: they are routed to the bridge, so that one which is not
    /// programmed never leaves the machine. One for each family that pods have, or fewer.
    pub service_cidrs: Vec<IpNet>,
    /// The name server in the pods' resolv.conf.
    pub cluster_dns: IpAddr,
    /// The cluster's DNS suffix, usually `cluster.local`.
    pub cluster_domain: String,
    /// Where the agent keeps everything: namespaces, records of running containers, logs.
    pub state_dir: PathBuf,
    /// Where images are kept.
    pub image_dir: PathBuf,
    /// A file of mirrors by registry, in JSON.
    pub registry_config: Option<PathBuf>,
    /// A file of names and passwords for registries, which count for all pods.
    pub registry_authfile: Option<PathBuf>,
    /// The command line of an OCI runtime that runs images; `None` is runc, where there is one.
    pub oci_runtime: Option<PathBuf>,
    /// The socket of a runtime that runs all containers, by CRI; `None` is we ourselves.
    pub runtime_endpoint: Option<PathBuf>,
    /// The node's own addresses.
    pub internal_ips: Addresses,
    /// How many files a container's processes may open at first; `None` is as many as the agent.
    pub open_files: Option<u64>,
    /// Whether pods may ask for what gives them the node: privileged containers, capabilities
    /// beyond the usual ones, no system call filter, the node's own network.
    pub allow_privileged: bool,
    /// Kernel parameters that pods may set although they are not known to be harmless.
    pub unsafe_sysctls: UnsafeSysctls,
    /// The most processes and threads of a pod.
    pub pod_pids: u64,
    /// What the Node object says besides of the machine, such as its zone.
    pub node_labels: NodeLabels,
    /// Where strangers reach the agent; `None` is nowhere.
    pub secure_port: Option<SecurePort>,
    /// Where manifests of pods are that the node runs by itself; `None` is nowhere.
    pub manifests: Option<PathBuf>,
    /// When the node is short of something.
    pub housekeeping: Housekeeping,
    /// How pods wait for NetworkPolicies before they start.
    pub policies: PolicyWait,
    /// What of this process shows as containers of pods.
    pub parts: Vec<ProcessPart>,
    /// What is shown of the agent.
    pub component: Component,
}

/// Labels of a Node object that somebody gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels(pub(crate) BTreeMap<String, String>);

impl FromStr for NodeLabels {
    type Err = String;

    /// Reads `topology.kubernetes.io/zone=a,disk=fast`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let labels = parts.map(|part| {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("{part}: should be NAME=VALUE"))?;
            let wrong = names::key(name).into_iter().chain(value_mistake(value));
            let reserved = is_reserved(name).then(|| {
                "of the labels of Kubernetes, a node has topology.kubernetes.io and node.kubernetes.io ones"
                    .to_owned()
            });
            match wrong.chain(reserved).next() {
                Some(why) => Err(format!("{part}: {why}")),
                None => Ok((name.to_owned(), value.to_owned())),
            }
        });
        labels.collect::<Result<_, _>>().map(Self)
    }
}

/// The value of a label is empty, or looks like the name of one that belongs to nobody.
fn value_mistake(value: &str) -> Option<String> {
    let prefixed = value.contains('/').then(|| "a value has no '/'".to_owned());
    let named = || (!value.is_empty()).then(|| names::key(value).into_iter().next()).flatten();
    prefixed.or_else(named)
}

/// Whether a node may not give itself this label: others of the cluster decide by it.
fn is_reserved(name: &str) -> bool {
    let Some((domain, _)) = name.split_once('/') else { return false };
    let within = |all: &str| domain == all || domain.ends_with(&format!(".{all}"));
    let own = ["node.kubernetes.io", "kubelet.kubernetes.io"].into_iter().any(within);
    let place = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"].contains(&name);
    (within("kubernetes.io") || within("k8s.io")) && !own && !place
}

#[test]
fn labels_that_nodes_are_given() {
    for (text, want) in [
        ("", Ok(0)),
        ("topology.kubernetes.io/zone=a, disk=fast,empty=", Ok(3)),
        ("node.kubernetes.io/rack=7", Ok(1)),
        ("disk", Err("disk: should be NAME=VALUE")),
        ("kubernetes.io/hostname=other", Err("kubernetes.io/hostname=other: of the labels")),
        ("node-restriction.kubernetes.io/x=1", Err("node-restriction.kubernetes.io/x=1: of the")),
        ("a b=c", Err("a b=c: ")),
        ("a=b c", Err("a=b c: ")),
    ] {
        let got = text.parse::<NodeLabels>().map(|labels| labels.0.len());
        match want {
            Ok(count) => assert_eq!(got, Ok(count), "{text}"),
            Err(why) => assert!(got.unwrap_err().starts_with(why), "{text}"),
        }
    }
}

/// How long pods wait until it is known what NetworkPolicies say of them.
#[derive(Clone, Copy, Debug)]
pub struct PolicyWait {
    /// Whether policies will be enforced here. If it is not so, pods wait only where somebody has begun
    /// with it.
    pub expected: bool,
    /// No longer than this: better without policies than never.
    pub patience: Duration,
}

impl Default for PolicyWait {
    fn default() -> Self {
        Self { expected: false, patience: Duration::from_secs(10) }
    }
}

/// When room is made on the node.
#[derive(Clone, Debug)]
pub struct Housekeeping {
    /// What must stay free; otherwise pods have to go.
    pub eviction_hard: EvictionThresholds,
    /// What pods are not given.
    pub reserved: ReservedResources,
    /// Images that nobody uses go when their disk is as full as this, in percent.
    pub image_high: u64,
    /// They go until it is as full as this.
    pub image_low: u64,
}

impl Default for Housekeeping {
    fn default() -> Self {
        Self {
            eviction_hard: EvictionThresholds::default(),
            reserved: ReservedResources::default(),
            image_high: 85,
            image_low: 80,
        }
    }
}

/// What pods are not given, because others need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedResources {
    /// In thousandths of a processor.
    pub cpu_milli: u64,
    /// In bytes.
    pub memory: u64,
    /// Disk, in bytes.
    pub storage: u64,
}

impl ReservedResources {
    /// Both together.
    pub fn with(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory: self.memory.saturating_add(other.memory),
            storage: self.storage.saturating_add(other.storage),
        }
    }
}

impl FromStr for ReservedResources {
    type Err = String;

    /// Reads `cpu=500m,memory=1Gi`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let amount = part.split_once('=').and_then(|(_, amount)| quantity::read(amount));
            let amount = amount.filter(|amount| *amount >= 0.0);
            let amount = amount.ok_or_else(|| format!("{part}: should be RESOURCE=AMOUNT"))?;
            match part.split_once('=').map(|(name, _)| name.trim()) {
                Some("cpu") => all.cpu_milli = (amount * 1000.0).round() as u64,
                Some("memory") => all.memory = amount as u64,
                Some("ephemeral-storage") => all.storage = amount as u64,
                _ => return Err(format!("{part}: only cpu, memory and ephemeral-storage count")),
            }
        }
        Ok(all)
    }
}

/// The address of the bridge in a subnet of pods, which is the gateway of them all.
pub fn gateway(pod_cidr: &IpNet) -> IpAddr {
    addresses::gateway(pod_cidr)
}

/// Why the agent could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The directory of the agent's state cannot be used.
    #[error("cannot use the state directory {path}")]
    State {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The pod network could not be set up.
    #[error("cannot {action}")]
    Network {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: nlink::Error,
    },
    /// The bridge that pods are to hang on is somebody else's.
    #[error("{0} exists, and roadstead did not make it; choose another --bridge")]
    ForeignBridge(String),
    /// The pod network has no free address.
    #[error("no free pod address in {0}")]
    NoAddress(String),
    /// Another pod of this node has the port.
    #[error("host {0} is taken: another pod of this node has it")]
    HostPortTaken(HostPort),
    /// The port is in use on the node itself.
    #[error("host {0} is taken: a process of the node has it")]
    HostPortInUse(HostPort),
    /// The runtime of containers does not do what it is asked for.
    #[cfg(feature = "cri")]
    #[error(transparent)]
    Runtime(#[from] roadstead_grpc::status::Status),
    /// A container's process could not be made.
    #[error("cannot start a process for a container")]
    Process(#[source] std::io::Error),
    /// The agent's port cannot be opened.
    #[error("cannot listen on {address}; choose another --kubelet-port, or 0 for none")]
    Listen {
        /// Where it should be.
        address: SocketAddr,
        /// Why it is not.
        source: std::io::Error,
    },
    /// A task of the agent ended by surprise.
    #[error("the {0} task ended")]
    TaskEnded(&'static str),
}

/// An error with its causes.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
