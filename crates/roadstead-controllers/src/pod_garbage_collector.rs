//! Pod garbage collection: pods whose node no longer exists, pods that were deleted before they
//! had a node, and finished pods beyond a number that anybody would look at.
//!
//! It keeps no pods in memory: it asks for those that are in question.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use roadstead_api::key::ObjectKey;
use roadstead_plan::disruption_target::{Disruption, condition};
use roadstead_plan::pod_view::PodView;
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::key_of;
use roadstead_watch::queue::{Backoff, Queue};
use roadstead_watch::write::{Write, read};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;
use tracing::info;

use crate::Context;
use crate::pods::PODS;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

/// How often the small questions are asked.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// How often all pods are asked for their node.
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(600);
/// A node that is gone may come back under the same name within this time.
const QUARANTINE: Duration = Duration::from_secs(40);

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

pub(crate) async fn run(context: Context) {
    let inputs = Inputs::new()
        .watch(every::<Node>(&context.client))
        .begin_with(Question::AllNodes, Duration::ZERO)
        .begin_with(Question::NeverScheduled, Duration::ZERO)
        .begin_with(Question::Finished, Duration::ZERO);
    let state = State {
        client: context.client.clone(),
        config: context.settings.pod_garbage_collector.clone(),
        nodes: Cache::default(),
        missing: BTreeMap::new(),
    };
    runner::run(context, state, inputs).await;
}

/// Which pods may be in nobody's way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    /// On which nodes are pods that do not exist?
    AllNodes,
    /// Which pods are on this node, which does not exist?
    Node(String),
    /// Which pods were deleted before they had a node?
    NeverScheduled,
    /// Which finished pods are too many?
    Finished,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllNodes => f.write_str("nodes of all pods"),
            Self::Node(name) => write!(f, "pods on {name}"),
            Self::NeverScheduled => f.write_str("pods without a node"),
            Self::Finished => f.write_str("finished pods"),
        }
    }
}

struct State {
    client: Client,
    config: Config,
    nodes: Cache<Node>,
    /// Nodes that do not exist, and since when we know.
    missing: BTreeMap<String, Instant>,
}

impl Watches<Node> for State {
    fn cache(&mut self) -> &mut Cache<Node> {
        &mut self.nodes
    }

    fn wake(&mut self, change: &Changed<Node>, queue: &mut Queue<Question>) {
        let name = &change.key.name;
        if change.now.is_some() {
            self.missing.remove(name);
        } else {
            self.missing.entry(name.clone()).or_insert_with(Instant::now);
            queue.add_after(Question::Node(name.clone()), QUARANTINE);
        }
    }
}

impl Controller for State {
    type Key = Question;
    const COMPONENT: &'static str = "pod-garbage-collector-controller";
    const QUEUE: &'static str = "pod_garbage_collector";

    fn plan(&mut self, question: &Question, _: Timestamp) -> WritePlan<Question> {
        let client = self.client.clone();
        let (survey, again_after) = match question {
            Question::AllNodes => {
                let known = self.nodes.iter().map(|(key, _)| key.name.clone()).collect();
                (strange_nodes(client, known).boxed(), LOOK_AT_ALL_EVERY)
            }
            Question::Node(name) => return self.plan_node(name),
            Question::NeverScheduled => (never_scheduled(client).boxed(), LOOK_EVERY),
            Question::Finished if self.config.terminated_threshold == 0 => {
                return WritePlan::none();
            }
            Question::Finished => {
                (finished(client, self.config.terminated_threshold).boxed(), LOOK_EVERY)
            }
        };
        let (survey, again_after) = (Some(survey), Some(again_after));
        WritePlan { survey, again_after, ..WritePlan::none() }
    }

    fn backoff(_: &Question) -> Backoff {
        Backoff { first: LOOK_EVERY, longest: LOOK_EVERY }
    }
}

