//! The flags of a node agent, whether it runs alone or in `up`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Parser;
use ipnet::IpNet;
use roadstead_component::component::Component;
use roadstead_node::config::{Config, Housekeeping, NodeLabels, PolicyWait, ReservedResources};
use roadstead_pod::addresses::Addresses;
use roadstead_pod::eviction::EvictionThresholds;
use roadstead_pod::resources::PROCESSES;
use roadstead_pod::sysctls::UnsafeSysctls;

use crate::machine;

/// How the pods of this machine are run.
#[derive(Clone, Debug, Parser)]
pub(crate) struct NodeArgs {
    /// What this machine is called among the nodes [default: its host name].
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// The bridge that the pods of this machine hang on.
    #[arg(long, value_name = "NAME", default_value = "roadstead0")]
    pub bridge: String,
    /// Let pods ask for what gives them this machine: privileged containers, capabilities beyond the
    /// usual ones, no system call filter, its network, processes and memory (hostNetwork, hostPID, hostIPC), all
    /// of /proc (procMount: Unmasked), hostPath. Whoever may create pods is
    /// then root here.
    #[arg(long)]
    allow_privileged: bool,
    /// The program that runs images, with the command line of an OCI runtime [default: runc, from the path].
    #[arg(long, value_name = "PATH")]
    oci_runtime: Option<PathBuf>,
    /// Let another runtime run all pods, and keep their images: the socket of containerd, such as
    /// unix:///run/containerd/containerd.sock. It has to be told where our network plugin is: see
    /// docs/containerd.md.
    #[arg(long, value_name = "ENDPOINT", value_parser = socket_of)]
    container_runtime_endpoint: Option<PathBuf>,
    /// A file of mirrors by registry: {"docker.io": [{"url": "http://127.0.0.1:5000"}]}. Plain HTTP is spoken
    /// to no others.
    #[arg(long, value_name = "FILE")]
    registry_config: Option<PathBuf>,
    /// Names and passwords for registries, in the form of ~/.docker/config.json. They count for all pods of
    /// this machine, after what pods bring themselves; read at each pull.
    #[arg(long, value_name = "FILE")]
    registry_authfile: Option<PathBuf>,
    /// Where the node agent serves logs, commands and metrics to whoever may have them, as kubelets do; 0
    /// opens no port.
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    pub kubelet_port: u16,
    /// Run the pods of this directory, whatever the API says: a manifest in each file, followed when it
    /// changes. Whoever may write there may run pods here.
    #[arg(long, value_name = "DIRECTORY")]
    pod_manifest_path: Option<PathBuf>,
    #[command(flatten)]
    housekeeping: HousekeepingArgs,
    #[command(flatten)]
    limits: PodArgs,
}

/// What the operator says of this machine and its pods.
#[derive(Clone, Debug, Parser)]
struct PodArgs {
    /// Let pods set these kernel parameters of their own namespaces, besides those that are known to be
    /// harmless: kernel.msg*,net.core.somaxconn.
    #[arg(long, value_name = "SYSCTLS", default_value = "")]
    allowed_unsafe_sysctls: UnsafeSysctls,
    /// The most processes and threads of a pod.
    #[arg(long, value_name = "NUMBER", default_value_t = PROCESSES,
          value_parser = clap::value_parser!(u64).range(1..))]
    pod_pids_limit: u64,
    /// Labels of this machine among the nodes, such as where it is: topology.kubernetes.io/zone=a,disk=fast.
    #[arg(long, value_name = "LABELS", default_value = "")]
    node_labels: NodeLabels,
}

