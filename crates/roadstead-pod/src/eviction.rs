//! When a node is short of something, and which pod goes first. Pure.
//!
//! The texts are those of a kubelet; some end with a space there, and here.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use roadstead_api::quantity;

/// A condition stays for so long after the last time that it was so.
const HOLD: SignedDuration = SignedDuration::from_mins(5);

/// What a node can be short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Memory, without caches that can be had back.
    Memory,
    /// Room where pods write.
    NodeFiles,
    /// Files that can be made there.
    NodeInodes,
    /// Room for images.
    ImageFiles,
    /// Files that can be made there.
    ImageInodes,
    /// Numbers for processes.
    Processes,
}

impl Signal {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Memory, "memory.available"),
        (Self::NodeFiles, "nodefs.available"),
        (Self::NodeInodes, "nodefs.inodesFree"),
        (Self::ImageFiles, "imagefs.available"),
        (Self::ImageInodes, "imagefs.inodesFree"),
        (Self::Processes, "pid.available"),
    ];

    /// The condition of the node that says so.
    pub fn condition(self) -> Condition {
        match self {
            Self::Memory => Condition::MemoryPressure,
            Self::Processes => Condition::PidPressure,
            _ => Condition::DiskPressure,
        }
    }

    /// What pods are told that the node was short of.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::NodeFiles | Self::ImageFiles => "ephemeral-storage",
            Self::NodeInodes | Self::ImageInodes => "inodes",
            Self::Processes => "pids",
        }
    }

    fn show(self, amount: u64) -> String {
        match self {
            Self::Memory | Self::NodeFiles | Self::ImageFiles => bytes(amount),
            _ => amount.to_string(),
        }
    }
}

/// A condition of the node that is true when it is short of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// Of memory.
    MemoryPressure,
    /// Of room or files on a disk.
    DiskPressure,
    /// Of processes.
    PidPressure,
}

/// Below which amount a node is short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// In bytes or pieces.
    Absolute(u64),
    /// Of what there is.
    Percent(f64),
}

impl Amount {
    fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Absolute(amount) => amount,
            Self::Percent(percent) => (capacity as f64 * percent / 100.0) as u64,
        }
    }
}

/// When a node is short of what.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionThresholds(BTreeMap<Signal, Amount>);

impl Default for EvictionThresholds {
    /// A kubelet's, but for disks: it is made for machines that do nothing else, and wants 10 and 15 % free.
    fn default() -> Self {
        Self(BTreeMap::from([
            (Signal::Memory, Amount::Absolute(100 << 20)),
            (Signal::NodeFiles, Amount::Percent(5.0)),
            (Signal::NodeInodes, Amount::Percent(5.0)),
            (Signal::ImageFiles, Amount::Percent(5.0)),
            (Signal::ImageInodes, Amount::Percent(5.0)),
        ]))
    }
}

impl std::str::FromStr for EvictionThresholds {
    type Err = String;

    /// Reads `memory.available<100Mi,nodefs.available<10%`; what is not named has no threshold.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut thresholds = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, amount) =
                part.split_once('<').ok_or_else(|| format!("{part:?} is not SIGNAL<AMOUNT"))?;
            let signal = Signal::ALL.iter().find(|(_, known)| *known == name.trim());
            let names = Signal::ALL.map(|(_, name)| name).join(", ");
            let (signal, _) = signal.ok_or_else(|| format!("{name:?} is none of {names}"))?;
            let amount = amount.trim();
            let read = match amount.strip_suffix('%') {
                Some(percent) => percent
                    .parse()
                    .ok()
                    .filter(|percent| (0.0..100.0).contains(percent))
                    .map(Amount::Percent),
                None => quantity::read(amount)
                    .filter(|amount| *amount >= 0.0)
                    .map(|amount| Amount::Absolute(amount as u64)),
            };
            let read = read.ok_or_else(|| format!("{amount:?} is no amount"))?;
            thresholds.insert(*signal, read);
        }
        Ok(Self(thresholds))
    }
}

