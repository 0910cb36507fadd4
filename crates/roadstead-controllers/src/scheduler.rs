//! The scheduler: gives every pod a node, the more important ones first, and asks others to leave if
//! there is no room for those that matter more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use roadstead_api::key::ObjectKey;
use roadstead_api::node_affinity::NodeTraits;
use roadstead_plan::persistentvolume::claim_of;
use roadstead_plan::persistentvolume::shelf::Shelf;
use roadstead_plan::pod_status;
use roadstead_plan::scheduler::volumes::{self, StorageView};
use roadstead_plan::scheduler::{
    Decision, NoPlace, Occasion, Occupancy, PlacedPod, Preemption, decide, hopeless,
};
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Selection, informer};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::Write;

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

use self::line::{Line, Turn};

mod line;
mod writes;

/// Pods that name another scheduler are none of our business.
const NAME: &str = "default-scheduler";

pub(crate) async fn run(context: Context) {
    let client = &context.client;
    // Only pods that wait for a node are read as a whole.
    let waiting = Selection::all().fields("spec.nodeName=");
    let inputs = Inputs::new()
        .watch(every::<Node>(client))
        .watch(every::<Namespace>(client))
        .watch(every::<Service>(client))
        .watch(every::<PodDisruptionBudget>(client))
        .watch(informer(Api::<Pod>::all(client.clone()), waiting))
        .watch(every::<PersistentVolumeClaim>(client))
        .watch(every::<PersistentVolume>(client))
        .watch(every::<StorageClass>(client))
        .watch(every::<PlacedPod>(client));
    runner::run(context, State::default(), inputs).await;
}

#[derive(Default)]
struct State {
    nodes: Cache<Node>,
    namespaces: Cache<Namespace>,
    services: Cache<Service>,
    budgets: Cache<PodDisruptionBudget>,
    waiting: Cache<Pod>,
    pods: Cache<PlacedPod>,
    storage: Storage,
    cluster: Occupancy,
    line: Line,
    /// Pods that we have bound and not yet seen on their node.
    assumed: BTreeSet<ObjectKey>,
    /// The volumes that pods get whose writes are under way.
    given: BTreeMap<ObjectKey, Vec<String>>,
    /// Pods whose writes are under way, with those whose place they change.
    touched: BTreeMap<ObjectKey, Vec<ObjectKey>>,
}

/// What pods keep things on.
#[derive(Default)]
struct Storage {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    shelf: Shelf,
    classes: Cache<StorageClass>,
    /// The pods that wait for a node, by the claims they have.
    claimants: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl Watches<Node> for State {
    fn cache(&mut self) -> &mut Cache<Node> {
        &mut self.nodes
    }

    fn index(&mut self, change: &Changed<Node>, _: &mut Queue<Turn>) {
        let is_news = self.cluster.observe_node(&change.key.name, change.now.as_deref());
        self.line.occasions = is_news.then_some(Occasion::NodeChanged).into_iter().collect();
    }

    fn wake(&mut self, _: &Changed<Node>, queue: &mut Queue<Turn>) {
        self.line.wake_for_change(queue);
    }
}

impl Watches<Namespace> for State {
    fn cache(&mut self) -> &mut Cache<Namespace> {
        &mut self.namespaces
    }

    fn wake(&mut self, change: &Changed<Namespace>, queue: &mut Queue<Turn>) {
        let nothing = BTreeMap::new();
        let labels = change.now.as_ref();
        let labels = labels.map(|own| own.metadata.labels.as_ref().unwrap_or(&nothing));
        if self.cluster.observe_namespace(&change.key.name, labels) {
            self.line.wake(&[Occasion::PodGone, Occasion::PodPlaced], queue);
        }
    }
}

impl Watches<Service> for State {
    fn cache(&mut self) -> &mut Cache<Service> {
        &mut self.services
    }

    /// It only says what is better.
    fn wake(&mut self, change: &Changed<Service>, _: &mut Queue<Turn>) {
        let spec = change.now.as_ref().and_then(|service| service.spec.as_ref());
        self.cluster.observe_service(&change.key, spec.and_then(|spec| spec.selector.as_ref()));
    }
}

impl Watches<PodDisruptionBudget> for State {
    fn cache(&mut self) -> &mut Cache<PodDisruptionBudget> {
        &mut self.budgets
    }

    /// Nobody waits for one.
    fn wake(&mut self, change: &Changed<PodDisruptionBudget>, _: &mut Queue<Turn>) {
        self.cluster.observe_budget(&change.key, change.now.as_deref());
    }
}

impl Watches<Pod> for State {
    fn cache(&mut self) -> &mut Cache<Pod> {
        &mut self.waiting
    }

