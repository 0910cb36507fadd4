//! The whole control plane in one thread with a seed: random changes by users, broken watches,
//! failing writes, controllers that restart. When input is quiet, everything must be as if there
//! had been no trouble.
//!
//! `ROADSTEAD_SEED=7 cargo test --test sim` runs one seed; without it a few run.

mod cluster;
mod faults;
mod node;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Duration;

use cluster::{Cluster, MAX_ENDPOINTS};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::ResourceExt;
use roadstead_api::selector::selects;
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::tracker::Tracker;
use roadstead_plan::endpointslice::hints::Mode;
use roadstead_plan::endpointslice::{CONTROLLER, MANAGED_BY, SERVICE_NAME};
use roadstead_plan::{endpointslice_mirroring, pod_status};
use roadstead_server::kinds::service::allocate::repair;
use roadstead_watch::informer::key_of;
use tokio::time;

#[test]
fn a_troubled_cluster_ends_up_right() {
    let seeds = match env::var("ROADSTEAD_SEED") {
        Ok(seed) => vec![seed.parse().expect("ROADSTEAD_SEED is a number")],
        Err(_) => (1..=3).collect::<Vec<u64>>(),
    };
    let (mut checked, is_one) = (0, seeds.len() == 1);
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        checked += runtime.block_on(story(seed));
    }
    assert!(checked > 0 || is_one, "no workload could be held to everything");
}

/// Returns how many workloads could be held to everything that is true of them.
async fn story(seed: u64) -> usize {
    let mut cluster = Cluster::start(seed).await;
    let mut checked = 0;
    for round in 0..3 {
        for _ in 0..cluster.random.below(12) {
            cluster.disturb().await;
        }
        cluster.calm().await;
        let when = format!("seed {seed}, round {round}");
        check(&cluster, &when).await;
        checked += workloads::check(&cluster, &when).await;
        check_writes(&mut cluster, &when).await;
        cluster.trouble();
    }
    assert_eq!(cluster.refused(), Vec::<String>::new(), "seed {seed}: controllers lack rights");
    checked
}

/// A second sync writes nothing, and one pod's change costs one slice of each Service and family.
async fn check_writes(cluster: &mut Cluster, when: &str) {
    cluster.forget_writes();
    cluster.restart_all();
    time::sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.written(), Vec::<String>::new(), "{when}: writes of a second sync");
    let Some(listed) = cluster.flip_one().await else { return };
    time::sleep(Duration::from_secs(5)).await;
    let written = cluster.written().into_iter();
    let slices = written.filter(|write| write.contains("/endpointslices")).count();
    // Hints that are shared out between zones may move with the number of endpoints.
    let all: Vec<Service> = cluster.list().await;
    let is_shared_out = all.iter().any(|service| Mode::of(service) == Mode::Auto);
    let allowed = listed * if is_shared_out { 4 } else { 1 };
    assert!(slices <= allowed, "{when}: {slices} slices written for one pod in {listed} lists");
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
        let running = pods.iter().filter(|p| selects(&labels, p.metadata.labels.as_ref()));
        let running = running.filter(|pod| !pod_status::is_terminating(pod)).count();
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
    let endpoints: Vec<Endpoints> = cluster.list().await;
    check_endpoints(&services, &endpoints, &slices, when);
    check_balancers(&services, when);
    for pod in &pods {
        let is_lost = cluster.dead.has(pod_status::node(pod));
        assert!(
            !is_lost || !pod_status::is_ready(pod),
            "{when}: {} is on a dead node",
            pod.name_any()
        );
    }
    check_table(&services, &pods, &slices, when);

    let held: BTreeSet<_> = services.iter().flat_map(cluster_ips).collect();
    let taken: BTreeSet<_> = addresses.iter().map(ResourceExt::name_any).collect();
    assert_eq!(held, taken, "{when}: addresses taken are those that Services hold");
    let differences = repair::differences(&cluster.api).unwrap();
    assert_eq!(differences, [], "{when}: ports and addresses taken are those that Services hold");
}

/// Slices hold the eligible pods of their Service, each once in every family.
fn check_slices(services: &[Service], pods: &[Pod], slices: &[EndpointSlice], when: &str) {
    let managed = slices.iter().filter(|slice| is_managed_by(slice, CONTROLLER));
    let mut found: BTreeMap<(String, String), Vec<(String, bool)>> = BTreeMap::new();
    for slice in managed {
        let count = slice.endpoints.iter().flatten().count();
        assert!(count <= MAX_ENDPOINTS, "{when}: {} holds {count}", slice.name_any());
        let place = (slice.labels()[SERVICE_NAME].clone(), slice.address_type.clone());
        let entry = found.entry(place).or_default();
        for endpoint in slice.endpoints.iter().flatten() {
            let ready = endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true);
            entry.push((endpoint.addresses[0].clone(), ready));
        }
        entry.sort();
    }
    let mut wanted = BTreeMap::new();
    for (service, family) in services.iter().flat_map(families) {
        let Some(selector) = service.spec.as_ref().and_then(|s| s.selector.as_ref()) else {
            continue;
        };
        let own = pods.iter().filter(|pod| selects(selector, pod.metadata.labels.as_ref()));
        let own = own.filter(|pod| !pod_status::is_finished(pod));
        let all = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses) == Some(true);
        let is_ready =
            |pod: &Pod| all || (pod_status::is_ready(pod) && !pod_status::is_terminating(pod));
        let own = own.filter_map(|pod| Some((address(pod, &family)?, is_ready(pod))));
        let mut own: Vec<_> = own.collect();
        own.sort();
        wanted.insert((service.name_any(), family), own);
    }
    assert_eq!(found, wanted, "{when}: slices");
}

