//! The three controllers that turn pods and hand-written addresses into endpoints: EndpointSlices
//! of Services with a selector, their Endpoints, and slices that mirror the Endpoints of Services
//! without one.
//!
//! They look at the same objects, so they are one task with one set of caches and indexes. Each
//! Service is queued for each of them apart, so one that fails does not hold up the others. What a
//! pod's change costs depends on the Services that select it and on nothing else.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::advice::{Advice, is_endpoints_by_hand, is_slice_by_hand};
use roadstead_plan::backend::Backend;
use roadstead_plan::endpointslice::hints::{Mode, Note, Topology};
use roadstead_plan::endpointslice::{self as slices};
use roadstead_plan::mirror;
use roadstead_plan::selection::{Labelled, Selectors};
use roadstead_plan::trigger::Triggers;
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Change, Selection, informer, trimmed};
use roadstead_watch::queue::{Backoff, Queue};
use roadstead_watch::write::Write;

use crate::metrics::{Metrics, QueueMeter, Totals, Writer};
use crate::runner::{self, Controller, Inputs, Plan};

mod sync;

/// Somebody else's edit of a slice is undone after this, so that two writers do not race.
const SELF_HEAL_DELAY: Duration = Duration::from_secs(1);
/// Advice about what was written by hand waits for the rest of it.
const ADVICE_DELAY: Duration = Duration::from_secs(3);

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// EndpointSlices from pods.
    Slices,
    /// Endpoints from pods.
    Endpoints,
    /// EndpointSlices from Endpoints.
    Mirror,
    /// What to say about endpoints that are written by hand; goes with the mirror.
    Advice,
}

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which of the three run.
    pub parts: BTreeSet<Part>,
    /// How many endpoints fit into a slice.
    pub max_endpoints: usize,
    /// How many addresses of a subset are mirrored.
    pub max_mirrored: usize,
    /// How long changes of pods are collected before they are acted upon.
    pub batch_period: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            parts: [Part::Slices, Part::Endpoints, Part::Mirror].into(),
            max_endpoints: 100,
            max_mirrored: 1000,
            batch_period: Duration::ZERO,
        }
    }
}

/// Runs the controllers.
pub async fn run(client: Client, config: Config, metrics: Metrics) {
    let all = Selection::all();
    let mut inputs = Inputs::new()
        .follow(informer(Api::<Service>::all(client.clone()), all.clone()), State::service)
        .follow(
            trimmed(Api::<EndpointSlice>::all(client.clone()), all.clone(), trim_slice),
            State::slice,
        );
    let mut state = State::new(config, metrics.clone());
    if state.follows_pods() {
        inputs = inputs
            .follow(informer(Api::<Backend>::all(client.clone()), all.clone()), State::pod)
            .follow(informer(Api::<Node>::all(client.clone()), all.clone()), State::node);
    }
    if state.follows_endpoints() {
        let changes = trimmed(Api::<Endpoints>::all(client.clone()), all, trim_endpoints);
        inputs = inputs.follow(changes, State::endpoints);
    }
    state.queue = Queue::with_meter(QueueMeter::new(metrics.clone(), State::queue_name));
    runner::run(client, metrics, state, inputs).await;
}

/// Lists are read into more room than they need, and there are many.
fn trim_slice(slice: &mut EndpointSlice) {
    slice.endpoints.iter_mut().for_each(Vec::shrink_to_fit);
}

fn trim_endpoints(endpoints: &mut Endpoints) {
    for subset in endpoints.subsets.iter_mut().flatten() {
        subset.addresses.iter_mut().for_each(Vec::shrink_to_fit);
        subset.not_ready_addresses.iter_mut().for_each(Vec::shrink_to_fit);
    }
}

/// The work of one controller on one Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    part: Part,
    key: ObjectKey,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.key, self.part)
    }
}

