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
use kube::{Api, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Labels;
use roadstead_plan::endpoint_warnings::{EndpointWarning, is_endpoints_by_hand, is_slice_by_hand};
use roadstead_plan::endpointslice::hints::{Mode, Note, Topology};
use roadstead_plan::endpointslice::{self as slices};
use roadstead_plan::endpointslice_mirroring;
use roadstead_plan::pod_view::PodView;
use roadstead_plan::selection::{Labelled, Selectors};
use roadstead_plan::trigger_time::TriggerTimes;
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Selection, trimmed};
use roadstead_watch::queue::{Backoff, Queue};

use crate::Context;
use crate::metrics::{Metrics, SliceWriter, Totals};
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

mod sync;

/// Somebody else's edit of a slice is undone after this, so that two writers do not race.
const SELF_HEAL_DELAY: Duration = Duration::from_secs(1);
/// What is said about what was written by hand waits for the rest of it.
const WARNING_DELAY: Duration = Duration::from_secs(3);

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum EndpointsController {
    /// EndpointSlices from pods.
    Slices,
    /// Endpoints from pods.
    Endpoints,
    /// EndpointSlices from Endpoints.
    Mirroring,
    /// What to say about endpoints that are written by hand; goes with the mirror.
    Warnings,
}

const ALL: [EndpointsController; 3] =
    [EndpointsController::Slices, EndpointsController::Endpoints, EndpointsController::Mirroring];

impl EndpointsController {
    /// The work of this controller on a Service.
    fn on(self, key: &ObjectKey) -> ServiceWork {
        ServiceWork { controller: self, key: key.clone() }
    }
}

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many endpoints fit into a slice.
    pub max_endpoints: usize,
    /// How many addresses of a subset are mirrored.
    pub max_mirrored: usize,
    /// How long changes of pods are collected before they are acted upon.
    pub batch_period: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_endpoints: 100, max_mirrored: 1000, batch_period: Duration::ZERO }
    }
}

/// Runs those of the controllers that are wanted, as one task.
pub(crate) async fn run(context: Context, wanted: BTreeSet<EndpointsController>) {
    let client = &context.client;
    let slices = Api::<EndpointSlice>::all(client.clone());
    let mut inputs = Inputs::new().watch(every::<Service>(client)).watch(trimmed(
        slices,
        Selection::all(),
        trim_slice,
    ));
    let metrics = context.settings.metrics.clone();
    let state = State::new(wanted, context.settings.endpoints.clone(), metrics);
    if state.follows_pods() {
        inputs = inputs.watch(every::<PodView>(client)).watch(every::<Node>(client));
    }
    if state.follows_endpoints() {
        let endpoints = Api::<Endpoints>::all(client.clone());
        inputs = inputs.watch(trimmed(endpoints, Selection::all(), trim_endpoints));
    }
    runner::run(context, state, inputs).await;
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
struct ServiceWork {
    controller: EndpointsController,
    key: ObjectKey,
}

impl fmt::Display for ServiceWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.key, self.controller)
    }
}

struct State {
    wanted: BTreeSet<EndpointsController>,
    config: Config,
    metrics: Metrics,
    services: ServiceIndex,
    pods: PodIndex,
    nodes: NodeIndex,
    slices: SliceIndex,
    endpoints: Cache<Endpoints>,
    slice_triggers: TriggerTimes,
    endpoint_triggers: TriggerTimes,
    told: Told,
}

/// Services, and what they select.
#[derive(Default)]
struct ServiceIndex {
    cache: Cache<Service>,
    selectors: Selectors,
    /// Services that want topology-aware hints.
    auto: BTreeSet<ObjectKey>,
}

/// Pods, by their labels and by their nodes.
#[derive(Default)]
struct PodIndex {
    cache: Cache<PodView>,
    by_label: Labelled<Arc<PodView>>,
    on_node: HashMap<String, BTreeSet<ObjectKey>>,
}

/// Nodes, and what their zones have.
#[derive(Default)]
struct NodeIndex {
    cache: Cache<Node>,
    topology: Topology,
}

