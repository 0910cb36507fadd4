//! The pods of a ReplicaSet.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use roadstead_api::selector::Selector;

use crate::backend::{Backend, Phase};
use crate::owner;

/// How many pods one plan creates or deletes at most.
const BURST: usize = 500;

/// Which pods belong to a set.
#[derive(Debug, Default)]
pub struct Claim<'a> {
    /// It controls these.
    pub own: Vec<&'a Backend>,
    /// These match and belong to nobody: it takes them.
    pub adopt: Vec<&'a Backend>,
    /// It controls these, but they no longer match: it lets them go.
    pub release: Vec<&'a Backend>,
}

/// Sorts pods by whether the set controls them or should.
pub fn claim<'a>(set: &ReplicaSet, pods: impl Iterator<Item = &'a Backend>) -> Claim<'a> {
    let selector = Selector::from_object(&set.spec.selector);
    let mut claim = Claim::default();
    for pod in pods {
        let matches = !selector.is_empty() && selector.matches_labels(pod.metadata.labels.as_ref());
        if owner::is_controlled_by(&pod.metadata, &set.metadata) {
            if matches { &mut claim.own } else { &mut claim.release }.push(pod);
        } else if matches && is_free(set, pod) {
            claim.adopt.push(pod);
        }
    }
    claim
}

fn is_free(set: &ReplicaSet, pod: &Backend) -> bool {
    owner::controller_of(&pod.metadata).is_none()
        && set.metadata.deletion_timestamp.is_none()
        && !pod.is_terminating()
        && !pod.is_finished()
}

/// The writes that make the number of pods right, and what to report.
#[derive(Debug)]
pub struct ReplicaSetPlan<'a> {
    /// Pods to create.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<&'a Backend>,
    /// What is true now, before these writes.
    pub status: ReplicaSetStatus,
}

/// Plans the pods of a ReplicaSet, given the pods that it controls.
pub fn plan<'a>(set: &ReplicaSet, pods: &[&'a Backend], now: Timestamp) -> ReplicaSetPlan<'a> {
    let alive: Vec<&'a Backend> =
        pods.iter().copied().filter(|p| !p.is_terminating() && !p.is_finished()).collect();
    let wanted = usize::try_from(wanted(set)).unwrap_or(0);
    let status = status(set, &alive, now);
    let mut plan = ReplicaSetPlan { create: Vec::new(), delete: Vec::new(), status };
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    if alive.len() < wanted {
        plan.create = vec![template(set); (wanted - alive.len()).min(BURST)];
    } else if alive.len() > wanted {
        let mut candidates = alive.clone();
        candidates.sort_by_cached_key(|pod| rank(pod));
        plan.delete = candidates.into_iter().take((alive.len() - wanted).min(BURST)).collect();
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
fn rank(pod: &Backend) -> (bool, Phase, bool, Reverse<Timestamp>, String) {
    let created = pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
    (!pod.node.is_empty(), pod.phase, pod.ready, Reverse(created), pod.name().to_owned())
}

fn status(set: &ReplicaSet, alive: &[&Backend], now: Timestamp) -> ReplicaSetStatus {
    let delay = set.spec.min_ready_seconds.unwrap_or(0);
    let template = set.spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    let labels = template.and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    let has_all_labels = |pod: &Backend| {
        let own = pod.metadata.labels.as_ref();
        labels.iter().all(|(key, value)| own.and_then(|own| own.get(key)) == Some(value))
    };
    let count = |test: &dyn Fn(&Backend) -> bool| {
        i32::try_from(alive.iter().filter(|pod| test(pod)).count()).unwrap_or(i32::MAX)
    };
    let some = |number: i32| Some(number).filter(|&number| number > 0);
    ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: some(count(&has_all_labels)),
        ready_replicas: some(count(&|pod| pod.ready)),
        available_replicas: some(count(&|pod| pod.is_available(delay, now))),
        observed_generation: set.metadata.generation,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSetSpec;
    use serde_json::json;

    /// `a@3=ready`: the pod named a, created at second 3; states are ready, running, pending,
    /// failed, and lost (not on any node).
    fn pods(text: &str) -> Vec<Backend> {
        let read = |word: &str| {
            let (name, rest) = word.split_once('@').unwrap();
            let (created, state) = rest.split_once('=').unwrap();
            let created = Timestamp::from_second(created.parse().unwrap()).unwrap();
            let mut pod = Backend {
                node: if state == "lost" { "" } else { "node" }.into(),
                phase: match state {
                    "failed" => Phase::Finished,
                    "pending" | "lost" => Phase::Pending,
                    _ => Phase::Running,
                },
                ready: state == "ready",
                ..Default::default()
            };
            pod.metadata.name = Some(name.into());
            pod.metadata.creation_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(created));
            pod
        };
        text.split_whitespace().map(read).collect()
    }

    #[test]
    fn who_belongs_to_a_set() {
        let set: ReplicaSet =
            serde_json::from_value(json!({"metadata": {"name": "s", "uid": "me"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}}}))
            .unwrap();
        let pod = |name: &str, app: &str, owner: Option<&str>, phase| {
            let mut pod = Backend { phase, ..Default::default() };
            pod.metadata.name = Some(name.into());
            pod.metadata.labels = Some([("app".to_owned(), app.to_owned())].into());
            pod.metadata.owner_references = owner.map(|uid| {
                let mut owner = owner::controlled_by(&set);
                owner.uid = uid.into();
                vec![owner]
            });
            pod
        };
        let pods = [
            pod("own", "x", Some("me"), Phase::Running),
            pod("strayed", "y", Some("me"), Phase::Running),
            pod("orphan", "x", None, Phase::Running),
            pod("dead-orphan", "x", None, Phase::Finished),
            pod("another's", "x", Some("other"), Phase::Running),
            pod("stranger", "y", None, Phase::Running),
        ];
        let claim = claim(&set, pods.iter());
        let names =
            |pods: &[&Backend]| pods.iter().map(|p| p.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&claim.own), ["own"]);
        assert_eq!(names(&claim.adopt), ["orphan"]);
        assert_eq!(names(&claim.release), ["strayed"]);
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