impl EvictionThresholds {
    /// What must stay free of this much.
    pub fn kept_free(&self, signal: Signal, capacity: u64) -> u64 {
        self.0.get(&signal).map_or(0, |amount| amount.of(capacity))
    }

    /// Of which of these the node is short, the worst first: memory before all.
    pub fn short_of(&self, observed: &[Observation]) -> Vec<Shortage> {
        let mut short: Vec<_> = observed
            .iter()
            .filter(|observed| observed.capacity > 0)
            .map(|observed| Shortage {
                signal: observed.signal,
                threshold: self.kept_free(observed.signal, observed.capacity),
                available: observed.available,
            })
            .filter(|shortage| shortage.available < shortage.threshold)
            .collect();
        short.sort_by_key(|shortage| shortage.signal);
        short
    }
}

impl fmt::Display for EvictionThresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Signal::ALL.iter().filter_map(|(signal, name)| {
            Some(match self.0.get(signal)? {
                Amount::Absolute(amount) => format!("{name}<{}", signal.show(*amount)),
                Amount::Percent(percent) => format!("{name}<{percent}%"),
            })
        });
        f.write_str(&named.collect::<Vec<_>>().join(","))
    }
}

/// How much there is of something, and how much is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Of what.
    pub signal: Signal,
    /// What is left.
    pub available: u64,
    /// What there is; 0 if that is not known.
    pub capacity: u64,
}

/// Something that there is too little of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shortage {
    /// Of what.
    pub signal: Signal,
    /// How much there should be.
    pub threshold: u64,
    /// How much there is.
    pub available: u64,
}

/// The conditions of a node, which do not come and go with every moment.
#[derive(Clone, Debug, Default)]
pub struct Pressures(BTreeMap<Condition, Timestamp>);

impl Pressures {
    /// Takes in what the node is short of now.
    pub fn observe(&mut self, short: &[Shortage], now: Timestamp) {
        self.0.retain(|_, last| now.duration_since(*last) < HOLD);
        self.0.extend(short.iter().map(|shortage| (shortage.signal.condition(), now)));
    }

    /// Which conditions are true.
    pub fn conditions(&self) -> Vec<Condition> {
        self.0.keys().copied().collect()
    }
}

/// A pod that could go.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Which one.
    pub uid: String,
    /// As in its spec.
    pub priority: i32,
    /// Whether the node cannot do without it.
    pub critical: bool,
    /// What it uses of what is short.
    pub usage: u64,
    /// What it asked for of that.
    pub request: u64,
}

/// Returns the pod that goes first, if one may go: those that use more than they asked for before all others, then
/// the less important, then those that use the most beyond what they asked for.
pub fn first_to_go(candidates: &[Candidate]) -> Option<&Candidate> {
    let may_go = candidates.iter().filter(|candidate| !candidate.critical);
    may_go.min_by_key(|candidate| {
        let beyond = i128::from(candidate.usage) - i128::from(candidate.request);
        (candidate.usage <= candidate.request, candidate.priority, -beyond)
    })
}

/// Whether a node cannot do without the pod: one of its own, of the highest classes.
pub fn is_critical(pod: &Pod) -> bool {
    const SYSTEM_CRITICAL: i32 = 2_000_000_000;
    let annotations = pod.metadata.annotations.iter().flatten();
    let is_static = annotations
        .into_iter()
        .any(|(name, value)| name == "kubernetes.io/config.source" && value != "api");
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    is_static || priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL)
}

/// What a pod is told that goes because of a shortage; `usages` are of what is short, by container.
pub fn message(shortage: &Shortage, pod: &Pod, usages: &BTreeMap<String, u64>) -> String {
    let Shortage { signal, threshold, available } = *shortage;
    let resource = signal.resource();
    let mut text = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        signal.show(threshold),
        signal.show(available)
    );
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        let Some(usage) = usages.get(&container.name) else { continue };
        let (request, shown) = requested(container, resource);
        if *usage > request {
            text += &format!(
                "Container {} was using {}, request is {shown}, has larger consumption of {resource}. ",
                container.name,
                signal.show(*usage)
            );
        }
    }
    text
}