/// Slices, by the Services that they name.
#[derive(Default)]
struct SliceIndex {
    cache: Cache<EndpointSlice>,
    /// The names of the slices of a Service; those without one are under an empty name.
    by_service: HashMap<ObjectKey, BTreeSet<String>>,
}

/// What users and metrics have been told already.
#[derive(Default)]
struct Told {
    /// About hints.
    hints: HashMap<(ObjectKey, String), Note>,
    /// About objects that they wrote, by uid.
    warnings: HashMap<String, Vec<EndpointWarning>>,
    totals: HashMap<ServiceWork, Totals>,
}

impl PodIndex {
    fn observe(&mut self, change: &Changed<PodView>) {
        let key = &change.key;
        if let Some(before) = &change.before {
            self.by_label.remove(key, before.metadata.labels.as_ref());
            if let Some(pods) = self.on_node.get_mut(&before.node) {
                pods.remove(key);
                if pods.is_empty() {
                    self.on_node.remove(&before.node);
                }
            }
        }
        if let Some(now) = &change.now {
            self.by_label.insert(key, now.metadata.labels.as_ref(), now);
            self.on_node.entry(now.node.clone()).or_default().insert(key.clone());
        }
    }

    /// The pods that a Service selects.
    fn selected(&self, service: &ObjectKey, selector: &Labels) -> Vec<&PodView> {
        let namespace = &service.namespace;
        let selected =
            self.by_label.selected(namespace, selector, |pod| pod.metadata.labels.as_ref());
        selected.into_iter().map(AsRef::as_ref).collect()
    }
}

impl SliceIndex {
    fn observe(&mut self, change: &Changed<EndpointSlice>) {
        if let Some(service) = change.before.as_deref().map(service_of)
            && let Some(names) = self.by_service.get_mut(&service)
        {
            names.remove(&change.key.name);
            if names.is_empty() {
                self.by_service.remove(&service);
            }
        }
        if let Some(service) = change.now.as_deref().map(service_of) {
            self.by_service.entry(service).or_default().insert(change.key.name.clone());
        }
    }

    /// The slices of a Service, whoever writes them.
    fn of<'a>(&'a self, service: &'a ObjectKey) -> impl Iterator<Item = &'a EndpointSlice> {
        let names = self.by_service.get(service).into_iter().flatten();
        let keys = names.map(|name| ObjectKey::new(&service.namespace, name));
        keys.filter_map(|key| self.cache.get(&key).map(AsRef::as_ref))
    }

    /// The slices of a Service that one controller manages.
    fn managed<'a>(&'a self, service: &'a ObjectKey, manager: &str) -> Vec<&'a EndpointSlice> {
        let is_own = |slice: &&EndpointSlice| {
            slice.labels().get(slices::MANAGED_BY).is_some_and(|name| name == manager)
        };
        self.of(service).filter(is_own).collect()
    }
}

impl State {
    fn new(wanted: BTreeSet<EndpointsController>, config: Config, metrics: Metrics) -> Self {
        Self {
            wanted,
            config,
            metrics,
            services: ServiceIndex::default(),
            pods: PodIndex::default(),
            nodes: NodeIndex::default(),
            slices: SliceIndex::default(),
            endpoints: Cache::default(),
            slice_triggers: TriggerTimes::default(),
            endpoint_triggers: TriggerTimes::default(),
            told: Told::default(),
        }
    }

    fn runs(&self, controller: EndpointsController) -> bool {
        let is_part_of = match controller {
            EndpointsController::Warnings => EndpointsController::Mirroring,
            other => other,
        };
        self.wanted.contains(&is_part_of)
    }

    fn follows_pods(&self) -> bool {
        self.runs(EndpointsController::Slices) || self.runs(EndpointsController::Endpoints)
    }

    fn follows_endpoints(&self) -> bool {
        self.runs(EndpointsController::Mirroring) || self.runs(EndpointsController::Endpoints)
    }

    /// Queues a Service for one controller, if that runs.
    fn queue(&self, queue: &mut Queue<ServiceWork>, work: ServiceWork, delay: Duration) {
        match (self.runs(work.controller), delay.is_zero()) {
            (false, _) => {}
            (true, true) => queue.add(work),
            (true, false) => queue.add_after(work, delay),
        }
    }

