//! A cluster in one thread: the real API server and controllers, and nodes that only pretend.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use roadstead_api::selector::selects;
use roadstead_controllers::identities::user_of;
use roadstead_controllers::{Settings, names, tasks};
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::identity::user::User;
use roadstead_server::transport::local::Local;
use roadstead_server::{api, bootstrap, config};
use roadstead_store::kv::Store;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time;
use tokio_util::sync::CancellationToken;

use crate::faults::{BadLine, Random};
use crate::node;

/// Small, so that few pods fill several slices.
pub(crate) const MAX_ENDPOINTS: usize = 3;

pub(crate) struct Cluster {
    pub random: Random,
    pub api: Arc<api::Api>,
    /// The user's own line, which is good.
    pub client: Client,
    /// The line of the components.
    line: BadLine,
    /// The nodes that are dead.
    pub dead: node::Dead,
    /// The pods of Jobs that ended well.
    pub ended: node::Ended,
    controllers: Vec<(Vec<&'static str>, JoinHandle<()>)>,
}

impl Cluster {
    pub(crate) async fn start(seed: u64) -> Self {
        let random = Random::new(seed);
        let range = "10.96.0.0/24".parse().unwrap();
        let config = config::Config { service_range: range, advertise: None, audit: None };
        let second_range = Some("fd00:96::/120".parse().unwrap());
        let services = config::Services { second_range, ..config::Services::default() };
        let tokens = Tokens::ephemeral().unwrap();
        let api = api::Api::with_services(Store::memory(), config, services, tokens);
        bootstrap::run(&api).await.unwrap();
        let local = Local::new(api.clone(), User::component());
        let client = Client::new(local.clone(), "default");
        let line = BadLine::new(local, random.clone());
        let (dead, ended) = node::start(client.clone(), random.clone()).await;
        let controllers = Vec::new();
        let mut cluster = Self { random, api, client, line, dead, ended, controllers };
        for (_, names) in tasks(&names()) {
            let task = cluster.spawn(&names);
            cluster.controllers.push((names, task));
        }
        cluster
    }

    fn spawn(&self, names: &[&'static str]) -> JoinHandle<()> {
        let user = User::part(user_of(names[0]));
        let line = self.line.to(Local::new(self.api.clone(), user));
        let client = Client::new(line, "default");
        let mut settings = Settings::default();
        settings.endpoints.max_endpoints = MAX_ENDPOINTS;
        let stop = CancellationToken::new();
        tokio::spawn(roadstead_controllers::run(names.to_vec(), client, settings, stop))
    }

    /// Starts a controller again, as after a crash.
    fn restart(&mut self, index: usize) {
        self.controllers[index].1.abort();
        let names = self.controllers[index].0.clone();
        self.controllers[index].1 = self.spawn(&names);
    }

    /// Starts all controllers again.
    pub(crate) fn restart_all(&mut self) {
        (0..self.controllers.len()).for_each(|index| self.restart(index));
    }

    /// Forgets what was written.
    pub(crate) fn forget_writes(&self) {
        self.line.writes.lock().unwrap().clear();
    }

    /// What the controllers asked for and may not: nothing of it helps to ask again.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.line.refused.lock().unwrap().clone()
    }

    /// What the controllers have written: everything but events.
    pub(crate) fn written(&self) -> Vec<String> {
        self.line.writes.lock().unwrap().clone()
    }

    /// One thing that a user, a pod or fate might do.
    pub(crate) async fn disturb(&mut self) {
        let name = format!("app{}", self.random.below(3));
        match self.random.below(26) {
            0..=2 => self.apply_deployment(&name).await,
            3 => self.delete::<Deployment>(&name).await,
            4..=6 => self.apply_service(&name).await,
            7 => self.delete::<Service>(&name).await,
            8 | 9 => self.flip_pod().await,
            10 => self.apply_endpoints().await,
            11 => self.delete::<Endpoints>("by-hand").await,
            12 => self.spoil_slice().await,
            13 => {
                let node = node::NAMES[self.random.below(node::NAMES.len() as u64) as usize];
                self.dead.set(node, self.random.once_in(2));
            }
            14 => self.move_node().await,
            15..=24 => self.disturb_workloads().await,
            _ => {
                let index = self.random.below(self.controllers.len() as u64) as usize;
                self.restart(index);
            }
        }
        time::sleep(Duration::from_millis(self.random.below(300))).await;
    }

    /// Ends the trouble and waits until nothing happens any more.
    pub(crate) async fn calm(&self) {
        self.line.troubled.store(false, Ordering::Relaxed);
        self.heal().await;
        // Longer than any grace period, any patience with a lost node, and any retry after them.
        time::sleep(Duration::from_secs(600)).await;
    }

