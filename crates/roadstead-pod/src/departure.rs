//! How a pod takes its leave: it is asked to end only when nobody sends it new connections. Pure.
//!
//! Whoever deletes a pod tells its node and the controller of its endpoints at the same time. A server that
//! stops accepting at the signal refuses those whom the kernels of nodes still send to it. So the signal
//! waits until the slices say that the pod is going, and the proxies of all nodes that live say, in their
//! Leases, that they have carried this out; but no longer than [`LONGEST`], which is part of the grace period.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::facts::{PodFacts, after};
use crate::lifecycle::{PodPlan, PodStep};

/// A node that does not answer delays the end of a pod by so much.
pub const LONGEST: Duration = Duration::from_secs(3);
/// The annotation by which a pod asks to be ended at once, and its value.
const TERMINATE: (&str, &str) = ("roadstead.dev/terminate", "at-once");
/// Where a proxy says up to which revision of slices it has carried them out.
const PROGRAMMED: &str = "roadstead.dev/programmed-endpointslices";

/// The label of slices of headless Services.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// How far the leave has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Departure {
    /// Nobody has begun.
    #[default]
    NotBegun,
    /// Nodes are still told.
    Underway {
        /// Since then.
        since: Timestamp,
        /// Until then at the latest.
        until: Timestamp,
    },
    /// Nobody sends anything new to the pod, or it took too long.
    Over {
        /// How long it took.
        waited: Duration,
    },
}

impl Departure {
    /// What it has taken of the grace period.
    pub(crate) fn waited(self, now: Timestamp) -> Duration {
        match self {
            Self::NotBegun => Duration::ZERO,
            Self::Underway { since, until } => now.min(until).duration_since(since).unsigned_abs(),
            Self::Over { waited } => waited,
        }
    }

    /// It is over.
    pub fn end(self, now: Timestamp) -> Self {
        Self::Over { waited: self.waited(now) }
    }
}

/// What comes before the end of a pod that was deleted; nothing, if it may end.
pub(crate) fn plan(
    pod: &Pod,
    facts: &PodFacts,
    grace: Duration,
    now: Timestamp,
) -> Option<PodPlan> {
    if grace.is_zero() || !facts.any_running() {
        return None;
    }
    match facts.departure {
        Departure::NotBegun if takes_leave(pod) => {
            let steps = vec![PodStep::Depart { limit: LONGEST.min(grace) }];
            Some(PodPlan { steps, wake_at: None })
        }
        // Whoever deletes it again may have less patience.
        Departure::Underway { since, until } => {
            let until = until.min(after(since, grace));
            (until > now).then(|| PodPlan { steps: vec![], wake_at: Some(until) })
        }
        _ => None,
    }
}

/// Whether somebody may be sending connections to the pod.
fn takes_leave(pod: &Pod) -> bool {
    let (key, value) = TERMINATE;
    let annotations = pod.metadata.annotations.as_ref();
    let asked = annotations.and_then(|annotations| annotations.get(key));
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten().filter(|own| own.type_ == "Ready");
    asked.is_none_or(|asked| asked != value) && ready.any(|own| own.status == "True")
}

/// From which revision of slices on nobody is sent to the pod; `None` while slices still do.
///
/// It is the newest of all slices, and not only of those that list the pod: from others it may have been
/// taken a moment ago, because a Service selects other pods now. Proxies do not follow the slices of
/// headless Services, and nobody waits for them to.
pub fn left_slices(slices: &[EndpointSlice], uid: &str) -> Option<u64> {
    let is_it = |endpoint: &&Endpoint| {
        endpoint.target_ref.as_ref().and_then(|target| target.uid.as_deref()) == Some(uid)
    };
    let sends = |endpoint: &Endpoint| {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        conditions.ready.unwrap_or(true) && conditions.terminating != Some(true)
    };
    if slices.iter().flat_map(|own| own.endpoints.iter().flatten()).filter(is_it).any(sends) {
        return None;
    }
    let is_headless = |slice: &&EndpointSlice| {
        slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(HEADLESS))
    };
    let versions = slices
        .iter()
        .filter(|slice| !is_headless(slice))
        .filter_map(|slice| slice.metadata.resource_version.as_ref()?.parse().ok());
    Some(versions.max().unwrap_or(0))
}

/// Whether all proxies that live have carried out slices up to this revision. Those that do not say how
/// far they are are not waited for.
pub fn is_programmed(leases: &[Lease], revision: u64, now: Timestamp) -> bool {
    leases.iter().filter(|lease| is_alive(lease, now)).all(|lease| {
        let annotations = lease.metadata.annotations.as_ref();
        let told = annotations.and_then(|annotations| annotations.get(PROGRAMMED));
        told.and_then(|told| told.parse::<u64>().ok()).is_none_or(|told| told >= revision)
    })
}

