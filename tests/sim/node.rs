//! Nodes that only pretend: they run pods by saying so, renew their leases, and can die.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roadstead_watch::informer::{Change, Selection, informer};
use serde_json::{Value, json};
use tokio::time;

pub const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// Which nodes are dead.
#[derive(Clone, Default)]
pub struct Dead(Arc<Mutex<BTreeSet<String>>>);

impl Dead {
    pub fn has(&self, node: &str) -> bool {
        self.0.lock().unwrap().contains(node)
    }

    pub fn set(&self, node: &str, dead: bool) {
        let mut all = self.0.lock().unwrap();
        if dead {
            all.insert(node.to_owned())
        } else {
            all.remove(node)
        };
    }
}

/// Registers the nodes, and keeps them and their pods alive.
pub async fn start(client: Client) -> Dead {
    let dead = Dead::default();
    for (index, name) in NAMES.into_iter().enumerate() {
        let node: Node = from(json!({"metadata": {"name": name,
            "labels": {"topology.kubernetes.io/zone": format!("zone-{}", index % 2)}},
            "status": {"allocatable": {"cpu": "4"},
                "addresses": [{"type": "InternalIP", "address": format!("192.0.2.{}", index + 1)}],
                "conditions": [{"type": "Ready", "status": "True"}]}}));
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        nodes.replace_status(name, &PostParams::default(), &node).await.unwrap();
    }
    tokio::spawn(beat(client.clone(), dead.clone()));
    tokio::spawn(run_pods(client, dead.clone()));
    dead
}

/// Renews leases, and says that all is well when it was thought otherwise.
async fn beat(client: Client, dead: Dead) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let nodes: Api<Node> = Api::all(client.clone());
    let mut number = 0;
    loop {
        for name in NAMES.into_iter().filter(|name| !dead.has(name)) {
            number += 1;
            let renewed = Timestamp::from_second(number).unwrap();
            let spec = json!({"spec": {"renewTime": format!("{renewed:.6}")}});
            let params = PatchParams::default();
            if leases.patch(name, &params, &Patch::Merge(&spec)).await.is_err() {
                let mut lease = spec;
                lease["metadata"] = json!({"name": name});
                leases.create(&PostParams::default(), &from(lease)).await.unwrap();
            }
            let node = nodes.get(name).await.unwrap();
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            if conditions.iter().any(|c| c.type_ == "Ready" && c.status != "True") {
                let ready =
                    json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
                nodes.patch_status(name, &params, &Patch::Strategic(&ready)).await.unwrap();
                revive(&client, name).await;
            }
        }
        time::sleep(Duration::from_secs(10)).await;
    }
}

/// A node that is back looks after its pods again.
async fn revive(client: &Client, node: &str) {
    let pods: Api<Pod> = Api::all(client.clone());
    let mine = ListParams::default().fields(&format!("spec.nodeName={node}"));
    for pod in pods.list(&mine).await.unwrap() {
        let api: Api<Pod> = Api::default_namespaced(client.clone());
        if pod.metadata.deletion_timestamp.is_some() {
            let _ = api.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
        } else {
            let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            let params = PatchParams::default();
            let _ = api.patch_status(&pod.name_any(), &params, &Patch::Strategic(&ready)).await;
        }
    }
}

async fn run_pods(client: Client, dead: Dead) {
    let api: Api<Pod> = Api::default_namespaced(client);
    let mut changes = informer(api.clone(), Selection::all());
    let mut next = 1;
    while let Some(change) = changes.next().await {
        let Change::Set(pod) = change else { continue };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        if dead.has(&node) {
            continue;
        }
        let has_address = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
        if pod.metadata.deletion_timestamp.is_some() {
            let now = DeleteParams::default().grace_period(0);
            let _ = api.delete(&pod.name_any(), &now).await;
        } else if !node.is_empty() && !has_address {
            let address = format!("10.244.{}.{}", next / 250, next % 250 + 1);
            // Not every pod has both families.
            let mut addresses = vec![json!({"ip": address})];
            if next % 4 != 0 {
                addresses.push(json!({"ip": format!("fd00:244::{next:x}")}));
            }
            next += 1;
            let status = json!({"status": {"phase": "Running", "podIP": address,
                "podIPs": addresses, "conditions": [{"type": "Ready", "status": "True"}]}});
            let params = PatchParams::default();
            let _ = api.patch_status(&pod.name_any(), &params, &Patch::Strategic(&status)).await;
        }
    }
}

fn from<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}
