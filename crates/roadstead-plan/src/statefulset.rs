//! The pods of a StatefulSet: one for each ordinal, each with its name and its claims, made and
//! replaced in order.
//!
//! As upstream's `stateful_set_control.go`, with one difference: an update takes down no more pods that
//! work than `maxUnavailable` says, whether pods are managed in order or in parallel.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::pod_view::PodView;
use crate::pods::scaled;
use crate::revisions::{self, POD_REVISION, RevisionPlan, Revisions};

mod claims;
mod pod;
mod status;

pub use pod::ordinal;

/// What a StatefulSet controls.
#[derive(Debug, Default)]
pub struct Belongings<'a> {
    /// Its pods, those that have a name of it.
    pub pods: Vec<&'a PodView>,
    /// The claims of its namespace.
    pub claims: Vec<&'a PersistentVolumeClaim>,
    /// The versions of its template.
    pub revisions: Vec<&'a ControllerRevision>,
}

/// The writes that bring a StatefulSet closer to what it says.
#[derive(Debug, Default)]
pub struct StatefulSetPlan<'a> {
    /// Versions of the template.
    pub revisions: RevisionPlan,
    /// Claims to make, before the pods.
    pub claims: Vec<PersistentVolumeClaim>,
    /// Claims that are to belong to others than they do, so that they go with them, or stay.
    pub owners: Vec<(&'a PersistentVolumeClaim, Vec<OwnerReference>)>,
    /// Pods to make.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<&'a PodView>,
    /// What is true now, before these writes.
    pub status: StatefulSetStatus,
}

/// Plans the pods and claims of a StatefulSet.
pub fn plan<'a>(set: &StatefulSet, has: &Belongings<'a>, now: Timestamp) -> StatefulSetPlan<'a> {
    let collisions = set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let mut revisions = revisions::find(set, &set.spec.template, &has.revisions, collisions);
    let status = status::status(set, &has.pods, &revisions, now);
    let mut plan = StatefulSetPlan { status, ..StatefulSetPlan::default() };
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut in_use: BTreeSet<_> = has.pods.iter().map(|pod| revision(pod)).collect();
    in_use.extend(plan.status.current_revision.as_deref());
    revisions.forget(set.spec.revision_history_limit, &in_use);
    let round = Round::new(set, has, &revisions, now);
    round.pods(&mut plan);
    plan.revisions = revisions.plan;
    plan
}

/// One look at a StatefulSet.
struct Round<'a, 'b> {
    set: &'b StatefulSet,
    has: &'b Belongings<'a>,
    revisions: &'b Revisions,
    now: Timestamp,
    start: i32,
    /// The pods that there should be, from the first; those that there are.
    slots: Vec<Option<&'a PodView>>,
    /// Those that there should not be, the last first.
    surplus: Vec<&'a PodView>,
}

impl<'a, 'b> Round<'a, 'b> {
    fn new(
        set: &'b StatefulSet,
        has: &'b Belongings<'a>,
        revisions: &'b Revisions,
        now: Timestamp,
    ) -> Self {
        let start = pod::start(set);
        let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
        let mut slots = vec![None; wanted];
        let mut surplus = Vec::new();
        for pod in &has.pods {
            let Some(ordinal) = ordinal(set, pod.name()) else { continue };
            let slot = usize::try_from(i64::from(ordinal) - i64::from(start)).ok();
            match slot.and_then(|slot| slots.get_mut(slot)) {
                Some(slot) => *slot = Some(*pod),
                None => surplus.push((ordinal, *pod)),
            }
        }
        surplus.sort_by_key(|(ordinal, _)| -ordinal);
        let surplus = surplus.into_iter().map(|(_, pod)| pod).collect();
        Self { set, has, revisions, now, start, slots, surplus }
    }

    fn pods(&self, plan: &mut StatefulSetPlan<'a>) {
        self.keep_claims(plan);
        if self.fill(plan) || self.shrink(plan) {
            return;
        }
        self.update(plan);
    }

    /// Makes what is missing, one after the other if that is wanted. True if the rest has to wait.
    fn fill(&self, plan: &mut StatefulSetPlan<'a>) -> bool {
        let ordered = self.is_ordered();
        for (index, slot) in (self.start..).zip(&self.slots) {
            let waits = match slot {
                None => !self.make(index, plan) || ordered,
                Some(pod) if pod.is_finished() => {
                    plan.delete.extend(Some(*pod).filter(|pod| !pod.is_terminating()));
                    ordered
                }
                Some(pod) => {
                    let missing = claims::of_pod(self.set, index, None);
                    plan.claims.extend(missing.into_iter().filter(|claim| !self.has_claim(claim)));
                    ordered && !self.works(pod)
                }
            };
            if waits && ordered {
                return true;
            }
        }
        false
    }

