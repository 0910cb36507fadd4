//! What runs inside the process, made visible where users look for it.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::bail;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Node, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use roadstead_typed::Typed;
use roadstead_watch::informer::{Change, Selection, informer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time;
use tracing::warn;

/// The ConfigMap that says of the cluster what its nodes have to know.
pub(crate) const CLUSTER: &str = "roadstead-cluster";
const RETRY: Duration = Duration::from_secs(1);

/// The Service of the cluster's DNS, and the slice that leads to our server.
pub(crate) async fn dns_service(
    client: &Client,
    address: IpAddr,
    server: SocketAddr,
) -> Result<(), kube::Error> {
    let ports = |number: u16| -> Vec<Value> {
        let port = |name: &str, protocol: &str| json!({"name": name, "protocol": protocol, "port": number});
        vec![port("dns", "UDP"), port("dns-tcp", "TCP")]
    };
    let labels = json!({"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true",
        "kubernetes.io/name": "CoreDNS"});
    let service = json!({
        "metadata": {"name": "kube-dns", "labels": labels},
        "spec": {"clusterIP": address.to_string(), "ports": ports(53),
            "ipFamilies": [if address.is_ipv4() { "IPv4" } else { "IPv6" }]},
    });
    let slice = json!({
        "metadata": {"name": "kube-dns",
            "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": if server.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [server.ip().to_string()], "conditions": {"ready": true}}],
        "ports": ports(server.port()),
    });
    // Where readers of older texts look. Whoever mirrors Endpoints leaves it alone: the slice is there.
    let endpoints = json!({
        "metadata": {"name": "kube-dns",
            "labels": {"k8s-app": "kube-dns", "endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": server.ip().to_string()}], "ports": ports(server.port())}],
    });
    let services: Api<Service> = Api::namespaced(client.clone(), "kube-system");
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "kube-system");
    ensure(&services, service).await?;
    ensure(&Api::<Endpoints>::namespaced(client.clone(), "kube-system"), endpoints).await?;
    ensure(&slices, slice).await
}

/// What the configurations of the proxy and of DNS are at first.
pub(crate) struct Texts {
    pub(crate) proxy: String,
    pub(crate) dns: String,
}

/// The configurations of the proxy and of DNS, where people edit them. What is there already counts.
pub(crate) async fn config_maps(client: &Client, texts: Texts) -> Result<(), kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let all = [
        ("kube-proxy", "kube-proxy", "config.conf", texts.proxy),
        ("coredns", "kube-dns", "Corefile", texts.dns),
    ];
    let create = all.map(|(name, app, key, text)| {
        let map =
            json!({"metadata": {"name": name, "labels": {"k8s-app": app}}, "data": {key: text}});
        create(&maps, map)
    });
    futures::future::try_join_all(create).await.map(drop)
}

/// What machines that join have to know of the cluster, and the account by which they enforce policies.
pub(crate) async fn for_others(client: &Client, facts: Value) -> Result<(), kube::Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "kube-system");
    create(&accounts, json!({"metadata": {"name": "roadstead-network-policy"}})).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    ensure(&maps, json!({"metadata": {"name": CLUSTER}, "data": facts})).await
}

/// What makes a pod of the DNS server of this process: see `roadstead_node::runtime::parts`.
pub(crate) async fn dns_workload(client: &Client, node: &str) -> Result<(), kube::Error> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kube-system");
    let page = (Ipv4Addr::LOCALHOST, 9153).into();
    let mut dns = workload(node, &["coredns", "kube-dns", "/ready"], page);
    // There is one of it: a second one would wait for the first.
    dns["spec"]["strategy"] = json!({"type": "Recreate", "rollingUpdate": null});
    ensure(&deployments, dns).await
}

