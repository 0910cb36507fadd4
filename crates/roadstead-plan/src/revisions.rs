//! The versions of a template that a StatefulSet or DaemonSet has had, as ControllerRevisions.
//!
//! A version is one by what its template says, whoever wrote it down: its name and the order of its
//! fields do not matter. So a cluster whose history upstream's controllers wrote is taken over as it is.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::{Metadata, Resource};
use roadstead_typed::Typed;
use serde_json::{Value, json};

use crate::deployment::template_hash;
use crate::owner;

/// The label of a version that tells its template apart from others.
pub(crate) const HASH: &str = "controller.kubernetes.io/hash";
/// The label of a pod that says which version it is of.
pub(crate) const POD_REVISION: &str = "controller-revision-hash";

/// What is to be done about the versions of an object.
#[derive(Debug, Default, PartialEq)]
pub struct RevisionPlan {
    /// The version of the present template, if it was never written down.
    pub create: Option<ControllerRevision>,
    /// The same, if it was, but not as the newest one.
    pub renumber: Option<ControllerRevision>,
    /// Old ones that nobody will go back to.
    pub delete: Vec<ControllerRevision>,
}

/// The versions of an object: those that there are, and the one of its present template.
#[derive(Debug)]
pub(crate) struct Revisions {
    /// From the oldest to the newest, the present one included.
    pub all: Vec<ControllerRevision>,
    /// The version of the present template.
    pub newest: ControllerRevision,
    /// How often a hash stood for two templates.
    pub collisions: i32,
    pub plan: RevisionPlan,
}

/// Finds the version of a template among those of its owner, or makes it.
pub(crate) fn find<K>(
    owner: &K,
    template: &PodTemplateSpec,
    known: &[&ControllerRevision],
    mut collisions: i32,
) -> Revisions
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    let mut all: Vec<_> = known.iter().map(|revision| (*revision).clone()).collect();
    all.sort_by_key(|revision| (number(revision), name(revision).to_owned()));
    let next = all.last().map_or(1, |last| number(last).saturating_add(1));
    let same = all.iter().rposition(|revision| template_of(revision).as_ref() == Some(template));
    let mut plan = RevisionPlan::default();
    let newest = match same {
        Some(index) if index + 1 == all.len() => all[index].clone(),
        Some(index) => {
            let mut again = all.remove(index);
            again.revision = Some(next);
            plan.renumber = Some(again.clone());
            again
        }
        None => {
            let taken: BTreeSet<_> = all.iter().map(|own| name(own).to_owned()).collect();
            let mut new = make(owner, template, next, collisions);
            while taken.contains(name(&new)) {
                collisions += 1;
                new = make(owner, template, next, collisions);
            }
            plan.create = Some(new.clone());
            new
        }
    };
    if plan != RevisionPlan::default() {
        all.push(newest.clone());
    }
    Revisions { all, newest, collisions, plan }
}

impl Revisions {
    /// The template of a version, by its name or hash; the present one if nobody knows it any more.
    pub(crate) fn template(&self, label: &str) -> Option<PodTemplateSpec> {
        let known = self.all.iter().find(|own| name(own) == label || hash_of(own) == label);
        template_of(known.unwrap_or(&self.newest))
    }

    /// Old versions beyond the limit that are of no pod.
    pub(crate) fn forget(&mut self, limit: Option<i32>, in_use: &BTreeSet<&str>) {
        let limit = usize::try_from(limit.unwrap_or(10)).unwrap_or(0);
        let newest = name(&self.newest);
        let idle = self.all.iter().filter(|own| {
            name(own) != newest && !in_use.contains(name(own)) && !in_use.contains(hash_of(own))
        });
        let idle: Vec<_> = idle.cloned().collect();
        let surplus = idle.len().saturating_sub(limit);
        self.plan.delete = idle.into_iter().take(surplus).collect();
    }
}

/// The template that a version stands for.
fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.0.get("spec")?.get("template")?.clone();
    template.as_object_mut()?.remove("$patch");
    PodTemplateSpec::from_value(&template).ok()
}

fn make<K>(
    owner: &K,
    template: &PodTemplateSpec,
    number: i64,
    collisions: i32,
) -> ControllerRevision
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    let own = owner.metadata();
    let hash = template_hash(template, collisions);
    let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
    let mut labels = labels.unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.clone());
    let mut data = template.to_value().unwrap_or_default();
    // Who goes back to it patches the object with this: nothing of the present template stays.
    data["$patch"] = Value::from("replace");
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", own.name.as_deref().unwrap_or(""))),
            namespace: own.namespace.clone(),
            labels: Some(labels),
            annotations: own.annotations.clone(),
            owner_references: Some(vec![owner::controlled_by(owner)]),
            ..ObjectMeta::default()
        },
        data: RawExtension(json!({"spec": {"template": data}})),
        revision: Some(number),
    }
}

pub(crate) fn name(revision: &ControllerRevision) -> &str {
    revision.metadata.name.as_deref().unwrap_or("")
}

fn number(revision: &ControllerRevision) -> i64 {
    revision.revision.unwrap_or(0)
}

/// What the pods of a DaemonSet are labelled with.
pub(crate) fn hash_of(revision: &ControllerRevision) -> &str {
    let labels = revision.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(HASH)).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::StatefulSet;

    fn template(image: &str) -> PodTemplateSpec {
        serde_json::from_value(json!({"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": image}]}}))
        .unwrap()
    }

    fn set() -> StatefulSet {
        serde_json::from_value(json!({"metadata": {"name": "web", "uid": "u"},
            "spec": {"selector": {}, "serviceName": "web", "template": {}}}))
        .unwrap()
    }

    #[test]
    fn every_template_is_written_down_once() {
        let mut known: Vec<ControllerRevision> = Vec::new();
        let cases = [("v1", "1"), ("v1", "1"), ("v2", "1 2"), ("v1", "2 3"), ("v3", "2 3 4")];
        for (image, want) in cases {
            let found = find(&set(), &template(image), &known.iter().collect::<Vec<_>>(), 0);
            assert_eq!(found.template(name(&found.newest)), Some(template(image)));
            known = found.all;
            let numbers: Vec<_> = known.iter().map(|own| number(own).to_string()).collect();
            assert_eq!(numbers.join(" "), want, "{image}");
        }
    }

    #[test]
    fn a_hash_that_stands_for_two_templates_is_another_one() {
        let first = find(&set(), &template("v1"), &[], 0).newest;
        let mut other = first.clone();
        other.data = RawExtension(json!({"spec": {"template": {"spec": {"containers": []}}}}));
        let found = find(&set(), &template("v1"), &[&other], 0);
        assert_eq!(found.collisions, 1);
        assert_ne!(name(&found.newest), name(&other));
    }

    #[test]
    fn history_is_limited_and_pods_keep_theirs() {
        let mut known: Vec<ControllerRevision> = Vec::new();
        for image in ["v1", "v2", "v3", "v4"] {
            known = find(&set(), &template(image), &known.iter().collect::<Vec<_>>(), 0).all;
        }
        let mut found = find(&set(), &template("v4"), &known.iter().collect::<Vec<_>>(), 0);
        let first = name(&found.all[0]).to_owned();
        found.forget(Some(1), &[first.as_str()].into());
        let gone: Vec<_> = found.plan.delete.iter().map(number).collect();
        assert_eq!(gone, [2], "1 is in use, 3 is within the limit, 4 is the present one");
    }
}
