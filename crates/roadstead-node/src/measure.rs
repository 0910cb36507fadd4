//! What this machine and its pods use, looked at every few seconds.
//!
//! How fast processors are used follows from two looks; whoever asks gets the newest one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use roadstead_pod::eviction::{Observation, Signal};
use roadstead_pod::usage::{CpuRate, CpuSample, Usage, cpu_rate, of_machine};
use tokio::sync::watch;
use tokio::time;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::machine::memory_total;
use crate::runtime::{ContainerRuntime, PodUsage};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(15);

/// What was found at the last look.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) at: Timestamp,
    pub(crate) booted: Timestamp,
    /// What the machine has of memory.
    pub(crate) memory: Option<u64>,
    pub(crate) node: MeasuredUsage,
    /// Where pods keep what they write.
    pub(crate) node_files: FilesystemUsage,
    /// Where images are.
    pub(crate) image_files: FilesystemUsage,
    /// How many processes and threads there are, and can be.
    pub(crate) processes: (u64, u64),
    /// By uid.
    pub(crate) pods: BTreeMap<String, MeasuredPod>,
}

/// What is used, and how fast.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeasuredUsage {
    pub(crate) usage: Usage,
    pub(crate) rate: Option<CpuRate>,
}

/// A pod at the last look.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredPod {
    pub(crate) usage: MeasuredUsage,
    pub(crate) containers: BTreeMap<String, MeasuredContainer>,
}

/// A run of a container at the last look.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredContainer {
    pub(crate) id: String,
    pub(crate) since: Timestamp,
    pub(crate) usage: MeasuredUsage,
}

/// A file system, in bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FilesystemUsage {
    pub(crate) capacity: u64,
    pub(crate) available: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
}

impl FilesystemUsage {
    pub(crate) fn read(path: &Path) -> Self {
        let Ok(found) = rustix::fs::statvfs(path) else { return Self::default() };
        Self {
            capacity: found.f_blocks.saturating_mul(found.f_frsize),
            available: found.f_bavail.saturating_mul(found.f_frsize),
            inodes: found.f_files,
            inodes_free: found.f_favail,
        }
    }
}

/// What the machine itself says.
pub(crate) struct Look {
    at: Timestamp,
    booted: Timestamp,
    memory: Option<u64>,
    node: Usage,
    node_files: FilesystemUsage,
    image_files: FilesystemUsage,
    processes: (u64, u64),
}

impl Look {
    /// Looks at the machine, and at the file systems of these directories.
    pub(crate) fn now(state: &Path, images: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (at, stat) = (Timestamp::now(), read("/proc/stat"));
        let booted = stat.lines().find_map(|line| line.strip_prefix("btime "));
        let booted = booted.and_then(|text| Timestamp::from_second(text.trim().parse().ok()?).ok());
        let threads = read("/proc/loadavg");
        let threads =
            threads.split(' ').nth(3).and_then(|both| both.split_once('/')?.1.parse().ok());
        let meminfo = read("/proc/meminfo");
        let most = read("/proc/sys/kernel/pid_max").trim().parse();
        Self {
            at,
            booted: booted.unwrap_or(at),
            memory: Some(memory_total(&meminfo) << 10).filter(|memory| *memory > 0),
            node: of_machine(&stat, &meminfo, &read("/proc/vmstat")),
            node_files: FilesystemUsage::read(state),
            image_files: FilesystemUsage::read(images),
            processes: (threads.unwrap_or(0), most.unwrap_or(0)),
        }
    }

    /// What is left of what the node can be short of.
    pub(crate) fn observations(&self) -> Vec<Observation> {
        let of = |signal, available, capacity| Observation { signal, available, capacity };
        let memory = self.memory.zip(self.node.memory);
        let (total, free) =
            memory.map_or((0, 0), |(total, used)| (total, total.saturating_sub(used.working_set)));
        let (running, most) = self.processes;
        let (node, images) = (&self.node_files, &self.image_files);
        vec![
            of(Signal::Memory, free, total),
            of(Signal::NodeFiles, node.available, node.capacity),
            of(Signal::NodeInodes, node.inodes_free, node.inodes),
            of(Signal::ImageFiles, images.available, images.capacity),
            of(Signal::ImageInodes, images.inodes_free, images.inodes),
            of(Signal::Processes, most.saturating_sub(running), most),
        ]
    }