impl State {
    fn plan_node(&mut self, name: &str) -> WritePlan<Question> {
        if self.nodes.get(&ObjectKey::new("", name)).is_some() {
            self.missing.remove(name);
            return WritePlan::none();
        }
        let since = self.missing.entry(name.to_owned()).or_insert_with(Instant::now);
        let left = QUARANTINE.saturating_sub(since.elapsed());
        if !left.is_zero() {
            return WritePlan { again_after: Some(left), ..WritePlan::none() };
        }
        let survey = Some(orphaned(self.client.clone(), name.to_owned()).boxed());
        WritePlan { survey, ..WritePlan::none() }
    }
}

type Surveyed = Result<WritePlan<Question>, kube::Error>;

#[derive(Deserialize)]
struct Pods {
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<PodView>,
}

/// Pods are on nodes that do not exist: these are looked at once it is sure.
async fn strange_nodes(client: Client, known: BTreeSet<String>) -> Surveyed {
    let mut strange = BTreeSet::new();
    let mut next = Some(String::new());
    while let Some(token) = next {
        let page: Pods = read(&client, &format!("/api/v1/pods?limit=500{token}")).await?;
        let nodes = page.items.into_iter().map(|pod| pod.node);
        strange.extend(nodes.filter(|node| !node.is_empty() && !known.contains(node)));
        let token = page.metadata.continue_.filter(|token| !token.is_empty());
        next = token.map(|token| format!("&continue={}", escape(&token)));
    }
    let wake = strange.into_iter().map(|node| (Question::Node(node), Duration::ZERO));
    Ok(WritePlan { wake: wake.collect(), ..WritePlan::none() })
}

async fn orphaned(client: Client, node: String) -> Surveyed {
    let pods = pods_with(&client, &format!("spec.nodeName%3D{node}")).await?;
    Ok(collect(pods.iter(), "its node is gone", Some(Disruption::NodeGone)))
}

async fn never_scheduled(client: Client) -> Surveyed {
    let waiting = pods_with(&client, "spec.nodeName%3D").await?;
    let deleted = waiting.iter().filter(|pod| pod.is_terminating());
    Ok(collect(deleted, "it was deleted before it had a node", None))
}

async fn finished(client: Client, threshold: usize) -> Surveyed {
    let mut finished = pods_with(&client, "status.phase%3DSucceeded").await?;
    finished.extend(pods_with(&client, "status.phase%3DFailed").await?);
    let surplus = finished.len().saturating_sub(threshold);
    let created = |pod: &PodView| {
        pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
    };
    finished.sort_by_cached_key(|pod| (created(pod), pod.name().to_owned()));
    Ok(collect(finished.iter().take(surplus), "there are too many finished pods", None))
}

async fn pods_with(client: &Client, fields: &str) -> Result<Vec<PodView>, kube::Error> {
    let path = format!("/api/v1/pods?fieldSelector={fields}");
    Ok(read::<Pods>(client, &path).await?.items)
}

fn collect<'a>(
    pods: impl Iterator<Item = &'a PodView>,
    why: &str,
    disruption: Option<Disruption>,
) -> WritePlan<Question> {
    let mut writes = Vec::new();
    for pod in pods {
        info!(pod = %key_of(pod), why, "collecting a pod");
        // Whoever keeps it until it has ended would keep it for ever: nobody else will say that it has.
        if !pod.is_finished() {
            writes.push(failed(pod, disruption));
        }
        writes.push(Write::delete_now(PODS, key_of(pod), pod.metadata.uid.as_deref()));
    }
    WritePlan::writes(writes)
}

fn failed(pod: &PodView, disruption: Option<Disruption>) -> Write {
    let told: Vec<_> = disruption.map(|why| condition(why, Timestamp::now())).into_iter().collect();
    let patch = json!({"metadata": {"uid": pod.metadata.uid},
        "status": {"phase": "Failed", "conditions": told}});
    Write::strategic(PODS, key_of(pod), &patch).to("status").only_if_unchanged()
}

/// Continue tokens may have characters that mean something in a query.
fn escape(token: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let bytes = token.bytes();
    bytes.map(|b| if safe(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