/// When room is made on this machine.
#[derive(Clone, Debug, Parser)]
struct HousekeepingArgs {
    /// What must stay free on this machine: SIGNAL<AMOUNT,…; otherwise pods are evicted. Empty: nothing.
    #[arg(long, value_name = "THRESHOLDS", default_value_t = EvictionThresholds::default())]
    eviction_hard: EvictionThresholds,
    /// What pods are not given, because the system needs it: cpu=500m,memory=1Gi,ephemeral-storage=2Gi.
    #[arg(long, value_name = "RESOURCES", default_value = "")]
    system_reserved: ReservedResources,
    /// The same, for what makes this machine a node.
    #[arg(long, value_name = "RESOURCES", default_value = "")]
    kube_reserved: ReservedResources,
    /// Remove images that nobody uses when their disk is as full as this, in percent; 100: never. More
    /// than a kubelet's 85: what was loaded from an archive cannot be had again.
    #[arg(long, value_name = "PERCENT", default_value_t = 95,
          value_parser = clap::value_parser!(u64).range(..=100))]
    image_gc_high_threshold: u64,
    /// Remove them until it is as full as this.
    #[arg(long, value_name = "PERCENT", default_value_t = 90,
          value_parser = clap::value_parser!(u64).range(..=100))]
    image_gc_low_threshold: u64,
}

impl HousekeepingArgs {
    fn settings(&self) -> Housekeeping {
        Housekeeping {
            eviction_hard: self.eviction_hard.clone(),
            reserved: self.system_reserved.with(self.kube_reserved),
            image_high: self.image_gc_high_threshold,
            image_low: self.image_gc_low_threshold.min(self.image_gc_high_threshold),
        }
    }
}

/// Where a node is in its cluster.
#[derive(Clone, Debug)]
pub(crate) struct NodePlace {
    pub pod_cidrs: Vec<IpNet>,
    pub service_cidrs: Vec<IpNet>,
    pub internal_ips: Addresses,
    pub cluster_dns: IpAddr,
    pub cluster_domain: String,
}

impl NodeArgs {
    pub(crate) fn name(&self) -> String {
        self.node_name.clone().unwrap_or_else(machine::host_name)
    }

    /// The same for another node on this machine, as flags.
    pub(crate) fn for_others(&self) -> Vec<String> {
        let path = |flag: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!("--{flag}={}", path.display()))
        };
        let given = [
            self.allow_privileged.then(|| "--allow-privileged".to_owned()),
            path("oci-runtime", &self.oci_runtime),
            path("registry-config", &self.registry_config),
            path("registry-authfile", &self.registry_authfile),
            Some(format!("--eviction-hard={}", self.housekeeping.eviction_hard)),
        ];
        given.into_iter().flatten().collect()
    }

    /// The configuration of the agent; what it writes is below the directory.
    pub(crate) fn config(&self, data_dir: &Path, place: NodePlace) -> Config {
        Config {
            node_name: self.name(),
            bridge: self.bridge.clone(),
            pod_cidrs: place.pod_cidrs,
            service_cidrs: place.service_cidrs,
            cluster_dns: place.cluster_dns,
            cluster_domain: place.cluster_domain,
            state_dir: data_dir.join("node"),
            image_dir: data_dir.join("images"),
            registry_config: self.registry_config.clone(),
            registry_authfile: self.registry_authfile.clone(),
            oci_runtime: self.oci_runtime.clone(),
            runtime_endpoint: self.container_runtime_endpoint.clone(),
            internal_ips: place.internal_ips,
            open_files: None,
            allow_privileged: self.allow_privileged,
            node_labels: self.limits.node_labels.clone(),
            unsafe_sysctls: self.limits.allowed_unsafe_sysctls.clone(),
            pod_pids: self.limits.pod_pids_limit,
            secure_port: None,
            manifests: self.pod_manifest_path.clone(),
            housekeeping: self.housekeeping.settings(),
            policies: PolicyWait::default(),
            component: Component::default(),
            parts: Vec::new(),
        }
    }
}

/// The path in the address of a socket of this machine.
fn socket_of(endpoint: &str) -> Result<PathBuf, String> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    match path.starts_with('/') {
        true => Ok(path.into()),
        false => Err("an endpoint is unix:// and the path of a socket".into()),
    }
}
