//! Whether a node is alive, and what follows if it is not.
//!
//! A node that has not been heard of for a while is Unknown; one that is not Ready is tainted, its
//! pods are no longer ready, and those that do not tolerate the taint are moved elsewhere after a
//! time. Everything is judged by when *we* last saw a sign of life, so that clocks need not agree.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The taint of a node that nobody hears of.
pub(crate) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The taint of a node that says itself that it is not ready.
pub(crate) const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The taint of a node that takes no more pods.
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// How long a pod that says nothing about it stays on a node that is gone.
pub(crate) const DEFAULT_TOLERATION_SECONDS: SignedDuration = SignedDuration::from_secs(300);

/// What a node last said, and when we saw it.
#[derive(Clone, Debug, Default)]
pub struct Heartbeats {
    nodes: BTreeMap<String, (String, Timestamp)>,
}

impl Heartbeats {
    /// Takes in what a node says now; anything new is a sign of life.
    pub fn observe(&mut self, node: &str, said: String, now: Timestamp) {
        match self.nodes.get_mut(node) {
            Some((last, _)) if *last == said => {}
            Some(known) => *known = (said, now),
            None => drop(self.nodes.insert(node.to_owned(), (said, now))),
        }
    }

    /// When the node last showed a sign of life.
    pub fn last(&self, node: &str) -> Option<Timestamp> {
        self.nodes.get(node).map(|(_, at)| *at)
    }

    /// Forgets a node that was deleted.
    pub fn forget(&mut self, node: &str) {
        self.nodes.remove(node);
    }
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It says that it is ready.
    Ready,
    /// It says that it is not.
    NotReady,
    /// Nobody knows.
    Unknown,
    /// It has never said anything: it may be about to.
    New,
}

impl Health {
    /// Whether its pods are out of reach.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::NotReady | Self::Unknown)
    }
}

/// What the object says about a node.
pub fn health(node: &Node) -> Health {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten().filter(|c| c.type_ == "Ready");
    match ready.next().map(|condition| condition.status.as_str()) {
        Some("True") => Health::Ready,
        Some("False") => Health::NotReady,
        Some(_) => Health::Unknown,
        None => Health::New,
    }
}

/// The conditions of a node that has been silent for longer than `grace`, if they change.
pub fn silenced(
    node: &Node,
    last: Timestamp,
    grace: SignedDuration,
    now: Timestamp,
) -> Option<Vec<NodeCondition>> {
    if now.duration_since(last) < grace {
        return None;
    }
    let known = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let known = known.unwrap_or_default();
    let types = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
    let silent: Vec<_> = types
        .into_iter()
        .filter_map(|type_| {
            let old = known.iter().find(|condition| condition.type_ == type_);
            if old.is_some_and(|old| old.status == "Unknown") || (old.is_none() && type_ != "Ready")
            {
                return None;
            }
            Some(NodeCondition {
                type_: type_.to_owned(),
                status: "Unknown".into(),
                reason: Some("NodeStatusUnknown".into()),
                message: Some("Kubelet stopped posting node status.".into()),
                last_heartbeat_time: old.and_then(|old| old.last_heartbeat_time.clone()),
                last_transition_time: Some(Time(now)),
            })
        })
        .collect();
    (!silent.is_empty()).then_some(silent)
}