struct State {
    config: Config,
    metrics: Metrics,
    queue: Queue<Work>,
    services: Cache<Service>,
    selectors: Selectors,
    /// Services that want topology-aware hints.
    auto: BTreeSet<ObjectKey>,
    pods: Cache<Backend>,
    by_label: Labelled<Arc<Backend>>,
    on_node: HashMap<String, BTreeSet<ObjectKey>>,
    nodes: Cache<Node>,
    topology: Topology,
    slices: Cache<EndpointSlice>,
    /// The names of the slices of a Service; those without one are under an empty name.
    slices_of: HashMap<ObjectKey, BTreeSet<String>>,
    endpoints: Cache<Endpoints>,
    slice_triggers: Triggers,
    endpoint_triggers: Triggers,
    /// What users were last told about hints.
    told: HashMap<(ObjectKey, String), Note>,
    /// What users were told about objects that they wrote, by uid.
    advised: HashMap<String, Vec<Advice>>,
    totals: HashMap<Work, Totals>,
}

impl State {
    fn new(config: Config, metrics: Metrics) -> Self {
        Self {
            config,
            metrics,
            queue: Queue::default(),
            services: Cache::default(),
            selectors: Selectors::default(),
            auto: BTreeSet::new(),
            pods: Cache::default(),
            by_label: Labelled::default(),
            on_node: HashMap::new(),
            nodes: Cache::default(),
            topology: Topology::default(),
            slices: Cache::default(),
            slices_of: HashMap::new(),
            endpoints: Cache::default(),
            slice_triggers: Triggers::default(),
            endpoint_triggers: Triggers::default(),
            told: HashMap::new(),
            advised: HashMap::new(),
            totals: HashMap::new(),
        }
    }

    fn runs(&self, part: Part) -> bool {
        let part = if part == Part::Advice { Part::Mirror } else { part };
        self.config.parts.contains(&part)
    }

    fn follows_pods(&self) -> bool {
        self.runs(Part::Slices) || self.runs(Part::Endpoints)
    }

    fn follows_endpoints(&self) -> bool {
        self.runs(Part::Mirror) || self.runs(Part::Endpoints)
    }

    fn wake(&mut self, part: Part, key: &ObjectKey, delay: Duration) {
        if !self.runs(part) {
            return;
        }
        let work = Work { part, key: key.clone() };
        match delay.is_zero() {
            true => self.queue.add(work),
            false => self.queue.add_after(work, delay),
        }
    }

    fn service(&mut self, change: &Change<Service>) {
        let Some((key, before)) = self.services.observe(change) else { return };
        let now = self.services.get(&key).cloned();
        self.selectors.set(&key, now.as_deref().and_then(selector));
        match now.as_deref().map(Mode::of) {
            Some(Mode::Auto) => drop(self.auto.insert(key.clone())),
            _ => drop(self.auto.remove(&key)),
        }
        for (service, change) in [(before, -1), (now, 1)] {
            if let Some(distribution) = service.as_deref().and_then(distribution) {
                self.metrics.distribution(distribution, change);
            }
        }
        for part in [Part::Slices, Part::Endpoints, Part::Mirror] {
            self.wake(part, &key, Duration::ZERO);
        }
        if self.is_helped_by_hand(&key) {
            self.wake(Part::Advice, &key, ADVICE_DELAY);
        }
    }

    /// Whether somebody has written endpoints of that Service.
    fn is_helped_by_hand(&self, key: &ObjectKey) -> bool {
        self.endpoints.get(key).is_some_and(|endpoints| is_endpoints_by_hand(endpoints))
            || self.slices_of(key).any(is_slice_by_hand)
    }

    /// The slices of a Service, whoever writes them.
    fn slices_of<'a>(&'a self, service: &'a ObjectKey) -> impl Iterator<Item = &'a EndpointSlice> {
        slices_of(&self.slices_of, &self.slices, service)
    }

