//! The EndpointSlice controller: keeps the slices of every Service with a selector.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::selects;
use roadstead_plan::endpointslice::{self as plan, Input, SlicePlan};
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use roadstead_watch::queue::Queue;
use tracing::{debug, warn};

/// Somebody else's edit of a slice is undone after this, so that two writers do not race.
const SELF_HEAL_DELAY: Duration = Duration::from_secs(1);

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many endpoints fit into a slice.
    pub max_endpoints: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_endpoints: 100 }
    }
}

/// Runs the controller.
pub async fn run(client: Client, config: Config) {
    let all = Selection::all();
    let ours = all.clone().labels(&format!("{}={}", plan::MANAGED_BY, plan::CONTROLLER));
    let mut services = informer(Api::<Service>::all(client.clone()), all.clone());
    let mut pods = informer(Api::<Pod>::all(client.clone()), all.clone());
    let mut nodes = informer(Api::<Node>::all(client.clone()), all);
    let mut slices = informer(Api::<EndpointSlice>::all(client.clone()), ours);
    let mut state = State::new(client, config);
    loop {
        tokio::select! {
            biased;
            Some(change) = services.next() => state.service(&change),
            Some(change) = pods.next() => state.pod(&change),
            Some(change) = nodes.next() => state.node(&change),
            Some(change) = slices.next() => state.slice(&change),
            () = state.queue.ready(), if state.synced() => state.work().await,
        }
    }
}

struct State {
    client: Client,
    config: Config,
    services: Cache<Service>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    slices: Cache<EndpointSlice>,
    queue: Queue<ObjectKey>,
}

impl State {
    fn new(client: Client, config: Config) -> Self {
        Self {
            client,
            config,
            services: Cache::default(),
            pods: Cache::default(),
            nodes: Cache::default(),
            slices: Cache::default(),
            queue: Queue::default(),
        }
    }

    fn synced(&self) -> bool {
        let (services, pods) = (self.services.synced(), self.pods.synced());
        services && pods && self.nodes.synced() && self.slices.synced()
    }

    fn service(&mut self, change: &Change<Service>) {
        if let Some((key, _)) = self.services.observe(change) {
            self.queue.add(key);
        }
    }

    /// Wakes the Services that select the pod as it was or as it is.
    fn pod(&mut self, change: &Change<Pod>) {
        let Some((key, before)) = self.pods.observe(change) else { return };
        let now = self.pods.get(&key).cloned();
        for pod in [before, now].into_iter().flatten() {
            for service in self.services.in_namespace(&key.namespace) {
                if selector_matches(service, &pod) {
                    self.queue.add(key_of(service.as_ref()));
                }
            }
        }
    }

    /// A node that appears, or changes its zone, may matter to every Service with pods on it.
    fn node(&mut self, change: &Change<Node>) {
        let Some((key, before)) = self.nodes.observe(change) else { return };
        let labels = |node: &Arc<Node>| node.metadata.labels.clone();
        if before.as_ref().map(labels) != self.nodes.get(&key).map(labels) {
            self.services.iter().for_each(|(key, _)| self.queue.add(key.clone()));
        }
    }

    fn slice(&mut self, change: &Change<EndpointSlice>) {
        let Some((key, before)) = self.slices.observe(change) else { return };
        for slice in [before, self.slices.get(&key).cloned()].into_iter().flatten() {
            if let Some(service) = slice.labels().get(plan::SERVICE_NAME) {
                let key = ObjectKey::new(&key.namespace, service);
                self.queue.add_after(key, SELF_HEAL_DELAY);
            }
        }
    }

    async fn work(&mut self) {
        let Some(key) = self.queue.pop() else { return };
        match self.sync(&key).await {
            Ok(()) => self.queue.succeeded(&key),
            Err(error) => {
                let again_in = self.queue.retry(key.clone());
                warn!(service = %key, %error, ?again_in, "slices not written");
            }
        }
    }

    async fn sync(&mut self, key: &ObjectKey) -> Result<(), kube::Error> {
        let Some(service) = self.services.get(key).cloned() else {
            // The garbage collector removes the slices.
            return Ok(());
        };
        let Some(plan) = self.plan(&service) else { return Ok(()) };
        if !plan.missing_nodes.is_empty() {
            debug!(service = %key, nodes = ?plan.missing_nodes, "pods on unknown nodes left out");
        }
        self.carry_out(&key.namespace, plan).await
    }

    /// The writes that are due; `None` for Services that look after their endpoints themselves.
    fn plan(&self, service: &Service) -> Option<SlicePlan> {
        let key = key_of(service);
        let spec = service.spec.as_ref()?;
        if spec.type_.as_deref() == Some("ExternalName") || spec.selector.is_none() {
            return None;
        }
        let pods = self.pods.in_namespace(&key.namespace);
        let pods: Vec<_> =
            pods.filter(|pod| selector_matches(service, pod)).map(AsRef::as_ref).collect();
        let slices = self.slices.in_namespace(&key.namespace).map(AsRef::as_ref);
        let slices: Vec<_> = slices
            .filter(|slice: &&EndpointSlice| {
                slice.labels().get(plan::SERVICE_NAME) == Some(&key.name)
            })
            .collect();
        let node = |name: &str| self.nodes.get(&ObjectKey::new("", name)).map(AsRef::as_ref);
        Some(plan::plan(&Input {
            service,
            pods: &pods,
            node: &node,
            slices: &slices,
            max_endpoints: self.config.max_endpoints,
        }))
    }

    async fn carry_out(&mut self, namespace: &str, plan: SlicePlan) -> Result<(), kube::Error> {
        let api: Api<EndpointSlice> = crate::within(&self.client, namespace);
        for slice in plan.create {
            let created = api.create(&PostParams::default(), &slice).await?;
            debug!(slice = created.name_any(), "slice created");
            self.slices.record(created);
        }
        for slice in plan.update {
            let written = api.replace(&slice.name_any(), &PostParams::default(), &slice).await?;
            debug!(slice = written.name_any(), "slice updated");
            self.slices.record(written);
        }
        for slice in plan.delete {
            match api.delete(&slice.name_any(), &DeleteParams::default()).await {
                Err(error) if !crate::is_gone(&error) => return Err(error),
                _ => self.slices.forget(&slice),
            }
        }
        Ok(())
    }
}

fn selector_matches(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| selects(selector, pod.metadata.labels.as_ref()))
}
