//! What a runtime has to know to make what the containers of a pod share. Pure.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde::{Deserialize, Serialize};

use crate::ephemeral;
use crate::host_ports::{HostPort, host_ports};
use crate::pod_name::NetworkMode;
use crate::sysctls::{UnsafeSysctls, allowed_sysctls};

/// A pod's network, as its spec asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxOrder {
    /// Whose network it is.
    pub network: NetworkMode,
    /// Ports of the node that lead to the pod.
    pub host_ports: Vec<HostPort>,
    /// What its containers call their machine.
    pub hostname: String,
    /// Kernel parameters of its namespaces.
    pub sysctls: Vec<(String, String)>,
    /// Whether any of its containers is to be privileged.
    pub privileged: bool,
    /// Which processes its containers see, debuggers aside.
    pub processes: Processes,
    /// Whose memory and messages they share.
    pub messages: Messages,
}

/// Which processes a container sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Processes {
    /// Its own.
    #[default]
    Own,
    /// Those of all containers of its pod.
    Pod,
    /// Those of the container of this name, too.
    Beside(String),
    /// All of the node.
    Node,
}

impl Processes {
    fn of_pod(spec: &PodSpec) -> Self {
        match (spec.host_pid, spec.share_process_namespace) {
            (Some(true), _) => Self::Node,
            (_, Some(true)) => Self::Pod,
            _ => Self::Own,
        }
    }

    /// What a container of the pod is to see. Where all see each other, a debugger need not be put beside one.
    pub(crate) fn of(spec: &PodSpec, container: &Container) -> Self {
        let own = ephemeral::find(spec, &container.name);
        let target = own.and_then(|own| own.target_container_name.clone());
        match (Self::of_pod(spec), target.filter(|name| !name.is_empty())) {
            (Self::Own, Some(target)) => Self::Beside(target),
            (of_pod, _) => of_pod,
        }
    }
}

/// Whose shared memory and message queues a container has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Messages {
    /// Those of its pod.
    #[default]
    Pod,
    /// Those of the node.
    Node,
}

impl Messages {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        if spec.host_ipc == Some(true) { Self::Node } else { Self::Pod }
    }
}

impl SandboxOrder {
    /// What the pod asks for, which is to have this host name.
    pub fn of(pod: &Pod, hostname: String, allowed: &UnsafeSysctls) -> Self {
        let nothing = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&nothing);
        let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let privileged = containers.any(|container| {
            let own = container.security_context.as_ref();
            own.and_then(|own| own.privileged) == Some(true)
        });
        Self {
            network: NetworkMode::of(pod),
            host_ports: host_ports(pod),
            hostname,
            sysctls: allowed_sysctls(pod, allowed),
            privileged,
            processes: Processes::of_pod(spec),
            messages: Messages::of(spec),
        }
    }
}

impl From<NetworkMode> for SandboxOrder {
    fn from(network: NetworkMode) -> Self {
        let (host_ports, hostname, sysctls) = Default::default();
        let (processes, messages) = Default::default();
        Self { network, host_ports, hostname, sysctls, privileged: false, processes, messages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whose_processes_are_seen() {
        let beside = || Processes::Beside("a".into());
        for (fields, container, debugger) in [
            (json!({}), Processes::Own, beside()),
            (json!({"shareProcessNamespace": false}), Processes::Own, beside()),
            (json!({"shareProcessNamespace": true}), Processes::Pod, Processes::Pod),
            (json!({"hostPID": true}), Processes::Node, Processes::Node),
        ] {
            let mut spec = fields.clone();
            spec["containers"] = json!([{"name": "a"}]);
            spec["ephemeralContainers"] = json!([{"name": "d", "targetContainerName": "a"}]);
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            let named = |name: &str| Container { name: name.into(), ..Container::default() };
            let got = ["a", "d"].map(|name| Processes::of(&spec, &named(name)));
            assert_eq!(got, [container, debugger], "{fields}");
        }
    }
}
