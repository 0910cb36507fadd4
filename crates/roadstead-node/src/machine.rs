//! The Node object: what this machine is and has.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeSpec, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use roadstead_api::requests::Requests;
use roadstead_pod::admission::NodeRoom;
use roadstead_pod::eviction::{Condition, Signal, bytes};

use crate::config::{Config, Housekeeping};
use crate::measure::FilesystemUsage;
use crate::runtime::StoredImage;

/// The Kubernetes version whose node behaviour we follow.
const KUBELET_VERSION: &str = concat!("v1.37.0+roadstead-", env!("CARGO_PKG_VERSION"));
const MOST_PODS: u32 = 110;
/// Not more images than this are listed: the object is written often.
const MOST_IMAGES: usize = 50;

/// What the machine says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Machine {
    processors: usize,
    memory_kib: u64,
    kernel: String,
    os_image: String,
    machine_id: String,
    pub(crate) boot_id: String,
    system_uuid: String,
    /// Where pods write, in bytes.
    storage: u64,
    /// Sizes of large pages, in KiB, and how many there are of each.
    huge_pages: BTreeMap<u64, u64>,
}

/// What changes while the agent runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Today {
    /// What the node is short of.
    pub(crate) pressures: Vec<Condition>,
    pub(crate) images: Vec<StoredImage>,
    /// Why it can run no pods.
    pub(crate) trouble: Option<String>,
}

impl Machine {
    /// Looks at the machine; pods write below `state`.
    pub(crate) fn read(state: &Path) -> Self {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            processors: thread::available_parallelism().map_or(1, usize::from),
            memory_kib: memory_total(&line("/proc/meminfo")),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            os_image: pretty_name(&line("/etc/os-release")),
            machine_id: line("/etc/machine-id"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            system_uuid: line("/sys/class/dmi/id/product_uuid"),
            storage: FilesystemUsage::read(state).capacity,
            huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
        }
    }

    fn capacity(&self) -> BTreeMap<String, Quantity> {
        let mut capacity = BTreeMap::from([
            ("cpu".to_owned(), Quantity(self.processors.to_string())),
            ("memory".to_owned(), Quantity(format!("{}Ki", self.memory_kib))),
            ("ephemeral-storage".to_owned(), Quantity(format!("{}Ki", self.storage >> 10))),
            ("pods".to_owned(), Quantity(MOST_PODS.to_string())),
        ]);
        capacity.extend(self.huge_pages.iter().map(|(size, count)| {
            (format!("hugepages-{}", bytes(size << 10)), Quantity(bytes((size << 10) * count)))
        }));
        capacity
    }

    /// In KiB. Large pages are taken from the same memory.
    fn allocatable_memory(&self, keeping: &Housekeeping) -> u64 {
        let huge: u64 = self.huge_pages.iter().map(|(size, count)| size * count).sum();
        let free = keeping.eviction_hard.kept_free(Signal::Memory, self.memory_kib << 10);
        let kept = free.saturating_add(keeping.reserved.memory) >> 10;
        self.memory_kib.saturating_sub(kept).saturating_sub(huge)
    }

    /// In bytes.
    fn allocatable_storage(&self, keeping: &Housekeeping) -> u64 {
        let free = keeping.eviction_hard.kept_free(Signal::NodeFiles, self.storage);
        self.storage.saturating_sub(free).saturating_sub(keeping.reserved.storage)
    }

    /// In thousandths of a processor.
    fn allocatable_cpu(&self, keeping: &Housekeeping) -> u64 {
        (self.processors as u64 * 1000).saturating_sub(keeping.reserved.cpu_milli)
    }

    /// What pods may have: all but what must stay free, or is reserved.
    fn allocatable(&self, keeping: &Housekeeping) -> BTreeMap<String, Quantity> {
        let mut allocatable = self.capacity();
        let cpu = match self.allocatable_cpu(keeping) {
            milli if milli % 1000 == 0 => (milli / 1000).to_string(),
            milli => format!("{milli}m"),
        };
        allocatable.insert("cpu".into(), Quantity(cpu));
        let memory = self.allocatable_memory(keeping);
        allocatable.insert("memory".into(), Quantity(format!("{memory}Ki")));
        let storage = self.allocatable_storage(keeping);
        allocatable.insert("ephemeral-storage".into(), Quantity(storage.to_string()));
        allocatable
    }
}

fn huge_pages(directory: &Path) -> BTreeMap<u64, u64> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
        Some((size, count.trim().parse().ok()?))
    });
    sizes.collect()
}

