//! What runs inside the process, made visible where users look for it.

use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::bail;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use roadstead_watch::informer::{Change, Selection, informer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The Service of the cluster's DNS, and the slice that leads to our server.
pub async fn dns_service(
    client: &Client,
    address: Ipv4Addr,
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
        "spec": {"clusterIP": address.to_string(), "ports": ports(53)},
    });
    let slice = json!({
        "metadata": {"name": "kube-dns",
            "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
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

/// Creates the object, or brings the one of an earlier start up to date.
async fn ensure<K>(api: &Api<K>, object: Value) -> Result<(), kube::Error>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match api.create(&PostParams::default(), &typed(object.clone())?).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        result => return result.map(drop),
    }
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&object)).await.map(drop)
}

fn typed<K: DeserializeOwned>(value: Value) -> Result<K, kube::Error> {
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}

/// Waits until the node agent has made this machine known to the cluster.
pub async fn node_exists(client: &Client, name: &str) -> anyhow::Result<()> {
    node_that(client, name, |_| true).await
}

/// Waits until the node agent has reported this machine as ready; what it said before `since`, in
/// an earlier life, does not count.
pub async fn node_ready(client: &Client, name: &str, since: Timestamp) -> anyhow::Result<()> {
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
