//! Gives each node a block of the cluster's pod addresses (upstream's nodeipam). That no two nodes have the
//! same is also the API server's to see to: of two controllers that work at once, one is refused.

use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use roadstead_api::key::ObjectKey;
use roadstead_plan::node_ranges::{ClusterRange, plan_blocks};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::json;

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

const NODES: Collection = Collection::of::<Node>();

/// What an operator can choose.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Where blocks come from, one range of each IP family; without any, nodes get none.
    pub ranges: Vec<ClusterRange>,
    /// Blocks that nobody is given, because a node has them that may not have said so yet.
    pub kept: Vec<IpNet>,
}

pub(crate) async fn run(context: Context) {
    let config = context.settings.node_ipam.clone();
    if config.ranges.is_empty() {
        drop(context);
        return std::future::pending().await;
    }
    let inputs = Inputs::new().watch(every::<Node>(&context.client));
    let state = State { config, nodes: Cache::default(), taken: BTreeMap::new() };
    runner::run(context, state, inputs).await;
}

struct State {
    config: Config,
    nodes: Cache<Node>,
    /// What nodes have.
    taken: BTreeMap<ObjectKey, Vec<IpNet>>,
}

impl Watches<Node> for State {
    fn cache(&mut self) -> &mut Cache<Node> {
        &mut self.nodes
    }

    fn index(&mut self, change: &Changed<Node>, queue: &mut Queue<ObjectKey>) {
        let now = change.now.as_deref().map(blocks).unwrap_or_default();
        let before = self.taken.remove(&change.key).unwrap_or_default();
        // Somebody may wait for what is free now.
        if before.iter().any(|block| !now.contains(block)) {
            let waiting = self.nodes.iter().filter(|(_, node)| blocks(node).is_empty());
            waiting.for_each(|(key, _)| queue.add(key.clone()));
        }
        if !now.is_empty() {
            self.taken.insert(change.key.clone(), now);
        }
    }

    fn wake(&mut self, change: &Changed<Node>, queue: &mut Queue<ObjectKey>) {
        if change.now.as_deref().is_some_and(|node| blocks(node).is_empty()) {
            queue.add(change.key.clone());
        }
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "node-ipam-controller";
    const QUEUE: &'static str = "node_ipam";
    /// What one node gets depends on what the others have got.
    const WORKERS: usize = 1;

    fn plan(&mut self, key: &ObjectKey, _: Timestamp) -> WritePlan {
        let node = self.nodes.get(key).filter(|node| blocks(node).is_empty());
        let Some(node) = node.filter(|node| node.metadata.deletion_timestamp.is_none()) else {
            return WritePlan::none();
        };
        let about = InvolvedObject::of(node.as_ref());
        let taken: Vec<_> =
            self.taken.values().flatten().chain(&self.config.kept).copied().collect();
        match plan_blocks(&self.config.ranges, &taken) {
            Ok(blocks) => {
                let blocks: Vec<_> = blocks.iter().map(IpNet::to_string).collect();
                let patch = json!({"metadata": {"uid": node.uid()},
                    "spec": {"podCIDR": blocks[0], "podCIDRs": blocks}});
                WritePlan {
                    writes: vec![Write::merge(NODES, key.clone(), &patch)],
                    failure: Some((about, "CIDRAssignmentFailed", "no pod addresses".into())),
                    ..WritePlan::none()
                }
            }
            Err(range) => {
                let message = format!(
                    "Node {} gets no pod addresses: {} has no free block of /{} left; delete Nodes that \
                     are gone, or widen --cluster-cidr",
                    key.name, range.range, range.block
                );
                let (severity, reason) = (Severity::Warning, "CIDRNotAvailable".to_owned());
                let events = vec![EventDraft { about, severity, reason, message }];
                WritePlan { events, ..WritePlan::none() }
            }
        }
    }
}

fn blocks(node: &Node) -> Vec<IpNet> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    let mut all: Vec<IpNet> = all.filter_map(|block| block.parse().ok()).collect();
    all.dedup();
    all
}
