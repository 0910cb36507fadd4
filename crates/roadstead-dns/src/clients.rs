//! Follows the pods that ask, and the resolv.conf of their node. What that means for their searches is
//! decided in `roadstead_dns_core::client_pods`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use jiff::Timestamp;
use kube::{Api, Client};
use roadstead_api::resolv::{ClusterDns, ResolvConf};
use roadstead_dns_core::client_pods::{ClientPods, NodeResolvConf};
use roadstead_dns_core::clients::Clients;
use roadstead_dns_core::pod_outline::PodOutline;
use roadstead_watch::informer::{Change, Selection, key_of};
use roadstead_watch::keys_only::keys_only;
use tokio::time;

use crate::publish::Published;

/// How often the node's resolv.conf is looked at, besides whenever a pod changes.
const LOOK: Duration = Duration::from_secs(2);

/// Where the clients are, and what their lists are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientNode {
    /// The name of the node whose pods ask this server.
    pub name: String,
    /// The resolv.conf that the node's agent uses.
    pub resolv_conf: PathBuf,
}

/// Follows the node's pods for ever.
pub(crate) async fn run(
    client: Client,
    node: ClientNode,
    cluster: ClusterDns,
    clients: Arc<Published<Clients>>,
) {
    let selection = Selection::all().fields(&format!("spec.nodeName={}", node.name));
    let mut changes = keys_only::<PodOutline>(Api::all(client), selection);
    let mut ticks = time::interval(LOOK);
    let mut pods = ClientPods::default();
    let mut last = NodeResolvConf::default();
    loop {
        let changed = tokio::select! {
            Some(change) = changes.next() => take_in(&mut pods, change),
            _ = ticks.tick() => false,
        };
        let now = look(&node).await;
        if changed || now != last {
            let next = clients.get().next(&pods.owners(&cluster, &now), Instant::now());
            clients.publish(Arc::new(next));
            last = now;
        }
    }
}

async fn look(node: &ClientNode) -> NodeResolvConf {
    let text = tokio::fs::read_to_string(&node.resolv_conf).await.unwrap_or_default();
    let written = match tokio::fs::metadata(&node.resolv_conf).await {
        Ok(metadata) => metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok()),
        // No file is the same as an empty one, since we do not know when.
        Err(_) => Timestamp::try_from(SystemTime::now()).ok(),
    };
    NodeResolvConf { conf: ResolvConf::parse(&text), written }
}

/// Returns whether anything changed that matters.
fn take_in(pods: &mut ClientPods, change: Change<PodOutline>) -> bool {
    match change {
        Change::Set(pod) => pods.observe(key_of(&pod), pod.into()),
        Change::Gone(key, _) => pods.remove(&key),
        Change::Synced => true,
    }
}
