//! How a pod is, as controllers ask about it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};

fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready")
}

/// Whether its readiness probes say yes.
pub fn is_ready(pod: &Pod) -> bool {
    ready_condition(pod).is_some_and(|condition| condition.status == "True")
}

/// Whether it has been ready for that many seconds.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    if !is_ready(pod) {
        return false;
    }
    let since = ready_condition(pod).and_then(|c| c.last_transition_time.as_ref());
    min_ready_seconds <= 0
        || since.is_some_and(|t| now.as_second() - t.0.as_second() >= i64::from(min_ready_seconds))
}

/// Whether somebody has asked it to go.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// `Pending`, `Running`, …, or "".
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("")
}

/// Whether it will never run again.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The node it is on, or "".
pub fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("")
}
