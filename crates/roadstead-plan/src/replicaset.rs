//! The pods of a ReplicaSet, and of its elder sister, the ReplicationController: as many as it says.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    Pod, PodTemplateSpec, ReplicationController, ReplicationControllerCondition,
    ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use k8s_openapi::{Metadata, Resource};

use crate::pod_view::PodView;
use crate::pods::{count, from_template, least_useful, some};

/// How many pods one plan creates or deletes at most.
const BURST: usize = 500;
/// The condition of those whose pods cannot be made.
pub(crate) const FAILURE: &str = "ReplicaFailure";

/// An object that keeps a number of pods that are alike.
pub trait Replicas: Resource + Metadata<Ty = ObjectMeta> + Clone {
    /// How many it asks for.
    fn wanted(&self) -> i32;
    /// How long a pod must be ready to be available.
    fn min_ready_seconds(&self) -> i32;
    /// What they are like.
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// Which pods are its own.
    fn selector(&self) -> LabelSelector;
    /// The object with this status; nothing, if that is what it says already.
    fn reporting(&self, counts: &Counts, failure: Option<&str>, now: Timestamp) -> Option<Self>;
}

/// How many pods there are, of each sort.
#[derive(Debug, Default, PartialEq)]
pub struct Counts {
    alive: usize,
    fully_labelled: usize,
    /// Those that their probes call ready.
    pub ready: usize,
    /// Those that have been ready for long enough.
    pub available: usize,
    terminating: usize,
}

/// The writes that make the number of pods right, and what to report.
#[derive(Debug)]
pub struct ReplicaSetPlan<'a> {
    /// Pods to create.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<&'a PodView>,
    /// What is true now, before these writes.
    pub counts: Counts,
}

/// Plans the pods of a ReplicaSet or its like, given the pods that it controls.
pub fn plan<'a, K: Replicas>(set: &K, pods: &[&'a PodView], now: Timestamp) -> ReplicaSetPlan<'a> {
    let alive: Vec<&'a PodView> =
        pods.iter().copied().filter(|p| !p.is_terminating() && !p.is_finished()).collect();
    let leaving = pods.iter().filter(|pod| pod.is_terminating() && !pod.is_finished());
    let wanted = usize::try_from(set.wanted()).unwrap_or(0);
    let counts = Counts { terminating: leaving.count(), ..counts(set, &alive, now) };
    let mut plan = ReplicaSetPlan { create: Vec::new(), delete: Vec::new(), counts };
    if set.metadata().deletion_timestamp.is_some() {
        return plan;
    }
    if alive.len() < wanted {
        plan.create = vec![from_template(set, set.template()); (wanted - alive.len()).min(BURST)];
    } else if alive.len() > wanted {
        let surplus = (alive.len() - wanted).min(BURST);
        plan.delete = least_useful(alive, surplus);
    }
    plan
}

fn counts<K: Replicas>(set: &K, alive: &[&PodView], now: Timestamp) -> Counts {
    let delay = set.min_ready_seconds();
    let template = set.template().and_then(|template| template.metadata.as_ref());
    let labels = template.and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    let has_all_labels = |pod: &PodView| {
        let own = pod.metadata.labels.as_ref();
        labels.iter().all(|(key, value)| own.and_then(|own| own.get(key)) == Some(value))
    };
    let number = |test: &dyn Fn(&PodView) -> bool| alive.iter().filter(|pod| test(pod)).count();
    Counts {
        alive: alive.len(),
        fully_labelled: number(&has_all_labels),
        ready: number(&|pod| pod.ready),
        available: number(&|pod| pod.is_available(delay, now)),
        terminating: 0,
    }
}

/// Since when it is as it is: what was said before stays, if it says the same.
fn since(old: Option<&Time>, now: Timestamp) -> Time {
    let second = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    old.cloned().unwrap_or(second)
}

/// The two kinds have the same fields, under types of their own.
macro_rules! status {
    ($status:ident, $condition:ident, $old:expr, $counts:expr, $failure:expr, $now:expr) => {{
        let (old, counts): (Option<&$status>, &Counts) = ($old, $counts);
        let before = old.and_then(|old| old.conditions.as_ref()).into_iter().flatten();
        // One of the two has its fields in options.
        let blank = $condition {
            type_: FAILURE.to_owned().into(),
            status: "True".to_owned().into(),
            reason: Some("FailedCreate".to_owned()),
            ..Default::default()
        };
        let (same, others): (Vec<_>, Vec<_>) = before.partition(|own| own.type_ == blank.type_);
        let known = same.first().and_then(|own| own.last_transition_time.as_ref());
        let failed = $failure.map(|message: &str| $condition {
            message: Some(message.to_owned()),
            last_transition_time: Some(since(known, $now)),
            ..blank
        });
        let conditions: Vec<_> = others.into_iter().cloned().chain(failed).collect();
        $status {
            replicas: count(counts.alive),
            fully_labeled_replicas: some(counts.fully_labelled),
            ready_replicas: some(counts.ready),
            available_replicas: some(counts.available),
            conditions: Some(conditions).filter(|conditions| !conditions.is_empty()),
            ..Default::default()
        }
    }};
}

