//! What a pod holds of its node that is getting more of it, or less: as long as it has not what it wants, the
//! node may not be given away twice (KEP-1287).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roadstead_api::quantity;
use serde::Deserialize;

/// Of a container's status only this is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawContainerStatus {
    name: String,
    allocated_resources: Option<BTreeMap<String, Quantity>>,
    resources: Option<ResourceRequirements>,
}

/// Of a condition only this is read.
#[derive(Deserialize)]
pub(super) struct RawCondition {
    #[serde(rename = "type")]
    kind: String,
    reason: Option<String>,
}

/// Whether what the pod wants will never be given to it.
pub(super) fn is_infeasible(conditions: &[RawCondition]) -> bool {
    let mut pending = conditions.iter().filter(|own| own.kind == "PodResizePending");
    pending.any(|own| own.reason.as_deref() == Some("Infeasible"))
}

/// The spec as if its containers had asked for what they hold; `None` if nobody has said what that is, or it is
/// what they ask for.
pub(super) fn held(spec: &PodSpec, statuses: &[RawContainerStatus]) -> Option<PodSpec> {
    let says = |own: &RawContainerStatus| {
        let actual = own.resources.as_ref().and_then(|own| own.requests.as_ref());
        own.allocated_resources.is_some() || actual.is_some_and(|own| !own.is_empty())
    };
    // Most ask for nothing.
    if !statuses.iter().any(says) {
        return None;
    }
    let mut held = spec.clone();
    let all = held.init_containers.iter_mut().flatten().chain(&mut held.containers);
    for container in all {
        let Some(status) = statuses.iter().find(|own| own.name == container.name) else { continue };
        let actual = status.resources.as_ref().and_then(|own| own.requests.as_ref());
        for name in ["cpu", "memory"] {
            let of = |map: Option<&BTreeMap<String, Quantity>>| map?.get(name).cloned();
            let number = |amount: &Quantity| quantity::read(&amount.0).unwrap_or(0.0);
            let both = [of(status.allocated_resources.as_ref()), of(actual)];
            let most = both.into_iter().flatten();
            let most = most.max_by(|one, other| number(one).total_cmp(&number(other)));
            if let Some(amount) = most {
                let requests = &mut container.resources.get_or_insert_default().requests;
                requests.get_or_insert_default().insert(name.to_owned(), amount);
            }
        }
    }
    (held != *spec).then_some(held)
}

#[cfg(test)]
mod tests {
    use crate::scheduler::placed::PlacedPod;
    use serde_json::json;

    #[test]
    fn who_is_resized_holds_both() {
        let infeasible = json!([{"type": "PodResizePending", "reason": "Infeasible"}]);
        let deferred = json!([{"type": "PodResizePending", "reason": "Deferred"}]);
        let none = json!([]);
        // What is asked for, allocated and had, and what that comes to.
        for (asked, allocated, actual, conditions, want) in [
            ("1", "1", "1", &none, 1000),
            ("2", "1", "1", &deferred, 2000),
            ("2", "1", "1", &infeasible, 1000),
            ("1", "1", "2", &none, 2000),
            ("1", "2", "1", &none, 2000),
            ("1", "2", "3", &infeasible, 3000),
        ] {
            let pod = json!({
                "metadata": {"name": "a"},
                "spec": {"containers": [
                    {"name": "c", "resources": {"requests": {"cpu": asked}}},
                    {"name": "quiet"}]},
                "status": {"conditions": conditions, "containerStatuses": [
                    {"name": "c", "allocatedResources": {"cpu": allocated},
                     "resources": {"requests": {"cpu": actual}}}]}});
            let pod: PlacedPod = serde_json::from_value(pod).unwrap();
            assert_eq!(pod.amount.asked.cpu, want, "{asked} {allocated} {actual} {conditions}");
        }
    }
}
