//! Evicting a pod: a deletion that the budgets of its application must allow.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use roadstead_api::selector::Selector;
use roadstead_plan::disruption_target::{Disruption, condition};
use roadstead_schema::json::{Pointer, child};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::Answer;
use crate::objects::delete::{Deletion, Options};
use crate::objects::write::{self, Context, Writable};
use crate::reading::{object, read};
use crate::request::handler::Handler;
use crate::transport::response::created;

/// The condition by which a budget says whether a pod may go.
const ALLOWED: &str = "DisruptionAllowed";
/// So many evictions may be open that nobody has confirmed.
const MOST_UNCONFIRMED: usize = 2000;

/// Deletes a pod, unless a budget forbids it.
pub(super) fn evict<'a>(handler: &'a Handler<'a>) -> Answer<'a> {
    Box::pin(async move {
        let Handler { api, resource, path, query, .. } = handler;
        let eviction = handler.typed("io.k8s.api.policy.v1.Eviction")?;
        let pod = object::value(&*read::entry(&api.storage, resource, path)?);
        let mut options = Options::read(&eviction["deleteOptions"], query.dry_run())?;
        let (namespace, name) = (&*path.namespace, &*path.name);
        let deletion = Deletion { api, resource, namespace, name };
        deletion.check(&pod, &options)?;
        spend(api, &path.namespace, &pod, options.dry_run).await?;
        if !options.dry_run && !is_over(&pod) {
            let marked = mark(&deletion, &options).await?;
            // It is the same pod, one condition later.
            options.version = options.version.map(|_| marked);
        }
        deletion.run(&options).await?;
        Ok(created())
    })
}

/// A pod that has ended or is going anyway needs no explanation.
fn is_over(pod: &Value) -> bool {
    pod.has("/metadata/deletionTimestamp")
        || matches!(pod.text("/status/phase"), "Succeeded" | "Failed")
}

