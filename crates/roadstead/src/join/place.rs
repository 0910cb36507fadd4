//! Where a node that joined is in its cluster: what the cluster says of itself, and which pod addresses the
//! node was given.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roadstead_pod::addresses::Addresses;
use roadstead_typed::Typed;
use serde_json::json;
use tokio::time;
use tracing::warn;

use crate::join::Args;
use crate::join::identity::Membership;
use crate::machine::own_address;
use crate::visible::CLUSTER;

/// Controllers that run give out addresses at once.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
const LOOK_AT_NODE: Duration = Duration::from_secs(5);

/// Where a node is in its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) cluster_domain: String,
    pub(crate) cluster_cidrs: Vec<IpNet>,
    pub(crate) service_cidrs: Vec<IpNet>,
    pub(crate) dns_ip: IpAddr,
    pub(crate) pod_cidrs: Vec<IpNet>,
    pub(crate) internal_ips: Addresses,
    /// The uid of the Node.
    pub(crate) uid: String,
}

impl Place {
    /// Makes the Node known and waits for its addresses.
    pub(crate) async fn find(args: &Args, member: &Membership) -> anyhow::Result<Self> {
        let client = member.client().await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
        let map = maps.get(CLUSTER).await.with_context(|| {
            format!("cannot read the ConfigMap kube-system/{CLUSTER}, which `roadstead up` makes")
        })?;
        let data = map.data.unwrap_or_default();
        let text = |name: &str| data.get(name).map_or("", String::as_str);
        let ranges = |name: &str| -> Vec<IpNet> {
            text(name).split(',').filter_map(|range| range.trim().parse().ok()).collect()
        };
        let dns_ip = text("dnsIP").parse().ok();
        let cluster_cidrs = ranges("clusterCIDR");
        let internal_ips = internal_ips(args, member, &cluster_cidrs)?;
        let node = register(&client, &member.node, internal_ips).await?;
        let (node, pod_cidrs) = assigned(&client, node).await?;
        Ok(Self {
            cluster_domain: text("clusterDomain").to_owned(),
            service_cidrs: ranges("serviceCIDR"),
            dns_ip: dns_ip.with_context(|| format!("{CLUSTER} does not say where DNS is"))?,
            cluster_cidrs,
            pod_cidrs,
            internal_ips,
            uid: node.uid().unwrap_or_default(),
        })
    }
}

impl Place {
    /// Whether the cluster has said no, which it will say again.
    pub(crate) fn is_refused(error: &anyhow::Error) -> bool {
        let api = error.chain().filter_map(|cause| cause.downcast_ref::<kube::Error>());
        let mut answers = api.filter_map(|error| match error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        });
        answers.any(|code| [401, 403, 404].contains(&code))
    }
}

/// Ends when there is no such Node any more, or another one of that name: then nothing is as it was.
pub(super) async fn until_gone(client: Client, name: String, uid: String) {
    let nodes: Api<Node> = Api::all(client);
    loop {
        time::sleep(LOOK_AT_NODE).await;
        // A server that does not answer says nothing.
        let Ok(found) = nodes.get_opt(&name).await else { continue };
        if found.and_then(|node| node.uid()).as_deref() != Some(&*uid) {
            warn!(node = name, "somebody has deleted the Node; this machine makes it known anew");
            return;
        }
    }
}

/// The addresses of this machine, of the families that pods have.
fn internal_ips(args: &Args, member: &Membership, cluster: &[IpNet]) -> anyhow::Result<Addresses> {
    let own = cluster.iter().filter_map(|range| own_address(range.addr().is_ipv4()));
    let found = args.node_ip.or(Addresses::of(own));
    found.with_context(|| {
        format!("this machine has no way to the world, nor to {}: give --node-ip", member.server)
    })
}

/// The Node as it is known, or made so. It says where it is, so that it gets a certificate for that.
async fn register(client: &Client, name: &str, own: Addresses) -> anyhow::Result<Node> {
    let nodes: Api<Node> = Api::all(client.clone());
    let addresses = own.iter().map(|ip| json!({"type": "InternalIP", "address": ip.to_string()}));
    let host = json!({"type": "Hostname", "address": name});
    let addresses: Vec<_> = addresses.chain([host]).collect();
    let known = nodes.get_opt(name).await.context("cannot ask for the Node")?;
    if known.is_none() {
        let node = json!({"metadata": {"name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            "status": {"addresses": addresses}});
        let made = nodes.create(&PostParams::default(), &Node::from_value(&node)?).await;
        made.with_context(|| format!("cannot make the Node {name}"))?;
    }
    let patch = json!({"status": {"addresses": addresses}});
    let said = nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    match (said, known) {
        // Without a server it is where it was.
        (Err(error), Some(known)) if !matches!(error, kube::Error::Api(_)) => Ok(known),
        (said, _) => said.with_context(|| format!("cannot say where the Node {name} is")),
    }
}

/// Waits until controllers have given the node its pod addresses.
async fn assigned(client: &Client, mut node: Node) -> anyhow::Result<(Node, Vec<IpNet>)> {
    let nodes: Api<Node> = Api::all(client.clone());
    let name = node.name_any();
    let waiting = time::timeout(PATIENCE, async {
        loop {
            let given = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone());
            let given: Vec<IpNet> =
                given.into_iter().flatten().filter_map(|one| one.parse().ok()).collect();
            if !given.is_empty() {
                return Ok((node, given));
            }
            time::sleep(LOOK).await;
            node = nodes.get(&name).await.context("cannot ask for the Node")?;
        }
    });
    match waiting.await {
        Ok(found) => found,
        Err(_) => bail!(
            "the Node {name} was given no pod addresses: is there a controller node-ipam, and room in its \
             --cluster-cidr? `kubectl describe node {name}` may say more"
        ),
    }
}
