//! What is written about a pod that has a place, or has none, and about those that leave for it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::jiff::Timestamp;
use roadstead_api::key::ObjectKey;
use roadstead_plan::disruption_target::{self, Disruption};
use roadstead_plan::persistentvolume;
use roadstead_plan::scheduler::volumes::Choice;
use roadstead_plan::scheduler::{NoPlace, PlacedPod, Preemption};
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::key_of;
use roadstead_watch::write::{Collection, Write};
use serde_json::{Value, json};

use super::NAME;
use super::line::Turn;
use crate::pods::PODS;
use crate::runner::WritePlan;

pub(super) fn bind(key: &ObjectKey, pod: &Pod, node: &str) -> WritePlan<Turn> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": pod.metadata.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let message = format!("Successfully assigned {key} to {node}");
    let event = event(InvolvedObject::of(pod), Severity::Normal, "Scheduled", message);
    let writes = vec![Write::create_part(PODS, key.clone(), "binding", &binding)];
    WritePlan { writes, events: vec![event], ..WritePlan::none() }
}

/// Gives claims that wait for their first pod the volumes there are, and tells the others where it goes:
/// those whose volume is still to be made.
pub(super) fn promise(chosen: &[Choice<'_>], node: &str) -> Vec<Write> {
    let writes = chosen.iter().filter_map(|Choice { claim, volume }| match volume {
        Some(volume) if persistentvolume::claim_of(volume).is_some() => None,
        Some(volume) => {
            let patch = json!({
                "metadata": {"uid": volume.metadata.uid,
                    "resourceVersion": volume.metadata.resource_version,
                    "annotations": {persistentvolume::BOUND_BY: "yes"}},
                "spec": {"claimRef": persistentvolume::reference(claim)}});
            let volumes = Collection::of::<PersistentVolume>();
            Some(Write::merge(volumes, key_of(*volume), &patch))
        }
        None => {
            let selected = persistentvolume::SELECTED_NODE;
            if persistentvolume::annotation(&claim.metadata, selected) == Some(node) {
                return None;
            }
            let patch = json!({"metadata": {"uid": claim.metadata.uid,
                "annotations": {selected: node}}});
            let claims = Collection::of::<PersistentVolumeClaim>();
            Some(Write::merge(claims, key_of(*claim), &patch))
        }
    });
    writes.collect()
}

fn event(about: InvolvedObject, severity: Severity, reason: &str, message: String) -> EventDraft {
    EventDraft { about, severity, reason: reason.into(), message }
}

/// Somebody else says when the pod may have a node; nobody is told twice.
pub(super) fn explain_gates(key: &ObjectKey, pod: &Pod) -> WritePlan<Turn> {
    let why = "Scheduling is blocked due to non-empty scheduling gates";
    if scheduled(pod).is_some_and(|(reason, _)| reason == "SchedulingGated") {
        return WritePlan::none();
    }
    let patch = status(json!({}), condition("PodScheduled", "False", "SchedulingGated", why));
    let writes = vec![Write::strategic(PODS, key.clone(), &patch).to("status")];
    WritePlan { writes, ..WritePlan::none() }
}

/// Says why there is no place for the pod, and where there will be one.
pub(super) fn explain(
    key: &ObjectKey,
    pod: &Pod,
    refusal: &NoPlace,
    node: Option<&str>,
) -> WritePlan<Turn> {
    let why = refusal.why.as_str();
    let is_told = scheduled(pod).is_some_and(|(_, message)| message == why);
    if is_told && node.is_none() && !refusal.is_promise_void {
        return WritePlan::none();
    }
    let mut rest = json!({});
    if node.is_some() || refusal.is_promise_void {
        rest["nominatedNodeName"] = json!(node);
    }
    let patch = status(rest, condition("PodScheduled", "False", "Unschedulable", why));
    let about = InvolvedObject::of(pod);
    let event = event(about, Severity::Warning, "FailedScheduling", why.to_owned());
    let writes = vec![Write::strategic(PODS, key.clone(), &patch).to("status")];
    let events = if is_told { Vec::new() } else { vec![event] };
    WritePlan { writes, events, ..WritePlan::none() }
}

/// Asks others to leave, each with its time to end, and says where the pod will go.
pub(super) fn preempt(
    key: &ObjectKey,
    pod: &Pod,
    plan: &Preemption,
    victims: &[Arc<PlacedPod>],
) -> WritePlan<Turn> {
    let (mut writes, mut events) = (Vec::new(), Vec::new());
    let target = disruption_target::condition(Disruption::Preemption(NAME), Timestamp::now());
    let told = json!({"status": {"conditions": [target]}});
    for (key, victim) in plan.victims.iter().zip(victims) {
        let uid = victim.metadata.uid.as_deref();
        let mut told = told.clone();
        told["metadata"] = json!({"uid": uid});
        let tell = Write::strategic(PODS, key.clone(), &told).to("status");
        writes.push(tell.only_if_unchanged());
        writes.push(Write::delete(PODS, key.clone(), uid));
        let by = pod.metadata.uid.as_deref().unwrap_or("");
        let message = format!("Preempted by pod {by} on node {}", plan.node);
        let about = InvolvedObject::of(victim.as_ref());
        events.push(event(about, Severity::Normal, "Preempted", message));
    }
    let void = json!({"status": {"nominatedNodeName": null}});
    writes.extend(
        plan.disappointed
            .iter()
            .map(|key| Write::strategic(PODS, key.clone(), &void).to("status").only_if_unchanged()),
    );
    let own = explain(key, pod, &plan.refusal, Some(&plan.node));
    writes.extend(own.writes);
    events.extend(own.events);
    WritePlan { writes, events, ..WritePlan::none() }
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message})
}

fn status(mut rest: Value, condition: Value) -> Value {
    rest["conditions"] = json!([condition]);
    json!({"status": rest})
}

/// Why it was said to have no node: the reason and the message.
fn scheduled(pod: &Pod) -> Option<(&str, &str)> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let told = conditions?.iter().find(|condition| condition.type_ == "PodScheduled")?;
    Some((told.reason.as_deref().unwrap_or(""), told.message.as_deref().unwrap_or("")))
}