impl Replicas for ReplicaSet {
    fn wanted(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.template.as_ref()
    }

    fn selector(&self) -> LabelSelector {
        self.spec.selector.clone()
    }

    fn reporting(&self, counts: &Counts, failure: Option<&str>, now: Timestamp) -> Option<Self> {
        let old = self.status.as_ref();
        let status = status!(ReplicaSetStatus, ReplicaSetCondition, old, counts, failure, now);
        let status = ReplicaSetStatus {
            terminating_replicas: some(counts.terminating),
            observed_generation: self.metadata.generation,
            ..status
        };
        let differs = old != Some(&status);
        differs.then(|| Self { status: Some(status), ..self.clone() })
    }
}

impl Replicas for ReplicationController {
    fn wanted(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn selector(&self) -> LabelSelector {
        let match_labels = self.spec.as_ref().and_then(|spec| spec.selector.clone());
        LabelSelector { match_labels, match_expressions: None }
    }

    fn reporting(&self, counts: &Counts, failure: Option<&str>, now: Timestamp) -> Option<Self> {
        type Condition = ReplicationControllerCondition;
        let old = self.status.as_ref();
        let status = status!(ReplicationControllerStatus, Condition, old, counts, failure, now);
        let observed_generation = self.metadata.generation;
        let status = ReplicationControllerStatus { observed_generation, ..status };
        let differs = old != Some(&status);
        differs.then(|| Self { status: Some(status), ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_view::Phase;
    use k8s_openapi::api::apps::v1::ReplicaSetSpec;
    use k8s_openapi::api::core::v1::ReplicationControllerSpec;
    use proptest::prelude::*;

    /// `a@3=ready`: the pod named a, created at second 3; states are ready, running, pending,
    /// failed, and lost (not on any node).
    fn pods(text: &str) -> Vec<PodView> {
        let read = |word: &str| {
            let (name, rest) = word.split_once('@').unwrap();
            let (created, state) = rest.split_once('=').unwrap();
            let created = Timestamp::from_second(created.parse().unwrap()).unwrap();
            let mut pod = PodView {
                node: if state == "lost" { "" } else { "node" }.into(),
                phase: match state {
                    "failed" => Phase::Failed,
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

    #[test]
    fn what_is_reported() {
        let mut set = ReplicaSet::default();
        set.metadata.generation = Some(4);
        let mut all = pods("a@1=ready b@2=running c@3=failed d@4=running");
        all[3].metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let now = Timestamp::UNIX_EPOCH;
        let counts = plan(&set, &all.iter().collect::<Vec<_>>(), now).counts;
        let set = set.reporting(&counts, Some("no more"), now).unwrap();
        let status = set.status.clone().unwrap();
        assert_eq!((status.replicas, status.ready_replicas), (2, Some(1)));
        assert_eq!((status.terminating_replicas, status.observed_generation), (Some(1), Some(4)));
        let told = &status.conditions.unwrap()[0];
        assert_eq!(
            (told.type_.as_deref(), told.message.as_deref()),
            (Some(FAILURE), Some("no more"))
        );
        let later = Timestamp::from_second(60).unwrap();
        assert_eq!(set.reporting(&counts, Some("no more"), later), None, "it says that already");
        let well = set.reporting(&counts, None, later).unwrap();
        assert_eq!(well.status.unwrap().conditions, None);
    }

    proptest! {
        /// Whatever happens to the pods, there are as many as asked for after one plan, none is made or
        /// taken away in vain, and then nothing is left to do; for either kind.
        #[test]
        fn the_number_is_right_at_once(
            wanted in 0i32..8,
            states in proptest::collection::vec((0usize..5, any::<bool>()), 0..12),
        ) {
            let words = ["ready", "running", "pending", "failed", "lost"];
            let named = states.iter().enumerate().map(|(i, (state, _))| format!("p{i}@1={}", words[*state]));
            let mut all = pods(&named.collect::<Vec<_>>().join(" "));
            for (pod, (_, leaving)) in all.iter_mut().zip(&states) {
                let time = leaving.then_some(Time(Timestamp::UNIX_EPOCH));
                pod.metadata.deletion_timestamp = time;
            }
            let spec = ReplicationControllerSpec { replicas: Some(wanted), ..Default::default() };
            let own = ReplicationController { spec: Some(spec), ..Default::default() };
            let now = Timestamp::UNIX_EPOCH;
            let first = plan(&own, &all.iter().collect::<Vec<_>>(), now);
            let usable = |pod: &&PodView| !pod.is_terminating() && !pod.is_finished();
            let alive = all.iter().filter(usable).count();
            prop_assert_eq!(alive + first.create.len() - first.delete.len(), wanted as usize);
            prop_assert!(first.create.is_empty() || first.delete.is_empty());
            let gone: Vec<_> = first.delete.iter().map(|pod| pod.name().to_owned()).collect();
            let made = pods(&vec!["n@2=pending"; first.create.len()].join(" "));
            all.retain(|pod| !gone.contains(&pod.name().to_owned()));
            all.extend(made);
            let second = plan(&own, &all.iter().collect::<Vec<_>>(), now);
            prop_assert!(second.create.is_empty() && second.delete.is_empty());
        }
    }
}
