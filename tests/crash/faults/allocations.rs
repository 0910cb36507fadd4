//! Services that come and go at all servers, and two watches of who holds and of what is taken.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::api::{DeleteParams, ListParams, PostParams, VersionMatch, WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use roadstead_testkit::history::Fault;
use roadstead_testkit::history::allocations::{Holding, Item, Taken, check};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time;

use super::cluster::{Cluster, Directories};
use super::load::Shared;
use crate::{Random, server};

const SERVICES: u64 = 5;
/// Few, so that those given back are soon needed again.
const PORTS: u64 = 6;
const PATIENCE: Duration = Duration::from_secs(8);

/// What the watches have told so far.
#[derive(Default)]
struct Told {
    held: Vec<Holding>,
    taken: Vec<Taken>,
    /// How far each watch is, and whether its place was forgotten: then only what came before is judged.
    reached: [(u64, bool); 2],
    /// The revision at which something was written last.
    mark: u64,
}

/// Two watches, and what they have told.
pub(super) struct Watches(Arc<Mutex<Told>>);

impl Watches {
    /// Begins with what is held and taken at one revision.
    pub(super) async fn start(shared: &Shared, client: &Client, tasks: &mut JoinSet<()>) -> Self {
        let (services, addresses): (Api<Service>, Api<IPAddress>) =
            (Api::default_namespaced(client.clone()), Api::all(client.clone()));
        let now = services.list(&ListParams::default()).await.unwrap();
        let at = now.metadata.resource_version.unwrap();
        let then = ListParams::default().at(&at).matching(VersionMatch::Exact);
        let taken = addresses.list(&then).await.unwrap();
        let begin: u64 = at.parse().unwrap();
        let told = Arc::new(Mutex::new(Told { reached: [(begin, false); 2], ..Told::default() }));
        for service in now.items {
            note(&told, Change::Service(&service, true), begin);
        }
        for address in taken.items {
            note(&told, Change::Address(&address, true), begin);
        }
        tasks.spawn(follow::<Service>(shared.directories.clone(), told.clone(), 0, |at, there| {
            Change::Service(at, there)
        }));
        tasks.spawn(follow::<IPAddress>(
            shared.directories.clone(),
            told.clone(),
            1,
            |at, there| Change::Address(at, there),
        ));
        Self(told)
    }

    /// Writes the last Service.
    pub(super) async fn mark(&self, cluster: &Cluster) {
        let services: Api<Service> = Api::default_namespaced(cluster.client(0).await);
        let _ = services.delete("mark", &DeleteParams::default()).await;
        let made = services.create(&PostParams::default(), &service("mark", None)).await.unwrap();
        self.0.lock().unwrap().mark = made.resource_version().unwrap().parse().unwrap();
    }

    /// Whether both have told of the last one, or will never.
    pub(super) fn are_told(&self) -> bool {
        let told = self.0.lock().unwrap();
        told.reached.iter().all(|(reached, is_over)| *is_over || *reached >= told.mark)
    }

    /// Judges; returns at how many revisions something changed.
    pub(super) fn judge(&self) -> Result<usize, Fault> {
        let told = self.0.lock().unwrap();
        let until = told.reached.iter().map(|(reached, _)| *reached).min().unwrap_or(0);
        check(&told.held, &told.taken, until)
    }
}

/// A Service or an address, and whether it is there.
enum Change<'a> {
    Service(&'a Service, bool),
    Address(&'a IPAddress, bool),
}

fn note(told: &Mutex<Told>, change: Change<'_>, revision: u64) {
    let mut told = told.lock().unwrap();
    match change {
        Change::Service(service, is_there) => {
            let items = if is_there { items(service) } else { BTreeSet::new() };
            told.held.push(Holding { revision, holder: service.name_any(), items });
        }
        Change::Address(address, is_taken) => {
            let address = address.name_any().parse().unwrap();
            told.taken.push(Taken { revision, address, is_taken });
        }
    }
}

fn items(service: &Service) -> BTreeSet<Item> {
    let spec = service.spec.as_ref().expect("a Service has one");
    let addresses = spec.cluster_ips.iter().flatten().filter_map(|text| text.parse().ok());
    let ports = spec.ports.iter().flatten().filter_map(|port| port.node_port);
    let ports = ports.filter_map(|port| u16::try_from(port).ok());
    addresses.map(Item::Address).chain(ports.map(Item::Port)).collect()
}

/// Watches, wherever anybody answers, from where it was.
async fn follow<K>(
    directories: Directories,
    told: Arc<Mutex<Told>>,
    which: usize,
    change: fn(&K, bool) -> Change<'_>,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    for at in (0..directories.len()).cycle() {
        let all: Api<K> = Api::all(server::client(&directories[at]).await);
        let resume = told.lock().unwrap().reached[which].0.to_string();
        let events = all.watch(&WatchParams::default().timeout(5), &resume).await;
        let mut is_forgotten = matches!(&events, Err(kube::Error::Api(no)) if no.code == 410);
        if let Ok(events) = events {
            let mut events = events.boxed();
            while let Ok(Some(event)) = events.try_next().await {
                let (object, is_there) = match &event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                    WatchEvent::Deleted(object) => (object, false),
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(error) => {
                        is_forgotten = error.code == 410;
                        break;
                    }
                };
                let revision = object.meta().resource_version.as_ref().unwrap().parse().unwrap();
                note(&told, change(object, is_there), revision);
                told.lock().unwrap().reached[which].0 = revision;
            }
        }
        if is_forgotten {
            told.lock().unwrap().reached[which].1 = true;
            return;
        }
        time::sleep(Duration::from_millis(20)).await;
    }
}

fn service(name: &str, port: Option<u64>) -> Service {
    let mut ports = json!([{"port": 80}]);
    if let Some(port) = port {
        ports[0]["nodePort"] = port.into();
    }
    let type_ = if port.is_some() { "NodePort" } else { "ClusterIP" };
    let spec = json!({"type": type_, "ports": ports});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

/// Creates and deletes Services at one server after the other, until it is over.
pub(super) async fn write(shared: Arc<Shared>, number: usize, mut random: Random) {
    let directories = &shared.directories;
    let mut at = number;
    while !shared.is_over.load(Ordering::Acquire) {
        at = (at + 1) % directories.len();
        let services: Api<Service> =
            Api::default_namespaced(server::client(&directories[at]).await);
        for _ in 0..10 {
            let name = format!("s-{}", random.below(SERVICES));
            let port = (random.below(2) == 0).then(|| 30_000 + random.below(PORTS));
            let object = service(&name, port);
            let (post, delete) = (PostParams::default(), DeleteParams::default());
            let outcome = time::timeout(PATIENCE, async {
                match random.below(3) {
                    0 => services.delete(&name, &delete).await.map(drop),
                    _ => services.create(&post, &object).await.map(drop),
                }
            });
            match outcome.await {
                Ok(Ok(()) | Err(kube::Error::Api(_))) => {}
                _ => break,
            }
        }
        time::sleep(Duration::from_millis(20)).await;
    }
}