    /// Wakes the Services that select the pod as it was or as it is.
    fn pod(&mut self, change: &Change<Backend>) {
        let Some((key, before)) = self.pods.observe(change) else { return };
        let now = self.pods.get(&key).cloned();
        if let (Some(before), Some(now)) = (&before, &now)
            && !now.differs_from(before)
        {
            return;
        }
        let mut names = BTreeSet::new();
        if let Some(before) = &before {
            self.by_label.remove(&key, before.metadata.labels.as_ref());
            self.leave_node(&before.node, &key);
            names.extend(self.selecting(&key, before));
        }
        if let Some(now) = &now {
            self.by_label.insert(&key, now.metadata.labels.as_ref(), now);
            self.on_node.entry(now.node.clone()).or_default().insert(key.clone());
            names.extend(self.selecting(&key, now));
        }
        self.wake_selecting(names, self.config.batch_period);
    }

    fn leave_node(&mut self, node: &str, pod: &ObjectKey) {
        if let Some(pods) = self.on_node.get_mut(node) {
            pods.remove(pod);
            if pods.is_empty() {
                self.on_node.remove(node);
            }
        }
    }

    fn selecting(&self, key: &ObjectKey, pod: &Backend) -> Vec<ObjectKey> {
        let names = self.selectors.selecting(&key.namespace, pod.metadata.labels.as_ref());
        names.into_iter().map(|name| ObjectKey::new(&key.namespace, name)).collect()
    }

    fn wake_selecting(&mut self, services: BTreeSet<ObjectKey>, delay: Duration) {
        for service in services {
            self.wake(Part::Slices, &service, delay);
            self.wake(Part::Endpoints, &service, delay);
        }
    }

    /// A node that appears, goes or changes its zone matters to the Services with pods on it; its
    /// readiness and size only to those that share endpoints out by zones.
    fn node(&mut self, change: &Change<Node>) {
        let Some((key, before)) = self.nodes.observe(change) else { return };
        let labels = |node: &Arc<Node>| node.metadata.labels.clone();
        if before.as_ref().map(labels) != self.nodes.get(&key).map(labels) {
            let pods = self.on_node.get(&key.name).into_iter().flatten();
            let pods = pods.filter_map(|pod| Some((pod, self.pods.get(pod)?)));
            let services = pods.flat_map(|(key, pod)| self.selecting(key, pod)).collect();
            self.wake_selecting(services, Duration::ZERO);
        }
        let topology = Topology::of(self.nodes.iter().map(|(_, node)| node.as_ref()));
        if topology != self.topology {
            self.topology = topology;
            for service in self.auto.clone() {
                self.wake(Part::Slices, &service, Duration::ZERO);
            }
        }
    }

    fn slice(&mut self, change: &Change<EndpointSlice>) {
        let Some((key, before)) = self.slices.observe(change) else { return };
        let now = self.slices.get(&key).cloned();
        self.index_slice(&key, before.as_deref());
        if let (Some(before), None) = (&before, &now) {
            self.advised.remove(before.metadata.uid.as_deref().unwrap_or(""));
        }
        for slice in [before, now].into_iter().flatten() {
            let service = service_of(&slice);
            match slice.labels().get(slices::MANAGED_BY).map(String::as_str) {
                Some(slices::CONTROLLER) => self.wake(Part::Slices, &service, SELF_HEAL_DELAY),
                Some(mirror::CONTROLLER) => self.wake(Part::Mirror, &service, SELF_HEAL_DELAY),
                _ => self.wake(Part::Advice, &service, ADVICE_DELAY),
            }
        }
    }

    fn index_slice(&mut self, key: &ObjectKey, before: Option<&EndpointSlice>) {
        if let Some(service) = before.map(service_of)
            && let Some(names) = self.slices_of.get_mut(&service)
        {
            names.remove(&key.name);
            if names.is_empty() {
                self.slices_of.remove(&service);
            }
        }
        if let Some(service) = self.slices.get(key).map(|slice| service_of(slice)) {
            self.slices_of.entry(service).or_default().insert(key.name.clone());
        }
    }