/// What a container asked for of a resource, and how it wrote that.
fn requested(container: &Container, resource: &str) -> (u64, String) {
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let asked = requests.and_then(|requests| requests.get(resource));
    let amount = asked.and_then(|asked| quantity::read(&asked.0)).unwrap_or(0.0);
    (amount as u64, asked.map_or_else(|| "0".into(), |asked| asked.0.clone()))
}

/// What all containers of a pod asked for of a resource.
pub fn requested_by_pod(pod: &Pod, resource: &str) -> u64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.map(|container| requested(container, resource).0).fold(0, u64::saturating_add)
}

/// What a pod uses of something: for a disk, what it has written there, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Consumption {
    /// By the names of its containers; their layers and logs.
    pub containers: BTreeMap<String, u64>,
    /// Directories that go with the pod, by name; not those in memory.
    pub volumes: BTreeMap<String, u64>,
}

impl Consumption {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.containers.values().chain(self.volumes.values()).sum()
    }
}

/// Whether the pod has a limit that must be watched.
pub fn limits_disk(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limited = |container: &Container| storage_limit(container).is_some();
    containers.into_iter().any(limited) || size_limits(pod).next().is_some()
}

/// Returns what the pod is told if it has written more than it may.
pub fn beyond_limits(pod: &Pod, usage: &Consumption) -> Option<String> {
    let beyond = |used: Option<&u64>, limit: u64| used.is_some_and(|used| *used > limit);
    for (volume, limit, shown) in size_limits(pod) {
        if beyond(usage.volumes.get(volume), limit) {
            return Some(format!(
                "Usage of EmptyDir volume {volume:?} exceeds the limit {shown:?}. "
            ));
        }
    }
    let containers: Vec<_> = pod.spec.iter().flat_map(|spec| &spec.containers).collect();
    let limits: Option<Vec<_>> = containers.iter().map(|one| storage_limit(one)).collect();
    // Only if all have one do they have one together.
    if let Some(limits) = limits.filter(|limits| !limits.is_empty()) {
        let limit = limits.iter().map(|(limit, _)| *limit).fold(0, u64::saturating_add);
        if usage.total() > limit {
            return Some(format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
                bytes(limit)
            ));
        }
    }
    containers.iter().find_map(|container| {
        let (limit, shown) = storage_limit(container)?;
        beyond(usage.containers.get(&container.name), limit).then(|| {
            format!(
                "Container {} exceeded its local ephemeral storage limit {shown:?}. ",
                container.name
            )
        })
    })
}

fn storage_limit(container: &Container) -> Option<(u64, String)> {
    let limit = container.resources.as_ref()?.limits.as_ref()?.get("ephemeral-storage")?;
    Some((quantity::read(&limit.0)? as u64, limit.0.clone()))
}

/// The limits of directories on the disk: volume, bytes, and how it was written.
fn size_limits(pod: &Pod) -> impl Iterator<Item = (&str, u64, &str)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        let source = volume.empty_dir.as_ref()?;
        let on_disk = source.medium.as_deref().unwrap_or_default().is_empty();
        let limit = source.size_limit.as_ref().filter(|_| on_disk)?;
        let amount = quantity::read(&limit.0)? as u64;
        (amount > 0).then_some((volume.name.as_str(), amount, limit.0.as_str()))
    })
}

/// Bytes as a quantity: with the largest unit that leaves no rest.
pub fn bytes(amount: u64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut rest = amount;
    let mut unit = 0;
    while rest != 0 && rest.is_multiple_of(1024) && unit + 1 < units.len() {
        rest /= 1024;
        unit += 1;
    }
    format!("{rest}{}", units[unit])
}

#[cfg(test)]
mod tests;
