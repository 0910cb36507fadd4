//! The ReplicaSets of a Deployment: one for each version of its template, and how pods move from
//! the old ones to the new one.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::owner;

mod claim;
mod rollout;
mod scaling;
mod status;

pub use claim::{SetClaim, claim};

/// The label that tells apart the pods of different versions.
pub const HASH: &str = "pod-template-hash";
/// The annotation that numbers the versions.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// What kubectl notes for itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// So many earlier numbers of a version are kept.
const EARLIER: usize = 100;

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
    /// When to look again even if nothing happens.
    pub again_after: Option<Duration>,
    /// What to tell: reason and message.
    pub notes: Vec<(&'static str, String)>,
}

/// Plans the ReplicaSets of a Deployment, given those that it controls, and who has a name already.
pub fn plan(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    is_taken: &dyn Fn(&str) -> bool,
    now: Timestamp,
) -> DeploymentPlan {
    let spec = &deployment.spec;
    let mut sets: Vec<_> = sets.iter().map(|set| (*set).clone()).collect();
    sets.sort_by_key(|set| (created(set), name(&set.metadata).to_owned()));
    let current = sets.iter().position(|set| is_of(set, &spec.template));
    let mut plan = DeploymentPlan::default();
    let look = status::Look { deployment, sets: &sets, current, now };
    (plan.status, plan.again_after) = look.status();
    if deployment.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let paused = spec.paused == Some(true);
    let newest = sets.iter().map(revision).max().unwrap_or(0);
    match current {
        None if paused => {
            let mut wanted = sets.clone();
            rollout::resize_paused(spec, &mut wanted);
            compare(&sets, wanted, &mut plan);
        }
        None => {
            let mut set = new_set(deployment, spec, newest.saturating_add(1));
            if is_taken(name(&set.metadata)) {
                // By a set of another version, or of somebody else: the next name is another one.
                let collisions = plan.status.collision_count.unwrap_or(0);
                plan.status.collision_count = Some(collisions.saturating_add(1));
                plan.again_after = Some(Duration::ZERO);
                return plan;
            }
            rollout::size_new(spec, &sets, &mut set);
            look.created(name(&set.metadata), &mut plan.status);
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
            let number = revision(&sets[index]).max(highest.saturating_add(1));
            follow(deployment, &mut wanted[index], number);
            plan.revision = Some(number.to_string());
            rollout::resize(spec, &mut wanted, index, paused);
            compare(&sets, wanted, &mut plan);
            let old = sets.iter().enumerate().filter(|(other, _)| *other != index);
            plan.delete = forgotten(spec, old.map(|(_, set)| set).collect());
        }
    }
    plan
}

/// What is to be written, and told, to bring sets from one state to another.
fn compare(sets: &[ReplicaSet], wanted: Vec<ReplicaSet>, plan: &mut DeploymentPlan) {
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
}

/// Old versions beyond the limit of history, once nothing runs in them.
fn forgotten(spec: &DeploymentSpec, mut old: Vec<&ReplicaSet>) -> Vec<ReplicaSet> {
    let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
    old.sort_by_key(|set| revision(set));
    let surplus = old.len().saturating_sub(limit);
    let idle = |set: &&&ReplicaSet| {
        let status = set.status.as_ref();
        let leaving = status.and_then(|status| status.terminating_replicas).unwrap_or(0);
        let running = status.map_or(0, |status| status.replicas) + leaving;
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
    let mut annotations: BTreeMap<_, _> = copied(deployment).collect();
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

/// The annotations that a Deployment has in common with its newest version: what people note there
/// is shown by `kubectl rollout history`.
fn copied(deployment: &Deployment) -> impl Iterator<Item = (String, String)> {
    let all = deployment.metadata.annotations.iter().flatten();
    let notes = all
        .filter(|(key, _)| *key != LAST_APPLIED && !key.starts_with("deployment.kubernetes.io/"));
    notes.map(|(key, value)| (key.clone(), value.clone()))
}

/// What the set of the present version has from its Deployment besides the template.
fn follow(deployment: &Deployment, set: &mut ReplicaSet, number: u64) {
    set.spec.min_ready_seconds = deployment.spec.min_ready_seconds;
    let before = revision(set);
    copied(deployment).for_each(|(key, value)| annotate(set, &key, &value));
    annotate(set, REVISION, &number.to_string());
    if before != 0 && before < number {
        let earlier = set.metadata.annotations.as_ref().and_then(|all| all.get(HISTORY));
        let earlier = earlier.map(String::as_str).unwrap_or_default();
        let mut all: Vec<_> = earlier.split(',').filter(|word| !word.is_empty()).collect();
        let before = before.to_string();
        all.push(&before);
        let text = all[all.len().saturating_sub(EARLIER)..].join(",");
        annotate(set, HISTORY, &text);
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
pub(crate) fn template_hash(template: &PodTemplateSpec, collisions: i32) -> String {
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