    fn index(&mut self, change: &Changed<Pod>, _: &mut Queue<Turn>) {
        let claim = |name: &str| ObjectKey::new(&change.key.namespace, name);
        let claimants = &mut self.storage.claimants;
        for name in change.before.as_deref().into_iter().flat_map(volumes::claims) {
            if let Some(pods) = claimants.get_mut(&claim(name)) {
                pods.remove(&change.key);
                if pods.is_empty() {
                    claimants.remove(&claim(name));
                }
            }
        }
        for name in change.now.as_deref().into_iter().flat_map(volumes::claims) {
            claimants.entry(claim(name)).or_default().insert(change.key.clone());
        }
    }

    fn wake(&mut self, change: &Changed<Pod>, queue: &mut Queue<Turn>) {
        let Some(pod) = change.now.as_ref().filter(|pod| is_waiting(pod)) else {
            self.line.leave(&change.key);
            return;
        };
        let same = |before: &Arc<Pod>| {
            before.spec == pod.spec
                && before.metadata.labels == pod.metadata.labels
                && before.metadata.uid == pod.metadata.uid
        };
        // What is said of it in its status is said by ourselves.
        if !change.before.as_ref().is_some_and(same) {
            self.line.leave(&change.key);
            queue.add(Turn::of(&change.key, pod));
        }
    }
}

impl Watches<PersistentVolumeClaim> for State {
    fn cache(&mut self) -> &mut Cache<PersistentVolumeClaim> {
        &mut self.storage.claims
    }

    fn wake(&mut self, change: &Changed<PersistentVolumeClaim>, queue: &mut Queue<Turn>) {
        let pods = self.storage.claimants.get(&change.key).into_iter().flatten();
        let pods = pods.filter_map(|key| Some((key, self.waiting.get(key)?)));
        let waiting = pods.filter(|(_, pod)| is_waiting(pod));
        waiting.for_each(|(key, pod)| queue.add(Turn::of(key, pod)));
    }
}

impl Watches<PersistentVolume> for State {
    fn cache(&mut self) -> &mut Cache<PersistentVolume> {
        &mut self.storage.volumes
    }

    fn index(&mut self, change: &Changed<PersistentVolume>, _: &mut Queue<Turn>) {
        self.storage.shelf.observe(&change.key.name, change.now.clone());
    }

    fn wake(&mut self, _: &Changed<PersistentVolume>, queue: &mut Queue<Turn>) {
        self.line.wake(&[Occasion::VolumeChanged], queue);
    }
}

impl Watches<StorageClass> for State {
    fn cache(&mut self) -> &mut Cache<StorageClass> {
        &mut self.storage.classes
    }

    fn wake(&mut self, _: &Changed<StorageClass>, queue: &mut Queue<Turn>) {
        self.line.wake(&[Occasion::VolumeChanged], queue);
    }
}

impl Watches<PlacedPod> for State {
    fn cache(&mut self) -> &mut Cache<PlacedPod> {
        &mut self.pods
    }

    fn index(&mut self, change: &Changed<PlacedPod>, _: &mut Queue<Turn>) {
        self.line.occasions.clear();
        let is_seen = change.now.as_ref().is_none_or(|pod| !pod.node.is_empty());
        if is_seen {
            self.assumed.remove(&change.key);
        }
        if !self.assumed.contains(&change.key) {
            self.line.occasions = self.cluster.observe_pod(&change.key, change.now.clone());
        }
    }

    /// Where one has gone there may be room for others, or company.
    fn wake(&mut self, _: &Changed<PlacedPod>, queue: &mut Queue<Turn>) {
        self.line.wake_for_change(queue);
    }
}

impl State {
    fn decide(&mut self, key: &ObjectKey, pod: &Pod) -> (Decision, Vec<Write>) {
        let (storage, given) = (&self.storage, &self.given);
        let storage = StorageView {
            claim: &|name| {
                storage.claims.get(&ObjectKey::new(&key.namespace, name)).map(Arc::as_ref)
            },
            volumes: &storage.shelf,
            is_taken: &|name| given.values().flatten().any(|own| own == name),
            class: &|name| storage.classes.get(&ObjectKey::new("", name)).map(Arc::as_ref),
        };
        match volumes::needs(pod, &storage) {
            Ok(needs) => {
                let decision = decide(pod, &mut self.cluster, &needs);
                let Decision::Bind(name) = &decision else { return (decision, Vec::new()) };
                let node = self.nodes.get(&ObjectKey::new("", name));
                let labels = node.and_then(|node| node.metadata.labels.as_ref());
                let chosen = needs.choose(NodeTraits { name, labels }).unwrap_or_default();
                let free = chosen.iter().filter_map(|choice| choice.volume);
                let free = free.filter(|volume| claim_of(volume).is_none());
                let given: Vec<_> = free.filter_map(|own| own.metadata.name.clone()).collect();
                let promises = writes::promise(&chosen, name);
                if !given.is_empty() {
                    self.given.insert(key.clone(), given);
                }
                (decision, promises)
            }
            Err(why) => (hopeless(&self.cluster, &why), Vec::new()),
        }
    }

