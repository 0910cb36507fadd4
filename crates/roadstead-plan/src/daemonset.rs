//! The pods of a DaemonSet: one on every node that suits, and how they are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use roadstead_api::node_affinity::{NodeTraits, wants_node};

use crate::pod_view::{Phase, PodView};
use crate::pods::{count, scaled, some};
use crate::revisions::{self, POD_REVISION, RevisionPlan};
use crate::scheduler::tolerates;

pub mod backoff;
mod pod;

/// How many pods one plan creates or deletes at most.
const BURST: usize = 250;

/// What a DaemonSet looks at.
#[derive(Debug, Default)]
pub struct Belongings<'a> {
    /// Its pods.
    pub pods: Vec<&'a PodView>,
    /// All nodes.
    pub nodes: Vec<&'a Node>,
    /// The versions of its template.
    pub revisions: Vec<&'a ControllerRevision>,
    /// The nodes on which a failed pod stays for a while, and for how long.
    pub held: BTreeMap<String, Duration>,
}

/// The writes that bring a DaemonSet closer to what it says.
#[derive(Debug, Default)]
pub struct DaemonSetPlan<'a> {
    /// Versions of the template.
    pub revisions: RevisionPlan,
    /// Pods to make.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<&'a PodView>,
    /// What is true now, before these writes.
    pub status: DaemonSetStatus,
    /// When to look again even if nothing happens.
    pub again_after: Option<Duration>,
}

/// Plans the pods of a DaemonSet.
pub fn plan<'a>(set: &DaemonSet, has: &Belongings<'a>, now: Timestamp) -> DaemonSetPlan<'a> {
    let collisions = set.status.as_ref().and_then(|status| status.collision_count);
    let mut revisions =
        revisions::find(set, &set.spec.template, &has.revisions, collisions.unwrap_or(0));
    let in_use: BTreeSet<_> = has.pods.iter().map(|pod| revision(pod)).collect();
    revisions.forget(set.spec.revision_history_limit, &in_use);
    let hash = revisions::hash_of(&revisions.newest).to_owned();
    let round = Round { set, now, hash: &hash, places: places(set, has), held: &has.held };
    let mut plan = DaemonSetPlan { status: round.status(), ..DaemonSetPlan::default() };
    plan.status.collision_count = collisions.map(|_| revisions.collisions);
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    plan.revisions = revisions.plan;
    let mut wanted = Vec::new();
    round.fill(&mut wanted, &mut plan);
    if plan.delete.is_empty() && wanted.is_empty() {
        round.update(&mut wanted, &mut plan.delete);
    }
    wanted.truncate(BURST);
    plan.delete.truncate(BURST);
    plan.create = wanted.into_iter().map(|node| pod::pod(set, node, &hash)).collect();
    plan
}

/// What a DaemonSet has and may have on one node.
#[derive(Debug, Default)]
struct Place<'a> {
    /// Pods that nobody has asked to go, the oldest first.
    pods: Vec<&'a PodView>,
    /// Whether one is still on its way out.
    is_leaving: bool,
    starts: bool,
    stays: bool,
}

/// Every node that there is or on which there are pods.
fn places<'a>(set: &DaemonSet, has: &Belongings<'a>) -> BTreeMap<&'a str, Place<'a>> {
    let mut places: BTreeMap<&str, Place<'_>> = BTreeMap::new();
    for node in &has.nodes {
        let name = node.metadata.name.as_deref().unwrap_or("");
        let (starts, stays) = suits(set, node);
        places.insert(name, Place { starts, stays, ..Place::default() });
    }
    for pod in &has.pods {
        let place = places.entry(pod.aim()).or_default();
        if pod.is_terminating() {
            place.is_leaving = true;
        } else {
            place.pods.push(pod);
        }
    }
    for place in places.values_mut() {
        place.pods.sort_by_key(|pod| {
            (pod.metadata.creation_timestamp.as_ref().map(|time| time.0), pod.name().to_owned())
        });
    }
    places
}

