//! Pod garbage collection: pods whose node no longer exists, pods that were deleted before they
//! had a node, and finished pods beyond a number that anybody would look at.
//!
//! It keeps no pods in memory: it asks for those that are in question.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_plan::backend::Backend;
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Selection, informer};
use roadstead_watch::write::{Collection, Write, read};
use serde::Deserialize;
use tokio::time::{self, Instant};
use tracing::{info, warn};

/// How often the small questions are asked.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// How often all pods are asked for their node.
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(600);
/// A node that is gone may come back under the same name within this time.
const QUARANTINE: Duration = Duration::from_secs(40);
const PODS: Collection = Collection::of::<Backend>();

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// So many finished pods stay; 0 means all.
    pub terminated_threshold: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { terminated_threshold: 12_500 }
    }
}

/// Runs the controller.
pub async fn run(client: Client, config: Config) {
    let api = Api::<Node>::all(client.clone());
    let mut changes = informer(api, Selection::all());
    let mut collector =
        Collector { client, config, nodes: Cache::default(), missing: BTreeMap::new() };
    let mut ticks = time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut look_at_all = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some(change) = changes.next() => {
                if let Some((key, _)) = collector.nodes.observe(&change) {
                    collector.suspect(&key.name);
                }
            }
            _ = ticks.tick(), if collector.nodes.synced() => {
                let all = Instant::now() >= look_at_all;
                match collector.look(all).await {
                    Ok(()) if all => look_at_all = Instant::now() + LOOK_AT_ALL_EVERY,
                    Ok(()) => {}
                    Err(error) => warn!(%error, "pods not collected, will retry"),
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Pods {
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<Backend>,
}

struct Collector {
    client: Client,
    config: Config,
    nodes: Cache<Node>,
    /// Nodes that do not exist, and since when we know.
    missing: BTreeMap<String, Instant>,
}

impl Collector {
    fn suspect(&mut self, node: &str) {
        if self.nodes.get(&ObjectKey::new("", node)).is_some() {
            self.missing.remove(node);
        } else if !node.is_empty() {
            self.missing.entry(node.to_owned()).or_insert_with(Instant::now);
        }
    }

    async fn look(&mut self, all: bool) -> Result<(), kube::Error> {
        if all {
            for node in self.nodes_of_pods().await? {
                self.suspect(&node);
            }
        }
        self.orphaned().await?;
        self.never_scheduled().await?;
        self.finished().await
    }

    /// The names of all nodes that pods are on.
    async fn nodes_of_pods(&self) -> Result<BTreeSet<String>, kube::Error> {
        let mut names = BTreeSet::new();
        let mut next = String::new();
        loop {
            let page: Pods = read(&self.client, &format!("/api/v1/pods?limit=500{next}")).await?;
            names.extend(page.items.into_iter().map(|pod| pod.node));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => next = format!("&continue={}", escape(&token)),
                None => return Ok(names),
            }
        }
    }

    async fn orphaned(&mut self) -> Result<(), kube::Error> {
        let gone = self.missing.iter().filter(|(_, since)| since.elapsed() >= QUARANTINE);
        let gone: Vec<_> = gone.map(|(node, _)| node.clone()).collect();
        for node in gone {
            for pod in self.with(&format!("spec.nodeName%3D{node}")).await? {
                self.delete(&pod.metadata, "its node is gone").await?;
            }
            self.missing.remove(&node);
        }
        Ok(())
    }

    async fn never_scheduled(&self) -> Result<(), kube::Error> {
        let waiting = self.with("spec.nodeName%3D").await?;
        for pod in waiting.iter().filter(|pod| pod.is_terminating()) {
            self.delete(&pod.metadata, "it was deleted before it had a node").await?;
        }
        Ok(())
    }

    async fn finished(&self) -> Result<(), kube::Error> {
        if self.config.terminated_threshold == 0 {
            return Ok(());
        }
        let mut finished = self.with("status.phase%3DSucceeded").await?;
        finished.extend(self.with("status.phase%3DFailed").await?);
        let surplus = finished.len().saturating_sub(self.config.terminated_threshold);
        let created = |pod: &Backend| {
            pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
        };
        finished.sort_by_cached_key(|pod| (created(pod), pod.name().to_owned()));
        for pod in finished.iter().take(surplus) {
            self.delete(&pod.metadata, "there are too many finished pods").await?;
        }
        Ok(())
    }

    async fn with(&self, fields: &str) -> Result<Vec<Backend>, kube::Error> {
        let path = format!("/api/v1/pods?fieldSelector={fields}");
        Ok(read::<Pods>(&self.client, &path).await?.items)
    }

    async fn delete(&self, pod: &ObjectMeta, why: &str) -> Result<(), kube::Error> {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let key = ObjectKey::new(text(&pod.namespace), text(&pod.name));
        match Write::delete_now(PODS, key.clone(), pod.uid.as_deref()).send(&self.client).await {
            Err(error) if !crate::is_gone(&error) => Err(error),
            _ => {
                info!(pod = %key, why, "pod collected");
                Ok(())
            }
        }
    }
}

/// Continue tokens may have characters that mean something in a query.
fn escape(token: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let bytes = token.bytes();
    bytes.map(|b| if safe(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
