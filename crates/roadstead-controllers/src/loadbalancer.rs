//! The LoadBalancer controller: gives Services of that type their addresses, and takes them back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Node, Service};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_plan::loadbalancer::{self as plan, Balance, FINALIZER, Holders, Input, Pool};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{About, Happening, Severity};
use roadstead_watch::informer::{Change, Selection, informer};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;

use crate::metrics::{Metrics, QueueMeter};
use crate::runner::{self, Controller, Inputs, Plan};

const SERVICES: Collection = Collection::of::<Service>();

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where addresses come from.
    pub pool: Pool,
    /// How traffic arrives: `VIP` (addressed to the Service) or `Proxy` (already translated).
    pub ip_mode: String,
    /// The ports that nodes need for themselves.
    pub own_ports: Vec<RangeInclusive<u16>>,
}

impl Default for Config {
    fn default() -> Self {
        Self { pool: Pool::Nodes, ip_mode: "VIP".into(), own_ports: plan::OWN_PORTS.into() }
    }
}

/// Runs the controller.
pub async fn run(client: Client, config: Config, metrics: Metrics) {
    let all = Selection::all();
    let mut inputs = Inputs::new()
        .follow(informer(Api::<Service>::all(client.clone()), all.clone()), State::service);
    if config.pool == Pool::Nodes {
        inputs = inputs.follow(informer(Api::<Node>::all(client.clone()), all), State::node);
    }
    let state = State {
        queue: Queue::with_meter(QueueMeter::new(metrics.clone(), State::queue_name)),
        config,
        services: Cache::default(),
        nodes: Cache::default(),
        addresses: BTreeSet::new(),
        holders: Holders::new(),
        failed: BTreeMap::new(),
    };
    runner::run(client, metrics, state, inputs).await;
}

struct State {
    config: Config,
    queue: Queue<ObjectKey>,
    services: Cache<Service>,
    nodes: Cache<Node>,
    addresses: BTreeSet<IpAddr>,
    holders: Holders,
    /// Services that could not get what they want, and why.
    failed: BTreeMap<ObjectKey, String>,
}

impl State {
    fn service(&mut self, change: &Change<Service>) {
        let Some((key, before)) = self.services.observe(change) else { return };
        self.hold(&key, before.as_deref());
        let concerns_us = |service: &Service| is_balanced(service) || plan::has_finalizer(service);
        if self.services.get(&key).is_some_and(|service| concerns_us(service)) {
            self.queue.add(key);
        }
    }

    /// Notes who holds which address; whoever waits for one may try again when one is released.
    fn hold(&mut self, key: &ObjectKey, before: Option<&Service>) {
        let now = self.services.get(key).cloned();
        let what = |service: &Service| (plan::held(service), plan::ports(service));
        if before.map(what) == now.as_deref().map(what) {
            return;
        }
        for address in before.map(plan::held).unwrap_or_default() {
            if let Some(holders) = self.holders.get_mut(&address) {
                holders.remove(key);
                if holders.is_empty() {
                    self.holders.remove(&address);
                }
            }
        }
        for address in now.as_deref().map(plan::held).unwrap_or_default() {
            let ports = now.as_deref().map(plan::ports).unwrap_or_default();
            self.holders.entry(address).or_default().insert(key.clone(), ports);
        }
        if before.is_some() {
            self.failed.keys().for_each(|key| self.queue.add(key.clone()));
        }
        if now.is_none() {
            self.failed.remove(key);
        }
    }

    fn node(&mut self, change: &Change<Node>) {
        if self.nodes.observe(change).is_none() {
            return;
        }
        let nodes = self.nodes.iter().flat_map(|(_, node)| plan::node_addresses(node));
        let addresses = nodes.collect();
        if self.addresses != addresses {
            self.addresses = addresses;
            let balanced = self.services.iter().filter(|(_, service)| is_balanced(service));
            balanced.for_each(|(key, _)| self.queue.add(key.clone()));
        }
    }