    /// Deleted Endpoints come back at once; edited ones stay until something else happens.
    fn endpoints(&mut self, change: &Change<Endpoints>) {
        let is_first_list = !self.endpoints.synced();
        let Some((key, before)) = self.endpoints.observe(change) else { return };
        self.wake(Part::Mirror, &key, Duration::ZERO);
        let now = self.endpoints.get(&key);
        if now.is_some_and(|now| is_endpoints_by_hand(now)) {
            self.wake(Part::Advice, &key, ADVICE_DELAY);
        }
        let is_gone = self.endpoints.get(&key).is_none();
        if let Some(before) = before.filter(|_| is_gone) {
            self.advised.remove(before.metadata.uid.as_deref().unwrap_or(""));
        }
        if is_first_list || is_gone {
            self.wake(Part::Endpoints, &key, Duration::ZERO);
        }
    }
}

/// The Service that a slice names; an empty name if it does not.
fn service_of(slice: &EndpointSlice) -> ObjectKey {
    let name = slice.labels().get(slices::SERVICE_NAME).map_or("", String::as_str);
    ObjectKey::new(slice.namespace().unwrap_or_default(), name)
}

/// The slices of a Service, whoever writes them.
fn slices_of<'a>(
    index: &'a HashMap<ObjectKey, BTreeSet<String>>,
    slices: &'a Cache<EndpointSlice>,
    service: &'a ObjectKey,
) -> impl Iterator<Item = &'a EndpointSlice> {
    let names = index.get(service).into_iter().flatten();
    let keys = names.map(|name| ObjectKey::new(&service.namespace, name));
    keys.filter_map(|key| slices.get(&key).map(AsRef::as_ref))
}

/// The selector by which endpoints are found for a Service, if that is how they are found.
fn selector(service: &Service) -> Option<&roadstead_api::selector::Labels> {
    let spec = service.spec.as_ref()?;
    let by_selector = spec.type_.as_deref() != Some("ExternalName");
    spec.selector.as_ref().filter(|selector| by_selector && !selector.is_empty())
}

fn distribution(service: &Service) -> Option<&'static str> {
    let wanted = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    ["PreferClose", "PreferSameZone", "PreferSameNode"].into_iter().find(|name| *name == wanted)
}

impl Controller for State {
    type Key = Work;
    const COMPONENT: &'static str = "endpoint-slice-controller";
    const WORKERS: usize = 15;

    fn queue(&self) -> &Queue<Work> {
        &self.queue
    }

    fn queue_mut(&mut self) -> &mut Queue<Work> {
        &mut self.queue
    }

    fn synced(&self) -> bool {
        self.services.synced()
            && self.slices.synced()
            && (!self.follows_pods() || (self.pods.synced() && self.nodes.synced()))
            && (!self.follows_endpoints() || self.endpoints.synced())
    }

    fn plan(&mut self, work: &Work, _: Timestamp) -> Plan {
        match work.part {
            Part::Slices => self.plan_slices(work),
            Part::Endpoints => self.plan_endpoints(&work.key),
            Part::Mirror => self.plan_mirror(work),
            Part::Advice => self.plan_advice(&work.key),
        }
    }

    fn record(&mut self, write: &Write, answer: &str) {
        if write.collection.kind == "EndpointSlice" {
            if let Some((key, before)) = self.slices.take_in(write, answer) {
                self.index_slice(&key, before.as_deref());
            }
        } else {
            self.endpoints.take_in(write, answer);
        }
    }

    fn backoff(&self, work: &Work) -> Backoff {
        let up_to = |seconds| Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(seconds),
        };
        match work.part {
            Part::Slices => up_to(1000),
            Part::Mirror => up_to(100),
            Part::Advice => Backoff::default(),
            Part::Endpoints => Backoff { longest: Duration::from_secs(1000), ..Backoff::default() },
        }
    }

    fn queue_name(work: &Work) -> &'static str {
        match work.part {
            Part::Slices => "endpoint_slice",
            Part::Endpoints => "endpoint",
            Part::Mirror => "endpoint_slice_mirroring",
            Part::Advice => "endpoint_advice",
        }
    }

    fn finished(&mut self, work: &Work, failed: bool) {
        let result = if failed { "error" } else { "success" };
        match work.part {
            Part::Slices => self.metrics.result(Writer::Slices, result),
            Part::Mirror => self.metrics.result(Writer::Mirror, result),
            Part::Endpoints | Part::Advice => {}
        }
    }
}