    pub(crate) fn trouble(&self) {
        self.line.troubled.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn list<K>(&self) -> Vec<K>
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
        let choose = |all: &[Value]| all[self.random.below(all.len() as u64) as usize].clone();
        let distribution = choose(&[json!(null), json!("PreferSameZone"), json!("PreferSameNode")]);
        let mode = choose(&[json!("Disabled"), json!("Disabled"), json!("Auto")]);
        let type_ = choose(&[json!("ClusterIP"), json!("LoadBalancer")]);
        let policy =
            choose(&["SingleStack", "PreferDualStack", "RequireDualStack"].map(Value::from));
        // The first family of a Service cannot be changed.
        let families = json!([if name == "app2" { "IPv6" } else { "IPv4" }]);
        let label = self.random.below(2).to_string();
        self.apply::<Service>(
            name,
            json!({"metadata": {"name": name, "labels": {"label": label},
                    "annotations": {"service.kubernetes.io/topology-mode": mode}},
                "spec": {"type": type_, "selector": {"app": name},
                    "ipFamilyPolicy": policy, "ipFamilies": families,
                    "trafficDistribution": distribution,
                    "publishNotReadyAddresses": self.random.once_in(4),
                    "ports": [{"port": 80, "targetPort": 8080 + self.random.below(2)}]}}),
        )
        .await;
    }

    /// A Service without a selector, and addresses for it.
    async fn apply_endpoints(&self) {
        let name = "by-hand";
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        self.apply::<Service>(name, service).await;
        let addresses: Vec<_> = (0..1 + self.random.below(4))
            .map(|n| json!({"ip": format!("198.51.100.{}", n + self.random.below(3) * 10 + 1)}))
            .collect();
        let subsets = json!([{"addresses": addresses, "ports": [{"port": 8080}]}]);
        self.apply::<Endpoints>(name, json!({"metadata": {"name": name}, "subsets": subsets}))
            .await;
    }

    /// Somebody edits or deletes a slice that is not theirs.
    async fn spoil_slice(&self) {
        let slices: Vec<EndpointSlice> = self.list().await;
        let managed: Vec<_> =
            slices.iter().filter(|slice| !slice.owner_references().is_empty()).collect();
        let Some(slice) = managed.get(self.random.below(managed.len() as u64) as usize) else {
            return;
        };
        let api: Api<EndpointSlice> = Api::default_namespaced(self.client.clone());
        if self.random.once_in(2) {
            self.delete::<EndpointSlice>(&slice.name_any()).await;
        } else {
            let patch = json!({"endpoints": [{"addresses": ["203.0.113.1"]}]});
            let params = PatchParams::default();
            let _ = api.patch(&slice.name_any(), &params, &Patch::Merge(&patch)).await;
        }
    }

    /// A node moves to another zone.
    async fn move_node(&self) {
        let node = node::NAMES[self.random.below(node::NAMES.len() as u64) as usize];
        let zone = format!("zone-{}", self.random.below(3));
        let patch = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
        let api: Api<Node> = Api::all(self.client.clone());
        api.patch(node, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub(crate) async fn apply<K>(&self, name: &str, object: Value)
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
            // A Service that is held by its load balancer goes a little later.
            let _ = api.create(&PostParams::default(), &from(object)).await;
        }
    }

    pub(crate) async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let api: Api<K> = Api::default_namespaced(self.client.clone());
        let _ = api.delete(name, &DeleteParams::default()).await;
    }

    /// Makes one pod that is in a Service change its mind; returns how many slices list it.
    pub(crate) async fn flip_one(&self) -> Option<usize> {
        let (pods, services): (Vec<Pod>, Vec<Service>) = (self.list().await, self.list().await);
        let listing = |pod: &Pod| {
            let specs = services.iter().filter_map(|service| service.spec.as_ref());
            let wanted = specs.filter(|spec| {
                let selector = spec.selector.as_ref();
                selector.is_some_and(|wanted| selects(wanted, pod.metadata.labels.as_ref()))
            });
            let families = wanted.flat_map(|spec| spec.ip_families.iter().flatten());
            families.filter(|family| crate::address(pod, family).is_some()).count()
        };
        let is_listed = |pod: &&Pod| {
            pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some())
                && pod.metadata.deletion_timestamp.is_none()
                && !self.dead.has(roadstead_plan::pod_status::node(pod))
        };
        let pod = pods.iter().filter(is_listed).find(|pod| listing(pod) > 0)?;
        let ready = if roadstead_plan::pod_status::is_ready(pod) { "False" } else { "True" };
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let api: Api<Pod> = Api::default_namespaced(self.client.clone());
        let params = PatchParams::default();
        api.patch_status(&pod.name_any(), &params, &Patch::Strategic(&patch)).await.unwrap();
        Some(listing(pod))
    }

    /// Makes a pod fail its probe, pass it again, or go.
    async fn flip_pod(&self) {
        let mut pods: Vec<Pod> = self.list().await;
        pods.retain(|pod| !roadstead_plan::pod_status::is_finished(pod));
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

fn from<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}