    /// Puts it together with what pods use, and what was found before: pure.
    pub(crate) fn measured(self, pods: Vec<PodUsage>, before: Option<&Measured>) -> Measured {
        let at = self.at;
        let rate = |usage: &Usage, first: Option<CpuSample>| {
            cpu_rate(first?, CpuSample { at, total: usage.cpu? })
        };
        let sample = |old: &MeasuredUsage| {
            before.and_then(|before| Some(CpuSample { at: before.at, total: old.usage.cpu? }))
        };
        let pod = |pod: PodUsage| {
            let known = before.and_then(|before| before.pods.get(&pod.uid));
            let containers = pod.containers.into_iter().map(|(name, (started, usage))| {
                let same = known.and_then(|known| known.containers.get(&name));
                let same = same.filter(|same| same.id == started.id);
                // One that has just begun had used nothing when it began.
                let first = same.map_or(Some(CpuSample { at: started.since, total: 0 }), |same| {
                    sample(&same.usage)
                });
                let usage = MeasuredUsage { usage, rate: rate(&usage, first) };
                (name, MeasuredContainer { id: started.id, since: started.since, usage })
            });
            let containers = containers.collect();
            let first = known.and_then(|known| sample(&known.usage));
            let usage = MeasuredUsage { usage: pod.usage, rate: rate(&pod.usage, first) };
            (pod.uid, MeasuredPod { usage, containers })
        };
        let first = before.and_then(|before| sample(&before.node));
        Measured {
            at,
            booted: self.booted,
            memory: self.memory,
            node: MeasuredUsage { usage: self.node, rate: rate(&self.node, first) },
            node_files: self.node_files,
            image_files: self.image_files,
            processes: self.processes,
            pods: pods.into_iter().map(pod).collect(),
        }
    }
}

/// Where the newest measurements are.
pub(crate) type Measurements = watch::Receiver<Option<Arc<Measured>>>;

/// Looks again and again, until `stop`.
pub(crate) async fn run(
    containers: Arc<dyn ContainerRuntime>,
    config: Config,
    found: watch::Sender<Option<Arc<Measured>>>,
    stop: CancellationToken,
) {
    let mut looks = time::interval(LOOK);
    looks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let places: (PathBuf, PathBuf) = (config.state_dir, config.image_dir);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let pods = containers.usage().await;
        let look = Look::now(&places.0, &places.1);
        let before = found.borrow().clone();
        found.send_replace(Some(Arc::new(look.measured(pods, before.as_deref()))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_pod::facts::StartedContainer;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// One container that began at `since` and has used so many seconds.
    fn look(now: i64, id: &str, since: i64, cpu: u64, before: Option<&Measured>) -> Measured {
        let usage = Usage { cpu: Some(cpu * 1_000_000_000), ..Usage::default() };
        let look = Look {
            at: at(now),
            booted: at(0),
            memory: None,
            node: usage,
            node_files: FilesystemUsage::default(),
            image_files: FilesystemUsage::default(),
            processes: (1, 2),
        };
        let started = StartedContainer { id: id.into(), since: at(since) };
        let containers = [("c".to_owned(), (started, usage))].into();
        look.measured(vec![PodUsage { uid: "u".into(), usage, containers }], before)
    }

    fn millicores(measured: &Measured) -> Option<u64> {
        let rate = measured.pods["u"].containers["c"].usage.rate?;
        Some(rate.nanocores / 1_000_000)
    }

    #[test]
    fn rates_need_two_looks_or_a_beginning() {
        let young = look(5, "a", 0, 1, None);
        assert_eq!(millicores(&young), None, "younger than a window");
        let first = look(20, "a", 0, 10, None);
        assert_eq!(millicores(&first), Some(500), "since its beginning");
        assert!(first.node.rate.is_none() && first.pods["u"].usage.rate.is_none());
        let second = look(35, "a", 0, 13, Some(&first));
        assert_eq!(millicores(&second), Some(200), "since the last look");
        assert_eq!(second.node.rate.map(|rate| rate.window), Some(15_000_000_000));
        let restarted = look(50, "b", 40, 1, Some(&second));
        assert_eq!(millicores(&restarted), Some(100), "another run began with nothing");
    }

    #[test]
    fn this_machine_says_something() {
        let look = Look::now(Path::new("/"), Path::new("/"));
        assert!(look.node.cpu.is_some_and(|cpu| cpu > 0) && look.node.memory.is_some());
        assert!(look.node_files.capacity > 0 && look.processes.0 > 0 && look.processes.1 > 0);
        assert!(look.booted < look.at);
    }
}
