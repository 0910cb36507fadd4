//! Follows the Nodes of the cluster, and keeps routes and tunnels as they should be, also when somebody else
//! changes them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use roadstead_component::component::Component;
use roadstead_watch::informer::{Change, Selection, informer};
use serde_json::{Value, json};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::kernel::{Kernel, KernelError, Tunnel, VNI};
use crate::peer::{Peer, TunnelEnd};
use crate::plan::{Local, PodNetworkMode, Wanted, hardware_address, plan};

/// How soon it is noticed that somebody else has changed what is ours.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where it runs.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The name of this node.
    pub node_name: String,
    /// The addresses of this node's pods.
    pub pod_cidrs: Vec<IpNet>,
    /// The ranges of all pods of the cluster; nobody outside of them is believed, if there are any.
    pub cluster_cidrs: Vec<IpNet>,
    /// The address of this node among the nodes.
    pub internal_ip: Option<IpAddr>,
    /// How packets get to other nodes.
    pub mode: PodNetworkMode,
    /// What is shown of it.
    pub component: Component,
}

/// Keeps the pod network of this machine until `stop`. It stays when this ends, as the pods do.
pub async fn run(
    client: Client,
    config: Config,
    stop: CancellationToken,
) -> Result<(), KernelError> {
    if config.mode == PodNetworkMode::None {
        stop.cancelled().await;
        return Ok(());
    }
    let shown = Arc::new(Mutex::new(Value::Null));
    let state = shown.clone();
    config.component.state.register("podnetwork", move || {
        state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    });
    let (kernel, peers, notes) = (Kernel::open()?, BTreeMap::new(), BTreeMap::new());
    let agent = Agent { kernel, client, config, peers, notes, said: None, shown };
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = agent.run() => Ok(()),
    }
}

/// Removes everything of ours from this machine's network; returns how much there was.
pub fn cleanup() -> Result<usize, KernelError> {
    Kernel::open()?.remove_all()
}

struct Agent {
    kernel: Kernel,
    client: Client,
    config: Config,
    /// By their names.
    peers: BTreeMap<String, Peer>,
    notes: BTreeMap<String, String>,
    /// What this node says already of its end of tunnels.
    said: Option<TunnelEnd>,
    shown: Arc<Mutex<Value>>,
}

impl Agent {
    async fn run(mut self) {
        let mut nodes = informer(Api::<Node>::all(self.client.clone()), Selection::all());
        let mut tick = time::interval(LOOK_EVERY);
        let mut is_synced = false;
        loop {
            tokio::select! {
                Some(change) = nodes.next() => {
                    is_synced |= self.observe(change);
                    // Those that are there already are one change.
                    while let Some(Some(change)) = nodes.next().now_or_never() {
                        is_synced |= self.observe(change);
                    }
                }
                _ = tick.tick() => {}
            }
            // Who is not known yet must not lose his routes.
            if is_synced {
                self.apply().await;
            }
        }
    }

    /// Takes in a change; whether everything is known from now on.
    fn observe(&mut self, change: Change<Arc<Node>>) -> bool {
        match change {
            Change::Set(node) => {
                let peer = Peer::read(&node);
                if peer.name == self.config.node_name {
                    self.said = peer.tunnel;
                }
                self.peers.insert(peer.name.clone(), peer);
            }
            Change::Gone(key, _) => {
                self.peers.remove(&key.name);
            }
            Change::Synced => return true,
        }
        false
    }

    async fn apply(&mut self) {
        let (wanted, own) = match self.plan() {
            Ok(both) => both,
            Err(error) => return warn!(%error, "cannot look at this machine's networks"),
        };
        self.tell(&wanted);
        let tunnel =
            Tunnel { from: own.address, hardware: own.hardware, pods: &self.config.pod_cidrs };
        match self.kernel.apply(&wanted, &tunnel) {
            Ok(0) => {}
            Ok(changes) => info!(changes, routes = wanted.routes.len(), "pod network written"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                warn!(%error, cause, "the pod network is not complete, will retry");
            }
        }
        if wanted.tunnel && self.said != Some(own) {
            self.publish(own).await;
        }
    }

    fn plan(&mut self) -> Result<(Wanted, TunnelEnd), KernelError> {
        let local = Local {
            name: self.config.node_name.clone(),
            mode: self.config.mode,
            cluster: self.config.cluster_cidrs.clone(),
            pods: self.config.pod_cidrs.clone(),
            networks: self.kernel.networks(&self.config.pod_cidrs)?,
            hardware: hardware_address(&self.config.pod_cidrs),
        };
        let peers: Vec<_> = self.peers.values().cloned().collect();
        let first = local.networks.first().map(|(_, network)| network.addr());
        let address = self.config.internal_ip.or(first).unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let own = TunnelEnd { hardware: local.hardware, address };
        Ok((plan(&local, &peers), own))
    }

    /// Says once what is new among what cannot be believed or done.
    fn tell(&mut self, wanted: &Wanted) {
        for (node, why) in &wanted.notes {
            if self.notes.get(node) != Some(why) {
                warn!(node, why, "the pods of a node are not reached");
            }
        }
        self.notes.clone_from(&wanted.notes);
        let routes =
            wanted.routes.iter().map(|(to, way)| (to.to_string(), format!("{way:?}").into()));
        let routes: serde_json::Map<String, Value> = routes.collect();
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) =
            json!({"mode": self.config.mode.to_string(), "routes": routes, "notes": wanted.notes});
    }

    /// Tells the others where our end of the tunnel is.
    async fn publish(&mut self, own: TunnelEnd) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = json!({"metadata": {"annotations": own.annotations(VNI)}});
        let name = &self.config.node_name;
        match nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => self.said = Some(own),
            Err(error) => warn!(%error, "cannot say where the end of the tunnel is, will retry"),
        }
    }
}
