//! The whole control plane in one thread with a seed: random changes by users, broken watches,
//! failing writes, controllers that restart. When input is quiet, everything must be as if there
//! had been no trouble.
//!
//! `ROADSTEAD_SEED=7 cargo test --test sim` runs one seed; without it a few run.

mod cluster;
mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::env;

use cluster::Cluster;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::ResourceExt;
use roadstead_api::selector::selects;
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::tracker::Tracker;
use roadstead_plan::endpointslice::{MANAGED_BY, SERVICE_NAME};
use roadstead_plan::pod;
use roadstead_watch::informer::key_of;

#[test]
fn a_troubled_cluster_ends_up_right() {
    let seeds = match env::var("ROADSTEAD_SEED") {
        Ok(seed) => vec![seed.parse().expect("ROADSTEAD_SEED is a number")],
        Err(_) => (1..=12).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(story(seed));
    }
}

async fn story(seed: u64) {
    let mut cluster = Cluster::start(seed).await;
    for round in 0..12 {
        for _ in 0..cluster.random.below(8) {
            cluster.disturb().await;
        }
        cluster.calm().await;
        check(&cluster, &format!("seed {seed}, round {round}")).await;
        cluster.trouble();
    }
}

/// What must be true whenever nothing happens.
async fn check(cluster: &Cluster, when: &str) {
    let pods: Vec<Pod> = cluster.list().await;
    let sets: Vec<ReplicaSet> = cluster.list().await;
    let deployments: Vec<Deployment> = cluster.list().await;
    let services: Vec<Service> = cluster.list().await;
    let slices: Vec<EndpointSlice> = cluster.list().await;
    let addresses: Vec<IPAddress> = cluster.list().await;

    for deployment in &deployments {
        let wanted = deployment.spec.replicas.unwrap_or(1);
        let labels = deployment.spec.selector.match_labels.clone().unwrap();
        let running = pods.iter().filter(|p| selects(&labels, p.metadata.labels.as_ref())).count();
        assert_eq!(running as i32, wanted, "{when}: pods of {}", deployment.name_any());
        let status = deployment.status.clone().unwrap_or_default();
        assert_eq!(status.replicas.unwrap_or(0), wanted, "{when}: status");
        assert_eq!(status.observed_generation, deployment.metadata.generation, "{when}");
    }
    let owners: BTreeSet<_> = deployments.iter().flat_map(ResourceExt::uid).collect();
    for set in &sets {
        let owner = &set.owner_references()[0].uid;
        assert!(owners.contains(owner), "{when}: {} has no owner", set.name_any());
    }
    check_slices(&services, &pods, &slices, when);
    check_table(&services, &pods, &slices, when);

    let held: BTreeSet<_> = services.iter().flat_map(cluster_ip).collect();
    let taken: BTreeSet<_> = addresses.iter().map(ResourceExt::name_any).collect();
    assert_eq!(held, taken, "{when}: addresses taken are those that Services hold");
}

/// Slices hold the eligible pods of their Service, each once.
fn check_slices(services: &[Service], pods: &[Pod], slices: &[EndpointSlice], when: &str) {
    let managed = slices.iter().filter(|slice| slice.labels().contains_key(MANAGED_BY));
    let mut found: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for slice in managed {
        let entry = found.entry(slice.labels()[SERVICE_NAME].clone()).or_default();
        for endpoint in slice.endpoints.iter().flatten() {
            let ready = endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true);
            entry.push((endpoint.addresses[0].clone(), ready));
        }
        entry.sort();
    }
    let mut wanted: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for service in services {
        let Some(selector) = service.spec.as_ref().and_then(|s| s.selector.as_ref()) else {
            continue;
        };
        let own = pods.iter().filter(|pod| selects(selector, pod.metadata.labels.as_ref()));
        let own = own.filter(|pod| address(pod).is_some() && !pod::is_finished(pod));
        let mut own: Vec<_> = own.map(|pod| (address(pod).unwrap(), pod::is_ready(pod))).collect();
        own.sort();
        wanted.insert(service.name_any(), own);
    }
    assert_eq!(found, wanted, "{when}: slices");
}

/// The proxy would send each Service's connections to its ready pods.
fn check_table(services: &[Service], pods: &[Pod], slices: &[EndpointSlice], when: &str) {
    let node = NodeView { name: "node".into(), zone: None };
    let mut tracker = Tracker::new(node);
    services.iter().for_each(|service| tracker.observe_service(service));
    slices.iter().for_each(|slice| tracker.observe_slice(slice));
    for service in services {
        let Some(selector) = service.spec.as_ref().and_then(|s| s.selector.as_ref()) else {
            continue;
        };
        let ready = pods.iter().filter(|p| selects(selector, p.metadata.labels.as_ref()));
        let ready: BTreeSet<_> = ready.filter(|p| pod::is_ready(p)).flat_map(address).collect();
        let key = key_of(service);
        let ports = tracker.service_ports(&key, IpFamily::V4);
        let targets = ports.iter().flat_map(|(_, port)| &port.cluster);
        let targets: BTreeSet<_> = targets.map(|target| target.address.to_string()).collect();
        assert_eq!(targets, ready, "{when}: targets of {key}");
    }
}

fn address(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.pod_ip.clone()
}

fn cluster_ip(service: &Service) -> Option<String> {
    service.spec.as_ref()?.cluster_ip.clone().filter(|ip| ip != "None")
}