/// How much this machine has for pods, as its Node says.
pub(crate) fn room(config: &Config) -> NodeRoom {
    let machine = Machine::read(&config.state_dir);
    let keeping = &config.housekeeping;
    NodeRoom {
        allocatable: Requests {
            cpu: machine.allocatable_cpu(keeping),
            memory: machine.allocatable_memory(keeping) << 10,
            storage: machine.allocatable_storage(keeping),
        },
        pods: MOST_PODS.into(),
    }
}

/// The machine's memory, in KiB.
pub(crate) fn memory_total(meminfo: &str) -> u64 {
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
    (machine, today): (&Machine, &Today),
    config: &Config,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> Node {
    let pod_cidrs: Vec<_> = config.pod_cidrs.iter().map(|cidr| cidr.trunc().to_string()).collect();
    let mut node = Node {
        spec: Some(NodeSpec {
            pod_cidr: pod_cidrs.first().cloned(),
            pod_cidrs: Some(pod_cidrs),
            ..NodeSpec::default()
        }),
        status: Some(plan_status((machine, today), config, before, now)),
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
    let own = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    // What the machine is, nobody says otherwise.
    let given = config.node_labels.0.clone();
    node.metadata.labels = Some(given.into_iter().chain(own).collect());
    node
}

fn plan_status(
    (machine, today): (&Machine, &Today),
    config: &Config,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> NodeStatus {
    let address = |type_: &str, address: String| NodeAddress { type_: type_.into(), address };
    let internal = config.internal_ips.iter().map(|own| address("InternalIP", own.to_string()));
    NodeStatus {
        addresses: Some(internal.chain([address("Hostname", config.node_name.clone())]).collect()),
        capacity: Some(machine.capacity()),
        allocatable: Some(machine.allocatable(&config.housekeeping)),
        conditions: Some(conditions(today, before, now)),
        images: Some(images(&today.images)),
        daemon_endpoints: config.secure_port.as_ref().map(|port| NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: port.listen.port().into() }),
        }),
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

/// The largest ones first.
fn images(all: &[StoredImage]) -> Vec<ContainerImage> {
    let mut all: Vec<_> = all.iter().collect();
    all.sort_by(|one, other| other.size.cmp(&one.size).then(one.names.cmp(&other.names)));
    let listed = all.into_iter().take(MOST_IMAGES).map(|image| ContainerImage {
        names: Some(image.names.clone()),
        size_bytes: i64::try_from(image.size).ok(),
    });
    listed.collect()
}

/// A reason and a message.
type Words = (&'static str, &'static str);

/// Conditions with their names, and what a kubelet says when they are not so, and when they are.
const PRESSURES: [(Condition, &str, [Words; 2]); 3] = [
    (
        Condition::MemoryPressure,
        "MemoryPressure",
        [
            ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        ],
    ),
    (
        Condition::DiskPressure,
        "DiskPressure",
        [
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        ],
    ),
    (
        Condition::PidPressure,
        "PIDPressure",
        [
            ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        ],
    ),
];

/// The reasons of the events about conditions that are not as they were.
pub(crate) fn transitions(before: Option<&NodeStatus>, after: &NodeStatus) -> Vec<&'static str> {
    let find = |status: &NodeStatus, type_: &str| {
        let conditions = status.conditions.iter().flatten();
        conditions.into_iter().find(|one| one.type_ == type_).map(|one| one.status.clone())
    };
    [
        ("MemoryPressure", "NodeHasSufficientMemory", "NodeHasInsufficientMemory"),
        ("DiskPressure", "NodeHasNoDiskPressure", "NodeHasDiskPressure"),
        ("PIDPressure", "NodeHasSufficientPID", "NodeHasInsufficientPID"),
        ("Ready", "NodeNotReady", "NodeReady"),
    ]
    .into_iter()
    .filter_map(|(type_, when_false, when_true)| {
        let status = find(after, type_)?;
        let changed = before.and_then(|before| find(before, type_)).as_ref() != Some(&status);
        changed.then_some(if status == "True" { when_true } else { when_false })
    })
    .collect()
}

fn conditions(today: &Today, before: Option<&NodeStatus>, now: Timestamp) -> Vec<NodeCondition> {
    let claims = PRESSURES.map(|(condition, type_, [without, with])| {
        match today.pressures.contains(&condition) {
            true => (type_, "True", with.0, with.1),
            false => (type_, "False", without.0, without.1),
        }
    });
    let ready = match &today.trouble {
        None => ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        Some(why) => ("Ready", "False", "KubeletNotReady", why.as_str()),
    };
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
    claims.into_iter().chain([ready]).map(condition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ReservedResources;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn what_the_machine_says() {
        assert_eq!(memory_total("MemFree: 3 kB\nMemTotal:  16384 kB\n"), 16384);
        assert_eq!(pretty_name("NAME=x\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
        assert_eq!(pretty_name(""), "Linux");
        let machine = Machine::read(Path::new("/"));
        assert!(machine.storage > 0);
        assert!(machine.memory_kib > 0 && machine.processors > 0 && !machine.kernel.is_empty());
    }

    #[test]
    fn conditions_keep_their_transition_time() {
        let mut before = NodeStatus {
            conditions: Some(conditions(&Today::default(), None, at(5))),
            ..NodeStatus::default()
        };
        before.conditions.as_mut().unwrap()[0].status = "True".into();
        let after = conditions(&Today::default(), Some(&before), at(9));
        let times: Vec<_> =
            after.iter().map(|c| c.last_transition_time.as_ref().unwrap().0.as_second()).collect();
        assert_eq!(times, [9, 5, 5, 5]);
    }

    fn show(quantities: &BTreeMap<String, Quantity>) -> String {
        let show = quantities.iter().map(|(name, quantity)| format!("{name}={}", quantity.0));
        show.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_pods_may_have() {
        let machine = Machine {
            processors: 2,
            memory_kib: 1 << 20,
            storage: 1 << 30,
            huge_pages: [(2048, 8), (1 << 20, 0)].into(),
            ..Machine::default()
        };
        assert_eq!(
            show(&machine.capacity()),
            "cpu=2 ephemeral-storage=1048576Ki hugepages-1Gi=0 hugepages-2Mi=16Mi memory=1048576Ki pods=110"
        );
        assert_eq!(
            show(&machine.allocatable(&Housekeeping::default())),
            "cpu=2 ephemeral-storage=1020054733 hugepages-1Gi=0 hugepages-2Mi=16Mi memory=929792Ki pods=110"
        );
        let eviction_hard = "".parse().unwrap();
        let all = Housekeeping { eviction_hard, ..Housekeeping::default() };
        assert_eq!(machine.allocatable(&all)["ephemeral-storage"].0, "1073741824");
        let reserved = "cpu=250m,memory=1Mi".parse::<ReservedResources>().unwrap();
        let reserved = reserved.with("cpu=1,ephemeral-storage=1Mi".parse().unwrap());
        let less = machine.allocatable(&Housekeeping { reserved, ..all });
        assert_eq!(
            show(&less),
            "cpu=750m ephemeral-storage=1072693248 hugepages-1Gi=0 hugepages-2Mi=16Mi memory=1031168Ki pods=110"
        );
        for wrong in ["cpu", "cpu=x", "gpu=1", "memory=-1"] {
            assert!(wrong.parse::<ReservedResources>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn pressures_are_said_and_told_once() {
        let status = |pressures: &[Condition], before: Option<&NodeStatus>, second| {
            let today = Today { pressures: pressures.to_vec(), ..Today::default() };
            let conditions = Some(conditions(&today, before, at(second)));
            NodeStatus { conditions, ..NodeStatus::default() }
        };
        let first = status(&[], None, 1);
        let all = [
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
            "NodeReady",
        ];
        assert_eq!(transitions(None, &first), all);
        let second = status(&[Condition::DiskPressure], Some(&first), 2);
        assert_eq!(transitions(Some(&first), &second), ["NodeHasDiskPressure"]);
        let disk = &second.conditions.as_ref().unwrap()[1];
        assert_eq!(
            (disk.status.as_str(), disk.reason.as_deref(), disk.message.as_deref()),
            ("True", Some("KubeletHasDiskPressure"), Some("kubelet has disk pressure"))
        );
        assert_eq!(transitions(Some(&second), &second), [""; 0]);
    }

    #[test]
    fn a_node_whose_runtime_is_down_is_not_ready() {
        let status = |trouble: Option<&str>, before: Option<&NodeStatus>| {
            let today = Today { trouble: trouble.map(str::to_owned), ..Today::default() };
            let conditions = Some(conditions(&today, before, at(1)));
            NodeStatus { conditions, ..NodeStatus::default() }
        };
        let fine = status(None, None);
        let down = status(Some("container runtime is down: no answer"), Some(&fine));
        let ready = &down.conditions.as_ref().unwrap()[3];
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_deref(), ready.message.as_deref()),
            ("False", Some("KubeletNotReady"), Some("container runtime is down: no answer"))
        );
        assert_eq!(transitions(Some(&fine), &down), ["NodeNotReady"]);
        assert_eq!(transitions(Some(&down), &fine), ["NodeReady"]);
    }

    #[test]
    fn the_largest_images_are_listed() {
        let image = |size| StoredImage {
            digest: "d".into(),
            names: vec![format!("i{size}")],
            size,
            loaded: false,
        };
        let all: Vec<_> = (0..60).map(image).collect();
        let listed = images(&all);
        assert_eq!(
            (listed.len(), listed[0].size_bytes, listed[49].size_bytes),
            (50, Some(59), Some(10))
        );
    }
}
