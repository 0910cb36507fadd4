//! Keeps the Node object and its Lease fresh, so that the cluster knows we are alive.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use roadstead_component::lease::{LeaseContent, LeaseWriter};
use roadstead_component::pacer::RetryPacer;
use roadstead_pod::eviction::Condition;
use roadstead_watch::events::Severity;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Config;
use crate::events::Recorder;
use crate::machine::{Machine, Today, plan_node, transitions};
use crate::runtime::{ContainerRuntime, Images};

const LEASES: &str = "kube-node-lease";
const LEASE_DURATION: Duration = Duration::from_secs(40);
const RENEW: Duration = Duration::from_secs(10);
const REPORT: Duration = Duration::from_secs(300);
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// What the node's object is made from.
pub(crate) struct Beat {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) events: Recorder,
    pub(crate) images: Arc<dyn Images>,
    pub(crate) containers: Arc<dyn ContainerRuntime>,
    /// What the node is short of.
    pub(crate) pressures: watch::Receiver<Vec<Condition>>,
}

/// Registers the node, then renews its lease and reports its status until `stop`.
pub(crate) async fn run(beat: Beat, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = beat.run() => {}
    }
}

/// What was reported, and when.
struct Reported {
    status: NodeStatus,
    at: Instant,
}

impl Beat {
    async fn run(self) {
        let node = self.config.node_name.as_str();
        let machine = Machine::read(&self.config.state_dir);
        self.event("Starting", "Starting kubelet.".into());
        let mut retries = RetryPacer::new(FIRST_RETRY, RENEW);
        let (registered, mut reported) = loop {
            match self.report(&machine).await {
                Ok(both) => break both,
                Err(error) => {
                    warn!(node, %error, "cannot register, will retry");
                    time::sleep(retries.note_failure()).await;
                }
            }
        };
        info!(node, "registered");
        let writer = LeaseWriter {
            client: self.client.clone(),
            namespace: LEASES,
            name: node.to_owned(),
            field_manager: "kubelet",
        };
        let mut renew = time::interval(RENEW);
        loop {
            renew.tick().await;
            if let Err(error) = writer.write(&lease(&registered)).await {
                warn!(node, %error, "cannot renew the lease");
            }
            if let Err(error) = self.report_changes(&machine, &mut reported).await {
                warn!(node, %error, "cannot report the status");
            }
        }
    }

    fn event(&self, reason: &str, message: String) {
        self.events.of_node(Severity::Normal, &self.config.node_name, reason, message);
    }

    /// What may be otherwise than a moment ago.
    async fn today(&self) -> Today {
        let images = self.images.list().await.unwrap_or_else(|error| {
            warn!(%error, "cannot list images");
            Vec::new()
        });
        let trouble = self.containers.trouble().await;
        Today { pressures: self.pressures.borrow().clone(), images, trouble }
    }

    /// Reports the status if it has changed, or was not reported for long.
    async fn report_changes(&self, machine: &Machine, reported: &mut Reported) -> kube::Result<()> {
        let today = self.today().await;
        let before = Some(&reported.status);
        let wanted = plan_node((machine, &today), &self.config, before, Timestamp::now());
        let changed = wanted.status.as_ref().map(lasting) != Some(lasting(&reported.status));
        if changed || reported.at.elapsed() >= REPORT {
            *reported = self.report(machine).await?.1;
        }
        Ok(())
    }

    /// Creates the Node object or brings it up to date.
    async fn report(&self, machine: &Machine) -> kube::Result<(Node, Reported)> {
        let api: Api<Node> = Api::all(self.client.clone());
        let name = &self.config.node_name;
        let known = api.get_opt(name).await?;
        let before = known.as_ref().and_then(|node| node.status.as_ref());
        let today = self.today().await;
        let wanted = plan_node((machine, &today), &self.config, before, Timestamp::now());
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
        let patched =
            api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let status = wanted.status.unwrap_or_default();
        self.tell(machine, before, &status);
        Ok((patched, Reported { status, at: Instant::now() }))
    }

    /// Tells what is otherwise than before, once it is written.
    fn tell(&self, machine: &Machine, before: Option<&NodeStatus>, after: &NodeStatus) {
        let name = &self.config.node_name;
        for reason in transitions(before, after) {
            self.event(reason, format!("Node {name} status is now: {reason}"));
        }
        let boot = before.and_then(|status| status.node_info.as_ref()).map(|info| &info.boot_id);
        if boot.is_some_and(|boot| !boot.is_empty() && *boot != machine.boot_id) {
            let message = format!("Node {name} has been rebooted, boot id: {}", machine.boot_id);
            self.events.of_node(Severity::Warning, name, "Rebooted", message);
        }
    }
}

/// A status without what changes with every report.
fn lasting(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
    status
}

/// The Lease goes with the Node.
fn lease(node: &Node) -> LeaseContent {
    let name = node.metadata.name.clone().unwrap_or_default();
    LeaseContent {
        holder: name.clone(),
        duration: LEASE_DURATION,
        owner: Some(OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name,
            uid: node.metadata.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        }),
        ..LeaseContent::default()
    }
}
