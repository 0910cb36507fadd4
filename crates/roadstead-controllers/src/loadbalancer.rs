//! The LoadBalancer controller: gives Services of that type their addresses, and takes them back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Node, Service};
use k8s_openapi::jiff::Timestamp;
use roadstead_api::key::ObjectKey;
use roadstead_plan::loadbalancer::{self as plan, Balance, FINALIZER, Holders, Input, Pool};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

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

pub(crate) async fn run(context: Context) {
    let config = context.settings.load_balancer.clone();
    let mut inputs = Inputs::new().watch(every::<Service>(&context.client));
    if config.pool == Pool::Nodes {
        inputs = inputs.watch(every::<Node>(&context.client));
    }
    let state = State {
        config,
        services: Cache::default(),
        nodes: Cache::default(),
        addresses: BTreeSet::new(),
        holders: Holders::new(),
        failed: BTreeMap::new(),
    };
    runner::run(context, state, inputs).await;
}

struct State {
    config: Config,
    services: Cache<Service>,
    nodes: Cache<Node>,
    addresses: BTreeSet<IpAddr>,
    holders: Holders,
    /// Services that could not get what they want, and why.
    failed: BTreeMap<ObjectKey, String>,
}

impl Watches<Service> for State {
    fn cache(&mut self) -> &mut Cache<Service> {
        &mut self.services
    }

    /// Notes who holds which address; whoever waits for one may try again when one is released.
    fn index(&mut self, change: &Changed<Service>, queue: &mut Queue<ObjectKey>) {
        let Changed { key, before, now } = change;
        let what = |service: &Arc<Service>| (plan::held(service), plan::ports(service));
        if before.as_ref().map(what) == now.as_ref().map(what) {
            return;
        }
        for address in before.as_deref().map(plan::held).unwrap_or_default() {
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
            self.failed.keys().for_each(|key| queue.add(key.clone()));
        }
        if now.is_none() {
            self.failed.remove(key);
        }
    }

    fn wake(&mut self, change: &Changed<Service>, queue: &mut Queue<ObjectKey>) {
        let concerns_us = |service: &Service| is_balanced(service) || plan::has_finalizer(service);
        if change.now.as_ref().is_some_and(|service| concerns_us(service)) {
            queue.add(change.key.clone());
        }
    }
}

impl Watches<Node> for State {
    fn cache(&mut self) -> &mut Cache<Node> {
        &mut self.nodes
    }

    fn wake(&mut self, _: &Changed<Node>, queue: &mut Queue<ObjectKey>) {
        let nodes = self.nodes.iter().flat_map(|(_, node)| plan::node_addresses(node));
        let addresses = nodes.collect();
        if self.addresses != addresses {
            self.addresses = addresses;
            let balanced = self.services.iter().filter(|(_, service)| is_balanced(service));
            balanced.for_each(|(key, _)| queue.add(key.clone()));
        }
    }
}

impl State {
    fn ensure(
        &mut self,
        key: &ObjectKey,
        service: &Service,
        wanted: &[LoadBalancerIngress],
    ) -> WritePlan {
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
        WritePlan { writes, events: events.collect(), ..WritePlan::none() }
    }

    fn fail(&mut self, key: &ObjectKey, service: &Service, why: String) -> WritePlan {
        let known = self.failed.insert(key.clone(), why.clone());
        let text = format!("Error syncing load balancer: {why}");
        let event = || tell(service, Severity::Warning, "SyncLoadBalancerFailed", &text);
        let events = (known != Some(why)).then(event).into_iter().collect();
        let writes = (!ingress(service).is_empty()).then(|| status(key, &[])).into_iter().collect();
        WritePlan { writes, events, ..WritePlan::none() }
    }

    fn release(&mut self, key: &ObjectKey, service: &Service) -> WritePlan {
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
        WritePlan { writes, events: events.into(), ..WritePlan::none() }
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "service-controller";
    const QUEUE: &'static str = "service";
    // What one Service gets, another cannot have.
    const WORKERS: usize = 1;

    fn plan(&mut self, key: &ObjectKey, _: Timestamp) -> WritePlan {
        let Some(service) = self.services.get(key).cloned() else { return WritePlan::none() };
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
            Balance::Ignore => WritePlan::none(),
            Balance::Ensure(wanted) => self.ensure(key, &service, &wanted),
            Balance::Fail(why) => self.fail(key, &service, why),
            Balance::Release => self.release(key, &service),
        }
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

fn tell(service: &Service, severity: Severity, reason: &str, message: &str) -> EventDraft {
    let (reason, message) = (reason.to_owned(), message.to_owned());
    EventDraft { about: InvolvedObject::of(service), severity, reason, message }
}
