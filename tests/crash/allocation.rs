//! Services written by many while the server is killed: what is taken is what they hold, and the
//! server that starts again finds nothing to repair.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roadstead_testkit::netns::is_left_out;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time;

use crate::server::Server;
use crate::{Random, number, seed};

const WRITERS: u64 = 6;
const SERVICES: u64 = 4;
/// Few, so that those given back are soon needed again.
const PORTS: u64 = 12;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_leaked_or_given_out_twice() {
    if is_left_out("L5") {
        return;
    }
    let seed = seed();
    let crashes = number("ROADSTEAD_CRASHES").unwrap_or(6);
    eprintln!("{crashes} crashes with ROADSTEAD_SEED={seed}");
    let (mut random, directory) = (Random(seed), tempfile::tempdir().unwrap());
    for _ in 0..crashes {
        let server = Server::start(directory.path());
        check(&server.client().await, seed).await;
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let random = Random((seed ^ random.below(u64::MAX)) | 1);
            writers.spawn(write(writer, server.client().await, random));
        }
        time::sleep(Duration::from_millis(100 + random.below(400))).await;
        server.kill();
        writers.join_all().await;
    }
    let server = Server::start(directory.path());
    check(&server.client().await, seed).await;
}

/// Creates, changes and deletes Services until the server is gone.
async fn write(writer: u64, client: Client, mut random: Random) {
    let services: Api<Service> = Api::default_namespaced(client);
    loop {
        let name = format!("s-{writer}-{}", random.below(SERVICES));
        let type_ = ["ClusterIP", "NodePort", "LoadBalancer"][random.below(3) as usize];
        let mut port = json!({"name": "p", "port": 80});
        if type_ != "ClusterIP" && random.below(2) == 0 {
            port["nodePort"] = (30_000 + random.below(PORTS)).into();
        }
        let object = json!({"metadata": {"name": name}, "spec": {"type": type_, "ports": [port]}});
        let outcome = match random.below(4) {
            0 => services.delete(&name, &DeleteParams::default()).await.map(drop),
            1 => {
                let patch = Patch::Merge(&object);
                services.patch(&name, &PatchParams::default(), &patch).await.map(drop)
            }
            _ => {
                let typed = serde_json::from_value(object).unwrap();
                services.create(&PostParams::default(), &typed).await.map(drop)
            }
        };
        // What is refused changes nothing; everything else is the end.
        if !matches!(outcome, Ok(()) | Err(kube::Error::Api(_))) {
            return;
        }
    }
}

/// Addresses are those of the Services, each once, and nothing had to be mended to make it so.
async fn check(client: &Client, seed: u64) {
    let all = ListParams::default();
    let services = Api::<Service>::all(client.clone()).list(&all).await.unwrap();
    let addresses = Api::<IPAddress>::all(client.clone()).list(&all).await.unwrap();
    let held = services.iter().flat_map(|s| s.spec.iter().flat_map(|s| s.cluster_ips.iter()));
    let held: Vec<_> = held.flatten().cloned().collect();
    let distinct: BTreeSet<_> = held.iter().cloned().collect();
    assert_eq!(held.len(), distinct.len(), "seed {seed}: an address is held twice");
    let taken: BTreeSet<_> = addresses.iter().map(ResourceExt::name_any).collect();
    assert_eq!(distinct, taken, "seed {seed}: addresses taken are those that Services hold");
    let ports = services.iter().flat_map(|s| s.spec.iter().flat_map(|s| s.ports.iter().flatten()));
    let ports: Vec<_> = ports.filter_map(|port| port.node_port).collect();
    let distinct: BTreeSet<_> = ports.iter().collect();
    assert_eq!(ports.len(), distinct.len(), "seed {seed}: a node port is held twice");
    check_metrics(client, ports.len(), seed).await;
}

async fn check_metrics(client: &Client, ports: usize, seed: u64) {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let text = client.request_text(request).await.unwrap();
    let figure = |name: &str| {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum::<f64>()
    };
    let taken = figure("kube_apiserver_nodeport_allocator_allocated_ports");
    assert_eq!(taken, ports as f64, "seed {seed}: node ports taken are those that Services hold");
    for name in [
        "apiserver_clusterip_repair_ip_errors_total",
        "apiserver_nodeport_repair_port_errors_total",
    ] {
        assert_eq!(figure(name), 0.0, "seed {seed}: {name} after a crash");
    }
}
