//! How much of the machine a container and its pod may use, and the files that say so: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roadstead_api::quantity;
use serde::{Deserialize, Serialize};

/// How many processes and threads a pod may have, if nobody says anything: enough for any server,
/// and too few to fill the machine's table.
pub const PROCESSES: u64 = 4096;

const PERIOD: u64 = 100_000;

/// What is more by less than this was meant to be equal.
const NOISE: f64 = 1e-6;

/// What may be used; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The share of processors when there are not enough, in thousandths of one.
    pub cpu_request: u64,
    /// The most processor time, in thousandths of a processor.
    pub cpu: Option<u64>,
    /// The most memory, in bytes.
    pub memory: Option<u64>,
    /// The most processes and threads.
    pub processes: Option<u64>,
}

/// What a container and its pod may use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Resources {
    /// All containers together.
    pub of_pod: Limits,
    /// This one.
    pub of_container: Limits,
    /// How soon the kernel ends it when the machine is out of memory: from -1000, never, to 1000.
    pub oom_score_adj: i32,
}

/// What a part of the kernel limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Time of processors.
    Cpu,
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
    /// Counts the time of processors, and limits nothing. Version two has it in the first one.
    CpuAccounting,
}

impl Controller {
    /// All that we use.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Memory, Self::Pids, Self::CpuAccounting];

    /// All that hold limits.
    pub const LIMITING: [Self; 3] = [Self::Cpu, Self::Memory, Self::Pids];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::CpuAccounting => "cpuacct",
        }
    }
}

/// The two ways in which Linux groups processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One for all.
    Two,
}

/// A file and what to write to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// In the group's directory.
    pub file: &'static str,
    /// What is written.
    pub value: String,
    /// Kernels without swap accounting and old ones do not have it, and lose nothing.
    pub optional: bool,
}

/// Returns what one container asks for.
pub(crate) fn of_container(container: &Container) -> Limits {
    of_resources(container.resources.as_ref())
}

fn of_resources(resources: Option<&ResourceRequirements>) -> Limits {
    let get = |map: Option<&BTreeMap<String, Quantity>>, name: &str, unit: f64| {
        let amount = quantity::read(&map?.get(name)?.0)?;
        // Rounded up, as the API says; a limit of zero is none.
        Some((amount * unit - NOISE).ceil() as u64).filter(|amount| *amount > 0)
    };
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let cpu = get(limits, "cpu", 1000.0);
    Limits {
        // What is only limited is also requested.
        cpu_request: get(requests, "cpu", 1000.0).or(cpu).unwrap_or(0),
        cpu,
        memory: get(limits, "memory", 1.0),
        processes: None,
    }
}

/// Returns what all containers of a pod ask for together.
///
/// Init containers run one after the other and before the rest, so the largest of them counts if it
/// is larger; those that go on running (sidecars) are added up. There is a limit only where every
/// container has one.
pub(crate) fn of_pod(spec: &PodSpec) -> Limits {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let stays = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let together: Vec<_> =
        init.iter().filter(stays).chain(&spec.containers).map(of_container).collect();
    let alone: Vec<_> = init.iter().filter(|one| !stays(one)).map(of_container).collect();
    let sum = |get: fn(&Limits) -> Option<u64>| {
        let total =
            together.iter().map(get).try_fold(0_u64, |all, one| Some(all.saturating_add(one?)));
        let largest: Option<u64> =
            alone.iter().map(get).try_fold(0, |most, one| Some(most.max(one?)));
        Some(total?.max(largest?))
    };
    let of_all = of_resources(spec.resources.as_ref());
    Limits {
        cpu_request: match of_all.cpu_request {
            0 => sum(|one| Some(one.cpu_request)).unwrap_or(0),
            own => own,
        },
        cpu: of_all.cpu.or_else(|| sum(|one| one.cpu)),
        memory: of_all.memory.or_else(|| sum(|one| one.memory)),
        processes: None,
    }
}

/// Returns what one container of a pod may use, on a machine with that much memory, whose pods have that many
/// processes.
pub fn resources(
    spec: &PodSpec,
    container: &Container,
    machine_bytes: u64,
    processes: u64,
) -> Resources {
    Resources {
        of_pod: Limits { processes: Some(processes), ..of_pod(spec) },
        of_container: of_container(container),
        oom_score_adj: oom_score_adj(spec, container, machine_bytes),
    }
}

