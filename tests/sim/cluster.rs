//! A cluster in one thread: the real API server and controllers, and a node that only pretends.

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use roadstead_controllers::{ALL, Settings};
use roadstead_server::api::{self, User};
use roadstead_server::bootstrap;
use roadstead_server::local::Local;
use roadstead_server::tokens::Tokens;
use roadstead_store::store::Store;
use roadstead_watch::informer::{Change, Selection, informer};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time;
use tokio_util::sync::CancellationToken;

use crate::faults::{BadLine, Random};

pub struct Cluster {
    pub random: Random,
    /// The user's own line, which is good.
    client: Client,
    /// The line of the components.
    line: BadLine,
    controllers: Vec<JoinHandle<()>>,
}

impl Cluster {
    pub async fn start(seed: u64) -> Self {
        let random = Random::new(seed);
        let range = "10.96.0.0/24".parse().unwrap();
        let config = api::Config { service_range: range, advertise: None, audit: None };
        let api = api::Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
        bootstrap::run(&api).await.unwrap();
        let local = Local::new(api, User::component());
        let client = Client::new(local.clone(), "default");
        let line = BadLine::new(local, random.clone());
        let node: Node = from(json!({"metadata": {"name": "node"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        nodes.replace_status("node", &PostParams::default(), &node).await.unwrap();
        let mut cluster = Self { random, client: client.clone(), line, controllers: Vec::new() };
        for name in ALL {
            let task = cluster.spawn(name);
            cluster.controllers.push(task);
        }
        tokio::spawn(pretend(client));
        cluster
    }

    fn spawn(&self, name: &'static str) -> JoinHandle<()> {
        let client = Client::new(self.line.clone(), "default");
        let settings = Settings::default();
        tokio::spawn(roadstead_controllers::run(name, client, settings, CancellationToken::new()))
    }

    /// One thing that a user, a pod or fate might do.
    pub async fn disturb(&mut self) {
        let name = format!("app{}", self.random.below(3));
        match self.random.below(9) {
            0..=2 => self.apply_deployment(&name).await,
            3 => self.delete::<Deployment>(&name).await,
            4 | 5 => self.apply_service(&name).await,
            6 => self.delete::<Service>(&name).await,
            7 => self.flip_pod().await,
            _ => {
                let index = self.random.below(ALL.len() as u64) as usize;
                self.controllers[index].abort();
                self.controllers[index] = self.spawn(ALL[index]);
            }
        }
        time::sleep(Duration::from_millis(self.random.below(300))).await;
    }

    /// Ends the trouble and waits until nothing happens any more.
    pub async fn calm(&self) {
        self.line.troubled.store(false, Ordering::Relaxed);
        // Longer than any retry, any grace period and any self-healing delay.
        time::sleep(Duration::from_secs(180)).await;
    }

    pub fn trouble(&self) {
        self.line.troubled.store(true, Ordering::Relaxed);
    }

    pub async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        Api::<K>::all(self.client.clone()).list(&ListParams::default()).await.unwrap().items
    }

    async fn apply_deployment(&self, name: &str) {
        let (replicas, version) = (self.random.below(5), self.random.below(3));
        self.apply::<Deployment>(
            name,
            json!({"metadata": {"name": name}, "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"terminationGracePeriodSeconds": 1,
                        "containers": [{"name": "c", "image": format!("v{version}")}]},
                },
            }}),
        )
        .await;
    }

    async fn apply_service(&self, name: &str) {
        let target = 8080 + self.random.below(2);
        self.apply::<Service>(
            name,
            json!({"metadata": {"name": name}, "spec": {"selector": {"app": name},
                "ports": [{"port": 80, "targetPort": target}]}}),
        )
        .await;
    }

    async fn apply<K>(&self, name: &str, object: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + Debug,
    {
        let api: Api<K> = Api::default_namespaced(self.client.clone());
        let params = PatchParams::default();
        if api.patch(name, &params, &Patch::Merge(&object)).await.is_err() {
            api.create(&PostParams::default(), &from(object)).await.unwrap();
        }
    }

    async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let api: Api<K> = Api::default_namespaced(self.client.clone());
        let _ = api.delete(name, &DeleteParams::default()).await;
    }

    /// Makes a pod fail its probe, pass it again, or go.
    async fn flip_pod(&self) {
        let pods: Vec<Pod> = self.list().await;
        let Some(pod) = pods.get(self.random.below(pods.len() as u64) as usize) else { return };
        let api: Api<Pod> = Api::default_namespaced(self.client.clone());
        match self.random.below(3) {
            0 => self.delete::<Pod>(&pod.name_any()).await,
            choice => {
                let ready = if choice == 1 { "True" } else { "False" };
                let patch = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
                let params = PatchParams::default();
                let _ = api.patch_status(&pod.name_any(), &params, &Patch::Strategic(&patch)).await;
            }
        }
    }
}

/// A node that runs pods by saying so.
async fn pretend(client: Client) {
    let api: Api<Pod> = Api::default_namespaced(client);
    let mut changes = informer(api.clone(), Selection::all());
    let mut next = 1;
    while let Some(change) = changes.next().await {
        let Change::Set(pod) = change else { continue };
        let scheduled = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        if pod.metadata.deletion_timestamp.is_some() {
            let now = DeleteParams::default().grace_period(0);
            let _ = api.delete(&pod.name_any(), &now).await;
        } else if scheduled && pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none()) {
            let address = format!("10.244.{}.{}", next / 250, next % 250 + 1);
            next += 1;
            let status = json!({"status": {"phase": "Running", "podIP": address,
                "podIPs": [{"ip": address}], "conditions": [{"type": "Ready", "status": "True"}]}});
            let params = PatchParams::default();
            let _ = api.patch_status(&pod.name_any(), &params, &Patch::Strategic(&status)).await;
        }
    }
}

fn from<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}
