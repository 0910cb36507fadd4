//! The ReplicaSets of a Deployment: one for each version of its template, and how pods move from
//! the old ones to the new one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::owner;

mod rollout;
mod status;

/// The label that tells apart the pods of different versions.
pub const HASH: &str = "pod-template-hash";
/// The annotation that numbers the versions.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";

/// The writes that bring a Deployment closer to what it says.
#[derive(Debug, Default, PartialEq)]
pub struct DeploymentPlan {
    /// The ReplicaSet of the present template, if it does not exist.
    pub create: Option<ReplicaSet>,
    /// ReplicaSets with another number of replicas or other annotations.
    pub update: Vec<ReplicaSet>,
    /// Old ReplicaSets that nobody will go back to.
    pub delete: Vec<ReplicaSet>,
    /// The number of the present version, for the Deployment's own annotation.
    pub revision: Option<String>,
    /// What is true now, before these writes.
    pub status: DeploymentStatus,
    /// What to tell: reason and message.
    pub notes: Vec<(&'static str, String)>,
}

/// Plans the ReplicaSets of a Deployment, given those that it controls.
pub fn plan(deployment: &Deployment, sets: &[&ReplicaSet], now: Timestamp) -> DeploymentPlan {
    let spec = &deployment.spec;
    let mut sets: Vec<_> = sets.iter().map(|set| (*set).clone()).collect();
    sets.sort_by_key(|set| (created(set), name(&set.metadata).to_owned()));
    let current = sets.iter().position(|set| is_of(set, &spec.template));
    let mut plan = DeploymentPlan {
        status: status::status(deployment, spec, &sets, current, now),
        ..DeploymentPlan::default()
    };
    if deployment.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let paused = spec.paused == Some(true);
    let newest = sets.iter().map(revision).max().unwrap_or(0);
    match current {
        None if paused => {}
        None => {
            let mut set = new_set(deployment, spec, newest + 1);
            rollout::size_new(spec, &sets, &mut set);
            let (up, size) = (name(&set.metadata).to_owned(), replicas(&set));
            plan.notes.push((
                "ScalingReplicaSet",
                format!("Scaled up replica set {up} from 0 to {size}"),
            ));
            plan.revision =
                set.metadata.annotations.as_ref().and_then(|a| a.get(REVISION)).cloned();
            plan.create = Some(set);
        }
        Some(index) => {
            let mut wanted = sets.clone();
            // The newest version has the highest number, also after going back to an old one.
            let others = sets.iter().enumerate().filter(|(other, _)| *other != index);
            let highest = others.map(|(_, set)| revision(set)).max().unwrap_or(0);
            let number = revision(&sets[index]).max(highest + 1);
            annotate(&mut wanted[index], REVISION, &number.to_string());
            plan.revision = Some(number.to_string());
            rollout::resize(spec, &mut wanted, index, paused);
            for (old, new) in sets.iter().zip(wanted) {
                let (was, is) = (replicas(old), replicas(&new));
                if was != is {
                    let way = if is > was { "up" } else { "down" };
                    let name = name(&new.metadata);
                    let text = format!("Scaled {way} replica set {name} from {was} to {is}");
                    plan.notes.push(("ScalingReplicaSet", text));
                }
                if *old != new {
                    plan.update.push(new);
                }
            }
            let old = sets.iter().enumerate().filter(|(other, _)| *other != index);
            plan.delete = forgotten(spec, old.map(|(_, set)| set).collect());
        }
    }
    plan
}

/// Old versions beyond the limit of history, once nothing runs in them.
fn forgotten(spec: &DeploymentSpec, mut old: Vec<&ReplicaSet>) -> Vec<ReplicaSet> {
    let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
    old.sort_by_key(|set| revision(set));
    let surplus = old.len().saturating_sub(limit);
    let idle = |set: &&&ReplicaSet| {
        let running = set.status.as_ref().map_or(0, |status| status.replicas);
        running == 0 && replicas(set) == 0 && set.metadata.deletion_timestamp.is_none()
    };
    old.iter().take(surplus).filter(idle).map(|set| (*set).clone()).collect()
}

fn new_set(deployment: &Deployment, spec: &DeploymentSpec, revision: u64) -> ReplicaSet {
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = template_hash(&spec.template, collisions.unwrap_or(0));
    let mut template = spec.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(HASH.to_owned(), hash.clone());
    let mut annotations = deployment.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| {
        key != "kubectl.kubernetes.io/last-applied-configuration"
            && !key.starts_with("deployment.kubernetes.io/")
    });
    annotations.insert(REVISION.to_owned(), revision.to_string());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", name(&deployment.metadata))),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner::controlled_by(deployment)]),
            ..Default::default()
        },
        spec: ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        },
        status: None,
    }
}

/// Whether a ReplicaSet runs this template; the label that we add does not count.
fn is_of(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let Some(own) = &set.spec.template else { return false };
    let mut own = own.clone();
    let labels = own.metadata.as_mut().and_then(|metadata| metadata.labels.as_mut());
    labels.map(|labels| labels.remove(HASH));
    own == *template
}

/// Ten letters that stand for a template.
fn template_hash(template: &PodTemplateSpec, collisions: i32) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = serde_json::to_string(template).unwrap_or_default();
    // FNV-1a: stable between versions of the program, which the standard hasher is not.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ collisions.unsigned_abs() as u64;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let letters = (0..10).map(|_| {
        let letter = LETTERS[(hash % LETTERS.len() as u64) as usize];
        hash /= LETTERS.len() as u64;
        char::from(letter)
    });
    letters.collect()
}

fn annotate(set: &mut ReplicaSet, key: &str, value: &str) {
    set.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

fn revision(set: &ReplicaSet) -> u64 {
    let annotations: Option<&BTreeMap<_, _>> = set.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get(REVISION)).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

fn created(set: &ReplicaSet) -> Option<Timestamp> {
    set.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or("")
}

#[cfg(test)]
mod tests;