fn is_alive(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let holder = spec.holder_identity.as_deref().unwrap_or("");
    let lasts = i64::from(spec.lease_duration_seconds.unwrap_or(0));
    let renewed = spec.renew_time.as_ref().map(|time| time.0.as_second());
    !holder.is_empty() && renewed.is_some_and(|renewed| renewed + lasts >= now.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{ContainerFacts, State};
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn who_takes_leave() {
        let pod = |ready: &str, annotations: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"annotations": annotations},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap()
        };
        let mut facts = PodFacts::default();
        let running = State::Running { id: String::new(), since: at(0), stopping: None };
        let container = ContainerFacts { state: running, ..ContainerFacts::default() };
        facts.containers.insert("c".into(), container);
        let at_once = json!({"roadstead.dev/terminate": "at-once"});
        let underway = Departure::Underway { since: at(0), until: at(3) };
        let over = Departure::Over { waited: Duration::from_secs(1) };
        for (name, ready, annotations, grace, departure, want) in [
            ("ready", "True", json!({}), 30, Departure::NotBegun, Some((1, None))),
            ("never ready", "False", json!({}), 30, Departure::NotBegun, None),
            ("by force", "True", json!({}), 0, Departure::NotBegun, None),
            ("in a hurry", "True", at_once, 30, Departure::NotBegun, None),
            ("underway", "True", json!({}), 30, underway, Some((0, Some(at(3))))),
            ("over", "True", json!({}), 30, over, None),
            ("less time", "True", json!({}), 2, underway, Some((0, Some(at(2))))),
            ("no more time", "True", json!({}), 1, underway, None),
            ("now by force", "True", json!({}), 0, underway, None),
        ] {
            facts.departure = departure;
            let grace = Duration::from_secs(grace);
            let found = plan(&pod(ready, annotations), &facts, grace, at(1));
            assert_eq!(found.map(|plan| (plan.steps.len(), plan.wake_at)), want, "{name}");
        }
        facts.departure = underway;
        let late = plan(&pod("True", json!({})), &facts, Duration::from_secs(30), at(3));
        assert_eq!(late, None, "a node that does not answer is not waited for");
        assert_eq!(underway.waited(at(20)), LONGEST, "what comes later is not its fault");
        assert_eq!(underway.end(at(2)), Departure::Over { waited: Duration::from_secs(2) });
    }

    #[test]
    fn when_a_pod_has_left() {
        let slice = |version: &str, uid: &str, ready: bool, terminating: bool| -> EndpointSlice {
            serde_json::from_value(json!({"metadata": {"resourceVersion": version},
                "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"],
                    "targetRef": {"uid": uid},
                    "conditions": {"ready": ready, "terminating": terminating}}]}))
            .unwrap()
        };
        let headless = |mut slice: EndpointSlice| {
            slice.metadata.labels = Some([(HEADLESS.to_owned(), String::new())].into());
            slice
        };
        for (name, slices, want) in [
            ("there are none", vec![], Some(0)),
            ("in none any more", vec![slice("9", "other", true, false)], Some(9)),
            ("still there", vec![slice("9", "u", true, false)], None),
            (
                "going from one, gone from another",
                vec![slice("9", "u", false, true), slice("12", "o", true, false)],
                Some(12),
            ),
            ("only known by name", vec![headless(slice("9", "u", false, true))], Some(0)),
            ("known by name, and ready", vec![headless(slice("9", "u", true, false))], None),
            (
                "a name beside an address",
                vec![slice("9", "u", false, true), headless(slice("12", "u", false, true))],
                Some(9),
            ),
            (
                "in one of two",
                vec![slice("9", "u", false, true), slice("8", "u", true, false)],
                None,
            ),
            ("published in any case", vec![slice("9", "u", true, true)], Some(9)),
        ] {
            assert_eq!(left_slices(&slices, "u"), want, "{name}");
        }
    }

    #[test]
    fn who_is_waited_for() {
        let lease = |holder: &str, renewed: &str, told: Value| -> Lease {
            serde_json::from_value(json!({"metadata": {"annotations": told},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 40,
                    "renewTime": renewed}}))
            .unwrap()
        };
        let told = |revision: &str| json!({"roadstead.dev/programmed-endpointslices": revision});
        let (fresh, stale) = ("1970-01-01T00:01:00.000000Z", "1970-01-01T00:00:00.000000Z");
        for (name, lease, want) in [
            ("has done it", lease("n", fresh, told("10")), true),
            ("has not", lease("n", fresh, told("9")), false),
            ("is dead", lease("n", stale, told("9")), true),
            ("has gone", lease("", fresh, told("9")), true),
            ("is somebody else", lease("n", fresh, json!({})), true),
        ] {
            assert_eq!(is_programmed(&[lease], 10, at(61)), want, "{name}");
        }
    }
}
