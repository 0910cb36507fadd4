//! How a pod gets more or less of the machine while it runs (KEP-1287): pure.
//!
//! ```text
//! spec, as wanted ──judge──► allocated: what the node has set aside ──change──► applied: what processes have
//! ```
//!
//! The worker knows a pod as it is allocated; all else, such as the next run of a container, follows from
//! that. What is wanted and not allocated is pending, what is allocated and not applied is in progress.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roadstead_api::quantity;
use roadstead_api::requests::Requests;
use serde_json::{Value, json};

use crate::admission::{NodeRoom, NodeUse};
use crate::facts::{ContainerFacts, PodFacts, State};
use crate::resources::{Limits, of_container, of_pod};
use crate::usage::Usage;

/// How long what could not be applied is left alone.
pub const RETRY: Duration = Duration::from_secs(10);

/// How far a pod's resizing has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResizeFacts {
    /// What is wanted is not allocated.
    pub pending: Option<PendingResize>,
    /// What is allocated is not applied.
    pub progress: Option<ResizeProgress>,
}

/// Why a pod does not get what it wants.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingResize {
    /// `Deferred`, until others leave it room, or `Infeasible`.
    pub reason: &'static str,
    /// What exactly is missing.
    pub message: String,
    /// The generation of the pod that wants it.
    pub generation: Option<i64>,
}

/// A pod that is getting what it wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResizeProgress {
    /// The generation of the pod that wanted it.
    pub generation: Option<i64>,
    /// What went wrong.
    pub error: Option<String>,
    /// When it is tried again.
    pub retry_at: Option<Timestamp>,
}

/// What is to be done about a container whose allocation is not what its process has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    None,
    /// Its process goes on and is held to other limits.
    Live,
    /// It begins anew.
    Restart,
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Returns the wanted pod with as much as has been allocated to it.
pub fn as_allocated(wanted: &Pod, allocated: &Pod) -> Pod {
    let mut pod = wanted.clone();
    let (Some(spec), Some(before)) = (&mut pod.spec, &allocated.spec) else { return pod };
    spec.resources.clone_from(&before.resources);
    let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    for container in all {
        if let Some(known) = containers(before).find(|known| known.name == container.name) {
            container.resources.clone_from(&known.resources);
        }
    }
    pod
}

/// Returns the pod with as much as an earlier agent gave it, according to what that has said.
pub fn as_reported(wanted: &Pod) -> Pod {
    let mut pod = wanted.clone();
    let status = wanted.status.as_ref();
    let statuses: Vec<&ContainerStatus> = status
        .into_iter()
        .flat_map(|status| {
            status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
        })
        .collect();
    let Some(spec) = &mut pod.spec else { return pod };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let status = statuses.iter().find(|status| status.name == container.name);
        let Some(known) = status.and_then(|status| status.resources.as_ref()) else { continue };
        let own = container.resources.get_or_insert_default();
        for (own, known) in [(&mut own.requests, &known.requests), (&mut own.limits, &known.limits)]
        {
            for name in ["cpu", "memory"] {
                match known.as_ref().and_then(|known| known.get(name)) {
                    Some(amount) => {
                        drop(own.get_or_insert_default().insert(name.into(), amount.clone()));
                    }
                    None => drop(own.as_mut().map(|own| own.remove(name))),
                }
            }
        }
    }
    pod
}

/// Whether a pod wants something else than it has been allocated.
pub fn is_wanted(wanted: &Pod, allocated: &Pod) -> bool {
    let (Some(wanted), Some(allocated)) = (&wanted.spec, &allocated.spec) else { return false };
    let same = |container: &Container| {
        containers(allocated)
            .find(|known| known.name == container.name)
            .is_none_or(|known| is_same(container.resources.as_ref(), known.resources.as_ref()))
    };
    !is_same(wanted.resources.as_ref(), allocated.resources.as_ref())
        || !containers(wanted).all(same)
}

/// Whether two say the same of processors and memory.
fn is_same(one: Option<&ResourceRequirements>, other: Option<&ResourceRequirements>) -> bool {
    ["cpu", "memory"].into_iter().all(|name| is_same_amount(one, other, name))
}

fn is_same_amount(
    one: Option<&ResourceRequirements>,
    other: Option<&ResourceRequirements>,
    name: &str,
) -> bool {
    let amounts = |own: Option<&ResourceRequirements>| {
        let own = own?;
        let amount =
            |map: &Option<BTreeMap<String, Quantity>>| quantity::read(&map.as_ref()?.get(name)?.0);
        Some((amount(&own.requests), amount(&own.limits)))
    };
    amounts(one).unwrap_or_default() == amounts(other).unwrap_or_default()
}

/// Whether a node has what the pod wants, beside the others that are there.
pub fn judge(pod: &Pod, others: &NodeUse, room: NodeRoom) -> Result<(), PendingResize> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let asked = Requests::of_pod(spec);
    let (used, has) = (others.requests(), room.allocatable);
    let generation = pod.metadata.generation;
    let pairs =
        [("cpu", asked.cpu, used.cpu, has.cpu), ("memory", asked.memory, used.memory, has.memory)];
    for (name, asked, _, has) in pairs {
        if asked > has {
            let message = format!(
                "Node didn't have enough capacity: {name}, requested: {asked}, capacity: {has}"
            );
            return Err(PendingResize { reason: "Infeasible", message, generation });
        }
    }
    for (name, asked, used, has) in pairs {
        if asked > 0 && used.saturating_add(asked) > has {
            let message = format!(
                "Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {has}"
            );
            return Err(PendingResize { reason: "Deferred", message, generation });
        }
    }
    Ok(())
}