/// Says in the pod's conditions for whose sake it goes; returns its version then.
async fn mark(deletion: &Deletion<'_>, options: &Options) -> Result<String, ApiError> {
    let Deletion { api, resource, namespace, name } = *deletion;
    let own = Context::own(api, resource, namespace, "kube-apiserver");
    let context = Context { subresource: "status", ..own };
    let target = json!(condition(Disruption::Eviction, Timestamp::now()));
    let change = |pod: &Value| {
        deletion.check(pod, options)?;
        let mut new = pod.clone();
        let conditions = child(child(&mut new, "status"), "conditions");
        let mut all = conditions.as_array().cloned().unwrap_or_default();
        all.retain(|own| own["type"] != target["type"]);
        all.push(target.clone());
        *conditions = all.into();
        new["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
        Ok(new.into())
    };
    let written = write::update(&context, name, Writable::Status, change).await?;
    Ok(written.entry.revision.to_string())
}

/// Takes one disruption from the budget of a pod, if it has one and the pod counts.
async fn spend(api: &Api, namespace: &str, pod: &Value, dry_run: bool) -> Result<(), ApiError> {
    if counts_for_nothing(pod) {
        return Ok(());
    }
    let registry = api.registry();
    let budgets = registry.find("policy", "v1", "poddisruptionbudgets");
    let budgets = budgets.ok_or_else(ApiError::no_such_path)?;
    let found = api.storage.store.list(&budgets.bucket, &budgets.prefix(namespace), None)?;
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
    let own = Context::own(api, budgets, namespace, "kube-apiserver");
    let context = Context { subresource: "status", dry_run, ..own };
    let now = write::seconds(Timestamp::now());
    let pod = pod.text("/metadata/name");
    let change = |budget: &Value| Ok(spent(budget, pod, &now)?.into());
    write::update(&context, budget.text("/metadata/name"), Writable::Status, change).await.map(drop)
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
    if budget.int("/status/observedGeneration") < budget.int("/metadata/generation") {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(refusal(&why));
    }
    let allowed = budget.int("/status/disruptionsAllowed");
    if allowed < 0 {
        return Err(forbidden(name, "pdb disruptions allowed is negative"));
    }
    let unconfirmed = budget["status"]["disruptedPods"].as_object().map_or(0, |pods| pods.len());
    if unconfirmed > MOST_UNCONFIRMED {
        return Err(forbidden(
            name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        return Err(refusal(&why_not(budget)));
    }
    let mut new = budget.clone();
    let status = child(&mut new, "status");
    status["disruptionsAllowed"] = (allowed - 1).into();
    child(status, "disruptedPods")[pod] = now.into();
    if allowed == 1 {
        exhausted(status, budget.int("/metadata/generation"), now);
    }
    new["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
    Ok(new)
}

/// Not yet, without a word about when: a client that is told a time waits for it ten times over
/// before it tells its user (client-go, `rest.Request`), and the budget may allow it any moment.
fn refusal(why: &str) -> ApiError {
    let words = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut error = ApiError::too_many_requests(words, 0);
    error.details = Some(json!({"causes": [{"reason": "DisruptionBudget", "message": why}]}));
    error
}

fn forbidden(budget: &str, why: &str) -> ApiError {
    let words = format!("poddisruptionbudget.policy {budget:?} is forbidden: {why}");
    let mut error = ApiError::forbidden(words);
    let kind = "poddisruptionbudget";
    error.details = Some(json!({"name": budget, "group": "policy", "kind": kind}));
    error
}

/// Why a budget allows nothing.
fn why_not(budget: &Value) -> String {
    let name = budget.text("/metadata/name");
    let told = budget.list("/status/conditions").iter().find(|own| {
        own.text("/type") == ALLOWED && own.text("/status") == "False" && own.has("/message")
    });
    let told = told.map(|own| (own.text("/reason"), own.text("/message")));
    let (needs, has) = (budget.int("/status/desiredHealthy"), budget.int("/status/currentHealthy"));
    let beginning = format!("The disruption budget {name}");
    match told.filter(|(_, message)| !message.is_empty()) {
        // Then the numbers mean nothing.
        Some(("SyncFailed", message)) => format!(
            "{beginning} does not allow evicting pods currently because it failed sync: {message}"
        ),
        _ if has <= needs => {
            format!("{beginning} needs {needs} healthy pods and has {has} currently")
        }
        Some((reason, message)) => {
            format!("{beginning} does not allow evicting pods currently ({reason}): {message}")
        }
        None => format!("{beginning} does not allow evicting pods currently"),
    }
}

/// Says in the conditions that nothing more is allowed.
fn exhausted(status: &mut Value, generation: i64, now: &str) {
    let conditions = child(status, "conditions");
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let before = conditions.iter().find(|own| own.text("/type") == ALLOWED);
    let since = before.filter(|own| own.text("/status") == "False");
    let since = since.map_or(now, |own| own.text("/lastTransitionTime")).to_owned();
    conditions.retain(|own| own.text("/type") != ALLOWED);
    conditions.push(json!({"type": ALLOWED, "status": "False", "reason": "InsufficientPods",
        "message": "", "observedGeneration": generation, "lastTransitionTime": since}));
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
            let details = error.details.unwrap();
            let cause = json!({"reason": "DisruptionBudget", "message": want});
            assert_eq!(details, json!({"causes": [cause]}), "and not when to try again");
        }
    }

    #[test]
    fn what_is_wrong_with_a_budget() {
        let budget = |status: Value| json!({"metadata": {"name": "b"}, "status": status});
        let condition = |reason: &str, message: &str| {
            json!([{"type": "DisruptionAllowed", "status": "False", "reason": reason,
                "message": message}])
        };
        let many: serde_json::Map<_, _> =
            (0..=MOST_UNCONFIRMED).map(|n| (n.to_string(), "now".into())).collect();
        let cases = [
            (json!({"disruptionsAllowed": -1}), 403, "pdb disruptions allowed is negative"),
            (json!({"disruptionsAllowed": 1, "disruptedPods": many}), 403, "map too big"),
            (
                json!({"conditions": condition("SyncFailed", "oh")}),
                429,
                "does not allow evicting pods currently because it failed sync: oh",
            ),
            (
                json!({"currentHealthy": 4, "desiredHealthy": 3,
                    "conditions": condition("Other", "oh")}),
                429,
                "does not allow evicting pods currently (Other): oh",
            ),
            (
                json!({"currentHealthy": 3, "desiredHealthy": 3,
                    "conditions": condition("Other", "oh")}),
                429,
                "needs 3 healthy pods and has 3 currently",
            ),
            (
                json!({"currentHealthy": 4, "desiredHealthy": 3}),
                429,
                "budget b does not allow evicting pods currently",
            ),
        ];
        for (status, code, want) in cases {
            let error = spent(&budget(status), "p", "now").unwrap_err();
            assert_eq!(error.code, code, "{want}");
            let text = error.to_status().to_string();
            assert!(text.contains(want), "{want}: {text}");
        }
        let last = spent(&budget(json!({"disruptionsAllowed": 1})), "p", "now").unwrap();
        assert_eq!(last["status"]["conditions"][0]["reason"], "InsufficientPods");
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
