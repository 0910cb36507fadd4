//! What to simulate.

use std::path::PathBuf;

use clap::Parser;

/// Very many nodes for an API server, none of which exists.
///
/// A node here is a Lease every 10 s, a status every 5 min, a watch of its pods, and the word that they run
/// 0.5 to 2 s after they came. Controllers beside it make EndpointSlices of the pods; without them there are none.
#[derive(Clone, Debug, Parser)]
#[command(name = "roadstead-hollow", max_term_width = 100)]
pub struct Simulation {
    /// How to reach the cluster, which should have nothing else to do.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: PathBuf,
    /// Nodes.
    #[arg(long, default_value_t = 100)]
    pub nodes: u32,
    /// Pods on each node.
    #[arg(long, default_value_t = 30)]
    pub pods_per_node: u32,
    /// Proxies that watch Services, EndpointSlices and Nodes, each over a connection of its own.
    #[arg(long, default_value_t = 10)]
    pub watchers: u32,
    /// Pods that are deleted, and others that are created, every second.
    #[arg(long, default_value_t = 5.0, value_name = "PER SECOND")]
    pub churn: f64,
    /// How long to measure, when all pods run.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Pods of one Service.
    #[arg(long, default_value_t = 20)]
    pub pods_per_service: u32,
    /// Processes whose processor time and memory are told beside the figures.
    #[arg(long, value_delimiter = ',', value_name = "PID,…")]
    pub pids: Vec<u32>,
    /// From which everything that is left to chance follows.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Nodes that share one connection.
pub(crate) const NODES_PER_CONNECTION: u32 = 50;
/// Nodes whose pods share a namespace.
const NODES_PER_NAMESPACE: u32 = 20;

impl Simulation {
    /// All pods.
    pub(crate) fn pods(&self) -> u32 {
        self.nodes * self.pods_per_node
    }

    /// All Services: each has its pods in one namespace.
    pub(crate) fn services(&self) -> u32 {
        self.pods().div_ceil(self.pods_per_service)
    }

    pub(crate) fn namespaces(&self) -> u32 {
        self.nodes.div_ceil(NODES_PER_NAMESPACE)
    }
}
