//! The pods of an object that controls some: whose they are, how they are made, who goes first.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::{Metadata, Resource};
use roadstead_api::selector::Selector;

use crate::owner;
use crate::pod_view::{Phase, PodView};

/// A pod as its controller keeps it: whole, or what matters of it.
pub trait ControlledPod: Resource + Metadata<Ty = ObjectMeta> {
    /// Whether two states of one pod differ in anything that is kept.
    fn differs_from(&self, before: &Self) -> bool;
    /// Whether somebody may take it, as long as it belongs to nobody.
    fn is_of_use(&self) -> bool;
}

impl ControlledPod for PodView {
    fn differs_from(&self, before: &Self) -> bool {
        PodView::differs_from(self, before)
    }

    fn is_of_use(&self) -> bool {
        !self.is_finished()
    }
}

/// Of whole pods it matters how they ended.
impl ControlledPod for Pod {
    fn differs_from(&self, before: &Self) -> bool {
        self != before
    }

    fn is_of_use(&self) -> bool {
        true
    }
}

/// Which pods belong to an owner.
#[derive(Debug)]
pub struct Claim<'a, P = PodView> {
    /// It controls these.
    pub own: Vec<&'a P>,
    /// These match and belong to nobody: it takes them.
    pub adopt: Vec<&'a P>,
    /// It controls these, but they no longer match: it lets them go.
    pub release: Vec<&'a P>,
}

/// Sorts pods by whether an owner that selects so controls them or should.
pub fn claim<'a, P: ControlledPod>(
    owner: &ObjectMeta,
    selector: &LabelSelector,
    pods: Vec<&'a P>,
) -> Claim<'a, P> {
    let selector = Selector::from_object(selector);
    let mut claim = Claim { own: Vec::new(), adopt: Vec::new(), release: Vec::new() };
    for pod in pods {
        let metadata = pod.metadata();
        let matches = !selector.is_empty() && selector.matches_labels(metadata.labels.as_ref());
        if owner::is_controlled_by(metadata, owner) {
            if matches { &mut claim.own } else { &mut claim.release }.push(pod);
        } else if matches && is_free(owner, pod) {
            claim.adopt.push(pod);
        }
    }
    claim
}

fn is_free<P: ControlledPod>(owner: &ObjectMeta, pod: &P) -> bool {
    owner::controller_of(pod.metadata()).is_none()
        && owner.deletion_timestamp.is_none()
        && pod.metadata().deletion_timestamp.is_none()
        && pod.is_of_use()
}

/// The pod that an owner's template describes.
pub(crate) fn from_template<K>(owner: &K, template: Option<&PodTemplateSpec>) -> Pod
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    let template = template.cloned().unwrap_or_default();
    let metadata = template.metadata.unwrap_or_default();
    let own = owner.metadata();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", own.name.as_deref().unwrap_or(""))),
            namespace: own.namespace.clone(),
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: Some(vec![owner::controlled_by(owner)]),
            ..Default::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// So many pods that can go: those that do the least, then the youngest.
pub(crate) fn least_useful(mut pods: Vec<&PodView>, count: usize) -> Vec<&PodView> {
    pods.sort_by_cached_key(|pod| rank(pod));
    pods.truncate(count);
    pods
}

fn rank(pod: &PodView) -> (bool, Phase, bool, Reverse<Timestamp>, String) {
    let created = pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
    (!pod.node.is_empty(), pod.phase, pod.ready, Reverse(created), pod.name().to_owned())
}

/// A number of pods, or a percentage of all of them.
pub(crate) fn scaled(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    let percent = match value {
        IntOrString::Int(number) => return (*number).max(0),
        IntOrString::String(text) => text.trim_end_matches('%').parse().unwrap_or(25),
    };
    let hundredths = i64::from(total) * i64::from(percent);
    let up = i64::from(round_up && hundredths % 100 != 0);
    i32::try_from(hundredths.div_euclid(100) + up).unwrap_or(i32::MAX).max(0)
}

/// How many there are, as a status says it: nothing, if there are none.
pub(crate) fn some(number: usize) -> Option<i32> {
    Some(count(number)).filter(|&number| number > 0)
}

/// How many there are.
pub(crate) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use serde_json::json;

    use super::*;

    #[test]
    fn who_belongs_to_a_set() {
        let set: ReplicaSet =
            serde_json::from_value(json!({"metadata": {"name": "s", "uid": "me"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}}}))
            .unwrap();
        let pod = |name: &str, app: &str, owner: Option<&str>, phase| {
            let mut pod = PodView { phase, ..Default::default() };
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
            pod("dead-orphan", "x", None, Phase::Failed),
            pod("another's", "x", Some("other"), Phase::Running),
            pod("stranger", "y", None, Phase::Running),
        ];
        let claim = claim(&set.metadata, &set.spec.selector, pods.iter().collect());
        let names =
            |pods: &[&PodView]| pods.iter().map(|p| p.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&claim.own), ["own"]);
        assert_eq!(names(&claim.adopt), ["orphan"]);
        assert_eq!(names(&claim.release), ["strayed"]);
    }
}
