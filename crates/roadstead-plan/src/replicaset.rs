//! The pods of a ReplicaSet.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{owner, pod};

/// How many pods one plan creates or deletes at most.
const BURST: usize = 500;

/// The writes that make the number of pods right, and what to report.
#[derive(Debug)]
pub struct ReplicaSetPlan {
    /// Pods to create.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<Pod>,
    /// What is true now, before these writes.
    pub status: ReplicaSetStatus,
}

/// Plans the pods of a ReplicaSet, given the pods that it controls.
pub fn plan(set: &ReplicaSet, pods: &[&Pod], now: Timestamp) -> ReplicaSetPlan {
    let alive: Vec<_> =
        pods.iter().copied().filter(|p| !pod::is_terminating(p) && !pod::is_finished(p)).collect();
    let wanted = usize::try_from(wanted(set)).unwrap_or(0);
    let status = status(set, &alive, now);
    let mut plan = ReplicaSetPlan { create: Vec::new(), delete: Vec::new(), status };
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    if alive.len() < wanted {
        plan.create = vec![template(set); (wanted - alive.len()).min(BURST)];
    } else {
        let mut candidates = alive.clone();
        candidates.sort_by_key(|pod| rank(pod));
        let surplus = (alive.len() - wanted).min(BURST);
        plan.delete = candidates.into_iter().take(surplus).cloned().collect();
    }
    plan
}

fn wanted(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

/// The pod that the template describes.
fn template(set: &ReplicaSet) -> Pod {
    let template = set.spec.template.clone().unwrap_or_default();
    let metadata = template.metadata.unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", set.metadata.name.as_deref().unwrap_or(""))),
            namespace: set.metadata.namespace.clone(),
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: Some(vec![owner::controlled_by(set)]),
            ..Default::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// Which pods go first: those that do the least, then the youngest.
fn rank(pod: &Pod) -> (bool, u8, bool, Reverse<Timestamp>, String) {
    let phase = match pod::phase(pod) {
        "Pending" | "" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let created = pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
    let name = pod.metadata.name.clone().unwrap_or_default();
    (!pod::node(pod).is_empty(), phase, pod::is_ready(pod), Reverse(created), name)
}

fn status(set: &ReplicaSet, alive: &[&Pod], now: Timestamp) -> ReplicaSetStatus {
    let delay = set.spec.min_ready_seconds.unwrap_or(0);
    let template = set.spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    let labels = template.and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    let has_all_labels = |pod: &Pod| {
        let own = pod.metadata.labels.as_ref();
        labels.iter().all(|(key, value)| own.and_then(|own| own.get(key)) == Some(value))
    };
    let count = |test: &dyn Fn(&Pod) -> bool| {
        i32::try_from(alive.iter().filter(|pod| test(pod)).count()).unwrap_or(i32::MAX)
    };
    let some = |number: i32| Some(number).filter(|&number| number > 0);
    ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: some(count(&has_all_labels)),
        ready_replicas: some(count(&pod::is_ready)),
        available_replicas: some(count(&|pod| pod::is_available(pod, delay, now))),
        observed_generation: set.metadata.generation,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSetSpec;
    use k8s_openapi::api::core::v1::{PodCondition, PodSpec, PodStatus};

    /// `a@3=ready`: the pod named a, created at second 3; states are ready, running, pending,
    /// failed, and lost (not on any node).
    fn pods(text: &str) -> Vec<Pod> {
        let read = |word: &str| {
            let (name, rest) = word.split_once('@').unwrap();
            let (created, state) = rest.split_once('=').unwrap();
            let created = Timestamp::from_second(created.parse().unwrap()).unwrap();
            let condition = PodCondition {
                type_: "Ready".into(),
                status: if state == "ready" { "True" } else { "False" }.into(),
                ..Default::default()
            };
            let phase = match state {
                "failed" => "Failed",
                "pending" | "lost" => "Pending",
                _ => "Running",
            };
            let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(created);
            Pod {
                metadata: ObjectMeta {
                    name: Some(name.into()),
                    creation_timestamp: Some(time),
                    ..Default::default()
                },
                spec: Some(PodSpec {
                    node_name: (state != "lost").then(|| "node".into()),
                    ..Default::default()
                }),
                status: Some(PodStatus {
                    phase: Some(phase.into()),
                    conditions: Some(vec![condition]),
                    ..Default::default()
                }),
            }
        };
        text.split_whitespace().map(read).collect()
    }

    #[test]
    fn the_number_of_pods_is_made_right() {
        let cases = [
            ("nothing yet", 3, "", 3, ""),
            ("just right", 1, "a@1=ready", 0, ""),
            ("failed pods do not count", 1, "a@1=failed", 1, ""),
            ("the one on no node goes first", 1, "a@1=ready b@2=lost", 0, "b"),
            ("pending goes before running", 1, "a@1=pending b@2=running", 0, "a"),
            ("unready goes before ready", 1, "a@1=ready b@0=running", 0, "b"),
            ("the youngest goes first", 1, "a@1=ready b@2=ready c@3=ready", 0, "c b"),
            ("none at all", 0, "a@1=ready", 0, "a"),
        ];
        for (name, replicas, given, create, delete) in cases {
            let set = ReplicaSet {
                spec: ReplicaSetSpec { replicas: Some(replicas), ..Default::default() },
                ..Default::default()
            };
            let pods = pods(given);
            let plan = plan(&set, &pods.iter().collect::<Vec<_>>(), Timestamp::UNIX_EPOCH);
            let deleted: Vec<_> = plan.delete.iter().flat_map(|pod| &pod.metadata.name).collect();
            let deleted: Vec<_> = deleted.into_iter().map(String::as_str).collect();
            assert_eq!((plan.create.len(), deleted.join(" ").as_str()), (create, delete), "{name}");
        }
    }
}
