//! The condition of a pod that goes for the sake of others. Whoever counts failures looks at it: a Job may
//! say that such ends are not counted.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// For whose sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disruption {
    /// Somebody asked politely, and the budgets allowed it.
    Eviction,
    /// Its node has a taint that it does not tolerate.
    Taint,
    /// Its node is gone.
    NodeGone,
    /// A more important pod needs the room; that scheduler said so.
    Preemption(&'static str),
}

/// The condition that says so.
pub fn condition(why: Disruption, now: Timestamp) -> PodCondition {
    let (reason, message) = match why {
        Disruption::Eviction => ("EvictionByEvictionAPI", "Eviction API: evicting".to_owned()),
        Disruption::Taint => {
            ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint".to_owned())
        }
        Disruption::NodeGone => ("DeletionByPodGC", "PodGC: node no longer exists".to_owned()),
        Disruption::Preemption(scheduler) => (
            "PreemptionByScheduler",
            format!("{scheduler}: preempting to accommodate a higher priority pod"),
        ),
    };
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: Some(Time(second)),
        ..PodCondition::default()
    }
}

#[test]
fn the_words_are_those_of_upstream() {
    let cases = [
        (Disruption::Eviction, "EvictionByEvictionAPI: Eviction API: evicting"),
        (
            Disruption::Taint,
            "DeletionByTaintManager: Taint manager: deleting due to NoExecute taint",
        ),
        (Disruption::NodeGone, "DeletionByPodGC: PodGC: node no longer exists"),
        (
            Disruption::Preemption("default-scheduler"),
            "PreemptionByScheduler: default-scheduler: preempting to accommodate a higher \
             priority pod",
        ),
    ];
    for (why, want) in cases {
        let told = condition(why, Timestamp::from_millisecond(1500).unwrap_or_default());
        let text =
            format!("{}: {}", told.reason.unwrap_or_default(), told.message.unwrap_or_default());
        assert_eq!(text, want);
        let second = told.last_transition_time.map(|time| time.0.as_millisecond());
        assert_eq!(second, Some(1000), "whole seconds");
    }
}