    fn waits_for_volumes(&self, key: &ObjectKey, pod: &Pod) -> bool {
        let claim = |name: &str| self.storage.claims.get(&ObjectKey::new(&key.namespace, name));
        let phase = |claim: &PersistentVolumeClaim| claim.status.as_ref()?.phase.clone();
        volumes::claims(pod)
            .any(|name| claim(name).and_then(|own| phase(own)).as_deref() != Some("Bound"))
    }

    /// A pod that is being bound counts at once, before the watch shows it on its node.
    fn bind(&mut self, key: &ObjectKey, pod: &Pod, node: &str) -> WritePlan<Turn> {
        let placed = PlacedPod::assumed(pod, node);
        let occasions = self.cluster.observe_pod(key, Some(placed.into()));
        self.assumed.insert(key.clone());
        self.touched.insert(key.clone(), Vec::new());
        self.line.leave(key);
        // Others may have waited for its company.
        let wake = self.line.helped_by(&occasions);
        WritePlan { wake, ..writes::bind(key, pod, node) }
    }

    /// Those who have to leave are as good as gone for others who look for room.
    fn preempt(&mut self, key: &ObjectKey, pod: &Pod, plan: &Preemption) -> WritePlan<Turn> {
        let found = plan.victims.iter().filter_map(|key| self.cluster.pod(key).cloned());
        let victims: Vec<_> = found.collect();
        for (key, victim) in plan.victims.iter().zip(&victims) {
            self.cluster.observe_pod(key, Some(victim.leaving().into()));
        }
        self.cluster.observe_pod(key, Some(PlacedPod::nominated(pod, &plan.node).into()));
        self.touched.insert(key.clone(), plan.victims.clone());
        writes::preempt(key, pod, plan, &victims)
    }

    fn wait(&mut self, turn: &Turn, pod: &Pod, refusal: &NoPlace) -> WritePlan<Turn> {
        let again_after = Some(self.line.failed(turn, refusal.wakeups));
        WritePlan { again_after, ..writes::explain(&turn.key, pod, refusal, None) }
    }
}

impl Controller for State {
    type Key = Turn;
    const COMPONENT: &'static str = NAME;
    const QUEUE: &'static str = "scheduler";
    const BY_KEY: bool = true;

    fn plan(&mut self, turn: &Turn, _: Timestamp) -> WritePlan<Turn> {
        let key = &turn.key;
        let is_placed = self.pods.get(key).is_some_and(|pod| !pod.node.is_empty());
        let waiting = self.waiting.get(key).filter(|pod| is_waiting(pod)).cloned();
        let Some(pod) = waiting
            .filter(|pod| !is_placed && !self.assumed.contains(key) && Turn::of(key, pod) == *turn)
        else {
            return WritePlan::none();
        };
        if is_gated(&pod) {
            return writes::explain_gates(key, &pod);
        }
        match self.decide(key, &pod) {
            (Decision::Bind(node), _) if !self.waits_for_volumes(key, &pod) => {
                self.bind(key, &pod, &node)
            }
            // The pod follows when its claims have their volumes.
            (Decision::Bind(_), promises) => WritePlan::writes(promises),
            (Decision::Preempt(plan), _) => {
                let again_after = Some(self.line.failed(turn, plan.refusal.wakeups));
                WritePlan { again_after, ..self.preempt(key, &pod, &plan) }
            }
            (Decision::Wait(refusal), _) => self.wait(turn, &pod, &refusal),
        }
    }

    /// What has not come about counts no more.
    fn finished(&mut self, turn: &Turn, failed: bool) {
        self.given.remove(&turn.key);
        let Some(victims) = self.touched.remove(&turn.key).filter(|_| failed) else { return };
        self.assumed.remove(&turn.key);
        for key in victims.iter().chain([&turn.key]) {
            self.cluster.observe_pod(key, self.pods.get(key).cloned());
        }
    }
}

fn is_gated(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
}

fn is_waiting(pod: &Pod) -> bool {
    let scheduler = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    pod_status::node(pod).is_empty()
        && !pod_status::is_finished(pod)
        && !pod_status::is_terminating(pod)
        && scheduler.is_none_or(|name| name == NAME)
}