/// The same of the proxy, whose page of health is where its configuration says.
pub(crate) async fn proxy_workload(
    client: &Client,
    node: &str,
    health: SocketAddr,
) -> Result<(), kube::Error> {
    let daemon_sets: Api<DaemonSet> = Api::namespaced(client.clone(), "kube-system");
    ensure(&daemon_sets, workload(node, &["kube-proxy", "kube-proxy", "/healthz"], health)).await
}

/// Tells the pods of the proxy whenever its page of health moves.
pub(crate) async fn follow_health(
    client: Client,
    node: String,
    mut health: watch::Receiver<Option<SocketAddr>>,
) {
    while health.changed().await.is_ok() {
        let page = *health.borrow_and_update();
        let Some(page) = page else { continue };
        while let Err(error) = proxy_workload(&client, &node, page).await {
            warn!(%page, %error, "cannot tell the pods of the proxy where to be asked, will retry");
            time::sleep(RETRY).await;
        }
    }
}

/// Pods of the node's own network whose container is a part of this process.
fn workload(node: &str, [name, app, page]: &[&str; 3], at: SocketAddr) -> Value {
    let labels = json!({"k8s-app": app});
    // Who listens on every address listens on this one.
    let host = if at.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { at.ip() };
    let get = json!({"host": host.to_string(), "port": at.port(), "path": page});
    let probe = json!({"httpGet": get, "periodSeconds": 5});
    let container = json!({
        "name": name,
        "image": format!("roadstead/{name}"),
        "imagePullPolicy": "IfNotPresent",
        "readinessProbe": probe,
    });
    let pod = json!({
        "hostNetwork": true,
        // Whoever can say what is asked of another name server asks that of the node.
        "dnsPolicy": "Default",
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 5,
        // Another node has no such parts.
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    });
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod}},
    })
}

/// Creates the object if there is none of that name; returns whether there was none.
async fn create<K>(api: &Api<K>, object: Value) -> Result<bool, kube::Error>
where
    K: Clone + Debug + DeserializeOwned + Serialize + Typed,
{
    match api.create(&PostParams::default(), &typed(&object)?).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(false),
        result => result.map(|_| true),
    }
}

/// Creates the object, or brings the one of an earlier start up to date.
async fn ensure<K>(api: &Api<K>, object: Value) -> Result<(), kube::Error>
where
    K: Clone + Debug + DeserializeOwned + Serialize + Typed,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if create(api, object.clone()).await? {
        return Ok(());
    }
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&object)).await.map(drop)
}

fn typed<K: Typed>(value: &Value) -> Result<K, kube::Error> {
    K::from_value(value).map_err(kube::Error::SerdeError)
}

/// Waits until the node agent has made this machine known to the cluster.
pub(crate) async fn node_exists(client: &Client, name: &str) -> anyhow::Result<()> {
    node_that(client, name, |_| true).await
}

/// Waits until the node agent has reported this machine as ready; what it said before `since`, in
/// an earlier life, does not count.
pub(crate) async fn node_ready(
    client: &Client,
    name: &str,
    since: Timestamp,
) -> anyhow::Result<()> {
    node_that(client, name, |node| is_ready(node, since)).await
}

async fn node_that(
    client: &Client,
    name: &str,
    is_it: impl Fn(&Node) -> bool,
) -> anyhow::Result<()> {
    let this = Selection::all().fields(&format!("metadata.name={name}"));
    let mut nodes = informer(Api::<Node>::all(client.clone()), this);
    while let Some(change) = nodes.next().await {
        if let Change::Set(node) = change
            && is_it(&node)
        {
            return Ok(());
        }
    }
    bail!("the watch of nodes ended")
}

fn is_ready(node: &Node, since: Timestamp) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten().filter(|c| c.type_ == "Ready");
    ready.any(|condition| {
        // Kubernetes keeps whole seconds.
        let said = condition.last_heartbeat_time.as_ref().map(|time| time.0.as_second());
        condition.status == "True" && said.is_some_and(|said| said >= since.as_second())
    })
}