    fn ensure(
        &mut self,
        key: &ObjectKey,
        service: &Service,
        wanted: &[LoadBalancerIngress],
    ) -> Plan {
        let mut writes = Vec::new();
        if !plan::has_finalizer(service) {
            writes.push(finalizers(key, service, true));
        }
        let before = ingress(service);
        if before != wanted {
            writes.push(status(key, wanted));
        }
        self.failed.remove(key);
        let first = [
            ("EnsuringLoadBalancer", "Ensuring load balancer"),
            ("EnsuredLoadBalancer", "Ensured load balancer"),
        ];
        let later = [("UpdatedLoadBalancer", "Updated load balancer with new hosts")];
        let told: &[(&str, &str)] = match (before == wanted, before.is_empty()) {
            (true, _) => &[],
            (false, true) => &first,
            (false, false) => &later,
        };
        let events =
            told.iter().map(|(reason, text)| tell(service, Severity::Normal, reason, text));
        Plan { writes, events: events.collect(), ..Plan::none() }
    }

    fn fail(&mut self, key: &ObjectKey, service: &Service, why: String) -> Plan {
        let known = self.failed.insert(key.clone(), why.clone());
        let text = format!("Error syncing load balancer: {why}");
        let event = || tell(service, Severity::Warning, "SyncLoadBalancerFailed", &text);
        let events = (known != Some(why)).then(event).into_iter().collect();
        let writes = (!ingress(service).is_empty()).then(|| status(key, &[])).into_iter().collect();
        Plan { writes, events, ..Plan::none() }
    }

    fn release(&mut self, key: &ObjectKey, service: &Service) -> Plan {
        self.failed.remove(key);
        let mut writes = Vec::new();
        if !ingress(service).is_empty() {
            writes.push(status(key, &[]));
        }
        writes.push(finalizers(key, service, false));
        let told = [
            ("DeletingLoadBalancer", "Deleting load balancer"),
            ("DeletedLoadBalancer", "Deleted load balancer"),
        ];
        let events = told.map(|(reason, text)| tell(service, Severity::Normal, reason, text));
        Plan { writes, events: events.into(), ..Plan::none() }
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "service-controller";
    // What one Service gets, another cannot have.
    const WORKERS: usize = 1;

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    fn queue_mut(&mut self) -> &mut Queue<ObjectKey> {
        &mut self.queue
    }

    fn synced(&self) -> bool {
        self.services.synced() && (self.config.pool != Pool::Nodes || self.nodes.synced())
    }

    fn plan(&mut self, key: &ObjectKey, _: Timestamp) -> Plan {
        let Some(service) = self.services.get(key).cloned() else { return Plan::none() };
        let balance = plan::plan(&Input {
            service: &service,
            key,
            pool: &self.config.pool,
            nodes: &self.addresses,
            own_ports: &self.config.own_ports,
            holders: &self.holders,
            ip_mode: &self.config.ip_mode,
        });
        match balance {
            Balance::Ignore => Plan::none(),
            Balance::Ensure(wanted) => self.ensure(key, &service, &wanted),
            Balance::Fail(why) => self.fail(key, &service, why),
            Balance::Release => self.release(key, &service),
        }
    }

    fn record(&mut self, write: &Write, answer: &str) {
        if let Some((key, before)) = self.services.take_in(write, answer) {
            self.hold(&key, before.as_deref());
        }
    }

    fn queue_name(_: &ObjectKey) -> &'static str {
        "service"
    }
}

fn is_balanced(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
}

fn ingress(service: &Service) -> &[LoadBalancerIngress] {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    status.and_then(|status| status.ingress.as_deref()).unwrap_or_default()
}

fn status(key: &ObjectKey, ingress: &[LoadBalancerIngress]) -> Write {
    let ingress = (!ingress.is_empty()).then_some(ingress);
    let patch = json!({"status": {"loadBalancer": {"ingress": ingress}}});
    Write::merge(SERVICES, key.clone(), &patch).to("status")
}

fn finalizers(key: &ObjectKey, service: &Service, ours: bool) -> Write {
    let mut all = service.metadata.finalizers.clone().unwrap_or_default();
    all.retain(|finalizer| finalizer != FINALIZER);
    if ours {
        all.push(FINALIZER.to_owned());
    }
    let all = Some(all).filter(|all| !all.is_empty());
    let patch = json!({"metadata": {"uid": service.metadata.uid, "finalizers": all,
        "resourceVersion": service.metadata.resource_version.as_ref().filter(|_| ours)}});
    Write::merge(SERVICES, key.clone(), &patch)
}

fn tell(service: &Service, severity: Severity, reason: &str, message: &str) -> Happening {
    let (reason, message) = (reason.to_owned(), message.to_owned());
    Happening { about: About::object(service), severity, reason, message }
}