/// What is to be done about a container that runs.
pub(crate) fn change(container: &Container, known: &ContainerFacts) -> Change {
    let State::Running { .. } = known.state else { return Change::None };
    let Some(applied) = &known.resources else { return Change::None };
    let allocated = container.resources.as_ref();
    let differs = |name: &str| !is_same_amount(allocated, Some(applied), name);
    let begins_anew = |name: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|own| own.resource_name == name && own.restart_policy == "RestartContainer")
    };
    let changed: Vec<_> = ["cpu", "memory"].into_iter().filter(|name| differs(name)).collect();
    match (changed.is_empty(), changed.into_iter().any(begins_anew)) {
        (true, _) => Change::None,
        (false, false) => Change::Live,
        (false, true) => Change::Restart,
    }
}

/// The containers that get other limits while they run: those first that get less.
pub fn live_changes<'a>(spec: &'a PodSpec, facts: &PodFacts) -> Vec<&'a Container> {
    let known = |container: &Container| facts.containers.get(&container.name);
    let mut all: Vec<_> = containers(spec)
        .filter(|container| {
            known(container).is_some_and(|known| change(container, known) == Change::Live)
        })
        .collect();
    let memory = |resources: Option<&ResourceRequirements>| {
        let limits = Container { resources: resources.cloned(), ..Container::default() };
        of_container(&limits).memory.unwrap_or(u64::MAX)
    };
    all.sort_by_key(|container| {
        let applied = known(container).and_then(|known| known.resources.as_ref());
        memory(container.resources.as_ref()) > memory(applied)
    });
    all
}

/// Whether something is to be applied now; or when it is to be tried again.
pub(crate) fn is_due(spec: &PodSpec, facts: &PodFacts, now: Timestamp) -> Result<bool, Timestamp> {
    let retry_at = facts.resize.progress.as_ref().and_then(|progress| progress.retry_at);
    match (live_changes(spec, facts).is_empty(), retry_at) {
        (true, _) => Ok(false),
        (false, Some(retry_at)) if retry_at > now => Err(retry_at),
        (false, _) => Ok(true),
    }
}

/// Whether any container that runs does not have what it has been allocated.
pub fn is_in_progress(spec: &PodSpec, facts: &PodFacts) -> bool {
    containers(spec).any(|container| {
        let known = facts.containers.get(&container.name);
        known.is_some_and(|known| change(container, known) != Change::None)
    })
}

/// Why limits of memory cannot be lowered: the kernel would end processes that have more already. `applied` is
/// what the pod had, `usage` what it uses, then its containers by name.
pub fn refuse_less_memory(
    spec: &PodSpec,
    facts: &PodFacts,
    usage: (&Usage, &[(String, Usage)]),
) -> Result<(), String> {
    let used = |usage: &Usage| usage.memory.map_or(0, |memory| memory.usage);
    let mut wrong = Vec::new();
    let is_lower = |new: Option<u64>, old: Option<u64>| match (new, old) {
        (Some(new), Some(old)) => new < old,
        (Some(_), None) => true,
        (None, _) => false,
    };
    let changes = live_changes(spec, facts);
    let mut before = spec.clone();
    for container in before.init_containers.iter_mut().flatten().chain(&mut before.containers) {
        let known = facts.containers.get(&container.name);
        if let Some(applied) = known.and_then(|known| known.resources.clone()) {
            container.resources = Some(applied);
        }
    }
    let (new, old): (Limits, Limits) = (of_pod(spec), of_pod(&before));
    if let Some(limit) = new.memory.filter(|_| is_lower(new.memory, old.memory))
        && used(usage.0) >= limit
    {
        let used = used(usage.0);
        wrong.push(format!(
            "attempting to set pod memory limit ({limit}) below current usage ({used})"
        ));
    }
    for container in changes {
        let old = containers(&before).find(|old| old.name == container.name).map(of_container);
        let (new, old) = (of_container(container).memory, old.and_then(|old| old.memory));
        let own = usage.1.iter().find(|(name, _)| *name == container.name);
        let used = own.map_or(0, |(_, own)| used(own));
        if let Some(limit) = new.filter(|limit| is_lower(new, old) && used >= *limit) {
            wrong.push(format!(
                "attempting to set container {:?} memory limit ({limit}) below current usage ({used})",
                container.name
            ));
        }
    }
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("cannot decrease memory limits: {one}")),
        all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
    }
}

/// The text of an event about a resize, as a kubelet writes it.
pub fn message(prefix: &str, pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    let spec = pod.spec.as_ref();
    let list = |containers: &[Container]| -> Vec<Value> {
        let all = containers.iter();
        all.map(
            |own| json!({"name": own.name, "resources": own.resources.clone().unwrap_or_default()}),
        )
        .collect()
    };
    let mut parts = Vec::new();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let main = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    for (name, containers) in [("initContainers", init), ("containers", main)] {
        if !containers.is_empty() {
            parts.push(format!("{name:?}:{}", Value::from(list(containers))));
        }
    }
    parts.push(format!("\"generation\":{}", generation.unwrap_or_default()));
    if let Some(error) = error {
        parts.push(format!("\"error\":{}", json!(error)));
    }
    format!("{prefix}: {{{}}}", parts.join(","))
}

#[cfg(test)]
mod tests;