/// Whether a pod may start on a node, and whether one that runs there may stay.
fn suits(set: &DaemonSet, node: &Node) -> (bool, bool) {
    let spec = pod::spec(set);
    let name = node.metadata.name.as_deref().unwrap_or("");
    if !wants_node(&spec, NodeTraits { name, labels: node.metadata.labels.as_ref() }) {
        return (false, false);
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let bears = |taint: &Taint| tolerations.iter().any(|own| tolerates(own, taint));
    let unbearable = |effects: &[&str]| {
        taints.iter().any(|taint| effects.contains(&taint.effect.as_str()) && !bears(taint))
    };
    (!unbearable(&["NoSchedule", "NoExecute"]), !unbearable(&["NoExecute"]))
}

struct Round<'a, 'b> {
    set: &'b DaemonSet,
    now: Timestamp,
    hash: &'b str,
    places: BTreeMap<&'a str, Place<'a>>,
    held: &'b BTreeMap<String, Duration>,
}

impl<'a> Round<'a, '_> {
    /// One pod where there should be one, none where there should be none.
    fn fill(&self, create: &mut Vec<&'a str>, plan: &mut DaemonSetPlan<'a>) {
        let (surge, _) = self.bounds();
        let DaemonSetPlan { delete, again_after, .. } = plan;
        for (node, place) in &self.places {
            let (failed, alive): (Vec<&PodView>, Vec<&PodView>) =
                place.pods.iter().copied().partition(|pod| pod.is_finished());
            let held = self.held.get(*node).filter(|_| place.stays);
            match held.filter(|_| failed.iter().any(|pod| pod.phase == Phase::Failed)) {
                Some(left) => *again_after = Some(again_after.map_or(*left, |own| own.min(*left))),
                None => delete.extend(failed.iter().copied()),
            }
            if !place.stays {
                delete.extend(alive);
            } else if alive.is_empty() {
                if place.starts && failed.is_empty() && !place.is_leaving {
                    create.push(node);
                }
            } else {
                // While a new one comes up beside the old one, there are two versions of it.
                let (new, old): (Vec<&PodView>, Vec<&PodView>) =
                    alive.into_iter().partition(|pod| revision(pod) == self.hash);
                if surge > 0 && !new.is_empty() {
                    delete.extend(new.iter().skip(1));
                    let done = new.first().is_some_and(|pod| self.works(pod));
                    delete.extend(old.iter().skip(usize::from(!done)));
                } else {
                    delete.extend(old.into_iter().chain(new).skip(1));
                }
            }
        }
    }

    /// Replaces pods of old versions, as many at a time as may be missing, or as may be too many.
    fn update(&self, create: &mut Vec<&'a str>, delete: &mut Vec<&'a PodView>) {
        let strategy = self.set.spec.update_strategy.as_ref();
        if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
            return;
        }
        let (surge, unavailable) = self.bounds();
        let wanted = self.places.iter().filter(|(_, place)| place.starts && place.stays);
        let mut broken = Vec::new();
        let mut working = Vec::new();
        let (mut down, mut doubled) = (0, 0);
        for (node, place) in wanted {
            let is_up = place.pods.iter().any(|pod| self.works(pod));
            down += usize::from(!is_up);
            match place.pods[..] {
                [pod] if revision(pod) != self.hash => {
                    if is_up { &mut working } else { &mut broken }.push((*node, pod));
                }
                [_, _, ..] => doubled += 1,
                _ => {}
            }
        }
        if surge > 0 {
            // A pod that does not work has no time to lose.
            create.extend(broken.iter().map(|(node, _)| *node));
            let room = surge.saturating_sub(doubled + broken.len());
            create.extend(working.iter().take(room).map(|(node, _)| *node));
        } else {
            delete.extend(broken.iter().map(|(_, pod)| *pod));
            let room = unavailable.saturating_sub(down);
            delete.extend(working.iter().take(room).map(|(_, pod)| *pod));
        }
    }

    /// How many may be too many, or else missing, during an update.
    fn bounds(&self) -> (usize, usize) {
        let wanted = count(self.places.values().filter(|place| place.starts).count());
        let strategy = self.set.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        let surge = surge.map_or(0, |surge| scaled(surge, wanted, true));
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let unavailable = unavailable.map_or(1, |own| scaled(own, wanted, true));
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        (usize::try_from(surge).unwrap_or(0), usize::try_from(unavailable).unwrap_or(0))
    }

    fn works(&self, pod: &PodView) -> bool {
        let patience = self.set.spec.min_ready_seconds.unwrap_or(0);
        !pod.is_finished() && pod.is_available(patience, self.now)
    }

    fn status(&self) -> DaemonSetStatus {
        let number = |test: &dyn Fn(&Place<'_>) -> bool| {
            self.places.values().filter(|place| test(place)).count()
        };
        let has = |place: &Place<'_>, test: &dyn Fn(&PodView) -> bool| {
            place.starts && place.pods.iter().any(|pod| !pod.is_finished() && test(pod))
        };
        let desired = number(&|place| place.starts);
        let available = number(&|place| has(place, &|pod| self.works(pod)));
        let old = self.set.status.as_ref();
        DaemonSetStatus {
            desired_number_scheduled: count(desired),
            current_number_scheduled: count(number(&|place| has(place, &|_| true))),
            number_misscheduled: count(number(&|place| !place.starts && !place.pods.is_empty())),
            number_ready: count(number(&|place| has(place, &|pod| pod.ready))),
            number_available: some(available),
            number_unavailable: some(desired - available),
            updated_number_scheduled: some(number(&|place| {
                has(place, &|pod| revision(pod) == self.hash)
            })),
            observed_generation: self.set.metadata.generation,
            collision_count: None,
            conditions: old.and_then(|status| status.conditions.clone()),
        }
    }
}

fn revision(pod: &PodView) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(POD_REVISION)).map_or("", String::as_str)
}

#[cfg(test)]
mod tests;
