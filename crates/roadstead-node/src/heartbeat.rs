//! Keeps the Node object and its Lease fresh, so that the cluster knows we are alive.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Config;
use crate::machine::{Machine, plan_node};

const LEASES: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;
const RENEW: Duration = Duration::from_secs(10);
const REPORT: Duration = Duration::from_secs(300);
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// Registers the node, then renews its lease and reports its status until `stop`.
pub(crate) async fn run(client: Client, config: Config, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = beat(client, config) => {}
    }
}

async fn beat(client: Client, config: Config) {
    let machine = Machine::read();
    let mut pause = FIRST_RETRY;
    let node = loop {
        match report(&client, &config, &machine).await {
            Ok(node) => break node,
            Err(error) => {
                warn!(node = config.node_name, %error, "cannot register, will retry");
                time::sleep(pause).await;
                pause = (pause * 2).min(RENEW);
            }
        }
    };
    info!(node = config.node_name, "registered");
    let mut renew = time::interval(RENEW);
    let mut status = time::interval_at(time::Instant::now() + REPORT, REPORT);
    loop {
        tokio::select! {
            _ = renew.tick() => if let Err(error) = renew_lease(&client, &config, &node).await {
                warn!(node = config.node_name, %error, "cannot renew the lease");
            },
            _ = status.tick() => if let Err(error) = report(&client, &config, &machine).await {
                warn!(node = config.node_name, %error, "cannot report the status");
            },
        }
    }
}

/// Creates the Node object or brings it up to date.
async fn report(client: &Client, config: &Config, machine: &Machine) -> kube::Result<Node> {
    let api: Api<Node> = Api::all(client.clone());
    let name = &config.node_name;
    let known = api.get_opt(name).await?;
    let before = known.as_ref().and_then(|node| node.status.as_ref());
    let wanted = plan_node(machine, config, before, Timestamp::now());
    match &known {
        None => drop(api.create(&PostParams::default(), &wanted).await?),
        Some(known) => {
            let mut patch = json!({"metadata": {"labels": wanted.metadata.labels}});
            // A node's pod range may be set once and never changes.
            if known.spec.as_ref().is_none_or(|spec| spec.pod_cidr.is_none()) {
                patch["spec"] = json!(wanted.spec);
            }
            api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
    }
    let patch = json!({"status": wanted.status});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await
}

async fn renew_lease(client: &Client, config: &Config, node: &Node) -> kube::Result<()> {
    let api: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let renew_time = Some(MicroTime(Timestamp::now()));
    let patch = json!({"spec": {
        "holderIdentity": config.node_name,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": renew_time,
    }});
    let patched =
        api.patch(&config.node_name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    match patched {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => return other.map(drop),
    }
    let mut lease = Lease {
        spec: Some(LeaseSpec {
            holder_identity: Some(config.node_name.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time,
            ..LeaseSpec::default()
        }),
        ..Lease::default()
    };
    lease.metadata.name = Some(config.node_name.clone());
    lease.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: config.node_name.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }]);
    api.create(&PostParams::default(), &lease).await.map(drop)
}