/// The taints that a node should have, if they are not those it has.
pub fn taints(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.as_ref();
    let old = spec.and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = match health(node) {
        Health::Ready | Health::New => vec![],
        Health::NotReady => vec![(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")],
        Health::Unknown => vec![(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")],
    };
    if spec.and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let ours = |taint: &Taint| [UNREACHABLE, NOT_READY, UNSCHEDULABLE].contains(&&*taint.key);
    let is_wanted = |taint: &Taint| wanted.contains(&(&*taint.key, &*taint.effect));
    let mut new: Vec<_> = old.iter().filter(|t| !ours(t) || is_wanted(t)).cloned().collect();
    for (key, effect) in wanted {
        if !new.iter().any(|taint| taint.key == key && taint.effect == effect) {
            new.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                time_added: (effect == "NoExecute").then_some(Time(now)),
                value: None,
            });
        }
    }
    (new != old).then_some(new)
}

/// When a pod must leave a node with these taints: `None` if never.
///
/// A pod that says nothing about the two taints of lost nodes gets five minutes, as if admission
/// had written that into it.
pub fn leaves_at(
    taints: &[Taint],
    tolerations: &[Toleration],
    now: Timestamp,
) -> Option<Timestamp> {
    let leave = taints.iter().filter(|taint| taint.effect == "NoExecute").filter_map(|taint| {
        let since = taint.time_added.as_ref().map_or(now, |time| time.0);
        let matching: Vec<_> = tolerations.iter().filter(|t| tolerates(t, taint)).collect();
        if matching.iter().any(|toleration| toleration.toleration_seconds.is_none()) {
            return None;
        }
        let shortest = matching.iter().filter_map(|toleration| toleration.toleration_seconds).min();
        let patience = match shortest {
            Some(seconds) => SignedDuration::from_secs(seconds.max(0)),
            None if [UNREACHABLE, NOT_READY].contains(&&*taint.key) => DEFAULT_TOLERATION_SECONDS,
            None => SignedDuration::ZERO,
        };
        Some(since.saturating_add(patience).unwrap_or(Timestamp::MAX))
    });
    leave.min()
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or("");
    let key = toleration.key.as_deref().unwrap_or("");
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || (key.is_empty() && exists))
        && (exists || text(&toleration.value) == text(&taint.value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// `True`, `False`, `Unknown` or "" for a node that has never said anything.
    fn node(ready: &str, unschedulable: bool, taints: &[(&str, &str)]) -> Node {
        let conditions = match ready {
            "" => json!([]),
            ready => json!([{"type": "Ready", "status": ready},
                {"type": "DiskPressure", "status": "False"}]),
        };
        let taints: Vec<_> =
            taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect();
        serde_json::from_value(json!({"spec": {"unschedulable": unschedulable, "taints": taints},
            "status": {"conditions": conditions}}))
        .unwrap()
    }

    #[test]
    fn signs_of_life() {
        let mut heartbeats = Heartbeats::default();
        heartbeats.observe("n", "a".into(), at(10));
        heartbeats.observe("n", "a".into(), at(20));
        assert_eq!(heartbeats.last("n"), Some(at(10)), "a repetition is no sign");
        heartbeats.observe("n", "b".into(), at(30));
        assert_eq!(heartbeats.last("n"), Some(at(30)));
        heartbeats.forget("n");
        assert_eq!(heartbeats.last("n"), None);
    }

    #[test]
    fn silence() {
        let grace = SignedDuration::from_secs(40);
        let cases = [
            ("soon enough", "True", 39, vec![]),
            ("too long", "True", 40, vec!["Ready", "DiskPressure"]),
            ("known already", "Unknown", 400, vec!["DiskPressure"]),
            ("never heard", "", 40, vec!["Ready"]),
        ];
        for (name, ready, silence, want) in cases {
            let got = silenced(&node(ready, false, &[]), at(0), grace, at(silence));
            let got: Vec<_> = got.into_iter().flatten().map(|condition| condition.type_).collect();
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn which_taints() {
        let foreign = ("team", "NoSchedule");
        let unreachable = [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")];
        let cases = [
            ("fine", node("True", false, &[foreign]), None),
            ("new", node("", false, &[]), None),
            (
                "lost",
                node("Unknown", false, &[foreign]),
                Some(vec![foreign, unreachable[0], unreachable[1]]),
            ),
            ("lost already", node("Unknown", false, &unreachable), None),
            ("back", node("True", false, &unreachable), Some(vec![])),
            (
                "says so itself",
                node("False", false, &unreachable),
                Some(vec![(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
            ),
            ("cordoned", node("True", true, &[]), Some(vec![(UNSCHEDULABLE, "NoSchedule")])),
            ("uncordoned", node("True", false, &[(UNSCHEDULABLE, "NoSchedule")]), Some(vec![])),
        ];
        for (name, node, want) in cases {
            let got = taints(&node, at(5));
            let got = got.as_ref().map(|taints| {
                taints.iter().map(|t| (t.key.as_str(), t.effect.as_str())).collect::<Vec<_>>()
            });
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn who_must_leave_when() {
        let taint = |key: &str| Taint {
            key: key.into(),
            effect: "NoExecute".into(),
            time_added: Some(Time(at(100))),
            value: None,
        };
        let toleration = |key: &str, seconds: Option<i64>| Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Default::default()
        };
        let cases = [
            ("says nothing", UNREACHABLE, vec![], Some(400)),
            ("a minute", UNREACHABLE, vec![toleration(UNREACHABLE, Some(60))], Some(160)),
            ("forever", UNREACHABLE, vec![toleration(UNREACHABLE, None)], None),
            ("anything forever", NOT_READY, vec![toleration("", None)], None),
            ("another taint", "maintenance", vec![toleration(UNREACHABLE, None)], Some(100)),
        ];
        for (name, key, tolerations, want) in cases {
            assert_eq!(leaves_at(&[taint(key)], &tolerations, at(0)), want.map(at), "{name}");
        }
    }
}
