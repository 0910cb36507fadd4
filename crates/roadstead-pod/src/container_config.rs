//! From a pod's spec to the configuration of a container, which is all that a runtime has to know.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use crate::addresses::Addresses;
use crate::downward::{Allocatable, DownwardFacts};
use crate::environment::{
    Defaults, EnvironmentContext, environment, expand, expand_all, with_defaults,
};
use crate::exec::exec_environment;
use crate::hosts::{hosts_file, kernel_name};
use crate::image::ImageFacts;
use crate::pod_name::PodName;
use crate::resources::{Resources, resources};
use crate::sandbox::{Messages, Processes};
use crate::security::{self, Confinement, Leave, Policy, confine};
use crate::sources::Sources;
use crate::sysctls::UnsafeSysctls;
use crate::termination_message::TerminationMessage;
use crate::volumes::claimed::VolumeGrants;
use crate::volumes::{self, VolumeMount};
use roadstead_api::resolv::{ClusterDns, ResolvConf, compose};

/// A container to start.
#[derive(Clone, Debug)]
pub struct ContainerConfig {
    /// The pod, whose sandbox must exist.
    pub pod: PodName,
    /// The container's name within the pod.
    pub container: String,
    /// The image that it runs.
    pub image: ImageFacts,
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
    /// What asks it to end, by name, instead of what its image says.
    pub stop_signal: Option<String>,
    /// Which processes it sees.
    pub processes: Processes,
    /// Whose memory and messages it shares.
    pub messages: Messages,
    /// Where its last words come from.
    pub termination_message: Option<TerminationMessage>,
    /// How often the container ran before.
    pub restarts: i32,
    /// What it reads, and whether it has a terminal.
    pub streams: ContainerStreams,
}

/// What a container reads, and whether it has a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStreams {
    /// Whether it has an input; without, it reads the null device.
    pub stdin: bool,
    /// Whether that ends with the first client that had it.
    pub stdin_once: bool,
    /// Whether it has a terminal.
    pub terminal: bool,
}

impl ContainerStreams {
    fn of(container: &Container) -> Self {
        Self {
            stdin: container.stdin.unwrap_or_default(),
            stdin_once: container.stdin_once.unwrap_or_default(),
            terminal: container.tty.unwrap_or_default(),
        }
    }
}

/// What the node says about itself.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The name of the Node object.
    pub name: String,
    /// The node's own addresses.
    pub internal_ips: Addresses,
    /// The cluster's name server and domain.
    pub cluster_dns: ClusterDns,
    /// Its own name servers, as far as a pod can reach them.
    pub resolv_conf: ResolvConf,
    /// Its own hosts file.
    pub hosts_file: String,
    /// How much it has for pods.
    pub allocatable: Allocatable,
    /// Whether pods may ask for what gives them the node.
    pub policy: Policy,
    /// Kernel parameters that pods may set besides the usual ones.
    pub unsafe_sysctls: UnsafeSysctls,
    /// The most processes and threads of a pod.
    pub pod_pids: u64,
}

impl NodeFacts {
    /// What a pod with these addresses can learn of the node.
    pub fn downward_facts(&self, pod: Option<Addresses>) -> DownwardFacts {
        DownwardFacts { pod, host: self.internal_ips, allocatable: self.allocatable }
    }
}

/// What a container's configuration depends on besides the pod.
#[derive(Clone, Copy, Debug)]
pub struct ContainerContext<'a> {
    /// The pod's addresses.
    pub addresses: Addresses,
    /// How often the container ran before.
    pub restarts: i32,
    /// Variables about Services.
    pub links: &'a [(String, String)],
    /// The objects that its variables are from, as far as they exist.
    pub sources: &'a Sources,
    /// The image that it runs.
    pub image: &'a ImageFacts,
    /// The machine that it runs on.
    pub node: &'a NodeFacts,
}

/// Returns the configuration, and notes about what had to be left out of resolv.conf; the error says what
/// about the container's configuration cannot be used.
pub fn plan_container_config(
    pod: &Pod,
    container: &Container,
    context: &ContainerContext<'_>,
) -> Result<(ContainerConfig, Vec<String>), String> {
    let ContainerContext { addresses, restarts, links, sources, image, node } = *context;
    let leave = Leave { policy: node.policy, sysctls: &node.unsafe_sysctls };
    let confinement = confine(pod, container, &image.content, leave)?;
    let around = node.downward_facts(Some(addresses));
    let context = EnvironmentContext { pod, around: &around, links, sources };
    let environment = environment(container, &context)?;
    let expand = |words: &Option<Vec<String>>| -> Vec<String> {
        words.iter().flatten().map(|word| expand(word, &environment)).collect()
    };
    let (command, args) = (expand(&container.command), expand(&container.args));
    let domain = &node.cluster_dns.domain;
    let hostname = kernel_name(pod, domain, &node.name)?;
    let (resolv_conf, notes) = compose(pod, &node.cluster_dns, &node.resolv_conf);
    let files = BTreeMap::from([
        ("/etc/hostname".to_owned(), format!("{hostname}\n")),
        ("/etc/hosts".to_owned(), hosts_file(pod, addresses, domain, &node.hosts_file)),
        ("/etc/resolv.conf".to_owned(), resolv_conf.to_string()),
    ]);
    let grants =
        VolumeGrants { policy: node.policy, claims: &sources.claims, images: &sources.images };
    let mounts =
        volumes::mounts(pod, container, grants, |expression| expand_all(expression, &environment))?;
    let streams = ContainerStreams::of(container);
    let spec = pod.spec.clone().unwrap_or_default();
    let home = security::home(&image.content, confinement.user);
    let defaults = Defaults { home: &home, hostname: &hostname };
    let container_config = ContainerConfig {
        pod: PodName::of(pod),
        container: container.name.clone(),
        image: image.clone(),
        command,
        args,
        environment: exec_environment(
            &with_defaults(&image.content, environment, &defaults),
            streams.terminal,
        ),
        working_directory: container.working_dir.clone().filter(|path| !path.is_empty()),
        hostname,
        files,
        confinement,
        resources: resources(&spec, container, node.allocatable.memory, node.pod_pids),
        mounts,
        stop_signal: container.lifecycle.as_ref().and_then(|hooks| hooks.stop_signal.clone()),
        processes: Processes::of(&spec, container),
        messages: Messages::of(&spec),
        termination_message: Some(TerminationMessage::of(container)),
        restarts,
        streams,
    };
    Ok((container_config, notes))
}
