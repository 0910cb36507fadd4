//! How many pods of an application may be evicted: the status of a PodDisruptionBudget.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::pod_view::PodView;
use crate::pods::{count, scaled};

/// An eviction that has not come to anything by then never will.
const PATIENCE: i64 = 120;
const ALLOWED: &str = "DisruptionAllowed";

/// Whether a budget speaks of a part of the pods that their owners ask for.
pub fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    let spec = budget.spec.as_ref();
    spec.is_some_and(|spec| {
        spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
    })
}

/// What a budget should say while it is not known how many pods there should be: that none may go.
pub fn unknown(
    budget: &PodDisruptionBudget,
    why: &str,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let old = budget.status.clone().unwrap_or_default();
    let told = ("False", "SyncFailed", why);
    PodDisruptionBudgetStatus {
        current_healthy: old.current_healthy.or(Some(0)),
        desired_healthy: old.desired_healthy.or(Some(0)),
        disruptions_allowed: Some(0),
        expected_pods: old.expected_pods.or(Some(0)),
        conditions: Some(conditions(&old, told, old.observed_generation, now)),
        ..old
    }
}

/// What a budget should say, and when to look again even if nothing happens.
///
/// `expected` is the number of pods that the owners of these pods ask for.
pub fn status(
    budget: &PodDisruptionBudget,
    pods: &[&PodView],
    expected: i32,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<Duration>) {
    let spec = budget.spec.clone().unwrap_or_default();
    let old = budget.status.clone().unwrap_or_default();
    let (expected, desired) = match (&spec.min_available, &spec.max_unavailable) {
        (_, Some(most)) => (expected, (expected - scaled(most, expected, true)).max(0)),
        (Some(IntOrString::Int(least)), None) => (count(pods.len()), (*least).max(0)),
        (Some(least), None) => (expected, scaled(least, expected, true)),
        // As if it said: at least one.
        (None, None) => (count(pods.len()), 1),
    };
    let disrupted = unconfirmed(&old, pods, now);
    let is_healthy = |pod: &&&PodView| {
        pod.ready
            && !pod.is_terminating()
            && !pod.is_finished()
            && !disrupted.contains_key(pod.name())
    };
    let healthy = count(pods.iter().filter(is_healthy).count());
    let allowed = if expected == 0 { 0 } else { (healthy - desired).max(0) };
    let oldest = disrupted.values().map(|time| time.0.as_second()).min();
    let again = oldest
        .map(|since| Duration::from_secs((PATIENCE + 1 - (now.as_second() - since)).max(1) as u64));
    let told = match allowed > 0 {
        true => ("True", "SufficientPods", ""),
        false => ("False", "InsufficientPods", ""),
    };
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected),
        observed_generation: budget.metadata.generation,
        disrupted_pods: Some(disrupted).filter(|pods| !pods.is_empty()),
        conditions: Some(conditions(&old, told, budget.metadata.generation, now)),
    };
    (status, again)
}

/// Evictions that were allowed and of which nothing is to be seen yet.
fn unconfirmed(
    old: &PodDisruptionBudgetStatus,
    pods: &[&PodView],
    now: Timestamp,
) -> BTreeMap<String, Time> {
    let all = old.disrupted_pods.clone().unwrap_or_default().into_iter();
    let is_open = |(name, since): &(String, Time)| {
        let pod = pods.iter().find(|pod| pod.name() == name);
        pod.is_some_and(|pod| !pod.is_terminating())
            && now.as_second() - since.0.as_second() <= PATIENCE
    };
    all.filter(is_open).collect()
}