    /// Makes a pod with its claims, unless claims of its predecessor are on their way out.
    fn make(&self, index: i32, plan: &mut StatefulSetPlan<'a>) -> bool {
        let wanted = claims::of_pod(self.set, index, None);
        let name = pod::name(self.set, index);
        let mut old = wanted.iter().filter_map(|claim| self.claim(claim));
        if old.any(|claim| claims::goes_with(claim, &name)) {
            return false;
        }
        plan.claims.extend(wanted.into_iter().filter(|claim| !self.has_claim(claim)));
        let label = self.revision_for(index, plan);
        let template = self.revisions.template(label).unwrap_or_default();
        plan.create.push(pod::pod(self.set, index, &template, label));
        true
    }

    /// Which version a new pod is of: below the partition it is the old one.
    fn revision_for<'c>(&'c self, index: i32, plan: &'c StatefulSetPlan<'a>) -> &'c str {
        let strategy = self.set.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
        let is_old = self.is_rolling() && index < self.start.saturating_add(partition);
        let newest = revisions::name(&self.revisions.newest);
        let current = plan.status.current_revision.as_deref().filter(|_| is_old);
        current.unwrap_or(newest)
    }

    /// Takes away what is too many, the last first. True if the rest has to wait.
    fn shrink(&self, plan: &mut StatefulSetPlan<'a>) -> bool {
        let ordered = self.is_ordered();
        // One that has ended and goes anyway will never work again, so nobody waits for it.
        let has_ended = |pod: &PodView| pod.is_finished();
        let going = self.surplus.iter().rev().filter(|pod| !has_ended(pod));
        let all = self.slots.iter().flatten().chain(going);
        let first_broken = all.copied().find(|pod| !self.works(pod));
        for pod in &self.surplus {
            let is_first = first_broken.is_some_and(|first| first.name() == pod.name());
            let may_go = is_first || has_ended(pod);
            if ordered && !self.works(pod) && (pod.is_terminating() || !may_go) {
                return true;
            }
            if !pod.is_terminating() {
                plan.delete.push(pod);
            }
            if ordered {
                return true;
            }
        }
        false
    }

    /// Replaces pods of other versions, the last first, as many at a time as may be missing.
    fn update(&self, plan: &mut StatefulSetPlan<'a>) {
        if !self.is_rolling() {
            return;
        }
        let strategy = self.set.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let first = usize::try_from(rolling.and_then(|own| own.partition).unwrap_or(0));
        let most = rolling.and_then(|own| own.max_unavailable.as_ref());
        let total = i32::try_from(self.slots.len()).unwrap_or(i32::MAX);
        let most = most.map_or(1, |most| scaled(most, total, false)).max(1);
        let most = usize::try_from(most).unwrap_or(1);
        let working = self.slots.iter().flatten().filter(|pod| self.works(pod)).count();
        let mut room = most.saturating_sub(self.slots.len() - working);
        let newest = revisions::name(&self.revisions.newest);
        let mut deleted = 0;
        for pod in self.slots.iter().skip(first.unwrap_or(0)).rev().flatten() {
            if revision(pod) == newest || pod.is_terminating() || pod.is_finished() {
                continue;
            }
            // A pod that does not work is missed by nobody.
            let costs = usize::from(self.works(pod));
            if costs > room || deleted == most {
                return;
            }
            (room, deleted) = (room - costs, deleted + 1);
            plan.delete.push(pod);
        }
    }

    /// Claims belong to whom they are to go with.
    fn keep_claims(&self, plan: &mut StatefulSetPlan<'a>) {
        let kept = self.slots.iter().flatten().map(|pod| (pod, false));
        for (pod, is_surplus) in kept.chain(self.surplus.iter().map(|pod| (pod, true))) {
            let Some(index) = ordinal(self.set, pod.name()) else { continue };
            let heir = is_surplus.then_some(&pod.metadata);
            for wanted in claims::of_pod(self.set, index, heir) {
                let Some(claim) = self.claim(&wanted) else { continue };
                let owners = claims::owners(claim, &wanted, self.set);
                plan.owners.extend(owners.map(|owners| (claim, owners)));
            }
        }
    }

    fn claim(&self, wanted: &PersistentVolumeClaim) -> Option<&'a PersistentVolumeClaim> {
        let mut all = self.has.claims.iter().copied();
        all.find(|claim| claim.metadata.name == wanted.metadata.name)
    }

    fn has_claim(&self, wanted: &PersistentVolumeClaim) -> bool {
        self.claim(wanted).is_some()
    }

    /// Whether a pod has been ready for long enough, and nobody has asked it to go.
    fn works(&self, pod: &PodView) -> bool {
        let patience = self.set.spec.min_ready_seconds.unwrap_or(0);
        !pod.is_terminating() && !pod.is_finished() && pod.is_available(patience, self.now)
    }

    fn is_ordered(&self) -> bool {
        self.set.spec.pod_management_policy.as_deref() != Some("Parallel")
    }

    fn is_rolling(&self) -> bool {
        is_rolling(self.set)
    }
}

fn is_rolling(set: &StatefulSet) -> bool {
    let strategy = set.spec.update_strategy.as_ref();
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
}

/// The version that a pod says it is of.
fn revision(pod: &PodView) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(POD_REVISION)).map_or("", String::as_str)
}

#[cfg(test)]
mod tests;