    /// Queues Services for the controllers that look at pods.
    fn queue_selecting(
        &self,
        queue: &mut Queue<ServiceWork>,
        services: BTreeSet<ObjectKey>,
        delay: Duration,
    ) {
        for service in services {
            self.queue(queue, EndpointsController::Slices.on(&service), delay);
            self.queue(queue, EndpointsController::Endpoints.on(&service), delay);
        }
    }

    /// Whether somebody has written endpoints of that Service.
    fn is_helped_by_hand(&self, key: &ObjectKey) -> bool {
        self.endpoints.get(key).is_some_and(|endpoints| is_endpoints_by_hand(endpoints))
            || self.slices.of(key).any(is_slice_by_hand)
    }

    fn selecting(&self, key: &ObjectKey, pod: &PodView) -> Vec<ObjectKey> {
        let selectors = &self.services.selectors;
        let names = selectors.selecting(&key.namespace, pod.metadata.labels.as_ref());
        names.into_iter().map(|name| ObjectKey::new(&key.namespace, name)).collect()
    }
}

impl Watches<Service> for State {
    fn cache(&mut self) -> &mut Cache<Service> {
        &mut self.services.cache
    }

    fn wake(&mut self, change: &Changed<Service>, queue: &mut Queue<ServiceWork>) {
        let Changed { key, before, now } = change;
        self.services.selectors.set(key, now.as_deref().and_then(selector));
        match now.as_deref().map(Mode::of) {
            Some(Mode::Auto) => drop(self.services.auto.insert(key.clone())),
            _ => drop(self.services.auto.remove(key)),
        }
        for (service, difference) in [(before, -1), (now, 1)] {
            if let Some(distribution) = service.as_deref().and_then(distribution) {
                self.metrics.distribution(distribution, difference);
            }
        }
        for controller in ALL {
            self.queue(queue, controller.on(key), Duration::ZERO);
        }
        if self.is_helped_by_hand(key) {
            self.queue(queue, EndpointsController::Warnings.on(key), WARNING_DELAY);
        }
    }
}

impl Watches<PodView> for State {
    fn cache(&mut self) -> &mut Cache<PodView> {
        &mut self.pods.cache
    }

    /// Wakes the Services that select the pod as it was or as it is.
    fn wake(&mut self, change: &Changed<PodView>, queue: &mut Queue<ServiceWork>) {
        if let (Some(before), Some(now)) = (&change.before, &change.now)
            && !now.differs_from(before)
        {
            return;
        }
        self.pods.observe(change);
        let services = change.states().flat_map(|pod| self.selecting(&change.key, pod)).collect();
        self.queue_selecting(queue, services, self.config.batch_period);
    }
}

impl Watches<Node> for State {
    fn cache(&mut self) -> &mut Cache<Node> {
        &mut self.nodes.cache
    }

    /// A node that appears, goes or changes its zone matters to the Services with pods on it; its
    /// readiness and size only to those that share endpoints out by zones.
    fn wake(&mut self, change: &Changed<Node>, queue: &mut Queue<ServiceWork>) {
        let labels = |node: &Arc<Node>| node.metadata.labels.clone();
        if change.before.as_ref().map(labels) != change.now.as_ref().map(labels) {
            let pods = self.pods.on_node.get(&change.key.name).into_iter().flatten();
            let pods = pods.filter_map(|pod| Some((pod, self.pods.cache.get(pod)?)));
            let services = pods.flat_map(|(key, pod)| self.selecting(key, pod)).collect();
            self.queue_selecting(queue, services, Duration::ZERO);
        }
        let nodes = self.nodes.cache.iter().map(|(_, node)| node.as_ref());
        let topology = Topology::of(nodes);
        if topology != self.nodes.topology {
            self.nodes.topology = topology;
            for service in &self.services.auto {
                self.queue(queue, EndpointsController::Slices.on(service), Duration::ZERO);
            }
        }
    }
}

impl Watches<EndpointSlice> for State {
    fn cache(&mut self) -> &mut Cache<EndpointSlice> {
        &mut self.slices.cache
    }

