//! What the API shows about a pod: pure. Its conditions, its phase and its containers are files of their own.

mod conditions;
mod containers;
mod phase;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, HostIP, Pod, PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::addresses::Addresses;
use crate::ephemeral;
use crate::facts::PodFacts;

pub(crate) use self::conditions::OWN_CONDITIONS;
pub use self::containers::minutes_and_seconds;

/// Returns the status that the facts amount to.
///
/// The pod's present status gives the transition times of unchanged conditions, and the conditions
/// written by others.
pub fn plan_status(pod: &Pod, facts: &PodFacts, host: Addresses, now: Timestamp) -> PodStatus {
    let Some(spec) = &pod.spec else { return PodStatus::default() };
    let view = View { pod, spec, facts, now };
    let before = pod.status.clone().unwrap_or_default();
    let phase = view.phase();
    let statuses = |containers: &[Container]| {
        containers.iter().map(|container| view.container_status(container)).collect()
    };
    let later: Vec<_> = ephemeral::all(spec).map(ephemeral::as_container).collect();
    let init_statuses = spec.init_containers.as_deref().map(statuses);
    let main_statuses: Vec<_> = statuses(&spec.containers);
    let conditions = view.conditions(phase, init_statuses.iter().flatten().chain(&main_statuses));
    // Of a pod that a node did not take there is nothing to say but why.
    let is_stillborn = facts.failure.is_some() && facts.containers.is_empty();
    let (reason, message) = match &facts.failure {
        Some(failure) if phase == "Failed" => {
            (Some(failure.reason.to_owned()), Some(failure.message.clone()))
        }
        _ => (before.reason, before.message),
    };
    PodStatus {
        phase: Some(phase.into()),
        conditions: Some(conditions),
        reason,
        message,
        host_ip: Some(host.first.to_string()),
        host_ips: Some(host.iter().map(|ip| HostIP { ip: ip.to_string() }).collect()),
        pod_ips: facts
            .addresses
            .map(|own| own.iter().map(|ip| PodIP { ip: ip.to_string() }).collect()),
        pod_ip: facts.addresses.map(|own| own.first.to_string()),
        start_time: facts.start_time.map(Time),
        init_container_statuses: init_statuses.filter(|_| !is_stillborn),
        container_statuses: (!is_stillborn).then_some(main_statuses),
        ephemeral_container_statuses: (!later.is_empty()).then(|| statuses(&later)),
        qos_class: before.qos_class.or_else(|| Some(qos_class(spec).into())),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// What a status is made from.
#[derive(Clone, Copy)]
struct View<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    facts: &'a PodFacts,
    now: Timestamp,
}

pub(crate) fn qos_class(spec: &PodSpec) -> &'static str {
    let all = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let wants = |container: &Container| {
        let resources = container.resources.clone().unwrap_or_default();
        (resources.requests.unwrap_or_default(), resources.limits.unwrap_or_default())
    };
    if all().map(wants).all(|(requests, limits)| requests.is_empty() && limits.is_empty()) {
        return "BestEffort";
    }
    let exact = |container: &Container| {
        let (requests, limits) = wants(container);
        ["cpu", "memory"].into_iter().all(|name| {
            let limit = limits.get(name);
            limit.is_some() && requests.get(name).is_none_or(|request| Some(request) == limit)
        })
    };
    if all().all(exact) { "Guaranteed" } else { "Burstable" }
}

#[cfg(test)]
mod tests;