/// Returns what to write for one controller.
pub fn settings(limits: &Limits, controller: Controller, version: Version) -> Vec<Setting> {
    let set = |file, value: String| Setting { file, value, optional: false };
    let try_set = |file, value: String| Setting { file, value, optional: true };
    let or = |limit: Option<u64>, none: &str| limit.map_or(none.to_owned(), |n| n.to_string());
    let quota = limits.cpu.map(|cpu| cpu_quota(cpu).0);
    match (controller, version) {
        (Controller::Cpu, Version::One) => vec![
            set("cpu.shares", cpu_shares(limits.cpu_request).to_string()),
            set("cpu.cfs_period_us", PERIOD.to_string()),
            set("cpu.cfs_quota_us", or(quota, "-1")),
        ],
        (Controller::Cpu, Version::Two) => vec![
            set("cpu.weight", weight(cpu_shares(limits.cpu_request)).to_string()),
            set("cpu.max", format!("{} {PERIOD}", or(quota, "max"))),
        ],
        (Controller::Memory, Version::One) => vec![
            set("memory.limit_in_bytes", or(limits.memory, "-1")),
            try_set("memory.memsw.limit_in_bytes", or(limits.memory, "-1")),
        ],
        (Controller::Memory, Version::Two) => vec![
            set("memory.max", or(limits.memory, "max")),
            try_set("memory.swap.max", if limits.memory.is_some() { "0" } else { "max" }.into()),
            try_set("memory.oom.group", if limits.memory.is_some() { "1" } else { "0" }.into()),
        ],
        (Controller::Pids, _) => vec![set("pids.max", or(limits.processes, "max"))],
        (Controller::CpuAccounting, _) => vec![],
    }
}

/// The time of processors in microseconds, and within how many of them, for thousandths of a processor.
pub fn cpu_quota(milli: u64) -> (u64, u64) {
    ((milli * PERIOD / 1000).max(1000), PERIOD)
}

/// The share of processors, of which one has 1024, for thousandths of one.
pub fn cpu_shares(milli: u64) -> u64 {
    (milli * 1024 / 1000).clamp(2, 262_144)
}

/// The same share on the scale of version two, on which the default is 100 instead of 1024.
fn weight(shares: u64) -> u64 {
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    ((10_f64.powf(exponent) - NOISE).ceil() as u64).clamp(1, 10_000)
}

