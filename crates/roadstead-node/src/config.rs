//! What the agent is told at its start, and what can go wrong with it.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use ipnet::Ipv4Net;

/// The bridge's name unless the configuration says otherwise.
pub const DEFAULT_BRIDGE: &str = "roadstead0";

/// How one node is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the Node object, and what `spec.nodeName` of our pods says.
    pub node_name: String,
    /// The bridge that all pods hang on; see [`DEFAULT_BRIDGE`].
    pub bridge: String,
    /// The addresses of this node's pods. The bridge takes the first one.
    pub pod_cidr: Ipv4Net,
    /// The cluster's Service addresses: they are routed to the bridge, so that one which is not
    /// programmed never leaves the machine.
    pub service_cidr: Ipv4Net,
    /// The name server in the pods' resolv.conf.
    pub cluster_dns: IpAddr,
    /// The cluster's DNS suffix, usually `cluster.local`.
    pub cluster_domain: String,
    /// Where the agent keeps everything: namespaces, records of running containers, logs.
    pub state_dir: PathBuf,
    /// The node's own address.
    pub internal_ip: IpAddr,
    /// How many files a container's processes may open at first; `None` is as many as the agent.
    pub open_files: Option<u64>,
    /// Whether pods may ask for what gives them the node: privileged containers, capabilities
    /// beyond the usual ones, no system call filter.
    pub allow_privileged: bool,
}

impl Config {
    /// The address of the bridge, which is every pod's gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        self.pod_cidr.hosts().next().unwrap_or(self.pod_cidr.addr())
    }
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
    NoAddress(Ipv4Net),
    /// A container's process could not be made.
    #[error("cannot start a process for a container")]
    Process(#[source] std::io::Error),
    /// A task of the agent ended by surprise.
    #[error("the {0} task ended")]
    TaskEnded(&'static str),
}