fn conditions(
    old: &PodDisruptionBudgetStatus,
    (value, reason, message): (&str, &str, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut all = old.conditions.clone().unwrap_or_default();
    let before = all.iter().position(|own| own.type_ == ALLOWED).map(|index| all.remove(index));
    let same = before.filter(|own| own.status == value);
    let second = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    all.push(Condition {
        type_: ALLOWED.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: same.map_or(second, |own| own.last_transition_time),
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_view::Phase;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn how_many_may_go() {
        let cases = [
            ("at least two", json!({"minAvailable": 2}), 3, 3, (2, 1)),
            ("half", json!({"minAvailable": "50%"}), 3, 3, (2, 1)),
            ("at most one missing", json!({"maxUnavailable": 1}), 3, 3, (2, 1)),
            ("one is missing already", json!({"maxUnavailable": 1}), 2, 3, (2, 0)),
            ("none", json!({"maxUnavailable": 0}), 3, 3, (3, 0)),
            ("there are none", json!({"minAvailable": 0}), 0, 0, (0, 0)),
            ("more than there are", json!({"minAvailable": 5}), 3, 3, (5, 0)),
        ];
        for (name, spec, ready, expected, want) in cases {
            let pods: Vec<_> = (0..expected).map(|n| pod(&n.to_string(), n < ready)).collect();
            let pods: Vec<_> = pods.iter().collect();
            let (found, _) = status(&budget(spec, json!({})), &pods, expected, at(0));
            let numbers = (found.desired_healthy.unwrap(), found.disruptions_allowed.unwrap());
            assert_eq!(numbers, want, "{name}");
            assert_eq!(found.current_healthy, Some(ready), "{name}");
            let conditions = found.conditions.unwrap();
            let value = if want.1 > 0 { "True" } else { "False" };
            assert_eq!(conditions[0].status, value, "{name}");
        }
    }

    #[test]
    fn nobody_goes_while_nothing_is_known() {
        let needs = [
            (json!({"maxUnavailable": 1}), true),
            (json!({"minAvailable": "50%"}), true),
            (json!({"minAvailable": 1}), false),
            (json!({}), false),
        ];
        for (spec, want) in needs {
            assert_eq!(needs_scale(&budget(spec.clone(), json!({}))), want, "{spec}");
        }
        let mut own = budget(json!({"maxUnavailable": 1}), json!({}));
        own.status.as_mut().unwrap().disruptions_allowed = Some(3);
        let told = unknown(&own, "found no controllers for pod \"p\"", at(5));
        assert_eq!(told.disruptions_allowed, Some(0));
        let why = &told.conditions.as_ref().unwrap()[0];
        let words = (why.status.as_str(), why.reason.as_str(), why.message.as_str());
        assert_eq!(words, ("False", "SyncFailed", "found no controllers for pod \"p\""));
        own.status = Some(told.clone());
        assert_eq!(unknown(&own, "found no controllers for pod \"p\"", at(9)), told, "said once");
        own.status = None;
        assert_eq!(unknown(&own, "oh", at(5)).current_healthy, Some(0));
        let (well, _) = status(&own, &[&pod("p", true)], 1, at(9));
        assert_eq!(well.conditions.unwrap().len(), 1);
    }

    #[test]
    fn evictions_are_waited_for() {
        let told =
            json!({"disruptedPods": {"0": "1970-01-01T00:00:00Z", "gone": "1970-01-01T00:00:00Z"}});
        let pods = [pod("0", true), pod("1", true)];
        let pods: Vec<_> = pods.iter().collect();
        let own = budget(json!({"minAvailable": 1}), told);
        for (second, allowed) in [(1, 0), (120, 0), (121, 1)] {
            let (found, again) = status(&own, &pods, 2, at(second));
            assert_eq!(found.disruptions_allowed, Some(allowed), "{second}");
            assert_eq!(again.is_some(), allowed == 0, "{second}");
        }
    }

    /// Pods that are there, whether they are ready, asked to go, or over; and how long ago each was
    /// promised to somebody who evicts it, if it was.
    fn states() -> impl Strategy<Value = Vec<(bool, bool, bool, Option<i64>)>> {
        let promised = prop::option::weighted(0.3, 0..200_i64);
        prop::collection::vec(
            (prop::bool::weighted(0.8), any::<bool>(), any::<bool>(), promised),
            0..9,
        )
    }

    fn specs() -> impl Strategy<Value = Value> {
        let number = prop_oneof![
            (0..10_i32).prop_map(|number| json!(number)),
            (0..=100_i32).prop_map(|part| json!(format!("{part}%"))),
        ];
        prop_oneof![
            4 => number.clone().prop_map(|number| json!({"minAvailable": number})),
            4 => number.prop_map(|number| json!({"maxUnavailable": number})),
            1 => Just(json!({})),
        ]
    }

    proptest! {
        /// No more may go than are healthy beyond those that are wanted, whatever was promised before;
        /// when so many have gone, enough are left; and what is said once is said again.
        #[test]
        fn enough_are_left(spec in specs(), states in states(), missing in 0..4_i32) {
            let now = at(1000);
            let mut told = json!({"disruptedPods": {}});
            let mut pods = Vec::new();
            for (number, (ready, leaving, finished, promised)) in states.iter().enumerate() {
                let mut pod = pod(&number.to_string(), *ready);
                pod.metadata.deletion_timestamp = leaving.then(|| Time(now));
                pod.phase = if *finished { Phase::Failed } else { Phase::Running };
                if let Some(ago) = promised {
                    let since = serde_json::to_value(Time(at(1000 - ago))).unwrap();
                    told["disruptedPods"][number.to_string()] = since;
                }
                pods.push(pod);
            }
            let pods: Vec<_> = pods.iter().collect();
            let expected = count(pods.len()) + missing;
            let mut own = budget(spec, told);
            let (found, again) = status(&own, &pods, expected, now);
            let numbers = [found.current_healthy, found.desired_healthy, found.disruptions_allowed];
            let [healthy, desired, allowed] = numbers.map(Option::unwrap);
            // Counted here by the states, and not by what the status says of itself.
            let well = states.iter().filter(|(ready, leaving, finished, promised)| {
                let is_promised = promised.is_some_and(|ago| ago <= PATIENCE);
                *ready && !leaving && !finished && !is_promised
            });
            prop_assert_eq!(healthy, count(well.count()));
            prop_assert!(desired >= 0 && allowed >= 0);
            prop_assert!(allowed <= (healthy - desired).max(0), "{allowed}: {desired} of {healthy}");
            prop_assert!(allowed == 0 || healthy - allowed >= desired);
            prop_assert!(found.expected_pods.unwrap() >= desired || allowed == 0);
            let open = found.disrupted_pods.clone().unwrap_or_default();
            prop_assert_eq!(again.is_some(), !open.is_empty());
            own.status = Some(found.clone());
            prop_assert_eq!(status(&own, &pods, expected, now), (found, again));
        }
    }

    fn budget(spec: Value, told: Value) -> PodDisruptionBudget {
        let mut told = told;
        for field in ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"] {
            told[field] = json!(0);
        }
        serde_json::from_value(json!({"metadata": {"name": "b", "generation": 1}, "spec": spec,
            "status": told}))
        .unwrap()
    }

    fn pod(name: &str, ready: bool) -> PodView {
        let mut pod = PodView { ready, ..PodView::default() };
        pod.metadata.name = Some(name.to_owned());
        pod
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }
}
