//! Evicting a pod: a deletion that the budgets of its application must allow.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use roadstead_api::look::{Look, child};
use roadstead_api::selector::Selector;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ApiError;
use crate::object;
use crate::write::{self, Context, Owner, Part};

/// Takes one disruption from the budget of a pod, if it has one and the pod counts.
pub async fn spend(api: &Api, namespace: &str, pod: &Value, dry_run: bool) -> Result<(), ApiError> {
    if counts_for_nothing(pod) {
        return Ok(());
    }
    let registry = api.registry();
    let budgets = registry.find("policy", "v1", "poddisruptionbudgets");
    let budgets = budgets.ok_or_else(ApiError::no_such_path)?;
    let found = api.store.list(&budgets.bucket, &budgets.prefix(namespace), None)?;
    let found = found.entries.iter().map(|entry| object::value(entry));
    let own: Vec<_> = found.filter(|budget| covers(budget, pod)).collect();
    let budget = match &own[..] {
        [] => return Ok(()),
        [budget] => budget,
        _ => {
            return Err(ApiError::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource \
                 does not support.",
            ));
        }
    };
    if is_free(budget, pod) {
        return Ok(());
    }
    let owner = Owner::Manager("kube-apiserver", "status");
    let context = Context { api, resource: budgets, namespace, dry_run, owner };
    let now = write::seconds(Timestamp::now());
    let change = |budget: &Value| spent(budget, pod.text("/metadata/name"), &now);
    write::update(&context, budget.text("/metadata/name"), Part::Status, change).await.map(drop)
}

/// A pod that has not begun, has finished, or is going anyway.
fn counts_for_nothing(pod: &Value) -> bool {
    pod.has("/metadata/deletionTimestamp")
        || matches!(pod.text("/status/phase"), "Pending" | "Succeeded" | "Failed")
}

fn covers(budget: &Value, pod: &Value) -> bool {
    let Ok(selector) = LabelSelector::deserialize(&budget["spec"]["selector"]) else {
        return false;
    };
    let labels = &pod["metadata"]["labels"];
    Selector::from_object(&selector).matches(|key| labels[key].as_str())
}

/// Whether the application loses nothing with a pod that does not work.
fn is_free(budget: &Value, pod: &Value) -> bool {
    let ready = |own: &Value| own.text("/type") == "Ready" && own.text("/status") == "True";
    if pod.list("/status/conditions").iter().any(ready) {
        return false;
    }
    let (healthy, wanted) =
        (budget.int("/status/currentHealthy"), budget.int("/status/desiredHealthy"));
    budget.text("/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow"
        || (wanted > 0 && healthy >= wanted)
}

/// The budget after one more disruption.
fn spent(budget: &Value, pod: &str, now: &str) -> Result<Value, ApiError> {
    let name = budget.text("/metadata/name");
    let refuse = |why: String| {
        let words = "Cannot evict pod as it would violate the pod's disruption budget.";
        let mut error = ApiError::too_many_requests(words, 10);
        if let Some(details) = &mut error.details {
            details["causes"] = json!([{"reason": "DisruptionBudget", "message": why}]);
        }
        Err(error)
    };
    if budget.int("/status/observedGeneration") < budget.int("/metadata/generation") {
        return refuse(format!(
            "The disruption budget {name} is still being processed by the server."
        ));
    }
    let allowed = budget.int("/status/disruptionsAllowed");
    if allowed <= 0 {
        return refuse(format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            budget.int("/status/desiredHealthy"),
            budget.int("/status/currentHealthy")
        ));
    }
    let mut new = budget.clone();
    let status = child(&mut new, "status");
    status["disruptionsAllowed"] = (allowed - 1).into();
    child(status, "disruptedPods")[pod] = now.into();
    new["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets() {
        let budget = |generation: i64, allowed: i64| {
            json!({"metadata": {"name": "b", "generation": generation},
                "status": {"observedGeneration": 1, "disruptionsAllowed": allowed,
                    "desiredHealthy": 2, "currentHealthy": 1}})
        };
        let left = spent(&budget(1, 1), "p", "now").unwrap();
        assert_eq!(left["status"]["disruptionsAllowed"], 0);
        assert_eq!(left["status"]["disruptedPods"], json!({"p": "now"}));
        let cases = [
            (2, 1, "The disruption budget b is still being processed by the server."),
            (1, 0, "The disruption budget b needs 2 healthy pods and has 1 currently"),
        ];
        for (generation, allowed, want) in cases {
            let error = spent(&budget(generation, allowed), "p", "now").unwrap_err();
            assert_eq!(error.code, 429);
            assert_eq!(error.details.unwrap()["causes"][0]["message"], want);
        }
    }

    #[test]
    fn who_is_free() {
        let pod = |phase: &str| json!({"metadata": {}, "status": {"phase": phase}});
        for (phase, want) in [("Pending", true), ("Running", false), ("Failed", true)] {
            assert_eq!(counts_for_nothing(&pod(phase)), want, "{phase}");
        }
        let budget = |policy: &str, wanted: i64| {
            json!({"spec": {"unhealthyPodEvictionPolicy": policy},
                "status": {"desiredHealthy": wanted, "currentHealthy": 2}})
        };
        assert!(is_free(&budget("AlwaysAllow", 3), &pod("Running")));
        assert!(is_free(&budget("", 2), &pod("Running")));
        assert!(!is_free(&budget("", 3), &pod("Running")));
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert!(!is_free(&budget("AlwaysAllow", 2), &ready));
    }
}
