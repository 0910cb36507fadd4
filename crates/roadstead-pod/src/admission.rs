//! Which pods a node takes: whoever binds them there need not be a scheduler that has looked. Pure.

use k8s_openapi::api::core::v1::Pod;
use roadstead_api::node_affinity::{NodeTraits, wants_node};
use roadstead_api::requests::Requests;

use crate::facts::PodFailure;
use crate::host_ports::{HostPort, host_ports};
use crate::sysctls::{UnsafeSysctls, forbidden_sysctl};

/// Why a node does not take a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// As in the status, such as `OutOfcpu`.
    pub reason: &'static str,
    /// What exactly is missing.
    pub message: String,
}

impl Rejection {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// What becomes of the pod.
    pub fn failure(&self) -> PodFailure {
        let message = format!("Pod was rejected: {}", self.message);
        PodFailure { reason: self.reason, message }
    }
}

/// How much a node has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeRoom {
    /// For all pods together.
    pub allocatable: Requests,
    /// The most pods.
    pub pods: u64,
}

/// What the pods of a node have already.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeUse {
    requests: Requests,
    pods: u64,
    ports: Vec<HostPort>,
}

impl NodeUse {
    /// Counts one more pod in.
    pub fn add(&mut self, pod: &Pod) {
        let requests = pod.spec.as_ref().map(Requests::of_pod).unwrap_or_default();
        self.requests = self.requests.plus(requests);
        self.pods += 1;
        self.ports.extend(host_ports(pod));
    }

    pub(crate) fn requests(&self) -> Requests {
        self.requests
    }
}

/// Whether there is room for the pod, beside those that are there, on a node that lets pods set these sysctls,
/// too.
pub fn admit(
    pod: &Pod,
    others: &NodeUse,
    room: NodeRoom,
    sysctls: &UnsafeSysctls,
) -> Result<(), Rejection> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Rejection::new("PodOSNotSupported", message));
    }
    if let Some(message) = forbidden_sysctl(pod, sysctls) {
        return Err(Rejection::new("SysctlForbidden", message));
    }
    let taken = host_ports(pod).into_iter().any(|port| {
        let mut others = others.ports.iter();
        others.any(|other| port.excludes(other))
    });
    if taken {
        let message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        return Err(Rejection::new("NodePorts", message));
    }
    let asked = Requests::of_pod(spec);
    let (used, has) = (others.requests, room.allocatable);
    for (reason, name, asked, used, has) in [
        ("OutOfpods", "pods", 1, others.pods, room.pods),
        ("OutOfcpu", "cpu", asked.cpu, used.cpu, has.cpu),
        ("OutOfmemory", "memory", asked.memory, used.memory, has.memory),
        ("OutOfephemeral-storage", "ephemeral-storage", asked.storage, used.storage, has.storage),
    ] {
        if asked > 0 && used.saturating_add(asked) > has {
            let message = format!(
                "Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {has}"
            );
            return Err(Rejection::new(reason, message));
        }
    }
    Ok(())
}

/// Whether the pod wants to be on this node.
pub fn check_affinity(pod: &Pod, node: NodeTraits<'_>) -> Result<(), Rejection> {
    match &pod.spec {
        Some(spec) if !wants_node(spec, node) => Err(Rejection::new(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(mut spec: Value) -> Pod {
        let resources = json!({"requests": spec["requests"]});
        spec["containers"] = json!([{"name": "c", "resources": resources, "ports": spec["ports"]}]);
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    #[test]
    fn who_is_taken() {
        let room =
            NodeRoom { allocatable: Requests { cpu: 2000, memory: 1 << 30, storage: 7 }, pods: 2 };
        let there = pod(json!({"requests": {"cpu": "1500m", "memory": "1Gi"},
                               "ports": [{"containerPort": 1, "hostPort": 80}]}));
        let sysctl =
            |name: &str| json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
        let enough = |name: &str, asked: u64, used: u64, has: u64| {
            format!(
                "Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {has}"
            )
        };
        let port = |port: u16| json!({"ports": [{"containerPort": 1, "hostPort": port}]});
        let cases = [
            (json!({}), 1, String::new()),
            (json!({}), 2, format!("OutOfpods: {}", enough("pods", 1, 2, 2))),
            (json!({"requests": {"cpu": "500m"}}), 1, String::new()),
            (
                json!({"requests": {"cpu": "2"}}),
                1,
                format!("OutOfcpu: {}", enough("cpu", 2000, 1500, 2000)),
            ),
            (
                json!({"requests": {"memory": "1"}}),
                1,
                format!("OutOfmemory: {}", enough("memory", 1, 1 << 30, 1 << 30)),
            ),
            (
                json!({"requests": {"ephemeral-storage": "8"}}),
                1,
                format!("OutOfephemeral-storage: {}", enough("ephemeral-storage", 8, 0, 7)),
            ),
            (
                port(80),
                1,
                "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".into(),
            ),
            (port(81), 1, String::new()),
            (
                json!({"os": {"name": "windows"}}),
                0,
                "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS".into(),
            ),
            (json!({"os": {"name": "linux"}}), 0, String::new()),
            (sysctl("net.ipv4.tcp_syncookies"), 0, String::new()),
            (
                sysctl("kernel.panic"),
                0,
                "SysctlForbidden: forbidden sysctl: \"kernel.panic\" not allowlisted".into(),
            ),
        ];
        for (spec, others, want) in cases {
            let mut used = NodeUse::default();
            for number in 0..others {
                used.add(&if number == 0 { there.clone() } else { pod(json!({})) });
            }
            let found = admit(&pod(spec.clone()), &used, room, &UnsafeSysctls::default());
            let found = found
                .map_or_else(|no| format!("{}: {}", no.reason, no.message), |()| String::new());
            assert_eq!(found, want, "{spec}");
        }
    }

    #[test]
    fn affinity() {
        let node = NodeTraits { name: "n", labels: None };
        assert_eq!(check_affinity(&pod(json!({})), node), Ok(()));
        let rejection =
            check_affinity(&pod(json!({"nodeSelector": {"a": "b"}})), node).unwrap_err();
        let why = "Pod was rejected: Predicate NodeAffinity failed: \
            node(s) didn't match Pod's node affinity/selector";
        assert_eq!(rejection.failure().message, why);
    }
}