    fn index(&mut self, change: &Changed<EndpointSlice>, _: &mut Queue<ServiceWork>) {
        self.slices.observe(change);
    }

    fn wake(&mut self, change: &Changed<EndpointSlice>, queue: &mut Queue<ServiceWork>) {
        if let (Some(before), None) = (&change.before, &change.now) {
            self.told.warnings.remove(before.metadata.uid.as_deref().unwrap_or(""));
        }
        for slice in change.states() {
            let service = service_of(slice);
            let (controller, delay) =
                match slice.labels().get(slices::MANAGED_BY).map(String::as_str) {
                    Some(slices::CONTROLLER) => (EndpointsController::Slices, SELF_HEAL_DELAY),
                    Some(endpointslice_mirroring::CONTROLLER) => {
                        (EndpointsController::Mirroring, SELF_HEAL_DELAY)
                    }
                    _ => (EndpointsController::Warnings, WARNING_DELAY),
                };
            self.queue(queue, controller.on(&service), delay);
        }
    }
}

impl Watches<Endpoints> for State {
    fn cache(&mut self) -> &mut Cache<Endpoints> {
        &mut self.endpoints
    }

    /// Deleted Endpoints come back at once; edited ones stay until something else happens.
    fn wake(&mut self, change: &Changed<Endpoints>, queue: &mut Queue<ServiceWork>) {
        let Changed { key, before, now } = change;
        self.queue(queue, EndpointsController::Mirroring.on(key), Duration::ZERO);
        if now.as_ref().is_some_and(|now| is_endpoints_by_hand(now)) {
            self.queue(queue, EndpointsController::Warnings.on(key), WARNING_DELAY);
        }
        if let Some(before) = before.as_ref().filter(|_| now.is_none()) {
            self.told.warnings.remove(before.metadata.uid.as_deref().unwrap_or(""));
        }
        let is_first_list = !self.endpoints.synced();
        if is_first_list || now.is_none() {
            self.queue(queue, EndpointsController::Endpoints.on(key), Duration::ZERO);
        }
    }
}

/// The Service that a slice names; an empty name if it does not.
fn service_of(slice: &EndpointSlice) -> ObjectKey {
    let name = slice.labels().get(slices::SERVICE_NAME).map_or("", String::as_str);
    ObjectKey::new(slice.namespace().unwrap_or_default(), name)
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
    type Key = ServiceWork;
    const COMPONENT: &'static str = "endpoint-slice-controller";
    const QUEUE: &'static str = "endpoint_slice";
    const WORKERS: usize = 15;

    fn plan(&mut self, work: &ServiceWork, _: Timestamp) -> WritePlan<ServiceWork> {
        match work.controller {
            EndpointsController::Slices => self.plan_slices(work),
            EndpointsController::Endpoints => self.plan_endpoints(&work.key),
            EndpointsController::Mirroring => self.plan_mirror(work),
            EndpointsController::Warnings => self.plan_warnings(&work.key),
        }
    }

    fn backoff(work: &ServiceWork) -> Backoff {
        let up_to = |seconds| Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(seconds),
        };
        match work.controller {
            EndpointsController::Slices => up_to(1000),
            EndpointsController::Mirroring => up_to(100),
            EndpointsController::Warnings => Backoff::default(),
            EndpointsController::Endpoints => {
                Backoff { longest: Duration::from_secs(1000), ..Backoff::default() }
            }
        }
    }

    fn queue_name(work: &ServiceWork) -> &'static str {
        match work.controller {
            EndpointsController::Slices => "endpoint_slice",
            EndpointsController::Endpoints => "endpoint",
            EndpointsController::Mirroring => "endpoint_slice_mirroring",
            EndpointsController::Warnings => "endpoint_advice",
        }
    }

    fn finished(&mut self, work: &ServiceWork, failed: bool) {
        let result = if failed { "error" } else { "success" };
        match work.controller {
            EndpointsController::Slices => self.metrics.result(SliceWriter::Slices, result),
            EndpointsController::Mirroring => self.metrics.result(SliceWriter::Mirror, result),
            EndpointsController::Endpoints | EndpointsController::Warnings => {}
        }
    }
}
