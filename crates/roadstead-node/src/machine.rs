//! The Node object: what this machine is and has.

use std::collections::BTreeMap;
use std::fs;
use std::thread;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::config::Config;

/// The Kubernetes version whose node behaviour we follow.
const KUBELET_VERSION: &str = "v1.37.0+roadstead";
const MOST_PODS: u32 = 110;

/// What the machine says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Machine {
    processors: usize,
    memory_kib: u64,
    kernel: String,
    os_image: String,
    machine_id: String,
    boot_id: String,
    system_uuid: String,
}

impl Machine {
    pub(crate) fn read() -> Self {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            processors: thread::available_parallelism().map_or(1, usize::from),
            memory_kib: memory_total(&line("/proc/meminfo")),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            os_image: pretty_name(&line("/etc/os-release")),
            machine_id: line("/etc/machine-id"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            system_uuid: line("/sys/class/dmi/id/product_uuid"),
        }
    }
}

fn memory_total(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn pretty_name(os_release: &str) -> String {
    let line = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.map_or("Linux", |name| name.trim_matches('"')).to_owned()
}

/// The architecture in Go's words, which Kubernetes uses.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// Returns the Node object as it should be; `before` gives the transition times.
pub(crate) fn plan_node(
    machine: &Machine,
    config: &Config,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> Node {
    let pod_cidr = config.pod_cidr.trunc().to_string();
    let mut node = Node {
        spec: Some(NodeSpec {
            pod_cidr: Some(pod_cidr.clone()),
            pod_cidrs: Some(vec![pod_cidr]),
            ..NodeSpec::default()
        }),
        status: Some(plan_status(machine, config, before, now)),
        ..Node::default()
    };
    node.metadata.name = Some(config.node_name.clone());
    let labels = [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture()),
    ];
    node.metadata.labels =
        Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    node
}

fn plan_status(
    machine: &Machine,
    config: &Config,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> NodeStatus {
    let address = |type_: &str, address: String| NodeAddress { type_: type_.into(), address };
    let resources = BTreeMap::from([
        ("cpu".to_owned(), Quantity(machine.processors.to_string())),
        ("memory".to_owned(), Quantity(format!("{}Ki", machine.memory_kib))),
        ("pods".to_owned(), Quantity(MOST_PODS.to_string())),
    ]);
    NodeStatus {
        addresses: Some(vec![
            address("InternalIP", config.internal_ip.to_string()),
            address("Hostname", config.node_name.clone()),
        ]),
        capacity: Some(resources.clone()),
        allocatable: Some(resources),
        conditions: Some(conditions(before, now)),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().into(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: concat!("roadstead://", env!("CARGO_PKG_VERSION")).into(),
            kernel_version: machine.kernel.clone(),
            kubelet_version: KUBELET_VERSION.into(),
            machine_id: machine.machine_id.clone(),
            operating_system: "linux".into(),
            os_image: machine.os_image.clone(),
            system_uuid: machine.system_uuid.clone(),
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    }
}

fn conditions(before: Option<&NodeStatus>, now: Timestamp) -> Vec<NodeCondition> {
    let claims = [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "roadstead node agent is posting ready status"),
    ];
    let known: &[NodeCondition] =
        before.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let condition = |(type_, status, reason, message): (&str, &str, &str, &str)| {
        let same = known.iter().find(|old| old.type_ == type_ && old.status == status);
        NodeCondition {
            type_: type_.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: same
                .and_then(|old| old.last_transition_time.clone())
                .or(Some(Time(now))),
        }
    };
    claims.map(condition).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::at;

    #[test]
    fn what_the_machine_says() {
        assert_eq!(memory_total("MemFree: 3 kB\nMemTotal:  16384 kB\n"), 16384);
        assert_eq!(pretty_name("NAME=x\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
        assert_eq!(pretty_name(""), "Linux");
        let machine = Machine::read();
        assert!(machine.memory_kib > 0 && machine.processors > 0 && !machine.kernel.is_empty());
    }

    #[test]
    fn conditions_keep_their_transition_time() {
        let mut before =
            NodeStatus { conditions: Some(conditions(None, at(5))), ..NodeStatus::default() };
        before.conditions.as_mut().unwrap()[0].status = "True".into();
        let after = conditions(Some(&before), at(9));
        let times: Vec<_> =
            after.iter().map(|c| c.last_transition_time.as_ref().unwrap().0.as_second()).collect();
        assert_eq!(times, [9, 5, 5, 5]);
    }
}