fn is_managed_by(slice: &EndpointSlice, manager: &str) -> bool {
    slice.labels().get(MANAGED_BY).is_some_and(|name| name == manager)
}

/// Endpoints say what slices of the first family say; slices of Services without a selector say what Endpoints say.
fn check_endpoints(
    services: &[Service],
    endpoints: &[Endpoints],
    slices: &[EndpointSlice],
    when: &str,
) {
    for service in services {
        let name = service.name_any();
        let selects = service.spec.as_ref().is_some_and(|spec| spec.selector.is_some());
        let manager = if selects { CONTROLLER } else { endpointslice_mirroring::CONTROLLER };
        let own = slices.iter().filter(|slice| is_managed_by(slice, manager));
        let family = families(service).next().map(|(_, family)| family);
        let own = own.filter(|slice| slice.labels()[SERVICE_NAME] == name);
        let own = own.filter(|slice| Some(&slice.address_type) == family.as_ref());
        let held = own.flat_map(|slice| slice.endpoints.iter().flatten());
        let ready = held.filter(|e| e.conditions.as_ref().and_then(|c| c.ready) == Some(true));
        let sliced: BTreeSet<_> = ready.map(|endpoint| endpoint.addresses[0].clone()).collect();
        let object = endpoints.iter().find(|endpoints| endpoints.name_any() == name);
        if name == "kubernetes" {
            continue;
        }
        assert!(object.is_some() || !selects, "{when}: no Endpoints of {name}");
        let subsets = object.into_iter().flat_map(|object| object.subsets.iter().flatten());
        let listed = subsets.flat_map(|subset| subset.addresses.iter().flatten());
        let listed: BTreeSet<_> = listed.map(|address| address.ip.clone()).collect();
        assert_eq!(listed, sliced, "{when}: Endpoints and slices of {name}");
    }
}

/// Load balancers have an address, and no two of them the same port of it.
fn check_balancers(services: &[Service], when: &str) {
    let mut taken = BTreeSet::new();
    for service in services {
        let is_balanced =
            service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"));
        let held = roadstead_plan::loadbalancer::held(service);
        assert!(is_balanced || held.is_empty(), "{when}: {} holds {held:?}", service.name_any());
        for address in held {
            for port in roadstead_plan::loadbalancer::ports(service) {
                assert!(taken.insert((address, port.clone())), "{when}: {address} {port:?} twice");
            }
        }
    }
}

/// The proxy would send each Service's connections to its ready pods.
fn check_table(services: &[Service], pods: &[Pod], slices: &[EndpointSlice], when: &str) {
    let node = NodeView { name: "node".into(), zone: None };
    let mut tracker = Tracker::new(node);
    services.iter().for_each(|service| tracker.observe_service(service));
    slices.iter().for_each(|slice| tracker.observe_slice(slice));
    for (service, family) in services.iter().flat_map(families) {
        let Some(selector) = service.spec.as_ref().and_then(|s| s.selector.as_ref()) else {
            continue;
        };
        let ready = pods.iter().filter(|p| selects(selector, p.metadata.labels.as_ref()));
        let all = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses) == Some(true);
        let is_ready = |pod: &&Pod| {
            !pod_status::is_finished(pod)
                && (all || (pod_status::is_ready(pod) && !pod_status::is_terminating(pod)))
        };
        let ready: BTreeSet<_> =
            ready.filter(is_ready).flat_map(|pod| address(pod, &family)).collect();
        let is_hinted = Mode::of(service) != Mode::Off;
        let key = key_of(service);
        let family = if family == "IPv6" { IpFamily::V6 } else { IpFamily::V4 };
        let ports = tracker.service_ports(&key, family);
        let targets = ports.iter().flat_map(|(_, port)| &port.cluster);
        let targets: BTreeSet<_> = targets.map(|target| target.address.to_string()).collect();
        match is_hinted {
            true => assert!(targets.is_subset(&ready), "{when}: targets of {key}"),
            false => assert_eq!(targets, ready, "{when}: targets of {key}"),
        }
    }
}

/// A Service with each of its families, the first first.
fn families(service: &Service) -> impl Iterator<Item = (&Service, String)> {
    let families = service.spec.iter().flat_map(|spec| spec.ip_families.iter().flatten());
    families.map(move |family| (service, family.clone()))
}

/// The address of a pod in a family, if it has one.
fn address(pod: &Pod, family: &str) -> Option<String> {
    let addresses = pod.status.as_ref()?.pod_ips.as_ref()?;
    let mut all = addresses.iter().map(|address| address.ip.clone());
    all.find(|address| address.contains(':') == (family == "IPv6"))
}

fn cluster_ips(service: &Service) -> Vec<String> {
    let all = service.spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten());
    all.filter(|ip| *ip != "None").cloned().collect()
}
