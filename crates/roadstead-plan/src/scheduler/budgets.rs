//! PodDisruptionBudgets, which preemption respects where it can.

use std::collections::BTreeMap;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Selector;

use super::occupancy::Occupancy;
use super::placed::PlacedPod;

/// How many pods of a group may go.
#[derive(Debug)]
pub(super) struct Budget {
    selector: Selector,
    allowed: i32,
    /// Those that are counted as gone already.
    disrupted: Vec<String>,
}

impl Occupancy {
    /// Takes in what a budget allows.
    pub fn observe_budget(&mut self, key: &ObjectKey, budget: Option<&PodDisruptionBudget>) {
        let spec = budget.and_then(|budget| budget.spec.as_ref());
        let Some(selector) = spec.and_then(|spec| spec.selector.as_ref()) else {
            self.budgets.remove(key);
            return;
        };
        let status = budget.and_then(|budget| budget.status.as_ref());
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        let budget = Budget {
            selector: Selector::from_object(selector),
            allowed: status.and_then(|status| status.disruptions_allowed).unwrap_or(0),
            disrupted: disrupted.into_iter().flatten().map(|(name, _)| name.clone()).collect(),
        };
        self.budgets.insert(key.clone(), budget);
    }

    /// Which of these pods cannot go, after those before them, without a budget being exceeded.
    pub(super) fn violating(&self, pods: &[&PlacedPod]) -> Vec<bool> {
        let mut left: BTreeMap<&ObjectKey, i32> =
            self.budgets.iter().map(|(key, budget)| (key, budget.allowed)).collect();
        let judge = |pod: &&PlacedPod| {
            let mut is_violating = false;
            let name = pod.metadata.name.as_deref().unwrap_or("");
            for (key, budget) in &self.budgets {
                let is_gone = budget.disrupted.iter().any(|known| known == name);
                let is_own = key.namespace == pod.namespace()
                    && pod.metadata.labels.is_some()
                    && budget.selector.matches_labels(pod.metadata.labels.as_ref());
                if is_own && !is_gone {
                    let left = left.entry(key).or_default();
                    *left -= 1;
                    is_violating |= *left < 0;
                }
            }
            is_violating
        };
        pods.iter().map(judge).collect()
    }
}
