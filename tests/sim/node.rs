//! Nodes that only pretend: they run pods by saying so, end those of Jobs some time later, renew their
//! leases, and can die.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roadstead_plan::pod_status::{self, is_finished};
use roadstead_watch::informer::{Change, Selection, informer};
use serde_json::{Value, json};
use tokio::time;

use crate::faults::Random;

pub(crate) const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// The label of pods of Jobs.
const JOB: &str = "batch.kubernetes.io/job-name";

/// Which nodes are dead.
#[derive(Clone, Default)]
pub(crate) struct Dead(Arc<Mutex<BTreeSet<String>>>);

impl Dead {
    pub(crate) fn has(&self, node: &str) -> bool {
        self.0.lock().unwrap().contains(node)
    }

    pub(crate) fn set(&self, node: &str, dead: bool) {
        let mut all = self.0.lock().unwrap();
        if dead {
            all.insert(node.to_owned())
        } else {
            all.remove(node)
        };
    }
}

/// The pods that ended well, by the uid of their Job and their own.
pub(crate) type Ended = Arc<Mutex<BTreeSet<(String, String)>>>;

/// Registers the nodes, and keeps them and their pods alive.
pub(crate) async fn start(client: Client, random: Random) -> (Dead, Ended) {
    let (dead, ended) = (Dead::default(), Ended::default());
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
    tokio::spawn(end_pods(client.clone(), dead.clone(), ended.clone(), random));
    tokio::spawn(run_pods(client, dead.clone()));
    (dead, ended)
}

/// Ends pods of Jobs, some well and some not.
async fn end_pods(client: Client, dead: Dead, ended: Ended, random: Random) {
    let api: Api<Pod> = Api::default_namespaced(client);
    let running = ListParams::default().labels(JOB).fields("status.phase=Running");
    loop {
        time::sleep(Duration::from_secs(10)).await;
        for pod in api.list(&running).await.unwrap() {
            let is_leaving = pod_status::is_terminating(&pod);
            if is_leaving || dead.has(pod_status::node(&pod)) || random.once_in(2) {
                continue;
            }
            let phase = if random.once_in(5) { "Failed" } else { "Succeeded" };
            let job = pod.owner_references().first().map(|owner| owner.uid.clone());
            if end(&api, &pod, phase).await && phase == "Succeeded" {
                ended.lock().unwrap().insert((job.unwrap(), pod.uid().unwrap()));
            }
        }
    }
}

/// Says that a pod has ended: by a clock that is far behind, as the time of controllers is the world's,
/// and what they wait for after a failure would not pass.
async fn end(api: &Api<Pod>, pod: &Pod, phase: &str) -> bool {
    let terminated = json!({"exitCode": i32::from(phase == "Failed"),
        "finishedAt": "2020-01-01T00:00:00Z"});
    let status = json!({"status": {"phase": phase,
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": terminated}}]}});
    let params = PatchParams::default();
    api.patch_status(&pod.name_any(), &params, &Patch::Strategic(&status)).await.is_ok()
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
        } else if !is_finished(&pod) {
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
            if pod.labels().contains_key(JOB) && !is_finished(&pod) {
                end(&api, &pod, "Failed").await;
            }
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
