//! What every namespace has from the start, and gets back if somebody takes it away or changes it: a
//! default service account, and the certificate by which pods recognise the API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::namespace_content::{ACCOUNT, CERTIFICATE, Certificate, Present, plan};
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};

use crate::metrics::{Metrics, QueueMeter};
use crate::runner::{self, Controller, Inputs, Plan};

const ACCOUNTS: Collection = Collection::of::<ServiceAccount>();
const MAPS: Collection = Collection::of::<ConfigMap>();

/// Runs the controller; without a certificate only the accounts are made.
pub async fn run(client: Client, root_ca: Option<String>, metrics: Metrics) {
    let named = |name: &str| Selection::all().fields(&format!("metadata.name={name}"));
    let all = Api::<Namespace>::all(client.clone());
    let accounts = Api::<ServiceAccount>::all(client.clone());
    let maps = Api::<ConfigMap>::all(client.clone());
    let inputs = Inputs::new()
        .follow(informer(all, Selection::all()), State::namespace)
        .follow(informer(accounts, named(ACCOUNT)), State::account)
        .follow(informer(maps, named(CERTIFICATE)), State::map);
    let queue = Queue::with_meter(QueueMeter::new(metrics.clone(), State::queue_name));
    let state = State { root_ca, queue, ..State::default() };
    runner::run(client, metrics, state, inputs).await;
}

#[derive(Default)]
struct State {
    root_ca: Option<String>,
    /// Names of namespaces.
    queue: Queue<String>,
    namespaces: Cache<Namespace>,
    accounts: Cache<ServiceAccount>,
    maps: Cache<ConfigMap>,
}

impl State {
    fn namespace(&mut self, change: &Change<Namespace>) {
        if let Some((key, _)) = self.namespaces.observe(change) {
            self.queue.add(key.name);
        }
    }

    fn account(&mut self, change: &Change<ServiceAccount>) {
        if let Some((key, _)) = self.accounts.observe(change) {
            self.queue.add(key.namespace);
        }
    }

    fn map(&mut self, change: &Change<ConfigMap>) {
        if let Some((key, _)) = self.maps.observe(change) {
            self.queue.add(key.namespace);
        }
    }
}

impl Controller for State {
    type Key = String;
    const COMPONENT: &'static str = "namespace-content-controller";

    fn queue(&self) -> &Queue<String> {
        &self.queue
    }

    fn queue_mut(&mut self) -> &mut Queue<String> {
        &mut self.queue
    }

    fn synced(&self) -> bool {
        self.namespaces.synced() && self.accounts.synced() && self.maps.synced()
    }

    fn plan(&mut self, name: &String, _: Timestamp) -> Plan {
        let namespace = self.namespaces.get(&ObjectKey::new("", name));
        let Some(namespace) = namespace.filter(|own| own.metadata.deletion_timestamp.is_none())
        else {
            return Plan::none();
        };
        let name = namespace.name_any();
        let within = |object: &str| ObjectKey::new(&name, object);
        let present = Present {
            account: self.accounts.get(&within(ACCOUNT)).map(AsRef::as_ref),
            certificate: self.maps.get(&within(CERTIFICATE)).map(AsRef::as_ref),
        };
        let wanted = plan(&present, self.root_ca.as_deref());
        let account = wanted.account.as_ref().map(|account| Write::create(&name, account));
        let mut again_after = None;
        let certificate = wanted.certificate.map(|change| match change {
            Certificate::Create(map) => Write::create(&name, &map),
            Certificate::Replace(map) => Write::replace(key_of(&map), &map),
            Certificate::Delete(uid) => {
                // And made anew.
                again_after = Some(Duration::ZERO);
                Write::delete(MAPS, within(CERTIFICATE), uid.as_deref())
            }
        });
        let writes = account.into_iter().chain(certificate).collect();
        Plan { writes, again_after, ..Plan::none() }
    }

    fn record(&mut self, write: &Write, answer: &str) {
        if write.collection == ACCOUNTS {
            self.accounts.take_in(write, answer);
        } else {
            self.maps.take_in(write, answer);
        }
    }

    fn queue_name(_: &String) -> &'static str {
        "namespace-content"
    }
}