/// Returns how soon the kernel ends a container when memory is short: the later, the more of what it
/// uses it has asked for.
fn oom_score_adj(spec: &PodSpec, container: &Container, machine_bytes: u64) -> i32 {
    match crate::status::qos_class(spec) {
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let request = container.resources.as_ref().and_then(|resources| {
                let asked = |map: &Option<BTreeMap<String, Quantity>>| {
                    quantity::read(&map.as_ref()?.get("memory")?.0)
                };
                asked(&resources.requests).or_else(|| asked(&resources.limits))
            });
            let part = 1000.0 * request.unwrap_or(0.0) / (machine_bytes.max(1) as f64);
            (1000 - part as i64).clamp(3, 999) as i32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Reads `cpu=100m/1` (request/limit), `memory=/64Mi`.
    fn resources(text: &str) -> Value {
        let mut resources = json!({"requests": {}, "limits": {}});
        for word in text.split_whitespace() {
            let (name, amounts) = word.split_once('=').unwrap();
            let (request, limit) = amounts.split_once('/').unwrap_or((amounts, ""));
            for (kind, amount) in [("requests", request), ("limits", limit)] {
                if !amount.is_empty() {
                    resources[kind][name] = json!(amount);
                }
            }
        }
        resources
    }

    /// Containers by `;`, with `init:` or `side:` before those that come first.
    fn spec(text: &str) -> PodSpec {
        let (mut init, mut main) = (vec![], vec![]);
        for (at, text) in text.split(';').enumerate() {
            let text = text.trim();
            let (kind, text) = text.split_once(':').unwrap_or(("", text));
            let mut container = json!({"name": format!("c{at}"), "resources": resources(text)});
            if kind == "side" {
                container["restartPolicy"] = json!("Always");
            }
            if kind.is_empty() { main.push(container) } else { init.push(container) }
        }
        serde_json::from_value(json!({"initContainers": init, "containers": main})).unwrap()
    }

    fn show(limits: &Limits) -> String {
        let or = |limit: Option<u64>| limit.map_or("-".into(), |limit| limit.to_string());
        format!("{}m {}m {}", limits.cpu_request, or(limits.cpu), or(limits.memory))
    }

    #[test]
    fn of_all_containers_of_a_pod() {
        for (text, want) in [
            ("", "0m -m -"),
            ("cpu=100m/1 memory=/64Mi", "100m 1000m 67108864"),
            ("cpu=/500m", "500m 500m -"),
            ("cpu=100m/1 memory=/1k; cpu=200m/1 memory=/2k", "300m 2000m 3000"),
            ("cpu=100m/1; cpu=200m", "300m -m -"),
            ("init: cpu=900m/2 memory=/9k; cpu=100m/1 memory=/1k", "900m 2000m 9000"),
            ("init: cpu=900m; cpu=100m/1", "900m -m -"),
            ("side: cpu=50m/1 memory=/1k; cpu=100m/1 memory=/1k", "150m 2000m 2000"),
            ("cpu=0.0001/0.0001 memory=/0", "1m 1m -"),
        ] {
            assert_eq!(show(&of_pod(&spec(text))), want, "{text}");
        }
        let spec = spec("cpu=1");
        let both = super::resources(&spec, &spec.containers[0], 1, 77);
        assert_eq!((both.of_pod.processes, both.of_container.processes), (Some(77), None));
    }

    fn files(limits: &Limits, version: Version) -> String {
        let all = Controller::ALL.into_iter().flat_map(|one| settings(limits, one, version));
        let show = |setting: Setting| {
            let mark = if setting.optional { "?" } else { "" };
            format!("{}{mark}={}", setting.file, setting.value)
        };
        all.map(show).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn files_and_values() {
        let none = Limits::default();
        let some = Limits {
            cpu_request: 250,
            cpu: Some(1500),
            memory: Some(1 << 20),
            processes: Some(100),
        };
        for (limits, version, want) in [
            (
                none,
                Version::One,
                "cpu.shares=2, cpu.cfs_period_us=100000, cpu.cfs_quota_us=-1, \
                 memory.limit_in_bytes=-1, memory.memsw.limit_in_bytes?=-1, pids.max=max",
            ),
            (
                none,
                Version::Two,
                "cpu.weight=1, cpu.max=max 100000, memory.max=max, memory.swap.max?=max, \
                 memory.oom.group?=0, pids.max=max",
            ),
            (
                some,
                Version::One,
                "cpu.shares=256, cpu.cfs_period_us=100000, cpu.cfs_quota_us=150000, \
                 memory.limit_in_bytes=1048576, memory.memsw.limit_in_bytes?=1048576, pids.max=100",
            ),
            (
                some,
                Version::Two,
                "cpu.weight=35, cpu.max=150000 100000, memory.max=1048576, memory.swap.max?=0, \
                 memory.oom.group?=1, pids.max=100",
            ),
        ] {
            assert_eq!(files(&limits, version), want, "{version:?}");
        }
        let tiny = Limits { cpu: Some(1), ..none };
        assert!(
            files(&tiny, Version::Two).contains("cpu.max=1000 100000"),
            "a millisecond at least"
        );
    }

    #[test]
    fn weights() {
        for (shares, want) in [(2, 1), (1024, 100), (262_144, 10_000)] {
            assert_eq!(weight(shares), want, "{shares}");
        }
    }

    #[test]
    fn who_is_ended_first() {
        for (text, want) in [
            ("", 1000),
            ("cpu=1/1 memory=1Gi/1Gi", -997),
            ("memory=512Mi", 500),
            ("cpu=1", 999),
            ("memory=2Gi", 3),
        ] {
            let spec = spec(text);
            assert_eq!(oom_score_adj(&spec, &spec.containers[0], 1 << 30), want, "{text}");
        }
    }
}
